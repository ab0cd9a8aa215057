"""pico/eagle3_adaptive: the step of step.py as a device runs it.

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

from specflow.kernels.device import best_token
from specflow.kernels.rows_triton import (
    accept_chain,
    copy_row,
    first,
    hold,
    look_up,
    mask_rejected,
    take_last,
    widen,
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
    """One captured step: 7 guesses are verified. 8 launches outside the forwards."""
    # shapes given: [B, V], [B, H]
    logits, hidden = drafter.decode_hidden(state.first_guess, state.draft_hidden, state.seq_lens)
    guess, position = make_guess(state, drafter, logits, 2)  # [B], [B]
    logits_2, hidden_2 = drafter.decode_hidden(guess, hidden, position)  # [B, V], [B, H]
    guess_2, position_2 = make_guess(state, drafter, logits_2, 3)  # [B], [B]
    logits_3, hidden_3 = drafter.decode_hidden(guess_2, hidden_2, position_2)  # [B, V], [B, H]
    guess_3, position_3 = make_guess(state, drafter, logits_3, 4)  # [B], [B]
    logits_4, hidden_4 = drafter.decode_hidden(guess_3, hidden_3, position_3)  # [B, V], [B, H]
    guess_4, position_4 = make_guess(state, drafter, logits_4, 5)  # [B], [B]
    logits_5, hidden_5 = drafter.decode_hidden(guess_4, hidden_4, position_4)  # [B, V], [B, H]
    guess_5, position_5 = make_guess(state, drafter, logits_5, 6)  # [B], [B]
    logits_6, _hidden_6 = drafter.decode_hidden(guess_5, hidden_5, position_5)  # [B, V], [B, H]
    # shapes given: [B, K7], [B, W7]
    guesses, tokens = make_guesses(
        state, drafter, logits_6, guess, guess_2, guess_3, guess_4, guess_5
    )
    logits_7, taps = target.verify_taps(tokens, state.seq_lens, TAPS)  # [B, W7, V], [B, W7, n * H]
    verified, accept_len, starts = keep_output_tokens(state, logits_7, guesses)  # [B, W7], [B], [B]
    logits_8, standing = drafter.extend_hidden(verified, taps, starts, accept_len)  # [B, V], [B, H]
    keep_first_guess(state, drafter, logits_8, standing)


def step_steps_5(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: 5 guesses are verified. 6 launches outside the forwards."""
    # shapes given: [B, V], [B, H]
    logits, hidden = drafter.decode_hidden(state.first_guess, state.draft_hidden, state.seq_lens)
    guess, position = make_guess(state, drafter, logits, 2)  # [B], [B]
    logits_2, hidden_2 = drafter.decode_hidden(guess, hidden, position)  # [B, V], [B, H]
    guess_2, position_2 = make_guess(state, drafter, logits_2, 3)  # [B], [B]
    logits_3, hidden_3 = drafter.decode_hidden(guess_2, hidden_2, position_2)  # [B, V], [B, H]
    guess_3, position_3 = make_guess(state, drafter, logits_3, 4)  # [B], [B]
    logits_4, _hidden_4 = drafter.decode_hidden(guess_3, hidden_3, position_3)  # [B, V], [B, H]
    # shapes given: [B, K5], [B, W5]
    guesses, tokens = steps_5_make_guesses(state, drafter, logits_4, guess, guess_2, guess_3)
    logits_5, taps = target.verify_taps(tokens, state.seq_lens, TAPS)  # [B, W5, V], [B, W5, n * H]
    # shapes given: [B, W5], [B], [B]
    verified, accept_len, starts = steps_5_keep_output_tokens(state, logits_5, guesses)
    logits_6, standing = drafter.extend_hidden(verified, taps, starts, accept_len)  # [B, V], [B, H]
    keep_first_guess(state, drafter, logits_6, standing)


def step_steps_3(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: 3 guesses are verified. 4 launches outside the forwards."""
    # shapes given: [B, V], [B, H]
    logits, hidden = drafter.decode_hidden(state.first_guess, state.draft_hidden, state.seq_lens)
    guess, position = make_guess(state, drafter, logits, 2)  # [B], [B]
    logits_2, _hidden_2 = drafter.decode_hidden(guess, hidden, position)  # [B, V], [B, H]
    guesses, tokens = steps_3_make_guesses(state, drafter, logits_2, guess)  # [B, K3], [B, W3]
    logits_3, taps = target.verify_taps(tokens, state.seq_lens, TAPS)  # [B, W3, V], [B, W3, n * H]
    # shapes given: [B, W3], [B], [B]
    verified, accept_len, starts = steps_3_keep_output_tokens(state, logits_3, guesses)
    logits_4, standing = drafter.extend_hidden(verified, taps, starts, accept_len)  # [B, V], [B, H]
    keep_first_guess(state, drafter, logits_4, standing)


def step_steps_1(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: 1 guess is verified. 3 launches outside the forwards."""
    guesses, tokens = steps_1_make_guesses(state)  # [B, K1], [B, W1]
    logits, taps = target.verify_taps(tokens, state.seq_lens, TAPS)  # [B, W1, V], [B, W1, n * H]
    # shapes given: [B, W1], [B], [B]
    verified, accept_len, starts = steps_1_keep_output_tokens(state, logits, guesses)
    logits_2, standing = drafter.extend_hidden(verified, taps, starts, accept_len)  # [B, V], [B, H]
    keep_first_guess(state, drafter, logits_2, standing)


def step_steps_0(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: one position is verified. 3 launches outside the forwards."""
    tokens = state.bonus_token[:, None]  # [B, 1]
    logits, taps = target.verify_taps(tokens, state.seq_lens, TAPS)  # [B, 1, V], [B, 1, n * H]
    verified = best_token(logits)  # [B, 1]
    starts = steps_0_keep_output_tokens(state, verified)  # [B]
    # shapes given: [B, V], [B, H]
    logits_2, standing = drafter.extend_hidden(verified, taps, starts, state.accept_len)
    keep_first_guess(state, drafter, logits_2, standing)


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
    guess_2_ptr,  # B
    guess_3_ptr,  # B
    guess_4_ptr,  # B
    guess_5_ptr,  # B
    first_guess_ptr,  # B
    bonus_token_ptr,  # B
    guesses_out_ptr,  # B, K7, written
    tokens_out_ptr,  # B, W7, written
    to_target_ptr,
    V,
    K7: tl.constexpr,
    W7: tl.constexpr,
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
        guess_2 = tl.load(guess_2_ptr + row)
        guess_3 = tl.load(guess_3_ptr + row)
        guess_4 = tl.load(guess_4_ptr + row)
        guess_5 = tl.load(guess_5_ptr + row)
        first_guess = tl.load(first_guess_ptr + row)
        bonus_token = tl.load(bonus_token_ptr + row)
        word = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        guess_6 = look_up(word, to_target_ptr)
        guesses = tl.full((BLOCK,), -1, tl.int64)
        guesses = tl.where(lane == 0, first_guess, guesses)
        guesses = tl.where(lane == 1, guess, guesses)
        guesses = tl.where(lane == 2, guess_2, guesses)
        guesses = tl.where(lane == 3, guess_3, guesses)
        guesses = tl.where(lane == 4, guess_4, guesses)
        guesses = tl.where(lane == 5, guess_5, guesses)
        guesses = tl.where(lane == 6, guess_6, guesses)
        tokens = window(bonus_token, guesses, lane)
        tl.store(guesses_out_ptr + row * K7 + lane, guesses, mask=lane < K7)
        tl.store(tokens_out_ptr + row * W7 + lane, tokens, mask=lane < W7)


def make_guesses(
    state: Device,
    drafter: Draft,
    logits: Tensor,
    guess: Tensor,
    guess_2: Tensor,
    guess_3: Tensor,
    guess_4: Tensor,
    guess_5: Tensor,
) -> tuple[Tensor, Tensor]:
    """Launch make_guesses_kernel, PARTS programs a request."""
    requests = guess.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests, PARTS, device=guess.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guesses = torch.empty(requests, 7, dtype=torch.int64, device=guess.device)
    tokens = torch.empty(requests, 8, dtype=torch.int64, device=guess.device)
    make_guesses_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        guess,
        guess_2,
        guess_3,
        guess_4,
        guess_5,
        state.first_guess,
        state.bonus_token,
        guesses,
        tokens,
        drafter.to_target,
        logits.shape[-1],
        K7=7,
        W7=8,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )
    return guesses, tokens


@triton.jit
def keep_output_tokens_kernel(
    logits_ptr,  # B, W7, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guesses_ptr,  # B, K7
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    verified_out_ptr,  # B, W7, written
    accept_len_out_ptr,  # B, written
    starts_out_ptr,  # B, written
    V,
    W: tl.constexpr,
    K7: tl.constexpr,
    W7: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    for i in range(W7):
        at = row * W7 + i
        find_best(logits_ptr + at * V, best_ptr, words_ptr, at, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guesses = tl.load(guesses_ptr + row * K7 + lane, mask=lane < K7, other=-1)
        seq_lens = tl.load(seq_lens_ptr + row)
        verified = best_of_rows(best_ptr, words_ptr, row * W7, lane, V, W7, BLOCK, PARTS)
        accept_len = accept_chain(guesses, verified, lane, K7)
        starts = hold(seq_lens)
        kept = mask_rejected(verified, accept_len, lane)
        wide = widen(kept, lane, W7)
        bonus = take_last(verified, accept_len, lane)
        tl.debug_barrier()  # no thread still has to load what is stored now
        tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
        tl.store(bonus_token_ptr + row, bonus)
        tl.store(accept_len_ptr + row, accept_len)
        tl.store(seq_lens_ptr + row, seq_lens + accept_len)
        tl.store(verified_out_ptr + row * W7 + lane, verified, mask=lane < W7)
        tl.store(accept_len_out_ptr + row, accept_len)
        tl.store(starts_out_ptr + row, starts)


def keep_output_tokens(
    state: Device, logits: Tensor, guesses: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch keep_output_tokens_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 8, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    verified = torch.empty(requests, 8, dtype=torch.int64, device=guesses.device)
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
        W=8,
        K7=7,
        W7=8,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
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


@triton.jit
def steps_5_make_guesses_kernel(
    logits_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_ptr,  # B
    guess_2_ptr,  # B
    guess_3_ptr,  # B
    first_guess_ptr,  # B
    bonus_token_ptr,  # B
    guesses_out_ptr,  # B, K5, written
    tokens_out_ptr,  # B, W5, written
    to_target_ptr,
    V,
    K5: tl.constexpr,
    W5: tl.constexpr,
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
        guess_2 = tl.load(guess_2_ptr + row)
        guess_3 = tl.load(guess_3_ptr + row)
        first_guess = tl.load(first_guess_ptr + row)
        bonus_token = tl.load(bonus_token_ptr + row)
        word = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        guess_4 = look_up(word, to_target_ptr)
        guesses = tl.full((BLOCK,), -1, tl.int64)
        guesses = tl.where(lane == 0, first_guess, guesses)
        guesses = tl.where(lane == 1, guess, guesses)
        guesses = tl.where(lane == 2, guess_2, guesses)
        guesses = tl.where(lane == 3, guess_3, guesses)
        guesses = tl.where(lane == 4, guess_4, guesses)
        tokens = window(bonus_token, guesses, lane)
        tl.store(guesses_out_ptr + row * K5 + lane, guesses, mask=lane < K5)
        tl.store(tokens_out_ptr + row * W5 + lane, tokens, mask=lane < W5)


def steps_5_make_guesses(
    state: Device, drafter: Draft, logits: Tensor, guess: Tensor, guess_2: Tensor, guess_3: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch steps_5_make_guesses_kernel, PARTS programs a request."""
    requests = guess.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests, PARTS, device=guess.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guesses = torch.empty(requests, 5, dtype=torch.int64, device=guess.device)
    tokens = torch.empty(requests, 6, dtype=torch.int64, device=guess.device)
    steps_5_make_guesses_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        guess,
        guess_2,
        guess_3,
        state.first_guess,
        state.bonus_token,
        guesses,
        tokens,
        drafter.to_target,
        logits.shape[-1],
        K5=5,
        W5=6,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )
    return guesses, tokens


@triton.jit
def steps_5_keep_output_tokens_kernel(
    logits_ptr,  # B, W5, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guesses_ptr,  # B, K5
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    verified_out_ptr,  # B, W5, written
    accept_len_out_ptr,  # B, written
    starts_out_ptr,  # B, written
    V,
    W: tl.constexpr,
    K5: tl.constexpr,
    W5: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    for i in range(W5):
        at = row * W5 + i
        find_best(logits_ptr + at * V, best_ptr, words_ptr, at, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guesses = tl.load(guesses_ptr + row * K5 + lane, mask=lane < K5, other=-1)
        seq_lens = tl.load(seq_lens_ptr + row)
        verified = best_of_rows(best_ptr, words_ptr, row * W5, lane, V, W5, BLOCK, PARTS)
        accept_len = accept_chain(guesses, verified, lane, K5)
        starts = hold(seq_lens)
        kept = mask_rejected(verified, accept_len, lane)
        wide = widen(kept, lane, W5)
        bonus = take_last(verified, accept_len, lane)
        tl.debug_barrier()  # no thread still has to load what is stored now
        tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
        tl.store(bonus_token_ptr + row, bonus)
        tl.store(accept_len_ptr + row, accept_len)
        tl.store(seq_lens_ptr + row, seq_lens + accept_len)
        tl.store(verified_out_ptr + row * W5 + lane, verified, mask=lane < W5)
        tl.store(accept_len_out_ptr + row, accept_len)
        tl.store(starts_out_ptr + row, starts)


def steps_5_keep_output_tokens(
    state: Device, logits: Tensor, guesses: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch steps_5_keep_output_tokens_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 6, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    verified = torch.empty(requests, 6, dtype=torch.int64, device=guesses.device)
    accept_len = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    steps_5_keep_output_tokens_kernel[(requests, PARTS)](
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
        W=8,
        K5=5,
        W5=6,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )
    return verified, accept_len, starts


@triton.jit
def steps_3_make_guesses_kernel(
    logits_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_ptr,  # B
    first_guess_ptr,  # B
    bonus_token_ptr,  # B
    guesses_out_ptr,  # B, K3, written
    tokens_out_ptr,  # B, W3, written
    to_target_ptr,
    V,
    K3: tl.constexpr,
    W3: tl.constexpr,
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
        tl.store(guesses_out_ptr + row * K3 + lane, guesses, mask=lane < K3)
        tl.store(tokens_out_ptr + row * W3 + lane, tokens, mask=lane < W3)


def steps_3_make_guesses(
    state: Device, drafter: Draft, logits: Tensor, guess: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch steps_3_make_guesses_kernel, PARTS programs a request."""
    requests = guess.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests, PARTS, device=guess.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guesses = torch.empty(requests, 3, dtype=torch.int64, device=guess.device)
    tokens = torch.empty(requests, 4, dtype=torch.int64, device=guess.device)
    steps_3_make_guesses_kernel[(requests, PARTS)](
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
        K3=3,
        W3=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )
    return guesses, tokens


@triton.jit
def steps_3_keep_output_tokens_kernel(
    logits_ptr,  # B, W3, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guesses_ptr,  # B, K3
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    verified_out_ptr,  # B, W3, written
    accept_len_out_ptr,  # B, written
    starts_out_ptr,  # B, written
    V,
    W: tl.constexpr,
    K3: tl.constexpr,
    W3: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    for i in range(W3):
        at = row * W3 + i
        find_best(logits_ptr + at * V, best_ptr, words_ptr, at, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guesses = tl.load(guesses_ptr + row * K3 + lane, mask=lane < K3, other=-1)
        seq_lens = tl.load(seq_lens_ptr + row)
        verified = best_of_rows(best_ptr, words_ptr, row * W3, lane, V, W3, BLOCK, PARTS)
        accept_len = accept_chain(guesses, verified, lane, K3)
        starts = hold(seq_lens)
        kept = mask_rejected(verified, accept_len, lane)
        wide = widen(kept, lane, W3)
        bonus = take_last(verified, accept_len, lane)
        tl.debug_barrier()  # no thread still has to load what is stored now
        tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
        tl.store(bonus_token_ptr + row, bonus)
        tl.store(accept_len_ptr + row, accept_len)
        tl.store(seq_lens_ptr + row, seq_lens + accept_len)
        tl.store(verified_out_ptr + row * W3 + lane, verified, mask=lane < W3)
        tl.store(accept_len_out_ptr + row, accept_len)
        tl.store(starts_out_ptr + row, starts)


def steps_3_keep_output_tokens(
    state: Device, logits: Tensor, guesses: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch steps_3_keep_output_tokens_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 4, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    verified = torch.empty(requests, 4, dtype=torch.int64, device=guesses.device)
    accept_len = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    steps_3_keep_output_tokens_kernel[(requests, PARTS)](
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
        W=8,
        K3=3,
        W3=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )
    return verified, accept_len, starts


@triton.jit
def steps_1_make_guesses_kernel(
    first_guess_ptr,  # B
    bonus_token_ptr,  # B
    guesses_out_ptr,  # B, K1, written
    tokens_out_ptr,  # B, W1, written
    K1: tl.constexpr,
    W1: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    first_guess = tl.load(first_guess_ptr + row)
    bonus_token = tl.load(bonus_token_ptr + row)
    guesses = tl.full((BLOCK,), -1, tl.int64)
    guesses = tl.where(lane == 0, first_guess, guesses)
    tokens = window(bonus_token, guesses, lane)
    tl.store(guesses_out_ptr + row * K1 + lane, guesses, mask=lane < K1)
    tl.store(tokens_out_ptr + row * W1 + lane, tokens, mask=lane < W1)


def steps_1_make_guesses(state: Device) -> tuple[Tensor, Tensor]:
    """Launch steps_1_make_guesses_kernel, one program a request."""
    requests = state.first_guess.shape[0]
    guesses = torch.empty(requests, 1, dtype=torch.int64, device=state.first_guess.device)
    tokens = torch.empty(requests, 2, dtype=torch.int64, device=state.first_guess.device)
    steps_1_make_guesses_kernel[(requests,)](
        state.first_guess,
        state.bonus_token,
        guesses,
        tokens,
        K1=1,
        W1=2,
        BLOCK=8,
    )
    return guesses, tokens


@triton.jit
def steps_1_keep_output_tokens_kernel(
    logits_ptr,  # B, W1, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guesses_ptr,  # B, K1
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    verified_out_ptr,  # B, W1, written
    accept_len_out_ptr,  # B, written
    starts_out_ptr,  # B, written
    V,
    W: tl.constexpr,
    K1: tl.constexpr,
    W1: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    for i in range(W1):
        at = row * W1 + i
        find_best(logits_ptr + at * V, best_ptr, words_ptr, at, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guesses = tl.load(guesses_ptr + row * K1 + lane, mask=lane < K1, other=-1)
        seq_lens = tl.load(seq_lens_ptr + row)
        verified = best_of_rows(best_ptr, words_ptr, row * W1, lane, V, W1, BLOCK, PARTS)
        accept_len = accept_chain(guesses, verified, lane, K1)
        starts = hold(seq_lens)
        kept = mask_rejected(verified, accept_len, lane)
        wide = widen(kept, lane, W1)
        bonus = take_last(verified, accept_len, lane)
        tl.debug_barrier()  # no thread still has to load what is stored now
        tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
        tl.store(bonus_token_ptr + row, bonus)
        tl.store(accept_len_ptr + row, accept_len)
        tl.store(seq_lens_ptr + row, seq_lens + accept_len)
        tl.store(verified_out_ptr + row * W1 + lane, verified, mask=lane < W1)
        tl.store(accept_len_out_ptr + row, accept_len)
        tl.store(starts_out_ptr + row, starts)


def steps_1_keep_output_tokens(
    state: Device, logits: Tensor, guesses: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch steps_1_keep_output_tokens_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 2, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    verified = torch.empty(requests, 2, dtype=torch.int64, device=guesses.device)
    accept_len = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    steps_1_keep_output_tokens_kernel[(requests, PARTS)](
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
        W=8,
        K1=1,
        W1=2,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )
    return verified, accept_len, starts


@triton.jit
def steps_0_keep_output_tokens_kernel(
    verified_ptr,  # B, 1
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    starts_out_ptr,  # B, written
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    verified = tl.load(verified_ptr + row * 1 + lane, mask=lane < 1, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    starts = hold(seq_lens)
    kept = widen(verified, lane, 1)
    bonus = first(verified, lane)
    tl.debug_barrier()  # no thread still has to load what is stored now
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, 1)
    tl.store(seq_lens_ptr + row, seq_lens + 1)
    tl.store(starts_out_ptr + row, starts)


def steps_0_keep_output_tokens(state: Device, verified: Tensor) -> Tensor:
    """Launch steps_0_keep_output_tokens_kernel, one program a request."""
    requests = verified.shape[0]
    starts = torch.empty(requests, dtype=torch.int64, device=verified.device)
    steps_0_keep_output_tokens_kernel[(requests,)](
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        starts,
        W=8,
        BLOCK=8,
    )
    return starts


VARIANTS = {
    "steps_7": step,
    "steps_5": step_steps_5,
    "steps_3": step_steps_3,
    "steps_1": step_steps_1,
    "steps_0": step_steps_0,
}
LAUNCHES = {"steps_7": 8, "steps_5": 6, "steps_3": 4, "steps_1": 3, "steps_0": 3}
