"""Laws and lossless draws on a device: the rules of `sample.py`, one launch each.

What is as long as the vocabulary is cut into parts. A law's programs each read the whole row for
its highest and its mass, since few rows leave a device idle anyway; a draw's programs leave the
weight of their part, and whoever ends last finds the part where the coin falls, and walks that part
alone. The decisions before a draw are a few numbers: every program of a row makes them by itself.

Sums are taken in another order than in torch, so a coin within their rounding of a boundary may
fall on the other side of it; sums without rounding give the same token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.sample import COLDEST
from specflow.kernels.vocab_triton import (
    ARRIVALS,
    arrived_last,
    cut,
    dense,
    lanes_of,
    size_of_part,
)

SURVEYORS = 8  # warps of a program that reads whole rows, twice a tile at once: few turns to wait

# Triton reads these annotations as strings; constexpr ones are compile-time numbers.
PLAIN = tl.constexpr(0)  # weights are the law itself
RESIDUAL = tl.constexpr(1)  # what a proposal leaves of it
REFUSED = tl.constexpr(2)  # the law without the tokens of a node's children
FRESH = tl.constexpr(3)  # the law itself, which other programs of this launch have written


@triton.jit
def divided(a, b):
    """A quotient as torch rounds it: to the nearest."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:  # noqa: RET505 - chosen while compiling
        return a / b


@triton.jit
def said(logits, bias, ids, V, KIND: tl.constexpr, BIASED: tl.constexpr):
    """Logits of a row as a law is made of them; a sum is rounded to what logits are."""
    seen = tl.load(logits + ids, mask=ids < V, other=float("-inf")).to(KIND)
    if BIASED:
        added = tl.load(bias + ids, mask=ids < V, other=0.0).to(KIND)
        seen = (seen + added).to(logits.dtype.element_ty).to(KIND)
    return seen


@triton.jit
def survey(logits, bias, scale, V, TILE: tl.constexpr, KIND: tl.constexpr, BIASED: tl.constexpr):
    """The highest of a row of V logits, its mass below that, and the likeliest token."""
    lanes = tl.arange(0, TILE)
    top = tl.full((TILE,), float("-inf"), KIND)
    mass = tl.zeros((TILE,), KIND)
    where = tl.zeros((TILE,), tl.int32) + V
    odd = where  # the first that is no number, which torch takes for the highest
    for start in range(0, V, TILE):
        ids = start + lanes
        seen = said(logits, bias, ids, V, KIND, BIASED)
        higher = tl.maximum(top, seen)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        mass = mass * tl.exp((top - base) / scale) + tl.exp((seen - base) / scale)
        where = tl.where(((seen > top) | (where == V)) & (ids < V), ids, where)
        odd = tl.minimum(odd, tl.where(seen != seen, ids, V))  # noqa: PLR0124 - NaN alone differs
        top = higher
    highest = tl.max(top, axis=0)
    total = tl.sum(mass * tl.exp((top - highest) / scale), axis=0)
    strange = tl.min(odd, axis=0)
    best = tl.min(tl.where(top == highest, where, V), axis=0)
    return highest, total, tl.where(strange < V, strange, best)


@triton.jit
def share_of(seen, ids, highest, total, best, scale, greedy):
    """The shares of tokens in a law; of a greedy one all is the likeliest token's."""
    share = tl.exp((seen - highest) / scale) / total
    return tl.where(greedy, tl.where(ids == best, 1.0, 0.0).to(share.dtype), share)


@triton.jit
def law_kernel(
    logits, temperature, law, V, EACH, TILE: tl.constexpr, PARTS: tl.constexpr, COLD: tl.constexpr
):
    """One part of a row's law; EACH rows share a request's temperature."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    exact = law.dtype.element_ty
    heat = tl.load(temperature + row // EACH).to(exact)
    greedy = heat < COLD
    scale = tl.where(greedy, 1.0, heat)
    mine = logits + row * V
    highest, total, best = survey(mine, mine, scale, V, TILE, exact, False)
    lanes = tl.arange(0, TILE)
    size = size_of_part(V, TILE, PARTS)
    for start in range(part * size, (part + 1) * size, TILE):
        ids = start + lanes
        seen = said(mine, mine, ids, V, exact, False)
        share = share_of(seen, ids, highest, total, best, scale, greedy)
        tl.store(law + row * V + ids, share, mask=ids < V)


def law_of(logits: Tensor, temperature: Tensor) -> Tensor:
    """The law [B, ..., V] a request samples from; at temperature 0 all on the likeliest token."""
    logits = logits.contiguous()
    exact = logits.dtype if logits.dtype == torch.float64 else torch.float32
    law = torch.empty_like(logits, dtype=exact)
    vocabulary = logits.shape[-1]
    rows = logits.numel() // vocabulary
    parts, tile = cut(rows, vocabulary)
    law_kernel[rows, parts](
        logits, temperature, law, vocabulary, rows // logits.shape[0],
        TILE=2 * tile, PARTS=parts, COLD=COLDEST, num_warps=SURVEYORS,
    )  # fmt: skip
    return law


@triton.jit
def weights_at(
    row, other, parents, scale, reach, last, ids, V, K: tl.constexpr, KIND: tl.constexpr
):
    """Weights of tokens; past the vocabulary 0.

    row      where the law begins
    other    RESIDUAL: where the proposal begins, of which the tokens below `reach` count;
             REFUSED: the tokens of a tree's nodes from 1 on, whose parents are `parents`
    last     REFUSED: the node whose children are refused
    """
    weight = tl.load(row + ids, mask=ids < V, other=0.0, volatile=KIND == FRESH)
    if KIND == RESIDUAL:
        proposed = tl.load(other + ids, mask=ids < reach, other=0.0)
        proposed = tl.where((proposed > 0) & (proposed <= 1), proposed, 0.0)
        weight = tl.maximum(scale * weight - proposed, 0.0)
    if KIND == REFUSED:
        for j in range(K):
            refused = (tl.load(parents + j) == last) & (ids == tl.load(other + j))
            weight = tl.where(refused, 0.0, weight)
    return weight


@triton.jit
def weigh_part(
    row, other, parents, scale, reach, last, part, V,
    K: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The weight of a part, and its last token that has any; -1 where none has."""
    size = size_of_part(V, TILE, PARTS)
    lanes = tl.arange(0, TILE)
    mass = tl.zeros((TILE,), row.dtype.element_ty)
    behind = tl.full((TILE,), -1, tl.int32)
    for start in range(part * size, (part + 1) * size, TILE):
        ids = start + lanes
        weight = weights_at(row, other, parents, scale, reach, last, ids, V, K, KIND)
        mass += weight
        behind = tl.where(weight > 0, ids, behind)
    return tl.sum(mass, axis=0), tl.max(behind, axis=0)


@triton.jit
def walk_part(
    row, other, parents, scale, reach, last, part, running, goal, V,
    K: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The first token of a part whose running sum exceeds the goal; V if rounding leaves none."""
    size = size_of_part(V, TILE, PARTS)
    lanes = tl.arange(0, TILE)
    found = tl.zeros((), tl.int32) + V
    for start in range(part * size, (part + 1) * size, TILE):
        ids = start + lanes
        weight = weights_at(row, other, parents, scale, reach, last, ids, V, K, KIND)
        beyond = (running + tl.cumsum(weight, axis=0) > goal) & (weight > 0)
        found = tl.minimum(found, tl.min(tl.where(beyond, ids, V), axis=0))
        running += tl.sum(weight, axis=0)
    return found


@triton.jit
def draw(
    row, other, parents, scale, reach, last, coin, masses, behind, V,
    K: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The token at a coin, from what all parts have left at `masses` and `behind`."""
    parts = tl.arange(0, PARTS)
    mass = tl.load(masses + parts, volatile=True)
    its_last = tl.load(behind + parts, volatile=True)
    goal = coin.to(mass.dtype) * tl.sum(mass, axis=0)
    beyond = (tl.cumsum(mass, axis=0) > goal) & (mass > 0)
    part = tl.min(tl.where(beyond, parts, PARTS), axis=0)
    before = tl.sum(tl.where(parts < part, mass, 0.0), axis=0)
    found = tl.maximum(tl.max(its_last, axis=0), 0)  # what is left if rounding leaves no part
    if part < PARTS:
        found = walk_part(
            row, other, parents, scale, reach, last, part, before, goal, V, K, TILE, PARTS, KIND
        )
        of_part = tl.max(tl.where(parts == part, its_last, -1), axis=0)
        found = tl.where(found < V, found, of_part)
    return found.to(tl.int64)


@triton.jit
def pick_kernel(
    weights, coin, picked, masses, behind, counts, V, weights_row, coin_row,
    TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One part of a row's weights."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    mine = weights + row * weights_row
    mass, its_last = weigh_part(mine, mine, mine, 1.0, V, 0, part, V, 0, TILE, PARTS, PLAIN)
    tl.store(masses + row * PARTS + part, mass)
    tl.store(behind + row * PARTS + part, its_last)
    if arrived_last(counts + row, PARTS):
        token = draw(
            mine, mine, mine, 1.0, V, 0, tl.load(coin + row * coin_row),
            masses + row * PARTS, behind + row * PARTS, V, 0, TILE, PARTS, PLAIN,
        )  # fmt: skip
        tl.store(picked + row, token)


def pick(weights: Tensor, coin: Tensor) -> Tensor:
    """The token [...] at a coin of the cumulated weights [..., V]; never one of weight 0."""
    vocabulary = weights.shape[-1]
    flat = dense(weights.reshape(-1, vocabulary))
    coins = coin.reshape(-1)
    rows = flat.shape[0]
    picked = torch.empty(rows, dtype=torch.int64, device=weights.device)
    parts, tile = cut(rows, vocabulary)
    pick_kernel[rows, parts](
        flat, coins, picked, *_left(flat, rows, parts), ARRIVALS.of(flat.device, rows), vocabulary,
        flat.stride(0), coins.stride(0), TILE=tile, PARTS=parts,
    )  # fmt: skip
    return picked.view(coin.shape)


@triton.jit
def propose_kernel(
    logits,  # [B, V]
    bias,  # [B, V] where BIASED
    temperature,  # [B]
    coin,  # [B]
    law,  # [B, V], written
    picked,  # [B], written
    masses, behind, counts, V, logits_row, bias_row, coin_row,
    TILE: tl.constexpr, PARTS: tl.constexpr, COLD: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """One part of a row's law, and its weight; whoever ends last draws from the whole."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    exact = law.dtype.element_ty
    heat = tl.load(temperature + row).to(exact)
    greedy = heat < COLD
    scale = tl.where(greedy, 1.0, heat)
    mine, added, its_law = logits + row * logits_row, bias + row * bias_row, law + row * V
    highest, total, best = survey(mine, added, scale, V, TILE, exact, BIASED)
    lanes = tl.arange(0, TILE)
    mass = tl.zeros((TILE,), exact)
    its_last = tl.full((TILE,), -1, tl.int32)
    size = size_of_part(V, TILE, PARTS)
    for start in range(part * size, (part + 1) * size, TILE):
        ids = start + lanes
        seen = said(mine, added, ids, V, exact, BIASED)
        share = share_of(seen, ids, highest, total, best, scale, greedy)
        tl.store(its_law + ids, share, mask=ids < V)
        share = tl.where(ids < V, share, 0.0)
        mass += share
        its_last = tl.where(share > 0, ids, its_last)
    tl.store(masses + row * PARTS + part, tl.sum(mass, axis=0))
    tl.store(behind + row * PARTS + part, tl.max(its_last, axis=0))
    if arrived_last(counts + row, PARTS):
        token = draw(
            its_law, its_law, its_law, 1.0, V, 0, tl.load(coin + row * coin_row),
            masses + row * PARTS, behind + row * PARTS, V, 0, TILE, PARTS, FRESH,
        )  # fmt: skip
        tl.store(picked + row, token)


def propose(
    logits: Tensor, temperature: Tensor, coin: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What a draft proposes: the law [B, V] of its logits, with a bias or without, and a draw."""
    logits = dense(logits)
    added = logits if bias is None else bias.contiguous()
    rows, vocabulary = logits.shape
    exact = logits.dtype if logits.dtype == torch.float64 else torch.float32
    law = torch.empty(rows, vocabulary, dtype=exact, device=logits.device)
    picked = torch.empty(rows, dtype=torch.int64, device=logits.device)
    parts, tile = cut(rows, vocabulary)
    propose_kernel[rows, parts](
        logits, added, temperature, coin, law, picked, *_left(law, rows, parts),
        ARRIVALS.of(logits.device, rows), vocabulary,
        logits.stride(0), added.stride(0), coin.stride(0),
        TILE=2 * tile, PARTS=parts, COLD=COLDEST, BIASED=bias is not None, num_warps=SURVEYORS,
    )  # fmt: skip
    return law, picked


def _left(law: Tensor, rows: int, parts: int) -> tuple[Tensor, Tensor]:
    """Room for the weights of parts, and for their last tokens."""
    masses = torch.empty(rows, parts, dtype=law.dtype, device=law.device)
    return masses, torch.empty(rows, parts, dtype=torch.int32, device=law.device)


@triton.jit
def sampled_kernel(
    guesses,  # [B, K]
    parents,  # [B, K]
    law,  # [B, W, V]
    coins,  # [B, W + 1], or more
    path_out,  # [B, W], written
    length_out,  # [B], written
    gained_out,  # [B, W], written
    masses, behind, counts, V, coins_row, single, acc,
    K: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One part of the law after the last node of a request's path."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    W: tl.constexpr = K + 1
    exact = law.dtype.element_ty
    lane = tl.arange(0, BLOCK)
    word = tl.load(guesses + row * K + lane, mask=lane < K, other=-1)
    parent = tl.load(parents + row * K + lane, mask=lane < K, other=-1)
    real = word >= 0
    chance = tl.load(law + (row * W + parent) * V + word, mask=real, other=0.0)
    coin = tl.load(coins + row * coins_row + parent, mask=real, other=0.0).to(exact)
    kin = parent[:, None] == parent[None, :]
    running = tl.sum(tl.where(kin & (lane[None, :] <= lane[:, None]), chance[None, :], 0.0), axis=1)
    taken = (
        real & (chance > 0) & ((coin < divided(running, acc + 0.0 * running)) | (chance >= single))
    )
    # A path goes on with the eldest child that is taken.
    path = tl.where(lane == 0, 0, -1).to(tl.int64)
    gained = tl.zeros((BLOCK,), tl.int64)
    node = tl.zeros((), tl.int64)
    length = tl.full((), 1, tl.int64)
    alive = tl.full((), 1, tl.int64)
    for depth in range(1, W):
        child = tl.min(tl.where(taken & (parent == node), lane, K), axis=0).to(tl.int64)
        alive = tl.where(child < K, alive, 0)
        its_word = tl.sum(tl.where(lane == child, word, 0), axis=0)
        path = tl.where((lane == depth) & (alive == 1), child + 1, path)
        gained = tl.where((lane == depth - 1) & (alive == 1), its_word, gained)
        node = tl.where(alive == 1, child + 1, node)
        length += alive
    mine = law + (row * W + node) * V
    its_words, its_parents = guesses + row * K, parents + row * K
    mass, its_last = weigh_part(
        mine, its_words, its_parents, 1.0, V, node, part, V, K, TILE, PARTS, REFUSED
    )
    tl.store(masses + row * PARTS + part, mass)
    tl.store(behind + row * PARTS + part, its_last)
    if arrived_last(counts + row, PARTS):
        token = draw(
            mine, its_words, its_parents, 1.0, V, node, tl.load(coins + row * coins_row + W),
            masses + row * PARTS, behind + row * PARTS, V, K, TILE, PARTS, REFUSED,
        )  # fmt: skip
        gained = tl.where(lane == length - 1, token, gained)
        tl.store(path_out + row * W + lane, path, mask=lane < W)
        tl.store(gained_out + row * W + lane, gained, mask=lane < W)
        tl.store(length_out + row, length)


def accept_sampled(
    guesses: Tensor, parents: Tensor, law: Tensor, coins: Tensor, single: float, acc: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Walk the tree by the target's law alone: path [B, W], accept length [B], gained [B, W]."""
    rows, width, vocabulary = law.shape
    path = torch.empty(rows, width, dtype=torch.int64, device=law.device)
    gained, length = torch.empty_like(path), torch.empty_like(path[:, 0])
    parts, tile = cut(rows, vocabulary)
    sampled_kernel[rows, parts](
        guesses.contiguous(), parents.contiguous(), law.contiguous(), coins.contiguous(),
        path, length, gained, *_left(law, rows, parts), ARRIVALS.of(law.device, rows), vocabulary,
        coins.shape[1], float(single), max(float(acc), 1e-9),
        K=width - 1, BLOCK=lanes_of(width), TILE=tile, PARTS=parts,
        enable_fp_fusion=False,
    )  # fmt: skip
    return path, length, gained


@triton.jit
def judged(guesses, proposed, law, row, i, V, K: tl.constexpr):
    """What the target and the proposal give guess i; a proposal's number that is none as 0."""
    word = tl.load(guesses + row * K + i)
    p = tl.load(law + (row * (K + 1) + i) * V + word)
    q = tl.load(proposed + (row * K + i) * V + word)
    return p, tl.where((q > 0) & (q <= 1), q, 0.0)


@triton.jit
def followed(ratio, guesses, proposed, law, row, i, V, K: tl.constexpr):
    """How likely the target is to say a prefix as against the proposal, guess i included."""
    p, q = judged(guesses, proposed, law, row, i, V, K)
    share = tl.where(q > 0, divided(p, tl.where(q > 0, q, 1.0)), 0.0)
    product = ratio * share
    return tl.where(product > 1, 1.0, product)  # what is no number stays none, and is not kept


@triton.jit
def leave(
    law, proposed, row, i, scale, part, at, masses, behind, V,
    K: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The weight of a part after i kept guesses: of the residual, then of the law, side by side."""
    mine = law + (row * (K + 1) + i) * V
    theirs = proposed + (row * K + i) * V
    reach = tl.where(i + tl.zeros((), tl.int32) < K, V, 0)
    mass, its_last = weigh_part(
        mine, theirs, mine, scale, reach, 0, part, V, K, TILE, PARTS, RESIDUAL
    )
    tl.store(masses + at * 2 * PARTS + part, mass)
    tl.store(behind + at * 2 * PARTS + part, its_last)
    mass, its_last = weigh_part(mine, mine, mine, 1.0, V, 0, part, V, K, TILE, PARTS, PLAIN)
    tl.store(masses + (at * 2 + 1) * PARTS + part, mass)
    tl.store(behind + (at * 2 + 1) * PARTS + part, its_last)


@triton.jit
def finish(
    guesses, law, proposed, coins, row, count, scale, at, masses, behind, length_out, gained_out,
    V, coins_row,
    K: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Draw the token after `count` kept guesses, and write what was gained."""
    W: tl.constexpr = K + 1
    lane = tl.arange(0, BLOCK)
    parts = tl.arange(0, PARTS)
    rest = tl.sum(tl.load(masses + at * 2 * PARTS + parts, volatile=True), axis=0)
    # All rounded away (p equal to q, and still refused): the law itself is left to draw from.
    left = rest > 0
    which = tl.where(left, at * 2, at * 2 + 1)
    scale = tl.where(left, scale, 1.0)
    mine = law + (row * W + count) * V
    reach = tl.where(left & (count < K), V, 0)
    token = draw(
        mine, proposed + (row * K + count) * V, mine, scale, reach, 0,
        tl.load(coins + row * coins_row + W), masses + which * PARTS, behind + which * PARTS, V,
        K, TILE, PARTS, RESIDUAL,
    )  # fmt: skip
    words = tl.load(guesses + row * K + lane, mask=lane < K, other=0)
    gained = tl.where((lane == count) | (lane >= K), token, words)
    tl.store(gained_out + row * W + lane, gained, mask=lane < W)
    tl.store(length_out + row, (count + 1).to(tl.int64))


@triton.jit
def rejection_kernel(
    guesses,  # [B, K]
    proposed,  # [B, K, V]
    law,  # [B, W, V]
    coins,  # [B, W + 1], or more
    length_out,  # [B], written
    gained_out,  # [B, W], written
    masses, behind, counts, V, coins_row,
    K: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One part of what is drawn from after the guesses that are kept."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    exact = law.dtype.element_ty
    count = tl.zeros((), tl.int32)
    alive = tl.full((), 1, tl.int32)
    for i in range(K):
        p, q = judged(guesses, proposed, law, row, i, V, K)
        coin = tl.load(coins + row * coins_row + i).to(exact)
        alive = tl.where((q > 0) & (coin * q < p), alive, 0)
        count += alive
    leave(law, proposed, row, count, 1.0, part, row, masses, behind, V, K, TILE, PARTS)
    if arrived_last(counts + row, PARTS):
        finish(
            guesses, law, proposed, coins, row, count, 1.0, row, masses, behind,
            length_out, gained_out, V, coins_row, K, BLOCK, TILE, PARTS,
        )  # fmt: skip


@triton.jit
def block_kernel(
    guesses,  # [B, K]
    proposed,  # [B, K, V]
    law,  # [B, W, V]
    coins,  # [B, W + 1], or more
    length_out,  # [B], written
    gained_out,  # [B, W], written
    masses, behind, counts, V, coins_row,
    K: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One part of what is drawn from after each prefix: its residual is also what judges it."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    W: tl.constexpr = K + 1
    exact = law.dtype.element_ty
    ratio = tl.full((), 1.0, exact)
    for i in range(K):
        leave(law, proposed, row, i, ratio, part, row * W + i, masses, behind, V, K, TILE, PARTS)
        ratio = followed(ratio, guesses, proposed, law, row, i, V, K)
    leave(law, proposed, row, K, 1.0, part, row * W + K, masses, behind, V, K, TILE, PARTS)
    if arrived_last(counts + row, PARTS):
        parts = tl.arange(0, PARTS)
        longest = tl.zeros((), tl.int32)
        scale = tl.full((), 1.0, exact)
        ratio = tl.full((), 1.0, exact)
        for i in range(1, W):
            ratio = followed(ratio, guesses, proposed, law, row, i - 1, V, K)
            left = masses + (row * W + i) * 2 * PARTS + parts
            mass = tl.sum(tl.load(left, volatile=True), axis=0)
            # So small a number is a double to some versions of Triton: back to what a mass is.
            least = tl.maximum(mass + 1 - ratio, 1e-38).to(mass.dtype)
            inner = divided(mass, least)
            whole = (i + tl.zeros((), tl.int32) == K) | (ratio >= 1)
            chance = tl.where(whole, ratio, inner)
            kept = tl.load(coins + row * coins_row + i - 1).to(exact) < chance
            longest = tl.where(kept, i, longest)
            scale = tl.where(kept, ratio, scale)
        scale = tl.where(longest == K, 1.0, scale).to(exact)
        finish(
            guesses, law, proposed, coins, row, longest, scale, row * W + longest, masses, behind,
            length_out, gained_out, V, coins_row, K, BLOCK, TILE, PARTS,
        )  # fmt: skip


def accept_rejection(
    guesses: Tensor, proposed: Tensor, law: Tensor, coins: Tensor
) -> tuple[Tensor, Tensor]:
    """Chain rejection: accept length [B]; tokens gained [B, W]."""
    return _judge(rejection_kernel, 1, guesses, proposed, law, coins)


def accept_block(
    guesses: Tensor, proposed: Tensor, law: Tensor, coins: Tensor
) -> tuple[Tensor, Tensor]:
    """Block verification: accept length [B]; tokens gained [B, W]."""
    return _judge(block_kernel, law.shape[1], guesses, proposed, law, coins)


def _judge(
    kernel: triton.JITFunction,
    prefixes: int,
    guesses: Tensor,
    proposed: Tensor,
    law: Tensor,
    coins: Tensor,
) -> tuple[Tensor, Tensor]:
    """Launch a rule that looks at so many prefixes."""
    rows, width, vocabulary = law.shape
    gained = torch.empty(rows, width, dtype=torch.int64, device=law.device)
    length = torch.empty_like(gained[:, 0])
    parts, tile = cut(rows, vocabulary)
    kernel[rows, parts](
        guesses.contiguous(), proposed.contiguous(), law.contiguous(), coins.contiguous(),
        length, gained, *_left(law, rows * prefixes * 2, parts), ARRIVALS.of(law.device, rows),
        vocabulary, coins.shape[1],
        K=width - 1, BLOCK=lanes_of(width), TILE=tile, PARTS=parts,
        enable_fp_fusion=False,  # products are rounded, as in torch
    )  # fmt: skip
    return length, gained
