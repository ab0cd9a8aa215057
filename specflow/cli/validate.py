"""`specflow validate`: check recipes before anything loads."""

from __future__ import annotations

import argparse
from pathlib import Path

from specflow.cli.common import (
    CLEAN,
    FINDINGS,
    USAGE,
    add_format,
    add_stand_in,
    is_override,
    read,
    show,
    worst,
)
from specflow.diagnostics import Diagnostic, summary
from specflow.errors import RecipeError, UsageError


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="RECIPE|key=value",
        help="paths, folders or pack names; overrides",
    )
    parser.add_argument("--strict", action="store_true", help="warnings count as findings")
    add_stand_in(parser)
    add_format(parser, "text", "json", "github")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Validate each recipe; the worst exit code of all."""
    overrides = [w for w in args.words if is_override(w)]
    names = [n for w in args.words if not is_override(w) for n in _inside(w)]
    if not names:
        named = [w for w in args.words if not is_override(w)]
        said = f"`{named[0]}` holds no recipe (*.yaml)" if named else "no recipe is named"
        raise UsageError(said, "`specflow recipes` lists those that ship with specflow")
    found: list[Diagnostic] = []
    code = CLEAN
    for name in names:
        try:
            findings = read(name, overrides, stand_in=args.stand_in)[1].findings
            code = max(code, worst(findings, strict=args.strict))
        except RecipeError as error:
            findings = error.diagnostics
            code = max(code, USAGE if error.unreadable else FINDINGS)
        found += findings
    show(found, args.format)
    if args.format == "text":
        if found:
            print()
        print(summary(len(names), found))
    return code


def _inside(word: str) -> list[str]:
    """The recipes in a folder, or the word itself."""
    path = Path(word)
    return [str(p) for p in sorted(path.rglob("*.yaml"))] if path.is_dir() else [word]
