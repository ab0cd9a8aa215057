"""pico/dspark_sampled: the step of step.py as a device runs it.

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
    law_of,
    mask_block,
    propose,
    verify_coins,
)
from specflow.kernels.rows_triton import hold, mask_rejected, take_last, window
from specflow.models.protocols import Draft, Target

from .step import BLOCK_ROWS, MASK_TOKEN, NUM_COINS, NUM_GUESSES, TAPS, State

Device = State  # a device keeps nothing beside it


def step(target: Target, drafter: Draft, state: Device) -> None:
    """One captured step: all guesses are verified. 15 launches outside the forwards."""
    block = mask_block(state.bonus_token, MASK_TOKEN, BLOCK_ROWS)  # [B, Q]
    hidden = drafter.denoise(block, state.seq_lens)  # [B, Q, H]
    base = drafter.score(hidden)  # [B, K, V]
    coins = draft_coins(state.seeds, state.seq_lens, NUM_GUESSES)  # [B, K]
    bias = drafter.markov(state.bonus_token, hidden[:, 0])  # [B, V]
    law, guess = propose(base[:, 0], state.temperature, coins[:, 0], bias=bias)  # [B, V], [B]
    bias_2 = drafter.markov(guess, hidden[:, 1])  # [B, V]
    law_2, guess_2 = propose(base[:, 1], state.temperature, coins[:, 1], bias=bias_2)  # [B, V], [B]
    bias_3 = drafter.markov(guess_2, hidden[:, 2])  # [B, V]
    law_3, guess_3 = propose(base[:, 2], state.temperature, coins[:, 2], bias=bias_3)  # [B, V], [B]
    bias_4 = drafter.markov(guess_3, hidden[:, 3])  # [B, V]
    law_4, guess_4 = propose(base[:, 3], state.temperature, coins[:, 3], bias=bias_4)  # [B, V], [B]
    bias_5 = drafter.markov(guess_4, hidden[:, 4])  # [B, V]
    law_5, guess_5 = propose(base[:, 4], state.temperature, coins[:, 4], bias=bias_5)  # [B, V], [B]
    bias_6 = drafter.markov(guess_5, hidden[:, 5])  # [B, V]
    law_6, guess_6 = propose(base[:, 5], state.temperature, coins[:, 5], bias=bias_6)  # [B, V], [B]
    bias_7 = drafter.markov(guess_6, hidden[:, 6])  # [B, V]
    law_7, guess_7 = propose(base[:, 6], state.temperature, coins[:, 6], bias=bias_7)  # [B, V], [B]
    proposed = torch.stack([law, law_2, law_3, law_4, law_5, law_6, law_7], dim=1)  # [B, K, V]
    # shapes given: [B, K], [B, W]
    guesses, tokens = make_guesses(
        state, guess, guess_2, guess_3, guess_4, guess_5, guess_6, guess_7
    )
    logits_8, taps = target.verify_taps(tokens, state.seq_lens, TAPS)  # [B, W, V], [B, W, n * H]
    law_8 = law_of(logits_8, state.temperature)  # [B, W, V]
    coins_2 = verify_coins(state.seeds, state.seq_lens, NUM_COINS)  # [B, W + 1]
    accept_len, gained = accept_rejection(guesses, proposed, law_8, coins_2)  # [B], [B, W]
    starts = keep_output_tokens(state, gained, accept_len)  # [B]
    drafter.inject(taps, starts, state.accept_len)


@triton.jit
def make_guesses_kernel(
    guess_ptr,  # B
    guess_2_ptr,  # B
    guess_3_ptr,  # B
    guess_4_ptr,  # B
    guess_5_ptr,  # B
    guess_6_ptr,  # B
    guess_7_ptr,  # B
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
    guess_4 = tl.load(guess_4_ptr + row)
    guess_5 = tl.load(guess_5_ptr + row)
    guess_6 = tl.load(guess_6_ptr + row)
    guess_7 = tl.load(guess_7_ptr + row)
    bonus_token = tl.load(bonus_token_ptr + row)
    guesses = tl.full((BLOCK,), -1, tl.int64)
    guesses = tl.where(lane == 0, guess, guesses)
    guesses = tl.where(lane == 1, guess_2, guesses)
    guesses = tl.where(lane == 2, guess_3, guesses)
    guesses = tl.where(lane == 3, guess_4, guesses)
    guesses = tl.where(lane == 4, guess_5, guesses)
    guesses = tl.where(lane == 5, guess_6, guesses)
    guesses = tl.where(lane == 6, guess_7, guesses)
    tokens = window(bonus_token, guesses, lane)
    tl.store(guesses_out_ptr + row * K + lane, guesses, mask=lane < K)
    tl.store(tokens_out_ptr + row * W + lane, tokens, mask=lane < W)


def make_guesses(
    state: Device,
    guess: Tensor,
    guess_2: Tensor,
    guess_3: Tensor,
    guess_4: Tensor,
    guess_5: Tensor,
    guess_6: Tensor,
    guess_7: Tensor,
) -> tuple[Tensor, Tensor]:
    """Launch make_guesses_kernel, one program a request."""
    requests = guess.shape[0]
    guesses = torch.empty(requests, 7, dtype=torch.int64, device=guess.device)
    tokens = torch.empty(requests, 8, dtype=torch.int64, device=guess.device)
    make_guesses_kernel[(requests,)](
        guess,
        guess_2,
        guess_3,
        guess_4,
        guess_5,
        guess_6,
        guess_7,
        state.bonus_token,
        guesses,
        tokens,
        K=7,
        W=8,
        BLOCK=8,
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
        W=8,
        BLOCK=8,
    )
    return starts


VARIANTS = {
    "chain": step,
}
LAUNCHES = {"chain": 15}
