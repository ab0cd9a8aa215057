"""Greedy: a guess holds where it is the target's likeliest token."""

from __future__ import annotations

from specflow.graph import Builder, PhaseBuilder, Value
from specflow.recipe import ResolvedRecipe
from specflow.stages.base import AcceptStage, Gained, Guess, taken


def judge(logits: Value, _recipe: ResolvedRecipe, p: PhaseBuilder, _b: Builder) -> Value:
    """The target's word at each position."""
    shape = logits.shape[:-1]
    return p.op("best_token", logits, out="verified", shape=shape, note="the target's own words")


def accept(
    guess: Guess, verified: Value, _recipe: ResolvedRecipe, p: PhaseBuilder, _b: Builder
) -> Gained:
    """A chain keeps its matching prefix; a tree is walked while a child is the target's word."""
    drafted = taken(guess.tokens, p)
    length = Value("accept_len", ("B",))
    if guess.parents is None:
        p.ops("accept_chain", drafted, verified, outs=(length,), note="in [1, W]")
        return Gained(tokens=verified, accept_len=length)
    path = Value("path", ("B", guess.w))
    p.ops("accept_tree", drafted, taken(guess.parents, p), verified, outs=(path, length))
    gained = p.op("take_path", verified, path, out="gained", shape=("B", guess.w))
    return Gained(tokens=gained, accept_len=length, path=path)


def single(verified: Value, _p: PhaseBuilder, _b: Builder) -> Value:
    """The word itself."""
    return verified


GREEDY = AcceptStage(
    name="greedy",
    doc="greedy",
    shapes=("chain", "tree", "ragged"),
    judge=judge,
    accept=accept,
    single=single,
    draws=False,
)
