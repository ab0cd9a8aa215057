"""STANDALONE: a small language model of its own guesses one token at a time (serial.md §6.6)."""

from __future__ import annotations

from typing import Any

from specflow.graph import Builder, Operand, PhaseBuilder, Value
from specflow.recipe import Fields, ResolvedRecipe, field
from specflow.stages.base import Axes, DraftStage, Guess, state
from specflow.stages.growing import Forward, Steps, by_recipe, constants, guesses, reach, there


class StandaloneFields(Fields):
    """What a recipe may say about a draft model."""

    model: str = field(
        "The draft: folder of a checkpoint, a GGUF file, or builtin:NAME.", min_length=1
    )
    num_steps: int = field(
        "Tokens guessed on one path, one draft forward each.", table="CHAIN_SHAPES", ge=1, le=63
    )
    topk: int = field("Branches kept a step; 1 makes a chain.", table="CHAIN_SHAPES", ge=1, le=16)


def catch_up(p: PhaseBuilder, b: Builder) -> Forward:
    """The first forward takes the last two committed tokens.

    After a full accept the draft's KV lacks both, otherwise rewriting one of them changes nothing,
    and the shape stays fixed.
    """
    previous, bonus = state(b, "previous_token"), state(b, "bonus_token")
    pair = p.op("pair", previous, bonus, out="pair", shape=("B", 2))
    behind = p.op("before", state(b, "seq_lens"), out="behind", shape=("B",))
    return p.op("decode", pair, behind, out="logits", shape=("B", "V"), dtype="float"), None


def decode(
    p: PhaseBuilder, b: Builder, token: Value, _hidden: Value | None, step: Operand
) -> Forward:
    """One token at its own position."""
    column = p.op("column", token, out="column", shape=("B", 1))
    at = p.op("after", state(b, "seq_lens"), step, out="position", shape=("B",))
    return p.op("decode", column, at, out="logits", shape=("B", "V"), dtype="float"), None


def grow(
    p: PhaseBuilder,
    b: Builder,
    tokens: Value,
    _hidden: Value | None,
    sees: Value | None,
    level: Operand,
) -> Forward:
    """The branches of a level, after the bonus token, whose KV the last extend wrote."""
    root = p.op("beyond", state(b, "seq_lens"), out="root", shape=("B",))
    shape = ("B", "T", "V")
    return p.op(
        "grow", tokens, root, there(sees), level, out="logits", shape=shape, dtype="float"
    ), None


CATCHING_UP = Steps(decode, grow, catch_up, hidden=False)
EXTENDED = Steps(decode, grow, hidden=False)


def lower(recipe: ResolvedRecipe, b: Builder, drawn: bool) -> Guess:
    """A chain of likeliest or drawn tokens, or a tree of likely ones."""
    constants(recipe, b)
    steps = CATCHING_UP if recipe.axes.draft_state == "catch_up" else EXTENDED
    return by_recipe(recipe, b, steps, drawn)


def cost(draft: Any) -> str:
    """The forwards of a step: the first guess of a tree comes from the extend."""
    if draft.topk == 1:
        return f"{draft.num_steps} draft forwards"
    return f"{draft.num_steps - 1} draft forwards of {draft.topk} branches and 1 extend"


STANDALONE = DraftStage(
    name="STANDALONE",
    axes=Axes(signal="tokens", guess="autoregressive", shape="chain", draft_state="catch_up"),
    doc="a small language model with its own KV",
    fields=StandaloneFields,
    shapes={"chain": ("catch_up", "extend"), "tree": ("extend",)},
    drafter="causal_lm",
    has_law=True,
    guesses=guesses,
    lower=lower,
    cost=cost,
    reach=reach,
    formats=("causal_lm",),
)
