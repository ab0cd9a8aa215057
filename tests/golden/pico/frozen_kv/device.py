"""pico/frozen_kv: the step of step.py as a device runs it.

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

from specflow.kernels.device import take_row
from specflow.kernels.rows_triton import accept_chain, copy_row, mask_rejected, take_last, window
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
    """One captured step: all guesses are verified. 6 launches outside the forwards."""
    # shapes given: [B, V], [B, H]
    logits, hidden = drafter.decode_hidden(state.bonus_token, state.draft_hidden, state.seq_lens)
    guess = make_guess(state, logits)  # [B]
    logits_2, hidden_2 = drafter.decode_hidden(guess, hidden, state.seq_lens)  # [B, V], [B, H]
    guess_2 = make_guess(state, logits_2)  # [B]
    logits_3, _hidden_3 = drafter.decode_hidden(guess_2, hidden_2, state.seq_lens)  # [B, V], [B, H]
    guesses, tokens = make_guesses(state, logits_3, guess, guess_2)  # [B, K], [B, W]
    logits_4, hidden_4 = target.verify_hidden(tokens, state.seq_lens)  # [B, W, V], [B, W, H]
    keep_output_tokens(state, logits_4, guesses)
    standing = take_row(hidden_4, state.accept_len)  # [B, H]
    keep_draft_hidden(state, standing)


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
        kept = mask_rejected(verified, accept_len, lane)
        bonus = take_last(verified, accept_len, lane)
        tl.debug_barrier()  # no thread still has to load what is stored now
        tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
        tl.store(bonus_token_ptr + row, bonus)
        tl.store(accept_len_ptr + row, accept_len)
        tl.store(seq_lens_ptr + row, seq_lens + accept_len)


def keep_output_tokens(state: Device, logits: Tensor, guesses: Tensor) -> None:
    """Launch keep_output_tokens_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 4, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
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
        logits.shape[-1],
        K=3,
        W=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=4,
    )


@triton.jit
def keep_draft_hidden_kernel(
    draft_hidden_ptr,  # B, H, written
    standing_ptr,  # B, H
    standing_wide,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    copy_row(draft_hidden_ptr, standing_ptr, row, standing_wide)


def keep_draft_hidden(state: Device, standing: Tensor) -> None:
    """Launch keep_draft_hidden_kernel, one program a request."""
    requests = standing.shape[0]
    standing = standing.contiguous()
    keep_draft_hidden_kernel[(requests,)](
        state.draft_hidden,
        standing,
        standing.shape[-1],
    )


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 6}
