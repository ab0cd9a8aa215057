"""What a stage is: a value with fields, rules and a way to write its part of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specflow.errors import CompileError
from specflow.graph import Buffer, Builder, Constant, PhaseBuilder, Value
from specflow.recipe import Axes, Fields, ResolvedRecipe
from specflow.rules import Rule

__all__ = [
    "AcceptStage",
    "Axes",
    "CommitStage",
    "DraftStage",
    "Gained",
    "Guess",
    "VerifyStage",
    "by_draft_law",
    "draw_single",
    "said",
    "state",
    "taken",
    "target_law",
    "verdict_coins",
]

NARROW = "NUM_NARROW_TOKENS"  # the constant behind the letter w


@dataclass(frozen=True)
class Guess:
    """Where verify finds the guesses: a value of the draft phase, or state the host filled.

    tokens   [B, K]     None where nothing is drafted; -1 in state is no guess
    parents  [B, K]     for trees
    laws     [B, K, V]  what each guess was drawn from, where it was drawn
    phases   the draft phases that run inside the captured step
    padded   there may be fewer guesses than K
    narrow   positions of the window for weak evidence, where the draft knows weak from strong
    """

    tokens: Value | Buffer | None = None
    parents: Value | Buffer | None = None
    laws: Value | None = None
    phases: tuple[str, ...] = ()
    padded: bool = False
    narrow: Constant | None = None

    @property
    def k(self) -> str:
        """The letter of the number of guesses: small in a narrow window."""
        return "k" if self.tokens is not None and self.tokens.shape[1] == "k" else "K"

    @property
    def w(self) -> str:
        """The letter of the number of positions."""
        return "w" if self.k == "k" else "W"


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
    has_law  its guesses can be drawn from a law of its own
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
    lower: Callable[[ResolvedRecipe, Builder, bool], Guess]
    cost: Callable[[Any], str]
    tables: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    has_law: bool = False


@dataclass(frozen=True)
class VerifyStage:
    """What shape is verified: one target forward, its logits the result."""

    name: str
    doc: str
    fields: type[Fields]
    lower: Callable[[Guess, PhaseBuilder, Builder], Value]


@dataclass(frozen=True)
class AcceptStage:
    """How guesses are accepted.

    shapes  the verify shapes it can judge
    draws   it samples, so it serves temperatures above 0
    laws    it needs the law each guess was drawn from
    judge   in the verify phase, from logits to what the target says: words or laws
    accept  in the commit phase, what is gained
    single  in the commit phase, the one token [B, 1] of a step that verifies one position
    """

    name: str
    doc: str
    shapes: tuple[str, ...]
    judge: Callable[[Value, ResolvedRecipe, PhaseBuilder, Builder], Value]
    accept: Callable[[Guess, Value, ResolvedRecipe, PhaseBuilder, Builder], Gained]
    single: Callable[[Value, PhaseBuilder, Builder], Value]
    draws: bool = True
    laws: bool = False
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class CommitStage:
    """How draft state goes on after the accepted prefix is permanent."""

    name: str
    doc: str
    fields: type[Fields]
    lower: Callable[[Gained, PhaseBuilder, Builder], None]
    host: Callable[[Builder], None] | None = None


def state(b: Builder, name: str) -> Buffer:
    """The state that every step has, by name."""
    shape, doc, dtype = _STATE[name]
    return b.buffer(name, shape, doc, dtype)


def taken(guess: Value | Buffer | None, p: PhaseBuilder) -> Value | Buffer:
    """The guesses as a phase reads them: state as it is, a value as an argument."""
    if guess is None:
        raise CompileError("a phase reads guesses where nothing was drafted")
    return p.take(guess) if isinstance(guess, Value) else guess


def said(recipe: ResolvedRecipe, path: str) -> str:
    """Who set a field, for the comment beside its constant."""
    entry = recipe.ledger[path]
    return f"{path}, {entry.origin.value}: {entry.because}"


def target_law(logits: Value, recipe: ResolvedRecipe, p: PhaseBuilder, b: Builder) -> Value:
    """The law the target samples from, cut where the recipe cuts it."""
    law = p.op(
        "law_of", logits, state(b, "temperature"), out="law", shape=logits.shape, dtype="float"
    )
    if recipe.sampling.cuts:
        cuts = (state(b, name) for name in ("top_k", "top_p", "min_p"))
        law = p.op("filter_law", law, *cuts, out="kept_law", shape=logits.shape, dtype="float")
    return law


def verdict_coins(p: PhaseBuilder, b: Builder) -> Value:
    """A coin for each position and one for the last token."""
    count = b.constants["NUM_DRAFT_TOKENS"]
    one_more = b.constant(
        "NUM_COINS", int(count.value) + 1, "a coin a position, one for the last token"
    )
    return p.op(
        "verify_coins",
        state(b, "seeds"),
        state(b, "seq_lens"),
        one_more,
        out="coins",
        shape=("B", "W + 1"),
        dtype="float",
    )


def by_draft_law(kind: str) -> Callable[..., Gained]:
    """The accept of a rule that judges a chain by the law its guesses were drawn from."""

    def accept(
        guess: Guess, law: Value, _recipe: ResolvedRecipe, p: PhaseBuilder, b: Builder
    ) -> Gained:
        if guess.laws is None:
            raise CompileError("guesses are judged by a law they were not drawn from")
        drafted, laws = taken(guess.tokens, p), p.take(guess.laws)
        length, gained = Value("accept_len", ("B",)), Value("gained", ("B", guess.w))
        p.ops(kind, drafted, laws, law, verdict_coins(p, b), outs=(length, gained))
        return Gained(tokens=gained, accept_len=length)

    return accept


def draw_single(law: Value, p: PhaseBuilder, b: Builder) -> Value:
    """A draw from the law of one position, [B, 1]."""
    token = p.op("pick_one", law, verdict_coins(p, b), out="token", shape=("B",))
    return p.op("column", token, out="drawn", shape=("B", 1))


_STATE: dict[str, tuple[tuple[str, ...], str, str]] = {
    "bonus_token": (("B",), "the target's last word, not yet in any KV", "int64"),
    "previous_token": (("B",), "the token before the bonus token", "int64"),
    "seq_lens": (("B",), "committed tokens: KV is valid for positions below", "int64"),
    "guesses": (("B", "K"), "what the host drafted; -1 is no guess", "int64"),
    "parents": (("B", "K"), "node each guess hangs from; 0 is the bonus token", "int64"),
    "seeds": (("B",), "what a request's coins are made of", "int64"),
    "temperature": (("B",), "0 takes the likeliest token", "float"),
    "top_k": (("B",), "tokens kept; 0 keeps all", "int64"),
    "top_p": (("B",), "mass kept; 1 keeps all", "float"),
    "min_p": (("B",), "least share of the likeliest token's chance; 0 keeps all", "float"),
    "accept_len": (("B",), "out: tokens gained, in [1, W]", "int64"),
    "output_tokens": (("B", "W"), "out: the tokens gained, then -1", "int64"),
}
