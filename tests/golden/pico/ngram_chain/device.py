"""pico/ngram_chain: the step of step.py as a device runs it.

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
    few,
    first,
    known_window,
    mask_rejected,
    take_last,
    widen,
)
from specflow.kernels.vocab_triton import arrived_last, best_of_rows, find_best
from specflow.models.protocols import Target

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


def step(target: Target, _drafter: object, state: Device) -> None:
    """One captured step: all guesses are verified. 2 launches outside the forwards."""
    tokens = make_tokens(state)  # [B, W]
    logits = target.verify(tokens, state.seq_lens)  # [B, W, V]
    keep_output_tokens(state, logits)


def step_narrow(target: Target, _drafter: object, state: Device) -> None:
    """One captured step: a few guesses are verified. 2 launches outside the forwards."""
    guesses, tokens = narrow_make_guesses(state)  # [B, k], [B, w]
    logits = target.verify(tokens, state.seq_lens)  # [B, w, V]
    narrow_keep_output_tokens(state, logits, guesses)


def step_single(target: Target, _drafter: object, state: Device) -> None:
    """One captured step: one position is verified. 2 launches outside the forwards."""
    tokens = state.bonus_token[:, None]  # [B, 1]
    logits = target.verify(tokens, state.seq_lens)  # [B, 1, V]
    verified = best_token(logits)  # [B, 1]
    single_keep_output_tokens(state, verified)


@triton.jit
def make_tokens_kernel(
    bonus_token_ptr,  # B
    guesses_ptr,  # B, K
    tokens_out_ptr,  # B, W, written
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    bonus_token = tl.load(bonus_token_ptr + row)
    guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
    tokens = known_window(bonus_token, guesses, lane)
    tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def make_tokens(state: Device) -> Tensor:
    """Launch make_tokens_kernel, one program a request."""
    requests = state.bonus_token.shape[0]
    tokens = torch.empty(requests, 8, dtype=torch.int64, device=state.bonus_token.device)
    make_tokens_kernel[(requests,)](
        state.bonus_token,
        state.guesses,
        tokens,
        K=7,
        W=8,
        BLOCK=8,
    )
    return tokens


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


def keep_output_tokens(state: Device, logits: Tensor) -> None:
    """Launch keep_output_tokens_kernel, PARTS programs a request."""
    requests = state.guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 8, PARTS, device=state.guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    keep_output_tokens_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        state.guesses,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        logits.shape[-1],
        K=7,
        W=8,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )


@triton.jit
def narrow_make_guesses_kernel(
    guesses_ptr,  # B, K
    bonus_token_ptr,  # B
    guesses_out_ptr,  # B, k, written
    tokens_out_ptr,  # B, w, written
    K: tl.constexpr,
    k: tl.constexpr,
    w: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
    bonus_token = tl.load(bonus_token_ptr + row)
    guesses = few(guesses, 4, lane)
    tokens = known_window(bonus_token, guesses, lane)
    tl.store(guesses_out_ptr + row * k + lane, guesses, mask=lane < k)
    tl.store(tokens_out_ptr + row * w + lane, tokens, mask=lane < w)


def narrow_make_guesses(state: Device) -> tuple[Tensor, Tensor]:
    """Launch narrow_make_guesses_kernel, one program a request."""
    requests = state.guesses.shape[0]
    guesses = torch.empty(requests, 3, dtype=torch.int64, device=state.guesses.device)
    tokens = torch.empty(requests, 4, dtype=torch.int64, device=state.guesses.device)
    narrow_make_guesses_kernel[(requests,)](
        state.guesses,
        state.bonus_token,
        guesses,
        tokens,
        K=7,
        k=3,
        w=4,
        BLOCK=8,
    )
    return guesses, tokens


@triton.jit
def narrow_keep_output_tokens_kernel(
    logits_ptr,  # B, w, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guesses_ptr,  # B, k
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    V,
    W: tl.constexpr,
    k: tl.constexpr,
    w: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    part = tl.program_id(1)
    for i in range(w):
        at = row * w + i
        find_best(logits_ptr + at * V, best_ptr, words_ptr, at, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guesses = tl.load(guesses_ptr + row * k + lane, mask=lane < k, other=-1)
        seq_lens = tl.load(seq_lens_ptr + row)
        verified = best_of_rows(best_ptr, words_ptr, row * w, lane, V, w, BLOCK, PARTS)
        accept_len = accept_chain(guesses, verified, lane, k)
        kept = mask_rejected(verified, accept_len, lane)
        wide = widen(kept, lane, w)
        bonus = take_last(verified, accept_len, lane)
        tl.debug_barrier()  # no thread still has to load what is stored now
        tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
        tl.store(bonus_token_ptr + row, bonus)
        tl.store(accept_len_ptr + row, accept_len)
        tl.store(seq_lens_ptr + row, seq_lens + accept_len)


def narrow_keep_output_tokens(state: Device, logits: Tensor, guesses: Tensor) -> None:
    """Launch narrow_keep_output_tokens_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 4, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    narrow_keep_output_tokens_kernel[(requests, PARTS)](
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
        W=8,
        k=3,
        w=4,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )


@triton.jit
def single_keep_output_tokens_kernel(
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
    kept = widen(verified, lane, 1)
    bonus = first(verified, lane)
    tl.debug_barrier()  # no thread still has to load what is stored now
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, 1)
    tl.store(seq_lens_ptr + row, seq_lens + 1)


def single_keep_output_tokens(state: Device, verified: Tensor) -> None:
    """Launch single_keep_output_tokens_kernel, one program a request."""
    requests = verified.shape[0]
    single_keep_output_tokens_kernel[(requests,)](
        verified,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        W=8,
        BLOCK=8,
    )


VARIANTS = {
    "chain": step,
    "narrow": step_narrow,
    "single": step_single,
}
LAUNCHES = {"chain": 2, "narrow": 2, "single": 2}
