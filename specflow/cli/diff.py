"""`specflow diff`: compare two recipes by meaning."""

from __future__ import annotations

import argparse
import json
import sys

from specflow.cli.common import (
    CLEAN,
    FINDINGS,
    OPERAND,
    add_format,
    add_stand_in,
    is_override,
    need_engine,
    read,
    tell,
)
from specflow.cli.models import add_models, reader_of
from specflow.diff import Ran, Sides, as_json, at_engine, compared, diff
from specflow.errors import UsageError
from specflow.lower import lower
from specflow.recipe import ResolvedRecipe
from specflow.resolve import Reader


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("a", metavar="A", help=OPERAND)
    parser.add_argument("b", metavar="B", help="the same")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="fields to set on both sides; of one side by --a and --b",
    )
    for side in ("a", "b"):
        parser.add_argument(
            f"--{side}",
            dest=f"only_{side}",
            action="append",
            default=[],
            metavar="key=value",
            help=f"a field to set on {side.upper()} alone; more than once for more of them",
        )
    parser.add_argument(
        "--engine", metavar="NAME[@VERSION]", help="compare what this engine runs of either"
    )
    parser.add_argument(
        "--platform", metavar="NAME", help="the machine it is to run on: h100, b200, cpu ..."
    )
    add_stand_in(parser)
    add_models(parser)
    parser.add_argument("--graph", action="store_true", help="the step graphs too, line by line")
    parser.add_argument("--code", action="store_true", help="the step modules too, line by line")
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the differences; exit 1 where anything effective is different."""
    need_engine(args)
    reader = reader_of(args, needed=args.graph or args.code)
    a, b = _side(args, "a", reader), _side(args, "b", reader)
    tell(list(dict.fromkeys((*a.findings, *b.findings))))
    sides = None
    if args.engine is not None:
        sides = _at_engine(args, a, b)
        if sides is None:
            return FINDINGS
    both = compared(a, b, sides)
    texts = {"graph": _graph, "code": _code}
    more = {name: _lines(a, b, of(a), of(b)) for name, of in texts.items() if getattr(args, name)}
    if args.format == "json":
        print(json.dumps(as_json(both) | more, indent=2, ensure_ascii=False))
    else:
        print(diff(both), end="")
        for lines in more.values():
            sys.stdout.writelines(lines)
    return FINDINGS if both.differs else CLEAN


def _side(args: argparse.Namespace, side: str, reader: Reader) -> ResolvedRecipe:
    """One of the two recipes, with what is set on both and on it alone."""
    alone: list[str] = getattr(args, f"only_{side}")
    for word in alone:
        if not is_override(word):
            raise UsageError(f"`--{side} {word}` sets no field", f"write --{side} key=value")
    words = (*args.overrides, *alone)
    name, device = getattr(args, side), _device(args)
    return read(name, words, stand_in=args.stand_in, reader=reader, device=device)[1]


def _device(args: argparse.Namespace) -> str:
    """The device of the engine that is asked for; without one a recipe says it."""
    if args.engine is None:
        return ""
    from specflow.cli.memory import device_of  # engines take a while to import

    return device_of(args)


def _at_engine(args: argparse.Namespace, a: ResolvedRecipe, b: ResolvedRecipe) -> Sides | None:
    """What an engine runs of both; None, and why, where it does not start with one of them."""
    from specflow.cli.engines import asked_engine, asked_platform, resolved_by
    from specflow.engines.outcome import Refused

    asked = asked_engine(args.engine)
    platform = asked_platform(asked.engine, args.platform)
    found = [resolved_by(asked, platform, recipe) for recipe in (a, b)]
    tell(list(dict.fromkeys(d for each in found for d in each.findings)))
    ran = []
    for each in found:
        if each.export is None or isinstance(each.outcome, Refused) or not each.starts:
            return None
        ran.append(Ran(asked.engine.spread(each.export.args), each.export.env, each.outcome.values))
    return at_engine(f"{asked.title} on {platform}", *ran)


def _graph(recipe: ResolvedRecipe) -> str:
    from specflow.graph.show import show

    return show(lower(recipe))


def _code(recipe: ResolvedRecipe) -> str:
    from specflow.codegen import emit  # its templates take longer to load than all else here

    return emit(lower(recipe), recipe).source


def _lines(a: ResolvedRecipe, b: ResolvedRecipe, before: str, after: str) -> list[str]:
    import difflib

    return list(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), a.name, b.name)
    )
