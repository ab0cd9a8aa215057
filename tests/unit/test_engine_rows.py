"""Rows that findings name can be looked up: `specflow rule sglang:O18`."""

from __future__ import annotations

import json
import re

import pytest

from specflow import published
from specflow.cli import main
from specflow.engines import ENGINES
from specflow.engines.vllm.rules import RULES
from tests.conftest import ROOT

# A row is said where a rule refuses, decides or remarks, or stands in a table before its text.
SAID = re.compile(r""""([A-Z]\d+|\d\.\d+)"(?=, |: \(|: "|\)?:| if| else)""")
HEADS = "ADEFGKNOPSUVZ"  # letters of SGLang's rows


def rows_in_code() -> set[str]:
    folder = ROOT / "specflow" / "engines" / "sglang"
    files = [p for p in folder.glob("*.py") if p.name not in ("rows.py", "tables.py")]
    found = {row for path in files for row in SAID.findall(path.read_text())}
    return {row for row in found if row[0] in HEADS or "." in row}


def test_every_row_of_sglang_has_a_sentence_and_no_other_has() -> None:
    known = set(ENGINES["sglang"].rows())
    assert rows_in_code() - known == set()
    text = "".join(
        p.read_text()
        for p in (ROOT / "specflow" / "engines" / "sglang").glob("*.py")
        if p.name != "rows.py"
    )
    assert [row for row in known if f'"{row}"' not in text] == []


@pytest.mark.parametrize("engine", ["vllm", "trtllm", "llamacpp"])
def test_every_row_of_another_engine_has_a_sentence(engine: str) -> None:
    folder = ROOT / "specflow" / "engines" / engine
    letter = engine[0].upper()
    text = "".join(p.read_text() for p in folder.glob("*.py"))
    used = set(re.findall(rf'"({letter}\d+)", ', text))
    known = ENGINES[engine].rows()
    assert used
    assert used <= set(known)
    assert all(known.values())
    if engine == "vllm":
        assert known.keys() == RULES.keys()


def test_a_row_is_printed(capsys) -> None:
    assert main(["rule", "sglang:o18"]) == 0
    assert capsys.readouterr().out.startswith("SGLang O18: a draft's context")
    assert main(["rule", "SGLang@0.5.23:E1"]) == 0
    capsys.readouterr()
    assert main(["rule", "vllm:V99"]) == 2
    assert "vLLM has no row `V99`" in capsys.readouterr().err


def test_findings_say_where_to_look(capsys) -> None:
    words = ["pico/eagle3", "engine.sglang.tp_size=3", "--engine", "sglang"]
    assert main(["export", *words]) == 1
    named = re.findall(r"`specflow (rule sglang:\w+)`", capsys.readouterr().err)
    assert named
    for each in named:
        assert main(each.split()) == 0


def test_recorded_models_are_listed(capsys) -> None:
    assert main(["recipes", "--models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(published.names())
    assert main(["recipes", "--models", "--format", "json"]) == 0
    found = {each["model"]: each["kind"] for each in json.loads(capsys.readouterr().out)}
    assert found["meta-llama/Llama-3.1-8B-Instruct"] == "LlamaForCausalLM"
    assert found["yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"] == "an EAGLE3 draft"
    assert "MTP layer" in found["deepseek-ai/DeepSeek-V3"]
