"""pico/dspark_block: the row ops of a step, fused.

Generated beside step.py, whose functions of the same names say the same in torch. One program a
request; every value below stays in registers, a request's row as a vector of BLOCK lanes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.rows_triton import hold, mask_rejected, take_last


@triton.jit
def commit_rows_kernel(
    gained_ptr,  # B, W
    accept_len_ptr,  # B
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    state_accept_len_ptr,  # B, written
    starts_out_ptr,  # B, written
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    gained = tl.load(gained_ptr + row * W + lane, mask=lane < W, other=-1)
    accept_len = tl.load(accept_len_ptr + row)
    seq_lens = tl.load(seq_lens_ptr + row)
    starts = hold(seq_lens)
    kept = mask_rejected(gained, accept_len, lane)
    bonus = take_last(gained, accept_len, lane)
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(state_accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)
    tl.store(starts_out_ptr + row, starts)


def commit_rows(state: Any, gained: Tensor, accept_len: Tensor) -> Tensor:
    """Launch commit_rows_kernel, one program a request."""
    rows = gained.shape[0]
    starts = torch.empty(rows, dtype=torch.int64, device=gained.device)
    commit_rows_kernel[(rows,)](
        gained,
        accept_len,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        starts,
        W=8,
        BLOCK=8,
    )
    return starts
