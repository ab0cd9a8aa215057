"""`specflow explain`: show every value, who set it and why."""

from __future__ import annotations

import argparse
import json

from specflow.cli.common import CLEAN, add_format, add_stand_in, is_override, read, tell
from specflow.diagnostics import closest
from specflow.errors import UsageError
from specflow.explain import as_json, explain, explain_field


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("recipe", metavar="RECIPE", help="path or pack name")
    parser.add_argument(
        "words", nargs="*", metavar="FIELD|key=value", help="one field to explain; overrides"
    )
    add_stand_in(parser)
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the ledger, or one field's history."""
    fields = [w for w in args.words if not is_override(w)]
    overrides = [w for w in args.words if is_override(w)]
    resolved = read(args.recipe, overrides, stand_in=args.stand_in)[1]
    tell(resolved.findings)
    for path in fields:
        if path not in resolved:
            near = closest(path, resolved.ledger) or list(resolved.ledger)
            raise UsageError(
                f"`{path}` is not a field of {resolved.name}",
                f"did you mean {' or '.join(near[:3])}?",
            )
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
