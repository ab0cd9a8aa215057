"""pico/standalone: the step of step.py as a device runs it.

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

from specflow.kernels.rows_triton import (
    accept_chain,
    mask_rejected,
    take_last,
    take_previous,
    window,
)
from specflow.kernels.vocab_triton import arrived_last, best_of_parts, best_of_rows, find_best
from specflow.models.protocols import Draft, Target

from .step import State

PARTS = 32  # programs that look for the best of a row of logits together
TILE = 2048  # logits that one of them looks at at once


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
    seq_lens_ptr,  # B
    behind_out_ptr,  # B, written
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    seq_lens = tl.load(seq_lens_ptr + row)
    behind = seq_lens - 1
    tl.store(behind_out_ptr + row, behind)


def rows_1(state: Device) -> Tensor:
    """Launch rows_1_kernel, one program a request."""
    requests = state.seq_lens.shape[0]
    behind = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    rows_1_kernel[(requests,)](
        state.seq_lens,
        behind,
    )
    return behind


@triton.jit
def rows_2_kernel(
    logits_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_out_ptr,  # B, written
    V,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    part = tl.program_id(1)
    find_best(logits_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        guess = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        tl.store(guess_out_ptr + row, guess)


def rows_2(state: Device, logits: Tensor) -> Tensor:
    """Launch rows_2_kernel, PARTS programs a request."""
    requests = logits.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests, PARTS, device=logits.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guess = torch.empty(requests, dtype=torch.int64, device=logits.device)
    rows_2_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        guess,
        logits.shape[-1],
        TILE=TILE,
        PARTS=PARTS,
    )
    return guess


@triton.jit
def rows_3_kernel(
    seq_lens_ptr,  # B
    position_out_ptr,  # B, written
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    seq_lens = tl.load(seq_lens_ptr + row)
    position = seq_lens + 1
    tl.store(position_out_ptr + row, position)


def rows_3(state: Device) -> Tensor:
    """Launch rows_3_kernel, one program a request."""
    requests = state.seq_lens.shape[0]
    position = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    rows_3_kernel[(requests,)](
        state.seq_lens,
        position,
    )
    return position


@triton.jit
def rows_4_kernel(
    logits_2_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_2_out_ptr,  # B, written
    V,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    part = tl.program_id(1)
    find_best(logits_2_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        guess_2 = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        tl.store(guess_2_out_ptr + row, guess_2)


def rows_4(state: Device, logits_2: Tensor) -> Tensor:
    """Launch rows_4_kernel, PARTS programs a request."""
    requests = logits_2.shape[0]
    logits_2 = logits_2.contiguous()
    best = torch.empty(requests, PARTS, device=logits_2.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guess_2 = torch.empty(requests, dtype=torch.int64, device=logits_2.device)
    rows_4_kernel[(requests, PARTS)](
        logits_2,
        best,
        words,
        state.arrivals,
        guess_2,
        logits_2.shape[-1],
        TILE=TILE,
        PARTS=PARTS,
    )
    return guess_2


@triton.jit
def rows_5_kernel(
    seq_lens_ptr,  # B
    position_2_out_ptr,  # B, written
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    seq_lens = tl.load(seq_lens_ptr + row)
    position_2 = seq_lens + 2
    tl.store(position_2_out_ptr + row, position_2)


def rows_5(state: Device) -> Tensor:
    """Launch rows_5_kernel, one program a request."""
    requests = state.seq_lens.shape[0]
    position_2 = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    rows_5_kernel[(requests,)](
        state.seq_lens,
        position_2,
    )
    return position_2


@triton.jit
def rows_6_kernel(
    logits_3_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_ptr,  # B
    guess_2_ptr,  # B
    bonus_token_ptr,  # B
    guesses_out_ptr,  # B, K, written
    tokens_out_ptr,  # B, W, written
    V,
    K: tl.constexpr,
    W: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    part = tl.program_id(1)
    find_best(logits_3_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guess = tl.load(guess_ptr + row)
        guess_2 = tl.load(guess_2_ptr + row)
        bonus_token = tl.load(bonus_token_ptr + row)
        guess_3 = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        guesses = tl.full((BLOCK,), -1, tl.int64)
        guesses = tl.where(lane == 0, guess, guesses)
        guesses = tl.where(lane == 1, guess_2, guesses)
        guesses = tl.where(lane == 2, guess_3, guesses)
        tokens = window(bonus_token, guesses, lane)
        tl.store(guesses_out_ptr + row * K + lane, guesses, mask=lane < K)
        tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def rows_6(
    state: Device, logits_3: Tensor, guess: Tensor, guess_2: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch rows_6_kernel, PARTS programs a request."""
    requests = guess.shape[0]
    logits_3 = logits_3.contiguous()
    best = torch.empty(requests, PARTS, device=guess.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guesses = torch.empty(requests, 3, dtype=torch.int64, device=guess.device)
    tokens = torch.empty(requests, 4, dtype=torch.int64, device=guess.device)
    rows_6_kernel[(requests, PARTS)](
        logits_3,
        best,
        words,
        state.arrivals,
        guess,
        guess_2,
        state.bonus_token,
        guesses,
        tokens,
        logits_3.shape[-1],
        K=3,
        W=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=4,
    )
    return guesses, tokens


@triton.jit
def rows_7_kernel(
    logits_4_ptr,  # B, W, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guesses_ptr,  # B, K
    bonus_token_ptr,  # B
    seq_lens_ptr,  # B
    previous_token_ptr,  # B, written
    output_tokens_ptr,  # B, W, written
    accept_len_ptr,  # B, written
    V,
    K: tl.constexpr,
    W: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    part = tl.program_id(1)
    for i in range(W):
        at = row * W + i
        find_best(logits_4_ptr + at * V, best_ptr, words_ptr, at, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
        bonus_token = tl.load(bonus_token_ptr + row)
        seq_lens = tl.load(seq_lens_ptr + row)
        verified = best_of_rows(best_ptr, words_ptr, row * W, lane, V, W, BLOCK, PARTS)
        accept_len = accept_chain(guesses, verified, lane, K)
        previous = take_previous(bonus_token, verified, accept_len, lane)
        kept = mask_rejected(verified, accept_len, lane)
        bonus = take_last(verified, accept_len, lane)
        tl.debug_barrier()  # no thread still has to load what is stored now
        tl.store(previous_token_ptr + row, previous)
        tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
        tl.store(bonus_token_ptr + row, bonus)
        tl.store(accept_len_ptr + row, accept_len)
        tl.store(seq_lens_ptr + row, seq_lens + accept_len)


def rows_7(state: Device, logits_4: Tensor, guesses: Tensor) -> None:
    """Launch rows_7_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits_4 = logits_4.contiguous()
    best = torch.empty(requests * 4, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    rows_7_kernel[(requests, PARTS)](
        logits_4,
        best,
        words,
        state.arrivals,
        guesses,
        state.bonus_token,
        state.seq_lens,
        state.previous_token,
        state.output_tokens,
        state.accept_len,
        logits_4.shape[-1],
        K=3,
        W=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=4,
    )


def step(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: all guesses are verified. 8 launches outside the forwards."""
    pair = torch.stack([state.previous_token, state.bonus_token], dim=1)  # [B, 2]
    behind = rows_1(state)  # [B]
    logits = drafter.decode(pair, behind)  # [B, V]
    guess = rows_2(state, logits)  # [B]
    column = guess[:, None]  # [B, 1]
    position = rows_3(state)  # [B]
    logits_2 = drafter.decode(column, position)  # [B, V]
    guess_2 = rows_4(state, logits_2)  # [B]
    column_2 = guess_2[:, None]  # [B, 1]
    position_2 = rows_5(state)  # [B]
    logits_3 = drafter.decode(column_2, position_2)  # [B, V]
    guesses, tokens = rows_6(state, logits_3, guess, guess_2)  # [B, K], [B, W]
    logits_4 = target.verify(tokens, state.seq_lens)  # [B, W, V]
    rows_7(state, logits_4, guesses)


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 8}
