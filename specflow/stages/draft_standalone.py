"""STANDALONE: a small language model of its own guesses one token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.graph import Builder, Constant, Operand, PhaseBuilder, Value
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


def lower(recipe: ResolvedRecipe, b: Builder, drawn: bool) -> Guess:
    """Guess num_steps tokens: the likeliest ones, or drawn from the draft's law, which is kept.

    The first forward takes the last two committed tokens: after a full accept the draft's KV lacks
    both, otherwise rewriting one of them changes nothing, and the shape stays fixed (serial.md
    §6.6).
    """
    steps = b.constant("NUM_STEPS", recipe["draft.num_steps"], said(recipe, "draft.num_steps"))
    lens = state(b, "seq_lens")
    doc = "Guess K tokens, one forward each; the first catches up with the last commit."
    with b.phase("draft", "draft", doc, model="draft") as p:
        pair = p.op(
            "pair", state(b, "previous_token"), state(b, "bonus_token"), out="pair", shape=("B", 2)
        )
        behind = p.op("before", lens, out="behind", shape=("B",))
        coins = _coins(steps, p, b) if drawn else None
        guess, law = _guess(pair, behind, 0, coins, p, b)
        with p.repeat(steps, first=1) as loop:
            last = loop.carry(guess, collected="chain")
            laws = loop.carry(law, collected="laws") if law is not None else None
            column = p.op("column", last.now, out="column", shape=("B", 1))
            at = p.op("after", lens, loop.index, out="position", shape=("B",))
            last.next, law = _guess(column, at, loop.index, coins, p, b)
            if laws is not None:
                laws.next = law
        tokens = p.op("stack", last.all, out="guesses", shape=("B", "K"))
        if laws is None:
            p.give(tokens)
            return Guess(tokens=tokens, phases=("draft",))
        proposed = p.op("stack", laws.all, out="proposed", shape=("B", "K", "V"), dtype="float")
        p.give(tokens, proposed)
    return Guess(tokens=tokens, laws=proposed, phases=("draft",))


def _guess(
    tokens: Value, at: Value, step: Operand, coins: Value | None, p: PhaseBuilder, b: Builder
) -> tuple[Value, Value | None]:
    """One forward and the guess it gives; its law too, where guesses are drawn."""
    logits = p.op("decode", tokens, at, out="logits", shape=("B", "V"), dtype="float")
    if coins is None:
        return p.op("best_token", logits, out="guess", shape=("B",)), None
    law = p.op(
        "law_of", logits, state(b, "temperature"), out="law", shape=("B", "V"), dtype="float"
    )
    return p.op("pick_at", law, coins, step, out="guess", shape=("B",)), law


def _coins(steps: Constant, p: PhaseBuilder, b: Builder) -> Value:
    """A coin a guess, independent of the coins that judge it."""
    return p.op(
        "draft_coins",
        state(b, "seeds"),
        state(b, "seq_lens"),
        steps,
        out="coins",
        shape=("B", "K"),
        dtype="float",
    )


STANDALONE = DraftStage(
    name="STANDALONE",
    axes=Axes(signal="tokens", guess="autoregressive", shape="chain", draft_state="catch_up"),
    doc="a small language model with its own KV, a chain",
    fields=StandaloneFields,
    shapes=("chain",),
    draft_states=("catch_up",),
    drafter="causal_lm",
    has_law=True,
    guesses=guesses,
    lower=lower,
    cost=lambda draft: f"{draft.num_steps} draft forwards",
)
