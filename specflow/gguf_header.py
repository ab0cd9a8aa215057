"""What a GGUF file says of itself before its weights: sizes, tokens, and whether it is whole.

The layout is that of the format's version 2 and 3: magic, version, two counts, key-value pairs,
then a name, a shape, a type and an offset for each tensor, then the tensors.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
HEAD = 64_000_000  # bytes read at most: the tokens of a large vocabulary are about 10 MB
MOST = 1 << 24  # items of an array, tensors of a file: more is no model
ALIGNMENT = 32
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
# Elements and bytes of a block, for the types whose sizes never changed; others are not judged.
_BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
           30: (1, 2)}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What the head of a file says; zero or empty is not known.

    needed  bytes the file has at least, by its own word
    """

    architecture: str
    context: int
    tokens: tuple[str, ...]
    needed: int


def read_header(file: Path) -> Header:
    """The header of a GGUF file; ValueError where it is none, or is cut short."""
    with file.open("rb") as opened:
        stream = BytesIO(opened.read(HEAD))
    if stream.read(4) != MAGIC:
        raise ValueError("it does not begin as a GGUF file")
    version, tensors, pairs = _unpack(stream, "<IQQ")
    if version not in (2, 3) or max(tensors, pairs) > MOST:
        raise ValueError(f"its version is {version}, which is not read")
    said = {}
    for _ in range(pairs):
        key = _string(stream)
        said[key] = _value(stream, *_unpack(stream, "<I"))
    ends = [_tensor_end(stream) for _ in range(tensors)]
    step = said.get("general.alignment", ALIGNMENT)
    step = step if isinstance(step, int) and step > 0 else ALIGNMENT
    begin = -(-stream.tell() // step) * step
    architecture = str(said.get("general.architecture", ""))
    context = said.get(f"{architecture}.context_length", 0)
    tokens = said.get("tokenizer.ggml.tokens", ())
    return Header(
        architecture,
        context if isinstance(context, int) else 0,
        tuple(map(str, tokens)) if isinstance(tokens, list) else (),
        begin + max(ends, default=0),
    )


def _unpack(stream: BytesIO, layout: str) -> tuple[Any, ...]:
    size = struct.calcsize(layout)
    content = stream.read(size)
    if len(content) < size:
        raise ValueError("it is cut short in its header")
    return struct.unpack(layout, content)


def _string(stream: BytesIO) -> str:
    (length,) = _unpack(stream, "<Q")
    content = stream.read(min(length, HEAD))
    if len(content) < length:
        raise ValueError("it is cut short in its header")
    return content.decode("utf-8", "replace")


def _value(stream: BytesIO, kind: int) -> Any:
    """A value of the header: a number, a text, or a list of them."""
    if kind == _STRING:
        return _string(stream)
    if kind == _ARRAY:
        inner, count = _unpack(stream, "<IQ")
        if count > MOST:
            raise ValueError("an array of its header is too long")
        if inner in _NUMBERS:
            return list(_unpack(stream, f"<{count}{_NUMBERS[inner]}"))
        if inner != _STRING:
            raise ValueError(f"an array of its header holds type {inner}")
        return [_string(stream) for _ in range(count)]
    if kind not in _NUMBERS:
        raise ValueError(f"its header holds a value of type {kind}")
    return _unpack(stream, f"<{_NUMBERS[kind]}")[0]


def _tensor_end(stream: BytesIO) -> int:
    """Where a tensor ends, from the begin of the data; its begin, where its type is not known."""
    _string(stream)
    (dimensions,) = _unpack(stream, "<I")
    shape = _unpack(stream, f"<{min(dimensions, 8)}Q")
    kind, offset = _unpack(stream, "<IQ")
    elements, size = _BLOCKS.get(kind, (1, 0))
    return int(offset + math.prod(shape) // elements * size)
