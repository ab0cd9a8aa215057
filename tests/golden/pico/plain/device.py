"""pico/plain: the step of step.py as a device runs it.

The step stands first, then its kernels. Loops are unrolled and phases run on; what lies between
two forwards is one kernel wherever one program a request can do it, named after what it keeps in
the state, else after what it makes. Every value of a kernel stays in registers, a request's row as
a vector of BLOCK lanes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.device import best_token
from specflow.kernels.rows_triton import first
from specflow.models.protocols import Target

from .step import State

Device = State  # a device keeps nothing beside it


def step(target: Target, _drafter: object, state: Device) -> None:
    """One captured step: one position is verified. 2 launches outside the forwards."""
    tokens = state.bonus_token[:, None]  # [B, 1]
    logits = target.verify(tokens, state.seq_lens)  # [B, 1, V]
    verified = best_token(logits)  # [B, 1]
    keep_output_tokens(state, verified)


@triton.jit
def keep_output_tokens_kernel(
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
    tl.debug_barrier()  # no thread still has to load what is stored now
    tl.store(output_tokens_ptr + row * W + lane, verified, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, 1)
    tl.store(seq_lens_ptr + row, seq_lens + 1)


def keep_output_tokens(state: Device, verified: Tensor) -> None:
    """Launch keep_output_tokens_kernel, one program a request."""
    requests = verified.shape[0]
    keep_output_tokens_kernel[(requests,)](
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        W=1,
        BLOCK=2,
    )


VARIANTS = {
    "plain": step,
}
LAUNCHES = {"plain": 2}
