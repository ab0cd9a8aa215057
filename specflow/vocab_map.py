"""Whether the map from a draft's reduced vocabulary to the target's is one.

`d2t` holds offsets: draft id i means target id i + d2t[i]. `t2d` holds 1 at each target id that
some draft id means.
"""

from __future__ import annotations

from collections.abc import Sequence


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
