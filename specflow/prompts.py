"""A file of prompts, line by line: what can be run, and what is wrong with the rest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specflow.diagnostics import Diagnostic, Label, Severity
from specflow.spans import Source, Span

LARGEST_FILE = 256_000_000  # bytes
SHOWN = 60  # characters of a line that a finding underlines
EXAMPLE = 'write {"id": "a", "prompt": "..."} on each line'
_HALF = re.compile("[\\ud800-\\udfff]")
# Settings of a line's own: type, lowest and highest value, as in `SamplingFields`.
SETTINGS: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0, 100),
    "top_k": (int, 0, 2**31),
    "top_p": (float, 1e-9, 1),
    "min_p": (float, 0, 1),
    "seed": (int, 0, 2**63 - 1),
}
KEYS = ("id", "prompt", "messages", "max_new_tokens", *SETTINGS)
RULES = {
    "SF100": (
        "unreadable-prompts",
        """A prompts file is a UTF-8 text of JSON lines.

## Why
It is read whole before any model loads, so that a wrong path costs no minute.

## Example
A file of empty lines.
```jsonl

```

Use instead:
```jsonl
{"id": "a", "prompt": "import os"}
```

## Fix
Name a file with one `{"id": ..., "prompt": ...}` or `{"id": ..., "messages": [...]}` a line.
""",
    ),
    "SF101": (
        "prompt-not-json",
        """Each line of a prompts file is one JSON object.

## Why
A line that cannot be read is told by its number; the other lines run, and the exit code is 1.

## Example
```jsonl
{id: a, prompt: import os}
```

Use instead:
```jsonl
{"id": "a", "prompt": "import os"}
```

## Fix
Write the line as JSON: text in double quotes, line breaks as `\\n`.
""",
    ),
    "SF102": (
        "prompt-without-text",
        """A prompt has either a `prompt` or `messages`, of the right types, and no other key.

## Why
A misspelt key would be a prompt that silently never runs, or runs without its limit.

## Example
```jsonl
{"id": "a", "promt": "import os"}
```

Use instead:
```jsonl
{"id": "a", "prompt": "import os"}
```

## Fix
Known keys are `id`, `prompt`, `messages`, `max_new_tokens`, `temperature`, `top_k`, `top_p`,
`min_p` and `seed`. A temperature of a prompt's own needs a recipe whose `verify.accept` draws; cuts
of its own need a `top_k`, `top_p` or `min_p` in the recipe: the step is made with them or without.
""",
    ),
    "SF103": (
        "prompt-too-long",
        """A prompt leaves room for at least one new token.

## Why
A request fills at most `run.max_length` positions, and no more than the model's context. Cutting a
prompt would answer a question nobody asked.

## Example
```sh
specflow run pico/ngram run.max_length=8 --prompt "def add(a, b): return a + b"
```

Use instead:
```sh
specflow run pico/ngram run.max_length=32 --prompt "def add(a, b): return a + b"
```

## Fix
Shorten the prompt, or raise `run.max_length` where the model's context allows.
""",
    ),
    "SF104": (
        "empty-prompt",
        """A prompt has a text.

## Why
An empty line of text is nearly always a mistake in the tool that wrote the file.

## Example
```jsonl
{"id": "a", "prompt": ""}
```

Use instead:
```jsonl
{"id": "a", "prompt": "import os"}
```

## Fix
Write a text, or remove the line.
""",
    ),
    "SF105": (
        "repeated-id",
        """Each prompt has an id of its own.

## Why
Completions are told apart by id, and the lossless check compares by id.

## Example
```jsonl
{"id": "a", "prompt": "import os"}
{"id": "a", "prompt": "import re"}
```

Use instead:
```jsonl
{"id": "a", "prompt": "import os"}
{"id": "b", "prompt": "import re"}
```

## Fix
Number the lines, or leave `id` out: the line's number stands for it.
""",
    ),
}


@dataclass(frozen=True)
class Prompt:
    """One line: a text, or the messages of a chat; where it stands."""

    id: str
    text: str
    messages: tuple[Mapping[str, str], ...]
    max_new_tokens: int | None
    where: Span | None
    settings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompts:
    """What can be run, what is at fault, and a digest of the file."""

    items: tuple[Prompt, ...]
    findings: tuple[Diagnostic, ...]
    sha256: str


def read(file: Path, limit: int | None = None) -> Prompts:
    """The prompts of a JSONL file; a line at fault is a finding, and the others still count."""
    try:
        if file.exists() and not (file.is_file() or file.is_dir()):
            return Prompts(
                (), (_finding("SF100", f"`{file}` is not a regular file", None, EXAMPLE),), ""
            )
        if file.is_file() and file.stat().st_size > LARGEST_FILE:
            return Prompts((), (_finding("SF100", f"`{file}` is larger than 256 MB"),), "")
        raw = file.read_bytes()
        text = raw.decode("utf-8-sig")
    except OSError as error:
        return Prompts((), (_finding("SF100", f"`{file}` cannot be read: {error.strerror}"),), "")
    except UnicodeDecodeError:
        return Prompts((), (_finding("SF100", f"`{file}` is not UTF-8"),), "")
    return _parse(Source(str(file), text), hashlib.sha256(raw).hexdigest(), limit)


def single(text: str) -> Prompts:
    """One prompt from the command line."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    fault = _text_fault(text)
    if fault:
        return Prompts(
            (), (_finding("SF104", f"the prompt {fault}", None, "write a text"),), digest
        )
    return Prompts((Prompt("prompt", text, (), None, None),), (), digest)


def _parse(source: Source, digest: str, limit: int | None) -> Prompts:
    items: list[Prompt] = []
    found: list[Diagnostic] = []
    seen: set[str] = set()
    for number in range(1, len(source.starts) + 1):
        line = source.line(number)
        if not line.strip() or (limit is not None and len(items) >= limit):
            continue
        start = source.starts[number - 1]
        where = Span(source, start, start + min(len(line), SHOWN))
        prompt = _line(line, number, where)
        if isinstance(prompt, Prompt) and prompt.id in seen:
            said = f"line {number} repeats the id `{prompt.id}`"
            prompt = _finding("SF105", said, where, "ids tell completions apart; write another")
        if isinstance(prompt, Prompt):
            seen.add(prompt.id)
            items.append(prompt)
        else:
            found.append(prompt)
    if not items and not found:
        found.append(_finding("SF100", f"`{source.name}` holds no prompt", None, EXAMPLE))
    return Prompts(tuple(items), tuple(found), digest)


def _line(line: str, number: int, where: Span) -> Prompt | Diagnostic:
    """A line as a prompt, or what is wrong with it."""
    try:
        said = json.loads(line, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        what = getattr(error, "msg", None) or str(error) or "too deep"
        message = f"line {number} is not JSON: {what.lower()[:100]}"
        return _finding("SF101", message, where, EXAMPLE)
    if not isinstance(said, dict):
        return _finding("SF101", f"line {number} is no JSON object", where, EXAMPLE)
    text = said.get("prompt", "")
    empty = _text_fault(text) if isinstance(text, str) and "prompt" in said else ""
    if empty:
        return _finding("SF104", f"line {number} {empty}", where, "write a text, or drop the line")
    fault = _fault(said)
    if fault:
        return _finding("SF102", f"line {number} {fault[0]}", where, fault[1])
    own = {name: said[name] for name in SETTINGS if name in said}
    messages = tuple(said.get("messages", ()))
    id_ = str(said.get("id", number))
    return Prompt(id_, text, messages, said.get("max_new_tokens"), where, own)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys stand once each; ValueError where one stands twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands twice")
    return made


def _text_fault(text: str) -> str:
    """Why a text is no prompt, or nothing."""
    if not text.strip():
        return "is empty" if not text else "is nothing but blanks"
    return "holds half of a character (a lone surrogate)" if _HALF.search(text) else ""


def _fault(said: Mapping[str, Any]) -> tuple[str, str] | None:  # noqa: PLR0911 - one a fault
    """What is wrong with a line's keys and the way out, or nothing."""
    unknown = sorted(set(said) - set(KEYS))
    if unknown:
        return f"has the unknown key `{unknown[0]}`", f"known keys are {', '.join(KEYS)}"
    if ("prompt" in said) == ("messages" in said):
        both = "both" if "prompt" in said else "neither"
        return f"has {both} of `prompt` and `messages`", "write one of them"
    if "prompt" in said and not isinstance(said["prompt"], str):
        return "has a prompt that is no text", EXAMPLE
    if "messages" in said and not _chat(said["messages"]):
        return "has messages that are no chat", 'write [{"role": "user", "content": "..."}, ...]'
    most = said.get("max_new_tokens")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        return (
            "has a `max_new_tokens` that is no positive number",
            "leave it out, or write 1 or more",
        )
    id_ = said.get("id", "")
    if not isinstance(id_, str | int) or isinstance(id_, bool) or _HALF.search(str(id_)):
        return "has an id that is neither text nor a number", "leave it out, or write a text"
    odd = [name for name in SETTINGS if name in said and not _setting(name, said[name])]
    if odd:
        _, least, most_ = SETTINGS[odd[0]]
        return (
            f"has a `{odd[0]}` that is out of range",
            f"write a number from {least:g} to {most_:g}",
        )
    return None


def _setting(name: str, value: Any) -> bool:
    """Whether a line's own setting is a number of its range."""
    kind, least, most = SETTINGS[name]
    known = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    return known and least <= value <= most


def _chat(messages: Any) -> bool:
    """Whether messages are a chat: at least one, each with a role and a content."""
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(
            isinstance(m, dict)
            and isinstance(m.get("role"), str)
            and isinstance(m.get("content"), str)
            and not _HALF.search(m["role"] + m["content"])
            for m in messages
        )
    )


def too_long(prompt: Prompt, tokens: int, positions: int) -> Diagnostic:
    """The finding for a prompt that leaves no room for a new token."""
    return _finding(
        "SF103",
        f"prompt `{prompt.id}` has {tokens} tokens, and a request may fill {positions} positions",
        prompt.where,
        "shorten it, or raise `run.max_length` where the model's context allows",
    )


def unusable(prompt: Prompt, message: str, help_: str) -> Diagnostic:
    """The finding for a prompt that the model's tokenizer or template cannot take."""
    return _finding("SF102", f"prompt `{prompt.id}` {message}", prompt.where, help_)


def _finding(
    code: str, message: str, where: Span | None = None, help_: str | None = None
) -> Diagnostic:
    labels: Sequence[Label] = (Label(where, "", primary=True),) if where else ()
    return Diagnostic(code, RULES[code][0], Severity.ERROR, message, tuple(labels), (), help_)
