"""`specflow explain --cost`, as a person calls it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from specflow.cli import main
from tests.conftest import ROOT


def said(capsys, *words: str) -> dict[str, list[str]]:
    """The table by its first column."""
    assert main(["explain", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("number "))
    at = [lines[head].index(word) for word in ("number", "value", "formula")]
    return {
        line[: at[1]].strip(): [line[at[1] : at[2]].strip(), line[at[2] :].strip()]
        for line in lines[head + 1 :]
    }


def test_every_number_has_its_formula(capsys) -> None:
    rows = said(capsys, "pico/eagle3", "--cost")
    assert rows["machine"][0] == "cpu"
    assert "assumed" in rows["machine"][1]
    assert rows["target weights"] == [
        "13.3 MiB",
        "3,475,712 weights x 4 bytes of float32 (run.dtype)",
    ]
    assert rows["KV a token"][1] == "(target 4 layers x 256 + draft 1 layer x 512) x 4 bytes"
    assert rows["break-even accept length"][1].startswith("T_step / T_plain = ")
    assert rows["speedup at accept length 4"][1].startswith("estimate: 4 / ")
    assert all(formula for _, formula in rows.values())


def test_the_machine_and_the_accept_length_are_asked_for(capsys) -> None:
    rows = said(
        capsys, "llama/llama3_1_eagle3_chain", "run.dtype=bfloat16", "--cost", "--gpu", "h200",
        "--accept-length", "2.9", "--context", "1024",
    )  # fmt: skip
    assert rows["context"] == ["1024", "tokens into every request: half of run.max_length 2048"]
    assert rows["machine"][1].startswith("989 TFLOP/s in bfloat16, 4.8 TB/s")
    assert rows["break-even accept length"][0] == "1.16"
    assert rows["speedup at accept length 2.9"] == ["2.51x", "estimate: 2.9 / 1.16"]


def test_an_accept_length_comes_from_a_report(capsys, tmp_path) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"accept_length": 2.5}))
    rows = said(capsys, "pico/eagle3", "--cost", "--accept-length", str(report))
    assert "speedup at accept length 2.5" in rows


def test_json_has_the_bare_numbers(capsys) -> None:
    assert main(["explain", "pico/nextn", "--cost", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = found["rows"]
    assert rows["T_step"]["value"] == pytest.approx(
        rows["T_draft"]["value"] + rows["T_verify"]["value"]
    )
    assert rows["largest batch"]["unit"] == "requests"
    assert (found["estimate"][:11], found["unknown"]) == ("by roofline", [])
    assert [f["kind"] for f in found["forwards"]] == [
        "decode_hidden",
        "verify_hidden",
        "extend_hidden",
    ]


def test_what_is_not_known_is_said(capsys) -> None:
    rows = said(capsys, "kimi/k3_dspark", "--cost")
    assert "no rule counts the weights of `moonshotai/Kimi-K3`" in rows["unknown"][1]
    assert rows["draft forwards"][0] == "1"
    assert "break-even accept length" not in rows


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--gpu", "h200"], "`--gpu` is for the estimate of `--cost`"),
        (["--cost", "draft.num_steps"], "`--cost` explains the whole step"),
        (["--cost", "--engine", "sglang@0.5.23"], "`--cost` and `--engine` explain two things"),
        (["--cost", "--context", "99999"], "`--context 99999` is no place in a request"),
        (["--cost", "--accept-length", "9"], "a step gains 1 to 4 tokens"),
        (["--cost", "--accept-length", "nan"], "a step gains 1 to 4 tokens"),
        (["--cost", "--accept-length", "/no/such"], "neither a number nor a report"),
    ],
)
def test_what_cannot_be_asked(capsys, words: list[str], fault: str) -> None:
    assert main(["explain", "pico/eagle3", *words]) == 2
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"accept_length": "x"}', '{"accept_length": true}', "{"]
)
def test_a_report_that_is_none(capsys, tmp_path, text: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    assert main(["explain", "pico/eagle3", "--cost", "--accept-length", str(file)]) == 2
    assert "SF092" in capsys.readouterr().err


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from specflow.cli import main; main(['explain', 'pico/eagle3', '--cost']); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'transformers', 'jinja2')))"
    )
    assert not subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True
    ).returncode


def test_validate_tells_what_does_not_fit(capsys) -> None:
    words = ["validate", "pico/standalone", "run.batch_size=64", "--memory"]
    assert main([*words, "256MiB"]) == 1
    out = capsys.readouterr().out
    assert "error[SF072]: 64 requests and the weights take 339 MiB, more than 256 MiB" in out
    assert "help: lower `run.batch_size` to 47" in out
    assert main([*words, "1GiB"]) == 0
    assert "1 recipe, no findings" in capsys.readouterr().out
    assert main([*words, "256MiB", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["code"] == "SF072"


def test_a_memory_that_is_no_size(capsys) -> None:
    assert main(["validate", "pico/ngram", "--memory", "lots"]) == 2
    assert "`--memory lots` is no size" in capsys.readouterr().err


def test_a_recipe_at_fault_is_told_before_its_size(capsys) -> None:
    assert main(["validate", "pico/ngram", "draft.min_mach=3", "--memory", "1MiB"]) == 1
    assert "SF072" not in capsys.readouterr().out


def test_every_pack_can_be_held_against_a_memory(capsys) -> None:
    assert main(["validate", str(ROOT / "recipes"), "--memory", "80GiB", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    large = {d["file"].split("recipes/")[1] for d in found if d["severity"] == "error"}
    assert "deepseek/v3_nextn.yaml" in large
    assert not any(name.startswith(("pico/", "llama/", "qwen3/")) for name in large)


def test_a_mixture_says_how_many_experts_are_read(capsys) -> None:
    rows = said(capsys, "deepseek/v3_nextn", "run.batch_size=8", "--cost", "--gpu", "h200")
    assert rows["experts read, 8 rows"] == ["57.4", "of 256, expected: 256 (1 - (1 - 8/256)^8)"]
    assert rows["experts read, 32 rows"][0] == "163.3"
    assert rows["largest batch"] == ["0", "the weights alone are 18.1 times h200's memory"]


def test_a_yes_is_said_with_what_is_left(capsys) -> None:
    words = ["validate", "pico/standalone", "--memory", "1GiB"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "fits: 1 request and the weights take " in out
    assert "the largest `run.batch_size` is " in out
    assert main([*words, "--fit", "--format", "json"]) == 0
    held = json.loads(capsys.readouterr().out)["memory"]["pico/standalone"]
    assert held["fits"] is True
    assert held["total"] < held["memory"] == 2**30


def test_an_engine_is_held_by_its_own_flags(capsys) -> None:
    words = ["validate", "deepseek/v3_nextn", "run.dtype=bfloat16", "--memory", "141GB"]
    assert main([*words, "--strict", "run.device=cuda"]) == 1
    assert "more than 131 GiB" in capsys.readouterr().out
    engine = [*words, "--engine", "sglang", "--platform", "h200", "engine.sglang.tp_size="]
    assert main([*engine[:-1], "engine.sglang.tp_size=8", "--strict"]) == 0
    assert "on each of 8 GPUs" in capsys.readouterr().out
    assert main([*engine[:-1], "engine.sglang.tp_size=2"]) == 1
    assert "`engine.sglang.tp_size: 8`" in capsys.readouterr().out


ABOUT_A_GPU = [
    ["validate", "--memory", "h200"],
    ["validate", "--engine", "sglang", "--platform", "h200"],
    ["explain", "--cost", "--gpu", "h200"],
    ["explain", "--engine", "sglang"],
]


@pytest.mark.parametrize("words", ABOUT_A_GPU, ids=" ".join)
def test_a_question_about_a_gpu_is_not_of_a_cpu(capsys, words: list[str]) -> None:
    words = [words[0], "llama/llama3_1_eagle3_chain", "run.dtype=bfloat16", *words[1:]]
    main(words)
    said = capsys.readouterr()
    assert "SF074" not in said.out + said.err
    main([*words, "run.device=cpu"])  # which somebody wrote
    said = capsys.readouterr()
    assert "SF074" in said.out + said.err


def test_a_question_about_a_cpu_is_of_a_cpu(capsys) -> None:
    for words in (["--memory", "80GiB"], ["--memory", "cpu"]):
        main(["validate", "pico/eagle3", "run.dtype=bfloat16", *words])
        assert "SF074" in capsys.readouterr().out


def test_the_device_that_is_asked_about_is_said(capsys) -> None:
    rows = said(capsys, "pico/eagle3", "--cost", "--gpu", "h200")
    assert rows["device"] == ["cuda", "run.device, derived: what was asked is about a GPU"]
