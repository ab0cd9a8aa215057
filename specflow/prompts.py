"""A file of prompts, line by line: what can be run, and what is wrong with the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specflow.diagnostics import Diagnostic, Label, Severity
from specflow.spans import Source, Span

LARGEST_FILE = 256_000_000  # bytes
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

## Fix
Name a file with one `{"id": ..., "prompt": ...}` or `{"id": ..., "messages": [...]}` a line.
""",
    ),
    "SF101": (
        "prompt-not-json",
        """Each line of a prompts file is one JSON object.

## Why
A line that cannot be read is told by its number; the other lines run, and the exit code is 1.

## Fix
Write the line as JSON: text in double quotes, line breaks as `\\n`.
""",
    ),
    "SF102": (
        "prompt-without-text",
        """A prompt has either a `prompt` or `messages`, of the right types, and no other key.

## Why
A misspelt key would be a prompt that silently never runs, or runs without its limit.

## Fix
Known keys are `id`, `prompt`, `messages` and `max_new_tokens`.
""",
    ),
    "SF103": (
        "prompt-too-long",
        """A prompt leaves room for at least one new token.

## Why
A request fills at most `run.max_length` positions, and no more than the model's context. Cutting a
prompt would answer a question nobody asked.

## Fix
Shorten the prompt, or raise `run.max_length` where the model's context allows.
""",
    ),
    "SF104": (
        "empty-prompt",
        """A prompt has a text.

## Why
An empty line of text is nearly always a mistake in the tool that wrote the file.

## Fix
Write a text, or remove the line.
""",
    ),
    "SF105": (
        "repeated-id",
        """Each prompt has an id of its own.

## Why
Completions are told apart by id, and the lossless check compares by id.

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
    if not text.strip():
        return Prompts((), (_finding("SF104", "the prompt is empty"),), digest)
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
        where = Span(source, start, start + len(line))
        prompt = _line(line, number, where)
        if isinstance(prompt, Prompt) and prompt.id in seen:
            prompt = _finding(
                "SF105",
                f"line {number} repeats the id `{prompt.id}`",
                where,
                "ids name completions",
            )
        if isinstance(prompt, Prompt):
            seen.add(prompt.id)
            items.append(prompt)
        else:
            found.append(prompt)
    if not items and not found:
        found.append(_finding("SF100", f"`{source.name}` holds no prompt"))
    return Prompts(tuple(items), tuple(found), digest)


def _line(line: str, number: int, where: Span) -> Prompt | Diagnostic:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        what = getattr(error, "msg", "too deep").lower()
        return _finding(
            "SF101", f"line {number} is not JSON: {what}", where, "the other lines run without it"
        )
    if not isinstance(said, dict):
        return _finding(
            "SF101", f"line {number} is no JSON object", where, 'write {"id": ..., "prompt": ...}'
        )
    unknown = sorted(set(said) - set(KEYS))
    if unknown:
        return _finding(
            "SF102",
            f"line {number} has the unknown key `{unknown[0]}`",
            where,
            f"known keys are {', '.join(KEYS)}",
        )
    fault = _fault(said)
    if fault:
        return _finding(
            "SF102", f"line {number} {fault}", where, 'write "prompt" or "messages", not both'
        )
    text = said.get("prompt", "")
    messages = tuple(said.get("messages", ()))
    if "prompt" in said and not text.strip():
        return _finding(
            "SF104", f"line {number} has an empty prompt", where, "write a text, or remove the line"
        )
    own = {name: said[name] for name in SETTINGS if name in said}
    return Prompt(
        str(said.get("id", number)), text, messages, said.get("max_new_tokens"), where, own
    )


def _fault(said: Mapping[str, Any]) -> str:
    """What is wrong with a line's keys, or nothing."""
    if ("prompt" in said) == ("messages" in said):
        return (
            "has neither `prompt` nor `messages`"
            if "prompt" not in said
            else "has both `prompt` and `messages`"
        )
    if "prompt" in said and not isinstance(said["prompt"], str):
        return "has a prompt that is no text"
    if "messages" in said and not _chat(said["messages"]):
        return "has messages that are not a list of {role, content}"
    most = said.get("max_new_tokens")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        return "has a `max_new_tokens` that is no positive number"
    if not isinstance(said.get("id", ""), str | int):
        return "has an id that is neither text nor a number"
    odd = [name for name in SETTINGS if name in said and not _setting(name, said[name])]
    return f"has a `{odd[0]}` that is out of range" if odd else ""


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
