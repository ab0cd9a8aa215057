"""Docs that cannot rot: the map is made of modules, and commands that are named exist."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from specflow.cli import COMMANDS
from specflow.packs import names
from tests.conftest import RECIPES, ROOT


def test_the_map_is_made() -> None:
    done = subprocess.run(
        [sys.executable, "docs/make_map.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def commands(text: str) -> list[list[str]]:
    """Every line of a text that calls specflow, as words."""
    return [m.split() for m in re.findall(r"^\W*specflow (.+?)(?:\s+#.*)?$", text, re.M)]


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_opens_with_what_it_is_and_how_to_run_it(path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    called = commands("\n".join(line for line in lines if line.startswith("#")))
    assert called
    name = path.relative_to(ROOT / "recipes").with_suffix("").as_posix()
    assert any(name in words for words in called)


def test_the_readme_calls_what_exists() -> None:
    blocks = (ROOT / "README.md").read_text().split("```")[1::2]
    called = commands("\n".join(blocks))
    assert len(called) > 8
    for words in called:
        assert words[0] in COMMANDS
        for word in words[1:]:
            if re.fullmatch(r"[a-z]+/[a-z_]+", word):
                assert word in names()
