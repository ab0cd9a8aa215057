"""pico/frozen_kv_tree: the step of step.py as a device runs it.

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

from specflow.kernels.device import choose_tree, grow_level, likeliest, ranks, take_row, take_rows
from specflow.kernels.rows_triton import (
    accept_tree,
    copy_row,
    hold,
    mask_rejected,
    take_last,
    take_path,
)
from specflow.kernels.vocab_triton import arrived_last, best_of_rows, find_best
from specflow.models.protocols import Draft, Target

from .step import NUM_DRAFT_TOKENS, TOPK, State

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
    """One captured step: all guesses are verified. 10 launches outside the forwards."""
    # shapes given: [B, V], [B, H]
    logits, hidden = drafter.decode_hidden(state.bonus_token, state.draft_hidden, state.seq_lens)
    words, scores = likeliest(logits, TOPK)  # [B, T], [B, T]
    hidden_2 = hidden[:, None].expand(-1, TOPK, -1)  # [B, T, H]
    kept = ranks(words)  # [B, T]
    logits_2, grown = drafter.grow_frozen(words, hidden_2, state.seq_lens)  # [B, T, V], [B, T, H]
    # shapes given: [B, T], [B, T], [B, T*T], [B, T], [B, T*T], [B, T, H]
    scores_2, kept_2, offered, words_2, spoken, hidden_3 = grow_level(
        scores, logits_2, hidden=grown
    )
    # shapes given: [B, T, V], [B, T, H]
    logits_3, _grown_2 = drafter.grow_frozen(words_2, hidden_3, state.seq_lens)
    # shapes given: [B, T], [B, T], [B, T*T], [B, T], [B, T*T]
    _scores_3, kept_3, offered_2, _words_3, spoken_2 = grow_level(scores_2, logits_3)
    # shapes given: [B, K], [B, K], [B, W], [B, W], [B, W, W]
    guesses, parents, tokens, depths, sees = choose_tree(
        [scores, offered, offered_2],
        [words, spoken, spoken_2],
        [kept, kept_2, kept_3],
        NUM_DRAFT_TOKENS,
        state.bonus_token,
    )
    # shapes given: [B, W, V], [B, W, H]
    logits_4, hidden_5 = target.verify_tree_hidden(tokens, state.seq_lens, depths, sees)
    path, starts = keep_output_tokens(state, logits_4, guesses, parents)  # [B, W], [B]
    target.move_accepted(path, starts)
    shown = take_rows(hidden_5, path)  # [B, W, H]
    standing = take_row(shown, state.accept_len)  # [B, H]
    keep_draft_hidden(state, standing)


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
        tl.store(starts_out_ptr + row, starts)


def keep_output_tokens(
    state: Device, logits: Tensor, guesses: Tensor, parents: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch keep_output_tokens_kernel, PARTS programs a request."""
    requests = guesses.shape[0]
    logits = logits.contiguous()
    best = torch.empty(requests * 8, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    path = torch.empty(requests, 8, dtype=torch.int64, device=guesses.device)
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
        starts,
        logits.shape[-1],
        K=7,
        W=8,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )
    return path, starts


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
    "tree": step,
}
LAUNCHES = {"tree": 10}
