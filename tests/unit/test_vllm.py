"""What vLLM makes of arguments, rule by rule."""

from __future__ import annotations

import pytest

from specflow.engines.outcome import Effective, Kind, Refused
from specflow.engines.vllm import effective
from specflow.engines.vllm.budget import BATCHED, SCHEDULED, SEQS
from specflow.engines.vllm.given import PLATFORMS
from specflow.engines.vllm.rules import RULES, STEPS
from specflow.engines.vllm.versions import SPEC, VERSIONS, key

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000}
LLAMA |= {"max_position_embeddings": 8192}
SMALL = LLAMA | {"max_position_embeddings": 4096}
DEEPSEEK = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}
DEEPSEEK |= {"num_nextn_predict_layers": 1, "vocab_size": 1000}
DSPARK = {"model_type": "qwen3", "architectures": ["Qwen3DSparkModel"], "block_size": 7}


def run(spec, target=LLAMA, draft=SMALL, platform="h100", version="0.33.0", **args):
    env = args.pop("env", None)
    given = {"model": "org/target", SPEC: spec} | args
    return effective(given, target, draft, platform, env, version, args.pop("requests", None))


def rule_of(found) -> str:
    assert isinstance(found, Refused), found
    return found.rule


def value(found, name: str):
    assert isinstance(found, Effective), found
    return found[key(name)]


def notes(found, rule: str) -> list[Kind]:
    assert isinstance(found, Effective), found
    return [note.kind for note in found.notes if note.rule == rule]


DRAFT = {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 3}
FLASH = {"method": "dflash", "model": "org/d", "num_speculative_tokens": 15}


def test_a_method_is_replaced_by_a_path_and_it_is_told() -> None:
    found = run(DRAFT | {"model": "org/My-eagle3-try"})
    decision = found.decision(key("method"))
    assert (decision.asked, decision.value, decision.rule) == ("draft_model", "eagle3", "V8")
    assert decision.overrides
    assert value(run(DRAFT | {"method": "eagle", "model": "org/x-eagle3"}), "method") == "eagle"


def test_the_target_s_own_path_replaces_mtp_too() -> None:
    found = effective(
        {"model": "org/eagle3-merged", SPEC: {"method": "mtp", "num_speculative_tokens": 1}},
        DEEPSEEK,
    )
    assert value(found, "method") == "eagle3"


def test_mtp_is_in_the_target_s_checkpoint() -> None:
    found = run({"method": "mtp", "num_speculative_tokens": 1}, DEEPSEEK, None)
    assert value(found, "model") == "org/target"
    found = run({"method": "mtp", "num_speculative_tokens": 3}, DEEPSEEK, None)
    assert notes(found, "V10") == [Kind.TOLD]
    assert rule_of(run({"method": "mtp", "num_speculative_tokens": 3}, LLAMA, None)) == "V8"


def test_guesses_are_a_multiple_of_what_one_pass_predicts() -> None:
    two = DEEPSEEK | {"num_nextn_predict_layers": 2}
    assert rule_of(run({"method": "mtp", "num_speculative_tokens": 3}, two, None)) == "V10"
    assert isinstance(run({"method": "mtp", "num_speculative_tokens": 4}, two, None), Effective)


def test_a_dspark_draft_says_its_own_block_from_0_33() -> None:
    spec = {"method": "dspark", "model": "org/d"}
    assert value(run(spec, draft=DSPARK), "num_speculative_tokens") == 7
    assert rule_of(run(spec, draft=DSPARK, version="0.28.0")) == "V11"


def test_vocabularies_are_equal_row_for_row() -> None:
    other = SMALL | {"vocab_size": 1024}
    assert rule_of(run(DRAFT, draft=other)) == "V14"
    mixed = DRAFT | {"use_heterogeneous_vocab": True}
    assert isinstance(run(mixed, draft=other), Effective)
    assert rule_of(run(mixed | {"draft_sample_method": "probabilistic"}, draft=other)) == "V14"


def test_a_draft_s_own_length_has_no_effect() -> None:
    assert notes(run(DRAFT | {"max_model_len": 512}), "V13") == [Kind.WARNS]
    assert rule_of(run(DRAFT | {"max_model_len": 5000})) == "V13"


SLOTS = [
    ({"method": "eagle", "model": "d"}, "0.20.0", 0),
    (DRAFT, "0.20.0", 1),
    (DRAFT | {"parallel_drafting": True}, "0.20.0", 3),
    ({"method": "eagle3", "model": "d", "parallel_drafting": True}, "0.20.0", 2),
    ({"method": "dflash", "model": "d"}, "0.20.0", 2),
]


@pytest.mark.parametrize(("spec", "version", "each"), SLOTS)
def test_slots_of_drafting_are_taken_from_the_tokens_of_a_step(spec, version, each) -> None:
    spec = spec | {"num_speculative_tokens": 3}
    args = {BATCHED: 4096, SEQS: 256}
    assert run(spec, version=version, **args)[SCHEDULED] == 4096 - each * 256


def test_a_budget_below_nothing_is_refused() -> None:
    """2048 less 15 slots for each of 256 requests (vllm#50708): 0.20 counts a slot less."""
    args = {BATCHED: 2048, SEQS: 256}
    found = run(FLASH, version="0.20.0", **args)
    assert rule_of(found) == "V18"
    assert "leave -1536" in found.reason
    assert isinstance(run(FLASH, version="0.28.0", **args), Effective)
    assert rule_of(run(FLASH, version="0.28.0", max_num_batched_tokens=15)) == "V18"
    assert rule_of(run(FLASH, version="0.33.0", max_num_batched_tokens=16)) == "V18"


def test_a_draft_pass_bounds_the_requests_at_once_from_0_33() -> None:
    found = run(FLASH, **{BATCHED: 2048, SEQS: 256})
    assert found["max_num_active_seqs"] == 128
    assert found.decision("max_num_active_seqs").rule == "V18"


def test_defaults_go_by_the_machine() -> None:
    sizes = {p: run(DRAFT, platform=p, version="0.28.0") for p in PLATFORMS}
    assert (sizes["h100"][BATCHED], sizes["h100"][SEQS]) == (8192, 1024)
    assert (sizes["b200"][BATCHED], sizes["a100"][BATCHED]) == (16384, 2048)
    assert (sizes["cpu"][BATCHED], sizes["cpu"][SEQS]) == (2048, 128)
    assert run(DRAFT, platform="b200", version="0.20.0")[BATCHED] == 8192


SCHEDULES = {
    "gap": ([[1, 4, 3], [8, 16, 1]], None),
    "late": ([[2, 4, 3]], "V19"),
    "overlap": ([[1, 4, 3], [4, 8, 1]], "V19"),
    "backwards": ([[1, 0, 3]], "V19"),
    "short": ([[1, 4]], "V19"),
    "empty": ([], "V19"),
    "words": ([["a", "b", "c"]], "V19"),
}


@pytest.mark.parametrize(("rows", "rule"), SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_has_ranges_from_one_on(rows, rule) -> None:
    found = run(DRAFT | {"num_speculative_tokens_per_batch_size": rows})
    assert (found.rule if isinstance(found, Refused) else None) == rule


def test_a_schedule_is_dropped_beside_data_parallelism() -> None:
    spec = DRAFT | {"num_speculative_tokens_per_batch_size": [[1, 4, 3]]}
    found = run(spec, data_parallel_size=2)
    assert value(found, "num_speculative_tokens_per_batch_size") is None
    assert found.decision(key("num_speculative_tokens_per_batch_size")).overrides


def test_the_first_runner_has_no_dspark() -> None:
    spec = {"method": "dspark", "model": "org/d", "num_speculative_tokens": 7}
    assert rule_of(run(spec, draft=DSPARK, platform="cpu")) == "V20"
    old = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert rule_of(run(spec, draft=DSPARK, env=old)) == "V20"
    assert isinstance(run(spec, draft=DSPARK), Effective)


def test_block_verification_is_of_the_second_runner() -> None:
    spec = DRAFT | {"rejection_sample_method": "block"}
    assert notes(run(spec), "V20") == []
    assert notes(run(spec, platform="cpu"), "V20") == [Kind.WARNS]


def test_which_runner_goes_in_each_version() -> None:
    """`block` warns where the first runner goes: by method, by experts, by machine."""
    block = {"rejection_sample_method": "block"}
    eagle = {"method": "eagle3", "model": "org/d", "num_speculative_tokens": 3} | block
    moe = LLAMA | {"num_local_experts": 8}
    firsts = {
        ("0.28.0", "dense"): run(eagle, version="0.28.0"),
        ("0.28.0", "experts"): run(eagle, moe, version="0.28.0"),
        ("0.30.0", "experts"): run(eagle, moe, version="0.30.0"),
        ("0.30.0", "draft model"): run(DRAFT | block, version="0.30.0"),
        ("0.32.0", "draft model"): run(DRAFT | block, version="0.32.0"),
    }
    warned = {which for which, found in firsts.items() if notes(found, "V20")}
    assert warned == {("0.28.0", "experts"), ("0.30.0", "draft model")}


def test_the_second_runner_takes_the_draft_s_length() -> None:
    assert run(DRAFT)["max_model_len"] == 4096
    assert run(DRAFT).decision("max_model_len").rule == "V28"
    assert run(DRAFT, platform="cpu")["max_model_len"] is None
    assert run(DRAFT, max_model_len=8000).decision("max_model_len").overrides


def test_names_of_eagle_networks() -> None:
    spec = {"method": "eagle", "model": "org/d", "num_speculative_tokens": 3}
    named = SMALL | {"architectures": ["LlamaForCausalLMEagle3"]}
    assert Kind.WARNS in notes(run(spec, draft=named), "V21")
    assert notes(run(spec | {"method": "eagle3"}, draft=named), "V21") == []
    assert notes(run(spec, draft=SMALL), "V21") == [Kind.TOLD]


def test_requests_that_are_answered_with_an_error() -> None:
    args = {"model": "m", SPEC: DRAFT}
    found = effective(args, LLAMA, SMALL, requests={"min_p": 0.05, "temperature": 1.0})
    assert notes(found, "V22") == [Kind.AT_START]
    plain = effective({"model": "m"}, LLAMA, requests={"min_p": 0.05})
    assert notes(plain, "V22") == []


def test_a_draft_of_speculators_as_the_model_brings_its_target() -> None:
    config = {
        "speculators_model_type": "peagle",
        "speculators_config": {
            "proposal_methods": [{"speculative_tokens": 5}],
            "verifier": {"name_or_path": "org/verifier"},
        },
    }
    found = effective({"model": "org/draft"}, config)
    assert isinstance(found, Effective)
    assert (found["model"], value(found, "model")) == ("org/verifier", "org/draft")
    assert (value(found, "method"), value(found, "num_speculative_tokens")) == ("eagle3", 5)
    assert found.decision("model").overrides
    fewer = {"model": "org/draft", SPEC: {"num_speculative_tokens": 2}}
    assert rule_of(effective(fewer, config, version="0.20.0")) == "V24"  # P-EAGLE came later
    config["speculators_model_type"] = "eagle3"
    asked = {v: effective(fewer, config, version=v) for v in VERSIONS}
    kept = {v: value(found, "num_speculative_tokens") for v, found in asked.items()}
    assert kept == dict.fromkeys(VERSIONS, 2) | dict.fromkeys(("0.20.0", "0.24.0", "0.28.0"), 5)
    del config["speculators_config"]["verifier"]
    assert rule_of(effective({"model": "org/draft"}, config)) == "V24"


def test_suffix_decoding_needs_a_package() -> None:
    found = run({"method": "suffix"}, draft=None)
    assert value(found, "num_speculative_tokens") == 24
    assert notes(found, "V7") == [Kind.AT_START]


def test_lora_takes_room_for_every_guess() -> None:
    assert rule_of(run(DRAFT, enable_lora=True, **{BATCHED: 2048, SEQS: 1024})) == "V23"


def test_families_whose_hidden_states_are_read() -> None:
    spec = {"method": "eagle3", "model": "org/d", "num_speculative_tokens": 3}
    odd = LLAMA | {"model_type": "mixtral"}
    assert rule_of(run(spec, odd, version="0.20.0")) == "V17"
    assert isinstance(run(spec, odd, version="0.28.0"), Effective)


ODD = (None, 3, "x", [], {"speculative_config": 3}, {"speculative_config": {"method": 3}}, {"y": 1})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("args", ODD, ids=str)
def test_whatever_is_asked_there_is_an_answer(args, version) -> None:
    assert isinstance(effective(args, {}, None, version=version), Effective | Refused)
    odd = {
        "vocab_size": "many",
        "architectures": 3,
        "text_config": 4,
        "max_position_embeddings": [],
    }
    assert isinstance(effective({SPEC: DRAFT}, odd, odd, version=version), Effective | Refused)


def test_a_machine_that_is_not_known_is_refused() -> None:
    assert rule_of(run(DRAFT, platform="h1000")) == "V1"
    assert rule_of(run(DRAFT, version="0.1.0")) == "V1"
    assert rule_of(run({})) == "V11"


def test_every_rule_that_is_named_is_in_the_table() -> None:
    import inspect

    from specflow.engines.vllm import budget, checks, methods, rules, speculators

    modules = (budget, checks, methods, rules, speculators)
    text = "".join(inspect.getsource(module) for module in modules)
    for rule in RULES:
        assert f'"{rule}"' in text
    assert len(set(STEPS)) == len(STEPS)
