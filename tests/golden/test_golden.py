"""Every recipe in recipes/: resolved, explain, graph, step.py and device.py, as committed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from specflow.codegen import emit
from specflow.explain import explain
from specflow.graph.show import show
from specflow.load import load
from specflow.lower import lower
from specflow.recipe import dump
from specflow.resolve import resolve
from tests.conftest import RECIPES, ROOT

HERE = Path(__file__).parent


def folder_of(path: Path) -> Path:
    return HERE / path.relative_to(ROOT / "recipes").with_suffix("")


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 4  # a glob that finds nothing must not pass


def test_every_folder_has_a_recipe() -> None:
    kept = {p.parent for p in HERE.rglob("step.py")}
    assert kept == {folder_of(p) for p in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_recipe_is_golden(path: Path, update_golden: bool) -> None:
    resolved = resolve(load(path))
    graph = lower(resolved)
    module = emit(graph, resolved)
    texts = {
        "resolved.yaml": yaml.safe_dump(dump(resolved), sort_keys=False),
        "explain.txt": explain(resolved),
        "graph.txt": show(graph),
        "step.py": stable(module.source),
        "device.py": module.device,
    }
    folder = folder_of(path)
    if update_golden:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    for name, text in texts.items():
        assert (folder / name).read_text() == text, (
            f"{name} changed; look at the diff, then `make golden`"
        )


def stable(source: str) -> str:
    """A module without the digests of what made it: those change with every edit of a template."""
    return "\n".join(line for line in source.split("\n") if not line.startswith("Made from"))
