"""Where a value was written: a source, a stretch of its text, and the pair of key and value."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

_LINE_BREAK = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Source:
    """A text a user wrote, under the name they know it by.

    name   the path as given, or `<command line>`
    text   decoded, without a byte order mark; line breaks as in the file
    """

    name: str
    text: str

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Offset of the first character of each line."""
        return (0, *(found.end() for found in _LINE_BREAK.finditer(self.text)))

    def line(self, number: int) -> str:
        """The text of a line, counted from 1, without its line break; empty beyond the text."""
        if not 1 <= number <= len(self.starts):
            return ""
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end].rstrip("\r\n")

    def locate(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1; an offset beyond the text is its end."""
        inside = max(0, min(offset, len(self.text)))
        line = bisect_right(self.starts, inside)
        return line, inside - self.starts[line - 1] + 1


@dataclass(frozen=True)
class Span:
    """A stretch of a source: offsets from start up to, not including, end."""

    source: Source
    start: int
    end: int

    @property
    def line(self) -> int:
        """Line of the first character, from 1."""
        return self.source.locate(self.start)[0]

    @property
    def column(self) -> int:
        """Column of the first character, from 1."""
        return self.source.locate(self.start)[1]

    @property
    def stop(self) -> tuple[int, int]:
        """Line and column just after the last character, both from 1."""
        return self.source.locate(max(self.start, self.end))

    @property
    def text(self) -> str:
        """The characters it covers."""
        return self.source.text[self.start : self.end]

    def __str__(self) -> str:
        """`file:line:column`, as editors and terminals link it."""
        return f"{self.source.name}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Place:
    """Where a field stands: its key, when it has one, and its value."""

    key: Span | None
    value: Span
