"""Arguments as a command line has them: written out, and read back."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from specflow.engines.flags import TABLE_ROW, Flag, Flags
from specflow.engines.outcome import Refusal, Refused

_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.S)


def words(flags: Flags, args: Mapping[str, Any]) -> list[str]:
    """Arguments as words: `--tp-size 2 --speculative-adaptive`."""
    out: list[str] = []
    for name, value in args.items():
        flag = flags[name]
        if value is None:
            continue
        if value is True:
            out.append(flag.option)
        elif value is False:
            out += [f"--no-{flag.option[2:]}"] if flag.default is not False else []
        elif isinstance(value, list | tuple):
            out += [flag.option, *map(str, value)]
        else:
            shown = json.dumps(value) if isinstance(value, Mapping) else str(value)
            # `--flag=-1`: a value that looks like an option is bound to its own.
            bound = flags.bound and shown.startswith("-")
            out += [f"{flag.option}={shown}"] if bound else [flag.option, shown]
    return out


def read(flags: Flags, text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments and variables of a command line; other words before the flags are passed by."""
    env, found = split(text)
    # `python -m sglang.launch_server --tp-size 2`: what starts the server is no flag of it.
    start = (i for i, word in enumerate(found) if _starts(flags, word))
    return _flags(flags, found[next(start, len(found)) :]), env


def _starts(flags: Flags, word: str) -> bool:
    """Whether a word is a flag: a long one, or a short one that the engine has."""
    return word.startswith("--") or (_is_option(word) and word.lstrip("-") in flags.spellings)


def split(text: str) -> tuple[dict[str, str], list[str]]:
    """The variables in front of a command line, and its words."""
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
    return env, found


def typed(flags: Flags, args: Mapping[Any, Any]) -> dict[str, Any]:
    """Arguments of a file, by name; text for a number is a number, as on the command line."""
    out = {}
    for key, value in args.items():
        flag = flags[flags.name_of(key)]
        out[flag.name] = _value(flag, [value]) if isinstance(value, str) else value
    return flags.checked(out)


def _flags(flags: Flags, found: Sequence[str]) -> dict[str, Any]:
    args: dict[str, Any] = {}
    i = 0
    while i < len(found):
        word, values, i = found[i], [], i + 1
        if not _is_option(word):
            _refuse(f"`{word[:60]}` is no flag")
        option, bound, value = word.partition("=") if flags.bound else (word, "", "")
        if bound:
            values = [value]
        while not bound and i < len(found) and not _is_option(found[i]):
            values.append(found[i])
            i += 1
        flag, off = _named(flags, option)
        args[flag.name] = False if off else _value(flag, values)
    return flags.checked(args)


def _is_option(word: str) -> bool:
    """`--flag` or `-m`; `-1` is a number."""
    return word.startswith("--") or (len(word) > 1 and word[0] == "-" and word[1].isalpha())


def _named(flags: Flags, option: str) -> tuple[Flag, bool]:
    """A flag by its option, and whether it is the `--no-` of one."""
    bare = option.lstrip("-").replace("-", "_")
    positive = bare.removeprefix("no_")
    if positive != bare and positive in flags and flags[positive].type.startswith("bool"):
        return flags[positive], True
    return flags[flags.name_of(option)], False


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
    if kind == "map":
        return _object(flag, word)
    return _number(word) if kind in ("int", "float") else word


def _object(flag: Flag, word: str) -> Any:
    """A JSON object, as a command line quotes it."""
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        _refuse(f"{flag.option} takes a JSON object, not {word[:80]!r}")


def _number(word: str) -> Any:
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def _refuse(reason: str) -> NoReturn:
    raise Refusal(Refused(TABLE_ROW, reason, "SystemExit"))
