"""Docs that cannot rot: the map is made of modules, and commands that are named exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specflow.cli import COMMANDS, main
from specflow.engines import ENGINES
from specflow.engines.base import RECIPE_WORDS
from specflow.manual import manuals
from specflow.packs import names
from specflow.stages import COMMITS, DRAFTS, VERIFIES
from tests.conftest import RECIPES, ROOT


@pytest.mark.parametrize("page", ["make_map", "make_pages"])
def test_what_is_made_of_the_code_is_as_the_code(page: str) -> None:
    made = [sys.executable, f"docs/{page}.py", "--check"]
    done = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pages_hold_every_rule_field_and_word() -> None:
    docs = ROOT / "docs"
    index = (docs / "rules/README.md").read_text()
    linked = re.findall(r"\]\(([^)]+\.md)\)", index)
    assert linked == [f"{m.code}-{m.name}.md" for m in manuals()]
    assert {p.name for p in (docs / "rules").glob("SF*.md")} == set(linked)
    fields = (docs / "fields.md").read_text()
    for block, table in (("draft", DRAFTS), ("verify", VERIFIES), ("commit", COMMITS)):
        for name in table.names():
            part = fields.partition(f": {name}\n")[2].partition("\n## ")[0]
            for field in table[name].fields.model_fields:
                assert f"| `{block}.{field}` |" in part, (name, field)
    engines = (docs / "engines.md").read_text()
    assert all(f"| `{word}` |" in engines for word in RECIPE_WORDS)
    for engine in (ENGINES[name] for name in ENGINES.names()):
        (row,) = (line for line in engines.splitlines() if f"`{engine.name}` |" in line)
        for known in (engine.versions, engine.platforms, engine.formats):
            assert all(each in row for each in known), engine.name


@pytest.mark.parametrize("manual", manuals(), ids=lambda m: m.code)
def test_a_page_says_what_the_command_says(manual, capsys) -> None:
    assert main(["rule", manual.code]) == 0
    _, _, said = capsys.readouterr().out.partition("\n")
    page = (ROOT / f"docs/rules/{manual.code}-{manual.name}.md").read_text()
    assert said.partition("\n\ndeclared in ")[0].strip() in page


def test_a_page_that_is_touched_is_stale(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    page = tmp_path / "docs/fields.md"
    page.write_text(page.read_text().replace("`18`", "`19`"))
    (tmp_path / "docs/rules/SF999-gone.md").write_text("")
    (tmp_path / "docs/rules/SF001-unknown-field.md").unlink()
    made = [sys.executable, "docs/make_pages.py"]
    done = subprocess.run(
        [*made, "--check"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    for name in ("fields.md", "rules/SF001-unknown-field.md", "rules/SF999-gone.md"):
        assert name in done.stderr
    assert "rules/SF002" not in done.stderr
    subprocess.run(made, cwd=tmp_path, check=True)
    subprocess.run([*made, "--check"], cwd=tmp_path, check=True)


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


def test_the_readme_counts_the_versions_of_engines() -> None:
    said = " ".join((ROOT / "README.md").read_text().split())
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    for engine in (ENGINES[name] for name in ENGINES.names()):
        count = words[len(engine.versions)]
        assert re.search(rf"{count} (builds )?of {re.escape(engine.title)}", said), engine.name
