"""What an engine makes of a recipe, as text and as plain values."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from specflow.columns import columns
from specflow.engines.base import Engine, Export
from specflow.engines.command_line import words
from specflow.engines.flags import Flags
from specflow.engines.outcome import Effective, Kind
from specflow.explain import spelled

COLUMNS = ("flag", "asked", "runs", "rule", "because")
NOTHING = "-"


def table(engine: Engine, version: str, platform: str, export: Export, found: Effective) -> str:
    """Asked, effective, by which rule; then side effects, variables and remarks."""
    export = replace(export, args=engine.spread(export.args))
    flags = engine.flags(version)
    about = [f for f in found.values if "spec" in f and _told(f, export, found)]
    lines = [f"{engine.name}@{version} on {platform}", ""]
    lines += columns([COLUMNS, *(_row(flags, name, export, found) for name in about)])
    side = [f for f in (*engine.side, *_others(export, found, engine)) if f not in about]
    rows = [_row(flags, name, export, found) for name in side]
    lines += ["", *columns([("beside", *COLUMNS[1:]), *rows])] if rows else []
    if export.env:
        lines += ["", *columns([(name, value) for name, value in export.env.items()])]
    for kind in Kind:
        said = [note for note in found.notes if note.kind is kind]
        lines += ["", f"{_HEADS[kind]}:"] if said else []
        lines += [f"  {note.text} ({note.rule})" for note in said]
    return "\n".join(lines) + "\n"


def _told(name: str, export: Export, found: Effective) -> bool:
    """Whether there is a word to say of a flag: it was asked, or it is no longer open."""
    decision = found.decision(name)
    return name in export.args or (decision is not None and found[name] != "auto")


_HEADS = {
    Kind.WARNS: "accepted without effect",
    Kind.AT_START: "accepted, and fails when the server starts or at the first use",
    Kind.UNCHECKED: "accepted, though nobody checks it",
    Kind.TOLD: "to know",
}


def _others(export: Export, found: Effective, engine: Engine) -> list[str]:
    decided = [d.field for d in found.decisions if "spec" not in d.field]
    models = ("model_path", "model", "device")
    given = [n for n in export.args if "spec" not in n and n in found.values]
    return [f for f in dict.fromkeys((*given, *decided)) if f not in (*engine.side, *models)]


def _row(flags: Flags, name: str, export: Export, found: Effective) -> tuple[str, ...]:
    decision = found.decision(name)
    asked = spelled(export.args[name]) if name in export.args else NOTHING
    runs = NOTHING if found[name] is None else spelled(found[name])
    option = flags[name].option if name in flags else name
    if decision is None:
        return (option, asked, runs, "", "" if name in export.args else "its default")
    over = "overrules what was asked: " if decision.overrides else ""
    return (option, asked, runs, decision.rule, over + decision.because)


def as_json(
    engine: Engine, version: str, platform: str, export: Export, found: Effective
) -> dict[str, Any]:
    """The same as plain values."""
    spread = engine.spread(export.args)
    shown = (*(name for name in spread if name in found.values), *engine.side)
    return {
        "engine": f"{engine.name}@{version}",
        "platform": platform,
        "asked": dict(export.args),
        "env": dict(export.env),
        "effective": {d.field: d.value for d in found.decisions}
        | {name: found[name] for name in shown},
        "decisions": [vars(d) for d in found.decisions],
        "notes": [vars(n) | {"kind": n.kind.value} for n in found.notes],
    }


def as_args(flags: Flags, export: Export) -> str:
    """One line, as it stands behind the command."""
    return shlex.join(words(flags, export.args))


def as_script(command: str, flags: Flags, export: Export) -> str:
    """A script that starts the server, with the files and variables it needs."""
    groups = [f"  {part}" for part in _grouped(words(flags, export.args))]
    return script(export, " \\\n".join([f"exec {command}", *groups]))


def script(export: Export, last: str) -> str:
    """A script that writes files, sets variables, and ends with a command."""
    lines = ["#!/bin/sh", "set -eu"]
    for name, text in export.files.items():
        lines += [f"cat > {shlex.quote(name)} <<'END'", *text.splitlines(), "END"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in export.env.items()]
    return "\n".join([*lines, last])


def _grouped(found: Sequence[str]) -> list[str]:
    """An option and its values on a line of their own."""
    out: list[list[str]] = []
    for word in found:
        if word.startswith("--"):
            out.append([])
        out[-1].append(word)
    return [shlex.join(group) for group in out]


def as_mapping(export: Export) -> str:
    """Arguments, variables and files as JSON."""
    parts = {
        "args": dict(export.args),
        "env": dict(export.env),
        "files": dict(export.files),
        "requests": dict(export.requests),
    }
    return json.dumps({k: v for k, v in parts.items() if v}, indent=2, ensure_ascii=False)


# Above the variables of a file that can hold none; what follows it is read back.
BESIDE = "# The server is started with these variables:"
_VARIABLE = re.compile(r'# ([A-Za-z_][A-Za-z0-9_]*)=(".*")')


def variables_above(export: Export) -> list[str]:
    """Variables as comments; JSON, since no text leaves its line in it."""
    said = [f"# {name}={json.dumps(value)}" for name, value in export.env.items()]
    return [BESIDE, *said] if said else []


def variables_of(text: str) -> dict[str, str]:
    """The variables that such comments say."""
    out: dict[str, str] = {}
    lines = text.split("\n")
    for line in lines[lines.index(BESIDE) + 1 :] if BESIDE in lines else ():
        found = _VARIABLE.fullmatch(line)
        if found is None:
            break
        with suppress(ValueError):
            out[found[1]] = json.loads(found[2])
    return out


def as_config(export: Export) -> str:
    """The file that `--config` of the server reads; variables as comments above."""
    lines = variables_above(export)
    named = {name.replace("_", "-"): value for name, value in export.args.items()}
    lines += [f"{name}: {json.dumps(value)}" for name, value in named.items()]
    return "\n".join(lines)


def preamble(export: Export) -> list[str]:
    """Lines of Python before an engine is made: its variables, and the files it reads."""
    lines = ["import os", ""] if export.env else []
    lines += [f"os.environ[{name!r}] = {value!r}" for name, value in export.env.items()]
    lines += ["from pathlib import Path", ""] if export.files else []
    lines += [f"Path({name!r}).write_text({text!r})" for name, text in export.files.items()]
    return lines
