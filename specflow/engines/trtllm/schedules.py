"""Steps by batch size as a `draft_len_schedule`, and back; its keys mean two things by release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from specflow.engines.base import ranges

WIDEST = 2048  # the largest batch that TensorRT-LLM serves where nothing is said

Slots = Iterable[tuple[int, tuple[int, ...]]]


def to_schedule(slots: Slots, *, upwards: bool) -> dict[int, int]:
    """The most steps of each slot, by the smallest batch of its range or by the largest."""
    found = ranges(slots, WIDEST)
    return {start if upwards else end: most for start, end, most in found}


def to_slots(schedule: Mapping[int, int], *, upwards: bool) -> dict[int, list[int]]:
    """A slot for each range of batch sizes, one number of steps in each."""
    found = sorted(schedule.items())
    if upwards:
        return {size: [steps] for size, steps in found}
    starts = [1, *(size + 1 for size, _ in found)]
    slots = {start: [steps] for start, (_, steps) in zip(starts, found, strict=False)}
    if starts[-1] <= WIDEST:
        slots[starts[-1]] = [0]  # past its last key nothing is drafted
    return slots


def fault(schedule: Mapping[int, int], longest: int | None, *, upwards: bool) -> str:
    """Why a schedule is refused; empty where it is not."""
    sizes, guesses = tuple(schedule), tuple(schedule.values())
    first = min(sizes, default=0)
    faults = {
        "draft_len_schedule begins at batch size 1": first < 1,
        "draft_len_schedule names batch size 1": upwards and first > 1,
        "draft_len_schedule guesses 0 tokens or more": min(guesses, default=0) < 0,
    }
    if longest is not None and first > 0:
        said = f"at batch size {first}, max_draft_len is {longest}"
        faults[f"draft_len_schedule guesses {schedule[first]} {said}"] = schedule[first] != longest
        most = f"draft_len_schedule guesses more than max_draft_len {longest}"
        faults[most] = max(guesses) > longest
    return next((text for text, holds in faults.items() if holds), "")
