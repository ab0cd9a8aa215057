"""Counter-based coins: what a request draws does not depend on the batch it runs in.

Philox4x32-10 (Salmon et al., 2011), the generator behind CUDA's and Triton's own random functions:
the key is the request's seed, the counter is (position, column, purpose, 0), and the first of the
four words is the coin.
"""

from __future__ import annotations

import torch
from torch import Tensor

VERIFY, DRAFT = 0, 1  # purposes: draws of different purposes never meet

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """The first word of Philox4x32-10.

    key      two int64 tensors holding 32-bit words
    counter  four of them, broadcastable
    returns  int64, in [0, 2**32)
    """
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        # A product of two words wraps in int64 as it would unsigned; masking the shift makes it
        # logical.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & _WORD) ^ c1 ^ k0,
            second & _WORD,
            ((first >> 32) & _WORD) ^ c3 ^ k1,
            first & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0


def draw_coins(seeds: Tensor, positions: Tensor, count: int, purpose: int) -> Tensor:
    """Uniform coins in [0, 1).

    seeds      [B]         int64, one a request
    positions  [B]         int64, committed tokens when the coins are drawn
    returns    [B, count]  float32, multiples of 2**-24, so never 1
    """
    columns = torch.arange(count, device=seeds.device)[None]
    zero = torch.zeros_like(columns)
    key = ((seeds & _WORD)[:, None], ((seeds >> 32) & _WORD)[:, None])
    words = philox(key, ((positions & _WORD)[:, None], columns, zero + purpose, zero))
    return (words >> 8).float() * 2.0**-24


def verify_coins(seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """The coins [B, count] that judge guesses and draw the last token of a step."""
    return draw_coins(seeds, positions, count, VERIFY)


def draft_coins(seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """The coins [B, count] that guesses are drawn with: independent of those that judge them."""
    return draw_coins(seeds, positions, count, DRAFT)
