"""What a checkpoint says of itself, and what is told of a broken one before anything loads."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from specflow.errors import RecipeError
from specflow.facts import builtins, read
from specflow.load import loads
from specflow.resolve import resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded target."""
    return Path(shutil.copytree(builtins()["pico-llama"], tmp_path / "model"))


def codes(model: Path | str, draft: Path | str | None = None) -> list[str]:
    """The findings of a recipe that names the model."""
    drafts = f"{{algorithm: STANDALONE, model: '{draft}'}}" if draft else "{algorithm: NGRAM}"
    try:
        return [
            f.code
            for f in resolve(loads(f"target: {{model: '{model}'}}\ndraft: {drafts}")).findings
        ]
    except RecipeError as error:
        return [d.code for d in error.diagnostics]


def test_a_whole_folder(folder: Path) -> None:
    facts = read(str(folder))
    assert facts.problem is None
    assert (facts.architecture, facts.vocab_size, facts.max_positions) == (
        "LlamaForCausalLM",
        2048,
        1024,
    )
    assert facts.tokenizer_size == 2048
    assert codes(folder) == []
    assert codes(folder, folder) == []


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert codes(folder) == ["SF063"]


@pytest.mark.parametrize("text", ["", "[", "[]", "[" * 100_000])
def test_a_config_that_is_no_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert codes(folder) == ["SF063"]


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_weights_cut_short(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    assert codes(folder) == ["SF063"]


def test_a_header_that_is_no_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"[1]x" + b"\0" * 64)
    assert codes(folder) == ["SF063"]


def test_a_pickle_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    problem = read(str(folder)).problem
    assert problem is not None
    assert "pickle" in problem.message
    assert codes(folder) == ["SF063"]


def test_an_index_that_names_missing_files(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert codes(folder) == ["SF063"]


def test_a_tokenizer_larger_than_the_model(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 2000}))
    assert codes(folder) == ["SF020"]


def test_a_draft_with_another_tokenizer(folder: Path) -> None:
    file = folder / "tokenizer.json"
    said = json.loads(file.read_text())
    vocab = said["model"]["vocab"]
    a, b = list(vocab)[300:302]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    file.write_text(json.dumps(said))
    assert codes("builtin:pico-llama", folder) == ["SF024"]


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nope")
    (tmp_path / "y.safetensors").write_bytes(b"")
    assert codes(tmp_path / "x.gguf") == ["SF063"]
    assert codes(tmp_path / "y.safetensors") == ["SF063"]
    assert codes(tmp_path / "none") == ["SF061"]
    assert codes(tmp_path) == ["SF063"]
