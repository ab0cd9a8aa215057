"""The command line as a person uses it: exit codes, streams, files; never a traceback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT


def specflow(*words: str, cwd: Path = ROOT, timeout: int = 300) -> subprocess.CompletedProcess[str]:
    """Run the command; a traceback is a failure wherever it shows."""
    done = subprocess.run(
        [sys.executable, "-m", "specflow", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of one's own."""
    file = tmp_path / "mine.yaml"
    file.write_text("target: {model: builtin:pico-llama}\ndraft: {algorithm: NGRAM}\n")
    return file


def test_help_has_an_example_of_each_command() -> None:
    said = specflow("--help").stdout
    for command in ("run", "validate", "explain", "diff", "compile", "rule", "rules", "recipes"):
        assert f"\n  specflow {command}" in said


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("name", "least"), [("pico/ngram", 1.3), ("pico/standalone", 1.8)])
def test_run_is_lossless_and_pays(name: str, least: float, batch: int, tmp_path: Path) -> None:
    done = specflow(
        "run", name, "--check-lossless", "--out", str(tmp_path), f"run.batch_size={batch}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["schema"] == 1
    assert report["prompts"]["count"] >= 16
    assert not report["lossless"]["failed"]
    assert report["accept_length"] > least
    lines = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text().splitlines()]
    assert len(lines) == report["prompts"]["count"]
    totals = report["totals"]
    assert totals["completion_tokens"] == sum(len(line["token_ids"]) for line in lines)
    assert totals["accepted"] + totals["verifies"] == sum(
        sum(line["accept_lens"]) for line in lines
    )
    assert totals["completion_tokens"] == len(lines) + totals["accepted"] + totals["verifies"]
    assert report["seconds"]["total"] >= report["forward_seconds"] > 0
    assert sum(report["accept_histogram"]) == totals["verifies"]


def test_samples_repeat_with_their_seed_and_mix_with_greedy(tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    text = "import os\n\n\ndef read("
    file.write_text(
        json.dumps({"id": "a", "prompt": text})
        + "\n"
        + json.dumps({"id": "b", "prompt": text, "temperature": 0})
        + "\n"
        + json.dumps({"id": "c", "prompt": text, "seed": 5})
        + "\n"
    )
    said = []
    for turn, seed in enumerate((1, 1, 2)):
        out = tmp_path / str(turn)
        done = specflow(
            "run",
            "pico/standalone_sampled",
            "--prompts",
            str(file),
            "--out",
            str(out),
            "--no-baseline",
            f"sampling.seed={seed}",
            "sampling.max_new_tokens=30",
            "run.batch_size=3",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = (out / "completions.jsonl").read_text().splitlines()
        said.append({d["id"]: d["token_ids"] for d in map(json.loads, lines)})
    assert said[0] == said[1]
    assert said[0]["a"] != said[2]["a"]
    assert said[0]["b"] == said[2]["b"]  # greedy knows no seed
    assert said[0]["c"] == said[2]["c"]  # a line's own seed stands over the recipe's


def test_tokens_that_are_drawn_cannot_be_compared() -> None:
    done = specflow("run", "pico/standalone_sampled", "--check-lossless")
    assert done.returncode == 2
    assert "sampling.temperature=0" in done.stderr


def test_one_prompt_prints_its_text(recipe: Path) -> None:
    done = specflow(
        "run",
        str(recipe),
        "--prompt",
        "import os\nimport ",
        "--no-baseline",
        "sampling.max_new_tokens=8",
    )
    assert done.returncode == 0
    assert "accept length" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr  # no colour where nobody looks


def test_a_stop_string_ends_a_completion(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    specflow(
        "run",
        str(recipe),
        "--prompt",
        "def add(a, b):\n    return ",
        "--no-baseline",
        "--out",
        str(out),
        'sampling.stop=["\\n"]',
        "sampling.max_new_tokens=60",
    )
    line = json.loads((out / "completions.jsonl").read_text())
    assert line["finish_reason"] == "stop"
    assert "\n" not in line["text"]


def test_bad_lines_are_named_and_the_others_run(recipe: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    long = "x = 1\n" * 2000
    file.write_text(
        "\n".join(
            [
                json.dumps({"id": "good", "prompt": "import os\n"}),
                "{not json",
                json.dumps({"id": "empty", "prompt": " "}),
                json.dumps({"id": "long", "prompt": long}),
                json.dumps({"id": "good", "prompt": "again"}),
                "",
                json.dumps({"id": "also", "messages": [{"role": "user", "content": "def f(x):"}]}),
            ]
        )
    )
    out = tmp_path / "out"
    done = specflow(
        "run",
        str(recipe),
        "--prompts",
        str(file),
        "--out",
        str(out),
        "--no-baseline",
        "sampling.max_new_tokens=4",
    )
    assert done.returncode == 1
    for code, where in (("SF101", ":2:1"), ("SF104", ":3:1"), ("SF103", ":4:1"), ("SF105", ":5:1")):
        assert code in done.stdout
        assert where in done.stdout
    ids = [json.loads(line)["id"] for line in (out / "completions.jsonl").read_text().splitlines()]
    assert ids == ["good", "also"]


def test_out_that_cannot_be_written_is_told_before_models_load(
    recipe: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    began = time.monotonic()
    done = specflow("run", str(recipe), "--prompt", "x", "--out", str(tmp_path / "file" / "out"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "loading" not in done.stderr
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "pico/none_such", "--prompt", "x"), 2),
        (("validate", "pico/ngramm"), 2),
        (("validate", "missing.yaml"), 2),
        (("run", "pico/plain", "--prompts", "missing.jsonl"), 2),
        (("run", "pico/plain", "--prompt", "  "), 2),
        (("run", "pico/plain", "--prompt", "x", "draft.nonsense=1"), 1),
        (("run", "pico/plain", "--prompt", "x", "run.device=cuda"), 1),
        (("rule", "SF999"), 2),
        (("explain", "pico/ngram", "draft.min_matsch"), 2),
        (("diff", "pico/ngram", "pico/ngram"), 0),
        (("diff", "pico/ngram", "pico/standalone"), 1),
        (("validate", "pico/ngram", "run.dtype=bfloat16"), 0),
        (("validate", "pico/ngram", "run.dtype=bfloat16", "--strict"), 1),
        (("compile", "pico/ngram", "--show", "graph"), 0),
        (("compile", "pico/ngram", "--show", "code"), 0),
        (("compile", "pico/ngram", "--show", "kernels"), 0),
        (("recipes",), 0),
        (("rules",), 0),
        (("rule", "SF012"), 0),
        (("nonsense",), 2),
    ],
)
def test_exit_codes(words: tuple[str, ...], code: int) -> None:
    done = specflow(*words)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout + done.stderr


def test_compile_tells_why_and_keeps_a_hand_edited_module(tmp_path: Path) -> None:
    first = specflow("compile", "pico/ngram", "-o", str(tmp_path))
    assert "rebuilt: missing" in first.stdout
    assert "unchanged" in specflow("compile", "pico/ngram", "-o", str(tmp_path)).stdout
    assert (
        "recipe-changed"
        in specflow("compile", "pico/ngram", "draft.min_match=3", "-o", str(tmp_path)).stdout
    )
    file = tmp_path / "pico" / "ngram" / "step.py"
    file.write_text(file.read_text() + "# mine\n")
    kept = specflow("compile", "pico/ngram", "-o", str(tmp_path))
    assert kept.returncode == 1
    assert "edited by hand" in kept.stderr
    assert file.read_text().endswith("# mine\n")
    done = specflow("compile", "pico/ngram", "-o", str(tmp_path), "--force")
    assert done.returncode == 0
    assert "instead" not in done.stdout
    other = specflow("compile", "pico/ngram", "run.compile=inductor", "-o", str(tmp_path))
    assert "runs step.py, compiled whole, instead" in other.stdout


def test_ctrl_c_keeps_what_has_ended(tmp_path: Path) -> None:
    prompts = tmp_path / "many.jsonl"
    line = {"prompt": "import os\n", "max_new_tokens": 200}
    prompts.write_text("\n".join(json.dumps(line | {"id": str(i)}) for i in range(2000)))
    out = tmp_path / "out"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "specflow",
            "run",
            "pico/plain",
            "--prompts",
            str(prompts),
            "--out",
            str(out),
            "--format",
            "json",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(600):
        time.sleep(0.1)
        if (out / "completions.jsonl").exists() and (out / "completions.jsonl").read_text().count(
            "\n"
        ) >= 2:
            break
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in stderr
    report = json.loads((out / "report.json").read_text())
    assert report["cut_short"]
    assert json.loads(stdout)["cut_short"]
    kept = (out / "completions.jsonl").read_text().splitlines()
    assert 2 <= len(kept) < 2000
    assert report["totals"]["completion_tokens"] == sum(
        len(json.loads(k)["token_ids"]) for k in kept
    )


def test_a_traceback_would_show_the_generated_lines(tmp_path: Path) -> None:
    """The module lies in a file of its own name: debuggers and tracebacks find its lines."""
    from specflow.codegen import emit
    from specflow.load import load
    from specflow.lower import lower
    from specflow.packs import find
    from specflow.resolve import resolve

    resolved = resolve(load(find("pico/ngram")))
    module = emit(lower(resolved), resolved)
    step = module.load(tmp_path)
    assert step.__file__ == str(tmp_path / module.fingerprint / "pico" / "ngram" / "step.py")
    assert step.verify.__code__.co_filename == step.__file__
