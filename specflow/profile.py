"""What a whole step costs on this machine, by the rows and the tokens it verifies.

Timed is the step that a plan launches: draft, verify and commit, up to where the session reads what
was gained. Each is run on the same text at the same positions: state is put back before it. Sizes
take turns, in another order each round, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Protocol

from specflow import prompts as prompt_files
from specflow.capture import copies, put_back
from specflow.columns import columns
from specflow.cost_fit import Timing, errors, fit_additive
from specflow.diagnostics import Diagnostic
from specflow.errors import RuntimeFault
from specflow.execute import Stages, encode, environment, make_session, open_target
from specflow.explain import spelled
from specflow.faults import device_faults
from specflow.interrupts import heed
from specflow.measuring import Size, doubling
from specflow.models.tokenizer import Words
from specflow.planning import Additive, Points, Table, table_text
from specflow.recipe import ResolvedRecipe
from specflow.session import Request, Session

HEADS = ("batch", "tokens", "median ms", "p10..p90 ms", "steps/s", "tokens/s")
WIDE = 0.2  # of the median: a spread that says the machine was not quiet
TEXT = (
    "A recipe says what a step is made of: which model drafts, how many guesses are verified at "
    "once, and what becomes of the draft's state. The compiler turns it into a module that can be "
    "read from top to bottom, and the runtime calls it once for each step of the batch."
)


class Watch(Stages, Protocol):
    """What measuring tells whoever looks on."""

    def turn(self, done: int, total: int, seconds: float) -> None:
        """A round over all sizes ended."""


@dataclass(frozen=True)
class Point:
    """The steps of one size that were timed, in seconds."""

    rows: int
    tokens: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the steps took longer."""
        return median(self.seconds)

    @property
    def bounds(self) -> tuple[float, float]:
        """What a tenth of the steps stayed below, and what a tenth took longer than."""
        if len(self.seconds) == 1:
            return self.seconds[0], self.seconds[0]
        tenths = quantiles(self.seconds, n=10, method="inclusive")
        return tenths[0], tenths[-1]

    @property
    def spread(self) -> float:
        """How far apart those two are, as a part of the median."""
        low, high = self.bounds
        return (high - low) / self.median


@dataclass(frozen=True)
class Profile:
    """What measuring leaves.

    points    in the order of rows and tokens; those that were timed at all
    table     None where it was stopped
    findings  what is wrong with prompts
    stopped   what ended it early, or nothing
    """

    points: tuple[Point, ...]
    table: Table | None
    notes: tuple[str, ...]
    findings: tuple[Diagnostic, ...]
    stopped: str


def described(recipe: ResolvedRecipe, table: Table) -> Table:
    """A table that says what it was measured on: it holds for nothing else."""
    around = environment(recipe)
    count = around["threads"]
    threads = f"{count} thread{'s' if count != 1 else ''}"
    where = f"{around['device']} with {threads}, torch {around['torch']}"
    return replace(table, note=f"measured with {recipe.name} in {recipe.run.dtype} on {where}")


@dataclass(frozen=True)
class Wanted:
    """Which sizes are timed, how often, and into which form of table they go."""

    sizes: Sequence[Size]
    steps: int
    warmup: int
    additive: bool


def profile(
    recipe: ResolvedRecipe, prompts: prompt_files.Prompts | None, wanted: Wanted, watch: Watch
) -> Profile:
    """Time the step of a recipe that verifies all by plan (`measuring.to_profile`).

    prompts  the text; None takes a short one that is built in
    """
    target, tokenizer = open_target(recipe, watch)
    beginnings, found = texts(recipe, prompts, tokenizer)
    if not beginnings:
        return Profile((), None, (), found, "no prompt could be used")
    session = make_session(recipe, target, tokenizer)
    try:
        with device_faults("before steps were timed"):
            fill(session, beginnings)
    except RuntimeFault as error:
        return Profile((), None, (), found, str(error))
    watch.say(f"timing {len(wanted.sizes)} sizes of {wanted.warmup} + {wanted.steps} steps")
    timed, stopped = take_turns(Stopwatch(session), wanted, watch)
    points = tuple(Point(*size, tuple(each)) for size, each in sorted(timed.items()) if each)
    if stopped:
        return Profile(points, None, (), found, stopped)
    table = described(recipe, tabled(points, additive=wanted.additive))
    return Profile(points, table, tuple(notes_of(points, table)), found, "")


def texts(
    recipe: ResolvedRecipe, prompts: prompt_files.Prompts | None, tokenizer: Words
) -> tuple[list[list[int]], tuple[Diagnostic, ...]]:
    """The tokens that rows begin with, short enough for a step or two; what is wrong with prompts.

    A prompt at fault is a finding and the others are used; the built-in text never stands for them.
    """
    room = recipe.run.max_length - 2 * recipe["verify.num_draft_tokens"]
    if room < 1:
        raise RuntimeFault(
            f"`run.max_length` of {recipe.run.max_length} positions leaves no room for a text "
            "beside a step; raise it"
        )
    if prompts is None:
        return [tokenizer.encode(TEXT)[:room]], ()
    requests, findings = encode(prompts, tokenizer, recipe)
    return [r.tokens[:room] for r in requests], (*prompts.findings, *findings)


def fill(session: Session, beginnings: Sequence[Sequence[int]]) -> None:
    """Begin a request in every row, and let each decode a step: state is as it is in a run."""
    rows, most = session.recipe.run.batch_size, session.recipe.run.max_length
    for row in range(rows):
        session.submit(Request(str(row), list(beginnings[row % len(beginnings)]), most))
    session.step()
    if len(session.rows) < rows:
        raise RuntimeFault("a request ended in its first step; raise `run.max_length`")


class Stopwatch:
    """A session whose rows stand still: each step begins where the one before it did."""

    def __init__(self, session: Session) -> None:
        self.step = session.captured
        self.state = self.step.state
        self.variant = next(iter(self.step.widths))
        self.kept = copies(self.state)
        lengths = (len(c.request.tokens) + len(c.tokens) for c in session.rows)
        self.needed = max(lengths) - 1 + session.reach

    def time(self, size: Size) -> float:
        """Seconds of one step of a size."""
        rows, tokens = size
        put_back(self.state, self.kept)
        self.state.seq_lens.tolist()  # whatever the device was still at has ended
        began = perf_counter()
        self.step.launch(rows, self.variant, self.needed, tokens)
        self.state.accept_len[:rows].tolist()
        self.state.output_tokens[:rows].tolist()
        return perf_counter() - began


def take_turns(
    clock: Stopwatch, wanted: Wanted, watch: Watch
) -> tuple[dict[Size, list[float]], str]:
    """Seconds of every size after its warm-up, and what stopped it early, or nothing."""
    timed: dict[Size, list[float]] = {size: [] for size in wanted.sizes}
    began, rounds = perf_counter(), wanted.warmup + wanted.steps
    order = list(timed)
    try:
        for done in range(rounds):
            random.Random(done).shuffle(order)
            heed()
            for size in order:
                with device_faults("while steps were timed"):
                    seconds = clock.time(size)
                if done >= wanted.warmup:
                    timed[size].append(seconds)
            watch.turn(done + 1, rounds, perf_counter() - began)
    except KeyboardInterrupt:
        return timed, "Ctrl-C or a signal ended it"
    except RuntimeFault as error:
        return timed, str(error)
    return timed, ""


def tabled(points: Sequence[Point], *, additive: bool) -> Table:
    """Points as a table: as they are, or as the sum that is most like them."""
    if additive:
        tokens = [point.tokens for point in points]
        return fit_additive(timings(points), doubling(min(tokens), max(tokens)))
    by_tokens = sorted(points, key=lambda point: point.tokens)
    at = tuple(point.tokens for point in by_tokens)
    return Points(at, tuple(1 / point.median for point in by_tokens), at[-1])


def timings(points: Sequence[Point]) -> list[Timing]:
    """Points as the fit reads them."""
    return [(point.rows, point.tokens, point.median) for point in points]


def notes_of(points: Sequence[Point], table: Table) -> list[str]:
    """What whoever uses the table should know of it."""
    notes = []
    wide = [point for point in points if point.spread > WIDE]
    if wide:
        worst = max(wide, key=lambda point: point.spread)
        notes.append(
            f"{len(wide)} of {len(points)} sizes spread by more than {WIDE:.0%} of their median, "
            f"{worst.rows} x {worst.tokens} by {worst.spread:.0%}: the machine was not quiet; "
            "more `--steps` make the medians steadier"
        )
    if isinstance(table, Additive):
        missed = errors(table, timings(points))
        mean, worst_at = sum(missed) / len(missed), missed.index(max(missed))
        at = points[worst_at]
        notes.append(
            f"the fit misses a median by {mean:.1%} on average, and by {missed[worst_at]:.1%} at "
            f"{at.rows} x {at.tokens}"
        )
        if len(table.rows) == 1:
            notes.append("one batch size: what its rows cost is part of the constant")
    return notes


# -- what is told ----------------------------------------------------------------------------------


def table(recipe: ResolvedRecipe, found: Profile) -> list[str]:
    """The points as a person reads them; tokens are those verified, in a step and a second."""
    machine = environment(recipe)
    steps = len(found.points[0].seconds) if found.points else 0
    where = f"{recipe.run.dtype} on {machine['device']}, {machine['threads']} threads"
    lines = [
        f"{recipe.name}  {steps} steps of each size, {spelled(recipe.target.model)} in {where}"
    ]
    lines += columns([HEADS, *map(_row, found.points)]) if found.points else []
    lines += [f"note: {note}" for note in found.notes]
    return [*lines, f"cut short: {found.stopped}; there is no table"] if found.stopped else lines


def as_json(recipe: ResolvedRecipe, found: Profile) -> dict[str, Any]:
    """All that was found, as plain values; `table` is what a file of it holds."""
    points = [
        {
            "batch": point.rows,
            "tokens": point.tokens,
            "steps": len(point.seconds),
            "median_seconds": point.median,
            "p10_seconds": point.bounds[0],
            "p90_seconds": point.bounds[1],
        }
        for point in found.points
    ]
    return {
        "recipe": recipe.name,
        "environment": dict(environment(recipe)),
        "points": points,
        "table": json.loads(table_text(found.table)) if found.table is not None else None,
        "notes": list(found.notes),
        "stopped": found.stopped,
    }


def _row(point: Point) -> tuple[str, ...]:
    low, high = point.bounds
    return (
        str(point.rows),
        str(point.tokens),
        f"{1000 * point.median:.3f}",
        f"{1000 * low:.3f}..{1000 * high:.3f}",
        f"{1 / point.median:.1f}",
        f"{point.tokens / point.median:.0f}",
    )
