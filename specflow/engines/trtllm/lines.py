"""Arguments of TensorRT-LLM as they are written: nested in a file, and on a command line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from specflow.engines import command_line
from specflow.engines.flags import folded
from specflow.engines.outcome import Refusal, Refused, shown
from specflow.engines.trtllm.releases import SPEC, Release, key
from specflow.foreign_files import parse_yaml, read_text

FILE = "trtllm.yaml"  # what an exported script calls the file of `--config`
_OPTIONS = ("config", "extra_llm_api_options", "extra_llm_api_options_yaml")
_SERVE = "trtllm-serve"


_ABOVE = re.compile(r'# trtllm-serve ("(?:[^"\\]|\\.)*"|\S+) --\w+ ' + re.escape(FILE))


def served_by(server: str, model: str, option: str) -> str:
    """The comment above an exported file: the command that names it, and the model.

    A name that a shell would quote is JSON, since no text leaves its line in it.
    """
    spelled = model if shlex.quote(model) == model else json.dumps(model)
    return f"# {server} {spelled} {option} {FILE}"


def model_above(text: str) -> str:
    """The model that such a comment on the first line names; empty where there is none."""
    found = _ABOVE.fullmatch(text.partition("\n")[0].rstrip("\r"))
    if found is None:
        return ""
    try:
        return str(json.loads(found[1])) if found[1].startswith('"') else found[1]
    except ValueError:
        return ""


def spread(args: Mapping[Any, Any]) -> dict[str, Any]:
    """Arguments by name, the keys of `speculative_config` by their dotted names."""
    out: dict[str, Any] = {}
    for name, value in args.items():
        if name == SPEC and isinstance(value, Mapping):
            out |= {key(str(inner)): each for inner, each in value.items()}
        elif name == SPEC and value is not None:
            _refuse(f"{SPEC} holds keys, not {shown(value)}")
        elif name != SPEC:
            out[str(name)] = value
    return out


def checked(args: Mapping[Any, Any], release: Release) -> dict[str, Any]:
    """Nested arguments, each known and of its type; refuses the first that is not."""
    return folded(release.flags.checked(_scheduled(spread(args))))


def typed(args: Mapping[Any, Any], release: Release) -> dict[str, Any]:
    """The same, of a file: text for a number is a number."""
    return folded(command_line.typed(release.flags, _scheduled(spread(args))))


def _size(key: Any) -> Any:
    """A batch size that JSON has as text; one of a hundred digits is none."""
    said = isinstance(key, str) and key.isdecimal() and len(key) < 10
    return int(key) if said else key


def _scheduled(args: dict[str, Any]) -> dict[str, Any]:
    """A schedule's batch sizes are whole numbers; JSON has them as text."""
    name = key("draft_len_schedule")
    said = args.get(name)
    if isinstance(said, Mapping):
        pairs = {_size(k): v for k, v in said.items()}
        args[name] = pairs
        if not all(_count(k) and k > 0 and _count(v) for k, v in pairs.items()):
            _refuse("draft_len_schedule holds guesses by batch size, both whole numbers")
    return args


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read(text: str, release: Release) -> tuple[dict[str, Any], dict[str, str]]:
    """A command line, or a script that writes its file: nested arguments, and variables.

    `trtllm-serve MODEL --config FILE`: the file is read; what stands on the line goes before it.
    """
    line = command_line.line(release.flags, text)
    found = [word for word in line.words if not _is_variable(word, line.env)]
    model, rest = _served(found)
    files, rest = _files(rest)
    args: dict[str, Any] = {}
    for name in files:
        args |= typed(_loaded(name, line.files), release)
    said = command_line.arguments(release.flags, rest)
    if model:
        said["model"] = model
    return args | folded(said), dict(line.env)


def _is_variable(word: str, env: Mapping[str, str]) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name in env


def _served(found: Sequence[str]) -> tuple[str, list[str]]:
    """The model that is served, and the words behind it."""
    words = list(found)
    at = next((i for i, word in enumerate(words) if word.rpartition("/")[2] == _SERVE), None)
    if at is None:
        return "", words
    rest = words[at + 1 :]
    if rest and rest[0] == "serve":
        rest = rest[1:]
    if rest and not rest[0].startswith("-"):
        return str(rest[0]), rest[1:]
    return "", rest


def _files(found: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files of arguments that a line names, and the words that are left."""
    names, rest, words = [], [], iter(found)
    for word in words:
        option, bound, value = word.partition("=")
        if option.lstrip("-").replace("-", "_") not in _OPTIONS or not option.startswith("--"):
            rest.append(word)
        elif bound:
            names.append(value)
        else:
            name = next(words, None)
            if name is None:
                _refuse(f"`{option}` names no file")
            names.append(name)
    return names, rest


def _loaded(name: str, here: Mapping[str, str]) -> Mapping[Any, Any]:
    """The mapping of a YAML file, of the script itself or beside it."""
    try:
        found = parse_yaml(here[name] if name in here else read_text(Path(name)))
    except (OSError, ValueError) as error:
        _refuse(f"`{name}` cannot be read: {error}"[:300])
    if not isinstance(found, Mapping):
        _refuse(f"`{name}` holds no keys")
    return found


def _refuse(reason: str) -> NoReturn:
    raise Refusal(Refused("T1", reason))
