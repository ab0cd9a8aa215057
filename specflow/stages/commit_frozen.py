"""Frozen: the draft keeps no KV, only where the target stood at the last token (serial.md §6.5)."""

from __future__ import annotations

from specflow.errors import CompileError
from specflow.graph import Builder, PhaseBuilder
from specflow.recipe import Fields
from specflow.stages.base import CommitStage, Gained, state


class FrozenFields(Fields):
    """Nothing to say: there is nothing to keep but one row."""


def lower(gained: Gained, p: PhaseBuilder, b: Builder) -> None:
    """Gather the hidden state of the last accepted node."""
    if gained.hidden is None:
        raise CompileError("a draft goes on from a hidden state that the target did not show")
    standing = p.op(
        "take_row",
        gained.hidden,
        gained.accept_len,
        out="standing",
        shape=("B", "H"),
        dtype="float",
    )
    p.store(state(b, "draft_hidden"), standing)


FROZEN = CommitStage(
    name="frozen",
    doc="the target's hidden state at the last accepted token",
    fields=FrozenFields,
    lower=lower,
)
