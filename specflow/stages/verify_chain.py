"""Chain: each guess follows the one before it."""

from __future__ import annotations

from specflow.graph import Builder, PhaseBuilder
from specflow.recipe import AcceptFields, ResolvedRecipe, field
from specflow.stages.base import Asked, Guess, VerifyStage, ask, state, taken


class ChainFields(AcceptFields):
    """What a recipe may say about a verified chain."""

    num_draft_tokens: int = field(
        "Positions verified, bonus token included.", derive="guesses + 1", ge=1, le=64
    )


def lower(_recipe: ResolvedRecipe, guess: Guess, p: PhaseBuilder, b: Builder) -> Asked:
    """Ask the target, once, about the bonus token and every guess."""
    bonus, lens = state(b, "bonus_token"), state(b, "seq_lens")
    drafted = taken(guess.tokens, p)
    kind = "known_window" if guess.padded else "window"
    tokens = p.op(kind, bonus, drafted, out="tokens", shape=("B", guess.w))
    return Asked(*ask("verify", (tokens, lens), guess, p, b))


CHAIN = VerifyStage(
    name="chain",
    doc="1 bonus token + {K} guesses = {W} positions",
    fields=ChainFields,
    lower=lower,
)
