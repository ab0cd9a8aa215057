"""Shared by all tests: `--update-golden`, the recipes that ship, how many tests were kept out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files and diagnostics pages"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


LEFT_OUT = pytest.StashKey[list[str]]()  # what was not collected, by its mark


def _marks(items: Iterable[object]) -> list[str]:
    marks = (getattr(item, "keywords", {}) for item in items)
    return ["gpu" if "gpu" in m else "slow" for m in marks if "gpu" in m or "slow" in m]


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Keep what is left out: of several processes the last one tells the one that reports."""
    if items:
        items[0].config.stash.setdefault(LEFT_OUT, []).extend(_marks(items))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left out"] = session.config.stash.get(LEFT_OUT, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = list(getattr(node, "workeroutput", {}).get("left out", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    marks = terminalreporter.config.stash.get(LEFT_OUT, [])
    marks = [*marks, *_marks(terminalreporter.stats.get("skipped", []))]
    gpu, slow = marks.count("gpu"), marks.count("slow")
    terminalreporter.write_line(
        f"not run here: {gpu} gpu tests (make gpu), {slow} slow tests (make slow)"
    )
