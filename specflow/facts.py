"""What a checkpoint says of itself, from its headers alone: no weights, no torch."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUILTIN = "builtin:"
PICO = Path(__file__).parent / "models" / "pico"
LARGEST_JSON = 64_000_000  # bytes; a tokenizer of 256k tokens is about 30 MB


@dataclass(frozen=True)
class Problem:
    """Why a checkpoint cannot be used: `kind` is missing or unreadable."""

    kind: str
    message: str
    help: str


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before its weights load; zero or empty is not known.

    tokens  sha256 of the tokenizer's map of tokens to ids: where equal, two models speak alike
    """

    model: str
    folder: Path | None = None
    problem: Problem | None = None
    architecture: str = ""
    vocab_size: int = 0
    max_positions: int = 0
    tokenizer_size: int = 0
    tokens: str = ""


@dataclass(frozen=True)
class Facts:
    """Facts by block: target, and draft where it names a model."""

    models: Mapping[str, ModelFacts] = field(default_factory=dict)

    def __getitem__(self, block: str) -> ModelFacts:
        return self.models.get(block, ModelFacts(""))


def builtins() -> dict[str, Path]:
    """The checkpoints that ship with specflow, by the name after `builtin:`."""
    return {f"pico-{p.parent.name}": p.parent for p in sorted(PICO.glob("*/config.json"))}


def read(model: str) -> ModelFacts:
    """The facts of a model as a recipe names it; never an exception: a problem is a fact too."""
    if model.startswith(BUILTIN):
        name = model.removeprefix(BUILTIN)
        folder = builtins().get(name)
        if folder is None:
            offer = ", ".join(BUILTIN + n for n in builtins())
            return _at_fault(
                model, "missing", f"specflow ships no `{name}`", f"built in are {offer}"
            )
        return _folder(model, folder)
    try:
        return _path(model, Path(model).expanduser())
    except OSError as error:
        return _at_fault(
            model,
            "unreadable",
            f"`{model}` cannot be read: {error.strerror}",
            "check its permissions",
        )


def _path(model: str, path: Path) -> ModelFacts:
    if path.is_dir():
        return _folder(model, path)
    if path.suffix == ".gguf" and path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                return _at_fault(
                    model,
                    "unreadable",
                    f"`{model}` does not begin as a GGUF file",
                    "download it again, or name another file",
                )
        return ModelFacts(model)  # its facts are known once it is converted (models/loading.py)
    if path.exists():
        return _at_fault(
            model,
            "unreadable",
            f"`{model}` is neither a folder nor a GGUF file",
            "only safetensors and GGUF are loaded; name the folder that holds config.json",
        )
    return _at_fault(
        model,
        "missing",
        f"`{model}` does not exist",
        "name a checkpoint folder, a .gguf file, or builtin:NAME",
    )


def _folder(model: str, folder: Path) -> ModelFacts:
    config = folder / "config.json"
    if not config.is_file():
        return _at_fault(
            model,
            "unreadable",
            f"`{model}` has no config.json",
            "name the folder of a whole checkpoint",
        )
    said = _json(config)
    if said is None:
        return _at_fault(
            model,
            "unreadable",
            f"config.json of `{model}` is not a JSON object",
            "download it again",
        )
    problem = _weights(model, folder)
    text = said.get("text_config") if isinstance(said.get("text_config"), dict) else said
    names = said.get("architectures")
    size, tokens = _tokenizer(folder / "tokenizer.json")
    return ModelFacts(
        model,
        folder,
        problem,
        architecture=str(names[0]) if isinstance(names, list) and names else "",
        vocab_size=_number(text, "vocab_size"),
        max_positions=_number(text, "max_position_embeddings"),
        tokenizer_size=size,
        tokens=tokens,
    )


def _weights(model: str, folder: Path) -> Problem | None:
    """What keeps the weights from being read, told from names, sizes and headers."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = (_json(index) or {}).get("weight_map")
        if not isinstance(listed, dict) or not listed:
            return Problem(
                "unreadable",
                f"model.safetensors.index.json of `{model}` lists no weights",
                "download it again",
            )
        files = [folder / str(name) for name in sorted(set(listed.values()))]
        lost = [p.name for p in files if not p.is_file()]
        if lost:
            return Problem(
                "unreadable",
                f"`{model}` lacks {', '.join(lost[:3])}, which its index names",
                "download the missing files",
            )
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = [
            p.name
            for p in sorted((*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")))
        ]
        if pickles:
            return Problem(
                "unreadable",
                f"`{model}` holds its weights as a pickle only ({pickles[0]})",
                "convert it to safetensors; a pickle can run code, so it is never loaded",
            )
        return Problem("unreadable", f"`{model}` has no safetensors file", "download the weights")
    for file in files:
        fault = _header_fault(file)
        if fault:
            return Problem("unreadable", f"{file.name} of `{model}` {fault}", "download it again")
    return None


def _header_fault(file: Path) -> str:
    """What is wrong with a safetensors file, from its header and its size; empty for nothing."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(8)
        if len(head) < 8:
            return "is cut short"
        length = struct.unpack("<Q", head)[0]
        if length > size - 8 or length > LARGEST_JSON:
            return "is cut short, or no safetensors file"
        try:
            header = json.loads(opened.read(length))
            ends = [
                spec["data_offsets"][1] for name, spec in header.items() if name != "__metadata__"
            ]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return "has a broken header"
    wanted = 8 + length + max(ends, default=0)
    return f"is cut short: {size} of {wanted} bytes" if size < wanted else ""


def _tokenizer(file: Path) -> tuple[int, str]:
    """How many tokens a tokenizer.json knows (highest id + 1), and a digest of its map."""
    said = _json(file) if file.is_file() else None
    model = said.get("model") if said else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if said is None or not isinstance(vocab, dict):
        return 0, ""
    added = {
        str(t.get("content")): t.get("id")
        for t in said.get("added_tokens") or ()
        if isinstance(t, dict)
    }
    known = vocab | added
    ids = [i for i in known.values() if isinstance(i, int)]
    text = json.dumps(sorted(known.items()), ensure_ascii=True)
    return max(ids, default=-1) + 1, hashlib.sha256(text.encode()).hexdigest()


def _json(file: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file holds something else or too much."""
    if file.stat().st_size > LARGEST_JSON:
        return None
    try:
        said = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _number(config: Any, key: str) -> int:
    value = config.get(key) if isinstance(config, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _at_fault(model: str, kind: str, message: str, help: str) -> ModelFacts:  # noqa: A002
    return ModelFacts(model, problem=Problem(kind, message, help))
