"""What a stage is: a value with fields, rules and a way to write its part of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specflow.graph import Buffer, Builder, PhaseBuilder, Value
from specflow.recipe import Axes, Fields, ResolvedRecipe
from specflow.rules import Rule

__all__ = [
    "Axes",
    "CommitStage",
    "Derive",
    "DraftStage",
    "Gained",
    "Guess",
    "VerifyStage",
    "said",
    "state",
]

# A formula of a default: (the block's fields so far, facts of target and draft by dotted name) ->
# value.
Derive = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Guess:
    """Where verify finds the guesses: a value of the draft phase, or state the host filled.

    tokens   [B, K]   None where nothing is drafted
    parents  [B, K]   for trees
    phases   the draft phases that run inside the captured step
    """

    tokens: Value | Buffer | None = None
    parents: Buffer | None = None
    phases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gained:
    """What a request gains in a step, inside the commit phase.

    tokens      [B, W]  the target's words along the accepted path
    accept_len  [B]
    path        [B, W]  nodes accepted, where their KV has to move
    """

    tokens: Value
    accept_len: Value
    path: Value | None = None


@dataclass(frozen=True)
class DraftStage:
    """Whatever guesses: one row of the draft table.

    axes     its point, the shape being the default one
    shapes   the verify shapes it can feed
    draft_states  the ways its state can go on
    drafter  what the runtime builds for it: none, lookup, causal_lm
    guesses  how many tokens a chain of it proposes; None where the verify width decides
    tables   defaults of other blocks that depend on this stage: dotted path -> table
    """

    name: str
    axes: Axes
    doc: str
    fields: type[Fields]
    shapes: tuple[str, ...]
    draft_states: tuple[str, ...]
    drafter: str
    guesses: Callable[[Mapping[str, Any]], int | None]
    lower: Callable[[Any, ResolvedRecipe, Builder], Guess]
    cost: Callable[[Any], str]
    derive: Mapping[str, Derive] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class VerifyStage:
    """What shape is verified, and how guesses are accepted."""

    name: str
    doc: str
    fields: type[Fields]
    lower: Callable[[Guess, PhaseBuilder, Builder], Value]
    accept: Callable[[Guess, Value, PhaseBuilder, Builder], Gained]
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class CommitStage:
    """How draft state goes on after the accepted prefix is permanent."""

    name: str
    doc: str
    fields: type[Fields]
    lower: Callable[[Gained, PhaseBuilder, Builder], None]
    host: Callable[[Builder], None] | None = None
    rules: tuple[Rule, ...] = ()


def state(b: Builder, name: str) -> Buffer:
    """The state that every step has, by name."""
    shape, doc = _STATE[name]
    return b.buffer(name, shape, doc)


def said(recipe: ResolvedRecipe, path: str) -> str:
    """Who set a field, for the comment beside its constant."""
    entry = recipe.ledger[path]
    return f"{path}, {entry.origin.value}: {entry.because}"


_STATE: dict[str, tuple[tuple[str, ...], str]] = {
    "bonus_token": (("B",), "the target's last word, not yet in any KV"),
    "previous_token": (("B",), "the token before the bonus token"),
    "seq_lens": (("B",), "committed tokens: KV is valid for positions below"),
    "guesses": (("B", "K"), "what the host drafted; -1 is no guess"),
    "parents": (("B", "K"), "node each guess hangs from; 0 is the bonus token"),
    "accept_len": (("B",), "out: tokens gained, in [1, W]"),
    "output_tokens": (("B", "W"), "out: the tokens gained, then -1"),
}
