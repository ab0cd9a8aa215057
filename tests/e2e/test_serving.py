"""`specflow run --engine`, on stand-ins for the packages: tests/engine_fakes.py."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec

import pytest

from specflow.cli import main
from specflow.engines.sglang.flags import FLAGS
from specflow.report import Tally, merged
from tests import engine_fakes as fakes

PROMPTS = [
    {"id": "a", "prompt": "import os", "max_new_tokens": 9},
    {"id": "b", "prompt": "def read(", "max_new_tokens": 7, "temperature": 0.5, "seed": 3},
]
HELD = ([3, 0, 1], [2, 2])  # guesses that held in each step of either request


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, PROMPTS)))
    return str(file)


@pytest.fixture
def engine(monkeypatch):
    """Puts a stand-in where a package would be."""

    def put(module):
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return put


def report_of(words, capsys, code=0):
    assert main([*words, "--format", "json"]) == code
    return json.loads(capsys.readouterr().out)


def words(prompts, recipe="pico/eagle", name="sglang", *more):
    accept = "verify.accept=target_only"
    return ["run", recipe, accept, "--engine", name, "--prompts", prompts, *more]


def test_counters_of_sglang_are_the_reports(engine, prompts, capsys, tmp_path) -> None:
    log = fakes.Log()
    engine(fakes.sglang(lambda i: HELD[i], log))
    out = tmp_path / "out"
    report = report_of(words(prompts, "pico/eagle", "sglang", "--out", str(out)), capsys)
    assert report["schema"] == 1
    assert report["totals"] == {
        "completion_tokens": 16,
        "verifies": 5,
        "drafted": 15,
        "accepted": 8,
    }
    assert report["accept_length"] == 13 / 5
    assert report["accept_histogram"] == [1, 1, 2, 1]
    assert report["accept_rate_at"] == [4 / 5, 3 / 5, 1 / 5]
    assert report["cond_accept_rate_at"] == [4 / 5, 3 / 4, 1 / 3]
    assert report["per_prompt"] == {"min": 7 / 3, "median": (7 / 3 + 3) / 2, "max": 3}
    assert report["speedup"] > 0
    assert any("the whole width for every step" in text for text in report["warnings"])
    assert json.loads((out / "report.json").read_text()) == report
    lines = [json.loads(line) for line in (out / "completions.jsonl").read_text().splitlines()]
    assert [(line["id"], len(line["token_ids"])) for line in lines] == [("a", 9), ("b", 7)]
    # started with what `export` writes; again without a draft; both stopped
    first, plain = log.started
    assert set(first) <= set(FLAGS.all)
    assert first["speculative_num_steps"] == 3
    assert not [name for name in plain if name.startswith("speculative")]
    assert log.closed == 2
    own = log.asked[0]["sampling_params"]
    assert [p["max_new_tokens"] for p in own] == [9, 7]
    assert [p["temperature"] for p in own] == [0.0, 0.5]
    assert own[0]["top_k"] == -1


def test_without_a_histogram_the_count_is_marked_as_inexact(engine, prompts, capsys) -> None:
    engine(fakes.sglang(lambda i: HELD[i], fakes.Log(), histogram=False))
    report = report_of(words(prompts, "pico/eagle", "sglang", "--no-baseline"), capsys)
    # 9 - 1 - 3 and 7 - 1 - 2
    assert report["totals"]["accepted"] == 5 + 4
    assert report["accept_histogram"] is None
    assert "accept_rate_at" not in report
    assert any("completion tokens less one" in text for text in report["engine"]["conversions"])


def test_words_are_compared_with_those_of_the_engine_alone(engine, prompts, capsys) -> None:
    log = fakes.Log()
    engine(fakes.sglang(lambda i: HELD[i], log, twist=1))
    more = ("--check-lossless", "--no-baseline")
    report = report_of(words(prompts, "pico/eagle", "sglang", *more), capsys)
    assert report["lossless"]["identical"] == 0
    assert [d["index"] for d in report["lossless"]["differences"]] == [8]  # "b" is drawn
    assert "baseline" not in report
    assert any("logits are not at hand" in text for text in report["warnings"])
    assert main(words(prompts, "pico/eagle", "sglang", *more)) == 0
    said = "not told apart: 0 of 1 completions identical, 1 drawn and not compared"
    assert said in capsys.readouterr().out
    engine(fakes.sglang(lambda i: HELD[i], log))
    report = report_of(words(prompts, "pico/eagle", "sglang", *more), capsys)
    assert report["lossless"]["verdict"].startswith("yes: 1 of 1")


def test_variables_and_files_are_there_when_it_starts(engine, prompts, capsys, monkeypatch) -> None:
    import os
    from pathlib import Path

    seen = {}

    class Engine:
        def __init__(self, **kwargs):
            seen["mode"] = os.environ.get("SGLANG_RAGGED_VERIFY_MODE")
            file = kwargs.get("speculative_adaptive_config")
            seen["slots"] = json.loads(Path(file).read_text()) if file else None
            raise RuntimeError("seen enough\nand more")

    made = fakes.sglang(lambda i: HELD[i], fakes.Log())
    made.Engine = Engine
    engine(made)
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", "static")  # restored after the test
    assert main(["run", "pico/dspark_planned", "--engine", "sglang", "--prompts", prompts]) == 1
    err = capsys.readouterr().err
    assert "SGLang of no known version gave up: RuntimeError: seen enough" in err
    assert seen == {"mode": "compact", "slots": None}
    slots = "draft.adaptive_slots={1: [1, 3], 8: [1]}"
    adaptive = ["draft.adaptive=true", slots, "draft.num_steps=3"]
    main(["run", "pico/eagle", *adaptive, "--engine", "sglang", "--prompts", prompts])
    capsys.readouterr()
    assert seen["slots"] == {"1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [1]}}


def test_fields_for_many_machines_pass_through(engine, prompts, capsys) -> None:
    log = fakes.Log()
    engine(fakes.sglang(lambda i: HELD[i], log))
    fields = ["engine.sglang.tp_size=4", "engine.sglang.nnodes=2", "engine.sglang.node_rank=0"]
    report_of([*words(prompts), *fields, "--no-baseline"], capsys)
    assert log.started[0]["tp_size"] == 4
    assert log.started[0]["nnodes"] == 2


def test_an_engine_that_is_not_here_is_told_with_what_installs_it(prompts, capsys) -> None:
    pytest.importorskip  # noqa: B018 - neither package is a dependency of the tests
    if "sglang" in sys.modules:
        pytest.skip("sglang is installed")
    assert main(words(prompts)) == 2
    said = capsys.readouterr().err
    assert "SGLang is not installed" in said
    assert "pip install 'sglang==0.5.23'" in said


def test_a_recipe_that_the_engine_refuses_does_not_start_it(engine, prompts, capsys) -> None:
    log = fakes.Log()
    engine(fakes.sglang(lambda i: HELD[i], log))
    assert main([*words(prompts, "pico/dspark"), "--platform", "cpu"]) == 1
    assert "SF110" in capsys.readouterr().err
    assert not log.started


def test_tallies_add_up() -> None:
    a, b, none = Tally(3, 9, 4, (1, 0, 2)), Tally(1, 3, 0, (1,)), Tally(2, 6, 1, None)
    assert merged([a, b]) == Tally(4, 12, 4, (2, 0, 2))
    assert merged([a, none]) == Tally(5, 15, 5, None)
    assert merged([a, Tally(0, 0, 0, None)]).histogram == (1, 0, 2)
    assert merged([]) == Tally(0, 0, 0, None)
    assert merged([]).accept_length == 0


def test_counters_of_vllm_are_the_reports(engine, prompts, capsys) -> None:
    log = fakes.Log()
    engine(fakes.vllm(lambda i: HELD[i], log))
    report = report_of(words(prompts, "pico/eagle3", "vllm"), capsys)
    assert report["totals"] == {
        "completion_tokens": 16,
        "verifies": 5,
        "drafted": 15,
        "accepted": 8,
    }
    assert report["accept_histogram"] == [1, 1, 2, 1]
    assert report["accept_rate_at"] == [4 / 5, 3 / 5, 1 / 5]
    assert report["per_prompt"] is None
    assert any("all requests at once" in text for text in report["warnings"])
    first, plain = log.started
    assert first["speculative_config"]["method"] == "eagle3"
    assert first["speculative_config"]["num_speculative_tokens"] == 3
    assert first["disable_log_stats"] is False
    assert "speculative_config" not in plain
    assert [p.max_tokens for p in log.asked[0]["params"]] == [9, 7]
    assert main(words(prompts, "pico/eagle3", "vllm")) == 0
    assert "accept length" in capsys.readouterr().out


def test_a_tree_does_not_start_vllm(engine, prompts, capsys) -> None:
    log = fakes.Log()
    engine(fakes.vllm(lambda i: HELD[i], log))
    assert main(words(prompts, "pico/eagle3_tree", "vllm")) == 1
    assert "SF119" in capsys.readouterr().err
    assert not log.started
