"""`specflow recipes`: list the recipes that ship with specflow."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from specflow import published
from specflow.cli.common import CLEAN, add_format
from specflow.columns import columns
from specflow.formats import named
from specflow.packs import names, root, title
from specflow.published import record


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "--models",
        action="store_true",
        help="list the models whose config and sizes are recorded, which need not be here",
    )
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print names and first lines, or the models that are known."""
    if args.models:
        return _models(args.format)
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


def _models(form: str) -> int:
    """Models by name, what they are, and where their facts are from."""
    found = {name: record(name) or {} for name in published.names()}
    rows = [(n, _kind(each), published.source(each)) for n, each in found.items()]
    if form == "json":
        keys = ("model", "kind", "source")
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
    else:
        print("\n".join(columns(rows)))
    return CLEAN


def _kind(found: Mapping[str, Any]) -> str:
    """What a recorded model is: a draft by the format of its network, or a language model."""
    net = str(found.get("net", {}).get("format", ""))
    bundled = found.get("net", {}).get("bundled", False)
    if net and not bundled:
        return named(net).doc
    own = f", with {named(net).doc}" if net else ""
    return f"{found['model'].get('architecture') or 'a language model'}{own}"
