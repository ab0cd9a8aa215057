"""`specflow validate`: check recipes before anything loads, and mend what has one answer."""

from __future__ import annotations

import argparse
import sys
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
from specflow.recipe import ResolvedRecipe


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="RECIPE|key=value",
        help="paths, folders or pack names; overrides",
    )
    parser.add_argument("--strict", action="store_true", help="warnings count as findings")
    parser.add_argument(
        "--fix", action="store_true", help="write the fixes of findings into the recipe"
    )
    parser.add_argument(
        "--unsafe-fixes",
        action="store_true",
        help="with --fix: those too that may change what the recipe means",
    )
    parser.add_argument(
        "--diff", action="store_true", help="with --fix: show what would change, write nothing"
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="what weights and KV have to fit into: 80GiB, 16384MiB"
    )
    add_stand_in(parser)
    add_format(parser, "text", "json", "github")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Validate each recipe; the worst exit code of all."""
    overrides = [w for w in args.words if is_override(w)]
    names = [n for w in args.words if not is_override(w) for n in _inside(w)]
    _check(args, names)
    memory = None if args.memory is None else _memory(args.memory)
    found: list[Diagnostic] = []
    code, fixes = CLEAN, 0
    for name in names:
        if args.fix:
            fixes += _fix(args, name, overrides)
        try:
            resolved = read(name, overrides, stand_in=args.stand_in)[1]
            findings = resolved.findings if memory is None else _within(resolved, memory)
            code = max(code, worst(findings, strict=args.strict))
        except RecipeError as error:
            findings = error.diagnostics
            code = max(code, USAGE if error.unreadable else FINDINGS)
        found += findings
    show(found, args.format)
    if args.format == "text":
        if found:
            print()
        would = "would be " if args.diff else ""
        print(summary(len(names), found) + (f", {fixes} {would}fixed" if args.fix else ""))
    return code


def _check(args: argparse.Namespace, names: list[str]) -> None:
    """What the words on the command line ask for can be done."""
    if not names:
        named = [w for w in args.words if not is_override(w)]
        said = f"`{named[0]}` holds no recipe (*.yaml)" if named else "no recipe is named"
        raise UsageError(said, "`specflow recipes` lists those that ship with specflow")
    for option in ("diff", "unsafe_fixes"):
        if getattr(args, option) and not args.fix:
            word = f"--{option.replace('_', '-')}"
            raise UsageError(f"`{word}` goes with `--fix`", f"add --fix, or leave {word} out")


def _memory(said: str) -> int:
    """A memory in bytes, as `--memory` says it."""
    from specflow.fit import parse_size

    size = parse_size(said)
    if size is None:
        raise UsageError(f"`--memory {said}` is no size", "write one like 80GiB, 80GB or 16384MiB")
    return size


def _within(resolved: ResolvedRecipe, memory: int) -> tuple[Diagnostic, ...]:
    """The findings of a recipe that is sound, and whether it fits into so many bytes."""
    from specflow.fit import fits

    return (*resolved.findings, *fits(resolved, memory))


def _fix(args: argparse.Namespace, name: str, overrides: list[str]) -> int:
    """Mend one recipe, or show how; how many findings are gone by it."""
    from specflow import fixing, packs

    try:
        path = packs.find(name)
    except RecipeError:
        return 0  # told where the recipe is read
    fixed = fixing.fix_recipe(path, overrides, stand_in=args.stand_in, unsafe=args.unsafe_fixes)
    # A machine reads findings on stdout.
    out = sys.stdout if args.format == "text" else sys.stderr
    print(fixing.difference(fixed), end="", file=out)
    for each in fixed.skipped:
        print(f"not fixed: {each.finding.code} {each.finding.name}: {each.reason}", file=out)
    if fixed.after or fixed.skipped:
        print(file=out)
    if not args.diff:
        fixing.write(fixed)
    return len(fixed.done)


def _inside(word: str) -> list[str]:
    """The recipes in a folder, or the word itself."""
    path = Path(word)
    return [str(p) for p in sorted(path.rglob("*.yaml"))] if path.is_dir() else [word]
