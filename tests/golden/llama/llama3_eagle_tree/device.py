"""llama/llama3_eagle_tree: the step of step.py as a device runs it.

Loops are unrolled and phases run on; what lies between two forwards is one kernel wherever one
program a request can do it. Every value of a kernel stays in registers, a request's row as a vector
of BLOCK lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.device import (
    branch,
    follow,
    grow_tree,
    likeliest,
    ranks,
    roots,
    select_tree,
    take_rows,
    tree_arrays,
)
from specflow.kernels.rows_triton import (
    accept_tree,
    copy_row,
    hold,
    mask_rejected,
    take_last,
    take_path,
    window,
)
from specflow.kernels.vocab_triton import arrived_last, best_of_rows, find_best
from specflow.models.protocols import Draft, Target

from .step import NUM_DRAFT_TOKENS, NUM_STEPS, TOPK, State

PARTS = 16  # programs that look for the best of a row of logits together
TILE = 1024  # logits that one of them looks at at once


@dataclass
class Device(State):
    """The state of a step, and what only a device keeps."""

    arrivals: Tensor  # [B]     programs of a request that are done; 0 between two launches

    @classmethod
    def new(cls, rows: int, device: str) -> Device:
        """Allocate every buffer once, zeroed."""
        arrivals = torch.zeros(rows, dtype=torch.int32, device=device)
        return cls(**vars(State.new(rows, device)), arrivals=arrivals)

    def rows(self, count: int) -> Device:
        """The first `count` requests: views of the same addresses."""
        return Device(**vars(super().rows(count)), arrivals=self.arrivals[:count])


@triton.jit
def rows_1_kernel(
    guesses_ptr,  # B, K
    bonus_token_ptr,  # B
    tokens_out_ptr,  # B, W, written
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
    bonus_token = tl.load(bonus_token_ptr + row)
    tokens = window(bonus_token, guesses, lane)
    tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def rows_1(state: Device, guesses: Tensor) -> Tensor:
    """Launch rows_1_kernel, one program a request."""
    rows = guesses.shape[0]
    tokens = torch.empty(rows, 8, dtype=torch.int64, device=guesses.device)
    rows_1_kernel[(rows,)](
        guesses,
        state.bonus_token,
        tokens,
        K=7,
        W=8,
        BLOCK=8,
    )
    return tokens


@triton.jit
def rows_2_kernel(
    logits_5_ptr,  # B, W, V
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
    row = tl.program_id(0)
    part = tl.program_id(1)
    for i in range(W):
        at = row * W + i
        find_best(logits_5_ptr + at * V, best_ptr, words_ptr, at, part, V, TILE, PARTS)
    if arrived_last(arrivals_ptr + row, PARTS):
        lane = tl.arange(0, BLOCK)
        guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
        parents = tl.load(parents_ptr + row * K + lane, mask=lane < K, other=-1)
        seq_lens = tl.load(seq_lens_ptr + row)
        verified = best_of_rows(best_ptr, words_ptr, row * W, lane, V, W, BLOCK, PARTS)
        path, accept_len = accept_tree(guesses, parents, verified, lane, K)
        gained = take_path(verified, path, lane)
        starts = hold(seq_lens)
        kept_6 = mask_rejected(gained, accept_len, lane)
        bonus = take_last(gained, accept_len, lane)
        tl.store(output_tokens_ptr + row * W + lane, kept_6, mask=lane < W)
        tl.store(bonus_token_ptr + row, bonus)
        tl.store(accept_len_ptr + row, accept_len)
        tl.store(seq_lens_ptr + row, seq_lens + accept_len)
        tl.store(path_out_ptr + row * W + lane, path, mask=lane < W)
        tl.store(accept_len_out_ptr + row, accept_len)
        tl.store(gained_out_ptr + row * W + lane, gained, mask=lane < W)
        tl.store(starts_out_ptr + row, starts)


def rows_2(
    state: Device, logits_5: Tensor, guesses: Tensor, parents: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Launch rows_2_kernel, PARTS programs a request."""
    rows = guesses.shape[0]
    logits_5 = logits_5.contiguous()
    best = torch.empty(rows * 8, PARTS, device=guesses.device)
    words = torch.empty_like(best, dtype=torch.int64)
    path = torch.empty(rows, 8, dtype=torch.int64, device=guesses.device)
    accept_len = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    gained = torch.empty(rows, 8, dtype=torch.int64, device=guesses.device)
    starts = torch.empty(rows, dtype=torch.int64, device=guesses.device)
    rows_2_kernel[(rows, PARTS)](
        logits_5,
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
        logits_5.shape[-1],
        K=7,
        W=8,
        TILE=TILE,
        PARTS=PARTS,
        BLOCK=8,
    )
    return path, accept_len, gained, starts


@triton.jit
def rows_3_kernel(
    draft_hidden_ptr,  # B, H, written
    standing_ptr,  # B, H
    standing_wide,
):
    row = tl.program_id(0)
    copy_row(draft_hidden_ptr, standing_ptr, row, standing_wide)


def rows_3(state: Device, standing: Tensor) -> None:
    """Launch rows_3_kernel, one program a request."""
    rows = standing.shape[0]
    standing = standing.contiguous()
    rows_3_kernel[(rows,)](
        state.draft_hidden,
        standing,
        standing.shape[-1],
    )


def step(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: all guesses are verified. 32 launches outside the forwards."""
    hidden = state.draft_hidden[:, None].expand(-1, TOPK, -1)  # [B, T, H]
    kept = ranks(state.first_words)  # [B, T]
    sees = roots(state.first_words, NUM_STEPS)  # [B, T, R]
    # shapes given: [B, T, V], [B, T, H]
    logits, grown = drafter.grow_hidden(state.first_words, hidden, state.seq_lens, sees, 1)
    children, chances = likeliest(logits, TOPK)  # [B, T, T], [B, T, T]
    scores, kept_2, offered = grow_tree(state.first_scores, chances)  # [B, T], [B, T], [B, T*T]
    words, lanes, spoken = follow(children, kept_2)  # [B, T], [B, T], [B, T*T]
    hidden_2 = take_rows(grown, lanes)  # [B, T, H]
    sees_2 = branch(sees, lanes, 1)  # [B, T, R]
    # shapes given: [B, T, V], [B, T, H]
    logits_2, grown_2 = drafter.grow_hidden(words, hidden_2, state.seq_lens, sees_2, 2)
    children_2, chances_2 = likeliest(logits_2, TOPK)  # [B, T, T], [B, T, T]
    scores_2, kept_3, offered_2 = grow_tree(scores, chances_2)  # [B, T], [B, T], [B, T*T]
    words_2, lanes_2, spoken_2 = follow(children_2, kept_3)  # [B, T], [B, T], [B, T*T]
    hidden_3 = take_rows(grown_2, lanes_2)  # [B, T, H]
    sees_3 = branch(sees_2, lanes_2, 2)  # [B, T, R]
    # shapes given: [B, T, V], [B, T, H]
    logits_3, grown_3 = drafter.grow_hidden(words_2, hidden_3, state.seq_lens, sees_3, 3)
    children_3, chances_3 = likeliest(logits_3, TOPK)  # [B, T, T], [B, T, T]
    scores_3, kept_4, offered_3 = grow_tree(scores_2, chances_3)  # [B, T], [B, T], [B, T*T]
    words_3, lanes_3, spoken_3 = follow(children_3, kept_4)  # [B, T], [B, T], [B, T*T]
    hidden_4 = take_rows(grown_3, lanes_3)  # [B, T, H]
    sees_4 = branch(sees_3, lanes_3, 3)  # [B, T, R]
    # shapes given: [B, T, V], [B, T, H]
    logits_4, grown_4 = drafter.grow_hidden(words_3, hidden_4, state.seq_lens, sees_4, 4)
    children_4, chances_4 = likeliest(logits_4, TOPK)  # [B, T, T], [B, T, T]
    _scores_4, kept_5, offered_4 = grow_tree(scores_3, chances_4)  # [B, T], [B, T], [B, T*T]
    _words_4, lanes_4, spoken_4 = follow(children_4, kept_5)  # [B, T], [B, T], [B, T*T]
    _hidden_5 = take_rows(grown_4, lanes_4)  # [B, T, H]
    _sees_5 = branch(sees_4, lanes_4, 4)  # [B, T, R]
    # shapes given: [B, K], [B, K]
    guesses, parents = select_tree(
        [state.first_scores, offered, offered_2, offered_3, offered_4],
        [state.first_words, spoken, spoken_2, spoken_3, spoken_4],
        [kept, kept_2, kept_3, kept_4, kept_5],
        NUM_DRAFT_TOKENS,
    )
    tokens = rows_1(state, guesses)  # [B, W]
    depths, sees_6 = tree_arrays(parents)  # [B, W], [B, W, W]
    # shapes given: [B, W, V], [B, W, H]
    logits_5, hidden_6 = target.verify_tree_hidden(tokens, state.seq_lens, depths, sees_6)
    # shapes given: [B, W], [B], [B, W], [B]
    path, accept_len, gained, starts = rows_2(state, logits_5, guesses, parents)
    target.move_accepted(path, starts)
    shown = take_rows(hidden_6, path)  # [B, W, H]
    logits_6, standing = drafter.extend_hidden(gained, shown, starts, accept_len)  # [B, V], [B, H]
    words_5, scores_5 = likeliest(logits_6, TOPK)  # [B, T], [B, T]
    state.first_words.copy_(words_5)
    state.first_scores.copy_(scores_5)
    rows_3(state, standing)


VARIANTS = {
    "tree": step,
}
LAUNCHES = {"tree": 32}
