"""`specflow rule CODE`: print a rule's manual."""

from __future__ import annotations

import argparse

from specflow.cli.common import CLEAN
from specflow.diagnostics import closest
from specflow.errors import UsageError
from specflow.manual import manuals


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("code", metavar="CODE", help="SF012, the rule's name, or a row: sglang:O18")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the manual of a code or a name."""
    engine, colon, row = args.code.partition(":")
    if colon:
        return _row(engine, row)
    known = manuals()
    wanted = next(
        (m for m in known if args.code in (m.code, m.name) or args.code.upper() == m.code), None
    )
    if wanted is None:
        near = closest(args.code.upper(), [m.code for m in known])
        near += closest(args.code, [m.name for m in known])
        offer = f"did you mean {' or '.join(near[:3])}? " if near else ""
        raise UsageError(f"`{args.code}` is no rule", f"{offer}`specflow rules` lists them")
    print(f"{wanted.name} ({wanted.code})   {wanted.severity}")
    print(wanted.doc.rstrip())
    if wanted.where:
        print(f"\ndeclared in {wanted.where}")
    return CLEAN


def _row(engine: str, row: str) -> int:
    """What a row of an engine's rules says, as findings and `explain --engine` name it."""
    from specflow.cli.engines import asked_engine  # engines load only where one is named

    asked = asked_engine(engine)
    known = asked.engine.rows()
    name = row if row in known else row.upper()
    if name not in known:
        near = closest(row.upper(), known) or list(known)
        offer = f"did you mean {' or '.join(near[:3])}?"
        raise UsageError(f"{asked.engine.title} has no row `{row}`", offer)
    print(f"{asked.engine.title} {name}: {known[name]}")
    return CLEAN
