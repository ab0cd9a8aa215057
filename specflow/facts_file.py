"""Facts of models in a file of their own, so that recipes are judged where no checkpoint is.

A file holds, by the name a recipe has for a model, what its folder says before any weight loads:
config.json, the tokens, the names, types and shapes of its tensors, and the values of a map of
words. Of that a folder is made whose files are holes, and it is read like any other.
"""

from __future__ import annotations

import atexit
import json
import math
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from specflow.errors import UsageError
from specflow.facts import MASK_PICKLE, ModelFacts, read, read_folder
from specflow.foreign_files import parse_yaml, read_bytes
from specflow.headers import HOLES, INTEGERS, WIDTHS, Tensor, read_integers, read_object

VERSION = 1
HEAD = "# What models say of themselves, for `specflow validate --facts FILE`.\n"
# Files beside the weights that rules read whole, by the word a facts file has for them.
OBJECTS = {
    "config": "config.json",
    "generation_config": "generation_config.json",
    "tokenizer_config": "tokenizer_config.json",
    "hf_quant_config": "hf_quant_config.json",
    "quantize_config": "quantize_config.json",
    "quant_config": "quant_config.json",
}
KEYS = frozenset({*OBJECTS, "tokens", "tensors", "values", "files"})
TABLES = re.compile(r"(model\.)?(d2t|t2d)")
OTHERS = {"U64": 8, "U32": 4, "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
BYTES = WIDTHS | OTHERS  # of a number
LARGEST = 256_000_000  # bytes of a facts file: the words of a few models, and their tensors
WAY_OUT = "make it anew with `specflow validate RECIPE --write-facts FILE`"

Facts = Mapping[str, Mapping[str, Any]]
Look = Callable[[str], ModelFacts]


def facts_of(model: ModelFacts) -> dict[str, Any] | None:
    """What a facts file holds of a model; None where it is in no folder, or not whole."""
    folder = model.folder
    if folder is None or model.problem is not None or not model.tensors:
        return None
    said = {word: read_object(model.model, folder / file) for word, file in OBJECTS.items()}
    found: dict[str, Any] = {word: content for word, content in said.items() if content}
    if model.vocabulary:
        found["tokens"] = dict(model.vocabulary)
    found["tensors"] = {n: [t.dtype, list(t.shape)] for n, t in sorted(model.tensors.items())}
    values = {n: list(read_integers(model.model, n, t)) for n, t in _tables(model.tensors)}
    found |= {"values": values} if values else {}
    beside = [name for name in (MASK_PICKLE,) if (folder / name).is_file()]
    return found | ({"files": beside} if beside else {})


def _tables(tensors: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    return ((n, t) for n, t in tensors.items() if TABLES.fullmatch(n) and t.dtype in INTEGERS)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """What is said twice is written twice: no file of facts has an alias."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Of nothing an alias is written."""
        return True


def text_of(facts: Facts) -> str:
    """The text of a facts file."""
    whole = {"facts": VERSION, "models": dict(facts)}
    return HEAD + yaml.dump(
        whole,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=None,
        width=4096,
        allow_unicode=True,
    )


def read_facts(file: Path) -> Facts:
    """What a facts file holds; UsageError where it is none."""
    try:
        content = read_bytes(file, LARGEST)
    except OSError as error:
        reason = f"`--facts {file}` cannot be read: {(error.strerror or 'no file').lower()}"
        raise UsageError(reason, "name a facts file") from error
    except ValueError as error:
        raise UsageError(f"`--facts {file}` cannot be read: {error}", WAY_OUT) from error
    try:
        said = parse_yaml(content.decode("utf-8"))
    except ValueError as error:
        raise UsageError(f"`{file}` is not YAML in UTF-8: {error}"[:300], WAY_OUT) from error
    models = said.get("models") if isinstance(said, Mapping) else None
    if not isinstance(models, Mapping) or said.get("facts") != VERSION:
        raise UsageError(f"`{file}` is no facts file of version {VERSION}", WAY_OUT)
    for name, each in models.items():
        fault = _fault(each) if isinstance(name, str) else "a name that is no text"
        if fault:
            raise UsageError(f"`{file}` has {fault} of `{name}`", WAY_OUT)
    return dict(models)


def _fault(each: Any) -> str:
    """What is no part of a model's facts; empty where all of it is."""
    if not isinstance(each, Mapping):
        return "no facts"
    unknown = sorted(map(str, each.keys() - KEYS))
    if unknown:
        return f"an unknown key `{unknown[0]}`"
    whole = isinstance(each.get("files", []), list)
    return "" if whole else "no list of files"


def reader(facts: Facts, otherwise: Look = read) -> Look:
    """What models say, by a facts file; any other model is read where it is."""
    made: dict[str, ModelFacts] = {}

    def look(model: str) -> ModelFacts:
        if model not in facts:
            return otherwise(model)
        if model not in made:
            made[model] = read_folder(folder_of(model, facts), model)
        return made[model]

    return look


def folder_of(model: str, facts: Facts) -> Path:
    """A folder that says of a model, and of the drafts that lie in it, what a facts file says."""
    folder = Path(tempfile.mkdtemp(prefix="specflow-facts-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _make(folder, model, facts[model])
    for name, each in facts.items():
        part = name.removeprefix(f"{model}/")
        if part != name and re.fullmatch(r"[\w-]+", part):
            (folder / part).mkdir()
            _make(folder / part, name, each)
    return folder


def _make(folder: Path, model: str, said: Mapping[str, Any]) -> None:
    try:
        for word, file in OBJECTS.items():
            if word in said:
                (folder / file).write_text(json.dumps(said[word]), encoding="utf-8")
        if "tokens" in said:
            tokens = {"model": {"vocab": said["tokens"]}}
            (folder / "tokenizer.json").write_text(json.dumps(tokens), encoding="utf-8")
        for name in said.get("files", []):
            (folder / Path(str(name)).name).touch()
        if said.get("tensors"):
            write_holes(folder / "model.safetensors", said["tensors"], said.get("values", {}))
            (folder / HOLES).touch()
    except (AttributeError, KeyError, OSError, TypeError, ValueError, struct.error) as error:
        raise UsageError(f"the facts of `{model}` are not whole: {error}", WAY_OUT) from error


def write_holes(
    file: Path, tensors: Mapping[str, Any], values: Mapping[str, Iterable[int]]
) -> None:
    """A safetensors file with a header and holes for weights; only tables of numbers are there.

    tensors  name -> [type, shape]
    values   name -> the numbers of a table
    """
    header: dict[str, Any] = {}
    end, tables = 0, {}
    for name, (dtype, shape) in tensors.items():
        begin = end
        end += BYTES.get(dtype, 0) * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        if name in values:
            numbers = list(values[name])
            tables[begin] = struct.pack(f"<{len(numbers)}{INTEGERS[dtype]}", *numbers)
            if len(tables[begin]) != end - begin:
                raise ValueError(f"`{name}` has {len(numbers)} values")
    text = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(text)) + text)
        start = opened.tell()
        for begin, content in tables.items():
            opened.seek(start + begin)
            opened.write(content)
        opened.truncate(start + end)  # what was not written takes no room on a disk
