"""What SGLang accepts and should not have: rows RT, GAP and WARN of the catalogue, as remarks on
arguments that passed.
"""

from __future__ import annotations

from specflow.engines.outcome import Run
from specflow.engines.sglang_start import Given


def notes(run: Run, given: Given) -> None:
    """Every remark."""
