"""Chain: each guess follows the one before it."""

from __future__ import annotations

from typing import Literal

from specflow.graph import Builder, PhaseBuilder, Value
from specflow.recipe import Fields, field
from specflow.stages.base import Gained, Guess, VerifyStage, state


class ChainFields(Fields):
    """What a recipe may say about a verified chain."""

    num_draft_tokens: int = field(
        "Positions verified, bonus token included.", derive="guesses + 1", ge=1, le=64
    )
    accept: Literal["greedy"] = field("How guesses are accepted.", default="greedy")


def lower(guess: Guess, p: PhaseBuilder, b: Builder) -> Value:
    """Ask the target, once, about the bonus token and every guess."""
    bonus, lens = state(b, "bonus_token"), state(b, "seq_lens")
    assert guess.tokens is not None
    drafted = p.take(guess.tokens) if isinstance(guess.tokens, Value) else guess.tokens
    kind = "window" if isinstance(guess.tokens, Value) else "known_window"
    tokens = p.op(kind, bonus, drafted, out="tokens", shape=("B", "W"))
    logits = p.op("verify", tokens, lens, out="logits", shape=("B", "W", "V"), dtype="float")
    return p.op(
        "best_token",
        logits,
        out="verified",
        shape=("B", "W"),
        note="what the target would have said",
    )


def accept(guess: Guess, verified: Value, p: PhaseBuilder, _b: Builder) -> Gained:
    """Keep the matching prefix; its KV is where it belongs already."""
    assert guess.tokens is not None
    drafted = p.take(guess.tokens) if isinstance(guess.tokens, Value) else guess.tokens
    length = p.op(
        "accept_chain", drafted, verified, out="accept_len", shape=("B",), note="in [1, W]"
    )
    return Gained(tokens=verified, accept_len=length)


CHAIN = VerifyStage(
    name="chain",
    doc="1 bonus token + {K} guesses = {W} positions",
    fields=ChainFields,
    lower=lower,
    accept=accept,
)
