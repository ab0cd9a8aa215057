"""pico/ngram_sampled: the step of step.py as a device runs it.

The step stands first, then its kernels. Loops are unrolled and phases run on; what lies between
two forwards is one kernel wherever one program a request can do it, named after what it keeps in
the state, else after what it makes. Every value of a kernel stays in registers, a request's row as
a vector of BLOCK lanes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.device import (
    accept_sampled,
    filter_law,
    law_of,
    pick,
    tree_arrays,
    verify_coins,
)
from specflow.kernels.rows_triton import (
    few,
    first,
    hold,
    known_window,
    mask_rejected,
    take_last,
    widen,
)
from specflow.models.protocols import Target

from .step import NUM_COINS, THRESHOLD_ACC, THRESHOLD_SINGLE, State

Device = State  # a device keeps nothing beside it


def step(target: Target, _drafter: object, state: Device) -> None:
    """One captured step: all guesses are verified. 33 launches outside the forwards."""
    depths, sees = tree_arrays(state.parents)  # [B, W], [B, W, W]
    tokens = make_tokens(state)  # [B, W]
    logits = target.verify_tree(tokens, state.seq_lens, depths, sees)  # [B, W, V]
    law = law_of(logits, state.temperature)  # [B, W, V]
    kept_law = filter_law(law, state.top_k, state.top_p, state.min_p)  # [B, W, V]
    coins = verify_coins(state.seeds, state.seq_lens, NUM_COINS)  # [B, W + 1]
    # shapes given: [B, W], [B], [B, W]
    path, accept_len, gained = accept_sampled(
        state.guesses, state.parents, kept_law, coins, THRESHOLD_SINGLE, THRESHOLD_ACC
    )
    starts = keep_output_tokens(state, gained, accept_len)  # [B]
    target.move_accepted(path, starts)


def step_narrow(target: Target, _drafter: object, state: Device) -> None:
    """One captured step: a few guesses are verified. 33 launches outside the forwards."""
    guesses, parents, tokens = narrow_make_guesses(state)  # [B, k], [B, k], [B, w]
    depths, sees = tree_arrays(parents)  # [B, w], [B, w, w]
    logits = target.verify_tree(tokens, state.seq_lens, depths, sees)  # [B, w, V]
    law = law_of(logits, state.temperature)  # [B, w, V]
    kept_law = filter_law(law, state.top_k, state.top_p, state.min_p)  # [B, w, V]
    coins = verify_coins(state.seeds, state.seq_lens, NUM_COINS)  # [B, W + 1]
    # shapes given: [B, w], [B], [B, w]
    path, accept_len, gained = accept_sampled(
        guesses, parents, kept_law, coins, THRESHOLD_SINGLE, THRESHOLD_ACC
    )
    starts = narrow_keep_output_tokens(state, gained, accept_len)  # [B]
    target.move_accepted(path, starts)


def step_single(target: Target, _drafter: object, state: Device) -> None:
    """One captured step: one position is verified. 30 launches outside the forwards."""
    tokens = state.bonus_token[:, None]  # [B, 1]
    logits = target.verify(tokens, state.seq_lens)  # [B, 1, V]
    law = law_of(logits, state.temperature)  # [B, 1, V]
    kept_law = filter_law(law, state.top_k, state.top_p, state.min_p)  # [B, 1, V]
    coins = verify_coins(state.seeds, state.seq_lens, NUM_COINS)  # [B, W + 1]
    token = pick(kept_law[:, 0], coins[:, 0])  # [B]
    drawn = token[:, None]  # [B, 1]
    single_keep_output_tokens(state, drawn)


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
    tokens = torch.empty(requests, 12, dtype=torch.int64, device=state.bonus_token.device)
    make_tokens_kernel[(requests,)](
        state.bonus_token,
        state.guesses,
        tokens,
        K=11,
        W=12,
        BLOCK=16,
    )
    return tokens


@triton.jit
def keep_output_tokens_kernel(
    gained_ptr,  # B, W
    accept_len_ptr,  # B
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    state_accept_len_ptr,  # B, written
    starts_out_ptr,  # B, written
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    gained = tl.load(gained_ptr + row * W + lane, mask=lane < W, other=-1)
    accept_len = tl.load(accept_len_ptr + row)
    seq_lens = tl.load(seq_lens_ptr + row)
    starts = hold(seq_lens)
    kept = mask_rejected(gained, accept_len, lane)
    bonus = take_last(gained, accept_len, lane)
    tl.debug_barrier()  # no thread still has to load what is stored now
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(state_accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)
    tl.store(starts_out_ptr + row, starts)


def keep_output_tokens(state: Device, gained: Tensor, accept_len: Tensor) -> Tensor:
    """Launch keep_output_tokens_kernel, one program a request."""
    requests = gained.shape[0]
    starts = torch.empty(requests, dtype=torch.int64, device=gained.device)
    keep_output_tokens_kernel[(requests,)](
        gained,
        accept_len,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        starts,
        W=12,
        BLOCK=16,
    )
    return starts


@triton.jit
def narrow_make_guesses_kernel(
    guesses_ptr,  # B, K
    parents_ptr,  # B, K
    bonus_token_ptr,  # B
    guesses_out_ptr,  # B, k, written
    parents_out_ptr,  # B, k, written
    tokens_out_ptr,  # B, w, written
    K: tl.constexpr,
    k: tl.constexpr,
    w: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
    parents = tl.load(parents_ptr + row * K + lane, mask=lane < K, other=-1)
    bonus_token = tl.load(bonus_token_ptr + row)
    guesses = few(guesses, 4, lane)
    parents = few(parents, 4, lane)
    tokens = known_window(bonus_token, guesses, lane)
    tl.store(guesses_out_ptr + row * k + lane, guesses, mask=lane < k)
    tl.store(parents_out_ptr + row * k + lane, parents, mask=lane < k)
    tl.store(tokens_out_ptr + row * w + lane, tokens, mask=lane < w)


def narrow_make_guesses(state: Device) -> tuple[Tensor, Tensor, Tensor]:
    """Launch narrow_make_guesses_kernel, one program a request."""
    requests = state.guesses.shape[0]
    guesses = torch.empty(requests, 3, dtype=torch.int64, device=state.guesses.device)
    parents = torch.empty(requests, 3, dtype=torch.int64, device=state.guesses.device)
    tokens = torch.empty(requests, 4, dtype=torch.int64, device=state.guesses.device)
    narrow_make_guesses_kernel[(requests,)](
        state.guesses,
        state.parents,
        state.bonus_token,
        guesses,
        parents,
        tokens,
        K=11,
        k=3,
        w=4,
        BLOCK=16,
    )
    return guesses, parents, tokens


@triton.jit
def narrow_keep_output_tokens_kernel(
    gained_ptr,  # B, w
    accept_len_ptr,  # B
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    state_accept_len_ptr,  # B, written
    starts_out_ptr,  # B, written
    W: tl.constexpr,
    w: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    gained = tl.load(gained_ptr + row * w + lane, mask=lane < w, other=-1)
    accept_len = tl.load(accept_len_ptr + row)
    seq_lens = tl.load(seq_lens_ptr + row)
    starts = hold(seq_lens)
    kept = mask_rejected(gained, accept_len, lane)
    wide = widen(kept, lane, w)
    bonus = take_last(gained, accept_len, lane)
    tl.debug_barrier()  # no thread still has to load what is stored now
    tl.store(output_tokens_ptr + row * W + lane, wide, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(state_accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)
    tl.store(starts_out_ptr + row, starts)


def narrow_keep_output_tokens(state: Device, gained: Tensor, accept_len: Tensor) -> Tensor:
    """Launch narrow_keep_output_tokens_kernel, one program a request."""
    requests = gained.shape[0]
    starts = torch.empty(requests, dtype=torch.int64, device=gained.device)
    narrow_keep_output_tokens_kernel[(requests,)](
        gained,
        accept_len,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        starts,
        W=12,
        w=4,
        BLOCK=16,
    )
    return starts


@triton.jit
def single_keep_output_tokens_kernel(
    drawn_ptr,  # B, 1
    seq_lens_ptr,  # B
    output_tokens_ptr,  # B, W, written
    bonus_token_ptr,  # B, written
    accept_len_ptr,  # B, written
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    drawn = tl.load(drawn_ptr + row * 1 + lane, mask=lane < 1, other=-1)
    seq_lens = tl.load(seq_lens_ptr + row)
    kept = widen(drawn, lane, 1)
    bonus = first(drawn, lane)
    tl.debug_barrier()  # no thread still has to load what is stored now
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(accept_len_ptr + row, 1)
    tl.store(seq_lens_ptr + row, seq_lens + 1)


def single_keep_output_tokens(state: Device, drawn: Tensor) -> None:
    """Launch single_keep_output_tokens_kernel, one program a request."""
    requests = drawn.shape[0]
    single_keep_output_tokens_kernel[(requests,)](
        drawn,
        state.seq_lens,
        state.output_tokens,
        state.bonus_token,
        state.accept_len,
        W=12,
        BLOCK=16,
    )


VARIANTS = {
    "tree": step,
    "narrow": step_narrow,
    "single": step_single,
}
LAUNCHES = {"tree": 33, "narrow": 33, "single": 30}
