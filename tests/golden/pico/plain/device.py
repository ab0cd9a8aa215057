"""pico/plain: the step of step.py as a device runs it.

Loops are unrolled and phases run on; what lies between two forwards is one kernel wherever one
program a request can do it. Every value of a kernel stays in registers, a request's row as a vector
of BLOCK lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.device import best_token
from specflow.kernels.rows_triton import first
from specflow.models.protocols import Target

from .step import State


@dataclass
class Device(State):
    """The state of a step, and what only a device keeps."""

    arrivals: Tensor  # [B]     programs of a request that are done; 0 between two launches

    @classmethod
    def new(cls, rows: int, device: str) -> Device:
        """Allocate every buffer once, zeroed."""
        arrivals = torch.zeros(rows, dtype=torch.int32, device=device)
        return cls(**vars(State.new(rows, device)), arrivals=arrivals)

    def rows(self, count: int) -> Device:
        """The first `count` requests: views of the same addresses."""
        return Device(**vars(super().rows(count)), arrivals=self.arrivals[:count])


@triton.jit
def rows_1_kernel(
    verified_ptr,  # B, 1
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    lane = tl.arange(0, BLOCK)
    verified = tl.load(verified_ptr + row * 1 + lane, mask=lane < 1, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    bonus = first(verified, lane)
    tl.debug_barrier()  # no thread still has to load what is stored now
    tl.store(output_tokens_ptr + row * W + lane, verified, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, 1)
    tl.store(seq_lens_ptr + row, seq_lens + 1)


def rows_1(state: Device, verified: Tensor) -> None:
    """Launch rows_1_kernel, one program a request."""
    requests = verified.shape[0]
    rows_1_kernel[(requests,)](
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        W=1,
        BLOCK=2,
    )


def step(target: Target, _drafter: object, state: Device) -> None:
    """One captured step: one position is verified. 2 launches outside the forwards."""
    tokens = state.bonus_token[:, None]  # [B, 1]
    logits = target.verify(tokens, state.seq_lens)  # [B, 1, V]
    verified = best_token(logits)  # [B, 1]
    rows_1(state, verified)


VARIANTS = {
    "plain": step,
}
LAUNCHES = {"plain": 2}
