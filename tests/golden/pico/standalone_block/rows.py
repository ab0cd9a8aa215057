"""pico/standalone_block: the row ops of a step, fused.

Generated beside step.py, whose functions of the same names say the same in torch. One program a
request; every value below stays in registers, a request's row as a vector of BLOCK lanes.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.rows_triton import mask_rejected, take_last, take_previous


@triton.jit
def commit_rows_kernel(
    gained_ptr,  # B, W
    accept_len_ptr,  # B
    bonus_token_ptr,  # B
    seq_lens_ptr,  # B
    previous_token_ptr,  # B, written
    output_tokens_ptr,  # B, W, written
    state_accept_len_ptr,  # B, written
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    gained = tl.load(gained_ptr + row * W + lane, mask=lane < W, other=-1)
    accept_len = tl.load(accept_len_ptr + row)
    bonus_token = tl.load(bonus_token_ptr + row)
    seq_lens = tl.load(seq_lens_ptr + row)
    previous = take_previous(bonus_token, gained, accept_len, lane)
    kept = mask_rejected(gained, accept_len, lane)
    bonus = take_last(gained, accept_len, lane)
    tl.store(previous_token_ptr + row, previous)
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(state_accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)


def commit_rows(state: Any, gained: Tensor, accept_len: Tensor) -> None:
    """Launch commit_rows_kernel, one program a request."""
    rows = gained.shape[0]
    commit_rows_kernel[(rows,)](
        gained,
        accept_len,
        state.bonus_token,
        state.seq_lens,
        state.previous_token,
        state.output_tokens,
        state.accept_len,
        W=4,
        BLOCK=4,
    )
