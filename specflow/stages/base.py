"""What a stage is: a value with fields, rules and a way to write its part of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specflow.errors import CompileError
from specflow.facts import Facts
from specflow.formats import TAPS, named
from specflow.graph import Buffer, Builder, Constant, Operand, PhaseBuilder, Value
from specflow.provenance import Origin
from specflow.recipe import Axes, Fields, ResolvedRecipe
from specflow.rules import Rule

__all__ = [
    "AcceptStage",
    "Asked",
    "Axes",
    "CommitStage",
    "Derived",
    "DraftStage",
    "Gained",
    "Guess",
    "Missing",
    "Seeds",
    "VerifyStage",
    "ask",
    "by_draft_law",
    "draw_single",
    "own_layer",
    "said",
    "state",
    "taken",
    "target_law",
    "verdict_coins",
]

NARROW = "NUM_NARROW_TOKENS"  # the constant behind the letter w
HEAT = "TEMPERATURES"  # the constant that a confidence head is read by
STEPS = "STEPS_"  # begins the constants behind letters with a number: STEPS_3 has K3 and W3


@dataclass(frozen=True)
class Seeds:
    """What the commit of a draft with a KV of its own leaves for the next draft to begin with.

    branches  how many of the likeliest tokens are kept, 1 for a chain
    drawn     the guess is drawn, and its law kept
    mapped    the draft has a vocabulary of its own
    """

    branches: int = 1
    drawn: bool = False
    mapped: bool = False


@dataclass(frozen=True)
class Guess:
    """Where verify finds the guesses: a value of the draft phase, or state the host filled.

    tokens   [B, K]     None where nothing is drafted; -1 in state is no guess
    parents  [B, K]     for trees
    laws     [B, K, V]  what each guess was drawn from, where it was drawn
    phases   the draft phases that run inside the captured step
    padded   there may be fewer guesses than K
    narrow   positions of the window for weak evidence, where the draft knows weak from strong
    shows    what the target shows the draft of itself: hidden, taps, or nothing
    seeds    the guesses that the next draft begins with are left by the commit
    survival [B, K]     the chance that all guesses up to each hold, where the draft tells
    fewer    the same draft with fewer steps, one captured step each
    """

    tokens: Value | Buffer | None = None
    parents: Value | Buffer | None = None
    laws: Value | Buffer | None = None
    phases: tuple[str, ...] = ()
    padded: bool = False
    narrow: Constant | None = None
    shows: str = ""
    seeds: Seeds | None = None
    survival: Value | None = None
    fewer: tuple[Guess, ...] = ()

    @property
    def k(self) -> str:
        """The letter of the number of guesses: small in a narrow window, numbered by its steps."""
        return "K" if self.tokens is None else str(self.tokens.shape[1])

    @property
    def w(self) -> str:
        """The letter of the number of positions."""
        return ("w" if self.k[0] == "k" else "W") + self.k[1:]

    @property
    def steps(self) -> int | None:
        """How many guesses, where the same draft exists with several numbers of them."""
        return int(self.k[1:]) if self.k[1:] else None


@dataclass(frozen=True)
class Asked:
    """What one forward of the target says, inside the verify phase.

    logits   [B, W, V]
    shown    [B, W, H] or taps, where the draft reads them
    lengths  [B]        positions of each request that were verified, where not all were
    """

    logits: Value
    shown: Value | None = None
    lengths: Value | None = None


@dataclass(frozen=True)
class Gained:
    """What a request gains in a step, inside the commit phase.

    tokens      [B, W]  the target's words along the accepted path
    accept_len  [B]
    path        [B, W]  nodes accepted, where their KV has to move
    hidden      [B, W, H]  what the target shows at the position before each token
    starts      [B]  where the verified window begins
    """

    tokens: Value
    accept_len: Value | Buffer
    path: Value | None = None
    hidden: Value | None = None
    starts: Value | None = None


@dataclass(frozen=True)
class Derived:
    """A field's value out of what the checkpoints say."""

    value: Any
    because: str
    origin: Origin = Origin.DERIVED


@dataclass(frozen=True)
class Missing:
    """What a checkpoint lacks that a field needs, and the way out."""

    message: str
    help: str


@dataclass(frozen=True)
class DraftStage:
    """Whatever guesses: one row of the draft table.

    axes     its point, the shape being the default one
    shapes   the verify shapes it can feed, each with the ways its state can go on then
    drafter  what the runtime builds for it: none, lookup, causal_lm, hidden, layers, assistant,
             block
    has_law  its guesses can be drawn from a law of its own
    guesses  how many tokens it proposes; None where the verify width decides
    formats  the draft networks it can run, as names of `formats.FORMATS`
    fewer    when a step verifies less than the whole width
    reach    positions beyond the committed ones that its own KV takes while it guesses
    derive   fields of its own that the checkpoints decide
    tables   defaults of other blocks that depend on this stage: dotted path -> table
    folder   of a target's checkpoint, in which such a draft may come along
    """

    name: str
    axes: Axes
    doc: str
    fields: type[Fields]
    shapes: Mapping[str, tuple[str, ...]]
    drafter: str
    guesses: Callable[[Mapping[str, Any]], int | None]
    lower: Callable[[ResolvedRecipe, Builder, bool], Guess]
    cost: Callable[[Any], str]
    derive: Mapping[str, Callable[[Facts], Derived | Missing]] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    has_law: bool = False
    formats: tuple[str, ...] = ()
    fewer: str = "where little or nothing matches"
    reach: Callable[[Any], int] = lambda _fields: 0
    folder: str = ""


@dataclass(frozen=True)
class VerifyStage:
    """What shape is verified: one target forward, its logits and what it shows the result.

    asks       what its phase does, in a sentence
    constants  numbers that the draft's part of the step reads too
    plan       phases on the host, before the step and after it
    """

    name: str
    doc: str
    fields: type[Fields]
    lower: Callable[[ResolvedRecipe, Guess, PhaseBuilder, Builder], Asked]
    asks: str = "Ask the target, once, about the bonus token and every guess."
    constants: Callable[[ResolvedRecipe, Builder], None] | None = None
    plan: Callable[[ResolvedRecipe, Builder], None] | None = None
    rules: tuple[Rule, ...] = ()


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
    """How draft state goes on after the accepted prefix is permanent.

    lower   its lines of the commit phase
    extend  a phase of its own after it, which runs the draft; the phase's name
    host    a phase on the host, after the step
    """

    name: str
    doc: str
    fields: type[Fields]
    lower: Callable[[Gained, PhaseBuilder, Builder], None]
    extend: Callable[[Gained, Guess, Builder, str], str] | None = None
    host: Callable[[Builder], None] | None = None


def own_layer(facts: Facts) -> Derived | Missing:
    """The target's own checkpoint as the draft, where it holds an MTP layer."""
    target, net = facts["target"], facts.net
    if net.bundled and net.format:
        because = f"the target's own checkpoint holds {named(net.format).doc}"
        return Derived(target.model, because, Origin.CHECKPOINT)
    if target.problem is not None:
        return Derived(target.model, "the target cannot be read")
    offer = "name a draft as `draft.model`"
    if not target.mtp_layers:
        message = f"`draft.model` is not written, and `{target.model}` holds no MTP layer"
        return Missing(
            message,
            "NEXTN is for targets with an MTP layer: name a draft as `draft.model` under EAGLE or "
            "EAGLE3, or write NGRAM, which needs none",
        )
    declared = f"{target.mtp_layers} MTP layer{'s' if target.mtp_layers > 1 else ''}"
    first, last = target.layers, target.layers + target.mtp_layers - 1
    lost = f"layer {first} is" if first == last else f"layers {first} to {last} are"
    message = f"the config of `{target.model}` declares {declared}, and its weights hold none: "
    kept = "take a checkpoint that kept its MTP weights (a quantiser may have dropped them)"
    return Missing(f"{message}{lost} missing", f"{kept}, or {offer}")


def state(b: Builder, name: str) -> Buffer:
    """The state that every step has, by name."""
    shape, doc, dtype = _STATE[name]
    return b.buffer(name, shape, doc, dtype)


def taken(guess: Value | Buffer | None, p: PhaseBuilder) -> Value | Buffer:
    """The guesses as a phase reads them: state as it is, a value as an argument."""
    if guess is None:
        raise CompileError("a phase reads guesses where nothing was drafted")
    return p.take(guess) if isinstance(guess, Value) else guess


def ask(
    kind: str,
    asked: tuple[Operand, ...],
    guess: Guess,
    p: PhaseBuilder,
    b: Builder,
    width: str = "",
) -> tuple[Value, Value | None]:
    """One forward of the target: its logits, and what it shows the draft of itself."""
    positions = width or guess.w
    logits = Value("logits", ("B", positions, "V"), "float")
    if not guess.shows:
        p.ops(kind, *asked, outs=(logits,))
        return logits, None
    wide = "n * H" if guess.shows == TAPS else "H"
    shown = Value(guess.shows, ("B", positions, wide), "float")
    also = (b.constants["TAPS"],) if guess.shows == TAPS else ()
    p.ops(f"{kind}_{guess.shows}", *asked, *also, outs=(logits, shown))
    return logits, shown


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
    one_more = b.constant("NUM_COINS", count.count + 1, "a coin a position, one for the last token")
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
        drafted, laws = taken(guess.tokens, p), taken(guess.laws, p)
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
    "first_guess": (("B",), "the draft's word after the bonus token", "int64"),
    "first_law": (("B", "V"), "what that word was drawn from", "float"),
    "first_words": (("B", "T"), "the draft's likeliest words after the bonus token", "int64"),
    "first_scores": (("B", "T"), "their chances", "float"),
    "draft_hidden": (("B", "H"), "where the draft stands", "model"),
    "words_ahead": (("B", "K"), "the draft's words after the bonus token", "int64"),
    "laws_ahead": (("B", "K", "V"), "what those words were drawn from", "float"),
    "recent_tokens": (("B", "R"), "the last committed tokens, up to the bonus token", "int64"),
    "recent_hidden": (("B", "R", "H"), "what the target showed before each of them", "model"),
    "trust": (("B", "K"), "out: what the confidence head says of each guess", "float"),
    "survival": (("B", "K"), "in: how often guesses so far along held before", "float"),
    "verify_len": (("B",), "out: positions verified, in [1, W]", "int64"),
    "seeds": (("B",), "what a request's coins are made of", "int64"),
    "temperature": (("B",), "0 takes the likeliest token", "float"),
    "top_k": (("B",), "tokens kept; 0 keeps all", "int64"),
    "top_p": (("B",), "mass kept; 1 keeps all", "float"),
    "min_p": (("B",), "least share of the likeliest token's chance; 0 keeps all", "float"),
    "accept_len": (("B",), "out: tokens gained, in [1, W]", "int64"),
    "output_tokens": (("B", "W"), "out: the tokens gained, then -1", "int64"),
}
