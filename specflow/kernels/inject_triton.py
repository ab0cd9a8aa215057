"""Injection: norm, turn and store of a draft layer's keys and values, in one launch for all rows.

A program has one head of one position. Nothing but `accept_len` says which are kept, so that the
launch is the same whatever was accepted.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.inject import Landing, Turning


@triton.jit
def inject_kernel(
    keys, values, weight, cos, sin, kept_keys, kept_values, starts, accept_len, eps,
    key_row, key_token, key_head, value_row, value_token, value_head,
    kept_slot, kept_head, kept_position, length,
    W: tl.constexpr, E: tl.constexpr, HALF: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """One head of one position of a window; a key is held by halves, as it is turned."""
    offset = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)  # heads times positions of a long text pass 32 bits
    row = tl.program_id(2).to(tl.int64)
    position = tl.load(starts + row) + offset
    place = position % length if TURNS else position
    if (offset < tl.load(accept_len + row)) & (place < length):
        half: tl.constexpr = E // 2
        lanes = tl.arange(0, HALF)
        inside = lanes < half
        at = keys + row * key_row + offset * key_token + head * key_head + lanes
        low = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        high = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt((tl.sum(low * low, axis=0) + tl.sum(high * high, axis=0)) / E + eps)
        low *= scale * tl.load(weight + lanes, mask=inside, other=0.0).to(tl.float32)
        high *= scale * tl.load(weight + half + lanes, mask=inside, other=0.0).to(tl.float32)
        turn = (row * W + offset) * E + lanes
        cos_low = tl.load(cos + turn, mask=inside, other=0.0).to(tl.float32)
        cos_high = tl.load(cos + turn + half, mask=inside, other=0.0).to(tl.float32)
        sin_low = tl.load(sin + turn, mask=inside, other=0.0).to(tl.float32)
        sin_high = tl.load(sin + turn + half, mask=inside, other=0.0).to(tl.float32)
        kind = kept_keys.dtype.element_ty
        into = row * kept_slot + head * kept_head + place * kept_position + lanes
        tl.store(kept_keys + into, (low * cos_low - high * sin_low).to(kind), mask=inside)
        tl.store(kept_keys + into + half, (high * cos_high + low * sin_high).to(kind), mask=inside)
        at = values + row * value_row + offset * value_token + head * value_head + lanes
        tl.store(kept_values + into, tl.load(at, mask=inside).to(kind), mask=inside)
        tl.store(kept_values + into + half, tl.load(at + half, mask=inside).to(kind), mask=inside)


def inject_rows(
    keys: Tensor, values: Tensor, turning: Turning, kept: tuple[Tensor, Tensor], landing: Landing
) -> None:
    """As `specflow.kernels.inject.inject_rows`."""
    rows, count, heads, width = keys.shape
    if kept[0].stride() != kept[1].stride():
        raise ValueError("keys and values of a draft layer lie alike")
    inject_kernel[count, heads, rows](
        keys, values, turning.weight, turning.cos.contiguous(), turning.sin.contiguous(), *kept,
        landing.starts.contiguous(), landing.accept_len.contiguous(), turning.eps,
        *keys.stride()[:3], *values.stride()[:3], *kept[0].stride()[:3], kept[0].shape[2],
        W=count, E=width, HALF=triton.next_power_of_2(width // 2), TURNS=landing.turns,
        num_warps=1,
    )  # fmt: skip
