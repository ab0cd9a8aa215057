"""What is found where a recipe meets an engine: SF110 to SF114, and their manuals."""

from __future__ import annotations

from collections.abc import Iterable

from specflow.diagnostics import Diagnostic, Label, Severity
from specflow.engines.outcome import Refused
from specflow.engines.recipes import Gap
from specflow.recipe import ResolvedRecipe

ENGINE_RULES = {
    "SF110": (
        "engine-refuses",
        """The engine starts with the arguments that a recipe becomes.

## Why
An engine holds its arguments to rules of its own, and stops with an exception where one is broken:
some of its own making, some by accident, without a word to the user. Which rule it is, and what to
do, is told here without the engine.

## Fix
Change the field that the finding names, or the platform (`--platform`).
""",
    ),
    "SF111": (
        "engine-cannot-say",
        """Everything a recipe says, the engine can be told.

## Why
What an engine has no flag for, it does in its own way: what it measures then is not what the recipe
says.

## Fix
Take the field out, or know that it is not in force there.
""",
    ),
    "SF112": (
        "engine-says-otherwise",
        """What a recipe says is said to the engine in other words.

## Why
The engine gets to the same place another way: by requests rather than by flags, or by a rule with
the same law.

## Fix
Nothing has to be done; the note says what differs.
""",
    ),
    "SF113": (
        "flag-without-field",
        """Every flag of an engine's command line has a field in a recipe.

## Why
A recipe is about drafting; flags about serving, or about kernels, have no field, and an imported
recipe does not hold them.

## Fix
Keep the flag beside the recipe, if the engine is to have it.
""",
    ),
    "SF114": (
        "foreign-arguments",
        """What is imported are arguments of the engine.

## Why
A flag that the engine has not, or a value of another type, would stop the engine itself.

## Fix
Correct the flag; the nearest known ones are named.
""",
    ),
}
SEVERITIES = {
    "SF110": Severity.ERROR,
    "SF111": Severity.WARNING,
    "SF112": Severity.NOTE,
    "SF113": Severity.WARNING,
    "SF114": Severity.ERROR,
}


def finding(
    code: str, message: str, labels: tuple[Label, ...] = (), notes: tuple[str, ...] = ()
) -> Diagnostic:
    """A finding of this page."""
    return Diagnostic(code, ENGINE_RULES[code][0], SEVERITIES[code], message, labels, notes)


def refused(engine: str, outcome: Refused, platform: str) -> Diagnostic:
    """The engine does not start."""
    how = (
        "it refuses by design"
        if outcome.deliberate
        else f"it stops with {outcome.error}, which it does not explain"
    )
    return finding(
        "SF110",
        f"{engine} does not start on {platform}: {outcome.reason}",
        notes=(f"row {outcome.rule} of its rules: {how}",),
    )


def gaps(code: str, found: Iterable[Gap], recipe: ResolvedRecipe | None) -> list[Diagnostic]:
    """Fields or flags that do not go across, each where it was written."""
    return [
        finding(code, f"`{gap.at}`: {gap.text}", labels=_labels(gap.at, recipe)) for gap in found
    ]


def _labels(path: str, recipe: ResolvedRecipe | None) -> tuple[Label, ...]:
    place = recipe.ledger[path].place if recipe is not None and path in recipe else None
    return () if place is None else (Label(place.value, "", primary=True),)
