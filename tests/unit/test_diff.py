"""What is different between two recipes, what only looks so, and what an engine makes of it."""

from __future__ import annotations

import json
import shlex

import pytest

from specflow.cli import main
from specflow.diff import as_json, compared, diff
from specflow.load import loads
from specflow.resolve import resolve
from specflow.stages import DRAFTS

PAIR = "target: {model: builtin:pico-llama}\n"
DRAFT = "draft: {algorithm: STANDALONE, model: builtin:pico-llama-s%s}\n"
START = (
    "--model-path builtin:pico-llama --speculative-algorithm STANDALONE "
    "--speculative-draft-model-path builtin:pico-llama-s"
)


def of(more: str = "", rest: str = ""):
    return resolve(loads(PAIR + DRAFT % more + rest))


def chain(steps: int, width: int) -> str:
    return (
        f"sglang@0.5.23:{START} --speculative-num-steps {steps} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {width}"
    )


def test_a_default_that_is_written_out_differs_in_the_text_alone() -> None:
    both = compared(of(), of(", num_steps: 3"))
    assert not both.differs
    assert [(s.path, s.before, s.after, s.means) for s in both.textual] == [
        ("draft.num_steps", "not written", "3", "3")
    ]
    assert "resolve to the same recipe" in diff(both)
    assert "in the text alone" in diff(both)


def test_an_alias_and_its_name_differ_in_the_text_alone() -> None:
    text = "target: {model: deepseek-ai/DeepSeek-V3}\ndraft: {algorithm: %s}\n"
    both = compared(*(resolve(loads(text % name)) for name in ("NEXTN", "EAGLE")))
    assert not both.differs
    assert [(s.path, s.before, s.after, s.means) for s in both.textual] == [
        ("draft.algorithm", "NEXTN", "EAGLE", "EAGLE")
    ]


def test_one_more_step_is_a_field_a_position_and_a_forward() -> None:
    both = compared(of(), of(", num_steps: 4"))
    assert both.differs
    assert not both.textual
    said = as_json(both)
    assert {c["field"] for c in said["fields"]} == {"draft.num_steps", "verify.num_draft_tokens"}
    assert said["step"]["draft_forwards"] == {"before": 3, "after": 4}
    assert said["step"]["verified_positions"] == {"before": (4, 4), "after": (5, 5)}
    assert said["step"]["step_bytes"]["after"] > said["step"]["step_bytes"]["before"]
    for held in ("weight_bytes", "kv_bytes_a_token"):
        assert said["step"][held]["after"] == said["step"][held]["before"] > 0
    assert said["output"] == "the same tokens (greedy on both sides)"


def test_what_is_not_different_is_not_marked() -> None:
    lines = diff(compared(of(), of(", num_steps: 4"))).splitlines()
    marked = {line.split()[1] for line in lines if line.startswith("~")}
    assert "signal" not in marked
    assert "accept" not in marked
    assert {"draft.num_steps", "draft", "verify"} <= marked


@pytest.mark.parametrize(
    ("a", "b", "code", "textual"),
    [
        ((2, 2), (2, 3), 0, 1),  # D1: asked 2, effective 3
        ((3, 8), (3, 4), 0, 1),
        ((3, 4), (3, 4), 0, 0),
        ((3, 4), (2, 3), 1, 0),
    ],
)
@pytest.mark.parametrize("engine", [(), ("--engine", "sglang@0.5.23")])
def test_command_lines_are_compared_by_what_runs(a, b, code, textual, engine, capsys) -> None:
    assert main(["diff", chain(*a), chain(*b), "--format", "json", *engine]) == code
    said = json.loads(capsys.readouterr().out)
    assert said["differs"] == bool(code)
    if not code:
        assert len(said["textual"]) == textual


def test_a_recipe_and_a_command_line_are_compared(capsys) -> None:
    words = ["diff", "pico/standalone", chain(3, 4), "--engine", "sglang", "--format", "json"]
    main(words)
    said = json.loads(capsys.readouterr().out)
    assert not said["axes"]
    flags = {row["flag"] for row in said["engine"]["flags"]}
    assert "speculative_num_steps" not in flags
    main([*words[:2], chain(5, 6), *words[3:]])
    said = json.loads(capsys.readouterr().out)
    assert {"flag": "speculative_num_steps", "before": 3, "after": 5} in said["engine"]["flags"]


def test_flags_that_an_engine_is_told_by_name_count_at_that_engine_alone(capsys) -> None:
    a = f"sglang:{START} --speculative-num-steps 3 --speculative-eagle-topk 1 "
    a += "--speculative-num-draft-tokens 4"
    b = f"{a} --max-running-requests 48"
    # 48 is what SGLang takes where nobody says anything
    assert main(["diff", a, b, "--engine", "sglang"]) == 0
    assert "in the text alone" in capsys.readouterr().out
    assert main(["diff", a, f"{a} --tp-size 2", "--engine", "sglang"]) == 1
    assert "tp_size" in capsys.readouterr().out


def test_an_engine_that_does_not_start_is_told(capsys) -> None:
    words = ["diff", "pico/dspark", "pico/dflash", "--engine", "sglang", "--platform", "cpu"]
    assert main(words) == 1
    assert "SF110" in capsys.readouterr().err


def test_graph_and_code_are_in_both_forms(capsys) -> None:
    words = ["diff", "pico/ngram", "pico/plain", "--graph", "--code"]
    assert main(words) == 1
    text = capsys.readouterr().out
    assert main([*words, "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["graph"]
    assert "".join(said["graph"]) in text
    assert "".join(said["code"]) in text


def test_every_draft_is_compared_with_every_other() -> None:
    packs = {
        "NGRAM": "pico/ngram",
        "NONE": "pico/plain",
        "STANDALONE": "pico/standalone",
        "EAGLE": "pico/eagle",
        "EAGLE3": "pico/eagle3_tree",
        "DFLASH": "pico/dflash",
        "DSPARK": "pico/dspark_planned",
    }
    assert set(packs) <= set(DRAFTS.names())
    from specflow.load import load
    from specflow.packs import find

    recipes = [resolve(load(find(name))) for name in packs.values()]
    for a in recipes:
        for b in recipes:
            both = compared(a, b)
            assert both.differs == (a is not b)
            assert diff(both)
            json.dumps(as_json(both))


def test_an_argument_with_quotes_and_signs_survives(capsys) -> None:
    name = "a 'b' = \"c\" --d"
    line = f"sglang:{START} --served-model-name {shlex.quote(name)}"
    assert main(["explain", line, "engine.sglang.served_model_name", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fields"]["engine.sglang.served_model_name"][0]["value"] == name
