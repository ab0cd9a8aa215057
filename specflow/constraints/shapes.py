"""SF011 to SF019: how wide a step is."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.diagnostics import Drop
from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, rule
from specflow.stages import DRAFTS


@rule("SF012", "chain-width-mismatch")
def chain_width_mismatch(r: ResolvedRecipe) -> Iterator[Finding]:
    """A chain is verified at exactly as many positions as it has guesses, plus one.

    ## Why
    Each draft step proposes one token, so the target verifies the bonus token plus `num_steps`
    guesses. A wider verify would score positions that nobody guessed; a narrower one would throw
    guesses away.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 3}
    verify: {num_draft_tokens: 8}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 7}
    ```

    ## Fix
    Leave `verify.num_draft_tokens` out: it is derived. Or change `draft.num_steps`.
    """
    guesses = DRAFTS[r.stages[0]].guesses(r.draft.model_dump())
    width = r["verify.num_draft_tokens"]
    if r.axes.shape != "chain" or guesses is None or width == guesses + 1:
        return
    steps = {"draft.num_steps": f"{guesses} guesses + 1 bonus token = {guesses + 1} positions"}
    yield Finding(
        at="verify.num_draft_tokens",
        message=f"a chain of {guesses} steps verifies {guesses + 1} positions, not {width}",
        label=f"expected {guesses + 1}",
        because=steps if "draft.num_steps" in r else {"draft.algorithm": "nothing is drafted"},
        help="remove `verify.num_draft_tokens`; it is derived from the number of guesses",
        fix=Drop("verify.num_draft_tokens"),
    )
