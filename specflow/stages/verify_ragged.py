"""Ragged: of each chain only so much is verified as is likely to survive (parallel.md 2d, 2e).

A host plan says how many positions the whole batch may verify; the current survivals say whose. The
plan is of an earlier step, so it knows nothing of the guesses it admits, and the law is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from specflow.diagnostics import Drop, Put
from specflow.facts import Measured
from specflow.graph import Builder, PhaseBuilder, Value
from specflow.recipe import AcceptFields, ResolvedRecipe, field
from specflow.rules import Finding, rule
from specflow.stages.base import HEAT, Asked, Guess, VerifyStage, ask, said, state, taken

STATIC, CAPPED, COMPACT = "static", "cap-accept", "compact"


class RaggedFields(AcceptFields):
    """What a recipe may say about a planned verify."""

    num_draft_tokens: int = field(
        "Positions verified at most, bonus token included.", derive="guesses + 1", ge=1, le=64
    )
    mode: Literal["static", "cap-accept", "compact"] = field(
        "compact runs the planned positions only; cap-accept runs all and accepts by the plan; "
        "static plans nothing.",
        default=COMPACT,
    )
    confidence: Literal["head", "average"] = field(
        "What survival is told from: the draft's confidence head, or past acceptance by position.",
        default="head",
    )
    cost_table: str = field(
        "JSON of steps a second by tokens, from `specflow profile`; relative to the recipe. "
        "Without one everything is verified.",
        default="",
    )
    temperatures: str = field(
        "JSON of the confidence head's temperatures, from `specflow calibrate`.", default=""
    )
    lag_steps: int = field("How many steps old a plan's confidences are.", default=2, ge=1, le=8)
    token_bucket: int = field(
        "The batch's positions are a multiple of it, so that few steps are captured.",
        derive="1 on cpu, where nothing is captured; else 8",
        ge=1,
        le=1024,
    )


@rule("SF038", "ragged-verify-without-confidence")
def no_confidence(r: ResolvedRecipe) -> Iterator[Finding]:
    """A plan is made from what the draft says of its own guesses, or from what was accepted.

    ## Why
    Which guesses are worth verifying is told from the chance that they survive. A draft with a
    confidence head says so for each of them; without one, averages of past acceptance have to do,
    and a recipe says that it wants them.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DFLASH, model: builtin:pico-llama-dflash}
    verify: {shape: ragged, mode: compact}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}
    verify: {shape: ragged, mode: compact}
    allow: [SF050]
    ```

    ## Fix
    Write `verify.confidence: average`, or `verify.mode: static`, or name a draft with such a head.
    """
    if "verify.confidence" not in r or r["verify.mode"] == STATIC:
        return
    net = r.facts.net
    known = net.block.size or net.block.kv_width
    if r["verify.confidence"] == "head" and known and not net.block.confidence:
        yield Finding(
            at="verify.mode",
            message=f"`mode: {r['verify.mode']}` plans by a confidence head the draft has not",
            label="no confidence head",
            because={"draft.model": "has no confidence head"},
            help="write `verify.confidence: average`, or `verify.mode: static`",
            fix=Put(
                "verify.confidence",
                "average",
                safe=False,
                otherwise=("write `verify.mode: static`",),
            ),
        )


@rule("SF050", "planner-without-cost-table", warning=True)
def no_cost_table(r: ResolvedRecipe) -> Iterator[Finding]:
    """A plan weighs what guesses may gain against what verifying them costs.

    ## Why
    Without a table every position costs the same, which is nothing: the plan is then to verify
    everything, as `mode: static` does. That is correct, and gains nothing.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}
    verify: {shape: ragged}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}
    ```

    ## Fix
    Measure a table with `specflow profile RECIPE`, and name it as `verify.cost_table`.
    """
    if "verify.cost_table" in r and r["verify.mode"] != STATIC and not r["verify.cost_table"]:
        yield Finding(
            at="verify.mode" if r.ledger["verify.mode"].place is not None else "verify.shape",
            message="no cost table: every guess is verified, as `mode: static` does",
            label="plans nothing",
            help="measure one with `specflow profile RECIPE`, and name it as `verify.cost_table`",
        )


@rule("SF051", "unusable-temperatures")
def unusable_temperatures(r: ResolvedRecipe) -> Iterator[Finding]:
    """A table of temperatures has one above 0 for each guess.

    ## Why
    The logit of guess k is divided by temperature k before it becomes a chance. A file that was
    fitted for another block speaks of other positions.

    ## Example
    A draft of 3 guesses, and a file whose `temperatures` are 5.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: DSPARK, model: tiny-dspark}
    verify: {shape: ragged, cost_table: costs.json, temperatures: heat-5.json}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: DSPARK, model: tiny-dspark}
    verify: {shape: ragged, cost_table: costs.json, temperatures: heat.json}
    ```

    ## Fix
    Fit them again with `specflow calibrate RECIPE --prompts FILE`, or leave them out.
    """
    make = "specflow calibrate RECIPE --prompts FILE -o"
    yield from _measured(r, "verify.temperatures", r.facts.heat, make)


@rule("SF052", "unusable-cost-table")
def unusable_table(r: ResolvedRecipe) -> Iterator[Finding]:
    """A cost table says how many steps a second are run at how many tokens.

    ## Why
    The plan looks the cost of a step up by its tokens, so they have to ascend; a rate of 0 or below
    costs nothing that could be weighed.

    ## Example
    A file whose `sample_batch_tokens` are `[8, 4, 16]`.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: DSPARK, model: tiny-dspark}
    verify: {shape: ragged, cost_table: costs-falling.json}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: DSPARK, model: tiny-dspark}
    verify: {shape: ragged, cost_table: costs.json}
    ```

    ## Fix
    Measure it again with `specflow profile RECIPE`, or leave `verify.cost_table` out.
    """
    yield from _measured(r, "verify.cost_table", r.facts.cost, "specflow profile RECIPE -o")


def _measured(r: ResolvedRecipe, path: str, found: Measured, make: str) -> Iterator[Finding]:
    if path not in r or found.problem is None:
        return
    missing = found.problem.kind == "missing"
    offer = f"`{make} {r[path]}` makes one; or leave it out" if missing else found.problem.help
    label = "missing" if missing else "cannot be used"
    yield Finding(at=path, message=found.problem.message, label=label, help=offer)


@rule("SF059", "cost-table-too-short", warning=True)
def table_too_short(r: ResolvedRecipe) -> Iterator[Finding]:
    """A cost table reaches as far as the batch does.

    ## Why
    Beyond its last sample a table says the same cost for any number of tokens, so verifying more
    looks free there, and the plan verifies everything.

    ## Example
    A table measured up to 16 tokens, and a batch of 16 requests of 4 positions: 64 tokens.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: DSPARK, model: tiny-dspark}
    verify: {shape: ragged, cost_table: costs.json}
    run: {batch_size: 16}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: DSPARK, model: tiny-dspark}
    verify: {shape: ragged, cost_table: costs.json}
    run: {batch_size: 4}
    ```

    ## Fix
    Measure it with this recipe: `specflow profile RECIPE -o FILE` goes as far as its batch.
    """
    table = r.facts.cost.value
    if "verify.cost_table" not in r or r.facts.cost.problem is not None or table is None:
        return
    most, reached = r.run.batch_size * r["verify.num_draft_tokens"], table.tokens[-1]
    if not r.facts.cost.path or reached >= most:
        return
    yield Finding(
        at="verify.cost_table",
        message=f"the table ends at {reached:g} tokens, and the batch may verify {most}",
        label=f"up to {reached:g}",
        because={
            "run.batch_size": f"{r.run.batch_size} requests of {r['verify.num_draft_tokens']}"
        },
        help="measure it with this recipe: `specflow profile RECIPE -o FILE`",
    )


@rule("SF055", "plan-without-effect", warning=True)
def without_effect(r: ResolvedRecipe) -> Iterator[Finding]:
    """What a recipe says of a plan, the plan reads.

    ## Why
    `mode: static` plans nothing, so a cost table has no effect; and averages of acceptance have no
    temperature, which belongs to the confidence head.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}
    verify: {shape: ragged, mode: static, confidence: average}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}
    verify: {shape: ragged, mode: static}
    ```

    ## Fix
    Leave the field out, or change the mode.
    """
    if "verify.mode" not in r:
        return
    average = r["verify.confidence"] == "average"
    fields = ("confidence", "cost_table", "temperatures", "lag_steps", "token_bucket")
    idle = fields if r["verify.mode"] == STATIC else ("temperatures",) if average else ()
    written = [f"verify.{name}" for name in idle if r.ledger[f"verify.{name}"].place is not None]
    if written:
        why = "mode: static" if r["verify.mode"] == STATIC else "confidence: average"
        yield Finding(
            at=written[0],
            message=f"{', '.join(f'`{path}`' for path in written)}: no effect under `{why}`",
            label="not read",
            because=dict.fromkeys(written[1:], "nor is this"),
            help="leave it out, unless only the mode is tried",
            fix=Drop(written[0]) if len(written) == 1 else None,
        )


def planned(recipe: ResolvedRecipe) -> bool:
    """Whether a step verifies by plan: a recipe without a cost table verifies everything."""
    return recipe.facts.cost.value is not None and recipe["verify.mode"] != STATIC


def lower(recipe: ResolvedRecipe, guess: Guess, p: PhaseBuilder, b: Builder) -> Asked:
    """Ask the target about the guesses that are worth it."""
    bonus, lens = state(b, "bonus_token"), state(b, "seq_lens")
    tokens = p.op("window", bonus, taken(guess.tokens, p), out="tokens", shape=("B", guess.w))
    if not planned(recipe):
        return Asked(*ask("verify", (tokens, lens), guess, p, b))
    survival = guess.survival if guess.survival is not None else state(b, "survival")
    budget = p.take(Value("budget", (), "int"))
    lengths = p.op(
        "allocate",
        taken(survival, p),
        budget,
        out="verify_len",
        shape=("B",),
        note="in [1, W]; the likeliest guesses of the batch",
    )
    p.store(state(b, "verify_len"), lengths)
    if recipe["verify.mode"] == CAPPED:
        logits, shown = ask("verify", (tokens, lens), guess, p, b)
        judged = p.op("blank", logits, lengths, out="kept", shape=logits.shape, dtype="float")
        return Asked(judged, shown, lengths)
    width = b.constants["NUM_DRAFT_TOKENS"]
    packed = p.op("pack", lengths, budget, width, out="packed", shape=("G",))
    return Asked(*ask("verify_packed", (tokens, lens, packed), guess, p, b), lengths)


def plan(recipe: ResolvedRecipe, b: Builder) -> None:
    """The host's part: a plan before the step, and what it learns after it."""
    if not planned(recipe):
        return
    by_head = recipe["verify.confidence"] == "head"
    doc = "On the host: how many positions the batch may verify, by what earlier steps expected."
    with b.phase("plan", "plan", doc, model="planner", place="host") as p:
        if not by_head:
            p.ops("expect", state(b, "survival"), outs=())
        budget = p.op("plan", state(b, "seq_lens"), out="budget", shape=(), dtype="int")
        p.give(budget)
    doc = "On the host, after the step: keep what it expected, for a later plan."
    with b.phase("learn", "learn", doc, model="planner", place="host") as p:
        if by_head:
            p.ops("publish", state(b, "trust"), outs=())
        else:
            p.ops("look_back", state(b, "accept_len"), state(b, "verify_len"), outs=())


def constants(recipe: ResolvedRecipe, b: Builder) -> None:
    """The temperatures of the confidence head, where a step reads it."""
    if planned(recipe) and recipe["verify.confidence"] == "head":
        count = recipe["verify.num_draft_tokens"] - 1
        found = recipe.facts.temperatures or (1.0,) * count
        b.constant(HEAT, found, said(recipe, "verify.temperatures"))


RAGGED = VerifyStage(
    name="ragged",
    doc="1 bonus token + up to {K} guesses = 1 to {W} positions",
    fields=RaggedFields,
    lower=lower,
    asks="Ask the target, once, about the bonus token and the guesses that are worth it.",
    plan=plan,
    constants=constants,
    rules=(
        no_confidence,
        no_cost_table,
        unusable_temperatures,
        unusable_table,
        without_effect,
        table_too_short,
    ),
)
