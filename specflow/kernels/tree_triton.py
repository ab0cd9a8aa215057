"""A tree of guesses on a device: a level of it in one launch, and the choice of what is verified.

A row of logits is cut into parts; each leaves its likeliest tokens as keys, which order as the
tokens do: by what stands in their upper half, of equals the smaller id first. Whoever of a request
ends last goes on by itself with what is left, a few hundred numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels import vocab_triton
from specflow.kernels.vocab_triton import ARRIVALS, arrived_last, dense, lanes_of

# Triton reads these annotations as strings; constexpr ones are compile-time numbers.
NONE = tl.constexpr(-(2**63))  # a key below all others
LOW = tl.constexpr(0xFFFFFFFF)
MOST_PARTS = 32  # what one program can merge without spilling


@triton.jit
def key_of(number, place):
    """A key that orders as numbers do, of equals the smaller place first."""
    bits = tl.where(number == 0, 0.0, number).to(tl.int32, bitcast=True)  # -0 is 0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (place.to(tl.int64) ^ LOW)


@triton.jit
def number_of(key):
    """The number of a key."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def place_of(key):
    """The place of a key."""
    return (key & LOW) ^ LOW


@triton.jit
def leave_likeliest(
    logits, keys, tops, masses, at, part, V,
    T: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The T likeliest of one part of a row of V logits, and the part's highest and its mass."""
    ids = part * TILE + tl.arange(0, TILE)
    seen = tl.load(logits + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    top = tl.max(seen, axis=0)
    base = tl.where(top == float("-inf"), 0.0, top)
    where = at * PARTS + part
    tl.store(tops + where, top)
    tl.store(masses + where, tl.sum(tl.exp(seen - base), axis=0))
    left = tl.where(ids < V, key_of(seen, ids), NONE)
    for i in range(T):
        best = tl.max(left, axis=0)
        tl.store(keys + where * WIDE + i, best)
        left = tl.where(left == best, NONE, left)


@triton.jit
def merge_likeliest(
    keys, tops, masses, at, ROWS: tl.constexpr,
    T: tl.constexpr, WIDE: tl.constexpr, LANES: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The T likeliest of ROWS rows from `at` on, and their chances: two tensors [LANES, WIDE]."""
    rows = tl.arange(0, LANES)
    lane = tl.arange(0, WIDE)
    parts = tl.arange(0, PARTS)
    of_part = (at + rows)[:, None] * PARTS + parts[None, :]
    real = (rows < ROWS)[:, None] & (parts < PARTS)[None, :]
    its_top = tl.load(tops + of_part, mask=real, other=0.0, volatile=True)
    its_mass = tl.load(masses + of_part, mask=real, other=0.0, volatile=True)
    top = tl.max(its_top, axis=1)
    mass = tl.sum(its_mass * tl.exp(tl.where(its_mass > 0, its_top - top[:, None], 0.0)), axis=1)
    spot = tl.arange(0, PARTS * WIDE)
    left = tl.load(
        keys + (at + rows)[:, None] * (PARTS * WIDE) + spot[None, :],
        mask=(rows < ROWS)[:, None] & (spot % WIDE < T)[None, :], other=NONE, volatile=True,
    )  # fmt: skip
    found = tl.full((LANES, WIDE), NONE, tl.int64)
    for i in range(T):
        best = tl.max(left, axis=1)
        found = tl.where((lane == i)[None, :], best[:, None], found)
        left = tl.where(left == best[:, None], NONE, left)
    chance = tl.exp(number_of(found) - top[:, None]) / mass[:, None]
    chance = tl.where(chance >= 0, tl.minimum(chance, 1.0), 0.0)  # nothing is likely: 0
    return place_of(found), chance


@triton.jit
def likeliest_kernel(
    logits, words, chances, keys, tops, masses, counts, V,
    T: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One part of a row."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    leave_likeliest(logits + row * V, keys, tops, masses, row, part, V, T, WIDE, TILE, PARTS)
    if arrived_last(counts + row, PARTS):
        lane = tl.arange(0, WIDE)[None, :]
        word, chance = merge_likeliest(keys, tops, masses, row, 1, T, WIDE, 1, PARTS)
        tl.store(words + row * T + lane, word, mask=lane < T)
        tl.store(chances + row * T + lane, chance, mask=lane < T)


def _parts(vocabulary: int) -> tuple[int, int]:
    """How many parts a row has, and their size; both powers of two."""
    tile = 2 * vocab_triton.TILE
    most = triton.next_power_of_2(triton.cdiv(vocabulary, MOST_PARTS))
    tile = max(tile, most)
    return triton.next_power_of_2(triton.cdiv(vocabulary, tile)), tile


def warps_of(tile: int) -> int:
    """Warps that hold a tile's keys in registers, 32 a thread at the most."""
    return min(max(tile // 1024, 4), 16)


def _room(logits: Tensor, rows: int, parts: int, wide: int) -> tuple[Tensor, Tensor, Tensor]:
    """Room for keys, tops and masses of parts."""
    keys = torch.empty(rows, parts, wide, dtype=torch.int64, device=logits.device)
    tops = torch.empty(rows, parts, device=logits.device)
    return keys, tops, torch.empty_like(tops)


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens [..., T], of equals the smallest ids, and their chances."""
    logits = logits.contiguous()
    vocabulary = logits.shape[-1]
    rows, count = logits.numel() // vocabulary, min(count, vocabulary)
    shape = (*logits.shape[:-1], count)
    words = torch.empty(shape, dtype=torch.int64, device=logits.device)
    chances = torch.empty(shape, device=logits.device)
    parts, tile = _parts(vocabulary)
    wide = lanes_of(count)
    likeliest_kernel[rows, parts](
        logits, words, chances, *_room(logits, rows, parts, wide),
        ARRIVALS.of(logits.device, rows), vocabulary,
        T=count, WIDE=wide, TILE=tile, PARTS=parts, num_warps=warps_of(tile),
    )  # fmt: skip
    return words, chances


@triton.jit
def level_kernel(
    logits,  # [B, T, V]
    scores,  # [B, T]
    table,
    grown,  # [B, T, H]
    sees,  # [B, T, R]
    scores_out,  # [B, T], written, as are all below
    kept_out,  # [B, T]
    offered_out,  # [B, T * T]
    words_out,  # [B, T]
    spoken_out,  # [B, T * T]
    hidden_out,  # [B, T, H]
    sees_out,  # [B, T, R]
    keys, tops, masses, counts, V, H, own,
    R: tl.constexpr, T: tl.constexpr, WIDE: tl.constexpr, NODES: tl.constexpr,
    TILE: tl.constexpr, PARTS: tl.constexpr,
    MAPPED: tl.constexpr, HIDDEN: tl.constexpr, SEES: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """One part of what a branch says next; whoever ends last keeps the best of all branches."""
    branch_at = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    row = branch_at // T
    leave_likeliest(
        logits + branch_at * V, keys, tops, masses, branch_at, part, V, T, WIDE, TILE, PARTS
    )
    if arrived_last(counts + row, PARTS * T):
        lane = tl.arange(0, WIDE)
        real = (lane < T)[:, None] & (lane < T)[None, :]
        word, chance = merge_likeliest(keys, tops, masses, row * T, T, T, WIDE, WIDE, PARTS)
        if MAPPED:
            word = tl.load(table + word, mask=real, other=0)
        score = tl.load(scores + row * T + lane, mask=lane < T, other=0.0)
        offered = score[:, None] * chance
        place = lane[:, None] * T + lane[None, :]
        tl.store(offered_out + row * T * T + place, offered, mask=real)
        tl.store(spoken_out + row * T * T + place, word, mask=real)
        left = tl.where(real, key_of(offered, place), NONE)
        for i in range(T):
            best = tl.max(tl.max(left, axis=1), axis=0)
            kept = place_of(best)
            its_word = tl.sum(tl.sum(tl.where(left == best, word, 0), axis=1), axis=0)
            left = tl.where(left == best, NONE, left)
            at = row * T + i
            tl.store(scores_out + at, number_of(best))
            tl.store(kept_out + at, kept)
            tl.store(words_out + at, its_word)
            parent = row * T + kept // T
            if SEES:
                node = tl.arange(0, NODES)
                its = tl.load(sees + parent * R + node, mask=node < R, other=0)
                its = tl.where(node == own + i, 1, its)  # past R where nothing is run below
                tl.store(sees_out + at * R + node, its, mask=node < R)
            if HIDDEN:
                for start in range(0, H, STRIP):
                    wide = start + tl.arange(0, STRIP)
                    held = tl.load(grown + parent * H + wide, mask=wide < H)
                    tl.store(hidden_out + at * H + wide, held, mask=wide < H)


def grow_level(
    scores: Tensor,
    logits: Tensor,
    table: Tensor | None = None,
    hidden: Tensor | None = None,
    sees: Tensor | None = None,
    level: int = 0,
) -> tuple[Tensor, ...]:
    """The next level of a tree, from what its branches say to the branches kept."""
    rows, branches, vocabulary = logits.shape
    logits, scores, device = logits.contiguous(), scores.contiguous(), logits.device
    new_scores = torch.empty(rows, branches, device=device)
    kept = torch.empty(rows, branches, dtype=torch.int64, device=device)
    offered = torch.empty(rows, branches * branches, device=device)
    words, spoken = torch.empty_like(kept), torch.empty_like(offered, dtype=torch.int64)
    made = [new_scores, kept, offered, words, spoken]
    held = logits if hidden is None else hidden.contiguous()
    seen = logits if sees is None else sees.contiguous().view(torch.uint8)
    hidden_out, sees_out = torch.empty_like(held[:, :, :1] if hidden is None else held), None
    if hidden is not None:
        made.append(hidden_out)
    if sees is not None:
        sees_out = torch.empty_like(seen)
        made.append(sees_out.view(torch.bool))
    nodes = 1 if sees is None else sees.shape[2]
    parts, tile = _parts(vocabulary)
    wide = lanes_of(branches)
    level_kernel[rows * branches, parts](
        logits, scores, logits if table is None else table, held, seen,
        new_scores, kept, offered, words, spoken, hidden_out,
        hidden_out if sees_out is None else sees_out,
        *_room(logits, rows * branches, parts, wide), ARRIVALS.of(device, rows),
        vocabulary, held.shape[2], level * branches,
        R=nodes, T=branches, WIDE=wide, NODES=lanes_of(nodes), TILE=tile, PARTS=parts,
        MAPPED=table is not None, HIDDEN=hidden is not None, SEES=sees is not None,
        STRIP=vocab_triton.TILE, num_warps=warps_of(tile),
    )  # fmt: skip
    return tuple(made)


def ranks(tokens: Tensor) -> Tensor:
    """Level 0 as it is kept: every one of its candidates [B, T], by flat index."""
    return plant(tokens, 0)[0]


@triton.jit
def plant_kernel(kept, sees, T: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    """The branches of level 0 of one request."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    tl.store(kept + row * T + lane, lane.to(tl.int64), mask=lane < T)
    for i in range(T):
        for start in range(0, R, BLOCK):
            own = (start + lane == i).to(tl.uint8)
            tl.store(sees + (row * T + i) * R + start + lane, own, mask=start + lane < R)


def plant(tokens: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Level 0 as it is kept [B, T], and whom its branches see [B, T, R]."""
    rows, branches = tokens.shape
    nodes = max(levels - 1, 1) * branches if levels else 0  # none asks whom they see
    kept = torch.empty_like(tokens, memory_format=torch.contiguous_format)
    sees = torch.empty(rows, branches, nodes, dtype=torch.uint8, device=tokens.device)
    plant_kernel[(rows,)](kept, sees, T=branches, R=nodes, BLOCK=lanes_of(branches))
    return kept, sees.view(torch.bool)


@triton.jit
def lay_out(parents, depths, sees, row, K: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr):
    """Depth and ancestry of every node of a tree of at most LEVELS levels below the root."""
    W: tl.constexpr = K + 1
    node = tl.arange(0, BLOCK)
    now = node.to(tl.int64)
    depth = tl.zeros((BLOCK,), tl.int64)
    seen = (node[:, None] == node[None, :]).to(tl.uint8)
    for _ in range(LEVELS):
        below = (now > 0) & (node < W)
        now = tl.load(parents + row * K + now - 1, mask=below, other=0)
        depth += below.to(tl.int64)
        seen = tl.where(below[:, None] & (now[:, None] == node[None, :]), 1, seen)
    tl.store(depths + row * W + node, depth, mask=node < W)
    at = (row * W + node[:, None]) * W + node[None, :]
    tl.store(sees + at, seen, mask=(node < W)[:, None] & (node < W)[None, :])


@triton.jit
def arrays_kernel(parents, depths, sees, K: tl.constexpr, BLOCK: tl.constexpr):
    """The arrays of one request's tree."""
    lay_out(parents, depths, sees, tl.program_id(0).to(tl.int64), K, BLOCK, K)


def tree_arrays(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Depth [B, W] and ancestry [B, W, W] of every node."""
    rows, guesses = parents.shape
    depths, sees = _arrays(rows, guesses + 1, parents.device)
    arrays_kernel[(rows,)](
        parents.contiguous(), depths, sees, K=guesses, BLOCK=lanes_of(guesses + 1)
    )
    return depths, sees.view(torch.bool)


def _arrays(rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Room for depth and ancestry."""
    depths = torch.empty(rows, width, dtype=torch.int64, device=device)
    return depths, torch.empty(rows, width, width, dtype=torch.uint8, device=device)


@triton.jit
def choose_kernel(
    scores,  # a level: [B, T], then [B, T * T] each
    words,
    kept,  # a level: [B, T]
    bonus,  # [B]
    guesses,  # [B, K], written, as are all below
    parents,  # [B, K]
    tokens,  # [B, W]
    depths,  # [B, W]
    sees,  # [B, W, W]
    places,  # [B, C]
    LEVELS: tl.constexpr, T: tl.constexpr, K: tl.constexpr, C: tl.constexpr,
    CANDIDATES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The best K of one request's candidates, parents before children, and the tree they are."""
    row = tl.program_id(0).to(tl.int64)
    flat = tl.arange(0, CANDIDATES)
    word = tl.zeros((CANDIDATES,), tl.int64)
    score = tl.zeros((CANDIDATES,), tl.float32)
    parent = tl.full((CANDIDATES,), -1, tl.int64)
    for level in tl.static_range(LEVELS):
        size = T if level == 0 else T * T
        begin = 0 if level == 0 else T + (level - 1) * T * T
        mine = (flat >= begin) & (flat < begin + size)
        at = row * size + flat - begin
        score = tl.where(mine, tl.load(scores[level] + at, mask=mine, other=0.0), score)
        word = tl.where(mine, tl.load(words[level] + at, mask=mine, other=0), word)
        # The children of this level's branches come after it: T to each.
        first = T + level * T * T
        child = (flat >= first) & (flat < first + T * T) & (flat < C)
        of = tl.load(kept[level] + row * T + (flat - first) // T, mask=child, other=0)
        parent = tl.where(child, of + begin, parent)
    left = tl.where(flat < C, key_of(score, flat), NONE)
    keys = left
    least = tl.full((), NONE, tl.int64)
    for _ in range(K):
        least = tl.max(left, axis=0)
        left = tl.where(left == least, NONE, left)
    chosen = (keys >= least) & (flat < C)
    place = tl.cumsum(chosen.to(tl.int32), axis=0)  # as a node: the root is 0
    tl.store(places + row * C + flat, place, mask=flat < C)
    tl.debug_barrier()  # every place is there before any is asked for
    its = tl.load(places + row * C + parent, mask=chosen & (parent >= 0), other=0).to(tl.int64)
    tl.store(guesses + row * K + place - 1, word, mask=chosen)
    tl.store(parents + row * K + place - 1, its, mask=chosen)
    if WHOLE:
        W: tl.constexpr = K + 1
        tl.store(tokens + row * W + place, word, mask=chosen)
        tl.store(tokens + row * W, tl.load(bonus + row))
        tl.debug_barrier()  # the parents are there
        lay_out(parents, depths, sees, row, K, BLOCK, LEVELS)


def select_tree(
    scores: Sequence[Tensor], words: Sequence[Tensor], kept: Sequence[Tensor], positions: int
) -> tuple[Tensor, Tensor]:
    """The best candidates of all levels as a tree: guesses [B, K], parents [B, K]."""
    made = _choose(scores, words, kept, positions, None)
    return made[0], made[1]


def choose_tree(
    scores: Sequence[Tensor],
    words: Sequence[Tensor],
    kept: Sequence[Tensor],
    positions: int,
    bonus: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tree that is verified, and what a forward of it takes."""
    return _choose(scores, words, kept, positions, bonus)


def _choose(
    scores: Sequence[Tensor],
    words: Sequence[Tensor],
    kept: Sequence[Tensor],
    positions: int,
    bonus: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows, branches = kept[0].shape
    levels, guesses, device = len(scores), positions - 1, kept[0].device
    candidates = branches + (levels - 1) * branches * branches
    words_out = torch.empty(rows, guesses, dtype=torch.int64, device=device)
    parents = torch.empty_like(words_out)
    tokens = torch.empty(rows, positions, dtype=torch.int64, device=device)
    depths, sees = _arrays(rows, positions, device)
    places = torch.empty(rows, candidates, dtype=torch.int32, device=device)
    choose_kernel[(rows,)](
        tuple(s.contiguous() for s in scores), tuple(w.contiguous() for w in words),
        tuple(k.contiguous() for k in kept), words_out if bonus is None else bonus,
        words_out, parents, tokens, depths, sees, places,
        LEVELS=levels, T=branches, K=guesses, C=candidates, CANDIDATES=lanes_of(candidates),
        BLOCK=lanes_of(positions), WHOLE=bonus is not None,
    )  # fmt: skip
    return words_out, parents, tokens, depths, sees.view(torch.bool)


@triton.jit
def rows_kernel(
    hidden, rows, out, hidden_row, hidden_token, rows_row, H, N,
    BACK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of one row."""
    line = tl.program_id(0).to(tl.int64)
    wide = tl.program_id(1) * TILE + tl.arange(0, TILE)
    index = tl.maximum(tl.load(rows + line // N * rows_row + line % N) - BACK, 0)
    held = tl.load(hidden + line // N * hidden_row + index * hidden_token + wide, mask=wide < H)
    tl.store(out + line * H + wide, held, mask=wide < H)


def take_rows(hidden: Tensor, rows: Tensor) -> Tensor:
    """Rows [B, N, H] of hidden states [B, M, H]; a row below 0 is row 0."""
    return _taken(hidden, rows, 0)


def take_row(hidden: Tensor, accept_len: Tensor) -> Tensor:
    """The hidden state [B, H] at the last accepted of hidden states [B, W, H]."""
    return _taken(hidden, accept_len[:, None], 1)[:, 0]


def _taken(hidden: Tensor, rows: Tensor, back: int) -> Tensor:
    requests, count = rows.shape
    wide = hidden.shape[2]
    hidden = dense(hidden)
    rows = rows if count == 1 or rows.stride(1) == 1 else rows.contiguous()
    out = hidden.new_empty(requests, count, wide)
    tile = vocab_triton.TILE
    rows_kernel[requests * count, triton.cdiv(wide, tile)](
        hidden, rows, out, hidden.stride(0), hidden.stride(1), rows.stride(0), wide, count,
        BACK=back, TILE=tile,
    )  # fmt: skip
    return out
