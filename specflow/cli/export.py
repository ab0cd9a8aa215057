"""`specflow export`: a recipe as the arguments of an engine."""

from __future__ import annotations

import argparse

from specflow.cli.common import CLEAN, FINDINGS, add_overrides, add_stand_in, read, tell
from specflow.cli.engines import add_engine, asked_engine, resolved_by
from specflow.engines.outcome import Refused
from specflow.engines.show import FORMATS


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("recipe", metavar="RECIPE", help="path or pack name")
    add_overrides(parser)
    add_engine(parser, "the engine to export to: sglang@0.5.23", required=True)
    add_stand_in(parser)
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="args",
        help="flags in a line, a script, JSON, the file of `--config`, or lines of Python",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the arguments; what they do not say goes to stderr."""
    resolved = read(args.recipe, args.overrides, stand_in=args.stand_in)[1]
    found = resolved_by(asked_engine(args.engine), args.platform, resolved)
    tell([*resolved.findings, *found.findings])
    print(FORMATS[args.format](found.export))
    return FINDINGS if isinstance(found.outcome, Refused) else CLEAN
