"""Pages of YAML and the findings it gives: the text is right, and every rule is shown once.

Behind ```yaml stand overrides, and `--engine NAME` and `--platform NAME` where an engine is asked
too. A ```sh block is a command line of specflow, and what it writes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from specflow.cli import main
from specflow.cli.engines import add_engine, asked_engine, resolved_by
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
    r"```(?P<kind>yaml|sh)(?: (?P<words>[^\n]*))?\n(?P<body>.*?)```\n+```text\n(?P<text>.*?)```",
    re.S,
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


def findings(text: str, words: str) -> str:
    """What a recipe gives: its findings and an engine's, or `no findings`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*")
    add_engine(parser, "an engine")
    asked = parser.parse_args(words.split())
    try:
        resolved = resolve(loads(text, "recipe.yaml", asked.overrides))
    except RecipeError as error:
        return render(error.diagnostics)
    found = list(resolved.findings)
    if asked.engine is not None:
        engine = resolved_by(asked_engine(asked.engine), asked.platform, resolved)
        found += [*engine.findings, *engine.remarks]
    return render(found) or "no findings"


def said(block: re.Match[str]) -> str:
    """What a block gives."""
    if block["kind"] == "yaml":
        return findings(block["body"], block["words"] or "")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        main(shlex.split(block["body"])[1:])
    return out.getvalue().rstrip("\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_page(page: Path, update_golden: bool) -> None:
    text = page.read_text()
    blocks = list(BLOCK.finditer(text))
    assert blocks, f"{page.name} has no block to check"
    for block in blocks:
        got = said(block)
        if update_golden:
            text = text.replace(
                block.group(),
                block.group().replace(f"```text\n{block['text']}```", f"```text\n{got}\n```"),
            )
        else:
            assert got == block["text"].rstrip("\n")
    if update_golden:
        page.write_text(text)


def test_every_rule_is_shown() -> None:
    shown = set(re.findall(r"\[(SF\d{3})\]", "".join(p.read_text() for p in PAGES)))
    elsewhere = {"SF000", "SF004", "SF005", "SF007", "SF008", "SF009"}  # tests/unit/test_load.py
    elsewhere |= {f"SF{n}" for n in range(100, 110)}  # tests/unit/test_prompts.py
    elsewhere |= {"SF065", "SF090", "SF091", "SF092"}  # tests/e2e
    elsewhere |= {"SF029"}  # tests/unit/test_deep.py
    elsewhere |= {"SF072"}  # tests/unit/test_fit.py
    elsewhere |= {"SF078"}  # tests/unit/test_backends.py
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
