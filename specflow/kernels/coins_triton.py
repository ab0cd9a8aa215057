"""A request's coins on a device: the words of `coins.py`, bit for bit, one program a request.

Triton's own Philox is the same generator with the same ten rounds; the key and the counter are laid
out as they are there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.coins import DRAFT, VERIFY
from specflow.kernels.vocab_triton import lanes_of

# Triton reads these annotations as strings; constexpr ones are compile-time numbers.


@triton.jit
def coins_kernel(
    seeds,  # [B]
    positions,  # [B]
    coins,  # [B, C], written
    PURPOSE: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The coins of one request, a column a lane."""
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    seed = tl.load(seeds + row)
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    position = (tl.load(positions + row) & 0xFFFFFFFF).to(tl.uint32)
    none = tl.zeros((BLOCK,), tl.uint32)
    word, _, _, _ = tl.philox_impl(
        position + none, lane.to(tl.uint32), none + PURPOSE, none, low + none, high + none
    )
    coin = (word >> 8).to(tl.float32) * (1.0 / 16777216.0)  # 24 bits: exact, and never 1
    tl.store(coins + row * C + lane, coin, mask=lane < C)


def verify_coins(seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """The coins [B, count] that judge guesses and draw the last token of a step."""
    return _coins(seeds, positions, count, VERIFY)


def draft_coins(seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """The coins [B, count] that guesses are drawn with: independent of those that judge them."""
    return _coins(seeds, positions, count, DRAFT)


def _coins(seeds: Tensor, positions: Tensor, count: int, purpose: int) -> Tensor:
    rows = seeds.shape[0]
    coins = torch.empty(rows, count, device=seeds.device)
    coins_kernel[(rows,)](seeds, positions, coins, PURPOSE=purpose, C=count, BLOCK=lanes_of(count))
    return coins
