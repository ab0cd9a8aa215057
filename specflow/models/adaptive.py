"""How many draft steps the next step takes: a controller on the host (serial.md §6.13).

Each slot of batch sizes keeps an average of how many guesses were right, and moves between its
candidates with hysteresis. Candidate 0 is plain decoding, from where the next one is probed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ALPHA = 0.2  # weight of the last batch in the average
WARM_UP = 10  # batches of a slot before its first decision
INTERVAL = 5  # batches between decisions
NO_HISTORY = -1.0
# Going down from the first slot needs a quarter guess less than the bound, which damps swinging.
DOWN = {1: -0.25}
HALF = 0.5


@dataclass
class Slot:
    """One range of batch sizes.

    candidates  steps it may take, ascending
    steps       what it takes now
    average     right guesses a request, bonus excluded; below 0 where nothing is known
    """

    candidates: tuple[int, ...]
    steps: int
    down: float = 0.0
    up: float = 0.0
    average: float = field(default=NO_HISTORY)
    batches: int = 0

    @classmethod
    def start(cls, candidates: Sequence[int], wanted: int, *, down: float = 0.0) -> Slot:
        """A slot at the steps that are wanted, or else at its middle candidate."""
        known = tuple(sorted(set(candidates)))
        steps = wanted if wanted in known else known[len(known) // 2]
        return cls(known, steps, down=down, average=float(steps - 1))

    def observe(self, right: float) -> None:
        """Take in a batch's mean of right guesses; decide where a decision is due."""
        if self.steps > 0:
            self.average = (1 - ALPHA) * self.average + ALPHA * right
        self.batches += 1
        beyond = self.batches - WARM_UP
        if beyond > 0 and beyond % INTERVAL == 0:
            self.steps = self._probe() if self.steps == 0 else self._decide()

    def _probe(self) -> int:
        """From plain decoding one up: nothing else would ever tell whether drafting pays again."""
        above = [c for c in self.candidates if c > 0]
        if not above:
            return 0
        if self.average < 0:
            self.average = float(above[0] - 1)
        return above[0]

    def _decide(self) -> int:
        """Down while the average is below a smaller candidate's bound, else up while above ours."""
        steps = self.steps
        for lower in sorted((c for c in self.candidates if c < steps), reverse=True):
            bound = HALF if lower == 0 else lower - HALF
            if self.average > bound + self.down:
                break
            steps = lower
        if steps != self.steps:
            return steps
        for higher in (c for c in self.candidates if c > self.steps):
            if self.average <= steps - HALF + self.up:
                break
            steps = higher
        return steps


class Adaptive:
    """The slots of a run, by the smallest batch of each."""

    def __init__(self, slots: Sequence[tuple[int, Sequence[int]]], wanted: int) -> None:
        self.slots = {
            least: Slot.start(steps, wanted, down=DOWN.get(least, 0.0)) for least, steps in slots
        }
        self._last = min(self.slots)

    def steps(self, rows: int) -> int:
        """Steps for a batch of so many rows; the slot is remembered for `observe`."""
        fits = [least for least in self.slots if least <= rows]
        self._last = max(fits, default=min(self.slots))
        return self.slots[self._last].steps

    def observe(self, gained: Sequence[Sequence[int]]) -> None:
        """The tokens each request of that batch gained, bonus included."""
        if gained:
            right = sum(len(tokens) - 1 for tokens in gained) / len(gained)
            self.slots[self._last].observe(right)
