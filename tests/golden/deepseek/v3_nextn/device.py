"""deepseek/v3_nextn: the step of step.py as a device runs it.

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
    copy_row,
    hold,
    mask_rejected,
    take_last,
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
    logits_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    seq_lens_ptr,  # B
    guess_out_ptr,  # B, written
    position_out_ptr,  # B, written
    V,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    part = tl.program_id(1)
    find_best(logits_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        seq_lens = tl.load(seq_lens_ptr + row)
        guess = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        position = seq_lens + 2 - 1
        tl.store(guess_out_ptr + row, guess)
        tl.store(position_out_ptr + row, position)


def rows_1(state: Device, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Launch rows_1_kernel, PARTS programs a request."""
    requests = state.seq_lens.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests, PARTS, device=state.seq_lens.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guess = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    position = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    rows_1_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        state.seq_lens,
        guess,
        position,
        logits.shape[-1],
        TILE=TILE,
        PARTS=PARTS,
    )
    return guess, position


@triton.jit
def rows_2_kernel(
    logits_2_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_ptr,  # B
    first_guess_ptr,  # B
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
    find_best(logits_2_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guess = tl.load(guess_ptr + row)
        first_guess = tl.load(first_guess_ptr + row)
        bonus_token = tl.load(bonus_token_ptr + row)
        guess_2 = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        guesses = tl.full((BLOCK,), -1, tl.int64)
        guesses = tl.where(lane == 0, first_guess, guesses)
        guesses = tl.where(lane == 1, guess, guesses)
        guesses = tl.where(lane == 2, guess_2, guesses)
        tokens = window(bonus_token, guesses, lane)
        tl.store(guesses_out_ptr + row * K + lane, guesses, mask=lane < K)
        tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def rows_2(state: Device, logits_2: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
    """Launch rows_2_kernel, PARTS programs a request."""
    requests = guess.shape[0]
    logits_2 = logits_2.contiguous()
    best = torch.empty(requests, PARTS, device=guess.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guesses = torch.empty(requests, 3, dtype=torch.int64, device=guess.device)
    tokens = torch.empty(requests, 4, dtype=torch.int64, device=guess.device)
    rows_2_kernel[(requests, PARTS)](
        logits_2,
        best,
        words,
        state.arrivals,
        guess,
        state.first_guess,
        state.bonus_token,
        guesses,
        tokens,
        logits_2.shape[-1],
        K=3,
        W=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=4,
    )
    return guesses, tokens


@triton.jit
def rows_3_kernel(
    logits_3_ptr,  # B, W, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guesses_ptr,  # B, K
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    verified_out_ptr,  # B, W, written
    accept_len_out_ptr,  # B, written
    starts_out_ptr,  # B, written
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
        find_best(logits_3_ptr + at * V, best_ptr, words_ptr, at, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
        seq_lens = tl.load(seq_lens_ptr + row)
        verified = best_of_rows(best_ptr, words_ptr, row * W, lane, V, W, BLOCK, PARTS)
        accept_len = accept_chain(guesses, verified, lane, K)
        starts = hold(seq_lens)
        kept = mask_rejected(verified, accept_len, lane)
        bonus = take_last(verified, accept_len, lane)
        tl.debug_barrier()  # no thread still has to load what is stored now
        tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
        tl.store(bonus_token_ptr + row, bonus)
        tl.store(accept_len_ptr + row, accept_len)
        tl.store(seq_lens_ptr + row, seq_lens + accept_len)
        tl.store(verified_out_ptr + row * W + lane, verified, mask=lane < W)
        tl.store(accept_len_out_ptr + row, accept_len)
        tl.store(starts_out_ptr + row, starts)


def rows_3(state: Device, logits_3: Tensor, guesses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Launch rows_3_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits_3 = logits_3.contiguous()
    best = torch.empty(requests * 4, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    verified = torch.empty(requests, 4, dtype=torch.int64, device=guesses.device)
    accept_len = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    rows_3_kernel[(requests, PARTS)](
        logits_3,
        best,
        words,
        state.arrivals,
        guesses,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        verified,
        accept_len,
        starts,
        logits_3.shape[-1],
        K=3,
        W=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=4,
    )
    return verified, accept_len, starts


@triton.jit
def rows_4_kernel(
    logits_4_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    first_guess_ptr,  # B, written
    draft_hidden_ptr,  # B, H, written
    standing_ptr,  # B, H
    V,
    standing_wide,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    part = tl.program_id(1)
    find_best(logits_4_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        guess_3 = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        tl.store(first_guess_ptr + row, guess_3)
        copy_row(draft_hidden_ptr, standing_ptr, row, standing_wide)


def rows_4(state: Device, logits_4: Tensor, standing: Tensor) -> None:
    """Launch rows_4_kernel, PARTS programs a request."""
    requests = logits_4.shape[0]
    logits_4 = logits_4.contiguous()
    best = torch.empty(requests, PARTS, device=logits_4.device)
    words = torch.empty_like(best, dtype=torch.int64)
    standing = standing.contiguous()
    rows_4_kernel[(requests, PARTS)](
        logits_4,
        best,
        words,
        state.arrivals,
        state.first_guess,
        state.draft_hidden,
        standing,
        logits_4.shape[-1],
        standing.shape[-1],
        TILE=TILE,
        PARTS=PARTS,
    )


def step(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: all guesses are verified. 4 launches outside the forwards."""
    # shapes given: [B, V], [B, H]
    logits, hidden = drafter.decode_hidden(state.first_guess, state.draft_hidden, state.seq_lens)
    guess, position = rows_1(state, logits)  # [B], [B]
    logits_2, _hidden_2 = drafter.decode_hidden(guess, hidden, position)  # [B, V], [B, H]
    guesses, tokens = rows_2(state, logits_2, guess)  # [B, K], [B, W]
    logits_3, hidden_3 = target.verify_hidden(tokens, state.seq_lens)  # [B, W, V], [B, W, H]
    verified, accept_len, starts = rows_3(state, logits_3, guesses)  # [B, W], [B], [B]
    # shapes given: [B, V], [B, H]
    logits_4, standing = drafter.extend_hidden(verified, hidden_3, starts, accept_len)
    rows_4(state, logits_4, standing)


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 4}
