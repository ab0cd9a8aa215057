"""`specflow import`: an engine's arguments as a recipe."""
# ruff: noqa: N999 - a command is a module of its name

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from specflow.cli.common import CLEAN, FINDINGS, tell
from specflow.cli.engines import asked_engine
from specflow.diagnostics import Diagnostic
from specflow.engines import command_line
from specflow.engines.findings import finding, gaps
from specflow.engines.imports import from_args
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
        metavar="NAME@VERSION",
        required=True,
        help="whose arguments they are: sglang@0.5.23",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a recipe; the flags it does not hold go to stderr."""
    asked_engine(args.engine)
    if (args.file is None) == (args.args is None):
        raise UsageError("name a file, or give `--args`", "`specflow import --help` has both")
    try:
        given, env = _read(args.file, args.args)
    except Refusal as refusal:
        tell([finding("SF114", refusal.refused.reason)])
        return FINDINGS
    found = from_args(given, env)
    lost: list[Diagnostic] = gaps("SF113", found.lost, None)
    tell(lost)
    origin = args.file or "the command line"
    print(f"# Imported from {args.engine} arguments ({origin}); `specflow validate` checks it.")
    print(yaml.safe_dump(dict(found.written), sort_keys=False, default_flow_style=None), end="")
    return CLEAN


def _read(file: str | None, text: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments and variables, of a text or of a file of any of the exported formats."""
    if file is None:
        return command_line.read(text or "")
    try:
        said = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"`{file}` cannot be read: {error}", "name a text file") from error
    mapping = _mapping(file, said)
    if mapping is None:
        return command_line.read(said)
    if isinstance(mapping.get("args"), dict):
        env = mapping.get("env")
        variables = env if isinstance(env, dict) else {}
        return command_line.typed(mapping["args"]), {str(k): str(v) for k, v in variables.items()}
    return command_line.typed(mapping), {}


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
