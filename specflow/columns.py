"""Rows of text in aligned columns, as every table on a terminal is printed."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows in aligned columns, two spaces between."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
