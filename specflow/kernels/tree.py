"""How a tree of guesses grows level by level, and which of its candidates are verified.

    B  requests      T  branches kept a level      V  vocabulary      C  candidates      K  guesses
    R  nodes that were ever a branch, T a level

A candidate's flat index is its rank for level 0, and T + (l - 1) T*T + lane * T + rank for level l
(serial.md §2.1). Orders are stable, by falling score and then by rising index: a parent scores no
less than its child and has a smaller index, so what is selected is always a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specflow.kernels.accept import tree_arrays


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens and their chances, at temperature 1.

    logits   [..., V]
    returns  tokens [..., T], the likeliest first; chances [..., T] in [0, 1], float32
    """
    chances = logits.float().softmax(-1).nan_to_num(0.0).clamp(max=1.0)
    best = chances.topk(min(count, chances.shape[-1]), dim=-1)
    return best.indices, best.values


def ranks(tokens: Tensor) -> Tensor:
    """Level 0 as it is kept: every one of its candidates [B, T], by flat index."""
    return torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)


def grow_tree(scores: Tensor, chances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Offer T children of each branch, keep the best T of all.

    scores   [B, T]     chance of each branch, its ancestors included
    chances  [B, T, T]  of its children
    returns  scores kept [B, T]; their index among the offered [B, T]; scores offered [B, T*T]
    """
    offered = (scores[:, :, None] * chances).flatten(1)
    order = offered.sort(dim=1, descending=True, stable=True)
    kept = order.indices[:, : scores.shape[1]]
    return order.values[:, : scores.shape[1]].contiguous(), kept.contiguous(), offered


def follow(words: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of the branches kept, the lanes they come from, and all that were offered.

    words    [B, T, T]  tokens of the children of each branch
    kept     [B, T]     by index among them
    returns  tokens [B, T]; lanes [B, T]; tokens offered [B, T*T]
    """
    offered = words.flatten(1)
    return offered.gather(1, kept), kept // words.shape[2], offered


def take_rows(hidden: Tensor, rows: Tensor) -> Tensor:
    """Rows [B, N, H] of hidden states [B, M, H]; a row below 0 is row 0."""
    index = rows.clamp(min=0)[:, :, None].expand(-1, -1, hidden.shape[2])
    return hidden.gather(1, index)


def take_row(hidden: Tensor, accept_len: Tensor) -> Tensor:
    """The hidden state [B, H] at the last accepted of hidden states [B, W, H]."""
    return take_rows(hidden, accept_len[:, None] - 1)[:, 0]


def roots(tokens: Tensor, levels: int) -> Tensor:
    """Whom the branches of level 0 see among all branches: themselves.

    tokens   [B, T]
    levels   that have branches, and at least one
    returns  [B, T, R] bool
    """
    rows, width = tokens.shape
    own = torch.eye(width, max(levels - 1, 1) * width, dtype=torch.bool, device=tokens.device)
    return own.expand(rows, -1, -1)


def branch(sees: Tensor, lanes: Tensor, level: int) -> Tensor:
    """Whom the branches of `level` see: whom their parents see, and themselves.

    sees   [B, T, R]  bool, of the level before
    lanes  [B, T]     the parent of each branch
    """
    width, nodes = sees.shape[1:]
    inherited = sees.gather(1, lanes[:, :, None].expand(-1, -1, nodes))
    if level * width >= nodes:  # the last level has no branches: nothing is run below it
        return inherited
    own = torch.arange(width, device=sees.device) + level * width
    return inherited | (torch.arange(nodes, device=sees.device) == own[:, None])


def select_tree(
    scores: Sequence[Tensor], words: Sequence[Tensor], kept: Sequence[Tensor], positions: int
) -> tuple[Tensor, Tensor]:
    """The best candidates of all levels as a tree, parents before children.

    scores     a level: [B, T], then [B, T*T] each
    words      likewise, tokens
    kept       a level: [B, T], its branches by index in the level
    positions  of the tree, the bonus token's among them
    returns    guesses [B, K]; parents [B, K], as nodes: 0 is the bonus token, i + 1 guess i
    """
    width, device = kept[0].shape[1], kept[0].device
    order = torch.cat(list(scores), dim=1).sort(dim=1, descending=True, stable=True).indices
    chosen = order[:, : positions - 1].sort(dim=1).values  # [B, K]
    guesses = torch.cat(list(words), dim=1).gather(1, chosen)
    # Who is behind each parent number: the bonus token, then the branches level by level.
    begins = [0, *(width + level * width * width for level in range(len(kept) - 1))]
    flat = [branches + begin for branches, begin in zip(kept, begins, strict=True)]
    behind = torch.cat([torch.full_like(kept[0][:, :1], -1), *flat], dim=1)
    parent = behind.gather(1, chosen // width)  # [B, K], flat
    node = torch.searchsorted(chosen.contiguous(), parent.contiguous())
    return guesses, torch.where(
        parent < 0, torch.zeros((), dtype=node.dtype, device=device), node + 1
    )


def plant(tokens: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Level 0 as it is kept [B, T], and whom its branches see [B, T, R]."""
    return ranks(tokens), roots(tokens, levels)


def grow_level(
    scores: Tensor,
    logits: Tensor,
    table: Tensor | None = None,
    hidden: Tensor | None = None,
    sees: Tensor | None = None,
    level: int = 0,
) -> tuple[Tensor, ...]:
    """The next level of a tree, from what its branches say to the branches kept.

    scores   [B, T]     chance of each branch, its ancestors included
    logits   [B, T, V]  what each says next
    table    [V]        the target's id of each of the draft's, where they differ
    hidden   [B, T, H]  where each stands; the branches kept begin there
    sees     [B, T, R]  whom each sees among all branches
    level    of the branches kept
    returns  scores kept [B, T]; their index among the offered [B, T]; scores offered [B, T*T];
             tokens kept [B, T]; tokens offered [B, T*T]; then their hidden states, and whom they
             see, where these are given
    """
    words, chances = likeliest(logits, scores.shape[1])
    words = words if table is None else table[words]
    new_scores, kept, offered = grow_tree(scores, chances)
    tokens, lanes, spoken = follow(words, kept)
    made = [new_scores, kept, offered, tokens, spoken]
    if hidden is not None:
        made.append(take_rows(hidden, lanes))
    if sees is not None:
        made.append(branch(sees, lanes, level))
    return tuple(made)


def choose_tree(
    scores: Sequence[Tensor],
    words: Sequence[Tensor],
    kept: Sequence[Tensor],
    positions: int,
    bonus: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tree that is verified, and what a forward of it takes.

    scores, words, kept, positions as `select_tree` takes them
    bonus    [B]
    returns  guesses [B, K]; parents [B, K]; tokens [B, W]; depths [B, W]; sees [B, W, W]
    """
    guesses, parents = select_tree(scores, words, kept, positions)
    tokens = torch.cat([bonus[:, None], guesses], dim=1)
    return guesses, parents, tokens, *tree_arrays(parents)
