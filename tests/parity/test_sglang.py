"""What SGLang 0.5.23 resolved, run by run, is what specflow tells without it.

`sglang-0.5.23.jsonl` was handed to the project; `sglang-0.5.23-more.jsonl` was recorded here, by
running the resolver of SGLang's wheel on tiny configs and pretended machines (its first line has
the configs by name).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specflow.engines.outcome import Effective, Refused
from specflow.engines.sglang.resolver import effective

HERE = Path(__file__).parent


def handed() -> list[dict]:
    return [json.loads(line) for line in (HERE / "sglang-0.5.23.jsonl").open()]


def recorded() -> list[dict]:
    first, *lines = (HERE / "sglang-0.5.23-more.jsonl").read_text().splitlines()
    configs = json.loads(first)["configs"]
    cases = [json.loads(line) for line in lines]
    for case in cases:
        case["target_config"] = configs[case["target_config"]]
        case["draft_config"] = configs.get(case.get("draft_config"))
    return cases


def told(case: dict) -> Effective | Refused:
    return effective(
        case["args"],
        case["target_config"],
        case.get("draft_config"),
        case["platform"],
        case.get("env"),
    )


@pytest.mark.parametrize("case", [*handed(), *recorded()], ids=lambda c: c["name"])
def test_the_outcome_is_the_engines(case) -> None:
    expected, got = case["expected"], told(case)
    if expected["refused"]:
        assert isinstance(got, Refused)
        assert got.reason
        assert (got.error, got.deliberate) == (expected["kind"], expected["deliberate"])
        return
    assert isinstance(got, Effective), got
    assert {k: got[k] for k in expected["resolved"]} == expected["resolved"]
    if "draft_is_target" in expected:
        path = got["speculative_draft_model_path"]
        is_target = None if path is None else path == got["model_path"]
        assert is_target == expected["draft_is_target"]


@pytest.mark.parametrize("case", handed(), ids=lambda c: c["name"])
def test_every_value_that_was_not_asked_for_is_explained(case) -> None:
    got = told(case)
    if isinstance(got, Refused):
        assert got.rule
        return
    asked = {k: v for k, v in case["args"].items() if v is not None}
    for decision in got.decisions:
        assert decision.rule
        assert decision.because
        assert decision.overrides == (decision.field in asked)
        assert got[decision.field] == decision.value != asked.get(decision.field)
    for field, value in asked.items():
        decision = got.decision(field)
        assert got[field] == (value if decision is None else decision.value)
