"""What attention backends can do, and what a recipe asks of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from specflow import backends
from specflow.backends import CAPABILITIES, Asked, Capability, default_backend, lacking
from specflow.constraints.run import asked_of, head_size
from specflow.diagnostics import Put
from specflow.errors import RecipeError
from specflow.facts import ModelFacts, read, unread
from specflow.headers import Tensor
from specflow.load import load, loads
from specflow.packs import find
from specflow.provenance import Origin
from specflow.recipe import dump
from specflow.resolve import resolve
from specflow.stored import stored_dtype
from tests.conftest import RECIPES

PLAIN = Asked("bfloat16", 128, tree=False, window=False, softcap=False, sinks=False, latents=False)
NOTHING = Capability(
    ("cuda",), ("float16",), (64,), trees=False, window=False, softcap=False, sinks=False,
    latents=False,
)  # fmt: skip


def test_every_lack_is_named() -> None:
    asked = Asked("bfloat16", 128, tree=True, window=True, softcap=True, sinks=True, latents=False)
    assert list(lacking(NOTHING, asked)) == [
        "bfloat16", "trees", "window", "softcap", "attention sinks", "heads of 128",
    ]  # fmt: skip
    assert list(lacking(NOTHING, replace(PLAIN, dtype="float16", latents=True))) == [
        "latent attention"
    ]


def test_a_draft_s_heads_are_the_backend_s_too() -> None:
    row = CAPABILITIES["flashinfer"]
    asked = replace(PLAIN, draft_head_size=128)
    assert not list(lacking(row, asked))
    assert list(lacking(row, replace(asked, draft_head_size=32))) == ["heads of 32"]
    assert list(lacking(row, replace(asked, head_size=32, draft_head_size=32))) == ["heads of 32"]
    assert list(lacking(row, replace(asked, latents=True, draft_head_size=32))) == [
        "latent attention", "heads of 32",
    ]  # fmt: skip


@pytest.mark.parametrize("name", CAPABILITIES)
def test_every_backend_reads_a_llama(name: str) -> None:
    assert not list(lacking(CAPABILITIES[name], PLAIN))
    assert not list(lacking(CAPABILITIES[name], replace(PLAIN, tree=True, window=True)))


def test_an_unknown_width_is_no_obstacle() -> None:
    assert not list(lacking(NOTHING, replace(PLAIN, dtype="float16", head_size=0)))


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({}, 0),
        ({"hidden_size": 64, "num_attention_heads": 4}, 16),
        ({"hidden_size": 64, "num_attention_heads": 4, "head_dim": 128}, 128),
        ({"head_dim": 256, "global_head_dim": 512}, 512),
        ({"hidden_size": 64, "num_attention_heads": 0}, 0),
        ({"head_dim": "wide"}, 0),
    ],
)
def test_the_width_of_a_head(config: dict[str, object], width: int) -> None:
    assert head_size(config) == width


def test_backends_are_the_field_s_choices() -> None:
    from typing import get_args

    from specflow.recipe import RunFields

    assert set(get_args(RunFields.model_fields["attention"].annotation)) == set(CAPABILITIES)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_default_runs_where_it_is_a_default(device: str) -> None:
    assert device in CAPABILITIES[default_backend(device)].devices


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_may_move_to_a_gpu(path) -> None:
    """No recipe that ships has a target that the GPU's default cannot read."""
    resolved = resolve(load(path))
    assert not list(lacking(CAPABILITIES["triton"], asked_of(resolved)))


FLASHINFER = """
target: {model: "builtin:pico-gemma4"}
draft: {algorithm: NGRAM}
run: {device: cuda, dtype: bfloat16, attention: flashinfer}
"""


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "find_spec", lambda _: None)
    text = FLASHINFER.replace("flashinfer", "triton")
    found = [f for f in resolve(loads(text, "recipe.yaml")).findings if f.code == "SF078"]
    assert len(found) == 1
    assert "pip install 'specflow[gpu]'" in (found[0].help or "")  # a shell reads brackets
    monkeypatch.setattr(backends, "find_spec", lambda _: object())
    assert not resolve(loads(text, "recipe.yaml")).findings


def test_what_a_target_needs_is_read_from_its_config() -> None:
    with pytest.raises(RecipeError) as caught:
        resolve(loads(FLASHINFER, "recipe.yaml"))
    assert [d.code for d in caught.value.diagnostics if d.code == "SF077"] == ["SF077"]


def test_a_tree_on_a_backend_that_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(CAPABILITIES["triton"], trees=False)
    monkeypatch.setitem(CAPABILITIES, "triton", row)
    text = FLASHINFER.replace("flashinfer", "triton").replace("gemma4", "llama")
    with pytest.raises(RecipeError) as caught:
        resolve(loads(text, "recipe.yaml"))
    (found,) = caught.value.diagnostics
    assert (found.code, found.message) == ("SF077", "`run.attention: triton` has no trees")
    assert "sdpa" in (found.help or "")


@pytest.mark.parametrize(
    ("run", "attention", "graph"),
    [
        ("", "sdpa", "off"),
        ("device: cuda", "triton", "on"),
        ("device: cuda, graph: off", "triton", "off"),
        ("device: cuda, graph: on", "triton", "on"),
        ("device: cuda, graph: auto", "triton", "on"),
        ("graph: auto", "sdpa", "off"),
        ("graph: off", "sdpa", "off"),
        ("compile: inductor", "sdpa", "off"),
        ("device: cuda, compile: inductor", "sdpa", "on"),
    ],
)
def test_how_a_step_runs(run: str, attention: str, graph: str) -> None:
    text = f"target: {{model: builtin:pico-llama}}\ndraft: {{algorithm: NGRAM}}\nrun: {{{run}}}\n"
    resolved = resolve(loads(text, "recipe.yaml"))
    assert (resolved.run.attention, resolved.run.graph) == (attention, graph)


@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_graph_is_set_by_a_bare_word(word: str) -> None:
    path = next(p for p in RECIPES if p.stem == "plain")
    resolved = resolve(load(path, [f"run.graph={word}", "run.device=cuda"]))
    assert resolved.run.graph == ("off" if word == "off" else "on")


def test_other_switches_are_still_ambiguous() -> None:
    with pytest.raises(RecipeError) as caught:
        loads("run: {graph: yes, compile: on}", "recipe.yaml")
    assert [d.code for d in caught.value.diagnostics] == ["SF009", "SF009"]


TREE = """
target: {model: "builtin:pico-llama"}
draft: {algorithm: NGRAM}
verify: {shape: tree}
run: {device: cuda, dtype: bfloat16, attention: flashinfer}
"""


def test_a_draft_with_heads_of_its_own_is_told_of() -> None:
    text = TREE.replace("NGRAM", 'EAGLE3, model: "builtin:pico-llama-eagle3"')
    with pytest.raises(RecipeError) as caught:
        resolve(loads(text.replace("shape: tree", "shape: chain"), "recipe.yaml"))
    found = [d.message for d in caught.value.diagnostics if d.code == "SF077"]
    assert found == ["`run.attention: flashinfer` has no heads of 32"]


def attends(pack: str, *words: str) -> list[str]:
    """What SF077 says of a recipe that ships, and SF076 and SF078 beside it."""
    given = ["run.device=cuda", "run.dtype=bfloat16", "run.attention=flashinfer", *words]
    try:
        found = resolve(load(find(pack), given)).findings
    except RecipeError as error:
        found = tuple(error.diagnostics)
    return [d.message.partition("flashinfer` ")[2] for d in found if d.code == "SF077"]


@pytest.mark.parametrize(
    ("pack", "lacks"),
    [
        ("deepseek/v3_nextn", ["has no latent attention"]),
        ("kimi/k2_eagle3", ["has no latent attention"]),
        ("mimo/v2_flash_multi_layer", ["has no attention sinks, no heads of 192"]),
        ("gemma4/nextn_e4b", ["has no heads of 512"]),
        ("llama/llama3_1_eagle3_chain", []),
        ("kimi/k3_dspark", []),  # of which no sizes are recorded: nothing is known
    ],
)
def test_what_a_recorded_model_needs_is_told(pack: str, lacks: list[str]) -> None:
    assert attends(pack) == lacks


def test_a_type_that_a_backend_has_not_is_told_where_it_is_written() -> None:
    words = ["run.device=cuda", "run.attention=flashinfer"]
    with pytest.raises(RecipeError) as caught:
        resolve(load(find("pico/plain"), [*words, "run.dtype=float32"]))
    (found,) = (d for d in caught.value.diagnostics if d.code == "SF077")
    (label,) = (each for each in found.labels if each.primary)
    assert label.span.source.text[label.span.start : label.span.end] == "float32"
    assert (found.help or "").startswith("write `run.dtype: bfloat16`")
    assert found.fix == Put(
        "run.dtype", "bfloat16", safe=False, otherwise=("remove `run.attention`",)
    )


def test_on_another_device_nothing_else_is_told() -> None:
    with pytest.raises(RecipeError) as caught:
        resolve(load(find("pico/nextn"), ["run.device=cpu", "run.attention=flashinfer"]))
    assert [d.code for d in caught.value.diagnostics] == ["SF076"]


@pytest.mark.parametrize(
    ("words", "dtype", "because"),
    [
        (["run.device=cuda"], "bfloat16", "as the weights are stored"),
        (["run.device=cuda", "run.load_format=dummy"], "bfloat16", "as the weights are stored"),
        (["run.device=cuda", "run.dtype=float32"], "float32", "run.dtype=float32"),
        (["run.device=cpu"], "float32", "the CPU's type"),
        ([], "float32", "the CPU's type"),
    ],
)
@pytest.mark.parametrize("pack", ["pico/plain", "llama/llama3_1_eagle3_chain"])
def test_a_gpu_runs_in_the_type_that_weights_are_stored_in(
    pack: str, words: list[str], dtype: str, because: str
) -> None:
    resolved = resolve(load(find(pack), words))
    assert resolved.run.dtype == dtype
    assert resolved.ledger["run.dtype"].because == because
    again = resolve(loads(yaml.safe_dump(dump(resolved)), "again.yaml"))
    assert (again.run, again.fingerprint) == (resolved.run, resolved.fingerprint)


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [("BF16", "bfloat16"), ("F16", "float16"), ("F32", ""), ("F8_E4M3", "")],
)
def test_the_type_most_of_the_weights_are_in(stored: str, dtype: str) -> None:
    tensors = {
        "table": Tensor(Path("m"), "I64", (1,), 0, 8),
        "norm": Tensor(Path("m"), "F32", (8,), 8, 40),
        "weight": Tensor(Path("m"), stored, (64,), 40, 168),
    }
    assert stored_dtype(ModelFacts("m", tensors=tensors)) == dtype


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_weights_that_are_made_up_have_the_type_of_the_config(key: str) -> None:
    made = ModelFacts("m", config={"text_config": {key: "float16"}}, dummy=True)
    assert stored_dtype(made) == "float16"
    assert stored_dtype(replace(made, dummy=False)) == ""  # a config is no header
    assert stored_dtype(replace(made, config={key: ["float16"]})) == ""


def test_what_is_recorded_in_eight_bits_does_not_decide() -> None:
    resolved = resolve(load(find("deepseek/v3_nextn"), ["run.device=cuda"]))
    assert resolved.run.dtype == "float32"


def test_a_model_that_is_not_here_leaves_the_type_open() -> None:
    text = "target: {model: /models/far}\ndraft: {algorithm: NGRAM}\nrun: {device: cuda}\n"
    entry = resolve(loads(text, "recipe.yaml"), unread(read)).ledger["run.dtype"]
    assert (entry.value, entry.origin) == ("float32", Origin.ASSUMED)
