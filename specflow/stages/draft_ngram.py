"""NGRAM: no draft model; what followed the last tokens before is guessed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from specflow.graph import Builder
from specflow.recipe import Fields, Pair, ResolvedRecipe, field
from specflow.rules import Finding, rule
from specflow.stages.base import Axes, DraftStage, Guess, said, state


class NgramFields(Fields):
    """What a recipe may say about the trie."""

    max_trie_depth: int = field("Longest run of tokens kept and matched.", default=18, ge=2, le=256)
    breadth: Pair = field("Fewest and most branches a level of the tree.", default=(1, 10))
    order: Literal["recency", "frequency"] = field("Which branch comes first.", default="recency")
    min_match: int = field(
        "Tokens that must match before a step verifies guesses.", default=2, ge=1, le=256
    )
    capacity: int = field(
        "Nodes the trie may hold; the least recently used leave.", default=10_000_000, ge=1000
    )
    insert_prompt: bool = field("Put whole prompts into the trie.", default=True)


def guesses(_fields: Mapping[str, Any]) -> None:
    """As many as are verified, less the bonus token."""
    return


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
    if not 1 <= fewest <= most:
        yield Finding(
            at="draft.breadth",
            message=f"a level has at least {fewest} and at most {most} branches, which no tree can",
            label="fewest and most, the fewest at least 1",
            help=f"write `breadth: [{max(1, min(fewest, most))}, {max(1, fewest, most)}]`",
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
    if "draft.min_match" in r and r["draft.min_match"] >= r["draft.max_trie_depth"]:
        depth = r["draft.max_trie_depth"]
        yield Finding(
            at="draft.min_match",
            message=f"a trie {depth} tokens deep has no match of {r['draft.min_match']} tokens",
            label=f"at most {depth - 1}",
            because={"draft.max_trie_depth": "a match leaves room for the token after it"},
            help="lower `draft.min_match` or raise `draft.max_trie_depth`",
        )


def lower(_draft: NgramFields, recipe: ResolvedRecipe, b: Builder) -> Guess:
    """Look up on the host; where nothing matches, the step verifies one position."""
    tree = recipe.axes.shape == "tree"
    tokens = state(b, "guesses")
    parents = state(b, "parents") if tree else None
    least = b.constant("MIN_MATCH", recipe["draft.min_match"], said(recipe, "draft.min_match"))
    doc = "On the host: look the last tokens of every request up in the trie; name the step to run."
    with b.phase("draft", "draft", doc, model="draft", place="host") as p:
        filled = (tokens, parents) if parents else (tokens,)
        matched = p.op(
            f"propose_{recipe.axes.shape}",
            *filled,
            out="matched",
            shape=(),
            dtype="int",
            note="longest match in the batch, in tokens",
        )
        p.choose(matched, least=least, then=recipe.axes.shape, otherwise="single")
    return Guess(tokens=tokens, parents=parents)


NGRAM = DraftStage(
    name="NGRAM",
    axes=Axes(signal="history", guess="lookup", shape="tree", draft_state="insert"),
    doc="a trie of the text so far, shared by all requests",
    fields=NgramFields,
    shapes=("tree", "chain"),
    draft_states=("insert", "none"),
    drafter="lookup",
    guesses=guesses,
    lower=lower,
    cost=lambda _draft: "a trie look-up on the host",
    tables={"verify.num_draft_tokens": "LOOKUP_SHAPES"},
    rules=(inverted_breadth, match_longer_than_trie),
)
