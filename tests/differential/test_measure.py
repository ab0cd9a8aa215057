"""Measuring on a real session: rows stand still, and labels are what was accepted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specflow import prompts as prompt_files
from specflow.calibrate import Heard, OpenStep
from specflow.execute import encode, make_session
from specflow.load import loads
from specflow.measuring import to_calibrate, to_profile, unmeasured
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.tokenizer import Tokenizer
from specflow.planning import Additive, Points
from specflow.profile import Point, Stopwatch, Wanted, fill, notes_of, tabled, take_turns
from specflow.recipe import Recipe, ResolvedRecipe
from specflow.resolve import resolve
from specflow.session import Request, Session
from tests.conftest import ROOT

PROMPTS = ROOT / "recipes" / "pico" / "prompts" / "code.jsonl"
TEXT = """
target: {model: builtin:pico-llama}
draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}
sampling: {max_new_tokens: 9}
run: {batch_size: 3}
"""


@pytest.fixture(scope="module")
def folder() -> Path:
    return open_model("builtin:pico-llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return LanguageModel.load(folder, device="cpu", dtype="float32")


def recipe() -> tuple[Recipe, ResolvedRecipe]:
    bare = unmeasured(loads(TEXT, "mine.yaml"))
    return bare, resolve(bare)


def requests(resolved: ResolvedRecipe, folder: Path, count: int) -> list[Request]:
    return encode(prompt_files.read(PROMPTS, count), Tokenizer(folder), resolved)[0]


def test_labels_by_hand() -> None:
    """Two steps of three rows with two guesses: lengths have the bonus token, labels do not."""
    trust = torch.tensor([[0.5, 1.0], [2.0, -1.0], [3.0, 0.0], [9.0, 9.0]])
    state = SimpleNamespace(
        trust=trust,
        accept_len=torch.tensor([1, 2, 3, 7]),
        verify_len=torch.tensor([3, 2, 3, 0]),
    )
    heard = Heard()
    heard.take(state, 3)
    trust[0] = 8.0  # the step's own buffer: the next step writes over it
    heard.take(state, 1)
    assert heard.logits == [[0.5, 1.0], [2.0, -1.0], [3.0, 0.0], [8.0, 8.0]]
    assert heard.accepted == [0, 1, 2, 0]
    assert heard.spared == 1
    assert heard.held == [0.5, 0.25]
    assert heard.reached == [4, 2]
    assert Heard().held == []


def test_labels_are_what_steps_accepted(model: LanguageModel, folder: Path) -> None:
    """All steps of all requests; a request's end cuts its completion and not its label."""
    bare, resolved = recipe()
    heard_recipe = to_calibrate(bare, resolved)
    heard = Heard()
    session = make_session(heard_recipe, model, Tokenizer(folder))
    session.captured = OpenStep(session.captured, heard)
    for request in requests(heard_recipe, folder, 7):
        session.submit(request)
    completions = list(session.run())
    steps = [length - 1 for c in completions for length in c.accept_lens]
    assert len(completions) == 7
    assert len(heard.accepted) == len(heard.logits) == len(steps)
    assert sum(heard.accepted) > sum(steps)  # somewhere the last step was cut at 9 tokens
    assert {len(row) for row in heard.logits} == {7}
    assert max(heard.accepted) <= 7


@pytest.fixture
def standing(model: LanguageModel, folder: Path) -> Session:
    bare, resolved = recipe()
    session = make_session(to_profile(bare, resolved, [(4, 32)]), model, Tokenizer(folder))
    fill(session, [r.tokens for r in requests(resolved, folder, 3)])
    return session


def test_rows_stand_still_while_they_are_timed(standing: Session) -> None:
    clock = Stopwatch(standing)
    before = clock.kept["seq_lens"].tolist()
    gained = set()
    for size in [(4, 32), (1, 8), (4, 32), (4, 9), (4, 32)]:
        assert clock.time(size) > 0
        rows, tokens = size
        after = clock.state.seq_lens.tolist()
        lengths = clock.state.accept_len[:rows].tolist()
        assert after[:rows] == [b + n for b, n in zip(before, lengths, strict=False)]
        assert after[rows:] == before[rows:]
        assert sum(clock.state.verify_len[:rows].tolist()) == tokens
        if size == (4, 32):
            gained.add(tuple(lengths))
    assert len(gained) == 1  # the same text gives the same step


class FakeClock:
    """Seconds of a size are its tokens in milliseconds, and a hundred times as much at first."""

    def __init__(self, ends: int = 10**9) -> None:
        self.order: list[tuple[int, int]] = []
        self.ends = ends

    def time(self, size: tuple[int, int]) -> float:
        if len(self.order) == self.ends:
            raise KeyboardInterrupt
        self.order.append(size)
        return size[1] / (10 if self.order.count(size) <= 2 else 1000)


class Silent:
    def say(self, text: str) -> None: ...

    def turn(self, done: int, total: int, seconds: float) -> None: ...


SIZES = [(2, 2), (2, 4), (2, 8)]


def test_sizes_take_turns_and_the_first_do_not_count() -> None:
    clock = FakeClock()
    timed, stopped = take_turns(clock, Wanted(SIZES, 5, 2, False), Silent())
    assert not stopped
    assert timed == {size: [size[1] / 1000] * 5 for size in SIZES}
    rounds = [clock.order[at : at + 3] for at in range(0, 21, 3)]
    assert all(sorted(each) == SIZES for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def test_an_interrupt_keeps_what_was_timed() -> None:
    timed, stopped = take_turns(FakeClock(10), Wanted(SIZES, 5, 2, False), Silent())
    assert "Ctrl-C" in stopped
    assert sum(map(len, timed.values())) == 4


def points(*medians: float, rows: int = 2) -> list[Point]:
    return [Point(rows, 2 * 2**at, (m, m, m)) for at, m in enumerate(medians)]


def test_points_become_tables() -> None:
    found = points(0.5, 0.25, 1.0)
    table = tabled(found[::-1], additive=False)
    assert table == Points((2, 4, 8), (2.0, 4.0, 1.0), 8)  # jagged as it was measured
    both = [*found, *points(1.0, 2.0, rows=3)]
    added = tabled(both, additive=True)
    assert isinstance(added, Additive)
    assert (added.rows, added.tokens) == ((2, 3), (2, 4, 8))
    assert any("fit misses" in note for note in notes_of(both, added))
    assert any("one batch size" in note for note in notes_of(found, tabled(found, additive=True)))


def test_a_wide_spread_is_told() -> None:
    quiet, loud = Point(1, 1, (1.0,) * 9), Point(1, 2, (1.0, 1.0, 1.0, 2.0))
    table = Points((1, 2), (1.0, 1.0), 2)
    assert not notes_of([quiet], table)
    assert "1 of 2 sizes" in notes_of([quiet, loud], table)[0]
    assert Point(1, 1, (0.5,)).bounds == (0.5, 0.5)
