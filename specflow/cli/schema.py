"""`specflow schema`: the JSON Schema of recipes, for editors."""

from __future__ import annotations

import argparse
import json

from specflow.cli.common import CLEAN
from specflow.cli.files import add_out, prepare_file, write_whole
from specflow.schema import schema


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_out(parser, "it", "it is printed")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the schema, or write it to a file."""
    text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
    if args.out is None:
        print(text, end="")
    else:
        write_whole(prepare_file(args.out, (), overwrite=args.overwrite), text)
    return CLEAN
