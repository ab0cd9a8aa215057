"""NONE: plain decoding. Nothing is guessed; the baseline of every other stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.graph import Builder
from specflow.recipe import Fields, ResolvedRecipe
from specflow.stages.base import Axes, DraftStage, Guess


class NoneFields(Fields):
    """Plain decoding has nothing to say of a draft."""


def no_guesses(_fields: Mapping[str, Any]) -> int:
    """A chain of nothing."""
    return 0


def lower(_recipe: ResolvedRecipe, _b: Builder, _drawn: bool) -> Guess:
    """No draft phase."""
    return Guess()


NONE = DraftStage(
    name="NONE",
    axes=Axes(signal="tokens", guess="none", shape="chain", draft_state="none"),
    doc="plain decoding, one token a step",
    fields=NoneFields,
    shapes={"chain": ("none",)},
    drafter="none",
    guesses=no_guesses,
    lower=lower,
    cost=lambda _draft: "no draft",
)
