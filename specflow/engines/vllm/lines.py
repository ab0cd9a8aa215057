"""vLLM's arguments as they are written, and flat: a key of the JSON object as a flag of its own.

`--speculative-config '{"method": "eagle3"}'`, `--speculative-config.method eagle3` and `-sc.method
eagle3` say the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specflow.engines import command_line
from specflow.engines.flags import Flags
from specflow.engines.outcome import Refusal, Refused
from specflow.engines.scripts import Word
from specflow.engines.vllm.versions import SPEC, flags_of, key, unknown_key

_SHORT = re.compile(r"-{1,2}(sc|speculative[-_]config)\.(.+)", re.S)
_SHOWN = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)([kKmMgGtT])", re.ASCII)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def flat(args: Mapping[Any, Any], version: str) -> dict[str, Any]:
    """Arguments by name, the keys of the JSON object among them; refuses what is none."""
    flags = flags_of(version)
    out: dict[str, Any] = {}
    for name, value in args.items():
        known = _name(str(name), version)
        if known == SPEC:
            out |= {key(k): v for k, v in _keys(value, version).items()}
        else:
            out[known] = value
    return flags.checked({name: _listed(flags, name, value) for name, value in out.items()})


def spread(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments flat that are known already: every key of the JSON object by its dotted name."""
    inner = args.get(SPEC) or {}
    rest = {name: value for name, value in args.items() if name != SPEC}
    return rest | {key(name): value for name, value in inner.items()}


def read(text: str, version: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A command line as arguments by name and variables; `vllm serve MODEL` names the model.

    The JSON object stays one argument beside dotted keys: whoever reads them decides.
    """
    flags = flags_of(version)
    found = command_line.line(flags, text)
    model, rest = _served([word for word in found.words if not _is_variable(word, found.env)])
    args = command_line.arguments(
        flags, [_number(word) for word in rest], lambda option: _plain(option, version)
    )
    args = {name: _listed(flags, name, value) for name, value in args.items()}
    return ({"model": model} if model else {}) | args, dict(found.env)


def typed(args: Mapping[Any, Any], version: str) -> dict[str, Any]:
    """Arguments of a file, by name; text for a number is a number, as on the command line."""
    flags = flags_of(version)
    given = {_name(str(name), version): value for name, value in args.items()}
    return command_line.typed(
        flags, {name: _listed(flags, name, value) for name, value in given.items()}
    )


def _served(words: Sequence[str]) -> tuple[str, list[str]]:
    """The model that stands behind `serve`, and the words without it."""
    if "serve" not in words:
        return "", list(words)
    at = list(words).index("serve") + 1
    if at < len(words) and not words[at].startswith("-"):
        return str(words[at]), [*words[:at], *words[at + 1 :]]
    return "", list(words)


def _is_variable(word: str, env: Mapping[str, str]) -> bool:
    name, equals, value = word.partition("=")
    return bool(equals) and env.get(name) == value


def _plain(option: str, version: str) -> str:
    """An option as the table of flags spells it: dotted keys in full."""
    dotted = _SHORT.fullmatch(option)
    if not dotted:
        return option
    name = dotted[2].rstrip("+").replace("-", "_")
    if key(name) not in flags_of(version):
        raise unknown_key(version, name)
    return "--" + key(name)


def _number(word: str) -> str:
    """A word as it stands, and `8k` as a number at the same place."""
    shown = _SHOWN.fullmatch(word)
    if not shown:
        return word
    base = 1000 if shown[2].islower() else 1024
    number = str(int(float(shown[1]) * base ** _POWERS[shown[2].lower()]))
    return Word(number, word.start, word.end) if isinstance(word, Word) else number


def _name(spelled: str, version: str) -> str:
    """A flag's own name from any spelling of it."""
    dotted = _SHORT.fullmatch(spelled if spelled.startswith("-") else f"--{spelled}")
    if not dotted:
        return flags_of(version).name_of(spelled)
    name = dotted[2].replace("-", "_")
    if key(name) not in flags_of(version):
        raise unknown_key(version, name)
    return key(name)


def _keys(value: Any, version: str) -> dict[str, Any]:
    """The keys of the JSON object, which may be text; refuses one that the version has not."""
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
    if value is None:
        return {}
    if not isinstance(found, Mapping):
        raise Refusal(Refused("V1", f"--speculative-config takes a JSON object, not {value!r:.80}"))
    out = {}
    for name, inner in found.items():
        plain = str(name).replace("-", "_")
        if key(plain) not in flags_of(version):
            raise unknown_key(version, plain)
        out[plain] = inner
    return out


def _listed(flags: Flags, name: str, value: Any) -> Any:
    """A list that a command line has as one JSON text."""
    if name not in flags or not flags[name].type.startswith("list"):
        return value
    only = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(only, str) or not only.startswith("["):
        return value
    try:
        return json.loads(only)
    except (ValueError, RecursionError):
        return value
