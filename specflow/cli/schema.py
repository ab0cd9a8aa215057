"""`specflow schema`: the JSON Schema of recipes, for editors."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specflow.cli.common import CLEAN
from specflow.schema import schema


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("-o", "--out", metavar="FILE", help="write it here, not to stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the schema, or write it to a file."""
    text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
    if args.out is None:
        print(text, end="")
    else:
        Path(args.out).write_text(text, encoding="utf-8")
    return CLEAN
