"""What is written into the slots of a pool: new tokens, and accepted nodes where the text goes on.

T  tensors of one shape      S  slots      H  key-value heads      L  positions of a slot
B  rows      D  nodes of a path      E  width      q  tokens of a row      G  tokens of all rows
"""

from __future__ import annotations

import torch
from torch import Tensor


def move_accepted(slots: Tensor, path: Tensor, seq_lens: Tensor) -> None:
    """Make node path[b, d], at seq_lens[b] + path[b, d], occupy position seq_lens[b] + d; in place.

    What would come from or go past the end of a slot is left alone.

    slots     [T, S, H, L, E]  row b of the batch has slot b; T tensors may share nothing but shape
    path      [B, D]           indices of accepted nodes, ascending, padded with -1
    seq_lens  [B]              positions committed before this step
    """
    length = slots.shape[3]
    depth = torch.arange(path.shape[1], device=path.device)
    start = seq_lens[:, None]
    source, target = start + path, start + depth
    moved = (path >= 0) & (source < length) & (target < length)
    for row in range(path.shape[0]):  # gathered before any is put: a source may be a target
        chosen = slots[:, row, :, source[row][moved[row]]]
        slots[:, row, :, target[row][moved[row]]] = chosen


def write_rows(
    keys: Tensor,
    values: Tensor,
    kept: tuple[Tensor, Tensor],
    slots: Tensor,
    packed: Tensor | None = None,
) -> None:
    """Put keys and values of tokens into a layer's slots, in place; what has no place is left out.

    keys    [B, H, q, E]  of token i of row b, which goes to position slots[b, i] of slot b;
            [1, H, G, E]  where tokens are packed; values likewise, of a width of their own
    kept    [S, H, L, E]  the layer's keys, and its values
    slots   [B, q]        below 0, or past the end of a slot, is nowhere
    packed  [G]           which of the B * q tokens there are, ascending; B * q is none
    """
    length, count = kept[0].shape[2], slots.shape[1]
    tokens = range(slots.numel()) if packed is None else packed.tolist()
    places = slots.flatten().tolist()
    for each, at in enumerate(tokens):
        if at < len(places) and 0 <= places[at] < length:
            row, token = (at // count, at % count) if packed is None else (0, each)
            for into, given in zip(kept, (keys, values), strict=True):
                into[at // count, :, places[at]] = given[row, :, token].to(into.dtype)
