"""pico/standalone_block: the step of step.py as a device runs it.

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

from specflow.kernels.device import accept_block, draft_coins, law_of, propose, verify_coins
from specflow.kernels.rows_triton import mask_rejected, take_last, take_previous, window
from specflow.models.protocols import Draft, Target

from .step import NUM_COINS, NUM_STEPS, State

Device = State  # a device keeps nothing beside it


def step(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: all guesses are verified. 14 launches outside the forwards."""
    coins = draft_coins(state.seeds, state.seq_lens, NUM_STEPS)  # [B, K]
    pair = torch.stack([state.previous_token, state.bonus_token], dim=1)  # [B, 2]
    behind = make_behind(state)  # [B]
    logits = drafter.decode(pair, behind)  # [B, V]
    law, guess = propose(logits, state.temperature, coins[:, 0])  # [B, V], [B]
    column = guess[:, None]  # [B, 1]
    position = make_position(state, 1)  # [B]
    logits_2 = drafter.decode(column, position)  # [B, V]
    law_2, guess_2 = propose(logits_2, state.temperature, coins[:, 1])  # [B, V], [B]
    column_2 = guess_2[:, None]  # [B, 1]
    position_2 = make_position(state, 2)  # [B]
    logits_3 = drafter.decode(column_2, position_2)  # [B, V]
    law_3, guess_3 = propose(logits_3, state.temperature, coins[:, 2])  # [B, V], [B]
    proposed = torch.stack([law, law_2, law_3], dim=1)  # [B, K, V]
    guesses, tokens = make_guesses(state, guess, guess_2, guess_3)  # [B, K], [B, W]
    logits_4 = target.verify(tokens, state.seq_lens)  # [B, W, V]
    law_4 = law_of(logits_4, state.temperature)  # [B, W, V]
    coins_2 = verify_coins(state.seeds, state.seq_lens, NUM_COINS)  # [B, W + 1]
    accept_len, gained = accept_block(guesses, proposed, law_4, coins_2)  # [B], [B, W]
    keep_previous_token(state, gained, accept_len)


@triton.jit
def make_behind_kernel(
    seq_lens_ptr,  # B
    behind_out_ptr,  # B, written
):
    row = tl.program_id(0)
    seq_lens = tl.load(seq_lens_ptr + row)
    behind = seq_lens - 1
    tl.store(behind_out_ptr + row, behind)


def make_behind(state: Device) -> Tensor:
    """Launch make_behind_kernel, one program a request."""
    requests = state.seq_lens.shape[0]
    behind = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    make_behind_kernel[(requests,)](
        state.seq_lens,
        behind,
    )
    return behind


@triton.jit
def make_position_kernel(
    seq_lens_ptr,  # B
    position_out_ptr,  # B, written
    turn,
):
    row = tl.program_id(0)
    seq_lens = tl.load(seq_lens_ptr + row)
    position = seq_lens + turn
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
    guess_3_ptr,  # B
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
    guess_3 = tl.load(guess_3_ptr + row)
    bonus_token = tl.load(bonus_token_ptr + row)
    guesses = tl.full((BLOCK,), -1, tl.int64)
    guesses = tl.where(lane == 0, guess, guesses)
    guesses = tl.where(lane == 1, guess_2, guesses)
    guesses = tl.where(lane == 2, guess_3, guesses)
    tokens = window(bonus_token, guesses, lane)
    tl.store(guesses_out_ptr + row * K + lane, guesses, mask=lane < K)
    tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def make_guesses(
    state: Device, guess: Tensor, guess_2: Tensor, guess_3: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch make_guesses_kernel, one program a request."""
    requests = guess.shape[0]
    guesses = torch.empty(requests, 3, dtype=torch.int64, device=guess.device)
    tokens = torch.empty(requests, 4, dtype=torch.int64, device=guess.device)
    make_guesses_kernel[(requests,)](
        guess,
        guess_2,
        guess_3,
        state.bonus_token,
        guesses,
        tokens,
        K=3,
        W=4,
        BLOCK=4,
    )
    return guesses, tokens


@triton.jit
def keep_previous_token_kernel(
    gained_ptr,  # B, W
    accept_len_ptr,  # B
    bonus_token_ptr,  # B
    seq_lens_ptr,  # B
    previous_token_ptr,  # B, written
    output_tokens_ptr,  # B, W, written
    state_accept_len_ptr,  # B, written
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    gained = tl.load(gained_ptr + row * W + lane, mask=lane < W, other=-1)
    accept_len = tl.load(accept_len_ptr + row)
    bonus_token = tl.load(bonus_token_ptr + row)
    seq_lens = tl.load(seq_lens_ptr + row)
    previous = take_previous(bonus_token, gained, accept_len, lane)
    kept = mask_rejected(gained, accept_len, lane)
    bonus = take_last(gained, accept_len, lane)
    tl.debug_barrier()  # no thread still has to load what is stored now
    tl.store(previous_token_ptr + row, previous)
    tl.store(output_tokens_ptr + row * W + lane, kept, mask=lane < W)
    tl.store(bonus_token_ptr + row, bonus)
    tl.store(state_accept_len_ptr + row, accept_len)
    tl.store(seq_lens_ptr + row, seq_lens + accept_len)


def keep_previous_token(state: Device, gained: Tensor, accept_len: Tensor) -> None:
    """Launch keep_previous_token_kernel, one program a request."""
    requests = gained.shape[0]
    keep_previous_token_kernel[(requests,)](
        gained,
        accept_len,
        state.bonus_token,
        state.seq_lens,
        state.previous_token,
        state.output_tokens,
        state.accept_len,
        W=4,
        BLOCK=4,
    )


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 14}
