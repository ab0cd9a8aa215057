"""A block before it is guessed, and how much of it is verified, on a device: one launch each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels import vocab_triton
from specflow.kernels.sample import COLDEST
from specflow.kernels.tree_triton import NONE, key_of
from specflow.kernels.vocab_triton import lanes_of
from specflow.planning import EPSILON

# Triton reads these annotations as strings; constexpr ones are compile-time numbers.
SEEN = 256  # chances of the batch that a program compares its own with at once


@triton.jit
def mask_kernel(bonus, block, mask, Q: tl.constexpr, BLOCK: tl.constexpr):
    """The block of one request."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    word = tl.where(lane == 0, tl.load(bonus + row), mask)
    tl.store(block + row * Q + lane, word, mask=lane < Q)


def mask_block(bonus: Tensor, mask: int, count: int) -> Tensor:
    """The bonus token and masks for what is to come [B, count]."""
    rows = bonus.shape[0]
    block = bonus.new_empty(rows, count)
    mask_kernel[(rows,)](bonus, block, mask, Q=count, BLOCK=lanes_of(count))
    return block


@triton.jit
def survivals_kernel(trust, heats, survival, K: tl.constexpr):
    """The chances of one request, one after the other: products are rounded as in torch."""
    row = tl.program_id(0).to(tl.int64)
    chance = tl.full((), 1.0, tl.float32)
    for i in tl.static_range(K):
        logit = tl.load(trust + row * K + i).to(tl.float32)
        chance = chance * tl.sigmoid(tl.div_rn(logit, heats[i] + tl.zeros((), tl.float32)))
        tl.store(survival + row * K + i, chance)


def survivals(trust: Tensor, temperatures: tuple[float, ...]) -> Tensor:
    """The chance [B, K] that a guess and all before it hold."""
    rows, count = trust.shape
    if len(temperatures) != count:
        raise ValueError(f"{count} guesses have {len(temperatures)} temperatures")
    survival = torch.empty(rows, count, device=trust.device)
    heats = tuple(max(float(heat), COLDEST) for heat in temperatures)
    survivals_kernel[(rows,)](trust.contiguous(), heats, survival, K=count)
    return survival


@triton.jit(do_not_specialize=["most"])  # a budget changes from step to step
def allocate_kernel(
    survival, lengths, most, rows, LEAST: tl.constexpr,
    K: tl.constexpr, BLOCK: tl.constexpr, SEEN: tl.constexpr,
):  # fmt: skip
    """How many of one request's guesses are among the `most` best of the batch."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    own = tl.load(survival + row * K + lane, mask=lane < K, other=0.0)
    mine = key_of(own, lane * rows + row.to(tl.int32))  # the earlier position, then the earlier row
    above = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, rows * K, SEEN):
        spot = start + tl.arange(0, SEEN)
        other = tl.load(survival + spot, mask=spot < rows * K, other=0.0)
        key = tl.where(spot < rows * K, key_of(other, spot % K * rows + spot // K), NONE)
        above += tl.sum((key[None, :] > mine[:, None]).to(tl.int32), axis=1)
    chosen = (above < most) & (own >= LEAST) & (lane < K)
    tl.store(lengths + row, tl.sum(chosen.to(tl.int64), axis=0) + 1)


def allocate(survival: Tensor, budget: int) -> Tensor:
    """How many positions of each request are verified [B]: its bonus token, its best guesses."""
    rows, count = survival.shape
    lengths = torch.empty(rows, dtype=torch.int64, device=survival.device)
    allocate_kernel[(rows,)](
        survival.contiguous(), lengths, budget - rows, rows, LEAST=EPSILON,
        K=count, BLOCK=lanes_of(count), SEEN=SEEN,
    )  # fmt: skip
    return lengths


@triton.jit(do_not_specialize=["size"])  # as above
def pack_kernel(
    lengths, packed, rows, size, W: tl.constexpr, BLOCK: tl.constexpr, SEEN: tl.constexpr
):
    """The positions of one request; the first also fills what no position takes."""
    row = tl.program_id(0).to(tl.int64)
    before = tl.zeros((), tl.int64)
    total = tl.zeros((), tl.int64)
    for start in range(0, rows, SEEN):
        spot = start + tl.arange(0, SEEN)
        length = tl.minimum(tl.load(lengths + spot, mask=spot < rows, other=0), W)
        before += tl.sum(tl.where(spot < row, length, 0), axis=0)
        total += tl.sum(length, axis=0)
    lane = tl.arange(0, BLOCK)
    known = (lane < tl.load(lengths + row)) & (lane < W) & (before + lane < size)
    tl.store(packed + before + lane, row * W + lane, mask=known)
    if row == 0:
        for start in range(0, size, SEEN):
            spot = start + tl.arange(0, SEEN)
            nowhere = tl.zeros((SEEN,), tl.int64) + rows * W
            tl.store(packed + spot, nowhere, mask=(spot >= total) & (spot < size))


def pack(lengths: Tensor, budget: int, width: int) -> Tensor:
    """The positions that are verified, side by side [budget]."""
    rows = lengths.shape[0]
    size = min(budget, rows * width)
    packed = torch.empty(size, dtype=torch.int64, device=lengths.device)
    pack_kernel[(rows,)](lengths, packed, rows, size, W=width, BLOCK=lanes_of(width), SEEN=SEEN)
    return packed


@triton.jit(do_not_specialize=["size"])  # as above
def unpack_kernel(rows, packed, grid, size, C, TILE: tl.constexpr, SEEN: tl.constexpr):
    """One tile of one position, which looks for itself among those that are packed."""
    at = tl.program_id(0).to(tl.int64)
    before = tl.zeros((), tl.int64)
    found = tl.zeros((), tl.int64)
    for start in range(0, size, SEEN):
        spot = start + tl.arange(0, SEEN)
        held = tl.load(packed + spot, mask=spot < size, other=-1)
        before += tl.sum(((held < at) & (spot < size)).to(tl.int64), axis=0)
        found += tl.sum((held == at).to(tl.int64), axis=0)
    wide = tl.program_id(1) * TILE + tl.arange(0, TILE)
    reach = tl.where(found > 0, C, 0)
    said = tl.load(rows + before * C + wide, mask=wide < reach, other=0.0)
    tl.store(grid + at * C + wide, said, mask=wide < C)


def unpack(rows: Tensor, packed: Tensor, count: int, width: int) -> Tensor:
    """What was said of packed positions where they belong [count, width, C], and 0 elsewhere."""
    rows = rows.contiguous()
    wide = rows.shape[1]
    grid = rows.new_empty(count, width, wide)
    tile = min(vocab_triton.TILE, lanes_of(wide))
    unpack_kernel[count * width, triton.cdiv(wide, tile)](
        rows, packed, grid, packed.shape[0], wide, TILE=tile, SEEN=SEEN
    )
    return grid


@triton.jit
def blank_kernel(logits, lengths, out, V, W: tl.constexpr, TILE: tl.constexpr):
    """One tile of one position."""
    at = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    reach = tl.where(at % W < tl.load(lengths + at // W), V, 0)
    seen = tl.load(logits + at * V + ids, mask=ids < reach, other=0.0)
    tl.store(out + at * V + ids, seen, mask=ids < V)


def blank(logits: Tensor, lengths: Tensor) -> Tensor:
    """Logits [B, W, V] of the positions that count as verified, 0 for the others."""
    rows, width, vocabulary = logits.shape
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    tile = vocab_triton.TILE
    blank_kernel[rows * width, triton.cdiv(vocabulary, tile)](
        logits, lengths, out, vocabulary, W=width, TILE=tile
    )
    return out
