"""Extend: one draft forward over what was verified makes the draft's KV exact again (§4.5).

It overwrites what the draft wrote from its own guesses, and leaves the first guess of the next
step.
"""

from __future__ import annotations

from specflow.errors import CompileError
from specflow.graph import Builder, PhaseBuilder, Value
from specflow.recipe import Fields
from specflow.stages.base import CommitStage, Gained, Guess
from specflow.stages.growing import leave, resume


class ExtendFields(Fields):
    """Nothing to say: the forward is as wide as the verified window."""


def lower(_gained: Gained, _p: PhaseBuilder, _b: Builder) -> None:
    """Nothing beside the commit itself."""


def extend(gained: Gained, guess: Guess, b: Builder, suffix: str) -> str:
    """Run the draft over the tokens gained, beside what the target showed before each."""
    if guess.seeds is None:
        raise CompileError("a draft that leaves nothing to begin with is extended")
    name = f"extend{suffix}"
    doc = "Run the draft over what was gained; only the row of the last token is scored."
    with b.phase(name, "commit", doc, model="draft") as p:
        tokens, hidden, starts, length = resume(gained, p)
        logits = Value("logits", ("B", "V"), "float")
        standing = None
        if hidden is None:
            at = p.op("beyond", starts, out="at", shape=("B",), note="the bonus token has its KV")
            p.ops("extend", tokens, at, length, outs=(logits,))
        else:
            standing = Value("standing", ("B", "H"), "float")
            p.ops("extend_hidden", tokens, hidden, starts, length, outs=(logits, standing))
        leave(logits, standing, guess.seeds, p, b)
    return name


EXTEND = CommitStage(
    name="extend",
    doc="one draft forward over what was verified",
    fields=ExtendFields,
    lower=lower,
    extend=extend,
)
