"""`specflow recipes`: list the recipes that ship with specflow."""

from __future__ import annotations

import argparse
import json

from specflow.cli.common import CLEAN, add_format
from specflow.columns import columns
from specflow.packs import names, root, title


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print names and first lines."""
    rows: list[tuple[str, ...]] = [(name, title(root() / f"{name}.yaml")) for name in names()]
    if args.format == "json":
        print(
            json.dumps(
                [{"recipe": n, "title": t, "path": str(root() / f"{n}.yaml")} for n, t in rows],
                indent=2,
            )
        )
    else:
        print("\n".join(columns(rows)))
    return CLEAN
