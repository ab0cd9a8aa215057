"""A recipe as it is measured: its step plans by a table without prices, and which sizes are timed.

What is measured is the recipe's own step, whether or not it plans yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specflow.dummies import FORMAT as DUMMY
from specflow.errors import UsageError
from specflow.facts import Measured
from specflow.planning import FLAT
from specflow.recipe import Recipe, ResolvedRecipe
from specflow.resolve import resolve
from specflow.stages import DRAFTS
from specflow.stages.verify_ragged import CAPPED, COMPACT, STATIC

SHAPE = "ragged"
MADE = ("cost_table", "temperatures")  # what measuring makes; a recipe may name it before
UNMEASURED = "SF050"  # the warning that there is no cost table yet

BATCHES = (1, 2, 4, 8, 16)  # where neither the command nor a plan of the recipe's own says which
SAMPLES = 32  # budgets of one batch that are timed, at most and beside the least
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a batch's guesses, for the additive form

Size = tuple[int, int]  # rows, tokens
Changes = Mapping[str, Mapping[str, Any]]  # by block, then by field


def unmeasured(recipe: Recipe) -> Recipe:
    """A recipe without the files that measuring makes, and without a word on their absence."""
    bare = _changed(recipe, {"verify": dict.fromkeys(MADE)}, drop=MADE)
    return replace(bare, allow=recipe.allow | {UNMEASURED})


def to_profile(recipe: Recipe, resolved: ResolvedRecipe, sizes: Sequence[Size]) -> ResolvedRecipe:
    """The recipe whose step is timed: it can verify any number of tokens, and no request ends.

    recipe    as `unmeasured` leaves it
    resolved  what it resolves to
    """
    verify: dict[str, Any] = {"mode": COMPACT}
    if not resolved.facts.net.block.confidence and "verify.confidence" not in recipe.places:
        verify["confidence"] = "average"
    run = {"batch_size": max(rows for rows, _ in sizes)}
    sampling = {"ignore_eos": True, "stop": []}
    return _planned(recipe, resolved, {"verify": verify, "run": run, "sampling": sampling})


def to_calibrate(recipe: Recipe, resolved: ResolvedRecipe) -> ResolvedRecipe:
    """The recipe whose confidence head is heard: it verifies everything, at temperatures of 1.

    recipe    as `unmeasured` leaves it
    resolved  what it resolves to
    """
    if resolved.run.load_format == DUMMY:
        raise UsageError(
            "`run.load_format: dummy` makes a confidence head of random numbers, of which no "
            "temperature makes chances",
            "calibrate it out of its checkpoint: leave `run.load_format` out",
        )
    verify = {"mode": CAPPED, "confidence": "head"}
    if SHAPE in DRAFTS[resolved.stages[0]].shapes and not resolved.facts.net.block.confidence:
        raise UsageError(
            f"the draft of `{recipe.name}` has no confidence head to calibrate",
            "name a draft with one, or let the recipe say `verify.confidence: average`, which "
            "needs no temperatures",
        )
    return _planned(recipe, resolved, {"verify": verify})


def _planned(recipe: Recipe, resolved: ResolvedRecipe, changes: Changes) -> ResolvedRecipe:
    """The recipe with a step that plans; UsageError where its draft cannot have one."""
    draft = DRAFTS[resolved.stages[0]]
    if SHAPE not in draft.shapes:
        able = [name for name in DRAFTS.names() if SHAPE in DRAFTS[name].shapes]
        raise UsageError(
            f"`{recipe.name}` drafts by {draft.name}, and there are plans for "
            f"{' and '.join(able)} alone",
            f"name a recipe whose `draft.algorithm` is {' or '.join(able)}",
        )
    verify = {"shape": SHAPE, **changes["verify"]}
    planned = resolve(_changed(recipe, {**changes, "verify": verify}))
    return replace(planned, facts=replace(planned.facts, cost=Measured(value=FLAT)))


def _changed(recipe: Recipe, changes: Changes, drop: Sequence[str] = ()) -> Recipe:
    """The recipe with fields set or dropped that nobody wrote so: they lose their places."""
    written = dict(recipe.written)
    for block, fields in changes.items():
        own = written.get(block) or {}
        if isinstance(own, Mapping):  # anything else is a finding of its own
            written[block] = {k: v for k, v in {**own, **fields}.items() if k not in drop}
    touched = {f"{block}.{key}" for block, fields in changes.items() for key in fields}
    return replace(
        recipe,
        written=written,
        places={path: at for path, at in recipe.places.items() if path not in touched},
        overridden=recipe.overridden - touched,
    )


# -- which sizes are timed -------------------------------------------------------------------------


def sizes_of(recipe: ResolvedRecipe, batches: Sequence[int], *, additive: bool) -> list[Size]:
    """The sizes that serve a recipe best, of these batches or of those that it means."""
    width = recipe["verify.num_draft_tokens"]
    if additive:
        return shares(batches or doubling(1, recipe.run.batch_size), width)
    if batches or recipe.axes.shape != SHAPE or recipe["verify.mode"] == STATIC:
        return everything(batches or BATCHES, width)
    return budgets(recipe.run.batch_size, width, recipe["verify.token_bucket"])


def everything(batches: Sequence[int], width: int) -> list[Size]:
    """Batches that verify all positions of every row."""
    return [(rows, rows * width) for rows in batches]


def budgets(rows: int, width: int, bucket: int) -> list[Size]:
    """One batch over its budgets, from the bonus tokens alone to everything, in whole buckets.

    Close together, since a plan never interpolates: a size costs what the sample below it does.
    """
    last = rows * width
    stride = -(-(last - rows) // (SAMPLES * bucket)) * bucket
    first = min(-(-rows // bucket) * bucket, last)
    return [(rows, tokens) for tokens in sorted({*range(first, last, max(stride, 1)), last})]


def shares(batches: Sequence[int], width: int) -> list[Size]:
    """Batches over shares of their guesses: what rows cost shows apart from what tokens cost."""
    sizes = {
        (rows, rows + round(share * rows * (width - 1))) for rows in batches for share in SHARES
    }
    return sorted(sizes)


def doubling(first: int, last: int) -> tuple[int, ...]:
    """Powers of two between two numbers, and both of them."""
    inside = (2**power for power in range(last.bit_length()))
    return tuple(sorted({first, last, *(each for each in inside if first < each < last)}))
