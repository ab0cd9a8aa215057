"""Target only: guesses are sampled from the target's law, children placed first on the coin's line.

Nothing is asked of the law the guesses came from, so it serves look-ups and trees. Both thresholds
at 1 keep the
target's law; below, guesses are favoured and the law is not kept (serial.md §3.2).
"""

from __future__ import annotations

from collections.abc import Iterator

from specflow.diagnostics import Drop
from specflow.graph import Buffer, Builder, PhaseBuilder, Value
from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, rule
from specflow.stages.base import AcceptStage, Gained, Guess, draw_single, said, taken
from specflow.stages.base import target_law as judge
from specflow.stages.base import verdict_coins as coins


@rule("SF037", "lossy-threshold", warning=True)
def lossy_threshold(r: ResolvedRecipe) -> Iterator[Finding]:
    """Thresholds below 1 change the law of the output.

    ## Why
    `threshold_acc` inflates the chance of every guess, `threshold_single` accepts likely guesses
    outright.
    More tokens a step, at the price that the text is no longer the target's.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    verify: {accept: target_only, threshold_acc: 0.8}
    sampling: {temperature: 0.8}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    verify: {accept: target_only}
    sampling: {temperature: 0.8}
    ```

    ## Fix
    Leave the threshold out, or allow the warning with a reason.
    """
    for name in ("threshold_single", "threshold_acc"):
        if r[f"verify.{name}"] < 1 and r["verify.accept"] == "target_only":
            yield Finding(
                at=f"verify.{name}",
                message=f"`{name}: {r[f'verify.{name}']}` favours guesses: "
                "the output is not the target's",
                label="1 keeps the law",
                help=f"leave `{name}` out, or silence this with `allow: {{SF037: why}}`",
            )


@rule("SF034", "threshold-without-target-only")
def threshold_without_target_only(r: ResolvedRecipe) -> Iterator[Finding]:
    """Thresholds belong to the target-only rule.

    ## Why
    No other rule reads them, and a field without an effect would look like one that has one.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    verify: {accept: greedy, threshold_acc: 0.8}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    verify: {accept: greedy}
    ```

    ## Fix
    Remove the threshold, or write `accept: target_only`.
    """
    for name in ("threshold_single", "threshold_acc"):
        if r[f"verify.{name}"] < 1 and r["verify.accept"] != "target_only":
            yield Finding(
                at=f"verify.{name}",
                message=f"`{name}` has no effect on `accept: {r['verify.accept']}`",
                label="read by target_only alone",
                because={"verify.accept": "the rule in force"},
                help=f"remove `{name}`, or write `accept: target_only`",
                fix=Drop(f"verify.{name}", otherwise=("write `verify.accept: target_only`",)),
            )


def accept(guess: Guess, law: Value, recipe: ResolvedRecipe, p: PhaseBuilder, b: Builder) -> Gained:
    """One coin a node and one for the last token."""
    drafted = taken(guess.tokens, p)
    hung: Value | Buffer
    if guess.parents is None:
        hung = p.op("chain_parents", drafted, out="parents", shape=("B", guess.k))
    else:
        hung = taken(guess.parents, p)
    thresholds = [
        b.constant(name.upper(), recipe[f"verify.{name}"], said(recipe, f"verify.{name}"))
        for name in ("threshold_single", "threshold_acc")
    ]
    path, length = Value("path", ("B", guess.w)), Value("accept_len", ("B",))
    gained = Value("gained", ("B", guess.w))
    drawn = coins(p, b)
    outs = (path, length, gained)
    note = "the path's nodes, its length, its tokens"
    p.ops("accept_sampled", drafted, hung, law, drawn, *thresholds, outs=outs, note=note)
    return Gained(tokens=gained, accept_len=length, path=path if guess.parents else None)


TARGET_ONLY = AcceptStage(
    name="target_only",
    doc="sampled from the target's law",
    shapes=("chain", "tree", "ragged"),
    judge=judge,
    accept=accept,
    single=draw_single,
    rules=(lossy_threshold, threshold_without_target_only),
)
