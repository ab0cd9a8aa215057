"""llama/llama3_1_eagle3_tree: the step of step.py as a device runs it.

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

from specflow.kernels.device import choose_tree, grow_level, likeliest, plant, take_rows
from specflow.kernels.rows_triton import (
    accept_tree,
    copy_row,
    hold,
    look_up,
    mask_rejected,
    take_last,
    take_path,
)
from specflow.kernels.vocab_triton import arrived_last, best_of_rows, find_best
from specflow.models.protocols import Draft, Target

from .step import NUM_DRAFT_TOKENS, NUM_STEPS, TAPS, TOPK, State

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
    hidden = state.draft_hidden[:, None].expand(-1, TOPK, -1)  # [B, T, H]
    kept, sees = plant(state.first_words, NUM_STEPS)  # [B, T], [B, T, R]
    # shapes given: [B, T, V], [B, T, H]
    logits, grown = drafter.grow_hidden(state.first_words, hidden, state.seq_lens, sees, 1)
    # shapes given: [B, T], [B, T], [B, T*T], [B, T], [B, T*T], [B, T, H], [B, T, R]
    scores, kept_2, offered, words, spoken, hidden_2, sees_2 = grow_level(
        state.first_scores, logits, table=drafter.to_target, hidden=grown, sees=sees, level=1
    )
    # shapes given: [B, T, V], [B, T, H]
    logits_2, grown_2 = drafter.grow_hidden(words, hidden_2, state.seq_lens, sees_2, 2)
    # shapes given: [B, T], [B, T], [B, T*T], [B, T], [B, T*T], [B, T, H], [B, T, R]
    scores_2, kept_3, offered_2, words_2, spoken_2, hidden_3, sees_3 = grow_level(
        scores, logits_2, table=drafter.to_target, hidden=grown_2, sees=sees_2, level=2
    )
    # shapes given: [B, T, V], [B, T, H]
    logits_3, grown_3 = drafter.grow_hidden(words_2, hidden_3, state.seq_lens, sees_3, 3)
    # shapes given: [B, T], [B, T], [B, T*T], [B, T], [B, T*T], [B, T, H], [B, T, R]
    scores_3, kept_4, offered_3, words_3, spoken_3, hidden_4, sees_4 = grow_level(
        scores_2, logits_3, table=drafter.to_target, hidden=grown_3, sees=sees_3, level=3
    )
    # shapes given: [B, T, V], [B, T, H]
    logits_4, _grown_4 = drafter.grow_hidden(words_3, hidden_4, state.seq_lens, sees_4, 4)
    # shapes given: [B, T], [B, T], [B, T*T], [B, T], [B, T*T]
    _scores_4, kept_5, offered_4, _words_4, spoken_4 = grow_level(
        scores_3, logits_4, table=drafter.to_target
    )
    # shapes given: [B, K], [B, K], [B, W], [B, W], [B, W, W]
    guesses, parents, tokens, depths, sees_6 = choose_tree(
        [state.first_scores, offered, offered_2, offered_3, offered_4],
        [state.first_words, spoken, spoken_2, spoken_3, spoken_4],
        [kept, kept_2, kept_3, kept_4, kept_5],
        NUM_DRAFT_TOKENS,
        state.bonus_token,
    )
    # shapes given: [B, W, V], [B, W, n * H]
    logits_5, taps = target.verify_tree_taps(tokens, state.seq_lens, depths, sees_6, TAPS)
    # shapes given: [B, W], [B], [B, W], [B]
    path, accept_len, gained, starts = keep_output_tokens(state, logits_5, guesses, parents)
    target.move_accepted(path, starts)
    shown = take_rows(taps, path)  # [B, W, n * H]
    logits_6, standing = drafter.extend_hidden(gained, shown, starts, accept_len)  # [B, V], [B, H]
    ids_5, scores_5 = likeliest(logits_6, TOPK)  # [B, T], [B, T]
    keep_first_words(state, drafter, ids_5, scores_5, standing)


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
def keep_first_words_kernel(
    ids_ptr,  # B, T
    scores_ptr,  # B, T
    first_words_ptr,  # B, T, written
    first_scores_ptr,  # B, T, written
    draft_hidden_ptr,  # B, H, written
    standing_ptr,  # B, H
    to_target_ptr,
    standing_wide,
    T: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    lane = tl.arange(0, BLOCK)
    ids = tl.load(ids_ptr + row * T + lane, mask=lane < T, other=-1)
    scores = tl.load(scores_ptr + row * T + lane, mask=lane < T, other=-1)
    words = look_up(ids, to_target_ptr)
    tl.store(first_words_ptr + row * T + lane, words, mask=lane < T)
    tl.store(first_scores_ptr + row * T + lane, scores, mask=lane < T)
    copy_row(draft_hidden_ptr, standing_ptr, row, standing_wide)


def keep_first_words(
    state: Device, drafter: Draft, ids: Tensor, scores: Tensor, standing: Tensor
) -> None:
    """Launch keep_first_words_kernel, one program a request."""
    requests = ids.shape[0]
    standing = standing.contiguous()
    keep_first_words_kernel[(requests,)](
        ids,
        scores,
        state.first_words,
        state.first_scores,
        state.draft_hidden,
        standing,
        drafter.to_target,
        standing.shape[-1],
        T=4,
        BLOCK=8,
    )


VARIANTS = {
    "tree": step,
}
LAUNCHES = {"tree": 11}
