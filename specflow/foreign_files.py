"""Files that others wrote, read up to a bound; YAML and JSON that say each key once.

Errors are OSError and ValueError, whose text goes behind "cannot be read: ".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

DEEPEST = 100  # lists in lists
LARGEST = 1_000_000  # bytes of what people write


def read_bytes(file: Path, most: int = LARGEST) -> bytes:
    """All of a regular file; ValueError where it is none, or longer.

    A pipe would be waited for, and a device may have no end.
    """
    if file.exists() and not file.is_file():
        raise ValueError("it is a folder" if file.is_dir() else "it is no regular file")
    with file.open("rb") as opened:  # some files say no size until they are read
        content = opened.read(min(file.stat().st_size, most) + 1)
        content += opened.read(most) if len(content) <= most else b""
    if len(content) > most:
        raise ValueError(f"it is larger than {most // 10**6} MB")
    return content


def read_text(file: Path, most: int = LARGEST) -> str:
    """The text of a regular file in UTF-8."""
    return read_bytes(file, most).decode("utf-8")


def parse_yaml(text: str) -> Any:
    """A YAML text; ValueError for an alias, a repeated key, and what is nested too deep.

    An alias stands for all of what its anchor names: a page of them unfolds to gigabytes.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except (RecursionError, yaml.YAMLError) as error:
        raise ValueError(" ".join(str(error).split()) or "it is nested too deep") from error


def _check(events: Iterable[Any]) -> None:
    """Refuse what a page of YAML has no use for, before anything is built of it."""
    around: list[set[str] | None] = []  # the keys of each mapping that is open; None for a list
    is_key: list[bool] = []
    for event in events:
        line = event.start_mark.line + 1
        if getattr(event, "anchor", None) is not None:  # an alias has one too
            raise ValueError(f"line {line} has an anchor or an alias; write the value itself")
        if isinstance(event, yaml.CollectionStartEvent):
            if len(around) >= DEEPEST:
                raise ValueError(f"line {line} is nested more than {DEEPEST} deep")
            around.append(set() if isinstance(event, yaml.MappingStartEvent) else None)
            is_key.append(True)
        elif isinstance(event, yaml.CollectionEndEvent):
            around.pop()
            is_key.pop()
            _counted(event, around, is_key, line)
        elif isinstance(event, yaml.ScalarEvent):
            _counted(event, around, is_key, line)


def _counted(event: Any, around: list[set[str] | None], is_key: list[bool], line: int) -> None:
    """A value that has ended, in what it stands: a key that was there before is refused."""
    keys = around[-1] if around else None
    if keys is None:
        return
    if is_key[-1] and isinstance(event, yaml.ScalarEvent):
        if event.value in keys:
            raise ValueError(f"line {line} says `{event.value[:60]}` again; leave one of both out")
        keys.add(event.value)
    is_key[-1] = not is_key[-1]


def parse_json(text: str) -> Any:
    """A JSON text; ValueError for a repeated key, and what is nested too deep."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it says `{key[:60]}` twice; leave one of both out")
        found[key] = value
    return found
