"""A block before it is guessed, and how much of it is verified (parallel.md 2d, 2e).

B  requests      Q  rows of a block      K  guesses      W  K + 1      G  positions of the batch
"""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.kernels.sample import COLDEST
from specflow.planning import EPSILON


def mask_block(bonus: Tensor, mask: int, count: int) -> Tensor:
    """The bonus token and masks for what is to come.

    bonus    [B]
    returns  [B, count]
    """
    block = bonus.new_full((bonus.shape[0], count), mask)
    block[:, 0] = bonus
    return block


def survivals(trust: Tensor, temperatures: tuple[float, ...]) -> Tensor:
    """The chance that a guess and all before it hold.

    trust         [B, K]  logits of the chance that each holds where those before it do
    temperatures  [K]     that these logits are divided by
    returns       [B, K]  float32, falling along a row
    """
    # One by one: a tensor of host numbers would be a copy to the device, which no graph can hold.
    columns = zip(trust.float().unbind(1), temperatures, strict=True)
    scaled = [logit / max(heat, COLDEST) for logit, heat in columns]
    return torch.sigmoid(torch.stack(scaled, dim=1)).cumprod(dim=1)


def allocate(survival: Tensor, budget: int) -> Tensor:
    """How many positions of each request are verified: its bonus token, and its best guesses.

    survival  [B, K]  falling along a row, so the best guesses of a request come first
    budget    positions that the batch may verify, from B on
    returns   [B]     in [1, K + 1]; of equals the earlier position is chosen, then the earlier row

    Guesses of no chance are left out, even where the budget has room for them.
    """
    rows, count = survival.shape
    flat = survival.t().reshape(-1)
    chances, order = flat.sort(descending=True, stable=True)
    within = torch.arange(rows * count, device=survival.device) < budget - rows
    chosen = torch.zeros_like(order).scatter(0, order, (within & (chances >= EPSILON)).long())
    return chosen.view(count, rows).sum(0) + 1


def pack(lengths: Tensor, budget: int, width: int) -> Tensor:
    """The positions that are verified, side by side.

    lengths  [B]       positions of each request, in [1, width]
    budget   G: their sum, or more
    returns  [budget]  indices into B * width positions, ascending; then B * width, which is none
    """
    known = torch.arange(width, device=lengths.device) < lengths[:, None]
    nowhere = known.numel()
    at = torch.arange(nowhere, device=lengths.device)
    return torch.where(known.view(-1), at, nowhere).sort().values[:budget]


def unpack(rows: Tensor, packed: Tensor, count: int, width: int) -> Tensor:
    """What was said of packed positions where they belong, and 0 elsewhere.

    rows     [G, C]
    packed   [G]  indices into count * width positions, as of `pack`
    returns  [count, width, C]
    """
    grid = rows.new_zeros(count * width + 1, rows.shape[1])
    return grid.index_copy_(0, packed, rows)[:-1].view(count, width, -1)


def blank(logits: Tensor, lengths: Tensor) -> Tensor:
    """Logits of the positions that count as verified, 0 for the others: what a packed step has.

    Block verification looks at later positions first, so they must say the same in both.

    logits   [B, W, V]
    lengths  [B]        in [1, W]
    returns  [B, W, V]
    """
    known = torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
    return torch.where(known[:, :, None], logits, 0)


def cap(accept_len: Tensor, lengths: Tensor) -> Tensor:
    """No more tokens than were verified.

    accept_len  [B]  in [1, W]
    lengths     [B]  in [1, W]
    returns     [B]
    """
    return torch.minimum(accept_len, lengths)
