"""How many guesses hold: the greedy accept of a chain and of a tree, the specification in torch."""

from __future__ import annotations

import torch
from torch import Tensor


def accept_chain(guesses: Tensor, verified: Tensor) -> Tensor:
    """How many tokens each request gains: the matching prefix, plus the bonus token.

    guesses   [B, K]      what the draft proposed; -1 never matches
    verified  [B, K + 1]  what the target says at each position
    returns   [B]         accept length, in [1, K + 1]
    """
    matches = (guesses == verified[:, :-1]).long()
    return matches.cumprod(dim=1).sum(dim=1) + 1


def accept_tree(guesses: Tensor, parents: Tensor, verified: Tensor) -> tuple[Tensor, Tensor]:
    """The path the target agrees with, from the root down (serial.md §3.1).

    guesses   [B, K]  token of node i + 1; -1 never matches
    parents   [B, K]  node that node i + 1 hangs from; 0 is the root, the bonus token
    verified  [B, W]  what the target says after each node, W = K + 1
    returns   [B, W]  nodes of the path, the root first, then -1
              [B]     accept length: nodes on the path, in [1, W]

    A node holds where its parent's word is its token, no elder sibling has the same token, and its
    parent holds. Parents precede children, so walking K levels settles every node.
    """
    agreed = guesses == verified.gather(1, parents)
    same = (guesses[:, :, None] == guesses[:, None, :]) & (
        parents[:, :, None] == parents[:, None, :]
    )
    agreed &= ~same.tril(-1).any(-1)
    _, ancestors = tree_arrays(parents)
    holds = torch.cat([torch.ones_like(agreed[:, :1]), agreed], dim=1)
    on_path = (holds[:, None, :] | ~ancestors).all(-1)
    nodes = torch.arange(on_path.shape[1], device=parents.device)
    path = torch.where(on_path, nodes, on_path.shape[1]).sort(dim=1).values
    return path.masked_fill(path == on_path.shape[1], -1), on_path.long().sum(1)


def tree_arrays(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Depth and ancestry of every node (serial.md §2.3).

    parents  [B, K]     node that node i + 1 hangs from, smaller than i + 1
    returns  [B, W]     depth, the root at 0
             [B, W, W]  bool: node i sees node j, its ancestor or itself

    Squaring the parent relation doubles the reach, so log2(W) products settle it without a
    data-dependent loop.
    """
    width = parents.shape[1] + 1
    nodes = torch.arange(width, device=parents.device)
    linked = torch.cat([torch.zeros_like(parents[:, :1]), parents], dim=1)
    sees = ((linked[:, :, None] == nodes) | (nodes[:, None] == nodes)).float()
    for _ in range((width - 1).bit_length()):
        sees = (sees @ sees).clamp(max=1.0)
    return sees.sum(-1).long() - 1, sees > 0.5
