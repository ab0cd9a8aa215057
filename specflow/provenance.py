"""Who set each value, and why: the ledger behind `specflow explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from specflow.spans import Place


class Origin(Enum):
    """Where a value comes from, strongest first; a weaker origin never replaces a stronger one."""

    OVERRIDE = "override"
    USER = "user"
    ALIAS = "alias"
    CHECKPOINT = "checkpoint"
    DEFAULT = "default"
    DERIVED = "derived"
    ASSUMED = "assumed"  # what is usual, where the model that would tell is not here


@dataclass(frozen=True)
class Entry:
    """One value a field had or has.

    because  what decided it: a file position, a table row, a formula
    place    the spans of its key and value, where somebody wrote it
    """

    path: str
    value: Any
    origin: Origin
    because: str
    place: Place | None = None


@dataclass(frozen=True)
class Ledger:
    """Every field's entries, the one in force first."""

    entries: Mapping[str, tuple[Entry, ...]]

    def __getitem__(self, path: str) -> Entry:
        return self.entries[path][0]

    def __contains__(self, path: object) -> bool:
        return path in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def history(self, path: str) -> tuple[Entry, ...]:
        """All that was said of a field, the one in force first."""
        return self.entries[path]

    def counts(self) -> dict[str, int]:
        """How many fields each origin decided, strongest origin first."""
        current = [self[path].origin for path in self]
        return {o.value: current.count(o) for o in Origin if o in current}


class LedgerBuilder:
    """Collects entries while a recipe is resolved; the only mutable ledger."""

    def __init__(self) -> None:
        self._entries: dict[str, list[Entry]] = {}

    def put(self, entry: Entry) -> None:
        """Record an entry; it is in force unless a stronger one already is."""
        known = self._entries.setdefault(entry.path, [])
        strength = list(Origin).index
        at = next(
            (i for i, e in enumerate(known) if strength(e.origin) > strength(entry.origin)),
            len(known),
        )
        known.insert(at, entry)

    def rename(self, path: str, value: Any, because: str) -> None:
        """Let an alias stand in force over what was written, which stays under it."""
        written = self._entries[path][0]
        self._entries[path].insert(
            0, replace(written, value=value, origin=Origin.ALIAS, because=because)
        )

    def restate(self, path: str, value: Any) -> None:
        """The value in force in its typed form: a list that was written is a tuple."""
        self._entries[path][0] = replace(self._entries[path][0], value=value)

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def __getitem__(self, path: str) -> Entry:
        return self._entries[path][0]

    def freeze(self, order: tuple[str, ...]) -> Ledger:
        """The finished ledger: blocks in `order`, fields as they came."""
        blocks = {name: i for i, name in enumerate(order)}
        paths = sorted(
            self._entries, key=lambda p: blocks.get(p.split(".", maxsplit=1)[0], len(blocks))
        )
        return Ledger({p: tuple(self._entries[p]) for p in paths})
