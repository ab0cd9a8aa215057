"""Lowering: a resolved recipe becomes the step graph, pass by pass."""

from __future__ import annotations

from collections.abc import Callable

from specflow.graph import Builder, StepGraph, buffers, fuse, passes
from specflow.graph.check import BUILT, LOWERED, check
from specflow.recipe import ResolvedRecipe
from specflow.stages import COMMITS, DRAFTS, VERIFIES
from specflow.stages.base import CommitStage, Guess, VerifyStage, said, state

Pass = Callable[[StepGraph], StepGraph]
Watch = Callable[[str, StepGraph], None]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("share equal values", passes.share),
    ("drop dead values", passes.drop_dead),
    ("fuse row ops", fuse.rows),
    ("plan static buffers", buffers.plan),
)


def silent(_name: str, _graph: StepGraph) -> None:
    """Watch nothing."""


def lower(recipe: ResolvedRecipe, *, watch: Watch = silent) -> StepGraph:
    """Write the recipe's step graph, then rewrite it, pass by pass."""
    graph = build(recipe)
    check(graph, BUILT)
    watch("build", graph)
    for name, rewrite in PASSES:
        graph = rewrite(graph)
        watch(name, graph)
    check(graph, LOWERED)
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
    guess = draft.lower(recipe.draft, recipe, b)
    if guess.tokens is None:
        _one_position(b, "", "plain")
    else:
        _speculate(b, guess, verify, commit)
        if any(p.choice for p in b.phases):
            _one_position(b, "_single", "single")
    if commit.host is not None:
        commit.host(b)
    return b.done()


def _speculate(b: Builder, guess: Guess, verify: VerifyStage, commit: CommitStage) -> None:
    """Verify all guesses at once, keep the accepted prefix and one bonus token."""
    with b.phase(
        "verify",
        "verify",
        "Ask the target, once, about the bonus token and every guess.",
        model="target",
    ) as p:
        verified = verify.lower(guess, p, b)
        p.give(verified)
    with b.phase(
        "commit", "commit", "Keep the accepted prefix and one bonus token.", model="target"
    ) as p:
        gained = verify.accept(guess, p.take(verified), p, b)
        lens = state(b, "seq_lens")
        starts = p.op(
            "hold", lens, out="starts", shape=("B",), note="where the verified window begins"
        )
        commit.lower(gained, p, b)
        kept = p.op("mask_rejected", gained.tokens, gained.accept_len, out="kept", shape=("B", "W"))
        p.store(state(b, "output_tokens"), kept)
        bonus = p.op("take_last", gained.tokens, gained.accept_len, out="bonus", shape=("B",))
        p.store(state(b, "bonus_token"), bonus)
        p.store(state(b, "accept_len"), gained.accept_len)
        p.store(
            lens, gained.accept_len, "add", "rejected KV lies beyond; the next step overwrites it"
        )
        if gained.path is not None:
            p.ops(
                "move_accepted",
                gained.path,
                starts,
                outs=(),
                note="node order becomes sequence order",
            )
    phases = (*guess.phases, "verify", "commit")
    width = b.constants["NUM_DRAFT_TOKENS"].value
    b.variant(verify.name, *phases, width=width, doc="guesses are verified")


def _one_position(b: Builder, suffix: str, name: str) -> None:
    """Plain decoding: verify the bonus token alone and gain one token."""
    width = b.constants["NUM_DRAFT_TOKENS"]
    with b.phase(
        f"verify{suffix}", "verify", "Ask the target what follows the bonus token.", model="target"
    ) as p:
        tokens = p.op("column", state(b, "bonus_token"), out="tokens", shape=("B", 1))
        logits = p.op(
            "verify", tokens, state(b, "seq_lens"), out="logits", shape=("B", 1, "V"), dtype="float"
        )
        verified = p.op("best_token", logits, out="verified", shape=("B", 1))
        p.give(verified)
    with b.phase(f"commit{suffix}", "commit", "Gain one token.") as p:
        p.take(verified)
        kept = (
            p.op("widen", verified, width, out="kept", shape=("B", "W"))
            if width.value > 1
            else verified
        )
        p.store(state(b, "output_tokens"), kept)
        bonus = p.op("first", verified, out="bonus", shape=("B",))
        p.store(state(b, "bonus_token"), bonus)
        p.store(state(b, "accept_len"), 1)
        p.store(state(b, "seq_lens"), 1, "add")
    b.variant(name, f"verify{suffix}", f"commit{suffix}", width=1, doc="one position is verified")
