"""What a checkpoint says of itself, from its headers alone: no weights, no torch.

All of it is foreign text: whatever a folder holds, a reader here returns facts or a `Problem`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from specflow.gguf_header import read_header

BUILTIN = "builtin:"
PICO = Path(__file__).parent / "models" / "pico"
LARGEST_JSON = 64_000_000  # bytes; a tokenizer of 256k tokens is about 30 MB
LARGEST_HEADER = 100_000_000  # bytes; the format's own limit
LARGEST_ID = 2**31
MOSTLY = 0.98  # share of tokens that a GGUF and a folder of one model agree on
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes of the dtypes that are loaded
AGAIN = "download it again"
SPECIALS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """Why a checkpoint cannot be used: `kind` is missing or unreadable."""

    kind: str
    message: str
    help: str


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before its weights load; zero or empty is not known.

    weights    the safetensors files, each of them whole
    no_float   name and dtype of the first weight that is not stored as a float
    tokens     a GGUF file's map of tokens to ids; a folder's is read when it is asked for
    """

    model: str
    folder: Path | None = None
    problem: Problem | None = None
    architecture: str = ""
    vocab_size: int = 0
    max_positions: int = 0
    weights: tuple[Path, ...] = ()
    no_float: tuple[str, str] | None = None
    tokens: Mapping[str, int] | None = None

    @property
    def tokenizer_size(self) -> int:
        """How many tokens the tokenizer knows: its highest id + 1."""
        return max(self._tokenizer[0].values(), default=-1) + 1

    @property
    def tokenizer_problem(self) -> Problem | None:
        """Why the tokenizer cannot be used; only a target needs one."""
        return self._tokenizer[1]

    @cached_property
    def _tokenizer(self) -> tuple[dict[str, int], Problem | None]:
        folder = self.folder
        if folder is None:
            return dict(self.tokens or {}), None
        nothing: dict[str, int] = {}
        return _guarded(self.model, lambda: _vocabulary(self.model, folder), nothing)

    def speaks_like(self, other: ModelFacts) -> bool:
        """Whether both tokenizers map the same tokens to the same ids, as far as is known."""
        mine, theirs = self._tokenizer[0], other._tokenizer[0]
        if self.model == other.model or not mine or not theirs:
            return True
        # Some formats write a model's own special tokens in other words; most tokens decide.
        shared = mine.keys() & theirs.keys()
        same = sum(mine[token] == theirs[token] for token in shared)
        if self.tokens is None and other.tokens is None:
            return mine == theirs
        return same >= MOSTLY * max(len(mine), len(theirs))


@dataclass(frozen=True)
class Facts:
    """Facts by block: target, and draft where it names a model."""

    models: Mapping[str, ModelFacts] = field(default_factory=dict)

    def __getitem__(self, block: str) -> ModelFacts:
        return self.models.get(block, ModelFacts(""))


class _Refused(Exception):  # noqa: N818 - ends in this file, as a Problem
    """A checkpoint that cannot be used, found midway through its reading."""

    def __init__(self, message: str, way_out: str = AGAIN, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.problem = Problem(kind, message, way_out)


def builtins() -> dict[str, Path]:
    """The checkpoints that ship with specflow, by the name after `builtin:`."""
    return {f"pico-{p.parent.name}": p.parent for p in sorted(PICO.glob("*/config.json"))}


def read(model: str) -> ModelFacts:
    """The facts of a model as a recipe names it; never an exception: a problem is a fact too."""
    facts, problem = _guarded(model, lambda: _named(model), ModelFacts(model))
    return ModelFacts(model, problem=problem) if problem else facts


def read_folder(folder: Path) -> ModelFacts:
    """The facts of a folder; never an exception."""
    model = str(folder)
    facts, problem = _guarded(model, lambda: _folder(model, folder), ModelFacts(model))
    return ModelFacts(model, problem=problem) if problem else facts


def _guarded(model: str, reader: Callable[[], T], otherwise: T) -> tuple[T, Problem | None]:
    """What a reader of foreign text returns, or why it returns nothing."""
    try:
        return reader(), None
    except _Refused as refused:
        return otherwise, refused.problem
    except OSError as error:
        said, way_out = error.strerror or type(error).__name__, "check its path and permissions"
    except Exception as error:  # noqa: BLE001 - foreign text: no list of types is ever complete
        said, way_out = type(error).__name__, "download it again, or name another"
    return otherwise, Problem("unreadable", f"`{model}` cannot be read: {said}", way_out)


def _named(model: str) -> ModelFacts:
    if model.startswith(BUILTIN):
        name = model.removeprefix(BUILTIN)
        folder = builtins().get(name)
        if folder is None:
            offer = ", ".join(BUILTIN + n for n in builtins())
            raise _Refused(f"specflow ships no `{name}`", f"built in are {offer}", "missing")
        return _folder(model, folder)
    path = Path(model).expanduser()
    if path.is_dir():
        return _folder(model, path)
    if path.suffix == ".gguf" and path.is_file():
        return _gguf(model, path)
    if path.exists():
        raise _Refused(
            f"`{model}` is neither a folder nor a GGUF file",
            "only safetensors and GGUF are loaded; name the folder that holds config.json",
        )
    raise _Refused(
        f"`{model}` does not exist",
        "name a checkpoint folder, a .gguf file, or builtin:NAME",
        "missing",
    )


def _gguf(model: str, path: Path) -> ModelFacts:
    """The facts of a GGUF file, from its header."""
    try:
        header = read_header(path)
    except ValueError as error:
        raise _Refused(f"`{model}` cannot be read: {error}") from error
    size = path.stat().st_size
    if size < header.needed:
        raise _Refused(f"`{model}` is cut short: {size} of {header.needed} bytes")
    return ModelFacts(
        model,
        vocab_size=len(header.tokens),
        max_positions=header.context,
        tokens={token: at for at, token in enumerate(header.tokens)},
    )


def _folder(model: str, folder: Path) -> ModelFacts:
    if not (folder / "config.json").is_file():
        raise _Refused(f"`{model}` has no config.json", "name the folder of a whole checkpoint")
    said = _object(model, folder / "config.json")
    for config in (said, _object(model, folder / "generation_config.json")):
        if token_ids(config.get("eos_token_id")) is None:
            raise _Refused(f"an `eos_token_id` of `{model}` is no token id", AGAIN)
    text = said["text_config"] if isinstance(said.get("text_config"), dict) else said
    names = said.get("architectures")
    sizes = {k: _number(model, text, k) for k in ("vocab_size", "max_position_embeddings")}
    nothing: tuple[tuple[Path, ...], tuple[str, str] | None] = ((), None)
    (files, no_float), problem = _guarded(model, lambda: _weights(model, folder), nothing)
    return ModelFacts(
        model,
        folder,
        problem,
        architecture=str(names[0]) if isinstance(names, list) and names else "",
        vocab_size=sizes["vocab_size"],
        max_positions=sizes["max_position_embeddings"],
        weights=files,
        no_float=no_float,
    )


def _weights(model: str, folder: Path) -> tuple[tuple[Path, ...], tuple[str, str] | None]:
    """The files that hold the weights, each checked to be whole, and the first odd dtype."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    files = _listed(model, index) if index.is_file() else []
    if single.is_file() and single not in files:
        files.append(single)  # transformers reads it even where there is an index
    if not files:
        _no_weights(model, folder)
    lost = [p.name for p in files if not p.is_file()]
    if lost:
        raise _Refused(
            f"`{model}` lacks {', '.join(lost[:3])}, which its index names",
            "download the missing files",
        )
    no_float = None
    for file in files:
        for name, dtype in _dtypes(model, file).items():
            if dtype not in FLOATS and no_float is None:
                no_float = (name, dtype)
    return tuple(files), no_float


def _listed(model: str, index: Path) -> list[Path]:
    listed = (read_json(index) or {}).get("weight_map")
    names = list(listed.values()) if isinstance(listed, dict) else []
    if not names or not all(isinstance(n, str) and n == Path(n).name for n in names):
        raise _Refused(f"{index.name} of `{model}` lists no weights", AGAIN)
    return [index.parent / name for name in sorted(set(names))]


def _no_weights(model: str, folder: Path) -> NoReturn:
    pickles = sorted(p.name for end in ("bin", "pt", "pth") for p in folder.glob(f"*.{end}"))
    others = sorted(p.name for p in folder.glob("*.safetensors"))
    if others:
        raise _Refused(
            f"`{model}` has no model.safetensors and no index of shards, only {others[0]}",
            "name the file model.safetensors, or download model.safetensors.index.json",
        )
    if pickles:
        raise _Refused(
            f"`{model}` holds its weights as a pickle only ({pickles[0]})",
            "convert it to safetensors; a pickle can run code, so it is never loaded",
        )
    raise _Refused(f"`{model}` has no safetensors file", "download the weights")


def _dtypes(model: str, file: Path) -> dict[str, str]:
    """The dtype of each weight of a safetensors file that is as long as its header says."""
    size, place = file.stat().st_size, f"{file.name} of `{model}`"
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= min(LARGEST_HEADER, size - 8):
            raise _Refused(f"{place} is no safetensors file, or cut short in its header")
        text = opened.read(length)
    try:
        header = json.loads(text.decode("utf-8"))
        notes = header.pop("__metadata__", {})
        spans = sorted(_span(spec) for spec in header.values())
        dtypes = {name: str(spec["dtype"]) for name, spec in header.items()}
        plain = all(isinstance(note, str) for note in notes.values())
    except Exception as error:  # foreign text: no list of types is ever complete
        raise _Refused(f"{place} has a broken header ({type(error).__name__})") from error
    ends = [0, *(end for _, end in spans)]
    if size != 8 + length + ends[-1]:
        raise _Refused(f"{place} has {size} bytes where its header says {8 + length + ends[-1]}")
    if not plain or ends[:-1] != [begin for begin, _ in spans]:
        raise _Refused(f"{place} has a broken header (weights overlap, or notes are no text)")
    return dtypes


def _span(spec: Mapping[str, Any]) -> tuple[int, int]:
    """Where a weight begins and ends; ValueError where its shape says another length."""
    begin, end = spec["data_offsets"]
    shape, width = spec["shape"], FLOATS.get(spec["dtype"])
    if not all(type(n) is int and n >= 0 for n in (begin, end, *shape)) or len(shape) > 64:
        raise ValueError(spec)
    if end < begin or (width and math.prod(shape) * width != end - begin):
        raise ValueError(spec)
    return begin, end


def _vocabulary(model: str, folder: Path) -> dict[str, int]:
    """What a tokenizer.json maps to ids; empty where it is too large to read here."""
    special_tokens(_object(model, folder / "tokenizer_config.json"))
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise _Refused(f"`{model}` has no tokenizer.json", "save the model with a fast tokenizer")
    if file.stat().st_size > LARGEST_JSON:
        return {}
    try:
        said = read_json(file) or {}
        vocab = said["model"]["vocab"]
        if isinstance(vocab, list):  # Unigram: pairs of a token and its score, in the order of ids
            vocab = {token: at for at, (token, _) in enumerate(vocab)}
        known = vocab | {each["content"]: each["id"] for each in said.get("added_tokens", [])}
        whole = all(type(i) is int and 0 <= i < 2**32 for i in known.values())
    except Exception as error:  # foreign text: no list of types is ever complete
        raise _Refused(f"tokenizer.json of `{model}` is not a tokenizer") from error
    if not whole:
        raise _Refused(f"tokenizer.json of `{model}` gives a token an id that is none")
    return dict(known)


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a tokenizer_config.json names, each as text."""
    found = {}
    for name in SPECIALS:
        said = config.get(name)
        content = said.get("content") if isinstance(said, dict) else said
        if not said:
            continue
        if not isinstance(content, str) or any("\ud800" <= c <= "\udfff" for c in content):
            raise _Refused(f"`{name}` of tokenizer_config.json is no token", AGAIN)
        found[name] = content
    return found


def token_ids(said: Any) -> frozenset[int] | None:
    """The ids an `eos_token_id` names, none, one or several; None where it is no such thing."""
    if said is None:
        return frozenset()
    listed = said if isinstance(said, list | tuple | set | frozenset) else [said]
    return frozenset(listed) if all(type(i) is int for i in listed) else None


def read_json(file: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file holds something else or too much."""
    if file.stat().st_size > LARGEST_JSON:
        return None
    try:
        # As transformers does: UTF-8 and no mark before it, which `loads` of bytes would pass over.
        said = json.loads(file.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _object(model: str, file: Path) -> dict[str, Any]:
    """A JSON object; empty where the file does not exist."""
    said = read_json(file) if file.is_file() else {}
    if said is None:
        raise _Refused(f"{file.name} of `{model}` is not a JSON object in UTF-8")
    return said


def _number(model: str, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if value is not None and (type(value) is not int or not 0 <= value < LARGEST_ID):
        raise _Refused(f"`{key}` in config.json of `{model}` is not a whole number")
    return value or 0
