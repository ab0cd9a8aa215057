"""mimo/v2_flash_multi_layer: the step of step.py as a device runs it.

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

from specflow.kernels.device import rotate, slide
from specflow.kernels.rows_triton import accept_chain, hold, mask_rejected, take_last, window
from specflow.kernels.vocab_triton import arrived_last, best_of_parts, best_of_rows, find_best
from specflow.models.protocols import Draft, Target

from .step import NUM_RECENT, State

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
    """One captured step: all guesses are verified. 14 launches outside the forwards."""
    tokens = make_tokens(state)  # [B, W]
    logits, hidden = target.verify_hidden(tokens, state.seq_lens)  # [B, W, V], [B, W, H]
    verified, accept_len, starts = keep_output_tokens(state, logits)  # [B, W], [B], [B]
    ids = torch.cat([state.recent_tokens, verified], dim=1)  # [B, R + W]
    beside = torch.cat([state.recent_hidden, hidden], dim=1)  # [B, R + W, H]
    recent = slide(ids, accept_len, NUM_RECENT)  # [B, R]
    at, rows = make_at(starts, accept_len)  # [B], [B]
    state.recent_tokens.copy_(recent)
    recent_hidden = slide(beside, accept_len, NUM_RECENT)  # [B, R, H]
    state.recent_hidden.copy_(recent_hidden)
    logits_2 = drafter.extend_layer(ids, beside, at, rows, 0)  # [B, V]
    guess = make_guess(state, logits_2)  # [B]
    ids_2 = rotate(ids, rows, guess)  # [B, R + W]
    logits_3 = drafter.extend_layer(ids_2, beside, at, rows, 1)  # [B, V]
    guess_2 = make_guess(state, logits_3)  # [B]
    ids_3 = rotate(ids_2, rows, guess_2)  # [B, R + W]
    logits_4 = drafter.extend_layer(ids_3, beside, at, rows, 2)  # [B, V]
    keep_words_ahead(state, logits_4, guess, guess_2)


@triton.jit
def make_tokens_kernel(
    bonus_token_ptr,  # B
    words_ahead_ptr,  # B, K
    tokens_out_ptr,  # B, W, written
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    bonus_token = tl.load(bonus_token_ptr + row)
    words_ahead = tl.load(words_ahead_ptr + row * K + lane, mask=lane < K, other=-1)
    tokens = window(bonus_token, words_ahead, lane)
    tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def make_tokens(state: Device) -> Tensor:
    """Launch make_tokens_kernel, one program a request."""
    requests = state.bonus_token.shape[0]
    tokens = torch.empty(requests, 4, dtype=torch.int64, device=state.bonus_token.device)
    make_tokens_kernel[(requests,)](
        state.bonus_token,
        state.words_ahead,
        tokens,
        K=3,
        W=4,
        BLOCK=4,
    )
    return tokens


@triton.jit
def keep_output_tokens_kernel(
    logits_ptr,  # B, W, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    words_ahead_ptr,  # B, K
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
        words_ahead = tl.load(words_ahead_ptr + row * K + lane, mask=lane < K, other=-1)
        seq_lens = tl.load(seq_lens_ptr + row)
        verified = best_of_rows(best_ptr, words_ptr, row * W, lane, V, W, BLOCK, PARTS)
        accept_len = accept_chain(words_ahead, verified, lane, K)
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


def keep_output_tokens(state: Device, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Launch keep_output_tokens_kernel, PARTS programs a request."""
    requests = state.words_ahead.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 4, PARTS, device=state.words_ahead.device)
    words = torch.empty_like(best, dtype=torch.int64)
    verified = torch.empty(requests, 4, dtype=torch.int64, device=state.words_ahead.device)
    accept_len = torch.empty(requests, dtype=torch.int64, device=state.words_ahead.device)
    starts = torch.empty(requests, dtype=torch.int64, device=state.words_ahead.device)
    keep_output_tokens_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        state.words_ahead,
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
def make_at_kernel(
    starts_ptr,  # B
    accept_len_ptr,  # B
    at_out_ptr,  # B, written
    rows_out_ptr,  # B, written
):
    row = tl.program_id(0)
    starts = tl.load(starts_ptr + row)
    accept_len = tl.load(accept_len_ptr + row)
    at = starts - 2
    rows = accept_len + 2
    tl.store(at_out_ptr + row, at)
    tl.store(rows_out_ptr + row, rows)


def make_at(starts: Tensor, accept_len: Tensor) -> tuple[Tensor, Tensor]:
    """Launch make_at_kernel, one program a request."""
    requests = starts.shape[0]
    at = torch.empty(requests, dtype=torch.int64, device=starts.device)
    rows = torch.empty(requests, dtype=torch.int64, device=starts.device)
    make_at_kernel[(requests,)](
        starts,
        accept_len,
        at,
        rows,
    )
    return at, rows


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
def keep_words_ahead_kernel(
    logits_ptr,  # B, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guess_ptr,  # B
    guess_2_ptr,  # B
    words_ahead_ptr,  # B, K, written
    V,
    K: tl.constexpr,
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
        guess_3 = best_of_parts(best_ptr, words_ptr, row, V, PARTS)
        ahead = tl.full((BLOCK,), -1, tl.int64)
        ahead = tl.where(lane == 0, guess, ahead)
        ahead = tl.where(lane == 1, guess_2, ahead)
        ahead = tl.where(lane == 2, guess_3, ahead)
        tl.store(words_ahead_ptr + row * K + lane, ahead, mask=lane < K)


def keep_words_ahead(state: Device, logits: Tensor, guess: Tensor, guess_2: Tensor) -> None:
    """Launch keep_words_ahead_kernel, PARTS programs a request."""
    requests = guess.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests, PARTS, device=guess.device)
    words = torch.empty_like(best, dtype=torch.int64)
    keep_words_ahead_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        guess,
        guess_2,
        state.words_ahead,
        logits.shape[-1],
        K=3,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=4,
    )


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 14}
