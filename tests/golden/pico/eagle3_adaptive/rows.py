"""pico/eagle3_adaptive: the row ops of a step, fused.

Generated beside step.py, whose functions of the same names say the same in torch. One program a
request; every value below stays in registers, a request's row as a vector of BLOCK lanes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.rows_triton import accept_chain, first, hold, mask_rejected, take_last, widen


@triton.jit
def commit_7_rows_kernel(
    guesses_ptr,  # B, K7
    verified_ptr,  # B, W7
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    accept_len_out_ptr,  # B, written
    starts_out_ptr,  # B, written
    W: tl.constexpr,
    K7: tl.constexpr,
    W7: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * K7 + lane, mask=lane < K7, other=-1)
    verified = tl.load(verified_ptr + row * W7 + lane, mask=lane < W7, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    accept_len = accept_chain(guesses, verified, lane, K7)
    starts = hold(seq_lens)
    kept = mask_rejected(verified, accept_len, lane)
    wide = widen(kept, lane, W7)
    bonus = take_last(verified, accept_len, lane)
    tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)
    tl.store(accept_len_out_ptr + row, accept_len)
    tl.store(starts_out_ptr + row, starts)


def commit_7_rows(state: Any, guesses: Tensor, verified: Tensor) -> tuple[Tensor, Tensor]:
    """Launch commit_7_rows_kernel, one program a request."""
    rows = guesses.shape[0]
    accept_len = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    commit_7_rows_kernel[(rows,)](
        guesses,
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        accept_len,
        starts,
        W=8,
        K7=7,
        W7=8,
        BLOCK=8,
    )
    return accept_len, starts


@triton.jit
def commit_5_rows_kernel(
    guesses_ptr,  # B, K5
    verified_ptr,  # B, W5
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    accept_len_out_ptr,  # B, written
    starts_out_ptr,  # B, written
    W: tl.constexpr,
    K5: tl.constexpr,
    W5: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * K5 + lane, mask=lane < K5, other=-1)
    verified = tl.load(verified_ptr + row * W5 + lane, mask=lane < W5, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    accept_len = accept_chain(guesses, verified, lane, K5)
    starts = hold(seq_lens)
    kept = mask_rejected(verified, accept_len, lane)
    wide = widen(kept, lane, W5)
    bonus = take_last(verified, accept_len, lane)
    tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)
    tl.store(accept_len_out_ptr + row, accept_len)
    tl.store(starts_out_ptr + row, starts)


def commit_5_rows(state: Any, guesses: Tensor, verified: Tensor) -> tuple[Tensor, Tensor]:
    """Launch commit_5_rows_kernel, one program a request."""
    rows = guesses.shape[0]
    accept_len = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    commit_5_rows_kernel[(rows,)](
        guesses,
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        accept_len,
        starts,
        W=8,
        K5=5,
        W5=6,
        BLOCK=8,
    )
    return accept_len, starts


@triton.jit
def commit_3_rows_kernel(
    guesses_ptr,  # B, K3
    verified_ptr,  # B, W3
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    accept_len_out_ptr,  # B, written
    starts_out_ptr,  # B, written
    W: tl.constexpr,
    K3: tl.constexpr,
    W3: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * K3 + lane, mask=lane < K3, other=-1)
    verified = tl.load(verified_ptr + row * W3 + lane, mask=lane < W3, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    accept_len = accept_chain(guesses, verified, lane, K3)
    starts = hold(seq_lens)
    kept = mask_rejected(verified, accept_len, lane)
    wide = widen(kept, lane, W3)
    bonus = take_last(verified, accept_len, lane)
    tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)
    tl.store(accept_len_out_ptr + row, accept_len)
    tl.store(starts_out_ptr + row, starts)


def commit_3_rows(state: Any, guesses: Tensor, verified: Tensor) -> tuple[Tensor, Tensor]:
    """Launch commit_3_rows_kernel, one program a request."""
    rows = guesses.shape[0]
    accept_len = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    commit_3_rows_kernel[(rows,)](
        guesses,
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        accept_len,
        starts,
        W=8,
        K3=3,
        W3=4,
        BLOCK=8,
    )
    return accept_len, starts


@triton.jit
def commit_1_rows_kernel(
    guesses_ptr,  # B, K1
    verified_ptr,  # B, W1
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    accept_len_out_ptr,  # B, written
    starts_out_ptr,  # B, written
    W: tl.constexpr,
    K1: tl.constexpr,
    W1: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * K1 + lane, mask=lane < K1, other=-1)
    verified = tl.load(verified_ptr + row * W1 + lane, mask=lane < W1, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    accept_len = accept_chain(guesses, verified, lane, K1)
    starts = hold(seq_lens)
    kept = mask_rejected(verified, accept_len, lane)
    wide = widen(kept, lane, W1)
    bonus = take_last(verified, accept_len, lane)
    tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)
    tl.store(accept_len_out_ptr + row, accept_len)
    tl.store(starts_out_ptr + row, starts)


def commit_1_rows(state: Any, guesses: Tensor, verified: Tensor) -> tuple[Tensor, Tensor]:
    """Launch commit_1_rows_kernel, one program a request."""
    rows = guesses.shape[0]
    accept_len = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    commit_1_rows_kernel[(rows,)](
        guesses,
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        accept_len,
        starts,
        W=8,
        K1=1,
        W1=2,
        BLOCK=8,
    )
    return accept_len, starts


@triton.jit
def commit_0_rows_kernel(
    verified_ptr,  # B, 1
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    starts_out_ptr,  # B, written
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    verified = tl.load(verified_ptr + row * 1 + lane, mask=lane < 1, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    starts = hold(seq_lens)
    kept = widen(verified, lane, 1)
    bonus = first(verified, lane)
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, 1)
    tl.store(seq_lens_ptr + row, seq_lens + 1)
    tl.store(starts_out_ptr + row, starts)


def commit_0_rows(state: Any, verified: Tensor) -> Tensor:
    """Launch commit_0_rows_kernel, one program a request."""
    rows = verified.shape[0]
    starts = torch.empty(rows, dtype=torch.int64, device=verified.device)
    commit_0_rows_kernel[(rows,)](
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        starts,
        W=8,
        BLOCK=8,
    )
    return starts
