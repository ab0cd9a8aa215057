"""The entries of a safetensors header one at a time, so that no header takes more than its text.

A parser of any JSON makes objects of whatever it is given, a hundred bytes for two; a header is an
object of objects that hold no others, and what is not is refused before it is parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

NOTES = "__metadata__"
LONGEST = 4096  # bytes of an entry: a dtype, 64 sizes and two offsets are a third of it
_TEXT = rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_PAIR = rb"\s*+" + _TEXT + rb"\s*+:\s*+" + _TEXT + rb"\s*+"
_BEGIN = re.compile(rb"\s*+\{\s*+")
_NAME = re.compile(rb"\s*+(" + _TEXT + rb")\s*+:\s*+")
_ENTRY = re.compile(rb"\{[^{}]{0,%d}+\}" % LONGEST)
_NOTES = re.compile(rb"\{(?:\s*+|" + _PAIR + rb"(?:," + _PAIR + rb")*+)\}")
_NEXT = re.compile(rb"\s*+([,}])")


def entries(text: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and entry of each tensor of a header; ValueError where it is none, or says one twice."""
    found, at, more = _BEGIN.match(text), 0, True
    if found is None:
        raise ValueError("no object")
    at, noted = found.end(), False
    if text[at : at + 1] == b"}":
        at, more = at + 1, False
    while more:
        name, at = _name(text, at)
        if name == NOTES:
            whole = _NOTES.match(text, at)
            if whole is None or noted:
                raise ValueError("notes that are no text")
            noted = True
        else:
            whole = _ENTRY.match(text, at)
            if whole is None:
                raise ValueError(name)
            yield name, json.loads(whole[0].decode())
        after = _NEXT.match(text, whole.end())
        if after is None:
            raise ValueError(name)
        at, more = after.end(), after[1] == b","
    if text[at:].strip():
        raise ValueError("more than an object")


def _name(text: bytes, at: int) -> tuple[str, int]:
    """A name, and where what it names begins."""
    found = _NAME.match(text, at)
    if found is None:
        raise ValueError("no name")
    name: str = json.loads(found[1].decode())
    return name, found.end()
