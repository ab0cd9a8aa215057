"""Versions of engines: which of those that are known is nearest to one that is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence

# `b11312` is a build, as llama.cpp counts them. Between two numbers stands a sign or a word: were
# neither needed, a row of digits could be cut in any number of ways, and each would be tried.
_VERSION = re.compile(
    r"[vb]?\d{1,20}((?:[._-](?:rc|post|dev|b|a)?|rc|post|dev|b|a)\d{1,20})*", re.ASCII
)
LONGEST = 60  # characters


def nearest(asked: str, known: Sequence[str]) -> str:
    """The newest known version that is not newer than the one asked for, else the oldest.

    known  oldest first
    Raises ValueError for what is no version.
    """
    if len(asked) > LONGEST or not _VERSION.fullmatch(asked):
        raise ValueError(asked)
    older = [version for version in known if numbers(version) <= numbers(asked, wide=True)]
    return older[-1] if older else known[0]


def others(asked: str, known: Sequence[str]) -> list[str]:
    """The known versions but the nearest: newer than the asked one first, each by how near it is.

    known  oldest first
    """
    near = known.index(nearest(asked, known))
    return [*known[near + 1 :], *reversed(known[:near])]


def numbers(version: str, *, wide: bool = False) -> tuple[int, ...]:
    """A version as numbers to compare; `wide` lets 0.32 stand for every 0.32.x."""
    found = tuple(int(part) for part in re.findall(r"\d+", version))
    return (*found, 10**9) if wide else found
