"""The examples of a rule's manual, run: a recipe, lines of prompts, or a command line.

The blocks before `Use instead:` give the rule's finding, those after it none of it. A `yaml` block
is a recipe named recipe.yaml, which is resolved; a `jsonl` block is a file of prompts, which is
read; a `sh` block is a command line, which is run beside the files of the other blocks.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from specflow import prompts
from specflow.cli import main
from specflow.errors import RecipeError
from specflow.load import load
from specflow.resolve import resolve

BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.S)
HEADINGS = ["## Why", "## Example", "Use instead:", "## Fix"]


@dataclass(frozen=True)
class Example:
    """Blocks by language."""

    blocks: tuple[tuple[str, str], ...]

    def found(self) -> set[str]:
        """The codes it gives, in the current folder."""
        text = dict(self.blocks)
        assert set(text) <= {"yaml", "jsonl", "sh"}, "a block of another language is not run"
        if "yaml" in text:
            Path("recipe.yaml").write_text(text["yaml"], encoding="utf-8")
        if "jsonl" in text:
            Path("prompts.jsonl").write_text(text["jsonl"], encoding="utf-8")
        if "sh" in text:
            return {code for line in commands(text["sh"]) for code in told(line)}
        if "jsonl" in text:
            return {found.code for found in prompts.read(Path("prompts.jsonl"), None).findings}
        try:
            return {found.code for found in resolve(load("recipe.yaml")).findings}
        except RecipeError as error:
            return {found.code for found in error.diagnostics}


def examples(doc: str) -> tuple[Example, Example]:
    """The failing example of a manual, and the passing one."""
    said = doc.partition("## Example\n")[2].partition("## Fix\n")[0]
    bad, _, good = said.partition("Use instead:\n")
    return Example(tuple(BLOCK.findall(bad))), Example(tuple(BLOCK.findall(good)))


def headings(doc: str) -> list[str]:
    """The headings of a manual, in order."""
    return re.findall(r"^(?:## \w+|Use instead:)$", doc, re.M)


def commands(text: str) -> list[list[str]]:
    """The command lines of a block as words; a quoted argument may go on in the next line."""
    words = [shlex.split(line) for line in re.split(r"^specflow ", text, flags=re.M) if line]
    assert words
    return words


def told(words: list[str]) -> set[str]:
    """The codes that a command prints; one that ends otherwise than findings do is a failure."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    assert code in (0, 1, 2)
    return set(
        re.findall(r"^(?:error|warning|note)\[(SF\d+)\]", out.getvalue() + err.getvalue(), re.M)
    )
