"""Flags of SGLang 0.5.23: names, types, defaults, choices; what is written is held to them.

The table beside this file has a line a flag: name, type (`?`: may be left open), default as JSON,
choices, other spellings on the command line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from specflow.diagnostics import closest
from specflow.engines.outcome import Refusal, Refused

TABLE = "sglang_flags.tsv"


@dataclass(frozen=True)
class Flag:
    """One argument of the engine."""

    name: str
    type: str
    default: Any
    choices: tuple[str, ...]
    spellings: tuple[str, ...]

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")


@cache
def flags() -> dict[str, Flag]:
    """Every flag by name."""
    text = files("specflow.engines").joinpath(TABLE).read_text(encoding="utf-8")
    return {flag.name: flag for flag in map(_flag, text.splitlines())}


def _flag(line: str) -> Flag:
    name, kind, default, choices, spellings = [*line.split("\t"), "", ""][:5]
    return Flag(name, kind, json.loads(default), tuple(choices.split()), tuple(spellings.split()))


@cache
def spellings() -> dict[str, str]:
    """What a flag may be called on the command line, without dashes in front, and its name."""
    known = {spelled.lstrip("-"): f.name for f in flags().values() for spelled in f.spellings}
    return {spelled.replace("-", "_"): name for spelled, name in known.items()}


def defaults() -> dict[str, Any]:
    """Every flag as it is where nobody says anything."""
    return {name: flag.default for name, flag in flags().items()}


def checked(args: Mapping[Any, Any]) -> dict[str, Any]:
    """The arguments by name, each known and of its type; refuses the first that is not."""
    out: dict[str, Any] = {}
    for key, value in args.items():
        flag = flags()[name_of(key)]
        if value is not None:
            out[flag.name] = _typed(flag, value)
    return out


def name_of(key: Any) -> str:
    """A flag's name, from any spelling of it."""
    spelled = str(key).lstrip("-").replace("-", "_")
    name = spellings().get(spelled, spelled)
    if name in flags():
        return name
    near = closest(spelled, [*flags(), *spellings()])
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise Refusal(Refused("1.1", f"SGLang 0.5.23 has no flag `{spelled}`{hint}", "SystemExit"))


def _typed(flag: Flag, value: Any) -> Any:
    kind = flag.type.rstrip("?")
    if not _IS[kind](value):
        said = f"{value!r}"[:60]
        raise Refusal(
            Refused("1.1", f"{flag.option} takes {_SAID[kind]}, not {said}", "SystemExit")
        )
    if flag.choices and value not in flag.choices:
        near = closest(value, flag.choices) or flag.choices[:6]
        hint = f"; did you mean {' or '.join(near)}?"
        said = f"{flag.option} has no choice {value!r}{hint}"
        raise Refusal(Refused("1.1", said, "SystemExit"))
    return float(value) if kind == "float" else value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return (_whole(value) and abs(value) < 2**1000) or (
        isinstance(value, float) and not math.isnan(value)
    )


_IS: dict[str, Callable[[Any], bool]] = {
    "int": _whole,
    "float": _real,
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "list": lambda value: isinstance(value, list | tuple),
    "any": lambda value: True,  # noqa: ARG005
}
_SAID = {
    "int": "a whole number",
    "float": "a number",
    "bool": "no value, or true or false",
    "str": "text",
    "list": "a list",
    "any": "anything",
}
