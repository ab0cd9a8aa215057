"""How many guesses of a batch are worth verifying: what a step costs, against what it may gain.

N   requests of the batch, one a row
K   guesses of a request, its width
M   positions a step verifies: N, and one more for each guess
k   guesses of the whole batch that are worth their price
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from operator import mul
from pathlib import Path
from typing import Any

from specflow.headers import Problem, Refused, guarded, read_json

EPSILON = 1e-6  # a guess that is less likely to survive is never worth verifying
LARGEST = 1e300  # so that no sum or quotient of a table's numbers leaves the floats
WAY_OUT = "measure the table again, or leave it out: every guess is then verified"

# What a new request is credited with at each position, in guesses: enough to begin near the 1 that
# a request without confidences has, and little enough that the first real guesses outweigh it.
HELD, MISSED = 2.0, 0.05
# How much of the past a step keeps: about the last 50 steps count. It is also the way back for a
# request of which nothing is verified any more: its credit returns, and it is tried again.
KEPT = 0.98


# -- what a step costs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Points:
    """Steps per second by positions; M costs what the last sample at or below it does.

    Never interpolated: between two captured sizes a step runs as the one that was measured.
    """

    tokens: tuple[float, ...]  # ascending
    steps_per_second: tuple[float, ...]
    most: float  # positions up to which the table was made; nothing is refused above
    note: str = field(default="", compare=False)  # what it was made of, for people

    def seconds(self, rows: int, tokens: int) -> float:  # noqa: ARG002 - the cost of N is in M's
        """Seconds of a step of N rows and M positions."""
        at = bisect_right(self.tokens, tokens) - 1
        return 1 / self.steps_per_second[max(at, 0)]


@dataclass(frozen=True)
class Additive:
    """Seconds as a sum: a constant, a part by rows and a part by positions.

    Both parts are linear between their samples and level beyond them.
    """

    bias: float
    rows: tuple[float, ...]  # ascending
    seconds_by_rows: tuple[float, ...]
    tokens: tuple[float, ...]  # ascending
    seconds_by_tokens: tuple[float, ...]
    note: str = field(default="", compare=False)

    def seconds(self, rows: int, tokens: int) -> float:
        """Seconds of a step of N rows and M positions."""
        by_rows = _between(self.rows, self.seconds_by_rows, rows)
        return self.bias + by_rows + _between(self.tokens, self.seconds_by_tokens, tokens)


Table = Points | Additive
FLAT = Points((1,), (1.0,), 1)  # without a file: a guess more costs nothing, so all are verified


def _between(places: Sequence[float], values: Sequence[float], at: float) -> float:
    right = bisect_right(places, at)
    if right in (0, len(places)):
        return values[max(right - 1, 0)]
    left = right - 1
    part = (at - places[left]) / (places[right] - places[left])
    return values[left] + part * (values[right] - values[left])


# -- the file of a cost table, as SGLang writes and reads it ---------------------------------------


def read_table(path: Path) -> tuple[Table, Problem | None]:
    """The cost table of a JSON file; `FLAT` and the reason where it cannot be had."""
    return guarded(str(path), lambda: parse_table(read_measured(path, table_fault, WAY_OUT)), FLAT)


def read_measured(path: Path, fault: Callable[[object], str], way_out: str) -> dict[str, Any]:
    """The JSON object of a file, which must exist and be without fault."""
    if not path.exists():
        raise Refused(f"there is no file `{path}`", way_out, "missing")
    if not path.is_file():  # a pipe would be waited for
        raise Refused(f"`{path}` is no file", way_out)
    said = read_json(path)
    wrong = fault(said)
    if said is None or wrong:
        raise Refused(f"`{path}` cannot be used: {wrong}", way_out)
    return said


def parse_table(said: Mapping[str, Any]) -> Table:
    """The cost table of a mapping in which `table_fault` finds nothing."""
    note = said.get("note")
    note = " ".join(note.split())[:200] if isinstance(note, str) else ""
    if "bias_seconds" not in said:
        tokens, steps = said["sample_batch_tokens"], said["sample_steps_per_sec"]
        return Points(tuple(tokens), tuple(steps), said["max_batch_tokens"], note)
    keys = ("bs_probes", "alpha_seconds", "m_probes", "theta_seconds")
    rows, by_rows, tokens, by_tokens = (tuple(said[key]) for key in keys)
    return Additive(said["bias_seconds"], rows, by_rows, tokens, by_tokens, note)


def table_text(table: Table) -> str:
    """A cost table as the text of its JSON file."""
    if isinstance(table, Points):
        said: dict[str, object] = {
            "sample_batch_tokens": table.tokens,
            "sample_steps_per_sec": table.steps_per_second,
            "max_batch_tokens": table.most,
        }
    else:
        said = {
            "bias_seconds": table.bias,
            "bs_probes": table.rows,
            "alpha_seconds": table.seconds_by_rows,
            "m_probes": table.tokens,
            "theta_seconds": table.seconds_by_tokens,
        }
    said |= {"note": table.note} if table.note else {}
    return json.dumps(said, indent=2) + "\n"


def table_fault(said: object) -> str:
    """Why a JSON value is no cost table, in one sentence; empty where it is one.

    Steps per second may rise with positions: tables are measured, and measurements are jagged.
    """
    if isinstance(said, Mapping) and "bias_seconds" in said:
        return (
            _number_fault("`bias_seconds`", said["bias_seconds"])
            or _curve_fault(said, "bs_probes", "alpha_seconds", zero=True)
            or _curve_fault(said, "m_probes", "theta_seconds", zero=True)
        )
    curve = _curve_fault(said, "sample_batch_tokens", "sample_steps_per_sec")
    return curve or _most_fault(said)


def _most_fault(said: Any) -> str:
    if "max_batch_tokens" not in said:
        return "`max_batch_tokens` is missing"
    most, last = said["max_batch_tokens"], said["sample_batch_tokens"][-1]
    if wrong := _number_fault("`max_batch_tokens`", most):
        return wrong
    short = f"`max_batch_tokens` is {most}, less than the last sample of {last} tokens"
    return short if most < last else ""


def _curve_fault(said: Any, at: str, of: str, *, zero: bool = False) -> str:
    """What is wrong with samples `of` taken `at` ascending places."""
    if wrong := list_fault(said, at, zero=True) or list_fault(said, of, zero=zero):
        return wrong
    places, values = said[at], said[of]
    if len(places) != len(values):
        return f"`{at}` has {len(places)} entries and `{of}` has {len(values)}"
    for i in range(1, len(places)):
        if places[i] <= places[i - 1]:
            rise = f"entry {i + 1} is {places[i]}, after {places[i - 1]}"
            return f"`{at}` must increase, and {rise}"
    return ""


def list_fault(said: object, key: str, *, zero: bool = False) -> str:
    """Why a JSON value holds no list of numbers above 0 under a key; from 0 on where `zero`."""
    if not isinstance(said, Mapping):
        return "it is not a JSON object"
    if key not in said:
        return f"`{key}` is missing"
    values = said[key]
    if not isinstance(values, list | tuple):
        return f"`{key}` is no list"
    if not values:
        return f"`{key}` is empty"
    named = ((f"entry {at} of `{key}`", value) for at, value in enumerate(values, start=1))
    return next((wrong for n, v in named if (wrong := _number_fault(n, v, zero=zero))), "")


def _number_fault(name: str, value: object, *, zero: bool = False) -> str:
    """Why a value is no number above 0, or from 0 on where `zero` may be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{name} is no number"
    if not abs(value) < LARGEST:  # as NaN is not
        return f"{name} is no finite number"
    if value < 0 or (value == 0 and not zero):
        return f"{name} is {value}, and must be {'0 or more' if zero else 'above 0'}"
    return ""


# -- what is worth verifying -----------------------------------------------------------------------


def throughputs(survivals: Sequence[Sequence[float]], table: Table) -> list[float]:
    """Tokens per second of a batch that verifies its k likeliest guesses, for k = 0, 1, ...

    survivals   N rows: how likely each guess and all before it are right, non-increasing

    The k likeliest are prefixes of the rows' guesses, since no guess outlives the one before it.
    """
    rows = len(survivals)
    likeliest = sorted((s for row in survivals for s in row if s >= EPSILON), reverse=True)
    gained = accumulate(likeliest, initial=float(rows))
    return [tokens / table.seconds(rows, rows + k) for k, tokens in enumerate(gained)]


def budget(survivals: Sequence[Sequence[float]], table: Table) -> int:
    """How many guesses of a batch give the most tokens per second; the fewest of those.

    Over all k, not up to the first fall: costs are jagged, and a fall may only be a step of them.
    """
    each = throughputs(survivals, table)
    return each.index(max(each))


class Planner:
    """How many positions the coming step may verify, by what was published `lag` steps before it.

    Each step asks `tokens` before it, and says `publish` after it, before its rows move. With a lag
    of 2, step t goes by what step t - 2 published; steps 0 and 1 verify everything.

    The lag keeps the law exact. A decision that saw the confidences of this step's own guesses
    would verify the more the better they look, keep some and draw others anew by what they are, and
    so bend their distribution; what an earlier step published cannot know them (parallel.md T9).

    Rows are told apart by a generation number: a row that another request took over since has no
    history, and counts as sure to survive until its own arrives.
    """

    def __init__(self, table: Table, width: int, lag: int = 2, bucket: int = 1) -> None:
        if min(width, lag, bucket) < 1:
            raise ValueError(f"width {width}, lag {lag} and bucket {bucket} must be 1 or more")
        self.table, self.width, self.lag, self.bucket = table, width, lag, bucket
        self._fresh = count()
        self.holders: dict[int, int] = {}  # row -> generation
        # What the last steps published, by generation: it follows its request from row to row.
        self._published: deque[dict[int, tuple[float, ...]]] = deque(maxlen=lag)

    def admit(self, row: int) -> None:
        """A new request takes the row."""
        self.holders[row] = next(self._fresh)

    def move(self, source: int, target: int) -> None:
        """The request of one row goes on in another, whose own is over."""
        self.holders[target] = self.holders.pop(source)

    def release(self, row: int) -> None:
        """The row's request is over, or moved away before."""
        self.holders.pop(row, None)

    def publish(
        self, survivals: Sequence[Sequence[float]], holders: Mapping[int, int] | None = None
    ) -> None:
        """Take in the survivals of the step that ended, one row each from row 0 on.

        Rows that no request has are padding, and are left out.

        holders  who had the rows in that step, where it is not who has them now
        """
        at = self.holders if holders is None else holders
        self._published.append(
            {at[row]: tuple(each) for row, each in enumerate(survivals) if row in at}
        )

    def tokens(self, rows: int, unread: int = 0) -> int:
        """Positions that the coming step of rows 0 to `rows` - 1 may verify, in whole buckets.

        From `rows`, which no step can do without, to all of them, which need not fill a bucket.

        unread  steps before it that have published nothing yet, fewer than the lag
        """
        everything, behind = rows * (self.width + 1), self.lag - unread
        if not 1 <= behind <= len(self._published) or self.table == FLAT:
            return everything
        wanted = rows + budget(self._survivals(rows, self._published[-behind]), self.table)
        return self._whole(wanted, everything)

    def budgets(self, rows: int) -> tuple[int, ...]:
        """All that `tokens` may say of so many rows, ascending."""
        everything = rows * (self.width + 1)
        if self.table == FLAT:
            return (everything,)
        return tuple(sorted({self._whole(n, everything) for n in range(rows, everything + 1)}))

    def _whole(self, wanted: int, everything: int) -> int:
        return min(-(-wanted // self.bucket) * self.bucket, everything)

    def _survivals(
        self, rows: int, known: Mapping[int, tuple[float, ...]]
    ) -> list[tuple[float, ...]]:
        """What is known of the rows; all 1 where that is nothing."""
        sure = (1.0,) * self.width
        found = (self.holders.get(row) for row in range(rows))
        return [sure if each is None else known.get(each, sure) for each in found]


# -- survivals of drafts that name no confidence ---------------------------------------------------


@dataclass
class Tally:
    """What one request's guesses came to, by position, of those whose predecessors all held."""

    made: list[float]
    held: list[float]


class Averages:
    """How likely a request's guesses survive, by how often those of its past steps did.

    For drafts without a confidence head. What `survivals` says depends on past steps only, so that
    a planner may use it at any lag. A request of which little is known is taken for a good one:
    only guesses that are verified can show what they are worth.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._tallies: dict[int, Tally] = {}

    def admit(self, row: int) -> None:
        """A new request takes the row: nothing is known of it."""
        self._tallies[row] = self._nothing()

    def move(self, source: int, target: int) -> None:
        """The request of one row goes on in another, whose own is over."""
        self._tallies[target] = self._tallies.pop(source)

    def release(self, row: int) -> None:
        """The row's request is over, or moved away before."""
        self._tallies.pop(row, None)

    def observe(self, row: int, accepted: int, judged: int) -> None:
        """Take in a step: of so many guesses that were verified, the first so many were right.

        The guess after those was wrong if it was verified; what lies beyond says nothing.
        """
        tally = self._tallies.get(row)
        if tally is None:  # its request has ended since
            return
        for at in range(self.width):
            tally.made[at] = KEPT * tally.made[at] + (at <= accepted and at < judged)
            tally.held[at] = KEPT * tally.held[at] + (at < accepted and at < judged)

    def survivals(self, rows: int) -> list[list[float]]:
        """For rows 0 to `rows` - 1: the product, position by position, of how often one held."""
        return self.of(range(rows))

    def of(self, rows: Iterable[int | None]) -> list[list[float]]:
        """The same for rows by any name; of one that nobody has nothing is known."""
        known = (None if row is None else self._tallies.get(row) for row in rows)
        return [_survival(tally or self._nothing()) for tally in known]

    def _nothing(self) -> Tally:
        return Tally([0.0] * self.width, [0.0] * self.width)


def _survival(tally: Tally) -> list[float]:
    each = zip(tally.held, tally.made, strict=True)
    return list(accumulate(((held + HELD) / (made + HELD + MISSED) for held, made in each), mul))
