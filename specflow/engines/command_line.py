"""Arguments as a command line has them: written out, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from specflow.engines import scripts
from specflow.engines.flags import MOST_FAULTS, Flag, Flags, shown_key
from specflow.engines.outcome import Fault, Refusal, no_flag
from specflow.engines.scripts import Line


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
        elif isinstance(value, list | tuple) and flag.type.startswith("list") and _nested(value):
            out += [flag.option, json.dumps(value)]
        elif isinstance(value, list | tuple):
            out += [flag.option, *map(_word, value)]
        else:
            shown = _word(value)
            # `--flag=-1`: a value that looks like an option is bound to its own.
            bound = flags.bound and shown.startswith("-")
            out += [f"{flag.option}={shown}"] if bound else [flag.option, shown]
    return out


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else str(value)


def _nested(values: Sequence[Any]) -> bool:
    return any(isinstance(each, Mapping | list | tuple) for each in values)


def sayable(flags: Flags, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, each of which comes back from its words; refuses all that would not.

    A list gives every item a word, and a word that begins as a flag does ends it.
    """
    faults = []
    for name, value in args.items():
        flag, reason = flags[name], ""
        several = isinstance(value, list | tuple)
        plain = several and not (flag.type.startswith("list") and _nested(value))
        taken = next((v for v in value if _is_option(_word(v))), None) if plain else None
        if taken is not None:
            reason = f"{flag.option}: the item {taken!r:.60} would be read as a flag"
        elif flag.type.startswith("any") and value is True and not flags.alone:
            reason = f"{flag.option} takes values, and `true` is none"
        if reason:
            faults.append(Fault(no_flag(reason), (name,)))
    if faults:
        raise Refusal.of(faults)
    return dict(args)


def read(flags: Flags, text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments and variables of a command line; other words before the flags are passed by."""
    found = line(flags, text)
    return arguments(flags, found.words), dict(found.env)


def line(flags: Flags, text: str) -> Line:
    """The words of a line or a script that start the server, with its variables and files."""
    return scripts.line(text, flags.server, lambda word: _starts(flags, word))


def typed(flags: Flags, args: Mapping[Any, Any]) -> dict[str, Any]:
    """Arguments of a file, by name; text for a number is a number, as on the command line."""
    out: dict[str, Any] = {}
    faults: list[Fault] = []
    for key, value in args.items():
        try:
            flag = flags[flags.name_of(key)]
            out |= flags.checked({flag.name: _of_text(flag, value)})
        except Refusal as refusal:
            faults.append(Fault(refusal.refused, (shown_key(key),)))
        if len(faults) >= MOST_FAULTS:
            break
    if faults:
        raise Refusal.of(faults)
    return out


def _of_text(flag: Flag, value: Any) -> Any:
    return _value(flag, [value]) if isinstance(value, str) else value


def _plain(option: str) -> str:
    return option


def arguments(
    flags: Flags, found: Sequence[str], spelled: Callable[[str], str] = _plain
) -> dict[str, Any]:
    """Arguments by name, from the first flag on; refuses all that are none at once.

    spelled  an option as the table of flags has it
    """
    # `python -m sglang.launch_server --tp-size 2`: what starts the server is no flag of it.
    i = next((i for i, word in enumerate(found) if _starts(flags, word)), len(found))
    args: dict[str, Any] = {}
    faults: list[Fault] = []
    while i < len(found) and len(faults) < MOST_FAULTS:
        word, values, i = found[i], [], i + 1
        if not _is_option(word):
            reason = f"`{word[:60]}` is no flag"
            faults.append(Fault(no_flag(reason), (word,)))
            continue
        option, bound, value = word.partition("=") if flags.bound else (word, "", "")
        group = [word]
        if bound:
            values = [value]
        while not bound and i < len(found) and not _is_option(found[i]):
            values.append(found[i])
            i += 1
        group += [] if bound else values
        try:
            flag, off = _named(flags, spelled(option))
            args |= flags.checked(
                {flag.name: False if off else _value(flag, values, alone=flags.alone)}
            )
        except Refusal as refusal:
            faults.append(Fault(refusal.refused, tuple(group)))
    if faults:
        raise Refusal.of(faults)
    return args


def _starts(flags: Flags, word: str) -> bool:
    """Whether a word is a flag: a long one, or a short one that the engine has."""
    return word.startswith("--") or (_is_option(word) and word.lstrip("-") in flags.spellings)


def _is_option(word: str) -> bool:
    """`--flag` or `-m`; `-1` is a number."""
    return word.startswith("--") or (len(word) > 1 and word[0] == "-" and word[1].isalpha())


def _named(flags: Flags, option: str) -> tuple[Flag, bool]:
    """A flag by its option, and whether it is the `--no-` of one."""
    bare = option.lstrip("-").replace("-", "_")
    positive = bare.removeprefix("no_")
    if positive != bare and positive in flags and flags[positive].type.startswith("bool"):
        return flags[positive], True
    return flags[flags.name_of(flags.begun(option))], False


def _value(flag: Flag, values: Sequence[str], *, alone: bool = False) -> Any:
    kind = flag.type.rstrip("?")
    if kind == "bool" and not values:
        return True
    if kind == "list":
        found = _structure(values[0]) if len(values) == 1 else None
        return found if isinstance(found, list) else [_number(v) for v in values]
    if kind == "any":
        return _any(values, alone=alone)
    if len(values) != 1:
        _refuse(f"{flag.option} takes one value, not {len(values)}")
    word = str(values[0])
    if kind == "bool":
        known = {"true": True, "false": False}
        return known.get(word.lower(), word)
    if kind == "map":
        return _object(flag, word)
    return _number(word) if kind in ("int", "float") else word


def _any(values: Sequence[str], *, alone: bool) -> Any:
    if alone and not values:
        return True
    found = [_structured(str(each)) for each in values]
    return found[0] if len(found) == 1 else found


def _structured(word: str) -> Any:
    """A JSON object as one; any other word as it stands."""
    found = _structure(word) if word.startswith("{") else None
    return word if found is None else found


def _structure(word: str) -> Any:
    """A JSON object, or a list with structure in it; None for any other word."""
    try:
        found = json.loads(word) if word[:1] in ("{", "[") else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) or (found and _nested(found)) else None


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
    return str(word)


def _refuse(reason: str) -> NoReturn:
    raise Refusal(no_flag(reason))
