"""llama/llama3_1_speculators: the step of step.py as a device runs it.

The step stands first, then its kernels. Loops are unrolled and phases run on; what lies between
two forwards is one kernel wherever one program a request can do it, named after what it keeps in
the state, else after what it makes. Every value of a kernel stays in registers, a request's row as
a vector of BLOCK lanes.
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
    look_up,
    mask_rejected,
    take_last,
    window,
)
from specflow.kernels.vocab_triton import arrived_last, best_of_parts, best_of_rows, find_best
from specflow.models.protocols import Draft, Target

from .step import TAPS, State

PARTS = 32  # programs that look for the best of a row of logits together
TILE = 2048  # logits that one of them looks at at once


@dataclass
class Device(State):
    """The state of a step, and what only a device keeps.

    Of the programs that look for the best of a request's logits, the one that arrives last goes on.
    """

    arrivals: Tensor  # [B]     programs of a request that have arrived; 0 between two launches

    @classmethod
    def new(cls, rows: int, device: str) -> Device:
        """Allocate every buffer once, zeroed."""
        arrivals = torch.zeros(rows, dtype=torch.int32, device=device)
        return cls(**vars(State.new(rows, device)), arrivals=arrivals)

    def rows(self, count: int) -> Device:
        """The first `count` requests: views of the same addresses."""
        return Device(**vars(super().rows(count)), arrivals=self.arrivals[:count])


def step(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: all guesses are verified. 4 launches outside the forwards."""
    # shapes given: [B, V], [B, H]
    logits, hidden = drafter.decode_hidden(state.first_guess, state.draft_hidden, state.seq_lens)
    guess, position = make_guess(state, drafter, logits, 2)  # [B], [B]
    logits_2, _hidden_2 = drafter.decode_hidden(guess, hidden, position)  # [B, V], [B, H]
    guesses, tokens = make_guesses(state, drafter, logits_2, guess)  # [B, K], [B, W]
    logits_3, taps = target.verify_taps(tokens, state.seq_lens, TAPS)  # [B, W, V], [B, W, n * H]
    verified, accept_len, starts = keep_output_tokens(state, logits_3, guesses)  # [B, W], [B], [B]
    logits_4, standing = drafter.extend_hidden(verified, taps, starts, accept_len)  # [B, V], [B, H]
    keep_first_guess(state, drafter, logits_4, standing)


@triton.jit
def make_guess_kernel(
    logits_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    seq_lens_ptr,  # B
    guess_out_ptr,  # B, written
    position_out_ptr,  # B, written
    to_target_ptr,
    turn,
    V,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    find_best(logits_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        seq_lens = tl.load(seq_lens_ptr + row)
        word = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        guess = look_up(word, to_target_ptr)
        position = seq_lens + turn - 1
        tl.store(guess_out_ptr + row, guess)
        tl.store(position_out_ptr + row, position)


def make_guess(state: Device, drafter: Draft, logits: Tensor, turn: int) -> tuple[Tensor, Tensor]:
    """Launch make_guess_kernel, PARTS programs a request."""
    requests = state.seq_lens.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests, PARTS, device=state.seq_lens.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guess = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    position = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    make_guess_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        state.seq_lens,
        guess,
        position,
        drafter.to_target,
        turn,
        logits.shape[-1],
        TILE=TILE,
        PARTS=PARTS,
    )
    return guess, position


@triton.jit
def make_guesses_kernel(
    logits_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_ptr,  # B
    first_guess_ptr,  # B
    bonus_token_ptr,  # B
    guesses_out_ptr,  # B, K, written
    tokens_out_ptr,  # B, W, written
    to_target_ptr,
    V,
    K: tl.constexpr,
    W: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    find_best(logits_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guess = tl.load(guess_ptr + row)
        first_guess = tl.load(first_guess_ptr + row)
        bonus_token = tl.load(bonus_token_ptr + row)
        word = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        guess_2 = look_up(word, to_target_ptr)
        guesses = tl.full((BLOCK,), -1, tl.int64)
        guesses = tl.where(lane == 0, first_guess, guesses)
        guesses = tl.where(lane == 1, guess, guesses)
        guesses = tl.where(lane == 2, guess_2, guesses)
        tokens = window(bonus_token, guesses, lane)
        tl.store(guesses_out_ptr + row * K + lane, guesses, mask=lane < K)
        tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def make_guesses(
    state: Device, drafter: Draft, logits: Tensor, guess: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch make_guesses_kernel, PARTS programs a request."""
    requests = guess.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests, PARTS, device=guess.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guesses = torch.empty(requests, 3, dtype=torch.int64, device=guess.device)
    tokens = torch.empty(requests, 4, dtype=torch.int64, device=guess.device)
    make_guesses_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        guess,
        state.first_guess,
        state.bonus_token,
        guesses,
        tokens,
        drafter.to_target,
        logits.shape[-1],
        K=3,
        W=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=4,
    )
    return guesses, tokens


@triton.jit
def keep_output_tokens_kernel(
    logits_ptr,  # B, W, V
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
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    for i in range(W):
        at = row * W + i
        find_best(logits_ptr + at * V, best_ptr, words_ptr, at, part, V, TILE, PARTS)
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


def keep_output_tokens(
    state: Device, logits: Tensor, guesses: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch keep_output_tokens_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 4, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    verified = torch.empty(requests, 4, dtype=torch.int64, device=guesses.device)
    accept_len = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    keep_output_tokens_kernel[(requests, PARTS)](
        logits,
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
        logits.shape[-1],
        K=3,
        W=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=4,
    )
    return verified, accept_len, starts


@triton.jit
def keep_first_guess_kernel(
    logits_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    first_guess_ptr,  # B, written
    draft_hidden_ptr,  # B, H, written
    standing_ptr,  # B, H
    to_target_ptr,
    V,
    standing_wide,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    find_best(logits_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        word = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        guess = look_up(word, to_target_ptr)
        tl.store(first_guess_ptr + row, guess)
        copy_row(draft_hidden_ptr, standing_ptr, row, standing_wide)


def keep_first_guess(state: Device, drafter: Draft, logits: Tensor, standing: Tensor) -> None:
    """Launch keep_first_guess_kernel, PARTS programs a request."""
    requests = logits.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests, PARTS, device=logits.device)
    words = torch.empty_like(best, dtype=torch.int64)
    standing = standing.contiguous()
    keep_first_guess_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        state.first_guess,
        state.draft_hidden,
        standing,
        drafter.to_target,
        logits.shape[-1],
        standing.shape[-1],
        TILE=TILE,
        PARTS=PARTS,
    )


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 4}
