"""deepseek/v3_nextn_sampled: the step of step.py as a device runs it.

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
    accept_rejection,
    draft_coins,
    filter_law,
    law_of,
    propose,
    verify_coins,
)
from specflow.kernels.rows_triton import copy_row, hold, mask_rejected, take_last, window
from specflow.models.protocols import Draft, Target

from .step import NUM_COINS, NUM_STEPS, State

Device = State  # a device keeps nothing beside it


def step(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: all guesses are verified. 39 launches outside the forwards."""
    coins = draft_coins(state.seeds, state.seq_lens, NUM_STEPS)  # [B, K]
    # shapes given: [B, V], [B, H]
    logits, hidden = drafter.decode_hidden(state.first_guess, state.draft_hidden, state.seq_lens)
    law, guess = propose(logits, state.temperature, coins[:, 1])  # [B, V], [B]
    position = make_position(state, 2)  # [B]
    logits_2, _hidden_2 = drafter.decode_hidden(guess, hidden, position)  # [B, V], [B, H]
    law_2, guess_2 = propose(logits_2, state.temperature, coins[:, 2])  # [B, V], [B]
    proposed = torch.stack([state.first_law, law, law_2], dim=1)  # [B, K, V]
    guesses, tokens = make_guesses(state, guess, guess_2)  # [B, K], [B, W]
    logits_3, hidden_3 = target.verify_hidden(tokens, state.seq_lens)  # [B, W, V], [B, W, H]
    law_3 = law_of(logits_3, state.temperature)  # [B, W, V]
    kept_law = filter_law(law_3, state.top_k, state.top_p, state.min_p)  # [B, W, V]
    coins_2 = verify_coins(state.seeds, state.seq_lens, NUM_COINS)  # [B, W + 1]
    accept_len, gained = accept_rejection(guesses, proposed, kept_law, coins_2)  # [B], [B, W]
    starts = keep_output_tokens(state, gained, accept_len)  # [B]
    # shapes given: [B, V], [B, H]
    logits_4, standing = drafter.extend_hidden(gained, hidden_3, starts, accept_len)
    coins_3 = draft_coins(state.seeds, state.seq_lens, NUM_STEPS)  # [B, K]
    law_4, guess_3 = propose(logits_4, state.temperature, coins_3[:, 0])  # [B, V], [B]
    keep_first_guess(state, guess_3, law_4, standing)


@triton.jit
def make_position_kernel(
    seq_lens_ptr,  # B
    position_out_ptr,  # B, written
    turn,
):
    row = tl.program_id(0)
    seq_lens = tl.load(seq_lens_ptr + row)
    position = seq_lens + turn - 1
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
    guess_ptr,  # B
    guess_2_ptr,  # B
    first_guess_ptr,  # B
    bonus_token_ptr,  # B
    guesses_out_ptr,  # B, K, written
    tokens_out_ptr,  # B, W, written
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    guess = tl.load(guess_ptr + row)
    guess_2 = tl.load(guess_2_ptr + row)
    first_guess = tl.load(first_guess_ptr + row)
    bonus_token = tl.load(bonus_token_ptr + row)
    guesses = tl.full((BLOCK,), -1, tl.int64)
    guesses = tl.where(lane == 0, first_guess, guesses)
    guesses = tl.where(lane == 1, guess, guesses)
    guesses = tl.where(lane == 2, guess_2, guesses)
    tokens = window(bonus_token, guesses, lane)
    tl.store(guesses_out_ptr + row * K + lane, guesses, mask=lane < K)
    tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def make_guesses(state: Device, guess: Tensor, guess_2: Tensor) -> tuple[Tensor, Tensor]:
    """Launch make_guesses_kernel, one program a request."""
    requests = guess.shape[0]
    guesses = torch.empty(requests, 3, dtype=torch.int64, device=guess.device)
    tokens = torch.empty(requests, 4, dtype=torch.int64, device=guess.device)
    make_guesses_kernel[(requests,)](
        guess,
        guess_2,
        state.first_guess,
        state.bonus_token,
        guesses,
        tokens,
        K=3,
        W=4,
        BLOCK=4,
    )
    return guesses, tokens


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
        W=4,
        BLOCK=4,
    )
    return starts


@triton.jit
def keep_first_guess_kernel(
    guess_ptr,  # B
    first_guess_ptr,  # B, written
    first_law_ptr,  # B, V, written
    law_ptr,  # B, V
    draft_hidden_ptr,  # B, H, written
    standing_ptr,  # B, H
    law_wide,
    standing_wide,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    guess = tl.load(guess_ptr + row)
    tl.store(first_guess_ptr + row, guess)
    copy_row(first_law_ptr, law_ptr, row, law_wide)
    copy_row(draft_hidden_ptr, standing_ptr, row, standing_wide)


def keep_first_guess(state: Device, guess: Tensor, law: Tensor, standing: Tensor) -> None:
    """Launch keep_first_guess_kernel, one program a request."""
    requests = guess.shape[0]
    law = law.contiguous()
    standing = standing.contiguous()
    keep_first_guess_kernel[(requests,)](
        guess,
        state.first_guess,
        state.first_law,
        law,
        state.draft_hidden,
        standing,
        law.shape[-1],
        standing.shape[-1],
    )


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 39}
