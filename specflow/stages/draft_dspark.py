"""DSPARK: a block at once, then each guess corrected by the one before it (parallel.md Part 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.facts import Facts
from specflow.provenance import Origin
from specflow.recipe import field
from specflow.stages.base import Axes, Derived, DraftStage, Missing
from specflow.stages.blocks import DERIVE, RULES, BlockFields, derived_size, guess_block

DEFAULT_SIZE = 7  # what DeepSpec's drafts are trained with
FOLDER = "dspark"  # of a target's checkpoint, where the draft comes along


class DsparkFields(BlockFields):
    """What a recipe may say about a DSPARK draft."""

    model: str = field(
        "The draft: folder of a checkpoint, or builtin:NAME.",
        derive="the one that comes along with the target",
    )
    block_size: int = field(
        "Guesses of a block; one position more is verified.",
        derive="the draft's own, else 7",
        ge=1,
        le=63,
    )


def default_size(facts: Facts) -> Derived:
    """The size it was trained with."""
    return derived_size(facts, DEFAULT_SIZE)


def own_draft(facts: Facts) -> Derived | Missing:
    """The draft in the target's own checkpoint."""
    target, draft = facts["target"], facts["draft"]
    if draft.model == f"{target.model}/{FOLDER}":
        return Derived(draft.model, "it comes along with the target", Origin.CHECKPOINT)
    if target.problem is not None:
        return Derived(target.model, "the target cannot be read")
    if facts.net.bundled and facts.net.format:
        return Derived(target.model, "it comes along with the target", Origin.CHECKPOINT)
    return Missing(
        f"`draft.model` is not written, and `{target.model}` holds no `{FOLDER}` folder",
        "name a draft as `draft.model`",
    )


def guesses(fields: Mapping[str, Any]) -> int:
    """As many as the size says, whatever a row guesses."""
    return int(fields["block_size"])


def cost(draft: Any) -> str:
    """The forwards of a step, for the head of the module."""
    return f"1 draft forward over a block of {draft.block_size}, then as many Markov look-ups"


DSPARK = DraftStage(
    name="DSPARK",
    axes=Axes(signal="taps", guess="block_markov", shape="chain", draft_state="inject"),
    doc="hidden states of the target, injected as the keys and values of a block draft",
    fields=DsparkFields,
    shapes={"chain": ("inject",), "ragged": ("inject",)},
    drafter="block",
    has_law=True,
    guesses=guesses,
    lower=guess_block,
    cost=cost,
    derive=DERIVE | {"block_size": default_size, "model": own_draft},
    rules=RULES,
    formats=("dspark",),
    folder=FOLDER,
)
