"""SF070 to SF089: the machine, and what a recipe says of findings."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.diagnostics import Drop, Put
from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, rule


@rule("SF071", "longer-than-context")
def longer_than_context(r: ResolvedRecipe) -> Iterator[Finding]:
    """A request fills no more positions than the target was made for.

    ## Why
    Past its context a model was never trained and its position tables may end.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {max_length: 4096}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {max_length: 1024}
    ```

    ## Fix
    Lower `run.max_length`, or leave it out.
    """
    context = r.facts["target"].max_positions
    if context and r.run.max_length > context:
        yield Finding(
            at="run.max_length",
            message=f"a request of {r.run.max_length} positions leaves "
            f"the target's context of {context}",
            label=f"at most {context}",
            because={"target.model": f"max_position_embeddings is {context}"},
            help=f"lower `run.max_length` to {context} or less",
            fix=Put("run.max_length", context),
        )


@rule("SF074", "half-precision-on-cpu", warning=True)
def half_precision_on_cpu(r: ResolvedRecipe) -> Iterator[Finding]:
    """Speculation on a CPU runs in float32.

    ## Why
    On CPUs without fast half-precision units a forward in bfloat16 costs as much a position as the
    one before it, so verifying guesses gains nothing; and near ties fall differently at different
    widths, so that greedy output differs from plain decoding. `run.device` is `cpu` where nobody
    says otherwise; what `--engine`, `--gpu` and `--memory h200` ask is about a GPU.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {dtype: bfloat16}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    run: {dtype: float32}
    ```

    ## Fix
    Leave `run.dtype` out, or allow the warning with a reason.
    """
    if r.run.device == "cpu" and r.run.dtype != "float32":
        yield Finding(
            at="run.dtype",
            message=f"{r.run.dtype} on a CPU makes wide verifies dear and ties fall by width",
            label="float32 is the CPU's type",
            help="leave `run.dtype` out, or silence this with `allow: {SF074: why}`",
            fix=Drop("run.dtype", safe=False),
        )


@rule("SF082", "useless-allow", warning=True)
def useless_allow(r: ResolvedRecipe) -> Iterator[Finding]:
    """`allow` names warnings.

    ## Why
    An error cannot be allowed: the recipe has no step. A code that does not exist silences nothing.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    allow: [SF012]
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    ```

    ## Fix
    Remove the code from `allow`.
    """
    for code in r.useless_allow:
        yield Finding(
            at="allow",
            message=f"`allow: {code}` silences nothing: it is no warning of specflow",
            help=f"remove {code} from `allow`",
            fix=Drop(f"allow.{code}"),
        )
