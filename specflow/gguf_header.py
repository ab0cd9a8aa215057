"""What a GGUF file says of itself before its weights: sizes, tokens, and whether it is whole.

The layout is that of the format's version 2 and 3: magic, version, two counts, key-value pairs,
then a name, a shape, a type and an offset for each tensor, then the tensors.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from io import SEEK_CUR
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"GGUF"
HEAD = 64_000_000  # bytes read at most: the tokens of a large vocabulary are about 10 MB
MOST = 1 << 24  # items of an array: more is no model
MOST_NAMED = 1 << 18  # tensors of a file, or values of its header
TOKENS = "tokenizer.ggml.tokens"  # the one list whose items are wanted
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
    with file.open("rb") as stream:
        return _header(stream)


def _header(stream: BinaryIO) -> Header:
    if stream.read(4) != MAGIC:
        raise ValueError("it does not begin as a GGUF file")
    version, tensors, pairs = _unpack(stream, "<IQQ")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}, which is not read")
    if max(tensors, pairs) > MOST_NAMED:
        raise ValueError(f"it says {tensors} tensors and {pairs} values, which is no model")
    said = {}
    for _ in range(pairs):
        key = _string(stream)
        said[key] = _value(stream, *_unpack(stream, "<I"), kept=key == TOKENS)
    ends = [_tensor_end(stream) for _ in range(tensors)]
    step = said.get("general.alignment", ALIGNMENT)
    step = step if isinstance(step, int) and step > 0 else ALIGNMENT
    begin = -(-stream.tell() // step) * step
    architecture = str(said.get("general.architecture", ""))
    context = said.get(f"{architecture}.context_length", 0)
    tokens = said.get(TOKENS, ())
    return Header(
        architecture,
        context if isinstance(context, int) else 0,
        tuple(map(str, tokens)) if isinstance(tokens, list) else (),
        begin + max(ends, default=0),
    )


def _unpack(stream: BinaryIO, layout: str) -> tuple[Any, ...]:
    size = struct.calcsize(layout)
    content = stream.read(size)
    if len(content) < size:
        raise ValueError("it is cut short in its header")
    return struct.unpack(layout, content)


def _string(stream: BinaryIO) -> str:
    (length,) = _unpack(stream, "<Q")
    _within(stream, length)
    content = stream.read(length)
    if len(content) < length:
        raise ValueError("it is cut short in its header")
    return content.decode("utf-8", "replace")


def _skip(stream: BinaryIO, length: int) -> None:
    """Go on without reading; past the end of the file there is nothing to read then."""
    _within(stream, length)
    stream.seek(length, SEEK_CUR)


def _within(stream: BinaryIO, length: int) -> None:
    if stream.tell() + length > HEAD:
        raise ValueError(f"its header is longer than {HEAD} bytes, or cut short")


def _value(stream: BinaryIO, kind: int, *, kept: bool) -> Any:
    """A value of the header: a number, a text, or a list of texts; None for one that is not kept.

    A list may be most of a header, and its items take several times their bytes.
    """
    if kind == _STRING:
        return _string(stream)
    if kind == _ARRAY:
        inner, count = _unpack(stream, "<IQ")
        if count > MOST:
            raise ValueError("an array of its header is too long")
        if inner in _NUMBERS:
            _skip(stream, count * struct.calcsize(f"<{_NUMBERS[inner]}"))
            return None
        if inner != _STRING:
            raise ValueError(f"an array of its header holds type {inner}")
        if kept:
            return [_string(stream) for _ in range(count)]
        for _ in range(count):
            _skip(stream, *_unpack(stream, "<Q"))
        return None
    if kind not in _NUMBERS:
        raise ValueError(f"its header holds a value of type {kind}")
    return _unpack(stream, f"<{_NUMBERS[kind]}")[0]


def _tensor_end(stream: BinaryIO) -> int:
    """Where a tensor ends, from the begin of the data; its begin, where its type is not known."""
    _string(stream)
    (dimensions,) = _unpack(stream, "<I")
    shape = _unpack(stream, f"<{min(dimensions, 8)}Q")
    kind, offset = _unpack(stream, "<IQ")
    elements, size = _BLOCKS.get(kind, (1, 0))
    return int(offset + math.prod(shape) // elements * size)
