"""Every recipe that ships runs, on its stand-ins where it names them, and says what plain says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from specflow.cli import main
from specflow.load import load
from specflow.packs import names
from specflow.resolve import resolve
from tests.conftest import RECIPES, ROOT

NEW = 20


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it gives


def test_the_pack_is_whole() -> None:
    inside = ROOT / "recipes"
    assert names() == tuple(p.relative_to(inside).with_suffix("").as_posix() for p in RECIPES)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_recipe_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = load(path).written
    name = path.relative_to(ROOT / "recipes").with_suffix("").as_posix()
    greedy = not written.get("sampling", {}).get("temperature") and name != "pico/plain"
    words = ["run", name, "--limit", "2", "--format", "json", f"sampling.max_new_tokens={NEW}"]
    words += ["--prompts", str(ROOT / "recipes/pico/prompts/code.jsonl")]
    words += ["--stand-in"] if "stand_in" in written["target"] else []
    words += ["--check-lossless"] if greedy else []
    code = main(words)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    report = json.loads(printed.out)
    assert report["totals"]["completion_tokens"] == 2 * NEW
    assert ("baseline" in report) == (name != "pico/plain")
    if greedy:
        assert report["lossless"]["identical"] == 2


PLANNED = [p for p in RECIPES if "cost_table" in load(p).written.get("verify", {})]


@pytest.mark.parametrize("path", PLANNED, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_cost_table_reaches_as_far_as_a_step(path: Path) -> None:
    resolved = resolve(load(path))
    assert resolved.facts.cost.problem is None
    most = resolved.run.batch_size * resolved["verify.num_draft_tokens"]
    assert resolved.facts.cost.value.tokens[-1] >= most


@pytest.mark.parametrize("name", ["pico/dspark_planned", "pico/dflash_planned"])
def test_a_plan_for_a_whole_batch(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", name, "--limit", "18", "--format", "json", f"sampling.max_new_tokens={NEW}"]
    assert main([*words, "--check-lossless"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["lossless"]["identical"] == 18  # two of them in rows that others left


def test_a_recipe_without_stand_ins_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "pico/ngram", "--stand-in"]) == 1
    assert "error[SF065]: `--stand-in` is asked for" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["kimi/k3_dspark", "deepseek/v4_dspark"])
def test_a_model_for_another_engine_is_not_told_to_be_downloaded(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", name, "--limit", "1"]) == 1
    said = capsys.readouterr().err
    assert "hf download" not in said
    assert "--stand-in" in said
    (offer,) = re.findall(r"`specflow (export RECIPE [^`]*)`", said)
    assert main(offer.replace("RECIPE", name).split()) == 0
    assert "--model-path" in capsys.readouterr().out


def test_a_recorded_model_is_told_to_be_downloaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "llama/llama3_1_eagle3_chain", "--limit", "1"]) == 1
    said = capsys.readouterr().err
    assert "hf download meta-llama/Llama-3.1-8B-Instruct" in said
    assert "--stand-in" in said
