"""What commands share: loading by name, printing findings, exit codes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

from specflow import facts
from specflow.diagnostics import Diagnostic, Format, Severity, render, summary
from specflow.errors import RecipeError, UsageError
from specflow.load import load
from specflow.packs import find, with_stand_in
from specflow.recipe import Recipe, ResolvedRecipe
from specflow.resolve import Reader, resolve
from specflow.tables import ENGINES

CLEAN, FINDINGS, USAGE = 0, 1, 2
OPERAND = "path or pack name, or an engine's arguments: `sglang:--speculative-algorithm ...`"
# `sglang@0.5.23:--speculative-algorithm ...`: what an engine is started with, as an operand.
ENGINE_WORD = re.compile(rf"({'|'.join(ENGINES)})(@[^:\s]*)?:")


def add_format(parser: argparse.ArgumentParser, *formats: str) -> None:
    """`--format`, text unless said otherwise."""
    parser.add_argument(
        "--format", choices=formats, default="text", help="how findings and results are written"
    )


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """`--overwrite`, which every command asks for before it replaces a file."""
    parser.add_argument("--overwrite", action="store_true", help="replace FILE where it exists")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """`key=value` after the recipe."""
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],  # without one argparse says it is required, where another argument is missing
        metavar="key=value",
        help="fields to set: draft.min_match=3",
    )


def is_override(word: str) -> bool:
    """Whether a word on the command line sets or drops a field rather than naming a recipe.

    A file of that very name is a recipe: hooks and wildcards pass names that were chosen elsewhere.
    """
    sets = (word.startswith("~") or "=" in word) and not ENGINE_WORD.match(word)
    return sets and not os.path.isfile(word)  # noqa: PTH113 - of a word too long for a name too


def add_stand_in(parser: argparse.ArgumentParser) -> None:
    """`--stand-in`: the small models that a recipe names beside its own."""
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="use the small models that the recipe names beside its own",
    )


def need_engine(args: argparse.Namespace) -> None:
    """Stop at a machine of no engine."""
    if args.platform is not None and args.engine is None:
        raise UsageError("`--platform` is of an engine", "name one with `--engine`")


def read(
    name: str,
    overrides: Sequence[str] = (),
    *,
    stand_in: bool = False,
    reader: Reader = facts.read,
    device: str = "",
) -> tuple[Recipe, ResolvedRecipe]:
    """A recipe by path or pack name, or an engine's arguments, loaded and resolved.

    reader  what a model says of itself; by itself, of one that is here or recorded
    device  that the question is about, where the recipe names none
    """
    recipe, findings = written(name, overrides, stand_in=stand_in)
    resolved = resolve(recipe, reader, device=device)
    return recipe, replace(resolved, findings=(*findings, *resolved.findings))


def written(
    name: str, overrides: Sequence[str] = (), *, stand_in: bool = False
) -> tuple[Recipe, tuple[Diagnostic, ...]]:
    """What `read` resolves, and what was found on the way to it."""
    if ENGINE_WORD.match(name):
        from specflow.cli.imported import imported  # engines load only where one is named

        recipe, findings = imported(name, overrides)
        return recipe, tuple(findings)
    recipe = load(find(name), overrides)
    return (with_stand_in(recipe) if stand_in else recipe), ()


def failed(error: RecipeError, form: str) -> int:
    """Print what was found; the exit code."""
    show(error.diagnostics, form)
    if form == "text":
        print()
        print(summary(1, error.diagnostics))
    return USAGE if error.unreadable else FINDINGS


def told(
    code: str, name: str, message: str, form: str, exit_code: int, offer: str | None = None
) -> int:
    """Print one finding that has no place in a file: text to stderr, json to stdout."""
    found = [Diagnostic(code, name, Severity.ERROR, message, help=offer)]
    if form == "text":
        tell(found)
    else:
        show(found, form)
    return exit_code


def show(findings: Sequence[Diagnostic], form: str) -> None:
    """Findings to stdout, coloured on a terminal."""
    formats: dict[str, Format] = {"text": "text", "json": "json", "github": "github"}
    text = render(findings, formats[form], color=sys.stdout.isatty() and form == "text")
    if text:
        print(text)


def tell(findings: Sequence[Diagnostic]) -> None:
    """Findings to stderr, where stdout belongs to the result."""
    text = render(findings, color=sys.stderr.isatty())
    if text:
        print(text, file=sys.stderr)


def worst(findings: Sequence[Diagnostic], *, strict: bool) -> int:
    """The exit code of a set of findings; `strict` counts warnings too. A note only tells."""
    counted = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    stop = [d for d in findings if d.severity in counted]
    return FINDINGS if stop else CLEAN
