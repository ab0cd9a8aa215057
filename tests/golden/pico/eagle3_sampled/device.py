"""pico/eagle3_sampled: the step of step.py as a device runs it.

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

from specflow.kernels.device import accept_rejection, draft_coins, law_of, pick, verify_coins
from specflow.kernels.rows_triton import copy_row, hold, mask_rejected, take_last, window
from specflow.models.protocols import Draft, Target

from .step import NUM_COINS, NUM_STEPS, TAPS, State

Device = State  # a device keeps nothing beside it


def step(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: all guesses are verified. 22 launches outside the forwards."""
    coins = draft_coins(state.seeds, state.seq_lens, NUM_STEPS)  # [B, K]
    # shapes given: [B, V], [B, H]
    logits, hidden = drafter.decode_hidden(state.first_guess, state.draft_hidden, state.seq_lens)
    law = law_of(logits, state.temperature)  # [B, V]
    whole_law = drafter.target_law(law)  # [B, V]
    guess = pick(whole_law, coins[:, 1])  # [B]
    position = make_position(state, 2)  # [B]
    logits_2, _hidden_2 = drafter.decode_hidden(guess, hidden, position)  # [B, V], [B, H]
    law_2 = law_of(logits_2, state.temperature)  # [B, V]
    whole_law_2 = drafter.target_law(law_2)  # [B, V]
    guess_2 = pick(whole_law_2, coins[:, 2])  # [B]
    proposed = torch.stack([state.first_law, whole_law, whole_law_2], dim=1)  # [B, K, V]
    guesses, tokens = make_guesses(state, guess, guess_2)  # [B, K], [B, W]
    logits_3, taps = target.verify_taps(tokens, state.seq_lens, TAPS)  # [B, W, V], [B, W, n * H]
    law_3 = law_of(logits_3, state.temperature)  # [B, W, V]
    coins_2 = verify_coins(state.seeds, state.seq_lens, NUM_COINS)  # [B, W + 1]
    accept_len, gained = accept_rejection(guesses, proposed, law_3, coins_2)  # [B], [B, W]
    starts = keep_output_tokens(state, gained, accept_len)  # [B]
    logits_4, standing = drafter.extend_hidden(gained, taps, starts, accept_len)  # [B, V], [B, H]
    coins_3 = draft_coins(state.seeds, state.seq_lens, NUM_STEPS)  # [B, K]
    law_4 = law_of(logits_4, state.temperature)  # [B, V]
    whole_law_3 = drafter.target_law(law_4)  # [B, V]
    guess_3 = pick(whole_law_3, coins_3[:, 0])  # [B]
    keep_first_guess(state, guess_3, whole_law_3, standing)


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
    whole_law_ptr,  # B, V
    draft_hidden_ptr,  # B, H, written
    standing_ptr,  # B, H
    whole_law_wide,
    standing_wide,
):
    row = tl.program_id(0).to(tl.int64)  # what it reaches into passes what 32 bits count
    guess = tl.load(guess_ptr + row)
    tl.store(first_guess_ptr + row, guess)
    copy_row(first_law_ptr, whole_law_ptr, row, whole_law_wide)
    copy_row(draft_hidden_ptr, standing_ptr, row, standing_wide)


def keep_first_guess(state: Device, guess: Tensor, whole_law: Tensor, standing: Tensor) -> None:
    """Launch keep_first_guess_kernel, one program a request."""
    requests = guess.shape[0]
    whole_law = whole_law.contiguous()
    standing = standing.contiguous()
    keep_first_guess_kernel[(requests,)](
        guess,
        state.first_guess,
        state.first_law,
        whole_law,
        state.draft_hidden,
        standing,
        whole_law.shape[-1],
        standing.shape[-1],
    )


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 22}
