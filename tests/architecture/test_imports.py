"""Who may import whom: the layers, what `validate` leaves alone, and which tests need no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from tests.conftest import ROOT

HEAVY = ("torch", "triton", "transformers", "numpy", "jinja2", "rich")
LIGHT_TESTS = ("unit", "golden", "diagnostics", "architecture")
GENERATED = ("step.py", "device.py")


def test_the_layers_hold(capsys: pytest.CaptureFixture[str]) -> None:
    code = lint_imports(str(ROOT / "pyproject.toml"), no_cache=True)
    assert code == 0, capsys.readouterr().out


def loaded_by(program: str) -> list[str]:
    """Which heavy packages a program of its own has imported when it ends."""
    program += f"; import sys; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1].split()


def test_validate_imports_nothing_heavy() -> None:
    assert "jinja2" in loaded_by("import specflow.codegen")  # the question can be answered with yes
    assert not loaded_by("from specflow.cli import main; assert main(['validate', 'recipes']) == 0")


def imported(file: Path) -> set[str]:
    """Every module a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_light_tests_import_no_torch() -> None:
    files = [p for f in LIGHT_TESTS for p in (ROOT / "tests" / f).rglob("*.py")]
    named = {m for p in files if p.name not in GENERATED for m in imported(p)}
    assert len(files) > 8  # a glob that finds nothing must not pass
    assert not {m for m in named if m.split(".")[0] in ("torch", "triton", "transformers")}
    ours = sorted(m for m in named if m.split(".")[0] == "specflow")
    modules = [m for m in ours if (ROOT / Path(*m.split("."))).with_suffix(".py").exists()]
    assert "torch" not in loaded_by(f"import {', '.join(modules)}")
