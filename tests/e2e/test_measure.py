"""`specflow profile` and `specflow calibrate`: the files they make are those that recipes name."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from specflow.cli import main
from specflow.models.loading import open_model
from specflow.planning import Additive, Points, read_table
from specflow.temperatures import read_temperatures
from tests.conftest import ROOT

PROMPTS = str(ROOT / "recipes" / "pico" / "prompts" / "code.jsonl")
TEXT = """target: {model: builtin:pico-llama}
draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}
verify: {shape: ragged, cost_table: cost.json, temperatures: heat.json}
sampling: {max_new_tokens: 24}
run: {batch_size: 2, threads: 1}
"""
SHORT = ("--steps", "2", "--warmup", "1")


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """A recipe whose files are still to be made."""
    file = tmp_path / "mine.yaml"
    file.write_text(TEXT)
    return str(file)


def test_a_recipe_runs_on_what_was_measured(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", recipe]) == 1
    assert "SF052" in capsys.readouterr().out
    cost, heat = tmp_path / "cost.json", tmp_path / "heat.json"
    assert main(["profile", recipe, *SHORT, "-o", str(cost)]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split() == [
        *("batch", "tokens", "median", "ms", "p10..p90", "ms", "steps/s", "tokens/s")
    ]
    assert "SF05" not in said.out + said.err
    table, problem = read_table(cost)
    assert problem is None
    assert isinstance(table, Points)
    assert (table.tokens[0], table.tokens[-1], table.most) == (2, 16, 16)
    limit = ("--limit", "6")
    assert main(["calibrate", recipe, "--prompts", PROMPTS, *limit, "-o", str(heat)]) == 0
    said = capsys.readouterr()
    assert "accept: greedy" in said.out
    assert len([line for line in said.out.splitlines() if line[:1].isdigit()]) == 7
    kept = json.loads(heat.read_text())
    assert kept["num_samples"] >= 50
    assert kept["dataset"] == PROMPTS
    assert len(kept["ece_before"]) == len(kept["ece_after"]) == 7
    assert read_temperatures(heat, 7)[1] is None
    assert main(["validate", recipe, "--strict"]) == 0
    words = ["run", recipe, "--prompts", PROMPTS, "--limit", "2", "--no-baseline"]
    assert main([*words, "sampling.max_new_tokens=6"]) == 0


def test_additive(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deep" / "sum.json"
    words = ("--additive", "--batch", "3,1", "--format", "json")
    assert main(["profile", recipe, *words, *SHORT, "-o", str(file)]) == 0
    said = json.loads(capsys.readouterr().out)
    table, problem = read_table(file)
    assert problem is None
    assert isinstance(table, Additive)
    assert table.rows == (1, 3)
    assert said["table"] == json.loads(file.read_text())
    assert {(p["batch"], p["tokens"]) for p in said["points"]} >= {(1, 1), (1, 8), (3, 3), (3, 24)}
    assert any("fit misses" in note for note in said["notes"])


def test_a_draft_that_plans_by_averages(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    draft = ("draft.algorithm=DFLASH", "draft.model=builtin:pico-llama-dflash")
    words = (*draft, "verify={shape: chain}", "~verify.cost_table", "~verify.temperatures")
    assert main(["profile", recipe, *words, "--batch", "1,2", *SHORT]) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:4]]
    assert rows[0][0] == "1"
    assert int(rows[1][1]) == 2 * int(rows[0][1])


def test_prompts_of_the_recipe_are_the_text(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "def f(x):\\n"}\n{"prompt": "import os\\n"}\n')
    Path(recipe).write_text(TEXT.replace("threads: 1", "threads: 1, prompts: p.jsonl"))
    assert main(["profile", recipe, "--batch", "1", *SHORT]) == 0
    (tmp_path / "p.jsonl").write_text("")
    assert main(["profile", recipe, "--batch", "1", *SHORT]) == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("profile", "pico/ngram"), 2, "DFLASH and DSPARK"),
        (("profile", "pico/plain"), 2, "DFLASH and DSPARK"),
        (("calibrate", "pico/standalone", "--prompts", PROMPTS), 2, "DFLASH and DSPARK"),
        (("profile", "MINE", "-o", "MINE"), 2, "is a file that is read"),
        (("profile", "MINE", "-o", "MINE/cost.json"), 2, "cannot be written"),
        (("profile", "MINE", "-o", "MINE", "--overwrite"), 2, "is a file that is read"),
        (("calibrate", "MINE", "--prompts", "MINE", "-o", "MINE"), 2, "not JSON"),
        (("profile", "MINE", "-o", str(ROOT)), 2, "is no file"),
        (("profile", "MINE", "-o", str(ROOT / "README.md")), 2, "--overwrite"),
        (("profile", "MINE", "-o", "."), 2, "is no file"),
        (("profile", "MINE", "-o", ""), 2, "names nothing"),
        (("profile", "MINE", "-o", "x" * 300), 2, "too long"),
        (("profile", "MINE", "-o", f"{'x' * 300}/y"), 2, "too long"),
        (("profile", "MINE", "--batch", "257"), 1, "256"),
        (("profile", "MINE", "run.max_length=9"), 1, "run.max_length"),
        (("profile", "MINE", "run.device=cuda"), 1, "CUDA"),
        (("profile", "missing.yaml"), 2, "missing.yaml"),
        (("calibrate", "MINE", "--prompts", "missing.jsonl"), 2, "missing.jsonl"),
        (("calibrate", "MINE", "--prompts", PROMPTS, "--limit", "1"), 1, "too few"),
        (("calibrate", "MINE", "--prompts", PROMPTS, "-o", "MINE"), 2, "is a file that is read"),
    ],
)
def test_what_cannot_be(
    words: tuple[str, ...],
    code: int,
    said: str,
    recipe: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([word.replace("MINE", recipe) for word in words]) == code
    told = capsys.readouterr()
    assert said in told.out + told.err
    assert Path(recipe).read_text() == TEXT


def test_a_draft_without_a_head_is_not_calibrated(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(recipe).write_text(
        "target: {model: builtin:pico-llama}\n"
        "draft: {algorithm: DFLASH, model: builtin:pico-llama-dflash}\n"
    )
    assert main(["calibrate", recipe, "--prompts", PROMPTS]) == 2
    assert "no confidence head" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [("--steps", "0"), ("--steps", "x"), ("--warmup", "-1"), ("--batch", "1,0"), ("--batch", "")],
)
def test_numbers_that_are_none(
    words: tuple[str, str], recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["profile", recipe, *words])
    assert left.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_ctrl_c_says_what_was_measured_and_writes_nothing(recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    words = ("profile", recipe, "--batch", "1", "--steps", "100000", "--warmup", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "specflow", *words, "-o", str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("timing"):
            break
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in stderr
    assert "cut short: Ctrl-C" in stdout
    assert stdout.splitlines()[2].split()[:2] == ["1", "8"]
    assert list(tmp_path.iterdir()) == [Path(recipe)]


LINES = '{"id": "a", "prompt": "def f(x):\\n"}\nnot json\n{"id": "b", "prompt": "x", "odd": 1}\n'
LONG = '{"id": "long", "prompt": "' + 5000 * "x y " + '"}\n'


def test_profile_tells_prompts_at_fault_and_uses_the_others(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "cost.json"
    prompts.write_text(LINES + LONG)
    words = ("profile", recipe, f"run.prompts={prompts}", "--batch", "1", *SHORT, "-o", str(out))
    assert main([*words]) == 1
    said = capsys.readouterr().out
    assert [code in said for code in ("SF101", "`odd`", "SF103")] == [True] * 3
    assert read_table(out)[1] is None
    prompts.write_text(LONG)
    assert main([*words, "--overwrite"]) == 1  # the text that is built in does not stand for it
    said = capsys.readouterr().out
    assert "no prompt could be used" in said
    assert "SF103" in said


def test_too_few_steps_do_not_hide_prompts_at_fault(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(LINES)
    assert main(["calibrate", recipe, "--prompts", str(prompts)]) == 1
    said = capsys.readouterr().out
    assert "too few" in said
    assert "SF101" in said
    assert main(["calibrate", recipe, "--prompts", str(prompts), "--format", "json"]) == 1
    said = capsys.readouterr()
    assert "too few" in json.loads(said.out)["stopped"]
    assert "SF101" in said.err


def test_a_head_that_says_no_number_is_told(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, out = tmp_path / "draft", tmp_path / "heat.json"
    shutil.copytree(open_model("builtin:pico-llama-dspark"), draft)
    weights = draft / "model.safetensors"
    tensors = load_file(weights)
    (weight,) = [name for name in tensors if "confidence" in name and name.endswith("weight")]
    tensors[weight].fill_(3e38)  # times anything it is infinite, and with either sign
    save_file(tensors, weights, {"format": "pt"})
    words = ("calibrate", recipe, f"draft.model={draft}", "--prompts", PROMPTS, "--limit", "6")
    assert main([*words, "-o", str(out)]) == 1
    assert "confidence head says no number" in capsys.readouterr().out
    assert not out.exists()


def test_what_the_calibration_error_means_is_said(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "heat.json"
    words = ("calibrate", recipe, "--prompts", PROMPTS, "--limit", "6", "-o", str(out))
    assert main([*words]) == 0
    assert "ECE is of survival" in capsys.readouterr().out
    assert "in sample" in json.loads(out.read_text())["note"]
