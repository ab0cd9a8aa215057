"""The adaptive controller: the vectors of serial.md TV-16, and its slots."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from specflow.models.adaptive import Adaptive, Slot


def decisions(slot: Slot, seen: Iterable[float]) -> list[tuple[int, int]]:
    """(batch, steps) at every decision."""
    out = []
    for at, right in enumerate(seen, start=1):
        slot.observe(right)
        if at > 10 and (at - 10) % 5 == 0:
            out.append((at, slot.steps))
    return out


def first() -> Slot:
    return Slot.start((1, 3, 5, 7), 3, down=-0.25)


def test_rising_acceptance_raises_the_steps() -> None:
    slot = first()
    assert decisions(slot, [3.0] * 15) == [(15, 5)]
    assert slot.average == pytest.approx(2.9648, abs=1e-4)
    assert decisions(first(), [3.0] * 20 + [5.0] * 20) == [
        (15, 5),
        (20, 5),
        (25, 5),
        (30, 7),
        (35, 7),
        (40, 7),
    ]


def test_nothing_accepted_goes_to_the_smallest() -> None:
    assert decisions(first(), [0.0] * 15) == [(15, 1)]


def test_between_the_bounds_it_stays() -> None:
    slot = first()
    assert decisions(slot, [1.6] * 15) == [(15, 3)]
    assert slot.average == pytest.approx(1.6141, abs=1e-4)


def test_plain_decoding_is_probed_again() -> None:
    slot = Slot.start((0, 1), 1)
    assert decisions(slot, [0.0] * 30) == [(15, 0), (20, 1), (25, 0), (30, 1)]


def test_a_slot_without_a_candidate_that_drafts_stays_plain() -> None:
    assert decisions(Slot.start((0,), 3), [0.0] * 20) == [(15, 0), (20, 0)]


def test_a_batch_falls_into_the_largest_slot_below_it() -> None:
    made = Adaptive(((2, (1, 3)), (8, (0, 1))), 3)
    assert [made.steps(rows) for rows in (1, 2, 7, 8, 200)] == [3, 3, 3, 1, 1]
    for _ in range(15):
        made.steps(2)
        made.observe([[5], [6]])
    assert made.slots[2].steps == 1
    assert made.slots[8].batches == 0
