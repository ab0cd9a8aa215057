"""pico/standalone: the step of step.py as a device runs it.

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
    """One captured step: all guesses are verified. 8 launches outside the forwards."""
    pair = torch.stack([state.previous_token, state.bonus_token], dim=1)  # [B, 2]
    behind = make_behind(state)  # [B]
    logits = drafter.decode(pair, behind)  # [B, V]
    guess = make_guess(state, logits)  # [B]
    column = guess[:, None]  # [B, 1]
    position = make_position(state, 1)  # [B]
    logits_2 = drafter.decode(column, position)  # [B, V]
    guess_2 = make_guess(state, logits_2)  # [B]
    column_2 = guess_2[:, None]  # [B, 1]
    position_2 = make_position(state, 2)  # [B]
    logits_3 = drafter.decode(column_2, position_2)  # [B, V]
    guesses, tokens = make_guesses(state, logits_3, guess, guess_2)  # [B, K], [B, W]
    logits_4 = target.verify(tokens, state.seq_lens)  # [B, W, V]
    keep_previous_token(state, logits_4, guesses)


@triton.jit
def make_behind_kernel(
    seq_lens_ptr,  # B
    behind_out_ptr,  # B, written
):
    row = tl.program_id(0)
    seq_lens = tl.load(seq_lens_ptr + row)
    behind = seq_lens - 1
    tl.store(behind_out_ptr + row, behind)


def make_behind(state: Device) -> Tensor:
    """Launch make_behind_kernel, one program a request."""
    requests = state.seq_lens.shape[0]
    behind = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    make_behind_kernel[(requests,)](
        state.seq_lens,
        behind,
    )
    return behind


@triton.jit
def make_guess_kernel(
    logits_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_out_ptr,  # B, written
    V,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    find_best(logits_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        guess = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        tl.store(guess_out_ptr + row, guess)


def make_guess(state: Device, logits: Tensor) -> Tensor:
    """Launch make_guess_kernel, PARTS programs a request."""
    requests = logits.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests, PARTS, device=logits.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guess = torch.empty(requests, dtype=torch.int64, device=logits.device)
    make_guess_kernel[(requests, PARTS)](
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
def make_position_kernel(
    seq_lens_ptr,  # B
    position_out_ptr,  # B, written
    turn,
):
    row = tl.program_id(0)
    seq_lens = tl.load(seq_lens_ptr + row)
    position = seq_lens + turn
    tl.store(position_out_ptr + row, position)


def make_position(state: Device, turn: int) -> Tensor:
    """Launch make_position_kernel, one program a request."""
    requests = state.seq_lens.shape[0]
    position = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    make_position_kernel[(requests,)](
        state.seq_lens,
        position,
        turn,
    )
    return position


@triton.jit
def make_guesses_kernel(
    logits_ptr,  # B, V
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
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    find_best(logits_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS)
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


def make_guesses(
    state: Device, logits: Tensor, guess: Tensor, guess_2: Tensor
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
        guess_2,
        state.bonus_token,
        guesses,
        tokens,
        logits.shape[-1],
        K=3,
        W=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=4,
    )
    return guesses, tokens


@triton.jit
def keep_previous_token_kernel(
    logits_ptr,  # B, W, V
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
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    for i in range(W):
        at = row * W + i
        find_best(logits_ptr + at * V, best_ptr, words_ptr, at, part, V, TILE, PARTS)
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


def keep_previous_token(state: Device, logits: Tensor, guesses: Tensor) -> None:
    """Launch keep_previous_token_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 4, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    keep_previous_token_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        guesses,
        state.bonus_token,
        state.seq_lens,
        state.previous_token,
        state.output_tokens,
        state.accept_len,
        logits.shape[-1],
        K=3,
        W=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=4,
    )


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 8}
