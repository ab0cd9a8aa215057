"""A row has its file, a file has its row, an op has its kernel."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from specflow.formats import FORMATS
from specflow.graph.ops import OPS
from specflow.stages import ACCEPTS, COMMITS, DRAFTS, VERIFIES
from specflow.tables import ALIASES, PLAIN, TABLES
from tests.conftest import ROOT

STAGES = ROOT / "specflow" / "stages"
KERNELS = ROOT / "specflow" / "kernels"
DOMAINS = {"model", "vocab", "rows", "kv", "host", "shape"}


@pytest.mark.parametrize(
    ("kind", "table"),
    [("draft", DRAFTS), ("verify", VERIFIES), ("accept", ACCEPTS), ("commit", COMMITS)],
)
def test_rows_are_files(kind: str, table: Any) -> None:
    files = {p.stem for p in STAGES.glob(f"{kind}_*.py")}
    assert files == {f"{kind}_{name.lower()}" for name in table.names()}
    for name, place in table.rows.items():
        assert place == f"specflow.stages.{kind}_{name.lower()}:{name.upper()}"
        assert table[name].name == name


def test_a_stage_file_has_a_kind() -> None:
    kinds = {p.stem.split("_")[0] for p in STAGES.glob("*_*.py") if p.stem != "__init__"}
    assert kinds == {"draft", "verify", "accept", "commit"}


def test_a_draft_names_rows_that_exist() -> None:
    for draft in map(DRAFTS.__getitem__, DRAFTS.names()):
        assert draft.axes.shape in draft.shapes
        assert draft.axes.draft_state == draft.shapes[draft.axes.shape][0]
        assert set(draft.shapes) <= set(VERIFIES.names())
        assert {s for each in draft.shapes.values() for s in each} <= set(COMMITS.names())
        assert set(draft.formats) <= {f.name for f in FORMATS} | {"causal_lm"}
        assert set(draft.derive) <= set(draft.fields.model_fields)
        assert set(draft.tables.values()) <= set(TABLES)


def test_an_alias_means_a_row() -> None:
    assert PLAIN in DRAFTS
    formats = {"", *(f.name for f in FORMATS)}
    for written, means in ALIASES.items():
        assert all(alias.means in DRAFTS and alias.draft in formats for alias in means)
        # A name that is no draft's own always means one.
        assert written in DRAFTS or means[-1].draft == ""


def test_every_format_has_a_draft() -> None:
    taken = [f for name in DRAFTS.names() for f in DRAFTS[name].formats]
    assert sorted(taken) == sorted([*(f.name for f in FORMATS), "causal_lm"])


def functions(file: Path) -> set[str]:
    return {n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)}


def exported(file: Path) -> set[str]:
    """The names in `__all__`, read without an import: these tests need no torch."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def test_an_op_has_its_kernel() -> None:
    assert exported(KERNELS / "__init__.py") == {s.kernel for s in OPS.values() if s.kernel}


def test_an_op_has_its_row_function() -> None:
    called = {s.row.partition("(")[0] for s in OPS.values() if "(" in s.row}
    apart = {"copy_row"}  # what a store of a wide row is
    assert functions(KERNELS / "rows_triton.py") == called | apart


@pytest.mark.parametrize("kind", OPS)
def test_an_op_has_a_domain(kind: str) -> None:
    spec = OPS[kind]
    assert spec.domain in DOMAINS
    assert bool(spec.row) or spec.domain != "rows"
    assert not spec.row or spec.domain in ("rows", "vocab", "shape")
    assert spec.spelling.count("{") - spec.spelling.count("{model}") == spec.arity[0]
    if spec.domain in ("model", "kv", "host"):
        assert "{model}" in spec.spelling
    else:
        asks_a_table = kind.startswith("target_") or kind.endswith("_mapped")
        assert "{model}" not in spec.spelling or asks_a_table
