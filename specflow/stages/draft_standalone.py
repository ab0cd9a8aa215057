"""STANDALONE: a small language model of its own guesses one token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.graph import Builder
from specflow.recipe import Fields, ResolvedRecipe, field
from specflow.stages.base import Axes, DraftStage, Guess, said, state


class StandaloneFields(Fields):
    """What a recipe may say about a draft model."""

    model: str = field("The draft: folder of a checkpoint, a GGUF file, or builtin:NAME.")
    num_steps: int = field(
        "Tokens guessed a round, one draft forward each.", table="CHAIN_SHAPES", ge=1, le=63
    )


def guesses(fields: Mapping[str, Any]) -> int:
    """One guess a step."""
    return int(fields["num_steps"])


def lower(_draft: StandaloneFields, recipe: ResolvedRecipe, b: Builder) -> Guess:
    """Guess num_steps tokens.

    The first forward takes the last two committed tokens: after a full accept the draft's KV lacks
    both, otherwise rewriting one of them changes nothing, and the shape stays fixed (serial.md
    §6.6).
    """
    steps = b.constant("NUM_STEPS", recipe["draft.num_steps"], said(recipe, "draft.num_steps"))
    lens = state(b, "seq_lens")
    with b.phase(
        "draft",
        "draft",
        "Guess K tokens, one forward each; the first catches up with the last commit.",
        model="draft",
    ) as p:
        pair = p.op(
            "pair", state(b, "previous_token"), state(b, "bonus_token"), out="pair", shape=("B", 2)
        )
        behind = p.op("before", lens, out="behind", shape=("B",))
        logits = p.op("decode", pair, behind, out="logits", shape=("B", "V"), dtype="float")
        guess = p.op("best_token", logits, out="guess", shape=("B",))
        with p.repeat(steps, first=1) as loop:
            last = loop.carry(guess, collected="chain")
            column = p.op("column", last.now, out="column", shape=("B", 1))
            at = p.op("after", lens, loop.index, out="position", shape=("B",))
            logits = p.op("decode", column, at, out="logits", shape=("B", "V"), dtype="float")
            last.next = p.op("best_token", logits, out="guess", shape=("B",))
        tokens = p.op("stack", last.all, out="guesses", shape=("B", "K"))
        p.give(tokens)
    return Guess(tokens=tokens, phases=("draft",))


STANDALONE = DraftStage(
    name="STANDALONE",
    axes=Axes(signal="tokens", guess="autoregressive", shape="chain", draft_state="catch_up"),
    doc="a small language model with its own KV, a chain",
    fields=StandaloneFields,
    shapes=("chain",),
    draft_states=("catch_up",),
    drafter="causal_lm",
    guesses=guesses,
    lower=lower,
    cost=lambda draft: f"{draft.num_steps} draft forwards",
)
