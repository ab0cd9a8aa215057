"""How a confidence head is brought to say the truth: one temperature for each position of a draft.

Sequential temperature scaling (DSpark): a position's confidence is sigmoid(logit / temperature),
and its survival the product of the confidences up to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import tanh
from pathlib import Path

from specflow.headers import Problem, Refused, guarded
from specflow.planning import list_fault, read_measured

GRID = tuple(10 ** (step / 20) for step in range(-20, 21))  # 0.1 to 10, level on a log scale
BINS = 15
SMALLEST = 1e-8  # a chance is kept this far from 0 and from 1, as DeepSpec does
MEANT = (
    "ECE is of survival, the chance that a guess and all before it hold, and in sample: on other "
    "prompts than these expect it to be larger"
)
WAY_OUT = "fit the temperatures again, or leave them out: confidences are then taken as they are"


@dataclass(frozen=True)
class Fit:
    """Temperatures by position, and the calibration errors of survival at 1 and at them.

    The errors are in sample: of the steps that the temperatures were fitted to.
    """

    temperatures: tuple[float, ...]
    ece_before: tuple[float, ...]
    ece_after: tuple[float, ...]


def ece(chances: Sequence[float], labels: Sequence[bool | int], bins: int = BINS) -> float:
    """The expected calibration error: how far chances are from how often their label was 1.

    By bins of equal width, each weighed by how many chances it holds.
    """
    gaps, last = [0.0] * bins, bins - 1
    for chance, label in zip(chances, labels, strict=True):
        kept = min(max(chance, SMALLEST), 1 - SMALLEST)
        gaps[min(int(bins * kept), last)] += kept - label
    return sum(map(abs, gaps)) / len(chances) if chances else 0.0


def fit_temperatures(
    logits: Sequence[Sequence[float]],
    accepted: Sequence[int],
    grid: Sequence[float] = GRID,
    bins: int = BINS,
) -> Fit:
    """The temperatures, of a grid, at which survival is calibrated best; the first of equals.

    logits     n steps of K, as the head gives them; the whole draft was verified
    accepted   n counts of guesses that were right

    Left to right: a position is fitted on the survival that those before it were fitted to, and
    its label is survival too. One sigmoid for each logit and grid value: 20000 steps of 16 on the
    default grid take about 10 s. ValueError where there are no steps, or they differ in length.
    """
    if not logits:
        raise ValueError("there are no logits to fit temperatures to")
    temperatures, before, after = [], [], []
    plain = fitted = [1.0] * len(accepted)
    for at, column in enumerate(zip(*logits, strict=True)):
        labels = [count > at for count in accepted]
        plain = _survivals(plain, column, 1.0)
        before.append(ece(plain, labels, bins))
        errors = [ece(_survivals(fitted, column, each), labels, bins) for each in grid]
        after.append(min(errors))
        temperatures.append(grid[errors.index(after[-1])])
        fitted = _survivals(fitted, column, temperatures[-1])
    return Fit(tuple(temperatures), tuple(before), tuple(after))


def _survivals(until: Sequence[float], logits: Sequence[float], temperature: float) -> list[float]:
    """Survival up to and with a position; a tanh is the sigmoid that cannot overflow."""
    twice = 2 * temperature
    both = zip(until, logits, strict=True)
    return [before * (0.5 + 0.5 * tanh(logit / twice)) for before, logit in both]


# -- the file of temperatures, as SGLang writes and reads it ---------------------------------------


def read_temperatures(path: Path, width: int) -> tuple[tuple[float, ...], Problem | None]:
    """The temperatures of a JSON file for a draft of so many guesses.

    All 1 and the reason where they cannot be had.
    """
    return guarded(str(path), lambda: _read(path, width), (1.0,) * width)


def _read(path: Path, width: int) -> tuple[float, ...]:
    found = tuple(read_measured(path, temperatures_fault, WAY_OUT)["temperatures"])
    if len(found) != width:
        message = f"`{path}` holds {len(found)} temperatures, and the draft makes {width} guesses"
        raise Refused(message, WAY_OUT, "misfit")
    return found


def temperatures_text(fit: Fit, dataset: str, samples: int) -> str:
    """A fit as the text of its JSON file: which data it was made of, and of how many steps."""
    said = {
        "temperatures": fit.temperatures,
        "dataset": dataset,
        "num_samples": samples,
        "ece_before": fit.ece_before,
        "ece_after": fit.ece_after,
        "note": MEANT,
    }
    return json.dumps(said, indent=2) + "\n"


def temperatures_fault(said: object) -> str:
    """Why a JSON value gives no temperatures, in one sentence; empty where it does.

    Only the temperatures are asked for: the rest tells people where they are from.
    """
    return list_fault(said, "temperatures")
