"""What a request takes from a verified window: its tokens, its bonus token, the rest masked."""

from __future__ import annotations

import torch
from torch import Tensor


def mask_rejected(gained: Tensor, accept_len: Tensor) -> Tensor:
    """The tokens gained, then -1.

    gained      [B, W]
    accept_len  [B]
    returns     [B, W]
    """
    offsets = torch.arange(gained.shape[1], device=gained.device)
    return torch.where(offsets < accept_len[:, None], gained, -1)


def take_last(gained: Tensor, accept_len: Tensor) -> Tensor:
    """The last token gained: the new bonus token.

    gained      [B, W]
    accept_len  [B]     in [1, W]
    returns     [B]
    """
    return gained.gather(1, accept_len[:, None] - 1)[:, 0]


def take_previous(bonus: Tensor, gained: Tensor, accept_len: Tensor) -> Tensor:
    """The token before the new bonus token: the old bonus token where one token was gained.

    bonus       [B]
    gained      [B, W]
    accept_len  [B]     in [1, W]
    returns     [B]
    """
    run = torch.cat([bonus[:, None], gained], dim=1)
    return run.gather(1, accept_len[:, None] - 1)[:, 0]


def take_path(verified: Tensor, path: Tensor) -> Tensor:
    """What the target says along a path of nodes.

    verified  [B, W]
    path      [B, W]  nodes, then -1
    returns   [B, W]  tokens; past the path's end the root's word, which `mask_rejected` hides
    """
    return verified.gather(1, path.clamp(min=0))


def widen(tokens: Tensor, width: int) -> Tensor:
    """Tokens of a narrow window in a row of `width`, then -1.

    tokens   [B, N]  N <= width
    returns  [B, width]
    """
    return torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]), value=-1)


def slide(rows: Tensor, start: Tensor, count: int) -> Tensor:
    """`count` rows from `start` on.

    rows     [B, M] or [B, M, H]
    start    [B]
    returns  [B, count] or [B, count, H]
    """
    index = start[:, None] + torch.arange(count, device=rows.device)
    if rows.ndim == 2:
        return rows.gather(1, index)
    return rows.gather(1, index[:, :, None].expand(-1, -1, rows.shape[2]))


def rotate(ids: Tensor, rows: Tensor, word: Tensor) -> Tensor:
    """Tokens one place further on: shifted left, `word` after the last that is known (§6.4).

    ids      [B, M]
    rows     [B]     how many are known
    word     [B]
    returns  [B, M]
    """
    turned = ids.roll(-1, dims=1)
    return turned.scatter(1, rows[:, None] - 1, word[:, None])
