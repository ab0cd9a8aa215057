"""NGRAM: no draft model; what followed the last tokens before is guessed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from specflow.diagnostics import Put
from specflow.graph import Builder
from specflow.recipe import Fields, Pair, ResolvedRecipe, field
from specflow.rules import Finding, rule
from specflow.stages.base import NARROW, Axes, DraftStage, Guess, said, state

MOST_BRANCHES = 1000


class NgramFields(Fields):
    """What a recipe may say about the trie."""

    max_trie_depth: int = field("Longest run of tokens kept and matched.", default=18, ge=2, le=256)
    breadth: Pair = field("Fewest and most branches a level of the tree.", default=(1, 10))
    full_match: int = field(
        "Tokens that must match before a step verifies its whole width; below it verifies a few.",
        default=4,
        ge=1,
        le=256,
    )
    narrow_tokens: int = field(
        "Positions of such a narrow step, bonus token included.", default=4, ge=2, le=64
    )
    order: Literal["recency", "frequency"] = field("Which branch comes first.", default="recency")
    min_match: int = field(
        "Tokens that must match before a step verifies guesses.", default=2, ge=1, le=256
    )
    capacity: int = field(
        "Nodes the trie may hold; the least recently used leave.",
        default=10_000_000,
        ge=1000,
        le=2**31,
    )
    insert_prompt: bool = field("Put whole prompts into the trie.", default=True)


def guesses(_fields: Mapping[str, Any]) -> None:
    """As many as are verified, less the bonus token."""
    return


def _branches(number: int) -> int:
    """The nearest number of branches a level may have."""
    return min(max(1, number), MOST_BRANCHES)


@rule("SF016", "inverted-breadth")
def inverted_breadth(r: ResolvedRecipe) -> Iterator[Finding]:
    """The fewest branches of a level are no more than the most, and at least one.

    ## Why
    The tree narrows from the second number at its root to the first at its leaves. With the numbers
    the other way round it would widen with every level, away from what the match supports.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM, breadth: [10, 1]}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM, breadth: [1, 10]}
    ```

    ## Fix
    Write the smaller number first, and no number below 1.
    """
    if "draft.breadth" not in r:
        return
    fewest, most = r["draft.breadth"]
    if not 1 <= fewest <= most <= MOST_BRANCHES:
        turned = tuple(_branches(number) for number in sorted((fewest, most)))
        yield Finding(
            at="draft.breadth",
            message=f"a level has at least {fewest} and at most {most} branches, which no tree can",
            label=f"fewest and most, from 1 to {MOST_BRANCHES}",
            help=f"write `breadth: {list(turned)}`",
            fix=Put("draft.breadth", turned),
        )


@rule("SF017", "match-longer-than-trie")
def match_longer_than_trie(r: ResolvedRecipe) -> Iterator[Finding]:
    """A match that is asked for fits into the trie.

    ## Why
    A match is a run of tokens that the trie holds together with a token after it, so it is shorter
    than `max_trie_depth`. A longer `min_match` is never met: every step would verify one position.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM, max_trie_depth: 4, min_match: 4}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM, max_trie_depth: 8, min_match: 4}
    ```

    ## Fix
    Lower `draft.min_match` or raise `draft.max_trie_depth`.
    """
    for name in ("min_match", "full_match"):
        path = f"draft.{name}"
        if path not in r or r[path] < r["draft.max_trie_depth"]:
            continue
        depth = r["draft.max_trie_depth"]
        yield Finding(
            at=path,
            message=f"a trie {depth} tokens deep has no match of {r[path]} tokens",
            label=f"at most {depth - 1}",
            because={"draft.max_trie_depth": "a match leaves room for the token after it"},
            help=f"lower `{path}` or raise `draft.max_trie_depth`",
            fix=Put(path, depth - 1, safe=False, otherwise=("raise `draft.max_trie_depth`",)),
        )


def lower(recipe: ResolvedRecipe, b: Builder, _drawn: bool) -> Guess:
    """Look up on the host; the longer the match, the wider the step that verifies it.

    On a CPU four positions cost about what one does, and twelve half as much again (the matrices
    are packed for four rows): a weak match is verified where that is nearly free.
    """
    shape = recipe.axes.shape
    tokens = state(b, "guesses")
    parents = state(b, "parents") if shape == "tree" else None
    least = b.constant("MIN_MATCH", recipe["draft.min_match"], said(recipe, "draft.min_match"))
    cases = [(least, shape)]
    few = None
    if _has_narrow(recipe):
        full = b.constant(
            "FULL_MATCH", recipe["draft.full_match"], said(recipe, "draft.full_match")
        )
        few = b.constant(NARROW, recipe["draft.narrow_tokens"], said(recipe, "draft.narrow_tokens"))
        cases = [(full, shape), (least, "narrow")]
    doc = "On the host: look the last tokens of every request up in the trie; name the step to run."
    with b.phase("draft", "draft", doc, model="draft", place="host") as p:
        filled = (tokens, parents) if parents else (tokens,)
        note = "longest match in the batch, in tokens"
        matched = p.op(f"propose_{shape}", *filled, out="matched", shape=(), dtype="int", note=note)
        p.choose(matched, *cases, otherwise="single")
    return Guess(tokens=tokens, parents=parents, padded=True, narrow=few)


def _has_narrow(recipe: ResolvedRecipe) -> bool:
    """Whether there is a match too weak for the whole width, and a width below it."""
    weak: bool = recipe["draft.min_match"] < recipe["draft.full_match"]
    few: bool = recipe["draft.narrow_tokens"] < recipe["verify.num_draft_tokens"]
    return weak and few


NGRAM = DraftStage(
    name="NGRAM",
    axes=Axes(signal="history", guess="lookup", shape="tree", draft_state="insert"),
    doc="a trie of the text so far, shared by all requests",
    fields=NgramFields,
    shapes={"tree": ("insert", "none"), "chain": ("insert", "none")},
    drafter="lookup",
    guesses=guesses,
    lower=lower,
    cost=lambda _draft: "a trie look-up on the host",
    tables={"verify.num_draft_tokens": "LOOKUP_SHAPES"},
    rules=(inverted_breadth, match_longer_than_trie),
)
