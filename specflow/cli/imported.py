"""An engine's arguments where a recipe is asked for: `sglang:--speculative-algorithm ...`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from specflow.cli.engines import Asked, asked_engine
from specflow.diagnostics import Diagnostic
from specflow.engines.base import Import
from specflow.engines.findings import finding, gaps
from specflow.engines.outcome import Refusal
from specflow.errors import RecipeError, UsageError
from specflow.load import loads
from specflow.recipe import Recipe
from specflow.tables import ENGINES

_OPERAND = re.compile(rf"({'|'.join(ENGINES)})(@[^:\s]*)?:(.*)", re.DOTALL)
LARGEST_FILE = 1_000_000  # bytes of a script or a file of arguments


@dataclass(frozen=True)
class Foreign:
    """An engine's arguments as a recipe, and what was found on the way."""

    asked: Asked
    found: Import
    findings: tuple[Diagnostic, ...]

    @property
    def text(self) -> str:
        """The recipe as YAML."""
        return yaml.safe_dump(dict(self.found.written), sort_keys=False)


def imported(word: str, overrides: Sequence[str] = ()) -> tuple[Recipe, tuple[Diagnostic, ...]]:
    """The recipe of an operand, and what its arguments do not say; RecipeError where none is."""
    operand = _OPERAND.fullmatch(word)
    assert operand is not None
    name, version, rest = operand[1], operand[2] or "", operand[3].strip()
    file = None if _is_line(rest) else rest
    foreign = translated(asked_engine(name + version), file, rest if file is None else None)
    where = f"{name}-{foreign.asked.version}"
    return replace(loads(foreign.text, where, overrides), name=where), foreign.findings


def _is_line(rest: str) -> bool:
    """A command line has a flag; anything else names a file."""
    return not rest or rest.startswith("-") or " -" in rest


def translated(asked: Asked, file: str | None, text: str | None) -> Foreign:
    """A command line or a file of arguments as a recipe; RecipeError where it is none."""
    try:
        args, env = _given(asked, file, text)
        found = asked.engine.load(args, env, asked.version)
    except Refusal as refusal:
        unread = finding("SF114", refusal.refused.reason)
        raise RecipeError([*asked.findings, unread]) from refusal
    contradictions = gaps("SF118", found.refused, None)
    if contradictions:
        raise RecipeError([*asked.findings, *contradictions])
    findings = (
        *asked.findings,
        *gaps("SF116", found.overruled, None),
        *gaps("SF113", found.lost, None),
        *gaps("SF112", found.approximate, None),
    )
    return Foreign(asked, found, findings)


def _given(
    asked: Asked, file: str | None, text: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments and variables, of a text or of a file of any of the exported formats."""
    engine, version = asked.engine, asked.version
    if file is None:
        return engine.read(text or "", version)
    said = _text(file)
    mapping = _mapping(file, said)
    if mapping is None:
        return engine.read(said, version)
    if isinstance(mapping.get("args"), dict):
        env = mapping.get("env")
        variables = env if isinstance(env, dict) else {}
        args = engine.typed(mapping["args"], version)
        return args, {str(k): str(v) for k, v in variables.items()}
    return engine.typed(mapping, version), {}


def _text(file: str) -> str:
    path = Path(file)
    try:
        if not path.is_file():
            raise UsageError(f"`{file}` is no file", "name a script, or a file of arguments")
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"`{file}` is larger than 1 MB", "arguments are a page of text")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"`{file}` cannot be read: {error}"[:300], "name a text file") from error


def _mapping(file: str, said: str) -> Mapping[Any, Any] | None:
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
