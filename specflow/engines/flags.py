"""The flags of an engine: names, types, defaults, choices; what is written is held to them.

A table is a file of lines, one a flag, with tabs between: name, type (`?`: may be left open),
default as JSON, choices, other spellings on the command line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

from specflow.diagnostics import closest
from specflow.engines.outcome import Fault, Refusal, no_flag, no_value, shown

MOST_FAULTS = 50  # that are told at once: for each, the nearest flag and other versions are asked


@dataclass(frozen=True)
class Flag:
    """One argument of an engine; `default` is what is in force where nobody says anything."""

    name: str
    type: str
    default: Any
    choices: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")


class Flags:
    """Every flag of one version of an engine, by name.

    title    the engine and its version, as messages say it
    package  where its table lies, as `file` beside the code
    gone     flags of other versions, and what this one has for them
    bound    whether `--flag=value` is a way to write a flag
    short    whether the beginning of a flag stands for it on the command line, as argparse has it
    alone    whether a flag of any type may stand alone, for true
    server   words that start the server, as patterns; flags come after them
    """

    def __init__(
        self,
        title: str,
        package: str,
        file: str = "flags.tsv",
        *,
        gone: Mapping[str, str] | None = None,
        bound: bool = True,
        short: bool = False,
        alone: bool = False,
        server: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        self.title = title
        self.bound = bound
        self.short = short
        self.alone = alone
        self.server = server
        self._gone = gone or {}
        self._package = package
        self._file = file

    @cached_property
    def all(self) -> dict[str, Flag]:
        """The flags by name."""
        text = files(self._package).joinpath(self._file).read_text(encoding="utf-8")
        return {flag.name: flag for flag in map(_flag, text.splitlines())}

    @cached_property
    def spellings(self) -> dict[str, str]:
        """What a flag may be called on the command line, without dashes in front, and its name."""
        known = {spelled.lstrip("-"): f.name for f in self.all.values() for spelled in f.spellings}
        return {spelled.replace("-", "_"): name for spelled, name in known.items()}

    def __getitem__(self, name: str) -> Flag:
        return self.all[name]

    def __contains__(self, name: object) -> bool:
        return name in self.all

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """Every flag as it is where nobody says anything."""
        return {name: flag.default for name, flag in self.all.items()}

    def checked(self, args: Mapping[Any, Any]) -> dict[str, Any]:
        """The arguments by name, each known and of its type; refuses all that are not."""
        out: dict[str, Any] = {}
        faults = []
        for key, value in args.items():
            try:
                flag = self.all[self.name_of(key)]
                if value is not None:
                    out[flag.name] = _typed(flag, value)
            except Refusal as refusal:
                faults.append(Fault(refusal.refused, (shown_key(key),)))
            if len(faults) >= MOST_FAULTS:
                break
        if faults:
            raise Refusal.of(faults)
        return out

    def begun(self, option: str) -> str:
        """An option in full, where it is the beginning of one flag alone; else as it is.

        Raises `Refusal` where several flags begin so.
        """
        spelled = option.lstrip("-").replace("-", "_")
        exact = spelled in self.all or spelled in self.spellings
        if not self.short or exact or not option.startswith("--") or not spelled:
            return option
        # A key inside a flag's object is none of the parser's own; nor is a short form: `-tp`.
        found = [
            flag.name
            for flag in self.all.values()
            if ("." not in flag.name and flag.name.startswith(spelled))
            or any(each.startswith(f"--{spelled.replace('_', '-')}") for each in flag.spellings)
        ]
        if len(found) > 1:
            options = [self.all[name].option for name in found]
            more = f" and {len(options) - 6} more" if len(options) > 6 else ""
            said = f"`{option}` begins {len(options)} flags: {', '.join(options[:6])}{more}"
            raise Refusal(no_flag(said))
        return self.all[found[0]].option if found else option

    def name_of(self, key: Any) -> str:
        """A flag's name, from any spelling of it."""
        said = shown_key(key)
        spelled = said.lstrip("-").replace("-", "_")
        name = self.spellings.get(spelled, spelled)
        if name in self.all:
            return name
        near = closest(spelled[:60], [*self.all, *self.spellings])
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        if spelled in self._gone:
            hint = f": {self._gone[spelled]}"
        said = f"{self.title} has no flag `{spelled[:60]}`{hint}"
        raise Refusal(no_flag(said))


def folded(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they are nested: keys of an object, by dotted names, under the flag it is of."""
    out: dict[str, Any] = {}
    for name, value in args.items():
        outer, dot, inner = name.partition(".")
        if dot:
            out.setdefault(outer, {})[inner] = value
        else:
            out[name] = value
    return out


def shown_key(key: Any) -> str:
    """A key of arguments as text."""
    return key if isinstance(key, str) else shown(key)


def _flag(line: str) -> Flag:
    name, kind, default, choices, spellings = [*line.split("\t"), "", ""][:5]
    return Flag(name, kind, json.loads(default), tuple(choices.split()), tuple(spellings.split()))


def _typed(flag: Flag, value: Any) -> Any:
    kind = flag.type.rstrip("?")
    if unsaid := no_value(value):
        said = f"{flag.option}: {shown(value)} {unsaid}"
        raise Refusal(no_flag(said))
    if not _IS[kind](value):
        said = f"{flag.option} takes {_SAID[kind]}, not {shown(value)}"
        raise Refusal(no_flag(said))
    if flag.choices and value not in flag.choices:
        near = closest(str(value), flag.choices) or flag.choices[:6]
        hint = f"; did you mean {' or '.join(near)}?"
        said = f"{flag.option} has no choice {shown(value)}{hint}"
        raise Refusal(no_flag(said))
    return float(value) if kind == "float" else value


def _whole(value: Any) -> bool:
    """A whole number that can be printed, and its products too."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**2000


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
    "map": lambda value: isinstance(value, Mapping),
    "any": lambda value: True,  # noqa: ARG005
}
_SAID = {
    "int": "a whole number",
    "float": "a number",
    "bool": "no value, or true or false",
    "str": "text",
    "list": "a list",
    "map": "a JSON object",
    "any": "anything",
}
