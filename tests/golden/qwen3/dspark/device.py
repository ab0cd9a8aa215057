"""qwen3/dspark: the step of step.py as a device runs it.

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

from specflow.kernels.device import mask_block
from specflow.kernels.rows_triton import accept_chain, hold, mask_rejected, take_last, window
from specflow.kernels.vocab_triton import (
    arrived_last,
    best_of_parts,
    best_of_rows,
    find_best,
    find_best_sum,
)
from specflow.models.protocols import Draft, Target

from .step import BLOCK_ROWS, MASK_TOKEN, TAPS, State

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
    """One captured step: all guesses are verified. 9 launches outside the forwards."""
    block = mask_block(state.bonus_token, MASK_TOKEN, BLOCK_ROWS)  # [B, Q]
    hidden = drafter.denoise(block, state.seq_lens)  # [B, Q, H]
    base = drafter.score(hidden)  # [B, K, V]
    bias = drafter.markov(state.bonus_token, hidden[:, 0])  # [B, V]
    guess = make_guess(state, base, bias, 0)  # [B]
    bias_2 = drafter.markov(guess, hidden[:, 1])  # [B, V]
    guess_2 = make_guess(state, base, bias_2, 1)  # [B]
    bias_3 = drafter.markov(guess_2, hidden[:, 2])  # [B, V]
    guess_3 = make_guess(state, base, bias_3, 2)  # [B]
    bias_4 = drafter.markov(guess_3, hidden[:, 3])  # [B, V]
    guess_4 = make_guess(state, base, bias_4, 3)  # [B]
    bias_5 = drafter.markov(guess_4, hidden[:, 4])  # [B, V]
    guess_5 = make_guess(state, base, bias_5, 4)  # [B]
    bias_6 = drafter.markov(guess_5, hidden[:, 5])  # [B, V]
    guess_6 = make_guess(state, base, bias_6, 5)  # [B]
    bias_7 = drafter.markov(guess_6, hidden[:, 6])  # [B, V]
    # shapes given: [B, K], [B, W]
    guesses, tokens = make_guesses(
        state, base, bias_7, guess, guess_2, guess_3, guess_4, guess_5, guess_6, 6
    )
    logits_8, taps = target.verify_taps(tokens, state.seq_lens, TAPS)  # [B, W, V], [B, W, n * H]
    starts = keep_output_tokens(state, logits_8, guesses)  # [B]
    drafter.inject(taps, starts, state.accept_len)


@triton.jit
def make_guess_kernel(
    base_ptr,  # B, K, V
    bias_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_out_ptr,  # B, written
    turn,
    V,
    base_rows,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    mine = base_ptr + (row * base_rows + turn) * V
    find_best_sum(mine, bias_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS, True)
    if arrived_last(arrivals_ptr + row, PARTS):
        guess = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        tl.store(guess_out_ptr + row, guess)


def make_guess(state: Device, base: Tensor, bias: Tensor, turn: int) -> Tensor:
    """Launch make_guess_kernel, PARTS programs a request."""
    requests = base.shape[0]
    base = base.contiguous()
    bias = bias.contiguous()
    best = torch.empty(requests, PARTS, device=base.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guess = torch.empty(requests, dtype=torch.int64, device=base.device)
    make_guess_kernel[(requests, PARTS)](
        base,
        bias,
        best,
        words,
        state.arrivals,
        guess,
        turn,
        base.shape[-1],
        base.shape[1],
        TILE=TILE,
        PARTS=PARTS,
    )
    return guess


@triton.jit
def make_guesses_kernel(
    base_ptr,  # B, K, V
    bias_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_ptr,  # B
    guess_2_ptr,  # B
    guess_3_ptr,  # B
    guess_4_ptr,  # B
    guess_5_ptr,  # B
    guess_6_ptr,  # B
    bonus_token_ptr,  # B
    guesses_out_ptr,  # B, K, written
    tokens_out_ptr,  # B, W, written
    turn,
    V,
    base_rows,
    K: tl.constexpr,
    W: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    mine = base_ptr + (row * base_rows + turn) * V
    find_best_sum(mine, bias_ptr + row * V, best_ptr, words_ptr, row, part, V, TILE, PARTS, True)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guess = tl.load(guess_ptr + row)
        guess_2 = tl.load(guess_2_ptr + row)
        guess_3 = tl.load(guess_3_ptr + row)
        guess_4 = tl.load(guess_4_ptr + row)
        guess_5 = tl.load(guess_5_ptr + row)
        guess_6 = tl.load(guess_6_ptr + row)
        bonus_token = tl.load(bonus_token_ptr + row)
        guess_7 = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        guesses = tl.full((BLOCK,), -1, tl.int64)
        guesses = tl.where(lane == 0, guess, guesses)
        guesses = tl.where(lane == 1, guess_2, guesses)
        guesses = tl.where(lane == 2, guess_3, guesses)
        guesses = tl.where(lane == 3, guess_4, guesses)
        guesses = tl.where(lane == 4, guess_5, guesses)
        guesses = tl.where(lane == 5, guess_6, guesses)
        guesses = tl.where(lane == 6, guess_7, guesses)
        tokens = window(bonus_token, guesses, lane)
        tl.store(guesses_out_ptr + row * K + lane, guesses, mask=lane < K)
        tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def make_guesses(
    state: Device,
    base: Tensor,
    bias: Tensor,
    guess: Tensor,
    guess_2: Tensor,
    guess_3: Tensor,
    guess_4: Tensor,
    guess_5: Tensor,
    guess_6: Tensor,
    turn: int,
) -> tuple[Tensor, Tensor]:
    """Launch make_guesses_kernel, PARTS programs a request."""
    requests = guess.shape[0]
    base = base.contiguous()
    bias = bias.contiguous()
    best = torch.empty(requests, PARTS, device=guess.device)
    words = torch.empty_like(best, dtype=torch.int64)
    guesses = torch.empty(requests, 7, dtype=torch.int64, device=guess.device)
    tokens = torch.empty(requests, 8, dtype=torch.int64, device=guess.device)
    make_guesses_kernel[(requests, PARTS)](
        base,
        bias,
        best,
        words,
        state.arrivals,
        guess,
        guess_2,
        guess_3,
        guess_4,
        guess_5,
        guess_6,
        state.bonus_token,
        guesses,
        tokens,
        turn,
        base.shape[-1],
        base.shape[1],
        K=7,
        W=8,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
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
        tl.store(starts_out_ptr + row, starts)


def keep_output_tokens(state: Device, logits: Tensor, guesses: Tensor) -> Tensor:
    """Launch keep_output_tokens_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 8, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
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
        starts,
        logits.shape[-1],
        K=7,
        W=8,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )
    return starts


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 9}
