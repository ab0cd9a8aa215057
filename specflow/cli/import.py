"""`specflow import`: an engine's arguments as a recipe."""
# ruff: noqa: N999 - a command is a module of its name

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from specflow.cli.common import CLEAN, FINDINGS, tell
from specflow.cli.engines import Asked, asked_engine
from specflow.engines.findings import finding, gaps
from specflow.engines.outcome import Refusal
from specflow.errors import UsageError


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="a script or command line, JSON, or YAML"
    )
    parser.add_argument(
        "--args", metavar="TEXT", help='the arguments themselves: "--tp-size 2 ..."'
    )
    parser.add_argument(
        "--engine",
        metavar="NAME[@VERSION]",
        required=True,
        help="whose arguments they are: sglang@0.5.23",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a recipe; the flags it does not hold go to stderr."""
    asked = asked_engine(args.engine)
    if (args.file is None) == (args.args is None):
        raise UsageError("name a file, or give `--args`", "`specflow import --help` has both")
    try:
        given, env = given_to(asked, args.file, args.args)
    except Refusal as refusal:
        tell([*asked.findings, finding("SF114", refusal.refused.reason)])
        return FINDINGS
    found = asked.engine.load(given, env, asked.version)
    tell(
        [
            *asked.findings,
            *gaps("SF118", found.refused, None),
            *gaps("SF113", found.lost, None),
            *gaps("SF112", found.approximate, None),
        ]
    )
    if found.refused:
        return FINDINGS
    origin = args.file or "the command line"
    name = f"{asked.engine.name}@{asked.version}"
    print(f"# Imported from {name} arguments ({origin}); `specflow validate` checks it.")
    print(yaml.safe_dump(dict(found.written), sort_keys=False, default_flow_style=None), end="")
    return CLEAN


def given_to(
    asked: Asked, file: str | None, text: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments and variables, of a text or of a file of any of the exported formats."""
    engine, version = asked.engine, asked.version
    if file is None:
        return engine.read(text or "", version)
    try:
        said = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"`{file}` cannot be read: {error}", "name a text file") from error
    mapping = _mapping(file, said)
    if mapping is None:
        return engine.read(said, version)
    if isinstance(mapping.get("args"), dict):
        env = mapping.get("env")
        variables = env if isinstance(env, dict) else {}
        return engine.typed(mapping["args"], version), {
            str(k): str(v) for k, v in variables.items()
        }
    return engine.typed(mapping, version), {}


def _mapping(file: str, said: str) -> dict[str, Any] | None:
    """The mapping of a JSON or YAML file; None for a script."""
    try:
        if Path(file).suffix == ".json":
            found = json.loads(said)
        elif Path(file).suffix in (".yaml", ".yml"):
            found = yaml.safe_load(said)
        else:
            return None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"`{file}` cannot be read: {error}"[:300], "check its syntax") from error
    if not isinstance(found, dict):
        raise UsageError(f"`{file}` holds no flags by name", "write `flag: value`")
    return found
