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
    assert main(["import", *SGLANG, "--args", "--speculative-num-step 3"]) == 1
    err = capsys.readouterr().err
    assert "error[SF114]" in err
    assert "speculative_num_steps" in err


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "pico/eagle", "--engine", "vllm@1"],
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
