"""Offsets to lines and columns, with every line break and beyond the text."""

from __future__ import annotations

import pytest

from specflow.spans import Source, Span


@pytest.mark.parametrize(
    ("text", "start", "place"),
    [
        ("", 0, (1, 1)),
        ("ab\ncd", 3, (2, 1)),
        ("ab\r\ncd", 5, (2, 2)),
        ("ab\rcd", 3, (2, 1)),
        ("ab\n", 3, (2, 1)),
        ("ab", 99, (1, 3)),
        ("ab", -1, (1, 1)),
    ],
)
def test_line_and_column(text: str, start: int, place: tuple[int, int]) -> None:
    span = Span(Source("a.yaml", text), start, start + 1)
    assert (span.line, span.column) == place


def test_lines_have_no_break() -> None:
    source = Source("a.yaml", "one\r\ntwo\n\nfour\rfive")
    assert [source.line(n) for n in range(7)] == ["", "one", "two", "", "four", "five", ""]


def test_a_span_reads_as_a_link() -> None:
    span = Span(Source("a.yaml", "x: 1\ny: 22\n"), 8, 10)
    assert (str(span), span.text, span.stop) == ("a.yaml:2:4", "22", (2, 6))
