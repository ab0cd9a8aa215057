"""Frozen: the draft keeps no KV, only where the target stood at the last token (serial.md §6.5)."""

from __future__ import annotations

from specflow.errors import CompileError
from specflow.graph import Builder, PhaseBuilder
from specflow.recipe import Fields
from specflow.stages.base import CommitStage, Gained, Guess, state


class FrozenFields(Fields):
    """Nothing to say: there is nothing to keep but one row."""


def lower(_gained: Gained, _p: PhaseBuilder, _b: Builder) -> None:
    """Nothing beside the commit itself."""


def extend(gained: Gained, _guess: Guess, b: Builder, suffix: str) -> str:
    """Gather the hidden state of the last accepted node."""
    name = f"stand{suffix}"
    with b.phase(name, "commit", "Leave the draft where the target stood last.") as p:
        if gained.hidden is None:
            raise CompileError("a draft goes on from a hidden state that the target did not show")
        rows = (p.take(gained.hidden), state(b, "accept_len"))
        standing = p.op("take_row", *rows, out="standing", shape=("B", "H"), dtype="float")
        p.store(state(b, "draft_hidden"), standing)
    return name


FROZEN = CommitStage(
    name="frozen",
    doc="the target's hidden state at the last accepted token",
    fields=FrozenFields,
    lower=lower,
    extend=extend,
)
