"""What holds still: what was read of files that are as they were, and what was told of objects."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import time_ns
from typing import TypeVar

Given = TypeVar("Given")
Told = TypeVar("Told")
Stamp = tuple[tuple[str, int, int, int, int], ...]
MOST_FILES = 4096
KEPT = 8  # of a kind that are remembered, since many recipes and questions are of the same
SETTLED = 2_000_000_000  # nanoseconds: clocks of file systems are as coarse as a second


def stamp(path: Path) -> Stamp | None:
    """What changes when a file, or one that lies in a folder, is written anew.

    None where that cannot be told: within a tick of its clock a file may change once more unseen.
    """
    found: list[tuple[str, os.stat_result]] = []
    if path.is_dir():
        with os.scandir(path) as inside:
            for each in inside:
                if len(found) == MOST_FILES:
                    return None
                found.append((each.name, _stat(each)))
    else:
        found.append((path.name, path.stat()))
    newest = max((seen.st_mtime_ns for _, seen in found), default=0)
    if newest > time_ns() - SETTLED:
        return None
    return tuple(sorted((n, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for n, s in found))


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    """Of the file that a link leads to; of the link itself where it leads nowhere."""
    try:
        return entry.stat()
    except OSError:
        return entry.stat(follow_symlinks=False)


def remembering(teller: Callable[[Given], Told]) -> Callable[[Given], Told]:
    """A function of an object that never changes, which answers the same for the same one."""
    known: deque[tuple[Given, Told]] = deque(maxlen=KEPT)

    @wraps(teller)
    def tell(given: Given) -> Told:
        for before, told in known:
            if before is given:
                return told
        told = teller(given)
        known.append((given, told))
        return told

    return tell
