"""Catch up: the draft's KV lacks up to two committed tokens, which its next forward takes."""

from __future__ import annotations

from specflow.graph import Builder, PhaseBuilder
from specflow.recipe import Fields
from specflow.stages.base import CommitStage, Gained, state


class CatchUpFields(Fields):
    """Nothing to say: the window is always two tokens."""


def lower(gained: Gained, p: PhaseBuilder, b: Builder) -> None:
    """Remember the token before the bonus token; the bonus token is remembered by every step."""
    previous = p.op(
        "take_previous",
        state(b, "bonus_token"),
        gained.tokens,
        gained.accept_len,
        out="previous",
        shape=("B",),
    )
    p.store(state(b, "previous_token"), previous)


CATCH_UP = CommitStage(
    name="catch_up",
    doc="the next draft begins with the last two committed tokens",
    fields=CatchUpFields,
    lower=lower,
)
