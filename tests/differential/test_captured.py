"""Steps that are compiled, captured, or read late: the tokens are those of the eager step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.capture import CompiledStep, EagerStep, Reads, Told, buckets
from specflow.execute import decode, made_late
from specflow.session import Request, Session
from tests import toys
from tests.differential import graph_sessions
from tests.differential.graph_sessions import KINDS, asked
from tests.toys import neighbour, recipe, requests, session, target, tokens


class LateStep(EagerStep):
    """An eager step read as a graph's is: from copies, when the next step is on its way."""

    reads = Reads.LATE

    def results(self, rows: int) -> Told:
        """Copies: the state may have gone on before they are read."""
        state = self.view(rows)
        said = {each: getattr(state, each).clone() for each in ("accept_len", "output_tokens")}
        return Told(replace(state, **said), lambda: None)


class Padded(LateStep):
    """A late step that runs in buckets of rows, as a graph does."""

    whole = True


def with_step(made: Session, kind: type[EagerStep]) -> Session:
    """The session over a step of another kind."""
    old = made.captured
    made.captured = kind(old.module, old.target, old.pool, old.drafter, old.planner)
    return made


@pytest.mark.parametrize(
    ("kind", "batch"), [(LateStep, 1), (LateStep, 3), (Padded, 3), (Padded, 5)]
)
@pytest.mark.parametrize("name", ["plain", "standalone", "standalone_tree", "standalone_5"])
def test_what_is_read_late_is_the_same(
    name: str, batch: int, kind: type[EagerStep], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = toys.positions
    monkeypatch.setattr(toys, "positions", lambda r: reach(r) + r["verify.num_draft_tokens"])
    resolved = recipe(name, batch)
    draft = None if name == "plain" else neighbour(0, 0.2)
    asked = requests(9, 17)
    eager = tokens(session(resolved, target(), tmp_path, draft), asked)
    late = with_step(session(resolved, target(), tmp_path, draft), kind)
    assert tokens(late, asked) == eager
    assert late.pending is None
    assert not late.rows


def test_late_reading_counts_every_accept_length(tmp_path: Path) -> None:
    resolved = recipe("standalone", 2)
    made = with_step(session(resolved, target(), tmp_path, neighbour(0, 0.2)), LateStep)
    made.pool = made.captured.pool
    for request in [Request(str(i), [5, 7, 9 + i], 12) for i in range(3)]:
        made.submit(request)
    for completion in made.run():
        assert sum(completion.accept_lens) == len(completion.tokens) - 1
        assert len(completion.drafted) == len(completion.accept_lens)


def test_buckets_are_powers_of_two_and_the_whole_batch() -> None:
    assert buckets(24) == (1, 2, 4, 8, 16, 24)
    assert buckets(8) == (1, 2, 4, 8)
    assert buckets(1) == (1,)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("plain", 1),
        pytest.param("standalone", 2, marks=pytest.mark.slow),
        pytest.param("standalone_tree", 2, marks=pytest.mark.slow),
        pytest.param("ngram", 3, marks=pytest.mark.slow),
    ],
)
def test_a_compiled_step_says_the_same(name: str, batch: int, tmp_path: Path) -> None:
    """By inductor, the real one."""
    resolved = recipe(name, batch)
    asked = requests(batch + 1, 9)
    draft = neighbour(0, 0.2) if name.startswith("standalone") else None
    eager = tokens(session(resolved, target(), tmp_path, draft), asked)
    compiled = with_step(session(resolved, target(), tmp_path, draft), CompiledStep)
    assert tokens(compiled, asked) == eager


class Quiet:
    """Nobody looks on."""

    def progress(self, *_: Any) -> None:
        """Nothing."""


TRACED = ("eagle3", "ngram", "dspark_planned")  # serial, host phases, block draft and plan


@pytest.mark.parametrize(
    "name", [*TRACED, *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k not in TRACED)]
)
def test_a_key_is_compiled_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rows end or move: `prepare` pays for what it made, and a run for none of the rest.

    What is traced is called as it is: that it is traced again shows without compiling anything.
    """
    compiled: list[object] = []

    def counting(graph: torch.fx.GraphModule, _inputs: object) -> object:
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    eager = graph_sessions.session(name, 2)
    wanted = tokens(eager, asked(eager, 3, 6))
    made = graph_sessions.session(name, 2, CompiledStep)
    step: Any = made.captured
    step.prepare(made.reach + 2)
    first = list(step._bound)
    assert first == list(step.first(made.reach + 2))
    assert len(compiled) == len(first)
    assert step.made.keys == 0
    done = decode(made, asked(made, 3, 6), Quiet(), None)  # type: ignore[arg-type]
    assert {c.request.id: c.tokens for c in done.completions} == wanted
    assert len(compiled) == len(step._bound)
    late = len(step._bound) - len(first)
    assert late > 0  # the last row is alone
    assert step.made.keys == late
    assert made_late(made, "the run")[0].startswith(f"{late} step")
    spent = sum(done.timed.phases.values())
    assert spent <= done.timed.total < spent + step.made.seconds
