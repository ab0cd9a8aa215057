"""`specflow import`: an engine's arguments as a recipe."""
# ruff: noqa: N999 - a command is a module of its name

from __future__ import annotations

import argparse

from specflow.cli.common import CLEAN, tell
from specflow.cli.engines import asked_engine
from specflow.cli.imported import translated
from specflow.engines import ENGINES
from specflow.errors import UsageError


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="a script or command line, JSON, YAML, or a Python program; `-` is standard input",
    )
    parser.add_argument(
        "--args", metavar="TEXT", help='the arguments themselves: "--tp-size 2 ..."'
    )
    known = ", ".join(ENGINES.names())
    parser.add_argument(
        "--engine",
        metavar="NAME[@VERSION]",
        required=True,
        help=f"whose arguments they are: {known}",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a recipe; the flags it does not hold go to stderr."""
    asked = asked_engine(args.engine)
    if (args.file is None) == (args.args is None):
        raise UsageError("name a file, or give `--args`", "`specflow import --help` has both")
    foreign = translated(asked, args.file, args.args)
    tell(foreign.findings)
    origin = {None: "the command line", "-": "standard input"}.get(args.file, args.file)
    name = f"{asked.engine.name}@{asked.version}"
    print(f"# Imported from {name} arguments ({origin}); `specflow validate` checks it.")
    print(foreign.text, end="")
    return CLEAN
