"""Tree: several guesses may follow one; the target agrees with one path at most."""

from __future__ import annotations

from typing import Literal

from specflow.errors import CompileError
from specflow.graph import Builder, PhaseBuilder, Value
from specflow.recipe import Fields, field
from specflow.stages.base import Gained, Guess, VerifyStage, state


class TreeFields(Fields):
    """What a recipe may say about a verified tree."""

    num_draft_tokens: int = field(
        "Positions verified, bonus token included.", derive="guesses + 1", ge=2, le=64
    )
    accept: Literal["greedy"] = field("How guesses are accepted.", default="greedy")


def lower(guess: Guess, p: PhaseBuilder, b: Builder) -> Value:
    """Ask the target, once, about every node; a node sees the prefix and its ancestors."""
    if guess.tokens is None or guess.parents is None:
        raise CompileError("a tree is verified where no parents were drafted")
    tokens = p.op(
        "known_window", state(b, "bonus_token"), guess.tokens, out="tokens", shape=("B", "W")
    )
    depths, sees = Value("depths", ("B", "W")), Value("sees", ("B", "W", "W"), "bool")
    p.ops("tree_arrays", guess.parents, outs=(depths, sees))
    logits = p.op(
        "verify_tree",
        tokens,
        state(b, "seq_lens"),
        depths,
        sees,
        out="logits",
        shape=("B", "W", "V"),
        dtype="float",
    )
    return p.op(
        "best_token",
        logits,
        out="verified",
        shape=("B", "W"),
        note="the target's word after each node",
    )


def accept(guess: Guess, verified: Value, p: PhaseBuilder, _b: Builder) -> Gained:
    """Walk from the root while a child is the target's word."""
    path, length = Value("path", ("B", "W")), Value("accept_len", ("B",))
    assert guess.tokens is not None
    assert guess.parents is not None
    p.ops(
        "accept_tree",
        guess.tokens,
        guess.parents,
        verified,
        outs=(path, length),
        note="the nodes accepted, then -1",
    )
    gained = p.op("take_path", verified, path, out="gained", shape=("B", "W"))
    return Gained(tokens=gained, accept_len=length, path=path)


TREE = VerifyStage(
    name="tree",
    doc="a tree of {W} positions, the bonus token its root",
    fields=TreeFields,
    lower=lower,
    accept=accept,
)
