"""`specflow validate` as engineers use it in a shell and in CI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specflow.cli import main

ALLOWED = "allow: {SF074: this machine is slow either way}\n"
HALF = "target: {model: builtin:pico-llama}\ndraft: {algorithm: NGRAM}\nrun: {dtype: bfloat16}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(HALF)
    return file


def test_strict_counts_warnings_that_are_not_allowed(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(recipe)]) == 0
    assert "1 recipe, 1 warning" in capsys.readouterr().out
    assert main(["validate", str(recipe), "--strict"]) == 1
    recipe.write_text(HALF + ALLOWED)
    assert main(["validate", str(recipe), "--strict"]) == 0
    assert "no findings" in capsys.readouterr().out.splitlines()[-1]


def test_strict_counts_an_allow_that_silences_nothing(recipe: Path) -> None:
    recipe.write_text(HALF.replace("bfloat16", "float32") + ALLOWED.replace("SF074", "SF012"))
    assert main(["validate", str(recipe)]) == 0
    assert main(["validate", str(recipe), "--strict"]) == 1


def test_a_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "pico/standalone", "--memory", "80GiB"]) == 0
    assert main(["validate", "pico/standalone", "--memory", "10MiB", "--no-fit"]) == 1
    assert "SF072" in capsys.readouterr().out
    assert main(["validate", "pico/standalone", "--memory", "much"]) == 2
    assert "80GiB" in capsys.readouterr().err


def test_one_object_for_machines(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(recipe), "pico/eagle3", "--fit", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["code"] for each in said["findings"]] == ["SF074"]
    assert list(said["fit"]) == ["pico/eagle3"]
