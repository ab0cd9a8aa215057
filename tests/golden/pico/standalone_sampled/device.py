"""pico/standalone_sampled: the step of step.py as a device runs it.

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

from specflow.kernels.device import accept_rejection, draft_coins, law_of, propose, verify_coins
from specflow.kernels.rows_triton import mask_rejected, take_last, take_previous, window
from specflow.models.protocols import Draft, Target

from .step import NUM_COINS, NUM_STEPS, State


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
    seq_lens_ptr,  # B
    behind_out_ptr,  # B, written
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    seq_lens = tl.load(seq_lens_ptr + row)
    behind = seq_lens - 1
    tl.store(behind_out_ptr + row, behind)


def rows_1(state: Device) -> Tensor:
    """Launch rows_1_kernel, one program a request."""
    requests = state.seq_lens.shape[0]
    behind = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    rows_1_kernel[(requests,)](
        state.seq_lens,
        behind,
    )
    return behind


@triton.jit
def rows_2_kernel(
    seq_lens_ptr,  # B
    position_out_ptr,  # B, written
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    seq_lens = tl.load(seq_lens_ptr + row)
    position = seq_lens + 1
    tl.store(position_out_ptr + row, position)


def rows_2(state: Device) -> Tensor:
    """Launch rows_2_kernel, one program a request."""
    requests = state.seq_lens.shape[0]
    position = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    rows_2_kernel[(requests,)](
        state.seq_lens,
        position,
    )
    return position


@triton.jit
def rows_3_kernel(
    seq_lens_ptr,  # B
    position_2_out_ptr,  # B, written
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    seq_lens = tl.load(seq_lens_ptr + row)
    position_2 = seq_lens + 2
    tl.store(position_2_out_ptr + row, position_2)


def rows_3(state: Device) -> Tensor:
    """Launch rows_3_kernel, one program a request."""
    requests = state.seq_lens.shape[0]
    position_2 = torch.empty(requests, dtype=torch.int64, device=state.seq_lens.device)
    rows_3_kernel[(requests,)](
        state.seq_lens,
        position_2,
    )
    return position_2


@triton.jit
def rows_4_kernel(
    guess_ptr,  # B
    guess_2_ptr,  # B
    guess_3_ptr,  # B
    guesses_out_ptr,  # B, K, written
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    lane = tl.arange(0, BLOCK)
    guess = tl.load(guess_ptr + row)
    guess_2 = tl.load(guess_2_ptr + row)
    guess_3 = tl.load(guess_3_ptr + row)
    guesses = tl.full((BLOCK,), -1, tl.int64)
    guesses = tl.where(lane == 0, guess, guesses)
    guesses = tl.where(lane == 1, guess_2, guesses)
    guesses = tl.where(lane == 2, guess_3, guesses)
    tl.store(guesses_out_ptr + row * K + lane, guesses, mask=lane < K)


def rows_4(guess: Tensor, guess_2: Tensor, guess_3: Tensor) -> Tensor:
    """Launch rows_4_kernel, one program a request."""
    requests = guess.shape[0]
    guesses = torch.empty(requests, 3, dtype=torch.int64, device=guess.device)
    rows_4_kernel[(requests,)](
        guess,
        guess_2,
        guess_3,
        guesses,
        K=3,
        BLOCK=4,
    )
    return guesses


@triton.jit
def rows_5_kernel(
    guesses_ptr,  # B, K
    bonus_token_ptr,  # B
    tokens_out_ptr,  # B, W, written
    K: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
    bonus_token = tl.load(bonus_token_ptr + row)
    tokens = window(bonus_token, guesses, lane)
    tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def rows_5(state: Device, guesses: Tensor) -> Tensor:
    """Launch rows_5_kernel, one program a request."""
    requests = guesses.shape[0]
    tokens = torch.empty(requests, 4, dtype=torch.int64, device=guesses.device)
    rows_5_kernel[(requests,)](
        guesses,
        state.bonus_token,
        tokens,
        K=3,
        W=4,
        BLOCK=4,
    )
    return tokens


@triton.jit
def rows_6_kernel(
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
    row = tl.program_id(0).to(tl.int64)  # B * W * V passes what 32 bits hold
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


def rows_6(state: Device, gained: Tensor, accept_len: Tensor) -> None:
    """Launch rows_6_kernel, one program a request."""
    requests = gained.shape[0]
    rows_6_kernel[(requests,)](
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


def step(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: all guesses are verified. 15 launches outside the forwards."""
    coins = draft_coins(state.seeds, state.seq_lens, NUM_STEPS)  # [B, K]
    pair = torch.stack([state.previous_token, state.bonus_token], dim=1)  # [B, 2]
    behind = rows_1(state)  # [B]
    logits = drafter.decode(pair, behind)  # [B, V]
    law, guess = propose(logits, state.temperature, coins[:, 0])  # [B, V], [B]
    column = guess[:, None]  # [B, 1]
    position = rows_2(state)  # [B]
    logits_2 = drafter.decode(column, position)  # [B, V]
    law_2, guess_2 = propose(logits_2, state.temperature, coins[:, 1])  # [B, V], [B]
    column_2 = guess_2[:, None]  # [B, 1]
    position_2 = rows_3(state)  # [B]
    logits_3 = drafter.decode(column_2, position_2)  # [B, V]
    law_3, guess_3 = propose(logits_3, state.temperature, coins[:, 2])  # [B, V], [B]
    guesses = rows_4(guess, guess_2, guess_3)  # [B, K]
    proposed = torch.stack([law, law_2, law_3], dim=1)  # [B, K, V]
    tokens = rows_5(state, guesses)  # [B, W]
    logits_4 = target.verify(tokens, state.seq_lens)  # [B, W, V]
    law_4 = law_of(logits_4, state.temperature)  # [B, W, V]
    coins_2 = verify_coins(state.seeds, state.seq_lens, NUM_COINS)  # [B, W + 1]
    accept_len, gained = accept_rejection(guesses, proposed, law_4, coins_2)  # [B], [B, W]
    rows_6(state, gained, accept_len)


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 15}
