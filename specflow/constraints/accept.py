"""SF032 to SF036: which accept rule serves which shape, draft and temperature."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.constraints.shapes import branches
from specflow.diagnostics import Drop
from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, rule
from specflow.stages import ACCEPTS, DRAFTS


def lossy(recipe: ResolvedRecipe) -> bool:
    """Whether a threshold lets guesses through that the target's law would not."""
    return bool(recipe["verify.threshold_single"] < 1 or recipe["verify.threshold_acc"] < 1)


def acceptance(recipe: ResolvedRecipe) -> str:
    """How guesses are accepted, in words."""
    doc = ACCEPTS[recipe["verify.accept"]].doc
    return f"{doc}, guesses favoured (lossy)" if lossy(recipe) else doc


@rule("SF032", "chain-rule-on-tree")
def accept_on_other_shape(r: ResolvedRecipe) -> Iterator[Finding]:
    """A rule judges the shapes it is proven for.

    ## Why
    Rejection and block verification judge one chain by the law its guesses were drawn from. The
    guesses of a tree are not drawn one by one, so the rule would not keep the target's law.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    verify: {shape: tree, accept: rejection}
    sampling: {temperature: 0.8}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    verify: {shape: tree, accept: target_only}
    sampling: {temperature: 0.8}
    ```

    ## Fix
    Write `accept: target_only`, or verify a chain: of a draft that branches, with `topk: 1`.
    """
    accept = ACCEPTS[r["verify.accept"]]
    if r.axes.shape in accept.shapes:
        return
    kept = branches(r)
    yield Finding(
        at="verify.accept",
        message=f"`accept: {accept.name}` judges a chain, not a {r.axes.shape}",
        label="for chains",
        because={"draft.topk": f"{kept} branches a step make a tree"}
        if kept > 1
        else {"verify.shape": "what is verified"},
        help="write `accept: target_only`, or leave it out"
        + ("; or write `topk: 1` for a chain" if kept > 1 else ""),
        fix=Drop(
            "verify.accept", otherwise=("write `draft.topk: 1` for a chain",) if kept > 1 else ()
        ),
    )


@rule("SF035", "rejection-without-draft-distribution")
def accept_without_law(r: ResolvedRecipe) -> Iterator[Finding]:
    """Rejection needs the law that guesses were drawn from.

    ## Why
    It keeps a guess with probability min(1, p / q). A look-up has no q.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    verify: {shape: chain, accept: rejection}
    sampling: {temperature: 0.8}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: STANDALONE, model: builtin:pico-llama-s}
    verify: {shape: chain, accept: rejection}
    sampling: {temperature: 0.8}
    ```

    ## Fix
    Write `accept: target_only`, which asks nothing of the draft.
    """
    accept, draft = ACCEPTS[r["verify.accept"]], DRAFTS[r.stages[0]]
    if accept.laws and not draft.has_law:
        yield Finding(
            at="verify.accept",
            message=f"`accept: {accept.name}` needs the law of guesses, and {draft.name} has none",
            label="no draft law",
            because={"draft.algorithm": draft.doc},
            help="write `accept: target_only`, or leave it out",
            fix=Drop("verify.accept"),
        )


@rule("SF036", "greedy-accept-at-temperature")
def greedy_at_temperature(r: ResolvedRecipe) -> Iterator[Finding]:
    """A recipe that samples has a rule that samples.

    ## Why
    The greedy rule takes the likeliest token whatever the temperature says; the setting would
    have no effect.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    verify: {accept: greedy}
    sampling: {temperature: 0.8}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    sampling: {temperature: 0.8}
    ```

    ## Fix
    Leave `verify.accept` out, or set the temperature to 0.
    """
    if r.sampling.temperature > 0 and not ACCEPTS[r["verify.accept"]].draws:
        yield Finding(
            at="verify.accept",
            message=f"`accept: {r['verify.accept']}` does not sample, and the temperature is "
            f"{r.sampling.temperature:g}",
            label="takes the likeliest token",
            because={"sampling.temperature": "asks for samples"},
            help="leave `verify.accept` out, or set `sampling.temperature: 0`",
            fix=Drop("verify.accept", otherwise=("write `sampling.temperature: 0`",)),
        )
