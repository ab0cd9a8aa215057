"""The rules say what vLLM's own class says: outcomes of drawn arguments, recorded from its code.

`record_vllm_outcomes.py` made the files. What the engine decides after that class (V18 and later)
is not in them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specflow.engines.outcome import Effective, Refused
from specflow.engines.vllm import effective
from specflow.engines.vllm.methods import BARE, LOOKUPS
from specflow.engines.vllm.versions import VERSIONS, key

HERE = Path(__file__).parent
TOLD = (
    *("method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"),
    *("draft_tensor_parallel_size", "parallel_drafting", "fly_window_size"),
)
LATER = 18  # rules from this number on are of what comes after the class


def cases(version: str):
    lines = (HERE / f"vllm-{version}.jsonl").read_text(encoding="utf-8").splitlines()
    configs = json.loads(lines[0])
    for line in lines[1:]:
        case = json.loads(line)
        args = {"model": "org/target", "tensor_parallel_size": case["tp"], "max_num_seqs": 8}
        args |= {"max_num_batched_tokens": 8192, "speculative_config": case["spec"]}
        target = configs["targets"][case["target"]]
        draft = None if case["draft"] is None else configs["drafts"][case["draft"]]
        yield case, effective(args, target, draft, "h100", version=version)


def compared(name: str, method: str) -> bool:
    """Values that stand for something: the class fills in others that nothing reads."""
    if name.startswith("prompt_lookup"):
        return method in LOOKUPS
    return name not in ("model", "draft_tensor_parallel_size") or method not in BARE


def differs(case, found: Effective | Refused) -> str:
    """What the rules say otherwise; empty where both say the same."""
    if "error" in case:
        return "" if isinstance(found, Refused) else f"accepted, not {case['error']}"
    if isinstance(found, Refused):
        return "" if int(found.rule[1:]) >= LATER else f"refused: {found.reason}"
    values = case["values"]
    wrong = [
        f"{name}: {found[key(name)]}, not {values.get(name)}"
        for name in TOLD
        if key(name) in found.values
        and compared(name, values["method"])
        and found[key(name)] != values.get(name)
    ]
    return ", ".join(wrong)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_outcome_is_told(version) -> None:
    wrong = [(case["spec"], differs(case, found)) for case, found in cases(version)]
    assert [pair for pair in wrong if pair[1]] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_record_has_both_kinds_of_outcome_for_every_method(version) -> None:
    """A record of errors alone would be told by refusing everything."""
    seen = {case["values"]["method"] for case, _ in cases(version) if "values" in case}
    assert seen >= {"ngram", "draft_model", "eagle", "eagle3", "mtp", "dflash", "suffix"}
    assert sum("error" in case for case, _ in cases(version)) > 100
