"""Every rule of the catalogue for SGLang 0.5.23 is held by something, and fires where it should.

`tests/parity/catalogue.tsv` lists the rules; HELD says of each what holds it, by arguments that it
fires for and a change of them that it does not. What no recipe or argument can show has a reason.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from specflow.engines.outcome import Effective, Kind, Refused
from specflow.engines.sglang.flags import FLAGS
from specflow.engines.sglang.resolver import effective
from tests.conftest import ROOT
from tests.unit.test_sglang_rules import (
    ADAPTERS,
    ASSISTANT,
    CHAIN,
    COMPACT,
    COORDINATION,
    DEEPSEEK,
    DFLASH,
    DP,
    DSPARK,
    EAGLE,
    EAGLE3,
    HEAD,
    LLAMA,
    PP_SPEC,
    QWEN_NEXT,
    SHORT,
    V4,
    like,
)

Near = dict[str, Any]  # arguments to change; None takes one out; @target and the like beside them


@dataclass(frozen=True)
class Case:
    """What a rule does to arguments, and a change of them under which it does nothing.

    how   refused, set or noted
    rule  the engine's row, where one refuses, decides or remarks
    on    the flag that is set, or a part of the remark
    """

    how: str
    rule: str
    on: str
    args: dict[str, Any]
    near: Near
    target: dict[str, Any] = field(default_factory=lambda: LLAMA)
    draft: dict[str, Any] | None = None
    platform: str = "h100"
    env: dict[str, str] | None = None


@dataclass(frozen=True)
class Nobody:
    """No recipe and no argument can show it."""

    why: str


def refused(rule: str, args: dict[str, Any], near: Near, **given: Any) -> Case:
    return Case("refused", rule, "", args, near, **given)


def sets(flag: str, rule: str, args: dict[str, Any], near: Near, **given: Any) -> Case:
    return Case("set", rule, SHORT.get(flag, flag), args, near, **given)


def notes(rule: str, says: str, args: dict[str, Any], near: Near, **given: Any) -> Case:
    return Case("noted", rule, says, args, near, **given)


def alg(name: str, **more: Any) -> dict[str, Any]:
    return {"alg": name, **more}


E_CHAIN = alg("EAGLE", **CHAIN)
TREE = alg("EAGLE", steps=3, topk=2, tokens=6)
UNO = alg("UNO", lora="/x", tokens=4)
UNO_TREE = {**UNO, "topk": 2, "steps": 3, "backend": "fa3"}
GEMMA_DRAFT = {"draft": ASSISTANT}
E1 = {"draft": EAGLE}
E3 = {"draft": EAGLE3}
DF = {"draft": DFLASH}
DS = {"draft": DSPARK}
IQUEST = like("IQuestQ1ForCausalLM")
STEP = like("Step3p5ForCausalLM")
KIMI = like("KimiK3ForConditionalGeneration")
V32 = like("DeepseekV32ForCausalLM", index_topk=64, kv_lora_rank=32)
DOMINO = {
    **DFLASH,
    "dflash_config": {
        **DFLASH["dflash_config"],
        "projector_type": "domino",
        "shift_label": True,
        "pure_draft_prefix_len": 1,
        "gru_hidden_dim": 8,
        "emb_dim": 8,
    },
}
NO_HEAD = {**DSPARK, "enable_confidence_head": False}
PREFILL, DECODE = {"mode": "prefill"}, {"mode": "decode"}
PROMPTS = Nobody("a request shows it, and arguments do not say which requests come")
PLUGINS = Nobody("plugins are Python of the server's, which no recipe names")
GRAPHS = "cuda_graph_max_bs_decode"
SIMULATE = "SGLANG_SIMULATE_ACC_LEN"
CAP = {"SGLANG_RAGGED_VERIFY_MODE": "cap-accept"}

NAMES: dict[str, Case | Nobody] = {
    "SF-NAME-001": refused("N1", alg("EAGEL"), alg("EAGLE")),
    "SF-NAME-002": sets("alg", "N1", alg("eagle3"), alg("EAGLE3"), **E3),
    "SF-NAME-003": sets("alg", "N2", alg("NEXTN"), alg("EAGLE"), target=DEEPSEEK),
    "SF-NAME-004": notes("N4", "MTP layer", alg("NEXTN"), alg("EAGLE"), target=STEP),
    "SF-NAME-005": refused("N5", alg("EAGLE3", **CHAIN), alg("EAGLE"), target=V4),
    "SF-NAME-006": sets("alg", "N6", alg("EAGLE"), {"@draft": EAGLE}, **GEMMA_DRAFT),
    "SF-NAME-007": refused("N7", alg("EAGLE3"), alg("EAGLE"), **GEMMA_DRAFT),
    "SF-NAME-008": notes("N7", "assistant", alg("STANDALONE"), {"@draft": LLAMA}, **GEMMA_DRAFT),
    "SF-NAME-009": notes("N6", "reads no KV", alg("FROZEN_KV_MTP"), {"@draft": ASSISTANT}, **E1),
    "SF-NAME-010": notes("N3", "leave the flag out", alg("none"), {"alg": None}),
    "SF-NAME-011": refused("N1", alg("domino"), alg("DFLASH"), **DF),
    "SF-NAME-012": PLUGINS,
    "SF-NAME-013": PLUGINS,
    "SF-NAME-014": refused(
        "N13",
        alg("EAGLE3", enable_return_aux_hidden_states=True, pp_size=2),
        {"pp_size": 1},
    ),
}
DRAFTS: dict[str, Case | Nobody] = {
    "SF-DRAFT-001": refused("D4", alg("DFLASH"), {"path": "d"}),
    "SF-DRAFT-002": refused("D5", alg("DSPARK"), {"@target": {**LLAMA, "dspark_block_size": 5}}),
    "SF-DRAFT-003": sets(
        "path", "D5", alg("DSPARK"), {"path": "d"}, target={**LLAMA, "dspark_block_size": 5}
    ),
    "SF-DRAFT-004": notes("D3", "no STANDALONE draft", alg("STANDALONE"), {"path": "d"}),
    "SF-DRAFT-005": notes("D3", "no EAGLE3 draft", alg("EAGLE3"), {"path": "d"}),
    "SF-DRAFT-006": sets("path", "D1", alg("EAGLE"), {"path": "d"}, target=DEEPSEEK),
    "SF-DRAFT-007": notes("D3", "no MTP layer", alg("EAGLE"), {"@target": like("MiMoForCausalLM")}),
    "SF-DRAFT-008": notes(
        "D2", "own checkpoint", alg("EAGLE", path="d"), {"path": None}, target=DEEPSEEK
    ),
    "SF-DRAFT-009": refused("D6", {**UNO, "path": "d"}, {"path": None}),
    "SF-DRAFT-010": notes("D3", "not used", alg("NGRAM", path="d"), {"path": None}),
    "SF-DRAFT-011": sets(
        "speculative_draft_model_revision",
        "3.7",
        alg("EAGLE", path="d"),
        {"speculative_draft_model_revision": "r"},
    ),
    "SF-DRAFT-012": notes(
        "Z4", "words", alg("STANDALONE"), {"@draft": LLAMA}, draft={**LLAMA, "vocab_size": 900}
    ),
    "SF-DRAFT-013": Nobody(
        "two tokenizers, which no config shows; specflow's own engine reads them"
    ),
    "SF-DRAFT-014": notes(
        "O18",
        "context",
        alg("EAGLE"),
        {"@env": {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}},
        draft={**EAGLE, "max_position_embeddings": 64},
    ),
    "SF-DRAFT-015": notes(
        "O20",
        "token map",
        alg("EAGLE3", speculative_token_map="/x"),
        {"speculative_token_map": None},
        **E3,
    ),
    "SF-DRAFT-016": sets(
        "speculative_draft_model_quantization",
        "3.7",
        alg("EAGLE", quantization="fp8"),
        {"speculative_draft_model_quantization": "fp8"},
        **E1,
    ),
    "SF-DRAFT-017": sets(
        "speculative_draft_model_quantization",
        "3.7",
        alg("EAGLE", speculative_draft_model_quantization="unquant"),
        {"speculative_draft_model_quantization": None},
        **E1,
    ),
    "SF-DRAFT-018": refused(
        "D7",
        alg("EAGLE"),
        {"@draft": like("IQuestQ1MTP", num_draft_slots=2, num_target_layers=4)},
        target=IQUEST,
        **E1,
    ),
    "SF-DRAFT-019": refused("O21", alg("EAGLE", sink=4), {"window": 8}, **E1),
    "SF-DRAFT-020": notes("O20", "does nothing", alg("NGRAM", window=8), {"window": None}),
    "SF-DRAFT-021": notes("O20", "sink", alg("EAGLE3", window=8, sink=4), {"sink": None}, **E3),
    "SF-DRAFT-022": notes(
        "A14",
        "does not draft",
        {**E_CHAIN, "draft_backend": "wave"},
        {"draft_backend": "fa3"},
        **E1,
    ),
}
SHAPES: dict[str, Case | Nobody] = {
    "SF-EAGLE-001": refused("E1", alg("EAGLE", topk=1), {"topk": None}, **E1),
    "SF-EAGLE-002": refused("E2", alg("EAGLE", steps=3), {"topk": 1}, **E1),
    "SF-EAGLE-003": notes("E3", "no width", alg("EAGLE", steps=3, topk=2), {"tokens": 6}, **E1),
    "SF-EAGLE-004": sets("tokens", "E4", {**E_CHAIN, "tokens": 9}, {"tokens": 4}, **E1),
    "SF-EAGLE-005": notes("E5", "guess nothing", {**E_CHAIN, "steps": -1}, {"steps": 3}, **E1),
    "SF-EAGLE-006": notes("E6", "fewer", {**TREE, "tokens": 64}, {"tokens": 6}, **E1),
    "SF-EAGLE-007": notes("E5", "no guess", {**TREE, "tokens": 1}, {"tokens": 2}, **E1),
    "SF-EAGLE-008": sets("steps", "3.1", alg("EAGLE"), CHAIN, **E1),
    "SF-EAGLE-009": refused("A1", {**TREE, "backend": "trtllm_mha"}, {"backend": "fa3"}, **E1),
    "SF-EAGLE-010": refused(
        "A2", {**TREE, "page": 64, "backend": "torch_native"}, {"page": 1}, **E1
    ),
    "SF-EAGLE-011": notes("A7", "aiter", {**TREE, "backend": "aiter"}, {"backend": "fa3"}, **E1),
    "SF-EAGLE-012": notes(
        "A12",
        "--page-size 1",
        {**TREE, "backend": "fa3", "page": 16},
        {"@target": LLAMA},
        target=like("GptOssForCausalLM"),
        **E1,
    ),
    "SF-EAGLE-013": refused("A2", alg("EAGLE3", backend="fa4"), CHAIN, platform="b200", **E3),
    "SF-EAGLE-014": notes("E7", "31 bits", {**TREE, "requests": 10**6}, {"requests": 8}, **E1),
    "SF-EAGLE-015": notes("E2", "picked before", alg("EAGLE3"), CHAIN, **E3),
    "SF-EAGLE-016": refused("N5", alg("EAGLE"), CHAIN, target=V4),
    "SF-EAGLE-017": notes(
        "O17",
        "holds 10",
        alg("EAGLE", steps=12, topk=1, tokens=13),
        {"steps": 9, "tokens": 10},
        target=V4,
    ),
    "SF-EAGLE-018": notes(
        "A10",
        "holds 4",
        alg("EAGLE", steps=5, topk=1, tokens=6),
        {"steps": 3, "tokens": 4},
        target=like("Qwen4ExpForConditionalGeneration"),
    ),
    "SF-EAGLE-019": notes(
        "E10", "no room", {**E_CHAIN, "context_length": 4}, {"context_length": 64}, **E1
    ),
    "SF-MULTI-001": sets("multi_layer", "N8", alg("EAGLE"), alg("NEXTN"), target=STEP),
    "SF-MULTI-002": notes("E9", "chains", {**TREE, "multi_layer": True}, CHAIN, **E1),
    "SF-MULTI-003": notes(
        "N9",
        "Inkling",
        E_CHAIN,
        {"multi_layer": True},
        target=like("InklingForConditionalGeneration"),
    ),
    "SF-MULTI-004": notes("N8", "nothing", alg("NGRAM", multi_layer=True), {"multi_layer": None}),
    "SF-MULTI-005": refused(
        "A20",
        alg("EAGLE", multi_layer=True),
        {"multi_layer": None},
        target=IQUEST,
        **E1,
    ),
    "SF-MULTI-006": notes(
        "E9",
        "MTP layers",
        alg("EAGLE", steps=3, topk=1, tokens=4),
        {"steps": 2, "tokens": 3},
        target={**STEP, "num_nextn_predict_layers": 2},
    ),
    "SF-FROZEN-001": notes("Z1", "no default", alg("FROZEN_KV_MTP"), CHAIN, **GEMMA_DRAFT),
    "SF-FROZEN-002": notes(
        "Z2", "verifies 4", alg("EAGLE", **{**CHAIN, "tokens": 9}), {"tokens": 4}, **GEMMA_DRAFT
    ),
    "SF-FROZEN-003": notes(
        "A15", "triton", {**TREE, "backend": "fa3"}, {"backend": "triton"}, **GEMMA_DRAFT
    ),
    "SF-FROZEN-004": refused("O1", {**E_CHAIN, **ADAPTERS}, {"@draft": EAGLE}, **GEMMA_DRAFT),
    "SF-STAND-001": refused("Z3", alg("STANDALONE", **DP), {"attn_dp_size": None}),
}
SAMPLING: dict[str, Case | Nobody] = {
    "SF-SAMP-001": refused("S1", alg("STANDALONE", rejection=True), {"rejection": None}),
    "SF-SAMP-002": notes("S2", "no law", alg("NGRAM", rejection=True), {"rejection": None}),
    "SF-SAMP-003": notes("S2", "never reads", alg("DFLASH", rejection=True), alg("EAGLE"), **DF),
    "SF-SAMP-004": refused("S4", {**TREE, "rejection": True}, CHAIN, **E1),
    "SF-SAMP-005": refused(
        "S5", {**E_CHAIN, "rejection": True, "single": 0.5}, {"single": 1.0}, **E1
    ),
    "SF-SAMP-006": refused(
        "S6",
        {**E_CHAIN, "rejection": True, "enable_deterministic_inference": True, "backend": "triton"},
        {"@platform": "h100"},
        platform="xpu",
        **E1,
    ),
    "SF-SAMP-007": notes(
        "S7",
        "500 words",
        alg("EAGLE3", **CHAIN, rejection=True),
        {"@draft": EAGLE3},
        draft={**EAGLE3, "draft_vocab_size": 500},
    ),
    "SF-SAMP-008": sets("rejection", "S8", E_CHAIN, {"single": 0.9}, platform="mi300", **E1),
    "SF-SAMP-009": refused("S9", alg("NGRAM", block_verify=True), {"block_verify": None}),
    "SF-SAMP-010": refused(
        "S10", alg("DFLASH", block_verify=True), {"@platform": "mi300"}, platform="xpu", **DF
    ),
    "SF-SAMP-011": sets(
        "rejection", "S11", {**E_CHAIN, "block_verify": True}, {"rejection": True}, **E1
    ),
    "SF-SAMP-012": notes(
        "S12", "does nothing", alg("DFLASH", block_verify=True), {"block_verify": None}, **DF
    ),
    "SF-SAMP-013": notes("S13", "not between", {**E_CHAIN, "single": 2.0}, {"single": 1.0}, **E1),
    "SF-SAMP-014": notes("5", "no longer follows", {**E_CHAIN, "acc": 0.9}, {"acc": 1.0}, **E1),
    "SF-SAMP-015": notes("5", "does not read", alg("DSPARK", acc=0.9), {"acc": 1.0}, **DS),
    "SF-SAMP-016": notes("S15", "greedily", E_CHAIN, {"@platform": "h100"}, platform="cpu", **E1),
    "SF-SAMP-017": notes(
        "K23",
        "budget",
        alg("DSPARK"),
        {"@env": CAP},
        env={**CAP, SIMULATE: "3"},
        **DS,
    ),
    "SF-SAMP-018": notes(
        "O22",
        "real-draft-token",
        TREE,
        CHAIN,
        env={"SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"},
        **E1,
    ),
    "SF-SAMP-019": notes(
        "5", "made up", alg("NGRAM"), {"@env": {}}, env={"SGLANG_SIMULATE_ACC_LEN": "2.5"}
    ),
    "SF-ADAPT-001": sets("adaptive", "V1", alg("NGRAM", adaptive=True), {"adaptive": None}),
    "SF-ADAPT-002": sets("adaptive", "V1", {**TREE, "adaptive": True}, CHAIN, **E1),
    "SF-ADAPT-003": refused("V2", alg("EAGLE", adaptive=True, steps=4), {"steps": 3}, **E1),
    "SF-ADAPT-004": sets("tokens", "V3", alg("EAGLE", adaptive=True), {"adaptive": None}, **E1),
    "SF-ADAPT-005": refused(
        "V4",
        alg("EAGLE", adaptive=True, speculative_adaptive_config="/no/such.json"),
        {"speculative_adaptive_config": None},
        **E1,
    ),
    "SF-ADAPT-006": refused(
        "V5", alg("EAGLE", adaptive=True, **ADAPTERS), {"adaptive": None}, **E1
    ),
    "SF-ADAPT-007": notes(
        "V4",
        "without --speculative-adaptive",
        alg("EAGLE", speculative_adaptive_config="/x"),
        {"speculative_adaptive_config": None},
        **E1,
    ),
    "SF-ADAPT-008": notes(
        "3.3",
        "stale",
        alg("EAGLE", adaptive=True),
        {"adaptive": None},
        env={"SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND": "1"},
        **E1,
    ),
    "SF-ADAPT-009": notes("V9", "verify 8", alg("EAGLE", adaptive=True), {"adaptive": None}, **E1),
}
NGRAM: dict[str, Case | Nobody] = {
    "SF-NGRAM-001": refused("G1", alg("NGRAM"), {"@platform": "xpu"}, platform="npu"),
    "SF-NGRAM-002": refused("G2", alg("NGRAM", **DP), {"attn_dp_size": None}),
    "SF-NGRAM-003": sets("topk", "G4", alg("NGRAM", topk=4), {"topk": 10}),
    "SF-NGRAM-004": sets("tokens", "3.2", alg("NGRAM"), {"tokens": 12}),
    "SF-NGRAM-005": sets("steps", "3.2", alg("NGRAM"), {"steps": 1}),
    "SF-NGRAM-006": notes("G8", "0 steps", alg("NGRAM", tokens=5), {"tokens": 12}),
    "SF-NGRAM-007": refused("A3", alg("NGRAM", page=64, backend="triton"), {"breadth": 1}),
    "SF-NGRAM-008": refused("G5", alg("NGRAM", corpus="/x", budget=12), {"budget": 11}),
    "SF-NGRAM-009": notes("G7", "without a corpus", alg("NGRAM", budget=3), {"budget": None}),
    "SF-NGRAM-010": notes(
        "G7",
        "above the most",
        alg("NGRAM", speculative_ngram_min_bfs_breadth=20),
        {"speculative_ngram_min_bfs_breadth": 10},
    ),
    "SF-NGRAM-011": notes(
        "G6",
        "tokenizer",
        alg("NGRAM", corpus="/x", budget=2, skip_tokenizer_init=True),
        {"skip_tokenizer_init": None},
    ),
    "SF-NGRAM-012": refused(
        "1.1",
        alg("NGRAM", speculative_ngram_match_type="DFS"),
        {"speculative_ngram_match_type": "PROB"},
    ),
}
BLOCKS: dict[str, Case | Nobody] = {
    "SF-DFLASH-001": refused("F1", alg("DFLASH"), {"@platform": "npu"}, platform="cpu", **DF),
    "SF-DFLASH-002": refused("F2", alg("DFLASH", **DP), {"enable_dp_lm_head": True}, **DF),
    "SF-DFLASH-003": notes("F3", "Domino", alg("DFLASH", **HEAD), {"@draft": DFLASH}, draft=DOMINO),
    "SF-DFLASH-004": refused("F4", alg("DFLASH", pp_size=2), {"pp_size": 1}, **DF),
    "SF-DFLASH-005": sets("steps", "F5", alg("DFLASH", steps=3), {"steps": 1}, **DF),
    "SF-DFLASH-006": refused("F6", alg("DFLASH", block=0), {"block": 1}, **DF),
    "SF-DFLASH-007": refused("F7", alg("DFLASH", block=8, tokens=6), {"tokens": 8}, **DF),
    "SF-DFLASH-008": sets("tokens", "3.2", alg("DFLASH"), {"tokens": 8}, **DF),
    "SF-DFLASH-009": notes("F9", "trained for 8", alg("DFLASH", block=4), {"block": 8}, **DF),
    "SF-DFLASH-010": refused("F8", alg("DFLASH", window=7), {"window": 8}, **DF),
    "SF-DFLASH-011": sets(
        "draft_backend",
        "3.8",
        alg("DFLASH", draft_backend="trtllm_mha", page=64),
        {"@draft": {**DFLASH, "is_causal": True}},
        platform="b200",
        **DF,
    ),
    "SF-DFLASH-012": notes(
        "F11",
        "layer 9",
        alg("DFLASH"),
        {"@draft": DFLASH},
        draft={**DFLASH, "dflash_config": {"mask_token_id": 9, "target_layer_ids": [9]}},
    ),
    "SF-DFLASH-013": notes(
        "F12",
        "mask token",
        alg("DFLASH"),
        {"@draft": DFLASH},
        draft={**DFLASH, "dflash_config": {"mask_token_id": 1000}},
    ),
    "SF-DFLASH-014": notes(
        "F15",
        "quantized head",
        alg("DFLASH", tp_size=2),
        {"tp_size": 1},
        target={**LLAMA, "quantization_config": {"quant_method": "gptq", "lm_head": True}},
        **DF,
    ),
    "SF-DFLASH-015": notes(
        "F13",
        "trained on 9",
        alg("DFLASH"),
        {"@draft": DFLASH},
        draft={**DFLASH, "num_target_layers": 9},
    ),
    "SF-DOMINO-001": notes(
        "F17",
        "below 0",
        alg("DFLASH", speculative_domino_candidate_pool_size=-1),
        {"speculative_domino_candidate_pool_size": 0},
        draft=DOMINO,
    ),
    "SF-LILI-001": notes(
        "F18",
        "lilicorr_",
        alg("DFLASH"),
        {"@draft": DFLASH},
        draft={**DFLASH, "architectures": ["LiLiCorrDraftModel"]},
    ),
    "SF-LILI-002": notes(
        "1.2",
        "without SGLANG_ENABLE",
        alg("DFLASH"),
        {"@env": {"SGLANG_LILICORR_REQUIRE_SAMPLING": "1", "SGLANG_ENABLE_LILICORR_SAMPLING": "1"}},
        env={"SGLANG_LILICORR_REQUIRE_SAMPLING": "1"},
        **DF,
    ),
    "SF-DSPARK-001": refused("K1", alg("DSPARK"), {"@platform": "xpu"}, platform="cpu", **DS),
    "SF-DSPARK-002": refused("K2", alg("DSPARK", **DP), {"enable_dp_lm_head": True}, **DS),
    "SF-DSPARK-003": refused("K7", alg("DSPARK", pp_size=2), PREFILL, **DS),
    "SF-DSPARK-004": sets("topk", "K8", alg("DSPARK", topk=4), {"topk": 1}, **DS),
    "SF-DSPARK-005": refused("K9", alg("DSPARK", gamma=0), {"gamma": 5}, **DS),
    "SF-DSPARK-006": refused("K10", alg("DSPARK", tokens=5), {"tokens": 6}, **DS),
    "SF-DSPARK-007": refused(
        "K11", alg("DSPARK", tokens=1), {"tokens": 2}, draft=like("Qwen3DSparkModel")
    ),
    "SF-DSPARK-008": sets("tokens", "3.2", alg("DSPARK"), {"tokens": 6}, **DS),
    "SF-DSPARK-009": notes("K10", "trained for", alg("DSPARK", gamma=4), {"gamma": 5}, **DS),
    "SF-DSPARK-010": refused(
        "1.2", alg("NGRAM"), {"@env": COMPACT}, env={"SGLANG_RAGGED_VERIFY_MODE": "ragged"}
    ),
    "SF-DSPARK-011": notes("2.5", "DSPARK alone", alg("NGRAM"), {"@env": {}}, env=COMPACT),
    "SF-DSPARK-012": notes(
        "K15", "confidence head", alg("DSPARK"), {"@env": {}}, draft=NO_HEAD, env=COMPACT
    ),
    "SF-DSPARK-013": notes(
        "K19",
        "verifies everything",
        alg("DSPARK"),
        {"speculative_dspark_sps_table_path": "/no/such.json"},
        env=COMPACT,
        **DS,
    ),
    "SF-DSPARK-014": notes(
        "K14",
        "does nothing",
        alg("DSPARK", speculative_dspark_sps_table_path="/no/such.json"),
        {"@env": COMPACT},
        **DS,
    ),
    "SF-DSPARK-015": notes(
        "K13",
        "does nothing",
        alg("DSPARK", speculative_dspark_align_verify_tokens_to_graph_tier=True),
        {"@env": COMPACT},
        **DS,
    ),
    "SF-DSPARK-016": Nobody("test_a_plan_of_verify_is_read below: its files are made there"),
    "SF-DSPARK-017": notes(
        "K16",
        "without temperatures",
        alg("DSPARK", speculative_dspark_confidence_sts_path="/no/such.json"),
        {"@env": {}},
        env={"SGLANG_DSPARK_STS_COLLECT_PATH": "/x"},
        **DS,
    ),
    "SF-DSPARK-018": notes(
        "K21",
        "padded graphs",
        alg("DSPARK", disable_cuda_graph_padding=True),
        {"@env": {}},
        env=COMPACT,
        **DS,
    ),
    "SF-DSPARK-019": notes(
        "K20", "graphs off", alg("DSPARK", **HEAD), {"disable_cuda_graph": True}, env=COMPACT, **DS
    ),
    "SF-DSPARK-020": notes(
        "K22",
        "attn_dp_size = tp_size",
        alg("DSPARK", **HEAD) | {"tp_size": 4},
        {"tp_size": 2},
        draft=like("DeepseekV4ForCausalLMDSpark", dspark_block_size=5),
    ),
    "SF-DSPARK-021": notes(
        "K24", "no mask token", alg("DSPARK"), {"@draft": DSPARK}, draft=like("Qwen3DSparkModel")
    ),
    "SF-DSPARK-022": refused(
        "K27",
        alg("DSPARK", dcp_size=2),
        {"@env": {}},
        target=KIMI,
        platform="b200",
        env=COMPACT,
        **DS,
    ),
    "SF-DSPARK-023": notes(
        "3.2",
        "counts as 1",
        alg("DSPARK"),
        {"@env": {}},
        env={"SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS": "0"},
        **DS,
    ),
}
SERVING: dict[str, Case | Nobody] = {
    "SF-DIST-001": sets("serial", "P1", alg("EAGLE", pp_size=2, **PREFILL), {"serial": True}, **E1),
    "SF-DIST-002": refused("P2", alg("EAGLE3", pp_size=2, **PREFILL), alg("EAGLE"), **E3),
    "SF-DIST-003": refused("P3", alg("EAGLE", pp_size=2), PREFILL, **E1),
    "SF-DIST-004": refused(
        "P4", alg("EAGLE", pp_size=2, **PREFILL), {"mode": None}, env=PP_SPEC, **E1
    ),
    "SF-DIST-005": refused("P6", alg("NGRAM"), {"@env": {}}, env=COORDINATION),
    "SF-DIST-006": refused(
        "P7",
        alg("NGRAM", **DECODE, disaggregation_decode_enable_radix_cache=True),
        alg("EAGLE"),
    ),
    "SF-DIST-007": refused(
        "P8", alg("EAGLE", **PREFILL, enable_pd_role_switch=True), {"alg": None}
    ),
    "SF-DIST-008": notes(
        "P9", "16 guesses", {**TREE, "topk": 20, "tokens": 21, **PREFILL}, {"topk": 16}, **E1
    ),
    "SF-DIST-009": notes("2.5", "no draft input", alg("STANDALONE", **PREFILL), {"mode": None}),
    "SF-DIST-010": refused("P14", {**TREE, "dcp_size": 2}, {"topk": 1, "tokens": 4}, target=V32),
    "SF-DIST-011": refused(
        "P15",
        alg("EAGLE3", enable_prefill_cp=True, cp_strategy="interleave", attn_cp_size=2, tp_size=2),
        alg("DFLASH", **{"@draft": DFLASH}),
        target=like("Glm5NextForConditionalGeneration", kv_lora_rank=32),
        **E3,
    ),
    "SF-DIST-012": refused(
        "P18",
        alg("EAGLE", speculative_moe_a2a_backend="deepep_v2"),
        {"speculative_moe_a2a_backend": "deepep"},
        **E1,
    ),
    "SF-DIST-013": refused(
        "P19",
        {
            **E_CHAIN,
            "moe_a2a_backend": "megamoe",
            "requests": 4096,
            GRAPHS: 4096,
        },
        {"requests": 48},
        target=like("Qwen3MoeForCausalLM"),
        **E1,
    ),
    "SF-SERVE-001": sets("requests", "3.4", alg("NGRAM"), {"requests": 8}),
    "SF-SERVE-002": sets("mixed", "G3", alg("NGRAM", mixed=True), {"mixed": None}),
    "SF-SERVE-003": sets("serial", "P10", alg("NGRAM"), {"@platform": "h100"}, platform="cpu"),
    "SF-SERVE-004": refused("O1", alg("STANDALONE", **ADAPTERS), alg("NGRAM")),
    "SF-SERVE-005": refused("O2", alg("DSPARK", **ADAPTERS), {"@env": {}}, env=COMPACT, **DS),
    "SF-SERVE-006": refused(
        "O4",
        alg("EAGLE", speculative_moe_runner_backend="lora_triton"),
        {"speculative_moe_runner_backend": "triton"},
        **E1,
    ),
    "SF-SERVE-007": refused("O7", alg("NGRAM", enable_lmcache=True), {"alg": None}),
    "SF-SERVE-008": refused(
        "O10",
        {**TREE, "enable_hisparse": True, "disable_radix_cache": True, "backend": "fa3"},
        {"topk": 1, "tokens": 4},
        target=V32,
    ),
    "SF-SERVE-009": refused(
        "O11", alg("NGRAM", enable_unified_memory=True), {"enable_unified_memory": None}
    ),
    "SF-SERVE-010": refused("O13", alg("NGRAM", kv="nvfp4"), {"breadth": 1}, platform="b200"),
    "SF-SERVE-011": refused("A4", alg("NGRAM", backend="flex_attention"), {"alg": None}),
    "SF-SERVE-012": refused("S17", alg("DSPARK", enable_watermark=True), alg("EAGLE"), **DS),
    "SF-SERVE-013": refused(
        "O15", alg("NEXTN", **{**CHAIN, "tokens": 300}), {"tokens": 4}, target=QWEN_NEXT
    ),
    "SF-SERVE-014": sets("page", "3.6", E_CHAIN | {"backend": "flashmla"}, {"page": 64}, **E1),
    "SF-SERVE-015": sets(
        "speculative_moe_runner_backend",
        "3.9",
        alg("EAGLE"),
        {"speculative_moe_runner_backend": "auto"},
        **E1,
    ),
    "SF-SERVE-016": notes("U11", "are refused", UNO, alg("NGRAM")),
    "SF-SERVE-017": notes(
        "1.1",
        "needs rank",
        alg("EAGLE", decoupled_spec_role="verifier"),
        {"decoupled_spec_role": "null"},
        **E1,
    ),
    "SF-MEM-001": notes(
        "4.13",
        "more than 100",
        {**E_CHAIN, "max_total_tokens": 100},
        {"max_total_tokens": 9999},
        **E1,
    ),
    "SF-MEM-002": notes("4.13", "1 + 4/4", E_CHAIN, {"@draft": None}, **E1),
    "SF-MEM-003": notes(
        "4.13",
        "snapshots",
        alg("NEXTN", **CHAIN),
        {"enable_linear_replayssm_spec": True},
        target=QWEN_NEXT,
    ),
    "SF-ENV-001": notes(
        "1.2",
        "no site",
        alg("DFLASH"),
        {"@env": {"SGLANG_SPEC_TP_SYNC": "all,-rng"}},
        env={"SGLANG_SPEC_TP_SYNC": "everything"},
        **DF,
    ),
    "SF-ENV-002": notes(
        "1.2", "no effect", alg("NGRAM"), {"@env": {}}, env={"SGLANG_DSPARK_FAST_SAMPLING": "1"}
    ),
}
UNOS: tuple[Case, ...] = (
    refused("U1", UNO, {"@platform": "h100"}, platform="cpu"),
    refused("U2", {**UNO, "lora": None}, {"lora": "/x"}),
    refused("U3", {**UNO, "enable_strict_thinking": True}, {"enable_strict_thinking": None}),
    refused("U4", {**UNO, "tokens": None}, {"tokens": 4}),
    refused("U5", {**UNO, "topk": 0}, {"topk": 1}),
    refused("U6", {**UNO_TREE, "steps": None}, {"steps": 3}),
    sets("steps", "U7", {**UNO, "steps": 3}, {"steps": 1}),
    refused("U8", {**UNO, "tp_size": 2}, {"tp_size": 1}),
    sets("mixed", "U9", {**UNO, "mixed": True}, {"mixed": None}),
    refused("U10", {**UNO_TREE, "backend": "triton"}, {"backend": "fa3"}),
    notes("U11", "are refused", UNO, alg("NGRAM")),
)
HELD: dict[str, Case | Nobody] = {
    **NAMES,
    **DRAFTS,
    **SHAPES,
    **SAMPLING,
    **NGRAM,
    **BLOCKS,
    **SERVING,
    "SF-UNO-001..011": Nobody("eleven rules, UNOS above"),
}
CASES = [(rule, case) for rule, case in HELD.items() if isinstance(case, Case)]
CASES += [(f"SF-UNO-{n:03}", case) for n, case in enumerate(UNOS, 1)]


def catalogue() -> dict[str, str]:
    """Rules and their severity."""
    with (ROOT / "tests" / "parity" / "catalogue.tsv").open(encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["id"]: row["severity"] for row in rows}


def outcome(case: Case, changes: Near) -> Effective | Refused:
    given = {"target": case.target, "draft": case.draft, "platform": case.platform}
    given |= {"env": case.env}
    given |= {k[1:]: v for k, v in changes.items() if k.startswith("@")}
    args = {**case.args, **{k: v for k, v in changes.items() if not k.startswith("@")}}
    return effective(
        {SHORT.get(k, k): v for k, v in args.items()},
        given["target"],
        given["draft"],
        given["platform"],
        given["env"],
    )


def fires(case: Case, got: Effective | Refused) -> bool:
    if isinstance(got, Refused):
        return case.how == "refused" and got.rule == case.rule
    if case.how == "set":
        decision = got.decision(case.on)
        return decision is not None and decision.rule == case.rule
    return any(note.rule == case.rule and case.on in note.text for note in got.notes)


def test_every_rule_of_the_catalogue_is_held() -> None:
    rules = catalogue()
    assert len(rules) == 183
    assert set(HELD) == set(rules)
    assert sum(isinstance(held, Nobody) for held in HELD.values()) <= 5


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[rule for rule, _ in CASES])
def test_a_rule_fires_where_it_holds_and_not_beside_it(case: Case) -> None:
    got = outcome(case, {})
    assert fires(case, got), got if isinstance(got, Refused) else got.notes
    if case.how == "refused":
        assert isinstance(got, Refused)
        assert got.reason
    beside = outcome(case, case.near)
    assert not fires(case, beside), beside


@pytest.mark.parametrize(("rule", "case"), CASES, ids=[rule for rule, _ in CASES])
def test_what_stops_a_start_is_not_a_mere_remark(rule: str, case: Case) -> None:
    """An error of the catalogue refuses, or is said to fail later; an override is a decision."""
    severity = catalogue().get(rule, "error")
    got = outcome(case, {})
    if severity == "error" and isinstance(got, Effective) and case.how == "noted":
        kinds = {n.kind for n in got.notes if n.rule == case.rule and case.on in n.text}
        allowed = {Kind.AT_START, Kind.UNCHECKED}
        assert kinds & (allowed | ({Kind.TOLD} if rule == "SF-UNO-011" else set()))
    if severity == "warning":
        assert isinstance(got, Effective)


def test_flags_of_the_cases_are_flags() -> None:
    for _, case in CASES:
        assert {SHORT.get(name, name) for name in case.args} <= set(FLAGS.all)


def test_a_plan_of_verify_is_read(tmp_path) -> None:
    """SF-DSPARK-016, SF-DSPARK-017: files that SGLang's readers would stop at."""
    costs, heats = tmp_path / "sps.json", tmp_path / "sts.json"

    def rules(table: Any, temperatures: Any) -> set[str]:
        costs.write_text(table if isinstance(table, str) else json.dumps(table))
        heats.write_text(json.dumps({"temperatures": temperatures}))
        args = {
            "speculative_algorithm": "DSPARK",
            "speculative_dspark_sps_table_path": str(costs),
            "speculative_dspark_confidence_sts_path": str(heats),
        }
        got = effective(args, LLAMA, DSPARK, "h100", COMPACT)
        assert isinstance(got, Effective)
        return {note.rule for note in got.notes if note.kind is Kind.AT_START}

    good = {"sample_batch_tokens": [1, 8], "sample_steps_per_sec": [9.0, 8.0]}
    good |= {"max_batch_tokens": 8}
    two = {"bias_seconds": 0.1, "bs_probes": [1], "alpha_seconds": [0.1]}
    two |= {"m_probes": [1, 2], "theta_seconds": [0.1, 0.2]}
    assert rules(good, [1.0] * 5) == set()
    assert rules(two, [1.0] * 5) == set()
    falling = {**good, "sample_batch_tokens": [8, 1]}
    uneven, short = {**good, "sample_steps_per_sec": [9.0]}, {**good, "max_batch_tokens": 7}
    for bad in (
        falling,
        uneven,
        short,
        {**two, "bias_seconds": 0},
        {},
        [],
        "{",
        {**two, "m_probes": 1},
    ):
        assert rules(bad, [1.0] * 5) == {"K18"}
    for heat in ([1.0] * 4, [1.0, 1.0, 1.0, 1.0, 0.0], [], ["a"] * 5):
        assert rules(good, heat) == {"K16"}


# Rows of sections 2 to 5 that no rule here is named by.
UNNAMED = {
    "N10": PLUGINS,
    "N11": PLUGINS,
    "N12": PLUGINS,
    "E8": Nobody("E4 sees to it; FROZEN_KV_MTP, which E4 does not see, is row Z2"),
    "A13": Nobody("row A2 with the page of fa4, in test_sglang_rules"),
    "A18": Nobody("a fallback of kernels, chosen by what is installed"),
    "S18": PROMPTS,
    "V8": Nobody("the engine turns its own optimization off; nothing of a recipe changes"),
    "V10": Nobody("V1 sees to it"),
    "K26": Nobody("shapes of loaded weights across ranks"),
    "G9": PROMPTS,
    "P20": Nobody("plugins of kernels say what they can"),
    "O5": Nobody("the weights of an adapter"),
    "O12": Nobody("pools are fused or not when the draft's weights are there"),
    "O14": PROMPTS,
    "O19": Nobody("how a checkpoint's own quantization is read"),
    "O24": Nobody("the engine turns its own optimization off; nothing of a recipe changes"),
}
ROWS = {"N": 13, "D": 7, "E": 10, "A": 22, "S": 18, "V": 10, "F": 18, "K": 29, "U": 11} | {
    "G": 9,
    "Z": 5,
    "P": 21,
    "O": 24,
}


def test_every_row_of_the_engine_has_a_rule_or_a_reason() -> None:
    folder = ROOT / "specflow" / "engines" / "sglang"
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    rows = {f"{letter}{n}" for letter, most in ROWS.items() for n in range(1, most + 1)}
    named = {row for row in rows if f'"{row}"' in text}
    assert rows - named == set(UNNAMED)
