"""What a checkpoint says of itself, and what is told of a broken one before anything loads."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from time import perf_counter
from typing import Any

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


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def write_weights(file: Path, header: dict[str, Any], size: int) -> None:
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))


def weight(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("config.json", {"vocab_size": "many"}),
        ("config.json", {"vocab_size": True}),
        ("config.json", {"vocab_size": 2048.0}),
        ("config.json", {"vocab_size": [1]}),
        ("config.json", {"vocab_size": 10**400}),
        ("config.json", {"max_position_embeddings": {}}),
        ("config.json", {"hidden_size": "many"}),
        ("config.json", {"num_hidden_layers": -1}),
        ("config.json", {"num_nextn_predict_layers": [1]}),
        ("config.json", {"eos_token_id": [[1]]}),
        ("generation_config.json", {"eos_token_id": {"a": 1}}),
        ("generation_config.json", {"eos_token_id": "1"}),
        ("tokenizer.json", {"added_tokens": 5}),
        ("tokenizer.json", {"added_tokens": None}),
        ("tokenizer.json", {"added_tokens": [{"id": [1], "content": "x"}]}),
        ("tokenizer.json", {"added_tokens": [{"id": 1, "content": [1]}]}),
        ("tokenizer.json", {"model": {"vocab": [1, [2]]}}),
        ("tokenizer.json", {"model": {"vocab": {"a": -1}}}),
        ("tokenizer.json", {"model": 5}),
        ("tokenizer_config.json", {"eos_token": {"x": 1}}),
        ("tokenizer_config.json", {"eos_token": "\ud800"}),
        ("tokenizer_config.json", {"bos_token": [5]}),
    ],
)
def test_a_file_of_odd_shapes(folder: Path, name: str, changes: dict[str, object]) -> None:
    edit(folder / name, **changes)
    assert codes(folder) == ["SF063"]


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize("content", [b"[" * 50_000, b"\xff", b"\xef\xbb\xbf{}", b"5"])
def test_a_file_that_is_no_object(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert codes(folder) == ["SF063"]


@pytest.mark.parametrize(
    "listed", [None, 5, [], {}, {"a": 5}, {"a": ["x"]}, {"a": "../x"}, {"a": ""}, {"a": "x\0"}]
)
def test_an_index_that_lists_no_files(folder: Path, listed: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    assert codes(folder) == ["SF063"]


@pytest.mark.parametrize(
    "header",
    [
        {"a": weight(offsets=("0", "8"))},
        {"a": weight(offsets=(0, 8, 8))},
        {"a": weight(offsets=5)},
        {"a": weight(offsets=(8, 0))},
        {"a": weight(shape=[3])},
        {"a": weight(shape=[-1, -2])},
        {"a": weight(dtype=[1])},  # type: ignore[arg-type]
        {"a": weight(shape=[1], offsets=(4, 8))},
        {"a": weight(), "b": weight()},
        {"a": {}},
        {"a": 5},
        {"a": weight(), "__metadata__": {"format": 5}},
        {"a": weight(), "__metadata__": 5},
    ],
)
def test_a_header_that_does_not_hold(folder: Path, header: dict[str, Any]) -> None:
    write_weights(folder / "model.safetensors", header, 8)
    assert codes(folder) == ["SF063"]


def test_weights_longer_than_their_header(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"x")
    assert codes(folder) == ["SF063"]


def test_weights_under_another_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    problem = read(str(folder)).problem
    assert problem is not None
    assert "only other.safetensors" in problem.message


def test_weights_that_are_no_floats_may_be_validated(folder: Path) -> None:
    header = {"a": weight(), "b": weight("F8_E4M3", [4], (8, 12))}
    write_weights(folder / "model.safetensors", header, 12)
    assert read(str(folder)).no_float == ("b", "F8_E4M3")
    assert codes(folder) == []


def test_only_a_target_needs_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert codes(folder) == ["SF063"]
    assert codes("builtin:pico-llama", folder) == []


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["fifo", "loop", "folder"])
def test_a_name_that_is_no_file(folder: Path, name: str, kind: str) -> None:
    (folder / name).unlink()
    if kind == "fifo":
        os.mkfifo(folder / name)  # would wait for ever where it is opened
    elif kind == "loop":
        (folder / name).symlink_to(name)
    else:
        (folder / name).mkdir()
    assert codes(folder) == ["SF063"]


def test_a_path_that_is_no_path(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("x" * 5000, "a\0b", "\ud800", "~nobody_of_this_name/x", "", "builtin:\0"):
        assert name == "" or read(name).problem is not None
    assert read(str(tmp_path / "x.gguf")).problem is not None
    assert read(str(tmp_path / "loop")).problem is not None


def test_facts_are_read_quickly() -> None:
    def spent() -> float:
        began = perf_counter()
        facts = read("builtin:pico-llama")
        assert facts.tokenizer_problem is None
        return perf_counter() - began

    assert min(spent() for _ in range(5)) < 0.010
