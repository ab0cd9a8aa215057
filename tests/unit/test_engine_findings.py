"""What is told where a recipe meets an engine: how grave it is, where it stands, and a way out."""

from __future__ import annotations

import re

import pytest

from specflow.cli import main
from specflow.cli.engines import Asked, resolved_by
from specflow.cli.export import FORMATS_OF
from specflow.engines import ENGINES
from specflow.engines.heads import uncopied, undivided
from specflow.engines.outcome import Effective, Kind, Refused
from specflow.engines.sglang.resolver import effective
from specflow.engines.sglang.tables import PLATFORMS
from specflow.engines.vllm.rules import effective as vllm_effective
from specflow.load import load
from specflow.resolve import resolve
from tests.conftest import RECIPES

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 1000,
}
# Latent attention has no heads of keys and values to copy, whatever its config says.
LATENT = {"architectures": ["DeepseekV3ForCausalLM"], "num_attention_heads": 128}
CHAIN = {
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "draft",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
VARIABLE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


def told(*words: str, capsys) -> tuple[int, str, str]:
    code = main(list(words))
    out = capsys.readouterr()
    return code, out.out, out.err


# -- heads on ranks --------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", range(1, 65))
def test_heads_are_held_as_layers_hold_them(ranks: int) -> None:
    """As QKVParallelLinear of both engines: `divide` asserts that nothing is left over."""
    for heads, keys in ((32, 8), (128, 128), (56, 8), (40, 10), (64, 1)):
        whole = heads % ranks == 0
        kept = keys % ranks == 0 if keys > ranks else ranks % keys == 0
        assert (undivided("target", heads, ranks) == "") == whole
        assert (uncopied("target", keys, ranks) == "") == kept


def sglang(target: dict, platform: str = "h100", **args) -> list[str]:
    found = effective(CHAIN | args, target, {"architectures": ["LlamaForCausalLMEagle3"]}, platform)
    assert isinstance(found, Effective)
    return [n.text for n in found.notes if n.rule == "P21" and n.kind is Kind.AT_START]


@pytest.mark.parametrize(
    ("target", "args", "said"),
    [
        (LLAMA, {"tp_size": 8}, ""),
        (LLAMA, {"tp_size": 16}, ""),  # 8 heads of keys and values, each on two ranks
        (LLAMA, {"tp_size": 6}, "the 32 heads of the target do not divide among 6 ranks"),
        (LLAMA | {"num_key_value_heads": 6}, {"tp_size": 4}, "the 6 heads of keys and values"),
        (LATENT | {"num_key_value_heads": 6}, {"tp_size": 4}, ""),
        (LATENT, {"tp_size": 6}, "the 128 heads of the target"),
        (LATENT, {"tp_size": 6, "attn_dp_size": 6}, ""),  # each rank has all heads
        (LLAMA, {"speculative_algorithm": None, "tp_size": 3}, "the 32 heads of the target"),
    ],
)
def test_heads_of_sglang(target, args, said) -> None:
    found = sglang(target, **args)
    assert [text for text in found if said in text] == found
    assert bool(found) == bool(said)


def test_heads_of_a_draft_and_of_a_cpu() -> None:
    draft = {"architectures": ["LlamaForCausalLMEagle3"], "num_attention_heads": 12}
    found = effective(CHAIN | {"tp_size": 8}, LLAMA, draft)
    assert isinstance(found, Effective)
    assert [n.text for n in found.notes if n.rule == "P21"] == [
        "the 12 heads of the draft do not divide among 8 ranks (--tp-size 8)"
    ]
    assert sglang(LLAMA, "cpu", tp_size=6) == []  # SGLang pads heads there


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"tensor_parallel_size": 4}, None),
        ({"tensor_parallel_size": 3}, "the 32 heads of the draft do not divide among 3 ranks"),
        (
            {"tensor_parallel_size": 3, "draft_tensor_parallel_size": 1},
            "the 32 heads of the target do not divide among 3 ranks",
        ),
    ],
)
def test_heads_of_vllm(args, said) -> None:
    spec = {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 3}
    spec |= {k: v for k, v in args.items() if k.startswith("draft_")}
    ranks = args["tensor_parallel_size"]
    given = {"model": "org/target", "tensor_parallel_size": ranks, "speculative_config": spec}
    found = vllm_effective(given, LLAMA, LLAMA)
    if said is None:
        assert isinstance(found, Effective)
    else:
        assert isinstance(found, Refused)
        assert (found.rule, found.reason.partition(" (")[0]) == ("V29", said)
    plain = vllm_effective({"model": "org/target", "tensor_parallel_size": ranks}, LLAMA)
    assert isinstance(plain, Effective if said is None else Refused)


def test_heads_of_recorded_models_are_known(capsys) -> None:
    for words in (
        ("deepseek/v3_nextn", "engine.sglang.tp_size=6", "--engine", "sglang"),
        ("deepseek/v3_nextn", "engine.vllm.tensor_parallel_size=6", "--engine", "vllm"),
        ("llama/llama3_1_eagle3_chain", "engine.vllm.tensor_parallel_size=3", "--engine", "vllm"),
    ):
        eight = tuple(re.sub(r"=\d", "=8", word) for word in words)
        assert told("validate", *words, capsys=capsys)[0] == 1
        assert told("validate", *eight, capsys=capsys)[0] == 0


# -- what fails later ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_no_recipe_of_ours_fails_once_it_runs(path) -> None:
    recipe = resolve(load(path))
    for name in ENGINES.names():
        engine = ENGINES[name]
        for version in engine.versions:
            found = resolved_by(Asked(engine, version), None, recipe)
            assert [d.message for d in found.remarks if d.code == "SF120"] == []


def test_a_failure_to_come_is_an_error_with_a_way_out(capsys) -> None:
    words = ("llama/llama3_1_eagle3_tree", "--engine", "sglang")
    code, out, err = told("export", *words, "~engine", capsys=capsys)
    assert code == 1
    assert out.startswith("--model-path")  # told all the same: the server may be set up so
    assert "error[SF120]" in err
    assert f"engine.sglang.env.{VARIABLE}=1" in err
    assert told("validate", *words, "~engine", capsys=capsys)[0] == 1
    lifted = f"engine.sglang.env.{VARIABLE}=1"
    code, out, err = told("export", *words, "~engine", lifted, "--format", "sh", capsys=capsys)
    assert (code, "SF120" in err) == (0, False)
    assert f"export {VARIABLE}=1" in out or f"{VARIABLE}=1" in out
    short = told("export", *words, "~engine", "run.max_length=2048", capsys=capsys)
    assert (short[0], "SF120" in short[2]) == (0, False)  # the draft's own context


def test_a_reduced_vocabulary_takes_no_rejection_to_sglang(capsys) -> None:
    code, out, err = told("export", "pico/eagle3_sampled", "--engine", "sglang", capsys=capsys)
    assert code == 0
    assert "rejection" not in out
    assert "note[SF112]: `verify.accept`" in err


# -- places and ways out ---------------------------------------------------------------------------


def test_a_tree_that_an_engine_has_not_stands_at_what_makes_it(capsys) -> None:
    words = ("validate", "llama/llama3_1_eagle3_tree", "--engine", "vllm", "--format", "github")
    out = told(*words, capsys=capsys)[1]
    (line,) = [each for each in out.splitlines() if "SF119" in each]
    assert re.search(r"file=\S*llama3_1_eagle3_tree\.yaml,line=7", line)
    for engine in ("vllm", "trtllm", "llamacpp"):
        err = told("export", "pico/ngram", "--engine", engine, capsys=capsys)[2]
        assert "= help: write `verify.shape: chain`" in err


def test_another_engines_settings_are_told_to_stay_behind(capsys) -> None:
    words = ("export", "pico/eagle", "engine.sglang.tp_size=8")
    for engine, said in (("sglang", False), ("vllm", True), ("trtllm", True), ("llamacpp", True)):
        err = told(*words, "--engine", engine, capsys=capsys)[2]
        assert ("`engine.sglang` is not for" in err and "tp_size does not go across" in err) == said


def test_a_platform_is_called_by_its_own_name() -> None:
    for name in PLATFORMS:
        found = effective({}, LLAMA, None, name)
        assert isinstance(found, Effective)
        because = [d.because for d in found.decisions if d.because.startswith("the default on")]
        assert all(each.startswith(f"the default on {name}") for each in because)
    assert any(
        d.because == "the default on h200" for d in effective({}, LLAMA, None, "h200").decisions
    )


# -- words on the command line ---------------------------------------------------------------------


def test_a_platform_needs_an_engine(capsys) -> None:
    for words in (
        ("explain", "pico/eagle"),
        ("diff", "pico/eagle", "pico/eagle"),
        ("validate", "pico/eagle"),
    ):
        code, out, err = told(*words, "--platform", "h100", capsys=capsys)
        assert (code, "`--platform` is of an engine" in out + err) == (2, True)


def test_names_of_engines_have_no_case_and_versions_are_not_empty(capsys) -> None:
    for name in ("SGLang", "sglang@0.5.23", "VLLM", "LlamaCpp"):
        assert told("export", "pico/eagle3", "--engine", name, capsys=capsys)[0] == 0
    code, _, err = told("export", "pico/eagle", "--engine", "sglang@", capsys=capsys)
    assert (code, "names no version" in err) == (2, True)


def test_formats_are_those_that_help_lists() -> None:
    own = {name: tuple(ENGINES[name].formats) for name in ENGINES.names()}
    assert own == {name: FORMATS_OF[name] for name in own}
    assert FORMATS_OF.keys() == own.keys()
