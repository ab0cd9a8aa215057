"""DFLASH: the draft guesses a whole block at once, each row by itself (parallel.md Part 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.facts import Facts
from specflow.recipe import field
from specflow.stages.base import Axes, Derived, DraftStage
from specflow.stages.blocks import DERIVE, OWN, RULES, BlockFields, derived_size, guess_block

DEFAULT_SIZE = 16  # what z-lab's drafts are trained with


class DflashFields(BlockFields):
    """What a recipe may say about a DFLASH draft."""

    model: str = field("The draft: folder of a checkpoint, or builtin:NAME.", min_length=1)
    block_size: int = field(
        "Positions of a block, bonus token included; guesses alone with `predicts: next`.",
        derive="the draft's own, else 16",
        ge=1,
        le=63,
    )


def default_size(facts: Facts) -> Derived:
    """The size it was trained with."""
    return derived_size(facts, DEFAULT_SIZE)


def guesses(fields: Mapping[str, Any]) -> int:
    """One guess a row, but the first where a row guesses its own position's token."""
    return int(fields["block_size"]) - int(fields["predicts"] == OWN)


def cost(draft: Any) -> str:
    """The forwards of a step, for the head of the module."""
    return f"1 draft forward over a block of {draft.block_size}"


DFLASH = DraftStage(
    name="DFLASH",
    axes=Axes(signal="taps", guess="block", shape="chain", draft_state="inject"),
    doc="hidden states of the target, injected as the keys and values of a block draft",
    fields=DflashFields,
    shapes={"chain": ("inject",), "ragged": ("inject",)},
    drafter="block",
    has_law=True,
    guesses=guesses,
    lower=guess_block,
    cost=cost,
    derive=DERIVE | {"block_size": default_size},
    rules=RULES,
    formats=("dflash",),
)
