"""Which sum of a constant, a part by rows and a part by tokens the steps that were timed are like.

Fitted are the rises from one sample of a part to the next, none below 0: more rows or more tokens
never make a step faster, so what falls is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from specflow.planning import Additive

Array = NDArray[np.float64]
Timing = tuple[int, int, float]  # rows, tokens, seconds

LEAST = 1e-9  # seconds; a table's constant is above 0
TINY = 1e-12


def fit_additive(timings: Sequence[Timing], tokens: Sequence[int]) -> Additive:
    """The additive table whose relative errors have the least squares.

    tokens  where the part by tokens has its samples, ascending; the part by rows has one at each
            number of rows that was timed
    """
    rows = tuple(sorted({n for n, _, _ in timings}))
    ramps = [[1.0, *_ramps(rows, n), *_ramps(tokens, m)] for n, m, _ in timings]
    seconds = np.array([each for _, _, each in timings])
    unit = seconds.mean()
    shares = np.array(ramps) * (unit / seconds)[:, None]  # timings count by their relative error
    found = (nonnegative(shares, np.ones(len(timings))) * unit).tolist()
    bias, by_rows, by_tokens = found[0], found[1 : len(rows)], found[len(rows) :]
    return Additive(
        max(bias, LEAST),
        rows,
        tuple(accumulate(by_rows, initial=0.0)),
        tuple(tokens),
        tuple(accumulate(by_tokens, initial=0.0)),
    )


def errors(table: Additive, timings: Sequence[Timing]) -> list[float]:
    """By how much of its seconds the table misses each timing."""
    return [abs(table.seconds(n, m) - seconds) / seconds for n, m, seconds in timings]


def _ramps(places: Sequence[int], at: int) -> list[float]:
    """How much of the rise from each sample to the next has happened at a place."""
    return [min(max((at - a) / (b - a), 0.0), 1.0) for a, b in pairwise(places)]


def nonnegative(matrix: Array, wanted: Array) -> Array:
    """The x of least |matrix x - wanted| with nothing below 0 (Lawson and Hanson 1974)."""
    found = np.zeros(matrix.shape[1])
    free = np.zeros(matrix.shape[1], dtype=bool)
    for _ in range(10 * matrix.shape[1]):  # each turn frees one; few are bound again
        gain = np.where(free, -np.inf, matrix.T @ (wanted - matrix @ found))
        if gain.max() <= TINY:
            break
        free[gain.argmax()] = True
        found = _within(matrix, wanted, found, free)
    return found


def _within(matrix: Array, wanted: Array, found: Array, free: NDArray[np.bool_]) -> Array:
    """The best x that is free of 0 where it is allowed to be; what falls to 0 is bound there."""
    while True:
        best = np.zeros_like(found)
        best[free] = np.linalg.lstsq(matrix[:, free], wanted, rcond=None)[0]
        falls = np.flatnonzero(free & (best <= 0))
        if not len(falls):
            return best
        parts = found[falls] / np.maximum(found[falls] - best[falls], TINY)
        found = found + parts.min() * (best - found)
        found[falls[parts.argmin()]] = 0
        free &= found > 0
        found[~free] = 0
