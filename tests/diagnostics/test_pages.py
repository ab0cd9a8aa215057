"""Pages of YAML and the findings it gives: the text is right, and every rule is shown once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specflow.diagnostics import render
from specflow.errors import RecipeError
from specflow.load import loads
from specflow.manual import manuals
from specflow.resolve import resolve
from tests.checkpoint_files import shelf
from tests.manual_examples import HEADINGS, examples, headings

HERE = Path(__file__).parent
PAGES = sorted(HERE.glob("*.md"))
BLOCK = re.compile(
    r"```yaml(?: (?P<overrides>[^\n]*))?\n(?P<yaml>.*?)```\n+```text\n(?P<text>.*?)```", re.S
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny checkpoints that pages name."""
    folder: Path = tmp_path_factory.mktemp("models")
    shelf(folder)
    return folder


@pytest.fixture(autouse=True)
def beside_models(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)


def findings(text: str, overrides: str) -> str:
    """What a recipe gives: its findings, or `no findings`."""
    try:
        resolved = resolve(loads(text, "recipe.yaml", overrides.split() if overrides else ()))
    except RecipeError as error:
        return render(error.diagnostics)
    return render(resolved.findings) or "no findings"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_page(page: Path, update_golden: bool) -> None:
    text = page.read_text()
    blocks = list(BLOCK.finditer(text))
    assert blocks, f"{page.name} has no block to check"
    for block in blocks:
        said = findings(block["yaml"], block["overrides"] or "")
        if update_golden:
            text = text.replace(
                block.group(),
                block.group().replace(f"```text\n{block['text']}```", f"```text\n{said}\n```"),
            )
        else:
            assert said == block["text"].rstrip("\n")
    if update_golden:
        page.write_text(text)


def test_every_rule_is_shown() -> None:
    shown = set(re.findall(r"\[(SF\d{3})\]", "".join(p.read_text() for p in PAGES)))
    elsewhere = {"SF000", "SF004", "SF005", "SF007", "SF008", "SF009"}  # tests/unit/test_load.py
    elsewhere |= {m.code for m in manuals() if m.code >= "SF100"}  # tests/unit/test_prompts.py
    elsewhere |= {"SF065", "SF090", "SF091", "SF092"}  # tests/e2e
    elsewhere |= {"SF029"}  # tests/unit/test_deep.py
    elsewhere |= {"SF072"}  # tests/unit/test_fit.py
    assert {m.code for m in manuals()} - shown - elsewhere == set()


# Rules that no recipe, prompt or command line can be made to break, each with the reason.
WITHOUT_EXAMPLE = {
    "SF090": "a bug of specflow: an example would be one that is known and not mended",
}


@pytest.mark.parametrize("manual", manuals(), ids=lambda m: m.code)
def test_examples_of_manuals(manual, models: Path, tmp_path: Path, monkeypatch) -> None:
    """The first example of a manual gives its finding, the second gives none of it."""
    if manual.code in WITHOUT_EXAMPLE:
        assert headings(manual.doc) == ["## Why", "## Fix"]
        return
    assert headings(manual.doc) == HEADINGS
    for path in models.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    failing, passing = examples(manual.doc)
    assert failing.blocks
    assert passing.blocks
    assert manual.code in failing.found()
    assert manual.code not in passing.found()
