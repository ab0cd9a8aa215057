"""EAGLE: one layer guesses the target's next hidden state, and the target's head reads it.

NEXTN and MTP are this stage on the MTP layer of the target's own checkpoint (serial.md §6.1, §6.3).
"""

from __future__ import annotations

from specflow.formats import HIDDEN
from specflow.graph import Builder
from specflow.recipe import Fields, ResolvedRecipe, Slots, field
from specflow.stages.base import Axes, DraftStage, Guess, own_layer
from specflow.stages.growing import BY_HIDDEN, by_recipe, constants, cost, guesses, reach


class EagleFields(Fields):
    """What a recipe may say about a draft of one layer."""

    model: str = field(
        "The draft: folder of a checkpoint, or builtin:NAME.",
        derive="the target's own checkpoint, where it holds an MTP layer",
        min_length=1,
    )
    num_steps: int = field(
        "Tokens guessed on one path; the first is free.", table="CHAIN_SHAPES", ge=1, le=63
    )
    topk: int = field("Branches kept a step; 1 makes a chain.", table="CHAIN_SHAPES", ge=1, le=16)
    adaptive: bool = field(
        "Let acceptance decide the steps, within `adaptive_slots`; `num_steps` is the start.",
        default=False,
    )
    adaptive_slots: Slots = field(
        "Smallest batch size -> steps to choose from; 0 is plain decoding.",
        table="ADAPTIVE_SLOTS",
    )


def lower(recipe: ResolvedRecipe, b: Builder, drawn: bool) -> Guess:
    """A row pairs a token with the target's hidden state before it."""
    constants(recipe, b, recipe.facts.net.hidden_size)
    return by_recipe(recipe, b, BY_HIDDEN, drawn, shows=HIDDEN)


EAGLE = DraftStage(
    name="EAGLE",
    axes=Axes(signal="hidden", guess="autoregressive", shape="chain", draft_state="extend"),
    doc="the target's last hidden state and the token after it",
    fields=EagleFields,
    shapes={"chain": ("extend",), "tree": ("extend",)},
    drafter="hidden",
    has_law=True,
    fewer="as acceptance asks for",
    guesses=guesses,
    lower=lower,
    cost=cost,
    derive={"model": own_layer},
    reach=reach,
    formats=("eagle", "mtp", "mtp_mimo", "mtp_qwen3_next", "mtp_speculators"),
)
