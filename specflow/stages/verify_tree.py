"""Tree: several guesses may follow one; the target agrees with one path at most."""

from __future__ import annotations

from specflow.errors import CompileError
from specflow.graph import Builder, PhaseBuilder, Value
from specflow.recipe import AcceptFields, ResolvedRecipe, field
from specflow.stages.base import Asked, Guess, VerifyStage, ask, state, taken


class TreeFields(AcceptFields):
    """What a recipe may say about a verified tree."""

    num_draft_tokens: int = field(
        "Positions verified, bonus token included.", derive="guesses + 1", ge=2, le=64
    )


def lower(_recipe: ResolvedRecipe, guess: Guess, p: PhaseBuilder, b: Builder) -> Asked:
    """Ask the target, once, about every node; a node sees the prefix and its ancestors."""
    if guess.parents is None:
        raise CompileError("a tree is verified where no parents were drafted")
    drafted = taken(guess.tokens, p)
    kind = "known_window" if guess.padded else "window"
    tokens = p.op(kind, state(b, "bonus_token"), drafted, out="tokens", shape=("B", guess.w))
    depths, sees = Value("depths", ("B", guess.w)), Value("sees", ("B", guess.w, guess.w), "bool")
    p.ops("tree_arrays", taken(guess.parents, p), outs=(depths, sees))
    return Asked(*ask("verify_tree", (tokens, state(b, "seq_lens"), depths, sees), guess, p, b))


TREE = VerifyStage(
    name="tree",
    doc="a tree of {W} positions, the bonus token its root",
    fields=TreeFields,
    lower=lower,
)
