"""Each pass keeps meaning, and the module says what the graph says: one interpreter, one oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specflow.capture import buffers
from specflow.codegen import emit
from specflow.errors import CompileError
from specflow.graph import Builder, Value, fuse
from specflow.graph.check import BUILT, LOWERED, check
from specflow.load import load
from specflow.lower import PASSES, build, lower
from specflow.resolve import resolve
from tests.conftest import RECIPES
from tests.interpreter import interpret

VOCABULARY = 7
# One recipe of every kind of step; the packs run the same steps on other models.
PICO = [path for path in RECIPES if path.parent.name == "pico"]


class Words:
    """A model that answers by a table of all it is given, and writes down its moves.

    It is target and draft alike. What it shows is as wide as the draft's state, which every answer
    depends on.
    """

    def __init__(self, vocabulary: int = VOCABULARY, width: int = 4) -> None:
        self.vocabulary, self.width = vocabulary, width
        self.moves: list[tuple[Tensor, Tensor]] = []

    def _say(self, known: Tensor) -> Tensor:
        known = known.long() % self.vocabulary
        return torch.nn.functional.one_hot(known, self.vocabulary).float()

    def _show(self, tokens: Tensor) -> Tensor:
        return (tokens[..., None] % 5 + torch.arange(self.width)).float()

    def verify(self, tokens: Tensor, lens: Tensor) -> Tensor:
        position = lens[:, None] + torch.arange(tokens.shape[1])
        return self._say(tokens * 3 + position)

    def verify_hidden(self, tokens: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        return self.verify(tokens, lens), self._show(tokens)

    def verify_taps(
        self, tokens: Tensor, lens: Tensor, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        return self.verify(tokens, lens), self._show(tokens) + sum(taps)

    def verify_tree(self, tokens: Tensor, lens: Tensor, depths: Tensor, sees: Tensor) -> Tensor:
        return self._say(tokens * 3 + lens[:, None] + depths + sees.sum(-1))

    def verify_tree_hidden(
        self, tokens: Tensor, lens: Tensor, depths: Tensor, sees: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.verify_tree(tokens, lens, depths, sees), self._show(tokens)

    def verify_tree_taps(
        self, tokens: Tensor, lens: Tensor, depths: Tensor, sees: Tensor, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        return self.verify_tree(tokens, lens, depths, sees), self._show(tokens) + sum(taps)

    def decode(self, tokens: Tensor, lens: Tensor) -> Tensor:
        return self.verify(tokens, lens)[:, -1]

    def decode_hidden(self, tokens: Tensor, hidden: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return self._say(tokens * 3 + at + hidden.sum(-1)), hidden % 5 + tokens[:, None] % 3

    def grow(self, tokens: Tensor, starts: Tensor, sees: Tensor, level: int) -> Tensor:
        return self._say(tokens * 3 + starts[:, None] + sees.sum(-1) + level)

    def grow_hidden(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, sees: Tensor, level: int
    ) -> tuple[Tensor, Tensor]:
        known = tokens * 3 + starts[:, None] + sees.sum(-1) + level + hidden.sum(-1)
        return self._say(known), hidden % 5 + tokens[..., None] % 3

    def grow_frozen(self, tokens: Tensor, hidden: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        known = tokens * 3 + lens[:, None] + hidden.sum(-1)
        return self._say(known), hidden % 5 + tokens[..., None] % 3

    def extend(self, tokens: Tensor, starts: Tensor, accept_len: Tensor) -> Tensor:
        known = tokens.gather(1, accept_len[:, None] - 1)[:, 0]
        return self._say(known * 3 + starts)

    def extend_hidden(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, accept_len: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = accept_len[:, None, None].expand(-1, 1, hidden.shape[2]) - 1
        beside = hidden.gather(1, rows)[:, 0, : self.width]
        logits = self.extend(tokens, starts, accept_len)
        return logits.roll(int(beside.sum()) % 3, -1), beside % 5

    def extend_layer(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, rows: Tensor, layer: int
    ) -> Tensor:
        known = tokens.gather(1, rows[:, None] - 1)[:, 0] + hidden.sum((1, 2)).long()
        return self._say(known * 3 + starts + layer)

    def target_ids(self, tokens: Tensor) -> Tensor:
        return (tokens + 1) % self.vocabulary

    def target_law(self, law: Tensor) -> Tensor:
        return law.roll(1, -1)

    def move_accepted(self, path: Tensor, starts: Tensor) -> None:
        self.moves.append((path.clone(), starts.clone()))


def drawn(state: dict[str, Tensor], seed: int) -> None:
    """Random state that a step may find."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in state.items():
        if name == "parents":
            for i in range(tensor.shape[1]):
                tensor[:, i] = torch.randint(0, i + 1, tensor[:, i].shape, generator=generator)
        else:
            low = -1 if name == "guesses" else 0
            tensor.copy_(torch.randint(low, VOCABULARY, tensor.shape, generator=generator))


def same(a: dict[str, Tensor], b: dict[str, Tensor], moved: Words, also: Words) -> None:
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name
    for ours, theirs in zip(moved.moves, also.moves, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("path", PICO, ids=lambda p: p.stem)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_passes_and_emission_keep_meaning(
    path: Path, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    resolved = resolve(load(path))
    graph = build(resolved)
    module = emit(lower(resolved), resolved).load(tmp_path_factory.getbasetemp() / "steps")
    numbers = {c.name: c.value for c in graph.constants}
    sizes = (numbers.get("VOCAB_SIZE", VOCABULARY), numbers.get("HIDDEN_SIZE", 4))
    for variant in (v.name for v in graph.variants):
        state = module.State.new(3, "cpu")
        drawn(buffers(state), seed)
        start = {n: t.clone() for n, t in buffers(state).items()}
        first, words = {n: t.clone() for n, t in start.items()}, Words(*sizes)
        interpret(graph, variant, first, {"target": words, "draft": words})
        now = graph
        for name, rewrite in PASSES:
            now = rewrite(now)
            after, other = {n: t.clone() for n, t in start.items()}, Words(*sizes)
            interpret(now, variant, after, {"target": other, "draft": other})
            same(first, after, words, other)
            assert name
        emitted = Words(*sizes)
        module.VARIANTS[variant](emitted, emitted, state)
        same(first, buffers(state), words, emitted)


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
    graph = fuse.rows(b.done())
    check(graph, LOWERED)
    nodes = graph.phase("commit").nodes
    assert [type(n).__name__ for n in nodes] == ["Fused", "Fused"]
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
        check(b.done(), BUILT)
