"""Arguments as a command line has them: written out, and read back."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from specflow.engines.outcome import Refusal, Refused
from specflow.engines.sglang_flags import Flag, checked, flags, name_of

_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.S)


def words(args: Mapping[str, Any]) -> list[str]:
    """Arguments as words: `--tp-size 2 --speculative-adaptive`."""
    out: list[str] = []
    for name, value in args.items():
        flag = flags()[name]
        if value is None:
            continue
        if value is True:
            out.append(flag.option)
        elif value is False:
            out += [f"--no-{flag.option[2:]}"] if flag.default is not False else []
        elif isinstance(value, list | tuple):
            out += [flag.option, *map(str, value)]
        else:
            shown = json.dumps(value) if isinstance(value, dict) else str(value)
            # `--flag=-1`: a value that looks like an option is bound to its own.
            out += [f"{flag.option}={shown}"] if shown.startswith("-") else [flag.option, shown]
    return out


def read(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments and variables of a command line; other words before the flags are passed by."""
    try:
        # A line that ends in a backslash goes on in the next, as in a script.
        found = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        _refuse(f"the command line does not end: {error}")
    env: dict[str, str] = {}
    for word in found:
        if word.startswith("-"):
            break
        variable = _VARIABLE.fullmatch(word)
        if variable:
            env[variable[1]] = variable[2]
    start = next((i for i, word in enumerate(found) if word.startswith("--")), len(found))
    return _flags(found[start:]), env


def typed(args: Mapping[Any, Any]) -> dict[str, Any]:
    """Arguments of a file, by name; text for a number is a number, as on the command line."""
    out = {}
    for key, value in args.items():
        flag = flags()[name_of(key)]
        out[flag.name] = _value(flag, [value]) if isinstance(value, str) else value
    return checked(out)


def _flags(found: Sequence[str]) -> dict[str, Any]:
    args: dict[str, Any] = {}
    i = 0
    while i < len(found):
        word, values, i = found[i], [], i + 1
        if not word.startswith("--"):
            _refuse(f"`{word[:60]}` is no flag")
        option, bound, value = word.partition("=")
        if bound:
            values = [value]
        while not bound and i < len(found) and not found[i].startswith("--"):
            values.append(found[i])
            i += 1
        flag, off = _named(option)
        args[flag.name] = False if off else _value(flag, values)
    return checked(args)


def _named(option: str) -> tuple[Flag, bool]:
    """A flag by its option, and whether it is the `--no-` of one."""
    bare = option.lstrip("-").replace("-", "_")
    positive = bare.removeprefix("no_")
    if positive != bare and positive in flags() and flags()[positive].type.startswith("bool"):
        return flags()[positive], True
    return flags()[name_of(option)], False


def _value(flag: Flag, values: Sequence[str]) -> Any:
    kind = flag.type.rstrip("?")
    if kind == "bool" and not values:
        return True
    if kind == "list":
        return [_number(v) for v in values]
    if kind == "any":
        return values[0] if len(values) == 1 else list(values)
    if len(values) != 1:
        _refuse(f"{flag.option} takes one value, not {len(values)}")
    word = values[0]
    if kind == "bool":
        known = {"true": True, "false": False}
        return known.get(word.lower(), word)
    return _number(word) if kind in ("int", "float") else word


def _number(word: str) -> Any:
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def _refuse(reason: str) -> NoReturn:
    raise Refusal(Refused("1.1", reason, "SystemExit"))
