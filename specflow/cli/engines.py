"""`specflow engines`, and what commands share of them: one by name, what it makes of a recipe."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass, field
from typing import Any

from specflow.cli.common import CLEAN, add_format
from specflow.diagnostics import Diagnostic, Severity, closest
from specflow.engines import ENGINES
from specflow.engines.base import Engine, Export
from specflow.engines.findings import finding, gaps, of_others, overruled, refused, written_at
from specflow.engines.outcome import Effective, Fault, Refusal, Refused
from specflow.engines.versions import nearest
from specflow.errors import UsageError
from specflow.recipe import ResolvedRecipe


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what is known of each engine."""
    rows = [known_of(ENGINES[name]) for name in ENGINES.names()]
    if args.format == "json":
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return CLEAN
    for row in rows:
        print(f"{row['engine']} ({row['title']})")
        print(f"  versions   {', '.join(row['versions'])}")
        print(f"  platforms  {', '.join(row['platforms'])}")
        print(f"  formats    {', '.join(row['formats'])}")
        runs = "`specflow run --engine`, where it is installed" if row["runs"] else "not from here"
        print(f"  runs       {runs}")
    return CLEAN


def known_of(engine: Engine) -> dict[str, Any]:
    """What is known of an engine; the version and the platform that are meant unsaid come first."""
    return {
        "engine": engine.name,
        "title": engine.title,
        "versions": list(reversed(engine.versions)),
        "platforms": list(engine.platforms),
        "formats": list(engine.formats),
        "runs": bool(engine.package),
    }


@dataclass(frozen=True)
class Asked:
    """An engine at a version whose rules are known, and what there is to say of that version.

    said  the version that was asked for, where its rules are not known
    """

    engine: Engine
    version: str
    findings: tuple[Diagnostic, ...] = ()
    said: str = ""

    @property
    def title(self) -> str:
        """How messages say it: `SGLang 0.5.23`."""
        return f"{self.engine.title} {self.version}"


@dataclass(frozen=True)
class Found:
    """A recipe at an engine: what it is told, what it makes of it, what was found on the way.

    export   None where a flag of the recipe is none of the engine's
    remarks  what the engine overrules, or accepts in vain
    """

    export: Export | None
    outcome: Effective | Refused
    findings: list[Diagnostic]
    remarks: list[Diagnostic] = field(default_factory=list)

    @property
    def starts(self) -> bool:
        """Whether the engine runs this recipe."""
        can_say = self.export is not None and not self.export.refused
        return can_say and isinstance(self.outcome, Effective)

    @property
    def runs(self) -> bool:
        """Whether it also goes on to run, as far as is known."""
        return self.starts and all(d.severity is not Severity.ERROR for d in self.remarks)


def add_engine(parser: argparse.ArgumentParser, text: str, *, required: bool = False) -> None:
    """`--engine` and `--platform`."""
    known = ", ".join(ENGINES.names())
    parser.add_argument(
        "--engine", metavar="NAME[@VERSION]", required=required, help=f"{text}: {known}"
    )
    parser.add_argument(
        "--platform", metavar="NAME", help="the machine it is to run on: h100, b200, cpu ..."
    )


def asked_engine(said: str) -> Asked:
    """The engine of a row; a version that is not known is the nearest one, and a finding."""
    name, at, version = said.partition("@")
    name, version = name.lower(), re.sub(r"^v(?=\d)", "", version)
    if name not in ENGINES:
        near = closest(name, ENGINES.names()) or list(ENGINES.names())
        raise UsageError(f"no engine `{name}` is known", f"did you mean {' or '.join(near)}?")
    engine = ENGINES[name]
    if at and not version:
        offer = f"known are {', '.join(engine.versions)}; leave `@` out for the newest of them"
        raise UsageError(f"`{said}` names no version", offer)
    if not version:
        return Asked(engine, engine.versions[-1])
    try:
        known = nearest(version, engine.versions)
    except ValueError as error:
        offer = f"known are {', '.join(engine.versions)}"
        raise UsageError(f"`{version}` is no version of {engine.title}", offer) from error
    if known == version or known.startswith(f"{version}."):
        return Asked(engine, known)
    return judged_by(engine, version, known)


def judged_by(engine: Engine, version: str, known: str, because: str = "") -> Asked:
    """An engine at a version that is not known, by the rules of one that is."""
    message = f"{engine.title} {version} is not known; judged by the rules of {known}{because}"
    notes = ("flags, defaults and refusals may have changed between the two",)
    offer = f"known are {', '.join(engine.versions)}"
    return Asked(engine, known, (finding("SF115", message, notes=notes, offer=offer),), version)


def asked_platform(engine: Engine, name: str | None) -> str:
    """A machine that the engine knows; its first where none is named."""
    if name is None:
        return engine.platforms[0]
    if name.lower() in engine.platforms:
        return name.lower()
    near = closest(name.lower(), engine.platforms) or list(engine.platforms)
    offer = f"did you mean {' or '.join(near)}?"
    raise UsageError(f"no platform `{name}` is known to {engine.title}", offer)


def resolved_by(asked: Asked, platform: str | None, recipe: ResolvedRecipe) -> Found:
    """A recipe as an engine resolves it."""
    engine, machine = asked.engine, asked_platform(asked.engine, platform)
    findings = list(asked.findings)
    try:
        export = engine.export(recipe, asked.version, machine)
    except Refusal as refusal:
        findings += [_foreign(engine.name, fault, recipe) for fault in refusal.faults]
        return Found(None, refusal.refused, findings)
    findings += [
        *gaps("SF119", export.refused, recipe),
        *gaps("SF111", export.lost, recipe),
        *gaps("SF112", export.approximate, recipe),
        *of_others(engine.name, engine.title, recipe),
    ]
    outcome = engine.effective(recipe, export, asked.version, machine)
    if isinstance(outcome, Refused):
        others = _starts_on(asked, machine, export, recipe)
        findings.append(refused(asked.title, outcome, machine, recipe, others, engine.name))
        return Found(export, outcome, findings)
    remarks = overruled(engine.name, asked.title, machine, outcome, recipe)
    return Found(export, outcome, findings, remarks)


def _foreign(engine: str, fault: Fault, recipe: ResolvedRecipe) -> Diagnostic:
    """What a recipe says under `engine` that is none of the engine's, where it is written."""
    path = f"engine.{engine}.{fault.words[0]}" if fault.words else ""
    return finding("SF114", fault.refused.reason, written_at(path, recipe))


def _starts_on(
    asked: Asked, refuses: str, export: Export, recipe: ResolvedRecipe
) -> tuple[str, ...]:
    """Other machines on which the engine runs the same export."""
    engine = asked.engine
    return tuple(
        name
        for name in engine.platforms
        if name != refuses
        and isinstance(engine.effective(recipe, export, asked.version, name), Effective)
    )
