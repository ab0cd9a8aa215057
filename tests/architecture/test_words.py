"""A stage is named in its own file and in the tables; nothing else asks which one it has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from specflow.stages import DRAFTS
from specflow.tables import ALIASES
from tests.conftest import ROOT

# Rows of today, their other names, and rows to come.
STAGES = {*DRAFTS.names(), *ALIASES, "EAGLE", "EAGLE3", "NEXTN", "DFLASH", "DSPARK"}
STAGES |= {"FROZEN_KV_MTP", "MTP"}
HOMES = ("stages", "engines", "tables.py")
PACKAGE = ROOT / "specflow"
FILES = [p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] not in HOMES]
GENERATED = sorted((ROOT / "tests" / "golden").rglob("step.py"))
GENERATED += sorted((ROOT / "tests" / "golden").rglob("rows.py"))


def texts(tree: ast.AST) -> Iterator[str]:
    """Every whole string of a piece of code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_there_is_code_to_read() -> None:
    assert len(FILES) > 50  # a glob that finds nothing must not pass
    assert len(GENERATED) >= 8


@pytest.mark.parametrize("file", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_stage_is_named_outside_its_homes(file: Path) -> None:
    assert not STAGES.intersection(texts(ast.parse(file.read_text())))


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.j2")), ids=lambda p: p.name)
def test_templates_name_no_stage(file: Path) -> None:
    text = file.read_text()
    assert not [name for name in STAGES if f'"{name}"' in text or f"'{name}'" in text]


@pytest.mark.parametrize("file", GENERATED, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_generated_code_asks_no_name(file: Path) -> None:
    tree = ast.parse(file.read_text())
    asked = [n.test for n in ast.walk(tree) if isinstance(n, ast.If | ast.IfExp | ast.While)]
    assert not [ast.unparse(test) for test in asked if any(texts(test))]
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Match)]
