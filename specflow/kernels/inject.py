"""Injection: the accepted positions of a window become keys and values of a draft layer.

B  rows      W  positions of a window      H  key-value heads      E  width
S  slots of the pool      L  positions of a slot
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Landing:
    """Where a window goes: row b into slot b.

    starts      [B]  its first position
    accept_len  [B]  how many of its positions are kept
    turns            slots are rings: position p goes to p mod L; else what is past L goes nowhere
    """

    starts: Tensor
    accept_len: Tensor
    turns: bool


@dataclass(frozen=True)
class Turning:
    """What becomes of a key before it is kept: normed, then turned by its position.

    weight  [E]        of the norm
    eps                of the norm
    cos     [B, W, E]  and sin, halves repeated
    """

    weight: Tensor
    eps: float
    cos: Tensor
    sin: Tensor


def inject_rows(
    keys: Tensor, values: Tensor, turning: Turning, kept: tuple[Tensor, Tensor], landing: Landing
) -> None:
    """Write the first accept_len positions of a window into a layer's slots, in place.

    keys    [B, W, H, E]  projected, not yet normed; values likewise
    kept    [S, H, L, E]  the layer's keys, and its values
    """
    scaled = keys.float()
    scaled = scaled * torch.rsqrt(scaled.square().mean(-1, keepdim=True) + turning.eps)
    normed = turning.weight * scaled.to(keys.dtype)
    low, high = normed.chunk(2, dim=-1)
    cos, sin = turning.cos[:, :, None], turning.sin[:, :, None]
    turned = normed * cos + torch.cat((-high, low), dim=-1) * sin
    length = kept[0].shape[2]
    offsets = torch.arange(keys.shape[1], device=keys.device)
    positions = landing.starts[:, None] + offsets
    slots = positions % length if landing.turns else positions
    written = (offsets < landing.accept_len[:, None]) & (slots < length)
    for row in range(keys.shape[0]):
        chosen = slots[row][written[row]]
        for into, given in zip(kept, (turned, values), strict=True):
            into[row, :, chosen] = given[row][written[row]].transpose(0, 1).to(into.dtype)
