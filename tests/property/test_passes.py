"""Each pass keeps meaning, and the module says what the graph says: one interpreter, one oracle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specflow.capture import buffers
from specflow.codegen import emit
from specflow.errors import CompileError
from specflow.graph import Builder, Value
from specflow.graph.check import check
from specflow.graph.device import flat, fused
from specflow.load import load, loads
from specflow.lower import PASSES, build, lower
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from tests import checkpoint_files
from tests.checkpoint_files import D2T, HIDDEN, RANK
from tests.conftest import RECIPES
from tests.interpreter import interpret
from tests.words import VOCABULARY, Words, drawn

# One recipe of every kind of step; the packs run the same steps on other models.
PICO = [path for path in RECIPES if path.parent.name == "pico"]


def same(a: dict[str, Tensor], b: dict[str, Tensor], moved: Words, also: Words) -> None:
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name
    for ours, theirs in zip(moved.moves, also.moves, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


def means_the_same(resolved: ResolvedRecipe, seed: int, root: Path) -> None:
    """A recipe's graph as it was built, after each pass, and as a module: on one drawn state."""
    graph = build(resolved)
    module = emit(lower(resolved), resolved).load(root / "steps")
    numbers = {c.name: c.value for c in graph.constants}
    sizes = (numbers.get("VOCAB_SIZE", VOCABULARY), numbers.get("HIDDEN_SIZE", 4))
    rows, given = 3, {}
    if hasattr(module, "HOST_PLAN"):
        given["budget"] = rows + seed % (rows * (module.NUM_DRAFT_TOKENS - 1) + 1)
    for variant in (v.name for v in graph.variants):
        state = module.State.new(rows, "cpu")
        drawn(buffers(state), seed)
        start = {n: t.clone() for n, t in buffers(state).items()}
        first, words = {n: t.clone() for n, t in start.items()}, Words(*sizes)
        interpret(graph, variant, first, {"target": words, "draft": words}, **given)
        now = graph
        for name, rewrite in PASSES:
            now = rewrite(now)
            after, other = {n: t.clone() for n, t in start.items()}, Words(*sizes)
            interpret(now, variant, after, {"target": other, "draft": other}, **given)
            same(first, after, words, other)
            assert name
        emitted = Words(*sizes)
        module.VARIANTS[variant](emitted, emitted, state, *given.values())
        same(first, buffers(state), words, emitted)


@pytest.mark.parametrize("path", PICO, ids=lambda p: p.stem)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_passes_and_emission_keep_meaning(
    path: Path, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    means_the_same(resolve(load(path)), seed, tmp_path_factory.getbasetemp())


# Block drafts of other kinds than the pico ones: heads that remember, vocabularies of their own.
RNN = checkpoint_files.DSPARK | {
    "markov_head.joint_proj.weight": (3 * RANK, 2 * RANK + HIDDEN),
    "markov_head.joint_proj.bias": (3 * RANK,),
}
OWN_WORDS = {"lm_head.weight": (len(D2T), HIDDEN), "d2t": ("I64", D2T)}
HALF = {"markov_head.markov_w2.weight": (len(D2T), RANK)}
RAGGED = {"shape": "ragged", "cost_table": "costs.json"}
OTHERS = {
    "rnn": ("DSPARK", RNN, {}, 0.0),
    "rnn drawn, planned": ("DSPARK", RNN, RAGGED, 0.8),
    "own words": ("DSPARK", checkpoint_files.DSPARK | OWN_WORDS | HALF, {}, 0.0),
    "rnn, own words, drawn, capped": (
        "DSPARK",
        RNN | OWN_WORDS | HALF,
        RAGGED | {"mode": "cap-accept", "accept": "block"},
        0.8,
    ),
    "by averages": ("DSPARK", checkpoint_files.DSPARK, RAGGED | {"confidence": "average"}, 0.0),
    "dflash": ("DFLASH", checkpoint_files.DFLASH, {"shape": "ragged", "mode": "static"}, 0.8),
    "dflash, own words, planned": (
        "DFLASH",
        checkpoint_files.DFLASH | OWN_WORDS,
        RAGGED | {"confidence": "average", "accept": "target_only"},
        0.8,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=4, deadline=None)
def test_other_block_drafts_keep_meaning(
    name: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    algorithm, shapes, verify, heat = OTHERS[name]
    root = tmp_path_factory.mktemp("blocks")
    checkpoint_files.write(root / "target", checkpoint_files.LM, **checkpoint_files.CONFIG)
    checkpoint_files.write_tokenizer(root / "target")
    config = getattr(checkpoint_files, f"{algorithm}_CONFIG")
    checkpoint_files.write(root / "draft", shapes, **config)
    (root / "costs.json").write_text(json.dumps(checkpoint_files.COSTS))
    written = {
        "recipe": f"toy/{name.replace(' ', '_').replace(',', '')}",
        "target": {"model": str(root / "target")},
        "draft": {"algorithm": algorithm, "model": str(root / "draft")},
        "verify": verify
        | ({"cost_table": str(root / "costs.json")} if "cost_table" in verify else {}),
        "sampling": {"temperature": heat},
    }
    means_the_same(resolve(loads(yaml.safe_dump(written), "toy.yaml")), seed, root)


def test_a_run_ends_where_it_would_read_what_it_wrote() -> None:
    """A kernel loads before it stores, so a read after a store is another kernel."""
    b = Builder("none")
    lens = b.buffer("seq_lens", ("B",), "committed tokens")
    kept = b.buffer("kept", ("B",), "a copy")
    with b.phase("commit", "commit", "Store, then read.") as p:
        before = p.op("hold", lens, out="before", shape=("B",))
        p.store(lens, 1, "add")
        after = p.op("hold", lens, out="after", shape=("B",))
        p.store(kept, after)
        p.give(before)
    b.variant("only", "commit", width=1, doc="one phase")
    graph = b.done()
    check(graph)
    lines = fused(flat(graph, graph.variants[0]))
    assert [type(line).__name__ for line in lines] == ["Fused", "Fused"]
    state = {"seq_lens": torch.tensor([4]), "kept": torch.tensor([0])}
    interpret(graph, "only", state, {})
    assert state["kept"].tolist() == [5]


@pytest.mark.parametrize(
    "wrong",
    [
        # read before it is assigned
        lambda p, lens, free: p.op("first", free, out="x", shape=("B",)),
        lambda p, lens, free: p.op("no_such", lens, out="x", shape=("B",)),
        # one operand too many
        lambda p, lens, free: p.op("first", lens, lens, out="x", shape=("B",)),
        # a model where there is none
        lambda p, lens, free: p.op("verify", lens, lens, out="x", shape=("B",)),
        lambda p, lens, free: p.ops("insert", lens, outs=()),  # a host op on the device
        lambda p, lens, free: p.give(free),
    ],
)
def test_an_illegal_graph_is_refused(wrong: Callable[..., object]) -> None:
    b = Builder("none")
    lens = b.buffer("seq_lens", ("B",), "committed tokens")
    with b.phase("commit", "commit", "Wrong.") as p:
        wrong(p, lens, Value("free", ("B", 1)))
    b.variant("only", "commit", width=1, doc="one phase")
    with pytest.raises(CompileError):
        check(b.done())
