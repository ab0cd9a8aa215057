"""An engine's arguments where a recipe is asked for: `sglang:--speculative-algorithm ...`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from specflow.cli.engines import Asked, asked_engine, judged_by
from specflow.diagnostics import Diagnostic, Label
from specflow.engines import command_line, programs, show
from specflow.engines.base import Beside, Engine, Gap, Import, from_requests, variables
from specflow.engines.configs import config_of
from specflow.engines.findings import finding, gaps
from specflow.engines.outcome import TABLE_ROW, Fault, Refusal, Refused
from specflow.engines.scripts import Word
from specflow.engines.versions import others
from specflow.errors import RecipeError, UsageError
from specflow.facts import read
from specflow.foreign_files import parse_json, parse_yaml, read_bytes
from specflow.load import loads
from specflow.recipe import Recipe
from specflow.spans import Source, Span
from specflow.tables import ENGINES

_OPERAND = re.compile(rf"({'|'.join(ENGINES)})(@[^:\s]*)?:(.*)", re.DOTALL)
LARGEST_FILE = 1_000_000  # bytes of a script or a file of arguments
STDIN = "-"
MOST_ROUNDS = 3  # of leaving out what another version has
# What engines call the models.
TARGETS = ("model_path", "model")
DRAFTS = ("speculative_draft_model_path", "speculative_config.model", "spec_model")


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
    source = Source("--args", text or "") if file is None else Source(file, _text(file))
    asked, given = _read(asked, source)
    title, engine = asked.title, asked.engine
    if not given.args:
        raise RecipeError([*asked.findings, _nothing(asked, source)])
    try:
        found = engine.load(given.args, given.env, asked.version, _beside(asked, given))
    except Refusal as refusal:
        raise RecipeError([*asked.findings, *_unread(asked, refusal, source)]) from refusal
    found = _asked(found, given.requests)
    contradictions = gaps("SF118", found.refused, None)
    if contradictions:
        raise RecipeError([*asked.findings, *contradictions])
    findings = (
        *asked.findings,
        *given.findings,
        *(_not_literal(title, name, said) for name, said in given.unread.items()),
        *gaps("SF116", found.overruled, None),
        *gaps("SF113", found.lost, None),
        *gaps("SF112", (*found.approximate, *_written_before(found, given.files)), None),
    )
    return Foreign(asked, found, findings)


@dataclass(frozen=True)
class _Given:
    """Arguments and variables as they were read, and the files that a script writes.

    unread    arguments of a program that are no literals, and how they stand there
    requests  what requests ask for
    findings  what was left out on the way
    """

    args: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[Any, Any] = field(default_factory=dict)
    findings: tuple[Diagnostic, ...] = ()


# -- reading ---------------------------------------------------------------------------------------


def _read(asked: Asked, source: Source) -> tuple[Asked, _Given]:
    """What a text says, and by which version; where that is not the one asked for, by any."""
    try:
        return asked, _given(asked.engine, asked.version, source)
    except Refusal as refusal:
        if not asked.said:
            raise RecipeError(_unread(asked, refusal, source)) from refusal
        first = refusal
    for version in others(asked.said, asked.engine.versions):
        try:
            given = _given(asked.engine, version, source)
        except Refusal:
            continue
        because = f", as that of {asked.version} has not all of these flags"
        return judged_by(asked.engine, asked.said, version, because), given
    return asked, _in_parts(asked, source, first)


def _in_parts(asked: Asked, source: Source, first: Refusal) -> _Given:
    """What a text says but for the flags that only other versions than the nearest have."""
    left_out: list[Diagnostic] = []
    refusal, text = first, source.text
    for _ in range(MOST_ROUNDS):
        spans = [_span(fault, source) for fault in refusal.faults]
        having = [_having(asked, fault) for fault in refusal.faults]
        if not all(having) or not all(spans):
            raise RecipeError([*asked.findings, *_unread(asked, refusal, source)]) from refusal
        for fault, span, version in zip(refusal.faults, spans, having, strict=True):
            assert span is not None
            reason = f"{fault.refused.reason}; {version} has it, and it is left out"
            message = f"`{' '.join(fault.words)[:80]}`: {reason}"
            offer = f"name the version that runs, or `{asked.engine.name}@{version}`"
            left_out.append(finding("SF115", message, (Label(span, "", primary=True),), (), offer))
            blank = re.sub(r"[^\n]", " ", text[span.start : span.end]).replace("\n", " ")
            text = text[: span.start] + blank + text[span.end :]
        try:
            given = _given(asked.engine, asked.version, Source(source.name, text))
        except Refusal as again:
            refusal = again
            continue
        return replace(given, findings=tuple(left_out))
    raise RecipeError([*asked.findings, *_unread(asked, refusal, source)]) from refusal


def _having(asked: Asked, fault: Fault) -> str:
    """The first other version that takes an argument as it is written; empty for none."""
    for version in others(asked.said or asked.version, asked.engine.versions):
        with suppress(Refusal):
            if fault.words and asked.engine.read(shlex.join(fault.words), version)[0]:
                return version
    return ""


def _given(engine: Engine, version: str, source: Source) -> _Given:
    """Arguments and variables, of a text of any of the exported formats."""
    made = _program(engine, version, source)
    if made is not None:
        return made
    mapping = _mapping(source.name, source.text)
    if mapping is None:
        args, env = engine.read(source.text, version)
        files = command_line.line(engine.flags(version), source.text).files
        return _Given(args, env, files)
    if not isinstance(mapping.get("args"), dict):
        args = engine.typed(mapping, version)
        return _Given(engine.above(source.text) | args, show.variables_of(source.text))
    args = engine.typed(mapping["args"], version)
    requests = mapping.get("requests")
    return _Given(
        args,
        variables(mapping.get("env")),
        _strings(mapping.get("files")),
        requests=requests if isinstance(requests, dict) else {},
    )


def _strings(found: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _asked(found: Import, requests: Mapping[Any, Any]) -> Import:
    """With what requests ask for as the recipe's own sampling; the rest of it is lost."""
    if not requests:
        return found
    sampling, lost = from_requests(requests)
    written = dict(found.written)
    if sampling:
        written["sampling"] = {**written.get("sampling", {}), **sampling}
    return replace(found, written=written, lost=(*found.lost, *lost))


def _program(engine: Engine, version: str, source: Source) -> _Given | None:
    """The arguments in a Python program; None for what is none."""
    python = Path(source.name).suffix == ".py"
    if not python and source.name != STDIN:
        return None
    try:
        found = programs.program(source.text, engine.classes, engine.made)
    except SyntaxError as error:
        if python:
            where = f" at line {error.lineno}" if error.lineno else ""
            reason = f"it is no Python{where}: {error.msg}"
            raise Refusal(Refused(TABLE_ROW, reason, "SyntaxError")) from error
        return None
    if found is None:
        if python:
            made = " or ".join(f"{name}(...)" for name in engine.classes) or "nothing of Python's"
            reason = f"the program makes no {engine.title} engine: it is made by {made}"
            raise Refusal(Refused(TABLE_ROW, reason, "SystemExit"))
        return None
    args = engine.typed(found.args, version)
    return _Given(args, found.env, found.files, found.unread, found.requests)


def _text(file: str) -> str:
    if file == STDIN:
        return _decoded("standard input", sys.stdin.buffer.read(LARGEST_FILE + 1))
    path = Path(file)
    try:
        if not path.is_file():
            raise UsageError(f"`{file}` is no file", "name a script, or a file of arguments")
        said = read_bytes(path, LARGEST_FILE)
    except (OSError, ValueError) as error:
        raise UsageError(f"`{file}` cannot be read: {error}"[:300], "name a text file") from error
    return _decoded(f"`{file}`", said)


def _decoded(what: str, said: bytes) -> str:
    if len(said) > LARGEST_FILE:
        raise UsageError(f"{what} is larger than 1 MB", "arguments are a page of text")
    try:
        return said.decode("utf-8-sig").replace("\r\n", "\n")
    except ValueError as error:
        raise UsageError(f"{what} cannot be read: {error}"[:300], "name a text file") from error


def _mapping(file: str, said: str) -> Mapping[Any, Any] | None:
    """The mapping of a JSON or YAML file; None for a script."""
    suffix = Path(file).suffix
    if file == STDIN:
        suffix = ".json" if said.lstrip().startswith("{") else ""
    try:
        if suffix == ".json":
            found = parse_json(said)
        elif suffix in (".yaml", ".yml"):
            found = parse_yaml(said)
        else:
            return None
    except ValueError as error:
        raise UsageError(f"`{file}` cannot be read: {error}"[:300], "check its syntax") from error
    if not isinstance(found, dict):
        raise UsageError(f"`{file}` holds no flags by name", "write `flag: value`")
    return found


# -- what is told ----------------------------------------------------------------------------------


def _unread(asked: Asked, refusal: Refusal, source: Source) -> list[Diagnostic]:
    """Every argument at fault, where it stands, and the way out."""
    out = []
    for fault in refusal.faults:
        span = _span(fault, source)
        version = _having(asked, fault) if fault.words else ""
        offer = f"correct it, or leave it out: {asked.title} stops at it too"
        if version:
            offer = f"{version} has it: write `--engine {asked.engine.name}@{version}`"
        elif not fault.words:
            offer = "give the command line that starts the server, or a file of its arguments"
        labels = () if span is None else (Label(span, "", primary=True),)
        out.append(finding("SF114", fault.refused.reason, labels, (), offer))
    return out


def _span(fault: Fault, source: Source) -> Span | None:
    """Where an argument stands in a text, if that is known or can be found."""
    if not fault.words:
        return None
    first, last = fault.words[0], fault.words[-1]
    if isinstance(first, Word) and isinstance(last, Word):
        return Span(source, first.start, max(last.end, first.end))
    spelled = re.escape(first).replace("_", "[_-]")
    found = re.search(rf"(?<![\w-]){spelled}(?![\w-])", source.text)
    return None if found is None else Span(source, *found.span())


def _nothing(asked: Asked, source: Source) -> Diagnostic:
    """A text in which nothing of the engine was found is no recipe."""
    title = asked.engine.title
    what = "the command line" if source.name == "--args" else f"`{source.name}`"
    offer = "give the line that starts the server, or a file of its arguments by name"
    return finding("SF114", f"{what} has no argument of {title}", offer=offer)


def _not_literal(title: str, name: str, said: str) -> Diagnostic:
    message = f"`{name}`: {said} is no value that stands there; the recipe does not have it"
    return finding("SF113", message, offer=f"write the value itself, as {title} gets it")


def _written_before(found: Import, files: Mapping[str, str]) -> list[Gap]:
    """Files that the script writes and the recipe names: they have to be there before it."""
    text = "the script writes this file; the recipe takes one that is there"
    return [Gap(name, text) for name in files if name in _values(found.written)]


def _values(said: Any) -> Iterator[Any]:
    if isinstance(said, Mapping):
        for value in said.values():
            yield from _values(value)
    else:
        yield said


def _beside(asked: Asked, given: _Given) -> Beside:
    """What is known of the models that arguments name, by their configs."""
    inner = asked.engine.spread(given.args)
    target, draft = (
        next((str(inner[name]) for name in names if inner.get(name)), "")
        for names in (TARGETS, DRAFTS)
    )
    return Beside(given.files, config_of(target) if target else None, _own(draft))


def _own(model: str) -> Mapping[str, Any] | None:
    """The config of a draft that is here; what is recorded of one lacks keys."""
    return (read(model).config or None) if model else None
