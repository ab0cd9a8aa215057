"""What `explain --engine`, `export` and `import` share: an engine by name, and what it finds."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from specflow.diagnostics import Diagnostic, closest
from specflow.engines import ENGINES
from specflow.engines.configs import draft_config, target_config
from specflow.engines.findings import gaps, refused
from specflow.engines.outcome import Effective, Refused
from specflow.engines.recipes import Export, to_args
from specflow.engines.sglang_tables import PLATFORMS
from specflow.errors import UsageError
from specflow.recipe import ResolvedRecipe


@dataclass(frozen=True)
class Found:
    """A recipe at an engine: what it is told, what it makes of it, what was found on the way."""

    export: Export
    outcome: Effective | Refused
    findings: list[Diagnostic]


def add_engine(parser: argparse.ArgumentParser, text: str, *, required: bool = False) -> None:
    """`--engine` and `--platform`."""
    parser.add_argument("--engine", metavar="NAME@VERSION", required=required, help=text)
    parser.add_argument(
        "--platform", default="h100", help="the machine it is to run on: " + ", ".join(PLATFORMS)
    )


def asked_engine(name: str) -> str:
    """The engine of a row, by its name and version; without a version, if it is the only one."""
    if name in ENGINES:
        return name
    rows = [row for row in ENGINES.names() if row.startswith(f"{name}@")]
    if len(rows) == 1:
        return rows[0]
    near = closest(name, ENGINES.names()) or list(ENGINES.names())
    raise UsageError(f"no engine `{name}` is known", f"did you mean {' or '.join(near)}?")


def resolved_by(engine: str, platform: str, recipe: ResolvedRecipe) -> Found:
    """A recipe as an engine resolves it."""
    if platform not in PLATFORMS:
        near = closest(platform, PLATFORMS) or list(PLATFORMS)
        raise UsageError(f"no platform `{platform}` is known", f"did you mean {' or '.join(near)}?")
    export = to_args(recipe, platform)
    outcome = ENGINES[engine](
        export.args, target_config(recipe), draft_config(recipe), platform, export.env
    )
    findings = [
        *gaps("SF111", export.lost, recipe),
        *gaps("SF112", export.approximate, recipe),
    ]
    if isinstance(outcome, Refused):
        findings.append(refused(engine, outcome, platform))
    return Found(export, outcome, findings)
