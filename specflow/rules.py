"""What a rule is: one function whose docstring is its manual, and what it finds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field

from specflow.diagnostics import Diagnostic, Fix, Label, Severity
from specflow.recipe import Recipe, ResolvedRecipe
from specflow.spans import Place


@dataclass(frozen=True)
class Finding:
    """What a rule says of a recipe, in terms of fields; the renderer finds the spans.

    at       the field at fault
    because  other fields that make it so, each with a word on how
    """

    at: str
    message: str
    label: str = ""
    because: Mapping[str, str] = dataclass_field(default_factory=dict)
    notes: tuple[str, ...] = ()
    help: str | None = None
    fix: Fix | None = None


Check = Callable[[ResolvedRecipe], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """A check with its code, its name (which reads after "allow") and its manual."""

    code: str
    name: str
    severity: Severity
    check: Check
    doc: str
    where: str

    def __call__(self, recipe: ResolvedRecipe) -> Iterator[Finding]:
        """What breaks the rule."""
        return self.check(recipe)


def rule(code: str, name: str, *, warning: bool = False) -> Callable[[Check], Rule]:
    """Make a check a Rule. Nothing is registered: a stage or `constraints` lists it."""

    def wrap(check: Check) -> Rule:
        severity = Severity.WARNING if warning else Severity.ERROR
        module = check.__module__.replace(".", "/")
        where = f"{module}.py:{inspect.unwrap(check).__code__.co_firstlineno}"
        return Rule(code, name, severity, check, inspect.getdoc(check) or "", where)

    return wrap


def diagnose(rule: Rule, finding: Finding, recipe: ResolvedRecipe, written: Recipe) -> Diagnostic:
    """A finding with its fields as spans; a field nobody wrote becomes a note with its origin."""
    labels: list[Label] = []
    notes = list(finding.notes)
    for path, text in ({finding.at: finding.label} | dict(finding.because)).items():
        place = place_of(path, recipe) or (None if path in recipe else written.places.get(path))
        if place is not None:
            labels.append(Label(place.value, text, path == finding.at))
        elif path in recipe and text:
            entry = recipe.ledger[path]
            notes.append(f"{path} = {entry.value} ({entry.origin.value}: {entry.because}): {text}")
    return Diagnostic(
        rule.code,
        rule.name,
        rule.severity,
        finding.message,
        tuple(labels),
        tuple(notes),
        finding.help,
        finding.fix,
    )


def place_of(path: str, recipe: ResolvedRecipe) -> Place | None:
    """The spans of a field, where the value in force was written by somebody."""
    return recipe.ledger[path].place if path in recipe else None
