"""Whether words of a draft are the target's: the map of a reduced vocabulary, and two tokenizers.

`d2t` holds offsets: draft id i means target id i + d2t[i]. `t2d` holds 1 at each target id that
some draft id means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SHOWN = 3  # ids that differ which are told with both their tokens


@dataclass(frozen=True)
class Differing:
    """An id that means one token to the target and another, or none, to the draft."""

    id: int
    target: str | None
    draft: str | None

    def __str__(self) -> str:
        ours, theirs = (
            "no token" if token is None else f"`{token}`" for token in (self.target, self.draft)
        )
        return f"id {self.id} is {ours} to the target and {theirs} to the draft"


def differing_ids(
    target: Mapping[str, int], draft: Mapping[str, int]
) -> tuple[int, tuple[Differing, ...]]:
    """How many ids mean different tokens, and the first few of them."""
    ours = {at: token for token, at in target.items()}
    theirs = {at: token for token, at in draft.items()}
    ids = sorted(i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i))
    shown = tuple(Differing(i, ours.get(i), theirs.get(i)) for i in ids[:SHOWN])
    return len(ids), shown


def offset_fault(d2t: Sequence[int], vocab_size: int) -> str:
    """What is wrong with the offsets of a map into so many tokens; empty where nothing is."""
    seen: dict[int, int] = {}
    for at, offset in enumerate(d2t):
        means = at + offset
        if not 0 <= means < vocab_size:
            return (
                f"`d2t` maps draft id {at} to {means}, and the target's ids end at {vocab_size - 1}"
            )
        if seen.setdefault(means, at) != at:
            return f"`d2t` maps draft ids {seen[means]} and {at} both to {means}"
    return ""


def cover_fault(d2t: Sequence[int], t2d: Sequence[int]) -> str:
    """Where `t2d` says otherwise than a `d2t` that is whole; empty where they agree."""
    covered = bytearray(len(t2d))
    for at, offset in enumerate(d2t):
        covered[at + offset] = 1
    for token, (mapped, marked) in enumerate(zip(covered, t2d, strict=True)):
        if mapped != bool(marked):
            lacks = "`t2d` does not mark it" if mapped else "no offset of `d2t` leads there"
            marks = "a draft id means" if mapped else "`t2d` marks"
            return f"{marks} target id {token}, and {lacks}"
    return ""


def looks_absolute(d2t: Sequence[int], vocab_size: int) -> bool:
    """Whether a map holds ids where offsets belong: they grow, and some lead past the last id."""
    return (
        len(d2t) > 1
        and d2t[0] >= 0
        and d2t[-1] < vocab_size
        and all(a < b for a, b in pairwise(d2t))
        and any(at + value >= vocab_size for at, value in enumerate(d2t))
    )
