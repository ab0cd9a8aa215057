"""Attention of a step's few new tokens to a long past, in one launch.

A program has the queries of one key-value head (all heads that share it, so that its keys are
loaded once for N * G rows) and one part of the positions. It leaves what its part reads beside the
mass; whoever of a tile's parts ends last adds them up. So one request fills a GPU, by its parts.

How many programs there are goes by the extent, and what they do by a row's length: it is cut into
as many parts as there are programs, or fewer where it is short, and whoever has no part ends at
once. So one captured launch serves rows of any length, and reads no more of them than there is.

The signature and the meaning are those of `specflow.kernels.attention.attend_new`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.attention import Latent, Scoring, Sight
from specflow.kernels.vocab_triton import PROGRAMS, arrived_last, dense

# Triton reads these annotations as strings; constexpr ones are compile-time numbers.
LOG2E = tl.constexpr(1.4426950408889634)  # powers of two are what the device computes


@triton.jit
def load_tile(base, places, inside, E: tl.constexpr, WIDE: tl.constexpr):
    """Rows [n, WIDE] at places [n], 0 past the width E and where `inside` is false."""
    lanes = tl.arange(0, WIDE)
    kept = inside[:, None] & (lanes < E)[None, :]
    return tl.load(base + places[:, None] + lanes[None, :], mask=kept, other=0.0)


@triton.jit
def multiply(a, b, sums, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """A matrix product added to sums in float32; a narrow type's products are exact in it."""
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sums, input_precision=PRECISION)


@triton.jit
def bounded(scores, softcap):
    """Scores by their tanh."""
    return softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)


@triton.jit
def merge_parts(
    partial, tops, masses, sink, first, used, rows, M: tl.constexpr, WIDE: tl.constexpr
):
    """What the `used` parts of a tile from `first` on read [M, WIDE], without the sinks' share."""
    lanes = tl.arange(0, WIDE)
    top, mass = sink, tl.where(sink == float("-inf"), 0.0, 1.0)
    mixed = tl.zeros((M, WIDE), tl.float32)
    # Two are asked for at once, which is what registers hold: each is a wait for the memory.
    for part in tl.range(0, used, loop_unroll_factor=2):
        at = (first + part) * M + rows
        its_top = tl.load(tops + at, volatile=True)
        its_mass = tl.load(masses + at, volatile=True)
        higher = tl.maximum(top, its_top)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        ours, theirs = tl.exp2(top - base), tl.exp2(its_top - base)
        # A part that saw nothing has left nothing: what lies there is of another step.
        read = tl.load(
            partial + at[:, None] * WIDE + lanes[None, :],
            mask=(its_mass > 0)[:, None], other=0.0, volatile=True,
        )  # fmt: skip
        mixed = mixed * ours[:, None] + read * theirs[:, None]
        mass = mass * ours + its_mass * theirs
        top = higher
    return mixed / tl.where(mass > 0, mass, 1.0)[:, None]


@triton.jit
def span_of(
    length, lowest, furthest, oldest, window, extent, parts, R, TILE: tl.constexpr,
    CHAIN: tl.constexpr, TURNS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """The slots that hold what some query of a tile may read: from, to, and how many a part has.

    lowest, furthest  the first position of the tile's queries, and its last token
    """
    low, high = 0, extent
    if TURNS == 0:
        low, high = oldest, tl.minimum(extent, length + R)
        if CHAIN:
            high = tl.minimum(high, length + furthest + 1)
        if WINDOW:  # of the new ones `sees` alone decides
            low = tl.maximum(low, tl.minimum(lowest - window + 1, length))
        low = low // TILE * TILE
    high = tl.maximum(high, low)
    return low, high, tl.maximum(tl.cdiv(tl.cdiv(high - low, parts), TILE), 1) * TILE


@triton.jit
def seen_of(
    held, inside, length, oldest, at, token, window, marks, R,
    CHAIN: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Whether queries at positions `at` read slots that hold positions `held` [M, TILE]."""
    new = held - length
    past = inside & (new < 0) & (held >= oldest)
    fresh = inside & (new >= 0) & (new < R)
    ahead = token[:, None] - new[None, :]
    seen, near = past[None, :], fresh[None, :]
    if CHAIN:
        near = near & (ahead >= 0)
    if WINDOW:
        seen = seen & (at[:, None] - held[None, :] < window)
        if CHAIN:
            near = near & (ahead < window)
    if CHAIN == 0:
        near = tl.load(marks + new[None, :], mask=near, other=0) != 0
    return seen | near


@triton.jit(do_not_specialize=["N", "R", "parts"])
def attend_kernel(  # noqa: C901, PLR0912, PLR0915 - what is not asked for is not compiled
    query, keys, values, query_turned, keys_turned, out,
    lengths, positions, sees, first, last, pages, sinks,
    partial, tops, masses, counts,
    scale, softcap, window, extent, page, page_columns, N, R, parts,
    query_row, query_head, query_token, turned_row, turned_head, turned_token,
    key_row, key_head, key_slot, value_row, value_head, value_slot,
    shared_row, shared_slot,
    G: tl.constexpr, HEADS: tl.constexpr, E: tl.constexpr, V: tl.constexpr, T: tl.constexpr,
    WIDE_E: tl.constexpr, WIDE_V: tl.constexpr, WIDE_T: tl.constexpr,
    M: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
    CHAIN: tl.constexpr, KEPT: tl.constexpr, TURNS: tl.constexpr, PAGED: tl.constexpr,
    LATENT: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One part of the positions, for a tile of the queries of one key-value head of one row."""
    tile = tl.program_id(0)
    part = tl.program_id(1)
    tiles = tl.cdiv(N * G, M)
    of_tile = tile % tiles
    head = (tile // tiles % HEADS).to(tl.int64)
    row = (tile // tiles // HEADS).to(tl.int64)

    lanes = tl.arange(0, M)
    line = of_tile * M + lanes  # a query is a token of a head: line = token * G + group
    asked = line < N * G
    token = tl.minimum(line // G, N - 1)
    heads = head * G + line % G  # int64, as all that goes into an address of a pool
    length = tl.load(lengths + row).to(tl.int32)
    at = tl.load(positions + row * N + token).to(tl.int32)

    newest = tl.load(last + row).to(tl.int32) if TURNS else 0
    oldest = tl.load(first + row).to(tl.int32) if KEPT else 0
    low, high, size = span_of(
        length, tl.min(at, axis=0), tl.max(tl.where(asked, token, 0), axis=0), oldest, window,
        extent, parts, R, TILE, CHAIN, TURNS, WINDOW,
    )  # fmt: skip
    used = tl.maximum(tl.cdiv(high - low, size), 1)
    if part >= used:
        return
    begin = low + part * size
    end = tl.minimum(begin + size, high)

    wide_e, wide_v = tl.arange(0, WIDE_E), tl.arange(0, WIDE_V)
    where = row * query_row + heads * query_head + token * query_token
    mine = tl.load(
        query + where[:, None] + wide_e[None, :],
        mask=asked[:, None] & (wide_e < E)[None, :], other=0.0,
    )  # fmt: skip
    if LATENT:
        wide_t = tl.arange(0, WIDE_T)
        where = row * turned_row + heads * turned_head + token * turned_token
        mine_turned = tl.load(
            query_turned + where[:, None] + wide_t[None, :],
            mask=asked[:, None] & (wide_t < T)[None, :], other=0.0,
        )  # fmt: skip

    key_base = keys + head * key_head
    value_base = values + head * value_head
    if PAGED == 0:
        key_base += row * key_row
        value_base += row * value_row
    top = tl.full((M,), float("-inf"), tl.float32)
    mass = tl.zeros((M,), tl.float32)
    mixed = tl.zeros((M, WIDE_V), tl.float32)
    for start in range(begin, end, TILE):
        slots = start + tl.arange(0, TILE)
        inside = slots < end
        held = slots
        if TURNS:
            away = (newest - slots) % extent
            held = newest - tl.where(away < 0, away + extent, away)
        places = slots.to(tl.int64)
        if PAGED:
            block = tl.load(pages + row * page_columns + slots // page, mask=inside, other=0)
            key_places = block.to(tl.int64) * key_row + (places % page) * key_slot
            value_places = block.to(tl.int64) * value_row + (places % page) * value_slot
        else:
            key_places, value_places = places * key_slot, places * value_slot
        their = load_tile(key_base, key_places, inside, E, WIDE_E)
        scores = tl.zeros((M, TILE), tl.float32)
        scores = multiply(mine, tl.trans(their), scores, PRECISION, WIDEN)
        if LATENT:
            turned = load_tile(
                keys_turned + row * shared_row, places * shared_slot, inside, T, WIDE_T
            )
            scores = multiply(mine_turned, tl.trans(turned), scores, PRECISION, WIDEN)
        scores = scores * scale
        if SOFTCAP:
            scores = bounded(scores, softcap)

        marks = sees + (row * N + token[:, None]) * R
        seen = asked[:, None] & seen_of(
            held, inside, length, oldest, at, token, window, marks, R, CHAIN, WINDOW
        )
        scores = tl.where(seen, scores * LOG2E, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        shares = tl.exp2(scores - base[:, None])
        kept = tl.exp2(top - base)
        mass = mass * kept + tl.sum(shares, axis=1)
        read = their
        if LATENT == 0:
            read = load_tile(value_base, value_places, inside, V, WIDE_V)
        mixed = multiply(shares.to(read.dtype), read, mixed * kept[:, None], PRECISION, WIDEN)
        top = higher

    sink = tl.full((M,), float("-inf"), tl.float32)
    if SINKS:
        sink = tl.load(sinks + heads).to(tl.float32) * LOG2E
    where = ((row * HEADS * G + heads) * N + token) * V
    written = asked[:, None] & (wide_v < V)[None, :]
    if SPLIT == 0:
        higher = tl.maximum(top, sink)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        kept = tl.exp2(top - base)
        mass = mass * kept + tl.exp2(sink - base)
        mixed = mixed * kept[:, None] / tl.where(mass > 0, mass, 1.0)[:, None]
        tl.store(
            out + where[:, None] + wide_v[None, :], mixed.to(out.dtype.element_ty), mask=written
        )
    else:
        mark = (tile.to(tl.int64) * parts + part) * M + lanes
        tl.store(tops + mark, top)
        tl.store(masses + mark, mass)
        tl.store(partial + mark[:, None] * WIDE_V + wide_v[None, :], mixed)
        if arrived_last(counts + tile, used):
            whole = merge_parts(
                partial, tops, masses, sink, tile.to(tl.int64) * parts, used, lanes, M, WIDE_V
            )
            tl.store(
                out + where[:, None] + wide_v[None, :], whole.to(out.dtype.element_ty), mask=written
            )


@dataclass(frozen=True)
class Plan:
    """How a launch is cut: queries and positions a program takes, and parts of the positions."""

    M: int
    tile: int
    parts: int
    warps: int
    stages: int


FEWEST = 16  # rows, columns and depth of a matrix product, of which a device has no smaller one
MOST_PARTS = 64  # whoever merges them reads one after the other
MOST_SUMS = 16384  # numbers a tile of queries sums up: `plan` takes fewer lines of wider heads


def plan(
    rows: int,
    lines: int,
    width: int,
    extent: int,
    itemsize: int,
    *,
    chain: bool = False,
    latent: bool = False,
) -> Plan:
    """Tiles that fit the registers and the shared memory, and as many parts as fill a device.

    rows    rows and key-value heads
    lines   queries that share a key-value head
    width   of the wider of key and value, both parts of a latent key together
    chain   there are no marks of a tree to be held beside the sums
    latent  keys are the values too, and loaded once
    """
    most, tile = FEWEST, 32 if width <= 256 else 16
    if itemsize == 2:
        most = 64 if width <= 128 or (width <= 256 and chain) else 32
    lines_each = min(max(FEWEST, triton.next_power_of_2(lines)), most)
    if itemsize == 2:
        many = width <= 64 or (width <= 128 and (chain or lines_each == FEWEST))
        tile = 64 if many else 32 if width <= 256 or latent else 16
    tiles = rows * triton.cdiv(lines, lines_each)
    parts = max(1, min(PROGRAMS // tiles, triton.cdiv(extent, 2 * tile), MOST_PARTS))
    warps = 8 if lines_each * width >= 8192 else 4  # sums of 64 x 128 spill the registers of four
    return Plan(lines_each, tile, parts, warps, 2)


class Scratch:
    """What parts leave for whoever ends last: one of a device, whatever the launch and its extent.

    That suffices, since launches of a stream follow one another, each leaves its counts at zero,
    and there are parts only while they are no more than `PROGRAMS`.
    """

    def __init__(self) -> None:
        self._held: dict[torch.device, list[tuple[Tensor, ...]]] = {}

    def of(self, device: torch.device, tiles: int, cut: Plan, wide: int) -> tuple[Tensor, ...]:
        """Partial sums, tops, masses and counts of a launch."""
        parts = tiles * cut.parts if cut.parts > 1 else 0
        held = self._held.setdefault(device, [])
        if not held or parts * cut.M * wide > held[-1][0].numel():
            # What a captured step holds stays where it is: a larger one is made beside it.
            count = max(parts, PROGRAMS)
            sums = max(parts * cut.M * wide, PROGRAMS * MOST_SUMS)
            held.append((
                torch.zeros(sums, device=device),
                *(torch.zeros(count * 4 * FEWEST, device=device) for _ in range(2)),
                torch.zeros(count, device=device, dtype=torch.int32),
            ))  # fmt: skip
        return held[-1]


SCRATCH = Scratch()


def attend_new(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    sight: Sight,
    scoring: Scoring,
    latent: Latent | None = None,
    pages: Tensor | None = None,
    cut: Plan | None = None,
) -> Tensor:
    """What each query reads [B, H, N, V]; `cut` overrides how the launch is cut."""
    rows, heads, count, width = query.shape
    shared, deep = keys.shape[1], values.shape[3]
    extent = keys.shape[2] if pages is None else pages.shape[1] * keys.shape[2]
    turned = 0 if latent is None else latent.query.shape[3]
    groups = heads // shared
    wide = [max(FEWEST, triton.next_power_of_2(each)) for each in (width, deep, turned)]
    widest = max(wide[0] + (wide[2] if turned else 0), wide[1])
    cut = cut or plan(
        rows * shared, count * groups, widest, extent, query.element_size(),
        chain=sight.sees is None, latent=latent is not None,
    )  # fmt: skip
    tiles = rows * shared * triton.cdiv(count * groups, cut.M)
    scratch = SCRATCH.of(query.device, tiles, cut, wide[1])
    out = query.new_empty(rows, heads, count, deep)
    query, keys, values = dense(query), dense(keys), dense(values)
    turned_query = query if latent is None else dense(latent.query)
    turned_keys = keys if latent is None else dense(latent.keys)
    sees = None if sight.sees is None else sight.sees.contiguous().view(torch.uint8)
    new = count if sees is None else sees.shape[2]
    attend_kernel[tiles, cut.parts](
        query, keys, values, turned_query, turned_keys, out,
        sight.lengths.contiguous(), sight.positions.contiguous(), _or(sees, query),
        _or(sight.first, query), _or(sight.last, query), _or(pages, query),
        _or(scoring.sinks, query), *scratch,
        float(scoring.scale), float(scoring.softcap or 0.0), int(scoring.window or 0), extent,
        keys.shape[2], 0 if pages is None else pages.stride(0), count, new, cut.parts,
        *query.stride()[:3], *turned_query.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
        turned_keys.stride(0), turned_keys.stride(2),
        G=groups, HEADS=shared, E=width, V=deep, T=turned,
        WIDE_E=wide[0], WIDE_V=wide[1], WIDE_T=wide[2], M=cut.M, TILE=cut.tile, SPLIT=cut.parts > 1,
        CHAIN=sees is None, KEPT=sight.first is not None, TURNS=sight.turns,
        PAGED=pages is not None, LATENT=latent is not None, WINDOW=scoring.window is not None,
        SOFTCAP=scoring.softcap is not None, SINKS=scoring.sinks is not None,
        # Products of float32 are float32's: with 10 bits the output would be another than torch's,
        # and drafts be refused for it. Nothing else is rounded before it is multiplied.
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        WIDEN=query.device.type == "cpu",  # the interpreter multiplies bfloat16's bits
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out


def _or(tensor: Tensor | None, otherwise: Tensor) -> Tensor:
    """A pointer for what is not read."""
    return otherwise if tensor is None else tensor.contiguous()
