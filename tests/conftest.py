"""Shared by all tests: `--update-golden`, the recipes that ship, how many tests were kept out."""

from __future__ import annotations

from pathlib import Path

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    kept_out = [
        *terminalreporter.stats.get("deselected", []),
        *terminalreporter.stats.get("skipped", []),
    ]
    gpu = sum("gpu" in item.keywords for item in kept_out)
    slow = sum("slow" in item.keywords for item in kept_out)
    terminalreporter.write_line(
        f"not run here: {gpu} gpu tests (make gpu), {slow} slow tests (make slow)"
    )
