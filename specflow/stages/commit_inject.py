"""Inject: what the target showed at the accepted positions becomes the draft's keys and values."""

from __future__ import annotations

from specflow.errors import CompileError
from specflow.graph import Builder, PhaseBuilder
from specflow.recipe import Fields
from specflow.stages.base import CommitStage, Gained, Guess, state


class InjectFields(Fields):
    """Nothing to say: every accepted position is injected."""


def lower(_gained: Gained, _p: PhaseBuilder, _b: Builder) -> None:
    """Nothing beside the commit itself."""


def extend(gained: Gained, _guess: Guess, b: Builder, suffix: str) -> str:
    """Project and write; no attention, no residual (parallel.md 1f)."""
    name = f"inject{suffix}"
    doc = "Project the taps of the accepted positions into the draft's KV; the rest stays unseen."
    with b.phase(name, "commit", doc, model="draft") as p:
        if gained.hidden is None or gained.starts is None:
            raise CompileError("a draft is injected with taps that the target did not show")
        shown, starts = p.take(gained.hidden), p.take(gained.starts)
        p.ops("inject", shown, starts, state(b, "accept_len"), outs=())
    return name


INJECT = CommitStage(
    name="inject",
    doc="the target's taps at the accepted positions, projected into the draft's KV",
    fields=InjectFields,
    lower=lower,
    extend=extend,
)
