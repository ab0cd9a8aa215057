"""The row ops on a request's registers: what a generated kernel calls in turn.

Each has the name of its torch reference in `accept.py` or `take.py`, and takes a request's row as a
vector of BLOCK lanes (`lane` numbers them) instead of a tensor of B rows. Lanes past K or W hold
the `other` of the load: -1.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Triton reads these annotations as strings; constexpr ones are compile-time numbers.


@triton.jit
def accept_chain(guesses, verified, lane, K: tl.constexpr):
    """Accept length: the first lane that differs, plus one."""
    differs = (guesses != verified) | (lane >= K)
    return tl.min(tl.where(differs, lane, K), axis=0).to(tl.int64) + 1


@triton.jit
def accept_tree(guesses, parents, verified, lane, K: tl.constexpr):
    """The accepted path and its length, walked from the root; lane i of `guesses` is node i + 1."""
    path = tl.where(lane == 0, 0, -1).to(tl.int64)
    node = tl.zeros((), tl.int64)
    length = tl.full((), 1, tl.int64)
    alive = tl.full((), 1, tl.int64)
    for depth in range(1, K + 1):
        word = tl.sum(tl.where(lane == node, verified, 0), axis=0)
        fits = (parents == node) & (guesses == word) & (guesses >= 0) & (lane < K)
        child = tl.min(tl.where(fits, lane, K), axis=0).to(tl.int64)
        alive = tl.where(child < K, alive, 0)
        path = tl.where((lane == depth) & (alive == 1), child + 1, path)
        node = tl.where(alive == 1, child + 1, node)
        length += alive
    return path, length


@triton.jit
def cap(accept_len, lengths):
    """No more tokens than were verified."""
    return tl.minimum(accept_len, lengths)


@triton.jit
def take_path(verified, path, lane):
    """Words along the path; past its end the root's."""
    source = tl.where(path < 0, 0, path)
    return tl.sum(tl.where(source[:, None] == lane[None, :], verified[None, :], 0), axis=1)


@triton.jit
def mask_rejected(gained, accept_len, lane):
    """The tokens gained, then -1."""
    return tl.where(lane < accept_len, gained, -1)


@triton.jit
def take_last(gained, accept_len, lane):
    """The last token gained."""
    return tl.sum(tl.where(lane == accept_len - 1, gained, 0), axis=0)


@triton.jit
def take_previous(bonus, gained, accept_len, lane):
    """The token before the last one gained; the old bonus token where one was gained."""
    earlier = tl.sum(tl.where(lane == accept_len - 2, gained, 0), axis=0)
    return tl.where(accept_len == 1, bonus, earlier)


@triton.jit
def widen(tokens, lane, N: tl.constexpr):
    """The first N lanes, then -1."""
    return tl.where(lane < N, tokens, -1)


@triton.jit
def first(tokens, lane):
    """Lane 0."""
    return tl.sum(tl.where(lane == 0, tokens, 0), axis=0)


@triton.jit
def hold(value):
    """A value as it is now, whatever is stored over it later."""
    return value


@triton.jit
def few(tokens, N: tl.constexpr, lane):
    """The first N - 1 lanes."""
    return tl.where(lane < N - 1, tokens, -1)


@triton.jit
def window(bonus, guesses, lane):
    """The bonus token, then the guesses."""
    before = lane[:, None] - 1 == lane[None, :]
    return tl.where(lane == 0, bonus, tl.sum(tl.where(before, guesses[None, :], 0), axis=1))


@triton.jit
def known_window(bonus, guesses, lane):
    """The bonus token, then the guesses, or token 0 where there is none."""
    return window(bonus, tl.where(guesses < 0, 0, guesses), lane)


@triton.jit
def pair(one, other, lane):
    """Two numbers as lanes 0 and 1."""
    return tl.where(lane == 0, one, tl.where(lane == 1, other, -1))


@triton.jit
def chain_parents(guesses, lane):
    """In a chain every node hangs from the one before it."""
    return lane.to(tl.int64) + 0 * guesses


@triton.jit
def look_up(tokens, table):
    """The target's ids of a draft's, by a table where they differ; lanes without a token stay."""
    if table is None:
        return tokens
    else:  # noqa: RET505 - chosen while compiling
        return tl.load(table + tokens, mask=tokens >= 0, other=-1)


@triton.jit
def copy_row(to, source, row, WIDE, TILE: tl.constexpr = 1024):
    """A row of a request, as it is."""
    lanes = tl.arange(0, TILE)
    for start in range(0, WIDE, TILE):
        at = row * WIDE + start + lanes
        inside = start + lanes < WIDE
        tl.store(to + at, tl.load(source + at, mask=inside), mask=inside)
