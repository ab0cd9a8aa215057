"""EAGLE3: the draft reads three layers of the target, and has a head of its own (§6.2)."""

from __future__ import annotations

from specflow.facts import Facts
from specflow.formats import TAPS
from specflow.graph import Builder
from specflow.provenance import Origin
from specflow.recipe import Fields, Layers, ResolvedRecipe, Slots, field
from specflow.stages.base import Axes, Derived, DraftStage, Guess, Missing, said
from specflow.stages.growing import BY_HIDDEN, by_recipe, constants, cost, guesses, reach
from specflow.stages.tapped import TAP_RULES


class Eagle3Fields(Fields):
    """What a recipe may say about an EAGLE3 draft."""

    model: str = field("The draft: folder of a checkpoint, or builtin:NAME.", min_length=1)
    taps: Layers = field(
        "Target layers whose input the draft reads; the number of layers is the last one's output.",
        derive="the draft's own, else [2, L/2, L-3]",
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


def default_taps(facts: Facts) -> Derived | Missing:
    """The layers the draft was trained on, or else a low, a middle and a high one."""
    if facts.net.taps:
        return Derived(facts.net.taps, "the draft's config", Origin.CHECKPOINT)
    layers = facts["target"].layers
    if not layers and facts["target"].problem is None:
        message = f"`draft.taps` is not written, and how many layers `{facts['target'].model}` has"
        return Missing(
            f"{message} is not told by its header", "write the taps that the draft was trained on"
        )
    taps = (min(2, layers), layers // 2, max(layers - 3, 0))
    return Derived(taps, f"[2, L/2, L-3] with L = {layers}")


def lower(recipe: ResolvedRecipe, b: Builder, drawn: bool) -> Guess:
    """A row pairs a token with the target's taps before it."""
    constants(recipe, b, recipe.facts.net.hidden_size)
    b.constant("TAPS", recipe["draft.taps"], said(recipe, "draft.taps"))
    return by_recipe(recipe, b, BY_HIDDEN, drawn, shows=TAPS)


EAGLE3 = DraftStage(
    name="EAGLE3",
    axes=Axes(signal="taps", guess="autoregressive", shape="chain", draft_state="extend"),
    doc="what enters a low, a middle and a high layer of the target",
    fields=Eagle3Fields,
    shapes={"chain": ("extend",), "tree": ("extend",)},
    drafter="hidden",
    has_law=True,
    fewer="as acceptance asks for",
    guesses=guesses,
    lower=lower,
    cost=cost,
    derive={"taps": default_taps},
    reach=reach,
    rules=TAP_RULES,
    formats=("eagle3", "eagle3_speculators"),
)
