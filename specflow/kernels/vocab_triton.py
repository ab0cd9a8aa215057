"""The likeliest token of a long row of logits by many programs: parts first, then the last to end.

One launch for both: each program of a row leaves the best of its part and counts itself; whoever
counts last reads what all have left, and goes on with the row. The count is then zero again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # numbers of a row that a program looks at at once
PROGRAMS = 264  # two for each multiprocessor of an H100; a fixed number, so that plans do not vary
MOST_PARTS = 32


def cut(rows: int, vocabulary: int) -> tuple[int, int]:
    """Into how many parts a row is cut so that all rows fill a device, and the tile of a part."""
    most = min(MOST_PARTS, PROGRAMS // max(rows, 1), triton.cdiv(vocabulary, TILE))
    return 1 << (max(most, 1).bit_length() - 1), TILE


def lanes_of(count: int) -> int:
    """Lanes that hold so many numbers."""
    return 1 << max(count - 1, 1).bit_length()


def dense(tensor: Tensor) -> Tensor:
    """The last dimension side by side in memory, as kernels read it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Arrivals:
    """Counts of parts that are done, by rows: 0 between two launches, which follow one another.

    Made once a shape and never dropped, since a captured step keeps their address.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[torch.device, int], Tensor] = {}

    def of(self, device: torch.device, rows: int) -> Tensor:
        """A count a row."""
        key = (device, rows)
        if key not in self._held:
            self._held[key] = torch.zeros(rows, dtype=torch.int32, device=device)
        return self._held[key]


ARRIVALS = Arrivals()


@triton.jit
def size_of_part(V, TILE: tl.constexpr, PARTS: tl.constexpr):
    """Numbers of a row of V that each part has: whole tiles, so that the last may have fewer."""
    return tl.cdiv(tl.cdiv(V, PARTS), TILE) * TILE


@triton.jit
def find_best(logits, best, words, at, part, V, TILE: tl.constexpr, PARTS: tl.constexpr):
    """The best of one part of a row of V logits, and its id; of equals the smallest id."""
    find_best_sum(logits, logits, best, words, at, part, V, TILE, PARTS, False)


@triton.jit
def find_best_sum(
    logits, bias, best, words, at, part, V,
    TILE: tl.constexpr, PARTS: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """The best of one part of a row of V logits, each with its bias where BIASED.

    logits  where the row begins
    bias    where that of the row begins; a sum is rounded to what logits are
    best    [.., PARTS] float32, words [.., PARTS] int64: what the parts leave, at row `at`
    """
    size = size_of_part(V, TILE, PARTS)
    begin = part * size
    lanes = tl.arange(0, TILE)
    highest = tl.full((TILE,), float("-inf"), tl.float32)
    where = tl.full((TILE,), 0, tl.int64) + V
    for start in range(begin, begin + size, TILE):
        ids = start + lanes
        seen = tl.load(logits + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
        if BIASED:
            added = tl.load(bias + ids, mask=ids < V, other=0.0).to(tl.float32)
            seen = (seen + added).to(logits.dtype.element_ty).to(tl.float32)
        higher = (above(seen, highest) | (where == V)) & (ids < V)
        highest = tl.where(higher, seen, highest)
        where = tl.where(higher, ids.to(tl.int64), where)
    word, top = top_of(highest, where, V)
    tl.store(best + at * PARTS + part, top)
    tl.store(words + at * PARTS + part, word)


@triton.jit
def above(one, other):
    """Whether a number is the higher, as torch orders them: no number is above all."""
    return (one > other) | ((one != one) & (other == other))  # noqa: PLR0124 - NaN alone differs


@triton.jit
def top_of(numbers, places, none):
    """The smallest place of the highest number, and the number; places of no number are `none`."""
    odd = (numbers != numbers) & (places < none)  # noqa: PLR0124 - NaN alone differs
    plain = tl.where(odd | (places >= none), float("-inf"), numbers)
    top = tl.max(plain, axis=0)
    place = tl.min(tl.where((plain == top) & (places < none), places, none), axis=0)
    strange = tl.min(tl.where(odd, places, none), axis=0)
    place = tl.where(strange < none, strange, place)
    return place, tl.where(strange < none, float("nan"), top)


@triton.jit
def arrived_last(count, parts):
    """Whether all other parts have left what they found; the count begins anew.

    parts  how many there are, or how many of them have anything to do
    """
    tl.debug_barrier()  # what this program's threads have stored is stored
    before = tl.atomic_add(count, 1, sem="acq_rel", scope="gpu")
    if before == parts - 1:
        tl.store(count, 0)
    tl.debug_barrier()
    return before == parts - 1


@triton.jit
def best_of_parts(best, words, at, V, PARTS: tl.constexpr):
    """The id of the best of all parts of row `at`; of equals the smallest."""
    parts = tl.arange(0, PARTS)
    tops = tl.load(best + at * PARTS + parts, volatile=True)
    found = tl.load(words + at * PARTS + parts, volatile=True)
    word, _ = top_of(tops, found, V)
    return word.to(tl.int64)


@triton.jit
def best_of_rows(
    best, words, at, lane, V, N: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr
):
    """The same for N rows from `at` on, as lanes."""
    out = tl.full((BLOCK,), -1, tl.int64)
    for i in range(N):
        out = tl.where(lane == i, best_of_parts(best, words, at + i, V, PARTS), out)
    return out


@triton.jit
def best_kernel(logits, best, words, counts, found, V, TILE: tl.constexpr, PARTS: tl.constexpr):
    """One part of a row of logits."""
    row = tl.program_id(0).to(tl.int64)
    find_best(logits + row * V, best, words, row, tl.program_id(1), V, TILE, PARTS)
    if arrived_last(counts + row, PARTS):
        tl.store(found + row, best_of_parts(best, words, row, V, PARTS))


def best_token(logits: Tensor) -> Tensor:
    """The likeliest token [...] of logits [..., V]; of equals the smallest id."""
    vocabulary = logits.shape[-1]
    logits = logits.contiguous()
    found = torch.empty(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    rows = found.numel()
    parts, tile = cut(rows, vocabulary)
    best = torch.empty(rows, parts, device=logits.device)
    words = torch.empty_like(best, dtype=torch.int64)
    counts = ARRIVALS.of(logits.device, rows)
    best_kernel[rows, parts](logits, best, words, counts, found, vocabulary, TILE=tile, PARTS=parts)
    return found
