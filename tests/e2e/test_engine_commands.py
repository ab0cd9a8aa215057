"""`explain --engine`, `export` and `import`, as a person calls them."""

from __future__ import annotations

import json

import pytest
import yaml

from specflow.cli import main
from specflow.load import loads
from specflow.resolve import resolve

SGLANG = ("--engine", "sglang@0.5.23")


def test_explain_shows_what_runs_and_by_which_rule(capsys) -> None:
    code = main(["explain", "llama/llama3_1_eagle3_tree", *SGLANG, "--platform", "b200"])
    assert code == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("--")}
    assert "3.4" in rows["--max-running-requests"].split()
    assert "48" in rows["--max-running-requests"].split()
    assert rows["--speculative-eagle-topk"].split()[1:3] == ["4", "4"]


def test_explain_as_json_has_every_decision(capsys) -> None:
    assert main(["explain", "pico/eagle", *SGLANG, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["effective"]["max_running_requests"] == 48
    assert {d["rule"] for d in said["decisions"]} >= {"3.4", "3.6"}


def test_a_refusal_is_a_finding(capsys) -> None:
    code = main(["explain", "pico/dspark", *SGLANG, "--platform", "cpu"])
    captured = capsys.readouterr()
    assert code == 1
    assert "error[SF110]" in captured.err
    assert "K1" in captured.err
    assert not captured.out


def test_what_the_engine_cannot_say_is_shown_where_it_is_written(capsys) -> None:
    assert main(["export", "kimi/k3_dspark", *SGLANG, "--platform", "b200"]) == 0
    err = capsys.readouterr().err
    assert "warning[SF111]: `draft.window_size`" in err
    assert "k3_dspark.yaml:14" in err


def test_an_export_comes_back_from_every_format_that_can_be_read(capsys, tmp_path) -> None:
    for form, name in {"args": "a.txt", "sh": "a.sh", "json": "a.json", "yaml": "a.yaml"}.items():
        assert main(["export", "pico/eagle3_tree", *SGLANG, "--format", form]) == 0
        file = tmp_path / name
        file.write_text(capsys.readouterr().out)
        assert main(["import", str(file), *SGLANG]) == 0
        recipe = resolve(loads(capsys.readouterr().out))
        assert (recipe.stages[0], recipe["draft.topk"], recipe["draft.num_steps"]) == (
            "EAGLE3",
            3,
            3,
        )


def test_flags_that_no_field_says_go_under_engine(capsys) -> None:
    words = "--model-path m --speculative-algorithm NGRAM --tp-size 8"
    assert main(["import", *SGLANG, "--args", words]) == 0
    captured = capsys.readouterr()
    assert not captured.err
    written = yaml.safe_load(captured.out)
    assert written["target"] == {"model": "m"}
    assert written["draft"] == {"algorithm": "NGRAM", "breadth": [1, 10]}
    assert written["engine"] == {"sglang": {"tp_size": 8}}


def test_a_flag_that_the_engine_has_not_is_a_finding_of_the_recipe(capsys) -> None:
    code = main(["export", "pico/ngram", *SGLANG, "engine.sglang.tp_sise=8"])
    captured = capsys.readouterr()
    assert code == 1
    assert "error[SF114]" in captured.err
    assert "did you mean tp_size" in captured.err
    assert not captured.out


def test_a_version_that_is_not_known_is_judged_by_the_nearest(capsys) -> None:
    assert main(["explain", "pico/eagle", "--engine", "sglang@0.5.30"]) == 0
    captured = capsys.readouterr()
    assert (
        "warning[SF115]: SGLang 0.5.30 is not known; judged by the rules of 0.5.23" in captured.err
    )
    assert captured.out.startswith("sglang@0.5.23 on h100")
    assert main(["explain", "pico/eagle", "--engine", "sglang@0.5"]) == 0
    assert "SF115" not in capsys.readouterr().err
    assert main(["explain", "pico/eagle", "--engine", "sglang@newest"]) == 2


def test_an_export_says_what_the_engine_will_overrule(capsys) -> None:
    words = ["export", "pico/dflash", *SGLANG, "engine.sglang.speculative_num_steps=3"]
    assert main(words) == 0
    err = capsys.readouterr().err
    assert "warning[SF116]: SGLang 0.5.23 on h100 will run 1, not 3" in err


def test_a_misspelt_flag_is_a_finding(capsys) -> None:
    assert main(["import", *SGLANG, "--args", "--speculative-num-stepps 3"]) == 1
    err = capsys.readouterr().out
    assert "error[SF114]" in err
    assert "speculative_num_steps" in err


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "pico/eagle", "--engine", "nosuch@1"],
        ["explain", "pico/eagle", *SGLANG, "--platform", "h1000"],
        ["explain", "pico/eagle", "draft.topk", *SGLANG],
        ["import", *SGLANG],
        ["import", *SGLANG, "no/such/file"],
    ],
)
def test_what_cannot_be_asked_is_told_as_usage(words, capsys) -> None:
    assert main(words) == 2
    assert "error[SF092]" in capsys.readouterr().err


def test_an_engine_is_found_without_its_version(capsys) -> None:
    assert main(["export", "pico/plain", "--engine", "sglang"]) == 0
    assert capsys.readouterr().out.startswith("--model-path ")


STARTS = "--model-path builtin:pico-llama --speculative-algorithm STANDALONE "
CHAIN = STARTS + "--speculative-draft-model-path builtin:pico-llama-s --speculative-eagle-topk 1 "


@pytest.mark.parametrize(
    ("steps", "width", "runs"), [(2, 2, 3), (3, 8, 4), (3, 4, None), (2, None, None)]
)
def test_a_width_that_the_engine_replaces_is_told_and_left_out(steps, width, runs, capsys) -> None:
    line = f"{CHAIN} --speculative-num-steps {steps}"
    line += f" --speculative-num-draft-tokens {width}" if width else ""
    assert main(["explain", f"sglang@0.5.23:{line}", "verify.num_draft_tokens"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("warning[SF116]") == (runs is not None)
    if runs is not None:
        assert f"SGLang 0.5.23 will run {runs}, not {width}" in captured.err
    assert f"verify.num_draft_tokens  {steps + 1}" in captured.out
    assert main(["validate", f"sglang:{line}", "--strict"]) == (runs is not None)


def test_arguments_that_contradict_each_other_are_no_recipe(capsys) -> None:
    line = "--speculative-algorithm DSPARK --speculative-dspark-block-size 7 "
    code = main(["import", *SGLANG, "--args", line + "--speculative-num-draft-tokens 7"])
    captured = capsys.readouterr()
    assert code == 1
    assert "error[SF118]" in captured.out + captured.err
    assert "must be 8" in captured.out + captured.err
    assert main(["import", *SGLANG, "--args", line + "--speculative-num-draft-tokens 8"]) == 0


def test_one_engines_arguments_go_to_a_file_of_another_form(capsys, tmp_path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text(f"python -m sglang.launch_server {CHAIN} --tp-size=2 --speculative-num-steps 3")
    assert main(["export", f"sglang:{file}", *SGLANG, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)["args"]
    assert said["tp_size"] == 2
    assert said["speculative_num_steps"] == 3


@pytest.mark.parametrize(
    "word",
    [
        "sglang:no/such/file",
        "sglang:",
        "sglang@x:--tp-size 2",
        "sglang:--tp-size two",
        "sglang:--tp-size 'open",
        "sglang:/dev",
        "trtllm:--x",
        "sglang:\0 --tp-size 2",
    ],
)
def test_an_operand_that_is_none_is_a_finding(word, capsys) -> None:
    assert main(["validate", word]) in (1, 2)
    captured = capsys.readouterr()
    assert "SF090" not in captured.out + captured.err
    assert "error[" in captured.out + captured.err


def test_slots_that_are_not_a_file_yet_are_judged_all_the_same(capsys) -> None:
    own = ["draft.adaptive=true", "draft.adaptive_slots={1: [1, 3], 8: [1]}", "draft.num_steps=3"]
    assert main(["export", "pico/eagle", *own, *SGLANG, "--format", "sh"]) == 0
    captured = capsys.readouterr()
    assert "error" not in captured.err
    assert "--speculative-adaptive-config adaptive_slots.json" in captured.out
    assert main(["explain", "pico/eagle", *own, *SGLANG]) == 0
    assert capsys.readouterr().out.count(" adaptive_slots.json") == 2  # asked, and runs


def test_validate_says_what_an_engine_makes_of_a_recipe(capsys) -> None:
    """vLLM answers 400 to min_p beside a draft, and the recipe says min_p (D8)."""
    words = ["sampling.temperature=1.0", "sampling.min_p=0.05"]
    assert main(["validate", "pico/eagle3", *words, "--engine", "vllm"]) == 0
    out = capsys.readouterr().out
    assert "warning[SF111]: `sampling.min_p`: vLLM answers 400" in out
    assert main(["validate", "pico/eagle3", *words, "--engine", "vllm", "--strict"]) == 1
    capsys.readouterr()
    assert main(["validate", "pico/plain", *words, "--engine", "vllm"]) == 0
    assert "min_p`" not in capsys.readouterr().out
    assert main(["validate", "pico/eagle3_tree", "--engine", "vllm"]) == 1
    assert "error[SF119]: `verify.shape`" in capsys.readouterr().out
    assert main(["validate", "pico/dspark", "--engine", "vllm", "--platform", "cpu"]) == 1
    assert "error[SF110]" in capsys.readouterr().out
    assert main(["validate", "pico/eagle3", "--platform", "cpu"]) == 2


def test_vllm_takes_what_sglang_was_asked_for(capsys) -> None:
    """Two steps and a width that SGLang replaces are two guesses (D1)."""
    line = f"{CHAIN} --speculative-num-steps 2 --speculative-num-draft-tokens 2"
    assert main(["export", f"sglang:{line}", "--engine", "vllm", "--format", "json"]) == 0
    spec = json.loads(capsys.readouterr().out)["args"]["speculative_config"]
    assert (spec["method"], spec["num_speculative_tokens"]) == ("draft_model", 2)


@pytest.mark.parametrize("form", ["args", "sh", "json", "yaml"])
def test_a_block_comes_back_from_every_form_of_vllm(form, capsys, tmp_path) -> None:
    """A DFLASH block of 8 and a DSPARK block of 7 are 7 guesses each (D7)."""
    for name, block in {"pico/dflash": 8, "pico/dspark": 7}.items():
        words = [name, f"draft.block_size={block}", "--engine", "vllm", "--format", form]
        assert main(["export", *words]) == 0
        text = capsys.readouterr().out
        assert '"num_speculative_tokens": 7' in text
        file = tmp_path / f"a.{form}"
        file.write_text(text)
        assert main(["import", str(file), "--engine", "vllm"]) == 0
        recipe = resolve(loads(capsys.readouterr().out))
        assert recipe["draft.block_size"] == block
        assert recipe["verify.num_draft_tokens"] == 8
