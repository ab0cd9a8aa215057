"""pico/plain: the row ops of a step, fused.

Generated beside step.py, whose functions of the same names say the same in torch. One program a
request; every value below stays in registers, a request's row as a vector of BLOCK lanes.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.rows_triton import first


@triton.jit
def commit_rows_kernel(
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
    bonus = first(verified, lane)
    tl.store(output_tokens_ptr + row * W + lane, verified, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, 1)
    tl.store(seq_lens_ptr + row, seq_lens + 1)


def commit_rows(state: Any, verified: Tensor) -> None:
    """Launch commit_rows_kernel, one program a request."""
    rows = verified.shape[0]
    commit_rows_kernel[(rows,)](
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        W=1,
        BLOCK=2,
    )
