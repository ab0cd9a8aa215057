"""What is wrong, where, why, and the way out: findings, and how each output format shows them."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from specflow.spans import Source, Span

Format = Literal["text", "json", "github"]

TAB = 4
LONGEST_LINE = 160  # a longer source line is cut to a window round its first label
WINDOW_LEAD = 40


class Severity(StrEnum):
    """How much a finding stops: an error does, a warning may be allowed, a note only tells."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Label:
    """A remark at a span; the primary one is where the finding is."""

    span: Span
    text: str = ""
    primary: bool = False


@dataclass(frozen=True)
class Drop:
    """A fix that takes a field out; unsafe when it may change what the recipe means.

    otherwise  the other answers there are, in words
    """

    path: str
    safe: bool = True
    otherwise: tuple[str, ...] = ()

    @property
    def does(self) -> str:
        """What it does, in words."""
        return f"leave `{self.path}` out"


@dataclass(frozen=True)
class Put:
    """A fix that writes a value at a field; `safe` and `otherwise` as in `Drop`."""

    path: str
    value: Any
    safe: bool = True
    otherwise: tuple[str, ...] = ()

    @property
    def does(self) -> str:
        """What it does, in words."""
        value = json.dumps(self.value, ensure_ascii=False)
        return f"write `{self.path}: {value if isinstance(self.value, bool) else self.value}`"


@dataclass(frozen=True)
class Rename:
    """A fix that writes another name for a field, in its block."""

    path: str
    name: str
    safe: bool = True
    otherwise: tuple[str, ...] = ()

    @property
    def does(self) -> str:
        """What it does, in words."""
        return f"write `{self.name}` for `{self.path}`"


Fix = Drop | Put | Rename


def only_answer(fix: Fix) -> bool:
    """Whether a fix is written without being asked for: it is the one answer, and a safe one."""
    return fix.safe and not fix.otherwise


@dataclass(frozen=True)
class Diagnostic:
    """One finding: the message states, labels point, notes explain, help proposes."""

    code: str
    name: str
    severity: Severity
    message: str
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    fix: Fix | None = None

    @property
    def primary(self) -> Label | None:
        """The label that says where the finding is, if it is anywhere."""
        return next(
            (label for label in self.labels if label.primary), next(iter(self.labels), None)
        )


def closest(name: str, options: Iterable[str], n: int = 3) -> list[str]:
    """The options most like a name, best first: what "did you mean" offers."""
    # Imported here: only a finding needs it, and a clean `specflow validate` should be quick.
    from difflib import get_close_matches

    return get_close_matches(name, list(options), n=n)


def render(
    diagnostics: Sequence[Diagnostic],
    format: Format = "text",  # noqa: A002  (the option is `--format`)
    color: bool = False,
) -> str:
    """The findings as one text, without a last line break; empty text for none (json: `[]`)."""
    if format == "json":
        shown = json.dumps(
            [_as_json(d) for d in diagnostics], indent=2, ensure_ascii=False, default=str
        )
    elif format == "github":
        shown = "\n".join(map(_as_github, diagnostics))
    else:
        paint = _Paint(color)
        shown = "\n\n".join("\n".join(_as_text(d, paint)) for d in diagnostics)
    # A lone surrogate from an escape in the recipe cannot be written to any terminal or file.
    return shown.encode("utf-8", "replace").decode("utf-8")


def summary(n_recipes: int, diagnostics: Iterable[Diagnostic]) -> str:
    """The last line of a report: `2 recipes, 1 error, 2 warnings`."""
    counts = Counter(d.severity for d in diagnostics)
    found = [_count(counts[severity], severity.value) for severity in Severity if counts[severity]]
    return ", ".join([_count(n_recipes, "recipe"), *(found or ["no findings"])])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True)
class _Paint:
    """Wraps text in terminal colours, or leaves it as it is."""

    on: bool

    def __call__(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.on and text else text


_STYLES = {
    "error": "1;31",
    "warning": "1;33",
    "note": "1;36",
    "message": "1",
    "gutter": "34",
    "secondary": "34",
}


def _as_text(diagnostic: Diagnostic, paint: _Paint) -> Iterator[str]:
    """A finding in the form of rustc: heading, an excerpt of each source, then the remarks."""
    severity = diagnostic.severity.value
    heading = paint(f"{severity}[{diagnostic.code}]", severity)
    yield heading + paint(f": {_visible(diagnostic.message)}", "message")
    groups = _by_source(diagnostic)
    lines = [number for _, labels in groups for number in _shown_lines(labels)]
    margin = " " * len(str(max(lines))) if lines else ""
    bar = paint(f"{margin} |", "gutter")
    for arrow, (at, labels) in zip(("-->", *[":::"] * len(groups)), groups, strict=False):
        yield f"{margin}{paint(arrow, 'gutter')} {_visible(str(at))}"
        yield bar
        yield from _excerpt(labels, margin, severity, paint)
        yield bar
    yield from _remarks(diagnostic, f"{margin} ", paint)


def _by_source(diagnostic: Diagnostic) -> list[tuple[Span, list[Label]]]:
    """Labels of each source in reading order, under the span its heading names; primary first."""
    first = diagnostic.primary
    if first is None:
        return []
    groups: dict[Source, list[Label]] = {first.span.source: []}
    for label in diagnostic.labels:
        groups.setdefault(label.span.source, []).append(label)
    ordered = [sorted(labels, key=lambda label: label.span.start) for labels in groups.values()]
    heads = [first.span, *(labels[0].span for labels in ordered[1:])]
    return list(zip(heads, ordered, strict=True))


def _shown_lines(labels: Sequence[Label]) -> list[int]:
    """Numbers of the lines to print; a gap of one line is printed, a longer one is 0."""
    shown: list[int] = []
    for number in sorted({label.span.line for label in labels}):
        gap = number - shown[-1] if shown else 1
        shown += [*{1: [], 2: [number - 1]}.get(gap, [0]), number]
    return shown


def _excerpt(labels: Sequence[Label], margin: str, severity: str, paint: _Paint) -> Iterator[str]:
    """The labelled lines of one source, each with its markers beneath."""
    source = labels[0].span.source
    for number in _shown_lines(labels):
        if not number:
            yield paint("...", "gutter")
            continue
        here = [label for label in labels if label.span.line == number]
        text, shift = _window(source.line(number), here)
        gutter = paint(f"{number:>{len(margin)}} |", "gutter")
        yield f"{gutter} {_visible(text)}".rstrip()
        for label in here:
            style = severity if label.primary else "secondary"
            bar = paint(f"{margin} |", "gutter")
            yield f"{bar} {_pointer(label, text, shift, style, paint)}"


def _window(line: str, labels: Sequence[Label]) -> tuple[str, int]:
    """A line cut to what fits a terminal, and how many characters the cut moved it left."""
    if len(line) <= LONGEST_LINE or not labels:
        return line[:LONGEST_LINE], 0
    shift = max(0, min(label.span.column for label in labels) - WINDOW_LEAD)
    return "…" + line[shift + 1 : shift + LONGEST_LINE] if shift else line[:LONGEST_LINE], shift


def _pointer(label: Label, line: str, shift: int, style: str, paint: _Paint) -> str:
    """The markers under a label's first line, and its text after them."""
    start = min(label.span.column - 1 - shift, len(line))
    length = min(max(label.span.end - label.span.start, 1), max(len(line) - start, 1))
    before = _columns(line[:start])
    under = max(_columns(line[: start + length]) - before, 1)
    marks = ("^" if label.primary else "-") * under
    return " " * before + paint(f"{marks} {_visible(label.text)}".rstrip(), style)


def _remarks(diagnostic: Diagnostic, indent: str, paint: _Paint) -> Iterator[str]:
    """The `= note:`, `= help:` and `= rule:` lines."""
    remarks = [("note", note) for note in diagnostic.notes]
    if diagnostic.help is not None:
        remarks.append(("help", diagnostic.help))
    remarks.append(("rule", f"specflow rule {diagnostic.code}"))
    for kind, text in remarks:
        aligned = f"\n{indent}{' ' * len(f'= {kind}: ')}".join(map(_visible, text.split("\n")))
        yield f"{indent}{paint('=', 'gutter')} {paint(kind, 'message')}: {aligned}"


def _visible(text: str) -> str:
    """Text with tabs widened and control characters pictured: a recipe cannot steer a terminal."""
    return "".join(
        " " * TAB if c == "\t" else chr(0x2400 + ord(c)) if c < " " else _unseen(c) for c in text
    )


def _unseen(character: str) -> str:
    # Cc and Cf hold the C1 controls and the marks that reorder text.
    return "\N{REPLACEMENT CHARACTER}" if _category(character) in {"Cc", "Cf"} else character


def _category(character: str) -> str:
    return "" if character.isascii() and character != "\x7f" else unicodedata.category(character)


def _columns(text: str) -> int:
    """How many terminal columns a text takes once visible."""
    return sum(map(_width, _visible(text)))


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _position(span: Span) -> dict[str, Any]:
    """Where a span is, as machines read it; the end is the column after the last character."""
    end_line, end_column = span.stop
    return {
        "file": span.source.name,
        "line": span.line,
        "column": span.column,
        "end_line": end_line,
        "end_column": end_column,
    }


_NOWHERE = dict.fromkeys(("file", "line", "column", "end_line", "end_column"))


def _as_json(diagnostic: Diagnostic) -> dict[str, Any]:
    at = diagnostic.primary
    return {
        "code": diagnostic.code,
        "name": diagnostic.name,
        "severity": diagnostic.severity.value,
        "message": diagnostic.message,
        **(_position(at.span) if at else _NOWHERE),
        "labels": [
            {**_position(label.span), "text": label.text, "primary": label.primary}
            for label in diagnostic.labels
        ],
        "notes": list(diagnostic.notes),
        "help": diagnostic.help,
        "fix": _fix_as_json(diagnostic.fix),
    }


def _fix_as_json(fix: Fix | None) -> dict[str, Any] | None:
    if fix is None:
        return None
    action: dict[str, Any] = {"action": type(fix).__name__.lower(), "path": fix.path}
    if isinstance(fix, Put):
        action["value"] = fix.value
    if isinstance(fix, Rename):
        action["name"] = fix.name
    # `safe` is what a tool asks before it writes a fix by itself.
    return {**action, "safe": only_answer(fix), "otherwise": list(fix.otherwise)}


_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def _as_github(diagnostic: Diagnostic) -> str:
    """A workflow command: GitHub shows it beside the lines it names, the way out beneath."""
    properties = {**_where(diagnostic), "title": f"{diagnostic.code} {diagnostic.name}"}
    written = ",".join(f"{key}={_escape(text, _PROPERTY)}" for key, text in properties.items())
    said = diagnostic.message + (f"\nhelp: {diagnostic.help}" if diagnostic.help else "")
    return f"::{_COMMANDS[diagnostic.severity]} {written}::{_escape(said, _DATA)}"


def _where(diagnostic: Diagnostic) -> dict[str, str]:
    """The properties that say where; none for what stands in no file, as an override does."""
    at = diagnostic.primary
    if at is None or at.span.source.name.startswith("<"):
        return {}
    where = {key: str(value) for key, value in _position(at.span).items()}
    shown = {"file": "file", "line": "line", "end_line": "endLine"}
    if where["line"] == where["end_line"]:  # GitHub takes no columns where the lines differ
        shown |= {"column": "col", "end_column": "endColumn"}
    return {name: where[key] for key, name in shown.items()}


# The percent sign comes first, so that no escape is escaped again.
_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}


def _escape(text: str, escapes: dict[str, str]) -> str:
    for character, escape in escapes.items():
        text = text.replace(character, escape)
    return text
