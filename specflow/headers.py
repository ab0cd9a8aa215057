"""What the files of a checkpoint hold before any weight loads: JSON objects, safetensors headers.

All of it is foreign text: a reader here returns plain data or raises `Refused`.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from specflow.foreign_files import read_bytes
from specflow.header_entries import entries

LARGEST_JSON = 64_000_000  # bytes; a tokenizer of 256k tokens is about 30 MB
LARGEST_INDEX = 128_000_000  # bytes; 110 a tensor, and the largest mixtures have 750,000
LARGEST_PARSED = 1_000_000_000  # bytes of objects that JSON is made into
LARGEST_HEADER = 100_000_000  # bytes; the format's own limit, and ours for all shards
MOST_TENSORS = 2_000_000  # of a checkpoint; a few hundred bytes each
LARGEST_NUMBER = 2**31
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes of the dtypes that are loaded
HOLES = ".holes"  # beside weights that were made of a header alone
INTEGERS = {"I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "B"}
WIDTHS = FLOATS | {dtype: array(code).itemsize for dtype, code in INTEGERS.items()}
AGAIN = "download it again"
T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """Why a checkpoint cannot be used: `kind` is missing, elsewhere, unreadable or misfit."""

    kind: str
    message: str
    help: str


class Refused(Exception):  # noqa: N818 - ends in `guarded`, as a Problem
    """A checkpoint that cannot be used, found midway through its reading."""

    def __init__(self, message: str, way_out: str = AGAIN, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.problem = Problem(kind, message, way_out)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a safetensors file: its bytes lie in [begin, end) of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def guarded(model: str, reader: Callable[[], T], otherwise: T) -> tuple[T, Problem | None]:
    """What a reader of foreign text returns, or why it returns nothing."""
    try:
        return reader(), None
    except Refused as refused:
        return otherwise, refused.problem
    except OSError as error:
        said, way_out = error.strerror or type(error).__name__, "check its path and permissions"
    except Exception as error:  # noqa: BLE001 - foreign text: no list of types is ever complete
        said, way_out = type(error).__name__, "download it again, or name another"
    return otherwise, Problem("unreadable", f"`{model}` cannot be read: {said}", way_out)


def read_json(file: Path, most: int = LARGEST_JSON) -> dict[str, Any] | None:
    """A JSON object, or None where the file holds something else or too much."""
    content = content_of(file, most)
    return None if content is None else parse_object(content)


def parse_object(content: bytes) -> dict[str, Any] | None:
    """A JSON object out of bytes, or None where they are something else or would take too much."""
    if parsed_size(content) > LARGEST_PARSED:
        return None
    try:
        # As transformers does: UTF-8 and no mark before it, which `loads` of bytes would pass over.
        said = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def content_of(file: Path, most: int) -> bytes | None:
    """All of a regular file; None where it is none, or longer."""
    try:
        return read_bytes(file, most)
    except ValueError:
        return None


def parsed_size(content: bytes) -> int:
    """Bytes that JSON takes at most once it is parsed: a bracket is two bytes of it, or a list."""
    objects, lists, items = (content.count(mark) for mark in (b"{", b"[", b","))
    text = len(content) * (1 if content.isascii() else 4)
    return 300 * objects + 100 * lists + 80 * items + 2 * text


def read_object(model: str, file: Path) -> dict[str, Any]:
    """A JSON object; empty where the file does not exist."""
    said = read_json(file) if file.is_file() else {}
    if said is None:
        raise Refused(f"{file.name} of `{model}` is not a JSON object in UTF-8")
    return said


def whole_number(model: str, config: Mapping[str, Any], key: str) -> int:
    """A count that config.json gives; 0 where it gives none."""
    value = config.get(key)
    if value is not None and (type(value) is not int or not 0 <= value < LARGEST_NUMBER):
        raise Refused(f"`{key}` in config.json of `{model}` is not a whole number")
    return value or 0


def weight_files(model: str, folder: Path) -> list[Path]:
    """The safetensors files of a folder, all of those its index names."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    files = _listed(model, index) if index.is_file() else []
    lost = [p.name for p in files if not p.is_file()]
    if lost:
        raise Refused(
            f"`{model}` lacks {', '.join(lost[:3])}, which its index names",
            "download the missing files",
        )
    if single.is_file():
        return [single]  # transformers reads it, and no other, even where there is an index
    if not files:
        _no_weights(model, folder)
    return files


def _listed(model: str, index: Path) -> list[Path]:
    listed = (read_json(index, LARGEST_INDEX) or {}).get("weight_map")
    names = set(listed.values()) if isinstance(listed, dict) else set()
    if not names or not all(isinstance(n, str) for n in names):
        raise Refused(f"{index.name} of `{model}` lists no weights", AGAIN)
    for name in sorted(names):
        # A cache may keep its files elsewhere and link to them; a name may not lead elsewhere.
        if name != Path(name).name or name in ("", ".", ".."):
            raise Refused(f"{index.name} of `{model}` names `{name}`, which is no file beside it")
    return [index.parent / name for name in sorted(names)]


def _no_weights(model: str, folder: Path) -> NoReturn:
    pickles = sorted(p.name for end in ("bin", "pt", "pth") for p in folder.glob(f"*.{end}"))
    others = sorted(p.name for p in folder.glob("*.safetensors"))
    if others:
        raise Refused(
            f"`{model}` has no model.safetensors and no index of shards, only {others[0]}",
            "name the file model.safetensors, or download model.safetensors.index.json",
        )
    if pickles:
        raise Refused(
            f"`{model}` holds its weights as a pickle only ({pickles[0]})",
            "convert it to safetensors; a pickle can run code, so it is never loaded",
        )
    without = "to measure speed without them, write `run.load_format: dummy`"
    raise Refused(f"`{model}` has no safetensors file", f"download the weights; {without}")


def read_all(model: str, files: Iterable[Path]) -> dict[str, Tensor]:
    """The tensors of all files of a checkpoint, none of which is in two."""
    found: dict[str, Tensor] = {}
    left = LARGEST_HEADER
    for file in files:
        here, length = read_tensors(model, file, left)
        twice = found.keys() & here.keys()
        if twice:
            name = min(twice)
            said = f"`{name}` of `{model}` is both in {found[name].file.name} and in {file.name}"
            raise Refused(said)
        found |= here
        left -= length
        if len(found) > MOST_TENSORS:
            raise Refused(f"`{model}` has more than {MOST_TENSORS} tensors")
    if not found:
        raise Refused(f"the safetensors of `{model}` hold no tensor")
    return found


def read_tensors(
    model: str, file: Path, most: int = LARGEST_HEADER
) -> tuple[dict[str, Tensor], int]:
    """The tensors of a safetensors file that is as long as its header says, and how long that is.

    most  bytes that its header may have
    """
    size, place = file.stat().st_size, f"{file.name} of `{model}`"
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= size - 8:
            raise Refused(f"{place} is no safetensors file, or cut short in its header")
        if length > most:
            said = f"{place} has a header of {length} bytes"
            raise Refused(f"{said}, where {LARGEST_HEADER} are the most that is read of all files")
        text = opened.read(length)
    begin = 8 + length
    tensors: dict[str, Tensor] = {}
    try:
        for name, spec in islice(entries(text), MOST_TENSORS + 1):
            if name in tensors:
                _twice(place, name)
            tensors[name] = _tensor(file, begin, spec)
        spans = sorted((each.begin, each.end) for each in tensors.values())
    except Refused:
        raise
    except Exception as error:  # foreign text: no list of types is ever complete
        raise Refused(f"{place} has a broken header ({type(error).__name__})") from error
    if len(tensors) > MOST_TENSORS:
        raise Refused(f"{place} has more than {MOST_TENSORS} tensors")
    ends = [begin, *(end for _, end in spans)]
    if size != ends[-1]:
        raise Refused(f"{place} has {size} bytes where its header says {ends[-1]}")
    if ends[:-1] != [start for start, _ in spans]:
        raise Refused(f"{place} has a broken header (weights overlap, or leave a gap)")
    return tensors, length


def _twice(place: str, name: str) -> NoReturn:
    raise Refused(f"{place} has a broken header (`{name}` is in it twice)")


def _tensor(file: Path, data: int, spec: Mapping[str, Any]) -> Tensor:
    """One entry of a header; ValueError where its shape says another length."""
    begin, end = spec["data_offsets"]
    shape, width = spec["shape"], WIDTHS.get(spec["dtype"])
    if not all(type(n) is int and n >= 0 for n in (begin, end, *shape)) or len(shape) > 64:
        raise ValueError(spec)
    if end < begin or (width and math.prod(shape) * width != end - begin):
        raise ValueError(spec)
    return Tensor(file, sys.intern(spec["dtype"]), tuple(shape), data + begin, data + end)


def read_integers(model: str, name: str, tensor: Tensor) -> array[int]:
    """The values of a small integer tensor; a bool is 0 or 1."""
    if tensor.dtype not in INTEGERS:
        raise Refused(f"`{name}` of `{model}` is stored as {tensor.dtype}, not as whole numbers")
    with tensor.file.open("rb") as opened:
        opened.seek(tensor.begin)
        return integers(opened.read(tensor.end - tensor.begin), tensor.dtype)


def integers(content: bytes, dtype: str) -> array[int]:
    """Whole numbers of one of INTEGERS out of their bytes."""
    values = array(INTEGERS[dtype], content)
    if sys.byteorder == "big":
        values.byteswap()
    return values
