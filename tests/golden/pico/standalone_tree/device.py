"""pico/standalone_tree: the step of step.py as a device runs it.

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

from specflow.kernels.device import choose_tree, grow_level, likeliest, plant
from specflow.kernels.rows_triton import accept_tree, hold, mask_rejected, take_last, take_path
from specflow.kernels.vocab_triton import arrived_last, best_of_rows, find_best
from specflow.models.protocols import Draft, Target

from .step import NUM_DRAFT_TOKENS, NUM_STEPS, TOPK, State

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
    """One captured step: all guesses are verified. 11 launches outside the forwards."""
    kept, sees = plant(state.first_words, NUM_STEPS)  # [B, T], [B, T, R]
    root = make_root(state)  # [B]
    logits = drafter.grow(state.first_words, root, sees, 1)  # [B, T, V]
    # shapes given: [B, T], [B, T], [B, T*T], [B, T], [B, T*T], [B, T, R]
    scores, kept_2, offered, words, spoken, sees_2 = grow_level(
        state.first_scores, logits, sees=sees, level=1
    )
    root_2 = make_root(state)  # [B]
    logits_2 = drafter.grow(words, root_2, sees_2, 2)  # [B, T, V]
    # shapes given: [B, T], [B, T], [B, T*T], [B, T], [B, T*T]
    _scores_2, kept_3, offered_2, _words_2, spoken_2 = grow_level(scores, logits_2)
    # shapes given: [B, K], [B, K], [B, W], [B, W], [B, W, W]
    guesses, parents, tokens, depths, sees_4 = choose_tree(
        [state.first_scores, offered, offered_2],
        [state.first_words, spoken, spoken_2],
        [kept, kept_2, kept_3],
        NUM_DRAFT_TOKENS,
        state.bonus_token,
    )
    logits_3 = target.verify_tree(tokens, state.seq_lens, depths, sees_4)  # [B, W, V]
    # shapes given: [B, W], [B], [B, W], [B]
    path, accept_len, gained, starts = keep_output_tokens(state, logits_3, guesses, parents)
    target.move_accepted(path, starts)
    at = make_at(starts)  # [B]
    logits_4 = drafter.extend(gained, at, accept_len)  # [B, V]
    words_3, scores_3 = likeliest(logits_4, TOPK)  # [B, T], [B, T]
    keep_first_words(state, words_3, scores_3)


@triton.jit
def make_root_kernel(
    seq_lens_ptr,  # B
    root_out_ptr,  # B, written
):
    row = tl.program_id(0)
    seq_lens = tl.load(seq_lens_ptr + row)
    root = seq_lens + 1
    tl.store(root_out_ptr + row, root)


def make_root(state: Device) -> Tensor:
    """Launch make_root_kernel, one program a request."""
    requests = state.seq_lens.shape[0]
    root = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    make_root_kernel[(requests,)](
        state.seq_lens,
        root,
    )
    return root


@triton.jit
def keep_output_tokens_kernel(
    logits_ptr,  # B, W, V
    best_ptr,
    words_ptr,
    arrivals_ptr,
    guesses_ptr,  # B, K
    parents_ptr,  # B, K
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    path_out_ptr,  # B, W, written
    accept_len_out_ptr,  # B, written
    gained_out_ptr,  # B, W, written
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
        parents = tl.load(parents_ptr + row * K + lane, mask=lane < K, other=-1)
        seq_lens = tl.load(seq_lens_ptr + row)
        verified = best_of_rows(best_ptr, words_ptr, row * W, lane, V, W, BLOCK, PARTS)
        path, accept_len = accept_tree(guesses, parents, verified, lane, K)
        gained = take_path(verified, path, lane)
        starts = hold(seq_lens)
        kept = mask_rejected(gained, accept_len, lane)
        bonus = take_last(gained, accept_len, lane)
        tl.debug_barrier()  # no thread still has to load what is stored now
        tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
        tl.store(bonus_token_ptr + row, bonus)
        tl.store(accept_len_ptr + row, accept_len)
        tl.store(seq_lens_ptr + row, seq_lens + accept_len)
        tl.store(path_out_ptr + row * W + lane, path, mask=lane < W)
        tl.store(accept_len_out_ptr + row, accept_len)
        tl.store(gained_out_ptr + row * W + lane, gained, mask=lane < W)
        tl.store(starts_out_ptr + row, starts)


def keep_output_tokens(
    state: Device, logits: Tensor, guesses: Tensor, parents: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Launch keep_output_tokens_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 8, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    path = torch.empty(requests, 8, dtype=torch.int64, device=guesses.device)
    accept_len = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    gained = torch.empty(requests, 8, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    keep_output_tokens_kernel[(requests, PARTS)](
        logits,
        best,
        words,
        state.arrivals,
        guesses,
        parents,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        path,
        accept_len,
        gained,
        starts,
        logits.shape[-1],
        K=7,
        W=8,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )
    return path, accept_len, gained, starts


@triton.jit
def make_at_kernel(
    starts_ptr,  # B
    at_out_ptr,  # B, written
):
    row = tl.program_id(0)
    starts = tl.load(starts_ptr + row)
    at = starts + 1
    tl.store(at_out_ptr + row, at)


def make_at(starts: Tensor) -> Tensor:
    """Launch make_at_kernel, one program a request."""
    requests = starts.shape[0]
    at = torch.empty(requests, dtype=torch.int64, device=starts.device)
    make_at_kernel[(requests,)](
        starts,
        at,
    )
    return at


@triton.jit
def keep_first_words_kernel(
    words_ptr,  # B, T
    scores_ptr,  # B, T
    first_words_ptr,  # B, T, written
    first_scores_ptr,  # B, T, written
    T: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    words = tl.load(words_ptr + row * T + lane, mask=lane < T, other=-1)
    scores = tl.load(scores_ptr + row * T + lane, mask=lane < T, other=-1)
    tl.store(first_words_ptr + row * T + lane, words, mask=lane < T)
    tl.store(first_scores_ptr + row * T + lane, scores, mask=lane < T)


def keep_first_words(state: Device, words: Tensor, scores: Tensor) -> None:
    """Launch keep_first_words_kernel, one program a request."""
    requests = words.shape[0]
    keep_first_words_kernel[(requests,)](
        words,
        scores,
        state.first_words,
        state.first_scores,
        T=3,
        BLOCK=8,
    )


VARIANTS = {
    "tree": step,
}
LAUNCHES = {"tree": 11}
