"""`specflow rules`: list every rule."""

from __future__ import annotations

import argparse
import json

from specflow.cli.common import CLEAN, add_format
from specflow.columns import columns
from specflow.manual import manuals


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print code, severity, name and first line of each."""
    known = manuals()
    if args.format == "json":
        print(json.dumps([vars(m) for m in known], indent=2, ensure_ascii=False))
    else:
        rows: list[tuple[str, ...]] = [
            (m.code, m.severity, m.name, m.doc.splitlines()[0]) for m in known
        ]
        print("\n".join(columns(rows)))
    return CLEAN
