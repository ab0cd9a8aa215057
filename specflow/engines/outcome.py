"""What an engine makes of arguments: the values in force and who decided them, or a refusal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn


class Kind(StrEnum):
    """What a note is about: a value without effect, a failure to come, a check nobody makes."""

    WARNS = "warns"  # the engine logs it and goes on
    AT_START = "at start"  # arguments pass, the engine fails when it starts or at the first use
    UNCHECKED = "unchecked"  # accepted although it means nothing
    TOLD = "told"  # nothing is wrong: what the arguments cost or lead to


Remark = tuple[str, Kind, str]  # row, kind, text
WARN, START, OPEN, TOLD = Kind.WARNS, Kind.AT_START, Kind.UNCHECKED, Kind.TOLD


TABLE_ROW = "1.1"  # where the catalogue lists flags; the name of this rule in a refusal


def shown(value: object) -> str:
    """A value as text, whatever it is: cut short, and never an exception."""
    try:
        return repr(value)[:80]
    except Exception:  # noqa: BLE001  (what is nested too deep, or a number too long to print)
        return f"a {type(value).__name__}"


_MOST_DEEP = 32  # of values within values, which no flag has


def no_value(value: object, deep: int = 0) -> str:
    """What of a value no file and no command line can say; empty where all of it can be said."""
    if deep > _MOST_DEEP:
        return "is nested too deep"
    if isinstance(value, float):
        return "" if math.isfinite(value) else "is no finite number"
    if isinstance(value, int):
        return "" if abs(value) < 2**2000 else "is a number too long to print"
    if isinstance(value, str):
        return "has a NUL character" if "\0" in value else ""
    if isinstance(value, Mapping):
        inner: list[object] = [*value, *value.values()]
    elif isinstance(value, list | tuple):
        inner = list(value)
    else:
        return "" if value is None else f"is {_kind(value)}, which is neither text nor a number"
    return next((said for each in inner if (said := no_value(each, deep + 1))), "")


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


@dataclass(frozen=True)
class Decision:
    """A value the engine set: over the user's (`overrides`), or where the user said nothing."""

    field: str
    asked: Any
    value: Any
    rule: str
    because: str
    overrides: bool


@dataclass(frozen=True)
class Note:
    """A remark on arguments that were accepted; `rule` is a row of the catalogue."""

    rule: str
    kind: Kind
    text: str


@dataclass(frozen=True)
class Refused:
    """The engine does not start with these arguments.

    rule   a row of the catalogue, or the table that a value is not of
    error  the exception that the engine stops with
    """

    rule: str
    reason: str
    error: str = "ValueError"

    @property
    def deliberate(self) -> bool:
        """Whether the engine refuses by design; a crash of its own says nothing useful."""
        return self.error in _DELIBERATE


def no_flag(reason: str) -> Refused:
    """What no command line of an engine takes."""
    return Refused(TABLE_ROW, reason, "SystemExit")


# SystemExit is how the command line refuses a flag.
_DELIBERATE = frozenset({"ValueError", "NotImplementedError", "RuntimeError", "SystemExit"})


@dataclass(frozen=True)
class Effective:
    """The arguments an engine runs with.

    values     every flag, decided or left as asked
    decisions  the values that are not what was asked, in the order they were decided
    """

    values: Mapping[str, Any]
    decisions: tuple[Decision, ...]
    notes: tuple[Note, ...]

    def __getitem__(self, field: str) -> Any:
        return self.values[field]

    def decision(self, field: str) -> Decision | None:
        """Who set a field, where it is not what was asked."""
        return next((d for d in self.decisions if d.field == field), None)


@dataclass(frozen=True)
class Fault:
    """A refusal of one argument.

    words  the argument and its values as they were written; empty where that is not known
    """

    refused: Refused
    words: tuple[str, ...] = ()


class Refusal(Exception):  # noqa: N818  (not an error of ours: an answer, carried up)
    """A refusal on its way out of the rules; of arguments, every one of them that is at fault."""

    def __init__(self, refused: Refused, faults: tuple[Fault, ...] = ()) -> None:
        """Keep the answer."""
        super().__init__(refused.reason)
        self.refused = refused
        self.faults = faults or (Fault(refused),)

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> Refusal:
        """A refusal of several arguments, which reads as that of the first."""
        return cls(faults[0].refused, tuple(faults))


class Run:
    """Arguments while rules are applied: what was asked, what is in force, who decided.

    The last rule to set a field wins, as in the engine.
    """

    def __init__(self, asked: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.asked = {k: v for k, v in asked.items() if v is not None}
        self.values = {**defaults, **self.asked}
        self.decided: dict[str, Decision] = {}
        self.notes: list[Note] = []

    def __getitem__(self, field: str) -> Any:
        return self.values[field]

    def set(self, field: str, value: Any, rule: str, because: str) -> None:
        """Put a value in force; a decision that changes nothing is none."""
        if value == self.values[field]:
            return
        self.values[field] = value
        self.decided.pop(field, None)
        asked = self.asked.get(field)
        if value != asked:
            overrides = field in self.asked
            self.decided[field] = Decision(field, asked, value, rule, because, overrides)

    def refuse(self, rule: str, reason: str, error: str = "ValueError") -> NoReturn:
        """Stop: the engine does not start."""
        raise Refusal(Refused(rule, reason, error))

    def refuse_first(
        self, rule: str, wrong: Mapping[str, bool], what: str = "", error: str = "ValueError"
    ) -> None:
        """Stop for the first reason that holds, if one does; `what` goes before it."""
        for reason, holds in wrong.items():
            if holds:
                self.refuse(rule, f"{what}{reason}", error)

    def crash(self, rule: str, reason: str, error: str = "AssertionError") -> NoReturn:
        """Stop as the engine does: by an assertion or another exception that no user is told of."""
        self.refuse(rule, reason, error)

    def note(self, rule: str, kind: Kind, text: str) -> None:
        """Remark on something that does not stop the engine."""
        self.notes.append(Note(rule, kind, text))

    def outcome(self) -> Effective:
        """The arguments as the rules left them."""
        return Effective(dict(self.values), tuple(self.decided.values()), tuple(self.notes))
