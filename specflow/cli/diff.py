"""`specflow diff`: compare two recipes by meaning."""

from __future__ import annotations

import argparse
import difflib
import json
import sys

from specflow.cli.common import CLEAN, FINDINGS, add_format, add_overrides, add_stand_in, read
from specflow.codegen import emit
from specflow.diff import as_json, changes, diff
from specflow.graph.show import show
from specflow.lower import lower
from specflow.recipe import ResolvedRecipe


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("a", metavar="A", help="path or pack name")
    parser.add_argument("b", metavar="B", help="path or pack name")
    add_overrides(parser)
    add_stand_in(parser)
    parser.add_argument("--graph", action="store_true", help="the step graphs too, line by line")
    parser.add_argument("--code", action="store_true", help="the step modules too, line by line")
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the differences; exit 1 where there are any."""
    a, b = (read(name, args.overrides, stand_in=args.stand_in)[1] for name in (args.a, args.b))
    if args.format == "json":
        print(json.dumps(as_json(a, b), indent=2, ensure_ascii=False))
    else:
        print(diff(a, b), end="")
    if args.graph:
        sys.stdout.writelines(_lines(a, b, show(lower(a)), show(lower(b))))
    if args.code:
        sys.stdout.writelines(_lines(a, b, _code(a), _code(b)))
    return FINDINGS if changes(a, b) else CLEAN


def _code(recipe: ResolvedRecipe) -> str:
    return emit(lower(recipe), recipe).source


def _lines(a: ResolvedRecipe, b: ResolvedRecipe, before: str, after: str) -> list[str]:
    return list(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), a.name, b.name)
    )
