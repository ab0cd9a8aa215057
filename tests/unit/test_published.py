"""Models of the Hub that are not on this machine: their records are judged as headers are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specflow import formats, published
from specflow.block_config import BlockFacts
from specflow.errors import RecipeError
from specflow.facts import DraftFacts, Facts, ModelFacts, describe_draft, read
from specflow.load import loads
from specflow.resolve import resolve
from specflow.tables import MADE_FOR
from tests.conftest import ROOT

RECORDS = json.loads(published.FILE.read_text())
PAIRS = {
    "deepseek-ai/DeepSeek-V3": "mtp",
    "deepseek-ai/DeepSeek-R1": "mtp",
    "deepseek-ai/DeepSeek-V3.1": "mtp",
    "deepseek-ai/DeepSeek-V3.1 eigen-ai-labs/deepseek-v3.1-eagle3": "eagle3",
    "zai-org/GLM-4.5": "mtp",
    "zai-org/GLM-4.5-Air": "mtp",
    "XiaomiMiMo/MiMo-7B-RL": "mtp_mimo",
    "XiaomiMiMo/MiMo-7B-Base": "mtp_mimo",
    "XiaomiMiMo/MiMo-V2-Flash": "mtp_layers",
    "google/gemma-4-E2B-it google/gemma-4-E2B-it-assistant": "assistant",
    "google/gemma-4-E4B-it google/gemma-4-E4B-it-assistant": "assistant",
    "google/gemma-4-26B-A4B-it google/gemma-4-26B-A4B-it-assistant": "assistant",
    "google/gemma-4-31B-it google/gemma-4-31B-it-assistant": "assistant",
    "meta-llama/Llama-3.1-8B-Instruct yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": "eagle3",
    "meta-llama/Llama-3.1-8B-Instruct RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3": (
        "eagle3_speculators"
    ),
    "meta-llama/Meta-Llama-3-8B-Instruct yuhuili/EAGLE-LLaMA3-Instruct-8B": "eagle",
    "Qwen/Qwen3-8B Tengyunw/qwen3_8b_eagle3": "eagle3",
    "Qwen/Qwen3-8B RedHatAI/Qwen3-8B-speculator.eagle3": "eagle3_speculators",
    "moonshotai/Kimi-K2-Instruct AQ-MedAI/Kimi-K2-Instruct-eagle3": "eagle3",
    "moonshotai/Kimi-K3 RadixArk/Kimi-K3-DSpark": "dspark",
    "deepseek-ai/DeepSeek-V4-Flash-0731": "dspark",
    "deepseek-ai/DeepSeek-V4-Pro-0813": "dspark",
    "Qwen/Qwen3-8B z-lab/Qwen3-8B-DFlash-b16": "dflash",
    "Qwen/Qwen3-8B deepseek-ai/dspark_qwen3_8b_block7": "dspark",
    "Qwen/Qwen3-8B deepseek-ai/dflash_qwen3_8b_block7": "dflash",
    "Qwen/Qwen3-8B RedHatAI/Qwen3-8B-speculator.dflash": "dflash",
    "Qwen/Qwen3-4B z-lab/Qwen3-4B-DFlash-b16": "dflash",
    "Qwen/Qwen3-4B deepseek-ai/dspark_qwen3_4b_block7": "dspark",
    "Qwen/Qwen3-4B deepseek-ai/dflash_qwen3_4b_block7": "dflash",
}


def paired(names: str) -> tuple[ModelFacts, ModelFacts | None]:
    target, *draft = map(read, names.split())
    return target, draft[0] if draft else None


def test_every_record_is_in_a_pair() -> None:
    assert {name for pair in PAIRS for name in pair.split()} == RECORDS.keys()


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_facts(name: str) -> None:
    facts = read(name)
    assert facts.problem is facts.folder is facts.no_float is None
    assert facts.recorded.startswith(RECORDS[name]["source"])
    assert ("not confirmed" in facts.recorded) != RECORDS[name]["confirmed"]
    assert min(facts.hidden_size, facts.layers, facts.vocab_size) > 0
    assert len(facts.layer_types) in (0, facts.layers)
    assert (facts.tokenizer_size, facts.tokenizer_problem) == (0, None)
    assert facts.shapes == {}


@pytest.mark.parametrize("names", PAIRS)
def test_the_pairs_fit(names: str) -> None:
    target, draft = paired(names)
    net = describe_draft(target, draft)
    models = {"target": target} | ({"draft": draft} if draft else {})
    assert Facts(models).net == net
    assert (net.format, net.problem) == (PAIRS[names], None)
    assert net.bundled == (draft is None)
    assert net.format in MADE_FOR
    assert net.hidden_size > 0
    if formats.named(net.format).net.block == formats.CONTEXT:
        assert net.tap_count == len(net.taps)
        assert net.reads_width == net.tap_count * target.hidden_size
        assert net.vocab_size == net.map_size
    elif formats.named(net.format).net.reads == formats.TAPS:
        assert (net.tap_count, len(net.taps)) in ((3, 0), (3, 3))
        assert net.reads_width == 3 * target.hidden_size
        assert net.vocab_size == net.map_size
    else:
        assert (net.tap_count, net.reads_width) == (0, target.hidden_size)


def test_a_record_in_full() -> None:
    target = read("meta-llama/Llama-3.1-8B-Instruct")
    assert (target.architecture, target.max_positions) == ("LlamaForCausalLM", 131_072)
    assert describe_draft(target, read("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")) == DraftFacts(
        "eagle3",
        hidden_size=4096,
        reads_width=12_288,
        tap_count=3,
        vocab_size=32_000,
        has_map=True,
        map_size=32_000,
    )
    v2 = read("XiaomiMiMo/MiMo-V2-Flash")
    assert describe_draft(v2, None).steps == 3
    assert v2.layer_types[:6] == ("full_attention", *["sliding_attention"] * 4, "full_attention")
    assert v2.layer_types.count("full_attention") == 9


BLOCKS = {names: form for names, form in PAIRS.items() if form in {"dflash", "dspark"}}


@pytest.mark.parametrize("names", BLOCKS)
def test_what_is_recorded_of_a_block_is_whole(names: str) -> None:
    target, draft = paired(names)
    net = describe_draft(target, draft)
    block = net.block
    assert (block.markov, block.confidence) == (
        ("vanilla", True) if net.format == "dspark" else ("", False)
    )
    assert bool(block.rank) == bool(block.markov)
    assert block.size > 1
    assert 0 <= block.mask_token < target.vocab_size
    assert block.kv_width % len(block.windows) == 0
    assert 1 <= min(net.taps) < max(net.taps) <= target.layers
    if draft is not None:
        assert len(block.windows) == draft.layers
        assert len(draft.layer_types) in (0, draft.layers)
    else:
        assert block.window == 128


@pytest.mark.parametrize(
    ("names", "size", "ahead", "guesses"),
    [
        ("moonshotai/Kimi-K3 RadixArk/Kimi-K3-DSpark", 7, True, 7),
        ("deepseek-ai/DeepSeek-V4-Flash-0731", 5, True, 5),
        ("Qwen/Qwen3-8B z-lab/Qwen3-8B-DFlash-b16", 16, False, 15),
        ("Qwen/Qwen3-8B deepseek-ai/dspark_qwen3_8b_block7", 7, True, 7),
        ("Qwen/Qwen3-8B deepseek-ai/dflash_qwen3_8b_block7", 7, True, 7),
        ("Qwen/Qwen3-8B RedHatAI/Qwen3-8B-speculator.dflash", 8, False, 7),
    ],
)
def test_guesses_of_a_recorded_block(names: str, size: int, ahead: bool, guesses: int) -> None:
    target, *draft = names.split()
    block = describe_draft(*paired(names)).block
    assert (block.size, block.ahead) == (size, ahead)
    named = f", model: {draft[0]}" if draft else ""
    text = f"target: {{model: {target}}}\ndraft: {{algorithm: {BLOCKS[names].upper()}{named}}}"
    resolved = resolve(loads(text))
    assert resolved["verify.num_draft_tokens"] == guesses + 1
    assert resolved["draft.predicts"] == ("next" if ahead else "own")


def test_a_block_draft_in_full() -> None:
    target, draft = read("moonshotai/Kimi-K3"), read("RadixArk/Kimi-K3-DSpark")
    assert [i for i, kind in enumerate(target.layer_types) if kind == "full_attention"] == [
        *range(3, 93, 4),
        92,
    ]
    assert describe_draft(target, draft) == DraftFacts(
        "dspark",
        hidden_size=7168,
        reads_width=5 * 7168,
        taps=(8, 24, 52, 68, 84),
        tap_count=5,
        block=BlockFacts(
            size=7,
            mask_token=163_824,
            ahead=True,
            markov="vanilla",
            rank=256,
            confidence=True,
            windows=(0,) * 5,
            kv_width=5 * 16 * (64 + 64),
        ),
    )


def test_a_draft_beside_another_target() -> None:
    draft = read("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
    net = describe_draft(read("google/gemma-4-31B-it"), draft)
    assert (net.reads_width, net.tap_count, net.problem) == (12_288, 2, None)
    short = ModelFacts("short", hidden_size=7168, layers=40, vocab_size=129_280)
    problem = describe_draft(short, read("eigen-ai-labs/deepseek-v3.1-eagle3")).problem
    assert problem is not None
    assert "layers 2, 30, 58 of a target that has 40" in problem.message


def test_a_recorded_language_model_may_draft() -> None:
    target = read("deepseek-ai/DeepSeek-V3")
    assert describe_draft(target, read("Qwen/Qwen3-8B")).format == "causal_lm"
    assert describe_draft(target, read("deepseek-ai/DeepSeek-R1")).format == "causal_lm"
    assert describe_draft(target, target).format == "mtp"
    assert describe_draft(read("Qwen/Qwen3-8B"), None) == DraftFacts()


def test_a_draft_that_is_here_for_a_target_that_is_not() -> None:
    pico = read("builtin:pico-llama-s")
    assert describe_draft(read("Qwen/Qwen3-8B"), pico).format == "causal_lm"
    net = describe_draft(read("builtin:pico-llama"), read("yuhuili/EAGLE-LLaMA3-Instruct-8B"))
    assert (net.format, net.reads_width) == ("eagle", 4096)


def test_names_are_compared_without_case() -> None:
    assert read("google/gemma-4-e4b-it").hidden_size == 2560


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    facts = read("Qwen/Qwen3-8B")
    assert facts.recorded == ""
    assert facts.problem is not None
    assert "config.json" in facts.problem.message


@pytest.mark.parametrize("name", ["no/such", "Qwen/Qwen3-9B"])
def test_a_model_that_is_not_recorded(name: str) -> None:
    problem = read(name).problem
    assert problem is not None
    assert problem.kind == "missing"
    assert f"hf download {name} --local-dir FOLDER" in problem.help
    assert "name a checkpoint folder" in problem.help


@pytest.mark.parametrize("name", ["/no/such", "no/such/folder", "no", "./no", "../no/x", "-a/b"])
def test_a_path_is_not_a_name_of_the_hub(name: str) -> None:
    problem = read(name).problem
    assert problem is not None
    assert "hf download" not in problem.help


def test_a_recipe_for_a_recorded_model_is_valid() -> None:
    text = "target: {model: deepseek-ai/DeepSeek-V3}\ndraft: {algorithm: NGRAM}"
    assert resolve(loads(text)).findings == ()
    with pytest.raises(RecipeError, match="SF061"):
        resolve(loads(text.replace("V3", "V9")))


def test_the_records_are_read_only_when_one_is_named() -> None:
    program = (
        "from specflow import facts, published; facts.read('builtin:pico-llama'); "
        "facts.read('/no/such'); print(published._records.cache_info().currsize)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0"
