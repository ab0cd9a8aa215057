"""pico/dspark_planned: the row ops of a step, fused.

Generated beside step.py, whose functions of the same names say the same in torch. One program a
request; every value below stays in registers, a request's row as a vector of BLOCK lanes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.rows_triton import accept_chain, cap, hold, mask_rejected, take_last


@triton.jit
def commit_rows_kernel(
    guesses_ptr,  # B, K
    verified_ptr,  # B, W
    verify_len_ptr,  # B
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    starts_out_ptr,  # B, written
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
    verified = tl.load(verified_ptr + row * W + lane, mask=lane < W, other=-1)
    verify_len = tl.load(verify_len_ptr + row)
    seq_lens = tl.load(seq_lens_ptr + row)
    accept_len = accept_chain(guesses, verified, lane, K)
    kept_len = cap(accept_len, verify_len)
    starts = hold(seq_lens)
    kept = mask_rejected(verified, kept_len, lane)
    bonus = take_last(verified, kept_len, lane)
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, kept_len)
    tl.store(seq_lens_ptr + row, seq_lens + kept_len)
    tl.store(starts_out_ptr + row, starts)


def commit_rows(state: Any, guesses: Tensor, verified: Tensor, verify_len: Tensor) -> Tensor:
    """Launch commit_rows_kernel, one program a request."""
    rows = guesses.shape[0]
    starts = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    commit_rows_kernel[(rows,)](
        guesses,
        verified,
        verify_len,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        starts,
        K=7,
        W=8,
        BLOCK=8,
    )
    return starts
