"""Attention of a step's few new tokens to a long past: the specification, in plain torch.

    B  rows      N  new tokens a row      S  slots a row may read (extent)      R  new positions
    H  query heads      K  key-value heads      E  head width      V  width of a value

A slot holds a position. Positions below a row's length are committed and every query reads them;
the R positions from there on are new, and `sees` says which query reads which of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sight:
    """Which positions the queries of a step read.

    lengths    [B]        committed positions; any row may have none
    positions  [B, N]     RoPE positions of the queries, by which a window goes
    sees       [B, N, R]  bool: the new positions a query reads, windows included; None is a chain,
                          where query i is new position i and reads those up to itself
    first      [B]        the first committed position that is kept; None keeps all
    last       [B]        the newest position, where slots are a ring: position p in slot p mod S
    """

    lengths: Tensor
    positions: Tensor
    sees: Tensor | None = None
    first: Tensor | None = None
    last: Tensor | None = None

    @property
    def turns(self) -> bool:
        """Whether the slots are a ring."""
        return self.last is not None


@dataclass(frozen=True)
class Scoring:
    """What becomes of a query and a key's product.

    scale    multiplies it
    window   positions a query reads of the past, its own included; None reads all
    softcap  bounds the product by its tanh; None does not
    sinks    [H]  a score beside the keys' own that reads nothing: it takes its share of the mass
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True)
class Latent:
    """The second half of the keys of latent attention, whose values are the first half.

    query  [B, H, N, T]    the rotated part of the queries
    keys   [B, 1, S, T]    the rotated part of the keys
    """

    query: Tensor
    keys: Tensor


def attend_new(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    sight: Sight,
    scoring: Scoring,
    latent: Latent | None = None,
    pages: Tensor | None = None,
) -> Tensor:
    """What each query reads; a query that sees nothing reads 0.

    query   [B, H, N, E]
    keys    [B, K, S, E]  and values [B, K, S, V]; paged [P, K, page, E]
    pages   [B, n]        the pages of a row in order, where keys and values are paged
    returns [B, H, N, V]  in the queries' type, summed in float32
    """
    if pages is not None:
        keys, values = _unpaged(keys, pages), _unpaged(values, pages)
    groups = query.shape[1] // keys.shape[1]
    scores = _products(query, keys, groups)
    if latent is not None:
        scores = scores + _products(latent.query, latent.keys, groups)
    scores = scores * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    seen = visible(sight, keys.shape[2], scoring.window)[:, None]
    scores = scores.masked_fill(~seen, float("-inf"))
    sinks = scores.new_full((scores.shape[1],), float("-inf"))
    if scoring.sinks is not None:
        sinks = scoring.sinks.to(scores)
    sinks = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    shares = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    shares = shares.masked_fill(~seen, 0)  # of nothing at all the softmax is no number
    mixed = torch.matmul(shares, values.float().repeat_interleave(groups, dim=1))
    return mixed.to(query.dtype)


def visible(sight: Sight, extent: int, window: int | None = None) -> Tensor:
    """Whether a query reads a slot [B, N, S]."""
    held = _held(sight, extent)  # [B, S]
    new = held - sight.lengths[:, None]  # below 0 committed
    at = sight.positions[:, :, None]
    past = (new < 0) & (held >= 0)
    if sight.first is not None:
        past = past & (held >= sight.first[:, None])
    kept = past[:, None].expand(-1, at.shape[1], -1)
    if window is not None:
        kept = kept & (at - held[:, None] < window)
    if sight.sees is None:
        ahead = torch.arange(at.shape[1], device=new.device)[None, :, None]
        inside = (new >= 0)[:, None] & (new[:, None] <= ahead)
        if window is not None:
            inside = inside & (ahead - new[:, None] < window)
        return kept | inside
    count = sight.sees.shape[2]
    which = new.clamp(0, count - 1)[:, None].expand(-1, at.shape[1], -1)
    inside = ((new >= 0) & (new < count))[:, None]
    return kept | (inside & sight.sees.gather(2, which)) if count else kept


def _held(sight: Sight, extent: int) -> Tensor:
    """The position that each slot holds [B, S]; below 0 none."""
    slots = torch.arange(extent, device=sight.lengths.device)
    if sight.last is None:
        return slots.expand(sight.lengths.shape[0], -1)
    return sight.last[:, None] - (sight.last[:, None] - slots) % extent


def _products(query: Tensor, keys: Tensor, groups: int) -> Tensor:
    return torch.matmul(
        query.float(), keys.float().repeat_interleave(groups, dim=1).transpose(2, 3)
    )


def _unpaged(paged: Tensor, pages: Tensor) -> Tensor:
    """Pages [P, K, page, E] of rows as they follow one another [B, K, n * page, E]."""
    return paged[pages].transpose(1, 2).flatten(2, 3)
