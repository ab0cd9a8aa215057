"""`specflow explain`: show every value, who set it and why."""

from __future__ import annotations

import argparse
import json

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
from specflow.cli.costs import COST_OPTIONS, add_cost, cost
from specflow.cli.engines import add_engine, asked_engine, asked_platform, resolved_by
from specflow.cli.memory import device_of
from specflow.cli.models import add_models, reader_of
from specflow.engines import show
from specflow.engines.outcome import Refused
from specflow.errors import UsageError
from specflow.explain import as_json, explain, explain_field, no_field
from specflow.recipe import ResolvedRecipe


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("recipe", metavar="RECIPE", help=OPERAND)
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="FIELD|key=value",
        help="one field to explain; overrides",
    )
    add_engine(parser, "show what an engine makes of the recipe")
    add_cost(parser)
    add_stand_in(parser)
    add_models(parser)
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the ledger, or one field's history."""
    fields = [w for w in args.words if not is_override(w)]
    overrides = [w for w in args.words if is_override(w)]
    reader = reader_of(args, needed=args.cost)
    device, alone = device_of(args), {"stand_in": args.stand_in, "reader": reader}
    resolved = read(args.recipe, overrides, device=device, **alone)[1]
    tell(resolved.findings)
    _together(args, fields)
    if args.engine is not None:
        return _engine(args, resolved, fields)
    if args.cost:
        print(cost(args, resolved), end="")
        return CLEAN
    for path in fields:
        if path not in resolved:
            raise UsageError(*no_field(resolved, path))
    if args.format == "json":
        whole = as_json(resolved)
        if fields:
            whole["fields"] = {p: whole["fields"][p] for p in fields}
        print(json.dumps(whole, indent=2, ensure_ascii=False))
    else:
        print(
            "\n".join(explain_field(resolved, p) for p in fields) if fields else explain(resolved),
            end="",
        )
    return CLEAN


def _together(args: argparse.Namespace, fields: list[str]) -> None:
    """Stop at options that do not belong together."""
    need_engine(args)
    asked = [
        f"--{name.replace('_', '-')}" for name in COST_OPTIONS if getattr(args, name) is not None
    ]
    if asked and not args.cost:
        raise UsageError(f"`{asked[0]}` is for the estimate of `--cost`", "add `--cost`")
    if args.cost and args.engine is not None:
        raise UsageError("`--cost` and `--engine` explain two things", "ask for one of them")
    if args.cost and fields:
        raise UsageError("`--cost` explains the whole step", f"leave out `{fields[0]}`")


def _engine(args: argparse.Namespace, resolved: ResolvedRecipe, fields: list[str]) -> int:
    """What the engine runs with, and by which of its rules."""
    if fields:
        raise UsageError("`--engine` explains all flags at once", f"leave out `{fields[0]}`")
    asked = asked_engine(args.engine)
    found = resolved_by(asked, args.platform, resolved)
    tell(found.findings)
    if found.export is None or isinstance(found.outcome, Refused):
        return FINDINGS
    platform = asked_platform(asked.engine, args.platform)
    about = (asked.engine, asked.version, platform, found.export, found.outcome)
    if args.format == "json":
        print(json.dumps(show.as_json(*about), indent=2, ensure_ascii=False))
    else:
        print(show.table(*about), end="")
    return CLEAN if found.starts else FINDINGS
