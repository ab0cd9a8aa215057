"""What drafts that guess token by token share: a chain, a tree, and what the next one begins with.

A stage says how it takes a step (`Steps`); a guess is its likeliest token, or drawn from its law,
which is then kept for the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from specflow.errors import CompileError
from specflow.graph import Buffer, Builder, Constant, Operand, PhaseBuilder, Value
from specflow.recipe import ResolvedRecipe
from specflow.stages.base import STEPS, Gained, Guess, Seeds, said, state

Forward = tuple[Value, Value | None]  # logits, and the hidden state carried on where there is one
MOST_BY_DEFAULT = 7  # guesses of a tree that a recipe says no width for (serial.md §6.1)


@dataclass(frozen=True)
class Steps:
    """How a draft takes a step.

    decode  one token a row: (phase, builder, token [B], hidden [B, H], step)
    grow    the branches of a level: (phase, builder, tokens [B, T], hidden, sees, level)
    open    the first step, where the commit leaves no guess to begin with
    hidden  it carries a hidden state
    lanes   branches write KV of their own, so they see each other's lines only
    """

    decode: Callable[[PhaseBuilder, Builder, Value, Value | None, Operand], Forward]
    grow: Callable[[PhaseBuilder, Builder, Value, Value | None, Value | None, Operand], Forward]
    open: Callable[[PhaseBuilder, Builder], Forward] | None = None
    hidden: bool = True
    lanes: bool = True


def decode_hidden(
    p: PhaseBuilder, b: Builder, token: Value, hidden: Value | None, step: Operand
) -> Forward:
    """A token and where the draft stands; its row is the position before the token (§6.1)."""
    at = p.op("standing", state(b, "seq_lens"), step, out="position", shape=("B",))
    outs = (Value("logits", ("B", "V"), "float"), Value("hidden", ("B", "H"), "float"))
    p.ops("decode_hidden", token, there(hidden), at, outs=outs)
    return outs


def grow_hidden(
    p: PhaseBuilder,
    b: Builder,
    tokens: Value,
    hidden: Value | None,
    sees: Value | None,
    level: Operand,
) -> Forward:
    """The branches of a level, each beside where its own line stands."""
    outs = (Value("logits", ("B", "T", "V"), "float"), Value("grown", ("B", "T", "H"), "float"))
    operands = (tokens, there(hidden), state(b, "seq_lens"), there(sees), level)
    p.ops("grow_hidden", *operands, outs=outs)
    return outs


def there(value: Operand | None) -> Operand:
    """What a step reads, which its draft has to carry."""
    if value is None:
        raise CompileError("a draft steps without what it reads")
    return value


BY_HIDDEN = Steps(decode_hidden, grow_hidden)  # a step of every EAGLE-like draft


def candidates(fields: Mapping[str, Any]) -> int:
    """How many guesses a draft of so many steps and branches chooses from (§2.1)."""
    steps, branches = int(fields["num_steps"]), int(fields["topk"])
    return branches + (steps - 1) * branches**2


def guesses(fields: Mapping[str, Any]) -> int:
    """One guess a step of a chain, the most steps it may take; of a tree the best few."""
    if fields.get("adaptive"):
        return max(int(steps) for _, choices in fields["adaptive_slots"] for steps in choices)
    if fields["topk"] == 1:
        return int(fields["num_steps"])
    return min(candidates(fields), MOST_BY_DEFAULT)


def reach(draft: Any) -> int:
    """Branches lie side by side until they are verified; one position more where one is shared."""
    return int((draft.num_steps - 1) * draft.topk) + 1


def cost(draft: Any) -> str:
    """The forwards of a step, for the head of the module."""
    if getattr(draft, "adaptive", False):
        most = guesses(draft.model_dump())
        return f"0 to {most - 1} draft forwards, as acceptance asks for, and 1 extend"
    rows = f" of {draft.topk} branches" if draft.topk > 1 else ""
    count = draft.num_steps - 1
    return f"{count} draft forward{'s' if count != 1 else ''}{rows} and 1 extend"


def seeds(recipe: ResolvedRecipe, drawn: bool) -> Seeds:
    """What the commit has to leave for a draft of this recipe."""
    return Seeds(recipe["draft.topk"], drawn, recipe.facts.net.has_map)


def adapts(recipe: ResolvedRecipe) -> bool:
    """Whether acceptance decides how many steps are taken."""
    return "draft.adaptive" in recipe and bool(recipe["draft.adaptive"])


def constants(recipe: ResolvedRecipe, b: Builder, width: int = 0) -> Constant:
    """The numbers of a draft by name; the number of its steps."""
    adaptive_steps = adapts(recipe)
    path = "draft.adaptive_slots" if adaptive_steps else "draft.num_steps"
    most = guesses(recipe.draft.model_dump()) if adaptive_steps else recipe["draft.num_steps"]
    steps = b.constant("NUM_STEPS", most, said(recipe, path))
    if recipe["draft.topk"] > 1:
        b.constant("TOPK", recipe["draft.topk"], said(recipe, "draft.topk"))
    if width:
        b.constant("HIDDEN_SIZE", width, "what a draft step hands to the next")
    b.constant("VOCAB_SIZE", recipe.facts["target"].vocab_size, "the target's vocabulary")
    return steps


def chain(
    recipe: ResolvedRecipe,
    b: Builder,
    steps: Steps,
    drawn: bool,
    *,
    count: int = 0,
    shows: str = "",
) -> Guess:
    """Guess one token a step: the likeliest, or one that is drawn.

    count  fewer steps than the recipe's most, for a captured step of their own
    """
    left = None if steps.open else seeds(recipe, drawn)
    mapped = recipe.facts.net.has_map
    times = b.constants["NUM_STEPS"]
    name, many = "draft", "K"
    if count:
        name, many = f"draft_{count}", f"K{count}"
        times = b.constant(f"{STEPS}{count}", count, "what acceptance may ask for")
    doc = (
        "Guess K tokens, one forward each."
        if steps.open
        else "Guess K tokens. The first is ready: the last commit made it."
    )
    with b.phase(name, "draft", doc, model="draft") as p:
        most = b.constants["NUM_STEPS"]
        coins = draft_coins(state(b, "seq_lens"), most, p, b) if drawn else None
        hidden: Value | None = None
        law: Value | None = None
        if steps.open is not None:
            logits, hidden = steps.open(p, b)
            guess, law = choose(logits, coins, 0, p, b, mapped=mapped)
        else:
            guess = p.op("read", state(b, "first_guess"), out="guess", shape=("B",))
            if steps.hidden:
                hidden = _standing(p, b)
            if drawn:
                first = state(b, "first_law")
                law = p.op("read", first, out="law", shape=first.shape, dtype="float")
        with p.repeat(times, first=1) as loop:
            last = loop.carry(guess, collected="chain")
            stands = loop.carry(hidden) if hidden is not None else None
            laws = loop.carry(law, collected="laws") if law is not None else None
            logits, hidden = steps.decode(
                p, b, last.now, stands.now if stands else None, loop.index
            )
            last.next, law = choose(logits, coins, loop.index, p, b, mapped=mapped)
            if stands is not None:
                stands.next = hidden
            if laws is not None:
                laws.next = law
        tokens = p.op("stack", last.all, out="guesses", shape=("B", many))
        proposed = None
        if laws is not None:
            shape = ("B", many, "V")
            proposed = p.op("stack", laws.all, out="proposed", shape=shape, dtype="float")
        p.give(*filter(None, (tokens, proposed)))
    return Guess(tokens=tokens, laws=proposed, phases=(name,), shows=shows, seeds=left)


def by_recipe(
    recipe: ResolvedRecipe, b: Builder, steps: Steps, drawn: bool, *, shows: str = ""
) -> Guess:
    """A tree of likely tokens, or a chain of likeliest or drawn ones, as the recipe says."""
    if recipe.axes.shape == "tree":
        return tree(recipe, b, steps, shows=shows)
    if adapts(recipe):
        return adaptive(recipe, b, steps, drawn, shows=shows)
    return chain(recipe, b, steps, drawn, shows=shows)


def adaptive(
    recipe: ResolvedRecipe, b: Builder, steps: Steps, drawn: bool, *, shows: str = ""
) -> Guess:
    """A chain of as many steps as acceptance pays for: a captured step for each number of them."""
    slots = recipe["draft.adaptive_slots"]
    choices = sorted({count for _, counts in slots for count in counts}, reverse=True)
    if len(choices) == 1:  # nothing to choose from
        return chain(recipe, b, steps, drawn, shows=shows)
    doc = "On the host: let the acceptance of the last steps say how many to take."
    with b.phase("choose", "draft", doc, model="draft", place="host") as p:
        lens = state(b, "seq_lens")
        wanted = p.op("steps", lens, out="steps", shape=(), dtype="int", note="for so many rows")
        cases = [
            (b.constant(f"{STEPS}{count}", count, "what acceptance may ask for"), f"steps_{count}")
            for count in choices[:-1]
        ]
        p.choose(wanted, *cases, otherwise=f"steps_{choices[-1]}")
    doc = "On the host, after the step: learn how many guesses were right."
    with b.phase("learn", "commit", doc, model="draft", place="host") as p:
        p.ops("observe", p.take(Value("gained", ("B",), "list")), outs=())
    made = [chain(recipe, b, steps, drawn, count=count, shows=shows) for count in choices if count]
    if not made:
        raise CompileError("a draft adapts to no step at all")
    left = seeds(recipe, drawn)
    plain = (Guess(shows=shows, seeds=left),) if 0 in choices else ()
    return replace(made[0], fewer=(*made[1:], *plain))


def tree(recipe: ResolvedRecipe, b: Builder, steps: Steps, *, shows: str = "") -> Guess:
    """Grow the likeliest branches level by level, and offer the best of all that was seen."""
    left = None if steps.open else seeds(recipe, drawn=False)
    mapped = recipe.facts.net.has_map
    branches, times = b.constants["TOPK"], b.constants["NUM_STEPS"]
    positions = b.constants["NUM_DRAFT_TOKENS"]
    doc = (
        "Grow a tree of T branches, one forward a level; the best K candidates of all are verified."
    )
    with b.phase("draft", "draft", doc, model="draft") as p:
        hidden: Value | None = None
        if steps.open is not None:
            logits, hidden = steps.open(p, b)
            words, scores = _likeliest(logits, branches, ("B", "T"), p, mapped=mapped)
        else:
            words = p.op("read", state(b, "first_words"), out="words", shape=("B", "T"))
            first = state(b, "first_scores")
            scores = p.op("read", first, out="scores", shape=("B", "T"), dtype="float")
            hidden = _standing(p, b) if steps.hidden else None
        if hidden is not None:
            shape = ("B", "T", "H")
            hidden = p.op("spread", hidden, branches, out="hidden", shape=shape, dtype="float")
        kept = p.op("ranks", words, out="kept", shape=("B", "T"))
        sees = None
        if steps.lanes:
            shape = ("B", "T", "R")
            sees = p.op("roots", words, times, out="sees", shape=shape, dtype="bool")
        with p.repeat(times, first=1) as loop:
            said_now, score = loop.carry(words), loop.carry(scores)
            offers, speech = loop.gather(scores, "offers"), loop.gather(words, "speech")
            picks = loop.gather(kept, "picks")
            carried = loop.carry(hidden) if hidden is not None else None
            seen = loop.carry(sees) if sees is not None else None
            logits, grown = steps.grow(
                p,
                b,
                said_now.now,
                carried.now if carried else None,
                seen.now if seen else None,
                loop.index,
            )
            children, chances = _likeliest(
                logits, branches, ("B", "T", "T"), p, mapped=mapped, names=("children", "chances")
            )
            best, kept = Value("scores", ("B", "T"), "float"), Value("kept", ("B", "T"))
            offered = Value("offered", ("B", "T*T"), "float")
            p.ops("grow_tree", score.now, chances, outs=(best, kept, offered))
            follows, lanes = Value("words", ("B", "T")), Value("lanes", ("B", "T"))
            spoken = Value("spoken", ("B", "T*T"))
            p.ops("follow", children, kept, outs=(follows, lanes, spoken))
            score.next, said_now.next = best, follows
            offers.next, speech.next, picks.next = offered, spoken, kept
            if carried is not None and grown is not None:
                shape = ("B", "T", "H")
                carried.next = p.op(
                    "take_rows", grown, lanes, out="hidden", shape=shape, dtype="float"
                )
            if seen is not None:
                shape = ("B", "T", "R")
                seen.next = p.op(
                    "branch", seen.now, lanes, loop.index, out="sees", shape=shape, dtype="bool"
                )
        tokens, parents = Value("guesses", ("B", "K")), Value("parents", ("B", "K"))
        p.ops("select_tree", offers.all, speech.all, picks.all, positions, outs=(tokens, parents))
        p.give(tokens, parents)
    return Guess(tokens=tokens, parents=parents, phases=("draft",), shows=shows, seeds=left)


def leave(logits: Value, hidden: Value | None, left: Seeds, p: PhaseBuilder, b: Builder) -> None:
    """At the end of a commit: what the next draft begins with."""
    if left.branches > 1:
        words, scores = _likeliest(logits, b.constants["TOPK"], ("B", "T"), p, mapped=left.mapped)
        p.store(state(b, "first_words"), words)
        p.store(state(b, "first_scores"), scores)
    else:
        coins = None
        if left.drawn:
            coins = draft_coins(state(b, "seq_lens"), b.constants["NUM_STEPS"], p, b)
        guess, law = choose(logits, coins, 0, p, b, mapped=left.mapped)
        p.store(state(b, "first_guess"), guess)
        if law is not None:
            p.store(state(b, "first_law"), law)
    if hidden is not None:
        p.store(state(b, "draft_hidden"), hidden)


def resume(gained: Gained, p: PhaseBuilder) -> tuple[Value, Value | None, Value, Value | Buffer]:
    """What a phase after the commit takes from it: tokens, hidden, starts, accept_len."""
    if gained.starts is None:
        raise CompileError("a draft goes on from where no window began")
    hidden = p.take(gained.hidden) if gained.hidden is not None else None
    length = gained.accept_len
    length = p.take(length) if isinstance(length, Value) else length
    return p.take(gained.tokens), hidden, p.take(gained.starts), length


def choose(
    logits: Value,
    coins: Value | None,
    step: Operand,
    p: PhaseBuilder,
    b: Builder,
    *,
    mapped: bool,
    shape: tuple[str, ...] = ("B",),
) -> tuple[Value, Value | None]:
    """The guess that logits give, in the target's vocabulary; its law too, where it is drawn."""
    if coins is None:
        if not mapped:
            return p.op("best_token", logits, out="guess", shape=shape), None
        word = p.op("best_token", logits, out="word", shape=shape)
        return p.op("target_ids", word, out="guess", shape=shape), None
    law = p.op(
        "law_of", logits, state(b, "temperature"), out="law", shape=(*shape, "V"), dtype="float"
    )
    if mapped:
        law = p.op("target_law", law, out="whole_law", shape=(*shape, "V"), dtype="float")
    return p.op("pick_at", law, coins, step, out="guess", shape=shape), law


def draft_coins(lens: Operand, count: Constant, p: PhaseBuilder, b: Builder) -> Value:
    """A coin a guess, independent of the coins that judge it."""
    seeds_of = state(b, "seeds")
    return p.op("draft_coins", seeds_of, lens, count, out="coins", shape=("B", "K"), dtype="float")


def _standing(p: PhaseBuilder, b: Builder) -> Value:
    """Where the last commit left the draft."""
    left = state(b, "draft_hidden")
    return p.op("read", left, out="hidden", shape=left.shape, dtype="float")


def _likeliest(
    logits: Value,
    count: Constant,
    shape: tuple[str, ...],
    p: PhaseBuilder,
    *,
    mapped: bool,
    names: tuple[str, str] = ("words", "scores"),
) -> tuple[Value, Value]:
    """The likeliest tokens in the target's vocabulary, and their chances."""
    said_first = "ids" if mapped else names[0]
    words, chances = Value(said_first, shape), Value(names[1], shape, "float")
    p.ops("likeliest", logits, count, outs=(words, chances))
    if mapped:
        words = p.op("target_ids", words, out=names[0], shape=shape)
    return words, chances
