"""Moving the accepted nodes of a tree to where the text goes on, in the slots of a pool.

T  tensors of one shape      S  slots      H  key-value heads      L  positions of a slot
B  rows      D  nodes of a path      E  width
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
