"""Lowering: a resolved recipe becomes the step graph, pass by pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from specflow.graph import Builder, PhaseBuilder, StepGraph, Value, buffers, passes
from specflow.graph.check import check
from specflow.recipe import ResolvedRecipe
from specflow.stages import ACCEPTS, COMMITS, DRAFTS, VERIFIES
from specflow.stages.base import (
    NARROW,
    AcceptStage,
    CommitStage,
    Gained,
    Guess,
    VerifyStage,
    ask,
    said,
    state,
)

Stages = tuple[VerifyStage, AcceptStage, CommitStage]
Pass = Callable[[StepGraph], StepGraph]
Watch = Callable[[str, StepGraph], None]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("drop what no phase takes", passes.drop_untaken),
    ("share equal values", passes.share),
    ("drop dead values", passes.drop_dead),
    ("plan static buffers", buffers.plan),
)


def silent(_name: str, _graph: StepGraph) -> None:
    """Watch nothing."""


def lower(recipe: ResolvedRecipe, *, watch: Watch = silent) -> StepGraph:
    """Write the recipe's step graph, then rewrite it, pass by pass."""
    graph = build(recipe)
    check(graph)
    watch("build", graph)
    for name, rewrite in PASSES:
        graph = rewrite(graph)
        watch(name, graph)
    check(graph)
    return graph


def build(recipe: ResolvedRecipe) -> StepGraph:
    """The graph as the three stages write it."""
    draft, verify, commit = (
        DRAFTS[recipe.stages[0]],
        VERIFIES[recipe.stages[1]],
        COMMITS[recipe.stages[2]],
    )
    b = Builder(draft.drafter)
    b.constant(
        "NUM_DRAFT_TOKENS",
        recipe["verify.num_draft_tokens"],
        said(recipe, "verify.num_draft_tokens"),
    )
    accept = ACCEPTS[recipe["verify.accept"]]
    if verify.constants is not None:
        verify.constants(recipe, b)
    if verify.plan is not None:
        verify.plan(recipe, b)
    guess = draft.lower(recipe, b, accept.laws)
    stages = (verify, accept, commit)
    if guess.tokens is None:
        _one_position(recipe, b, guess, stages, "", "plain")
    elif guess.fewer:
        for each in (guess, *guess.fewer):
            if each.tokens is None:
                _one_position(recipe, b, each, stages, "_0", "steps_0")
            else:
                _speculate(recipe, b, each, stages, f"_{each.steps}")
    else:
        _speculate(recipe, b, guess, stages)
        if guess.narrow is not None:
            _speculate(recipe, b, _narrow(guess, b), stages, "_narrow")
        if any(p.choice for p in b.phases):
            _one_position(recipe, b, Guess(), stages, "_single", "single")
    if commit.host is not None:
        commit.host(b)
    return b.done()


def _speculate(
    recipe: ResolvedRecipe, b: Builder, guess: Guess, stages: Stages, suffix: str = ""
) -> None:
    """Verify all guesses at once, keep the accepted prefix and one bonus token."""
    verify, accept, commit = stages
    with b.phase(f"verify{suffix}", "verify", verify.asks, model="target") as p:
        asked = verify.lower(recipe, guess, p, b)
        shown = asked.shown
        judged = accept.judge(asked.logits, recipe, p, b)
        p.give(*filter(None, (judged, shown, asked.lengths)))
    doc = "Keep the accepted prefix and one bonus token."
    with b.phase(f"commit{suffix}", "commit", doc, model="target") as p:
        gained = accept.accept(guess, p.take(judged), recipe, p, b)
        if asked.lengths is not None:
            gained = _within(gained, p.take(asked.lengths), p)
        lens, note = state(b, "seq_lens"), "where the verified window begins"
        starts = p.op("hold", lens, out="starts", shape=("B",), note=note)
        commit.lower(gained, p, b)
        length = gained.accept_len
        kept = p.op("mask_rejected", gained.tokens, length, out="kept", shape=("B", guess.w))
        if guess.w != "W":
            width = b.constants["NUM_DRAFT_TOKENS"]
            kept = p.op("widen", kept, width, out="wide", shape=("B", "W"))
        p.store(state(b, "output_tokens"), kept)
        bonus = p.op("take_last", gained.tokens, length, out="bonus", shape=("B",))
        p.store(state(b, "bonus_token"), bonus)
        p.store(state(b, "accept_len"), length)
        p.store(lens, length, "add", "rejected KV lies beyond; the next step overwrites it")
        if gained.path is not None:
            note = "node order becomes sequence order"
            p.ops("move_accepted", gained.path, starts, outs=(), note=note)
        if commit.extend is not None:
            gained = _along_the_path(gained, shown and p.take(shown), guess, p)
            made = (gained.tokens, gained.hidden, starts, length)
            p.give(*(value for value in made if isinstance(value, Value)))
    name = suffix.removeprefix("_") or verify.name
    if guess.steps is not None:
        name, positions = f"steps_{guess.steps}", guess.steps + 1
    else:
        positions = b.constants["NUM_DRAFT_TOKENS" if guess.w == "W" else NARROW].count
    phases = [*guess.phases, f"verify{suffix}", f"commit{suffix}"]
    if commit.extend is not None:
        phases.append(commit.extend(replace(gained, starts=starts), guess, b, suffix))
    b.variant(
        name,
        *phases,
        width=positions,
        doc="as many guesses are verified as the plan has room for"
        if asked.lengths is not None
        else _verified(guess),
    )


def _within(gained: Gained, lengths: Value, p: PhaseBuilder) -> Gained:
    """No more than was verified is gained (parallel.md 2f).

    The last token is then the guess that was judged right by the last verified position: neither a
    fresh draw there nor the residual's would keep the law.
    """
    note = "matches past what was verified mean nothing"
    length = p.op("cap", gained.accept_len, lengths, out="kept_len", shape=("B",), note=note)
    return replace(gained, accept_len=length)


def _verified(guess: Guess) -> str:
    """How much of what was guessed a captured step verifies, in words."""
    if guess.steps == 1:
        return "1 guess is verified"
    return f"{'all' if guess.w == 'W' else guess.steps or 'a few'} guesses are verified"


def _along_the_path(gained: Gained, shown: Value | None, guess: Guess, p: PhaseBuilder) -> Gained:
    """What the target showed, in the order of the tokens gained (serial.md §4.2)."""
    if shown is not None and gained.path is not None:
        shape = ("B", guess.w, shown.shape[-1])
        shown = p.op("take_rows", shown, gained.path, out="shown", shape=shape, dtype="float")
    return replace(gained, hidden=shown)


def _narrow(guess: Guess, b: Builder) -> Guess:
    """The first few of the guesses, for a step that verifies few positions."""
    assert guess.narrow is not None
    assert guess.tokens is not None
    doc = "Take the first guesses; parents come before children, so they are a tree of their own."
    with b.phase("narrow", "draft", doc) as p:
        shape = ("B", "k")
        few = [p.op("few", guess.tokens, guess.narrow, out="guesses", shape=shape)]
        if guess.parents is not None:
            few.append(p.op("few", guess.parents, guess.narrow, out="parents", shape=shape))
        p.give(*few)
    parents = few[1] if len(few) > 1 else None
    return Guess(tokens=few[0], parents=parents, phases=("narrow",), padded=True)


def _one_position(
    recipe: ResolvedRecipe, b: Builder, guess: Guess, stages: Stages, suffix: str, name: str
) -> None:
    """Plain decoding; a draft that runs on the device stays where the target is (§6.13, S = 0)."""
    _, accept, commit = stages
    goes_on = commit.extend is not None
    doc = "Ask the target what follows the bonus token."
    with b.phase(f"verify{suffix}", "verify", doc, model="target") as p:
        tokens = p.op("column", state(b, "bonus_token"), out="tokens", shape=("B", 1))
        logits, shown = ask("verify", (tokens, state(b, "seq_lens")), guess, p, b, width="1")
        judged = accept.judge(logits, recipe, p, b)
        p.give(*filter(None, (judged, shown)))
    with b.phase(f"commit{suffix}", "commit", "Gain one token.") as p:
        token = accept.single(p.take(judged), p, b)
        if goes_on:
            note = "where the verified window begins"
            starts = p.op("hold", state(b, "seq_lens"), out="starts", shape=("B",), note=note)
            hidden = shown and p.take(shown)
        width = b.constants["NUM_DRAFT_TOKENS"]
        kept = (
            p.op("widen", token, width, out="kept", shape=("B", "W")) if width.count > 1 else token
        )
        p.store(state(b, "output_tokens"), kept)
        bonus = p.op("first", token, out="bonus", shape=("B",))
        p.store(state(b, "bonus_token"), bonus)
        p.store(state(b, "accept_len"), 1)
        p.store(state(b, "seq_lens"), 1, "add")
        if goes_on:
            p.give(*filter(None, (token, hidden, starts)))
    phases = [f"verify{suffix}", f"commit{suffix}"]
    if commit.extend is not None:
        gained = Gained(token, state(b, "accept_len"), hidden=hidden, starts=starts)
        phases.append(commit.extend(gained, guess, b, suffix))
    b.variant(name, *phases, width=1, doc="one position is verified")
