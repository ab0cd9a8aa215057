"""pico/ngram: the row ops of a step, fused.

Generated beside step.py, whose functions of the same names say the same in torch. One program a
request; every value below stays in registers, a request's row as a vector of BLOCK lanes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.rows_triton import (
    accept_tree,
    first,
    hold,
    mask_rejected,
    take_last,
    take_path,
    widen,
)


@triton.jit
def commit_rows_kernel(
    verified_ptr,  # B, W
    guesses_ptr,  # B, K
    parents_ptr,  # B, K
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    path_out_ptr,  # B, W, written
    starts_out_ptr,  # B, written
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    verified = tl.load(verified_ptr + row * W + lane, mask=lane < W, other=-1)
    guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
    parents = tl.load(parents_ptr + row * K + lane, mask=lane < K, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    path, accept_len = accept_tree(guesses, parents, verified, lane, K)
    gained = take_path(verified, path, lane)
    starts = hold(seq_lens)
    kept = mask_rejected(gained, accept_len, lane)
    bonus = take_last(gained, accept_len, lane)
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)
    tl.store(path_out_ptr + row * W + lane, path, mask=lane < W)
    tl.store(starts_out_ptr + row, starts)


def commit_rows(state: Any, verified: Tensor) -> tuple[Tensor, Tensor]:
    """Launch commit_rows_kernel, one program a request."""
    rows = verified.shape[0]
    path = torch.empty(rows, 12, dtype=torch.int64, device=verified.device)
    starts = torch.empty(rows, dtype=torch.int64, device=verified.device)
    commit_rows_kernel[(rows,)](
        verified,
        state.guesses,
        state.parents,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        path,
        starts,
        K=11,
        W=12,
        BLOCK=16,
    )
    return path, starts


@triton.jit
def commit_narrow_rows_kernel(
    guesses_ptr,  # B, k
    parents_ptr,  # B, k
    verified_ptr,  # B, w
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    path_out_ptr,  # B, w, written
    starts_out_ptr,  # B, written
    W: tl.constexpr,
    k: tl.constexpr,
    w: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * k + lane, mask=lane < k, other=-1)
    parents = tl.load(parents_ptr + row * k + lane, mask=lane < k, other=-1)
    verified = tl.load(verified_ptr + row * w + lane, mask=lane < w, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    path, accept_len = accept_tree(guesses, parents, verified, lane, k)
    gained = take_path(verified, path, lane)
    starts = hold(seq_lens)
    kept = mask_rejected(gained, accept_len, lane)
    wide = widen(kept, lane, w)
    bonus = take_last(gained, accept_len, lane)
    tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)
    tl.store(path_out_ptr + row * w + lane, path, mask=lane < w)
    tl.store(starts_out_ptr + row, starts)


def commit_narrow_rows(
    state: Any, guesses: Tensor, parents: Tensor, verified: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch commit_narrow_rows_kernel, one program a request."""
    rows = guesses.shape[0]
    path = torch.empty(rows, 4, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    commit_narrow_rows_kernel[(rows,)](
        guesses,
        parents,
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        path,
        starts,
        W=12,
        k=3,
        w=4,
        BLOCK=16,
    )
    return path, starts


@triton.jit
def commit_single_rows_kernel(
    verified_ptr,  # B, 1
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    verified = tl.load(verified_ptr + row * 1 + lane, mask=lane < 1, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    kept = widen(verified, lane, 1)
    bonus = first(verified, lane)
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, 1)
    tl.store(seq_lens_ptr + row, seq_lens + 1)


def commit_single_rows(state: Any, verified: Tensor) -> None:
    """Launch commit_single_rows_kernel, one program a request."""
    rows = verified.shape[0]
    commit_single_rows_kernel[(rows,)](
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        W=12,
        BLOCK=16,
    )
