"""pico/ngram_chain: the row ops of a step, fused.

Generated beside step.py, whose functions of the same names say the same in torch. One program a
request; every value below stays in registers, a request's row as a vector of BLOCK lanes.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.rows_triton import accept_chain, first, mask_rejected, take_last, widen


@triton.jit
def commit_rows_kernel(
    verified_ptr,  # B, W
    guesses_ptr,  # B, K
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    verified = tl.load(verified_ptr + row * W + lane, mask=lane < W, other=-1)
    guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    accept_len = accept_chain(guesses, verified, lane, K)
    kept = mask_rejected(verified, accept_len, lane)
    bonus = take_last(verified, accept_len, lane)
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)


def commit_rows(state: Any, verified: Tensor) -> None:
    """Launch commit_rows_kernel, one program a request."""
    rows = verified.shape[0]
    commit_rows_kernel[(rows,)](
        verified,
        state.guesses,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        K=7,
        W=8,
        BLOCK=8,
    )


@triton.jit
def commit_narrow_rows_kernel(
    guesses_ptr,  # B, k
    verified_ptr,  # B, w
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    W: tl.constexpr,
    k: tl.constexpr,
    w: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * k + lane, mask=lane < k, other=-1)
    verified = tl.load(verified_ptr + row * w + lane, mask=lane < w, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    accept_len = accept_chain(guesses, verified, lane, k)
    kept = mask_rejected(verified, accept_len, lane)
    wide = widen(kept, lane, w)
    bonus = take_last(verified, accept_len, lane)
    tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)


def commit_narrow_rows(state: Any, guesses: Tensor, verified: Tensor) -> None:
    """Launch commit_narrow_rows_kernel, one program a request."""
    rows = guesses.shape[0]
    commit_narrow_rows_kernel[(rows,)](
        guesses,
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        W=8,
        k=3,
        w=4,
        BLOCK=8,
    )


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
        W=8,
        BLOCK=8,
    )
