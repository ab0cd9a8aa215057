"""The rows of the catalogue of SGLang's rules, one case or more a row; each names its row."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from specflow.engines.outcome import Effective, Kind, Refused
from specflow.engines.sglang.flags import FLAGS
from specflow.engines.sglang.resolver import effective
from tests.conftest import ROOT

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def like(architecture: str, **more: Any) -> dict[str, Any]:
    return {**LLAMA, "architectures": [architecture], **more}


DEEPSEEK = like("DeepseekV3ForCausalLM", kv_lora_rank=32)
V4 = like("DeepseekV4ForCausalLM")
QWEN_NEXT = like("Qwen3NextForCausalLM")
EAGLE = like("LlamaForCausalLMEagle")
EAGLE3 = like("LlamaForCausalLMEagle3")
ASSISTANT = like("Gemma4AssistantForCausalLM")
DFLASH = like(
    "DFlashDraftModel",
    block_size=8,
    num_hidden_layers=2,
    num_target_layers=4,
    dflash_config={"mask_token_id": 999, "target_layer_ids": [1, 2]},
)
DSPARK = like(
    "Qwen3DSparkModel",
    block_size=5,
    dflash_config={"markov_head_type": "vanilla", "markov_rank": 8, "mask_token_id": 999},
)
CHAIN = {"steps": 3, "topk": 1, "tokens": 4}
SHORT = {
    "alg": "speculative_algorithm",
    "steps": "speculative_num_steps",
    "topk": "speculative_eagle_topk",
    "tokens": "speculative_num_draft_tokens",
    "backend": "attention_backend",
    "draft_backend": "speculative_draft_attention_backend",
    "rejection": "speculative_use_rejection_sampling",
    "block_verify": "speculative_use_block_verification",
    "window": "speculative_draft_window_size",
    "sink": "speculative_draft_sink_size",
    "path": "speculative_draft_model_path",
    "requests": "max_running_requests",
    "page": "page_size",
    "breadth": "speculative_ngram_max_bfs_breadth",
    "corpus": "speculative_ngram_external_corpus_path",
    "budget": "speculative_ngram_external_sam_budget",
    "gamma": "speculative_dspark_block_size",
    "block": "speculative_dflash_block_size",
    "adaptive": "speculative_adaptive",
    "multi_layer": "enable_multi_layer_eagle",
    "mixed": "enable_mixed_chunk",
    "serial": "disable_overlap_schedule",
    "single": "speculative_accept_threshold_single",
    "acc": "speculative_accept_threshold_acc",
    "mode": "disaggregation_mode",
    "kv": "kv_cache_dtype",
    "lora": "uno_lora_path",
}
COORDINATION = {"SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION": "1"}
PP_SPEC = {"SGLANG_ENABLE_PP_SPEC": "1"}
COMPACT = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
DP = {"attn_dp_size": 2, "tp_size": 2}
HEAD = {**DP, "enable_dp_lm_head": True}
ADAPTERS = {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["q_proj"]}


@dataclass
class Row:
    """A row of the catalogue: arguments, and what becomes of them."""

    rule: str
    args: dict[str, Any]
    expect: dict[str, Any] | str = "refused"
    target: dict[str, Any] = field(default_factory=lambda: LLAMA)
    draft: dict[str, Any] | None = None
    platform: str = "h100"
    env: dict[str, str] | None = None
    error: str = "ValueError"

    @property
    def long(self) -> dict[str, Any]:
        return {SHORT.get(k, k): v for k, v in self.args.items()}


REFUSED: tuple[Row, ...] = (
    Row("1.1", {"speculative_num_stepz": 3}, error="SystemExit"),
    Row("1.1", {"steps": "three"}, error="SystemExit"),
    Row("1.1", {"steps": True}, error="SystemExit"),
    Row("1.1", {"speculative_ngram_match_type": "DFS"}, error="SystemExit"),
    Row("1.2", {"alg": "NGRAM"}, env={"SGLANG_RAGGED_VERIFY_MODE": "ragged"}),
    Row("N1", {"alg": "EAGEL"}),
    Row("N1", {"alg": "DOMINO"}),
    Row("N5", {"alg": "EAGLE3"}, target=V4, error="AssertionError"),
    Row("N5", {"alg": "NEXTN", **CHAIN}, target=V4, error="AssertionError"),
    Row("N5", {"alg": "EAGLE"}, target=V4, error="AssertionError"),
    Row("N7", {"alg": "EAGLE3"}, draft=ASSISTANT),
    Row("N13", {"alg": "EAGLE", "enable_return_aux_hidden_states": True}),
    Row("N13", {"alg": "DFLASH", "enable_return_aux_hidden_states": True}),
    Row("N13", {"return_aux_hidden_state_layer_ids": [1]}),
    Row(
        "N13",
        {
            "alg": "EAGLE3",
            "enable_return_aux_hidden_states": True,
            "return_aux_hidden_state_layer_ids": [1, 1],
        },
    ),
    Row("D4", {"alg": "DFLASH"}),
    Row("D5", {"alg": "DSPARK"}),
    Row("D6", {"alg": "UNO", "tokens": 4, "lora": "/x"}, draft=EAGLE),
    Row("D7", {"alg": "EAGLE"}, target=like("IQuestQ1ForCausalLM")),
    Row("E1", {"alg": "EAGLE", "topk": 4}, draft=EAGLE, error="AssertionError"),
    Row("E2", {"alg": "EAGLE", "steps": 3}, draft=EAGLE, error="TypeError"),
    Row("A1", {"alg": "EAGLE", "topk": 2, "steps": 3, "backend": "trtllm_mha"}, platform="b200"),
    Row("A2", {"alg": "EAGLE", "topk": 2, "steps": 3, "tokens": 4, "backend": "flashmla"}),
    Row("A3", {"alg": "NGRAM", "page": 16, "backend": "triton"}),
    Row("A4", {"alg": "NGRAM", "backend": "flex_attention"}, error="AssertionError"),
    Row("A13", {"alg": "EAGLE3", "backend": "fa4"}, platform="b200", draft=EAGLE3),
    Row("A20", {"alg": "EAGLE3"}, target=like("IQuestQ1ForCausalLM"), draft=EAGLE3),
    Row("A20", {"backend": "triton"}, target=like("IQuestQ1ForCausalLM")),
    Row(
        "A21",
        {"alg": "NEXTN", **CHAIN, "topk": 2, "enable_linear_replayssm_spec": True},
        target=QWEN_NEXT,
    ),
    Row("A21", {"enable_linear_replayssm_spec": True}, target=QWEN_NEXT, env=COMPACT),
    Row(
        "A22",
        {"linear_attn_verify_backend": "flashinfer", "alg": "NEXTN", **CHAIN},
        target=QWEN_NEXT,
        platform="b200",
    ),
    Row("S1", {"alg": "STANDALONE", "rejection": True}, error="NotImplementedError"),
    Row("S3", {"alg": "UNO", "tokens": 4, "lora": "/x", "rejection": True}),
    Row("S4", {"alg": "EAGLE", "rejection": True}, draft=EAGLE),
    Row("S5", {"alg": "EAGLE", **CHAIN, "rejection": True, "single": 0.5}, draft=EAGLE),
    Row(
        "S6",
        {"alg": "EAGLE", **CHAIN, "rejection": True, "enable_deterministic_inference": True}
        | {"backend": "triton"},
        draft=EAGLE,
        platform="xpu",
    ),
    Row("S9", {"alg": "STANDALONE", "block_verify": True}),
    Row("S9", {"block_verify": True}),
    Row("S10", {"alg": "DFLASH", "block_verify": True}, draft=DFLASH, platform="xpu"),
    Row("S4", {"alg": "EAGLE", "block_verify": True}, draft=EAGLE),
    Row("S14", {"alg": "UNO", "topk": 2, "steps": 3, "tokens": 4, "lora": "/x", "acc": 0.9}),
    Row("S17", {"alg": "DSPARK", "enable_watermark": True}, draft=DSPARK),
    Row("S17", {"alg": "EAGLE", **CHAIN, "rejection": True, "enable_watermark": True}, draft=EAGLE),
    Row("V2", {"alg": "EAGLE", "adaptive": True, "steps": 4}, draft=EAGLE),
    Row(
        "V4",
        {"alg": "EAGLE", "adaptive": True, "speculative_adaptive_config": "/no/such.json"},
        draft=EAGLE,
        error="FileNotFoundError",
    ),
    Row("V5", {"alg": "EAGLE", "adaptive": True, **ADAPTERS}, draft=EAGLE),
    Row(
        "V6",
        {"alg": "EAGLE", "adaptive": True, "topk": 1, "steps": 3, "enable_hisparse": True}
        | {"disable_radix_cache": True},
        target=V4,
        platform="b200",
    ),
    Row("V7", {"alg": "EAGLE", "adaptive": True, "pp_size": 2}, draft=EAGLE, env=PP_SPEC),
    Row("F1", {"alg": "DFLASH"}, draft=DFLASH, platform="cpu"),
    Row("F2", {"alg": "DFLASH", **DP}, draft=DFLASH),
    Row("F2", {"alg": "DFLASH", **HEAD}, draft=DFLASH, platform="xpu"),
    Row("F4", {"alg": "DFLASH", "pp_size": 2}, draft=DFLASH),
    Row("F6", {"alg": "DFLASH", "block": 0}, draft=DFLASH),
    Row("F7", {"alg": "DFLASH", "block": 8, "tokens": 6}, draft=DFLASH),
    Row("F8", {"alg": "DFLASH", "block": 8, "window": 7}, draft=DFLASH),
    Row("K1", {"alg": "DSPARK"}, draft=DSPARK, platform="cpu"),
    Row("K2", {"alg": "DSPARK", **DP}, draft=DSPARK),
    Row("K3", {"alg": "DSPARK", **HEAD, "moe_a2a_backend": "deepep"}, draft=DSPARK),
    Row("K4", {"alg": "DSPARK", **HEAD}, draft=DSPARK, env=COORDINATION | COMPACT),
    Row("K5", {"alg": "DSPARK", **HEAD, "tp_size": 4, "attn_cp_size": 2}, draft=DSPARK),
    Row("K6", {"alg": "DSPARK", **HEAD, "speculative_moe_a2a_backend": "deepep"}, draft=DSPARK),
    Row("K7", {"alg": "DSPARK", "pp_size": 2}, draft=DSPARK),
    Row("K9", {"alg": "DSPARK", "gamma": 0}, draft=DSPARK),
    Row("K10", {"alg": "DSPARK", "gamma": 5, "tokens": 5}, draft=DSPARK),
    Row("K10", {"alg": "DSPARK", "tokens": 5}, draft=DSPARK),
    Row("K11", {"alg": "DSPARK", "tokens": 1}, draft=like("Qwen3DSparkModel")),
    Row(
        "K27",
        {"alg": "DSPARK", "dcp_size": 2},
        target=like("KimiK3ForConditionalGeneration"),
        draft=DSPARK,
        platform="b200",
        env=COMPACT,
    ),
    Row(
        "K29",
        {"alg": "EAGLE", **CHAIN},
        target=like("DeepseekV4ForCausalLM", model_type="deepseek_v41"),
    ),
    Row("U1", {"alg": "UNO"}, platform="cpu"),
    Row("U2", {"alg": "UNO", "tokens": 4}),
    Row("U3", {"alg": "UNO", "tokens": 4, "lora": "/x", "enable_deterministic_inference": True}),
    Row("U3", {"alg": "UNO", "tokens": 4, "lora": "/x", "enable_strict_thinking": True}),
    Row("U4", {"alg": "UNO", "lora": "/x"}),
    Row("U5", {"alg": "UNO", "lora": "/x", "tokens": 4, "topk": 0}),
    Row("U6", {"alg": "UNO", "lora": "/x", "tokens": 4, "topk": 2}),
    Row("U6", {"alg": "UNO", "lora": "/x", "tokens": 200, "topk": 2, "steps": 9}),
    Row("U6", {"alg": "UNO", "lora": "/x", "tokens": 9, "topk": 2, "steps": 3}),
    Row("U8", {"alg": "UNO", "lora": "/x", "tokens": 4, "tp_size": 2}),
    Row("U8", {"alg": "UNO", "lora": "/x", "tokens": 4, **ADAPTERS}),
    Row("U10", {"alg": "UNO", "lora": "/x", "tokens": 4, "backend": "triton"}),
    Row("U10", {"alg": "UNO", "lora": "/x", "tokens": 4, "topk": 2, "steps": 3}),
    Row("G1", {"alg": "NGRAM"}, platform="npu"),
    Row("G2", {"alg": "NGRAM", **DP}),
    Row("G5", {"alg": "NGRAM", "corpus": "/x"}),
    Row("G5", {"alg": "NGRAM", "corpus": "/x", "budget": 12}),
    Row(
        "G5",
        {"alg": "NGRAM", "corpus": "/x", "budget": 5}
        | {"speculative_ngram_external_corpus_max_tokens": 0},
    ),
    Row("G8", {"alg": "NGRAM", "breadth": 0}, error="ZeroDivisionError"),
    Row("Z3", {"alg": "STANDALONE", **DP}),
    Row(
        "P2",
        {"alg": "EAGLE3", "pp_size": 2, "mode": "prefill"},
        draft=EAGLE3,
        error="AssertionError",
    ),
    Row("P3", {"alg": "EAGLE", "pp_size": 2}, draft=EAGLE, error="AssertionError"),
    Row(
        "P4",
        {"alg": "EAGLE", "pp_size": 2, "mode": "prefill"},
        draft=EAGLE,
        env=PP_SPEC,
        error="AssertionError",
    ),
    Row(
        "P5",
        {"alg": "DSPARK", "pp_size": 2, "mode": "prefill"},
        draft=DSPARK,
        env=PP_SPEC,
        error="AssertionError",
    ),
    Row("P6", {}, env=COORDINATION),
    Row("P6", {"alg": "EAGLE", "multi_layer": True}, draft=EAGLE, env=COORDINATION),
    Row(
        "P7",
        {"alg": "NGRAM", "mode": "decode", "disaggregation_decode_enable_radix_cache": True},
    ),
    Row("P8", {"alg": "EAGLE", "mode": "prefill", "enable_pd_role_switch": True}, draft=EAGLE),
    Row("P12", {"alg": "EAGLE", "dwdp_size": 2, "tp_size": 2}, draft=EAGLE, error="AssertionError"),
    Row("P12", {"dcp_size": 2, "alg": "NGRAM"}, platform="xpu"),
    Row("P13", {"enable_layernorm_sp": True, "tp_size": 2}),
    Row(
        "P13",
        {"alg": "EAGLE", "enable_layernorm_sp": True, "tp_size": 2},
        target=like("Qwen3ForCausalLM"),
        draft=EAGLE,
    ),
    Row(
        "P14",
        {"alg": "EAGLE", **CHAIN, "topk": 2, "dcp_size": 2},
        target=like("DeepseekV32ForCausalLM", index_topk=64, kv_lora_rank=32),
    ),
    Row("P16", {"alg": "EAGLE", "enable_kv_cache_sharding": True}, draft=EAGLE),
    Row("P16", {"alg": "EAGLE", "enable_kv_cache_sharding": True, "mode": "prefill"}, draft=EAGLE),
    Row(
        "P17",
        {"alg": "EAGLE", "pp_size": 2, "mode": "prefill", "min_free_slots_delay": 2},
        draft=EAGLE,
        error="AssertionError",
    ),
    Row("P18", {"alg": "EAGLE", "speculative_moe_a2a_backend": "deepep_v2"}, draft=EAGLE),
    Row("P19", {"moe_a2a_backend": "megamoe"}, platform="a100"),
    Row("O1", {"alg": "STANDALONE", **ADAPTERS}),
    Row("O1", {"alg": "NEXTN", **CHAIN, **ADAPTERS}, draft=ASSISTANT),
    Row("O1", {"enable_lora": True}, error="AssertionError"),
    Row("O2", {"alg": "DSPARK", **ADAPTERS}, draft=DSPARK, env=COMPACT),
    Row(
        "O3",
        {"alg": "EAGLE", **ADAPTERS},
        draft=EAGLE,
        env={"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"},
    ),
    Row("O3", {"alg": "EAGLE", **ADAPTERS, "moe_runner_backend": "experimental_sgl_trtllm"}),
    Row("O4", {"alg": "EAGLE", "speculative_moe_runner_backend": "lora_triton"}, draft=EAGLE),
    Row("O6", {"alg": "NONE", "mixed": True}, error="AssertionError"),
    Row("O7", {"alg": "EAGLE", "enable_lmcache": True}, draft=EAGLE, error="NotImplementedError"),
    Row("O8", {"alg": "NGRAM", "weight_cache_mode": "client"}),
    Row(
        "O9",
        {"alg": "EAGLE", "dcp_size": 2, "tp_size": 2, "enable_hierarchical_cache": True},
        target=DEEPSEEK,
        error="NotImplementedError",
    ),
    Row(
        "O10",
        {"alg": "EAGLE", **CHAIN, "topk": 2, "backend": "fa3", "enable_hisparse": True}
        | {"disable_radix_cache": True},
        target=like("DeepseekV32ForCausalLM", index_topk=64, kv_lora_rank=32),
    ),
    Row("O10", {"enable_hisparse": True}, error="AssertionError"),
    Row("O11", {"alg": "NGRAM", "enable_unified_memory": True}, error="AssertionError"),
    Row(
        "O11", {"alg": "EAGLE", "enable_unified_memory": True}, draft=EAGLE, error="AssertionError"
    ),
    Row("O13", {"alg": "DSPARK", "kv": "nvfp4"}, draft=DSPARK, platform="b200"),
    Row("O13", {"alg": "NGRAM", "kv": "nvfp4"}, platform="b200"),
    Row(
        "O13", {"alg": "EAGLE", "kv": "nvfp4", "draft_backend": "fa4"}, draft=EAGLE, platform="b200"
    ),
    Row("O13", {"kv": "nvfp4"}, error="RuntimeError"),
    Row("O15", {"alg": "NEXTN", **CHAIN, "tokens": 300}, target=QWEN_NEXT, error="AssertionError"),
    Row(
        "O16",
        {"mamba_radix_cache_strategy": "no_buffer"},
        target=QWEN_NEXT,
        error="AssertionError",
    ),
    Row("O16", {"mamba_radix_cache_strategy": "extra_buffer"}),
    Row("O21", {"alg": "EAGLE", "window": 0}),
    Row("O21", {"alg": "EAGLE", "sink": -1, "window": 8}),
    Row("O21", {"alg": "EAGLE", "sink": 1}),
    Row("3.6", {}, platform="h1000", error="RuntimeError"),
    Row("3.6", {"backend": "trtllm_mla"}, target=DEEPSEEK),
    Row("3.6", {"backend": "trtllm_mha"}, platform="a100"),
    Row("3.6", {"chunked_prefill_size": 100, "page": 64}, error="AssertionError"),
    Row("4.11", {"enable_two_batch_overlap": True}),
    Row("4.11", {"attn_dp_size": 2, "tp_size": 3}, error="AssertionError"),
)

EFFECTIVE: tuple[Row, ...] = (
    Row("N1", {"alg": "dflash"}, {"alg": "DFLASH"}, draft=DFLASH),
    Row("N2", {"alg": "NEXTN"}, {"alg": "EAGLE"}, target=DEEPSEEK),
    Row("N6", {"alg": "EAGLE"}, {"alg": "FROZEN_KV_MTP"}, draft=ASSISTANT),
    Row("N8", {"alg": "EAGLE"}, {"multi_layer": True}, target=like("MiMoV2FlashForCausalLM")),
    Row(
        "N8",
        {"alg": "EAGLE"},
        {"multi_layer": True},
        target=like("Step3p7ForConditionalGeneration"),
    ),
    Row(
        "N13",
        {"alg": "DSPARK", "enable_return_aux_hidden_states": True}
        | {"return_aux_hidden_state_layer_ids": [1, 2]},
        {"alg": None},
    ),
    Row("D1", {"alg": "EAGLE", "revision": "r1"}, {"path": "TARGET"}, target=DEEPSEEK),
    Row(
        "D5",
        {"alg": "DSPARK"},
        {"path": "TARGET", "tokens": 7},
        target=like("LlamaForCausalLM", dspark_block_size=6),
    ),
    Row("3.1", {"alg": "EAGLE"}, {"steps": 5, "topk": 4, "tokens": 8}, draft=EAGLE),
    Row("3.1", {"alg": "STANDALONE"}, {"steps": 3, "topk": 1, "tokens": 4}),
    Row(
        "3.1",
        {"alg": "EAGLE"},
        {"steps": 5, "topk": 4},
        target=like("Grok1ForCausalLM"),
        draft=EAGLE,
    ),
    Row(
        "3.1",
        {"alg": "EAGLE"},
        {"steps": 3, "topk": 1},
        target=like("Qwen3ForCausalLM"),
        draft=EAGLE,
    ),
    Row("3.2", {"alg": "DFLASH"}, {"tokens": 16}, draft=like("DFlashDraftModel")),
    Row("3.2", {"alg": "DFLASH", "block": 4}, {"tokens": 4}, draft=DFLASH),
    Row("3.2", {"alg": "DSPARK"}, {"tokens": 8}, draft=like("Qwen3DSparkModel")),
    Row("3.2", {"alg": "DSPARK", "gamma": 3}, {"tokens": 4}, draft=DSPARK),
    Row("3.2", {"alg": "NGRAM"}, {"tokens": 12, "topk": 10, "steps": 1}),
    Row(
        "3.3", {"alg": "EAGLE", "adaptive": True}, {"steps": 3, "topk": 1, "tokens": 4}, draft=EAGLE
    ),
    Row("3.4", {"alg": "NGRAM"}, {"requests": 48}),
    Row("3.4", {"alg": "EAGLE", **CHAIN}, {"requests": 256, "page": 256}, target=V4),
    Row("3.6", {"alg": "NGRAM"}, {"backend": "flashinfer"}, platform="a100"),
    Row("3.6", {}, {"backend": "aiter"}, platform="mi300"),
    Row("3.6", {}, {"backend": "trtllm_mla", "page": 64}, target=DEEPSEEK, platform="b200"),
    Row("3.6", {}, {"backend": "ascend", "page": 128}, platform="npu"),
    Row("3.6", {"backend": "flashmla"}, {"page": 64}, target=DEEPSEEK),
    Row("3.6", {"draft_backend": "trtllm_mha"}, {"page": 64}),
    Row("3.6", {"kv": "fp8_e5m2"}, {"backend": "triton"}),
    Row("3.6", {}, {"backend": "triton"}, target=like("GptOssForCausalLM"), platform="a100"),
    Row("3.7", {"alg": "EAGLE"}, {"speculative_draft_model_revision": "main"}, draft=EAGLE),
    Row("3.7", {"quantization": "fp8"}, {"speculative_draft_model_quantization": "fp8"}),
    Row(
        "3.8",
        {"alg": "DFLASH", "draft_backend": "flashmla"},
        {"draft_backend": "flashinfer"},
        draft=DFLASH,
    ),
    Row("3.8", {"alg": "DFLASH"}, {"draft_backend": "fa4"}, draft=DFLASH, platform="b200"),
    Row(
        "3.8",
        {"alg": "DFLASH"},
        {"draft_backend": "trtllm_mha"},
        draft={**DFLASH, "is_causal": True},
        platform="b200",
    ),
    Row(
        "3.8",
        {"alg": "EAGLE", **CHAIN, "kv": "nvfp4"},
        {"draft_backend": "trtllm_mha"},
        draft=EAGLE,
        platform="b200",
    ),
    Row(
        "3.8",
        {"alg": "EAGLE"},
        {"backend": "trtllm_mha", "page": 64, "draft_backend": "trtllm_mha"},
        target=like("NemotronHForCausalLM"),
        platform="b200",
    ),
    Row(
        "3.8",
        {"alg": "DSPARK"},
        {"linear_attn_verify_backend": "nv_cutedsl", "speculative_attention_mode": "decode"},
        target=like("KimiK3ForConditionalGeneration"),
        draft=DSPARK,
        platform="b200",
    ),
    Row(
        "3.9",
        {"moe_runner_backend": "lora_triton", "enable_lora": True, "lora_paths": ["x"]},
        {"speculative_moe_runner_backend": "auto"},
    ),
    Row("E4", {"alg": "EAGLE", **CHAIN, "tokens": 9}, {"tokens": 4}, draft=EAGLE),
    Row("S8", {"alg": "EAGLE", **CHAIN}, {"rejection": True}, draft=EAGLE, platform="mi300"),
    Row("S8", {"alg": "EAGLE3", **CHAIN}, {"rejection": False}, draft=EAGLE3, platform="mi300"),
    Row("S11", {"alg": "EAGLE", **CHAIN, "block_verify": True}, {"rejection": True}, draft=EAGLE),
    Row("V1", {"alg": "NGRAM", "adaptive": True}, {"adaptive": False}),
    Row(
        "V1",
        {"alg": "EAGLE", **CHAIN, "topk": 2, "adaptive": True},
        {"adaptive": False},
        draft=EAGLE,
    ),
    Row(
        "V3",
        {"alg": "EAGLE", "adaptive": True, "steps": 5, "tokens": 3},
        {"tokens": 6},
        draft=EAGLE,
    ),
    Row("F5", {"alg": "DFLASH", "steps": 4, "topk": 2}, {"steps": 1, "topk": 1}, draft=DFLASH),
    Row("K8", {"alg": "DSPARK", "steps": 4, "topk": 2}, {"steps": 1, "topk": 1}, draft=DSPARK),
    Row(
        "U7", {"alg": "UNO", "lora": "/x", "tokens": 4, "steps": 3}, {"steps": 1, "requests": None}
    ),
    Row("U9", {"alg": "UNO", "lora": "/x", "tokens": 4, "mixed": True}, {"mixed": False}),
    Row("G3", {"alg": "NGRAM", "mixed": True}, {"mixed": False}),
    Row("G4", {"alg": "NGRAM", "topk": 3, "breadth": 4}, {"topk": 4}),
    Row("Z1", {"alg": "NEXTN"}, {"steps": None, "topk": None, "tokens": None}, draft=ASSISTANT),
    Row("Z5", {"alg": "STANDALONE", "mixed": True}, {"mixed": False}),
    Row("2.5", {"alg": "EAGLE", "mixed": True}, {"mixed": True}, draft=EAGLE),
    Row("P1", {"pp_size": 2}, {"serial": True}),
    Row("P10", {"alg": "NGRAM"}, {"serial": True}, platform="cpu"),
    Row(
        "O16",
        {"mamba_radix_cache_strategy": "auto"},
        {"serial": True},
        target=QWEN_NEXT,
        platform="xpu",
    ),
    Row(
        "4.11",
        {"enable_dp_attention": True, "dp_size": 2, "tp_size": 2},
        {"attn_dp_size": 2, "dp_size": 1},
    ),
    Row("4.11", {"enable_dp_lm_head": True}, {"enable_dp_lm_head": False}),
)

NOTED: tuple[Row, ...] = (
    Row("1.1", {"alg": "NGRAM", "gamma": 4}, "warns"),
    Row("1.2", {"alg": "NGRAM"}, "warns", env={"SGLANG_NGRAM_FORCE_GREEDY_VERIFY": "1"}),
    Row("2.5", {"alg": "NGRAM"}, "warns", env=COMPACT),
    Row("N3", {"alg": "none"}, "unchecked"),
    Row("N4", {"alg": "NEXTN"}, "unchecked", target=like("MiMoV2FlashForCausalLM")),
    Row("N6", {"alg": "FROZEN_KV_MTP"}, "unchecked", draft=EAGLE),
    Row("N7", {"alg": "STANDALONE"}, "unchecked", draft=ASSISTANT),
    Row("N8", {"alg": "NGRAM", "multi_layer": True}, "warns"),
    Row("N9", {"alg": "EAGLE"}, "at start", target=like("InklingForConditionalGeneration")),
    Row("D2", {"alg": "EAGLE"}, "warns", target=DEEPSEEK, draft=EAGLE),
    Row("D3", {"alg": "STANDALONE"}, "unchecked"),
    Row("E3", {"alg": "EAGLE", "steps": 3, "topk": 2}, "unchecked", draft=EAGLE),
    Row("E5", {"alg": "EAGLE", **CHAIN, "topk": 0}, "unchecked", draft=EAGLE),
    Row("E6", {"alg": "EAGLE", "steps": 1, "topk": 2, "tokens": 9}, "at start", draft=EAGLE),
    Row("E7", {"alg": "EAGLE", **CHAIN, "requests": 2**25}, "at start", draft=EAGLE),
    Row("E9", {"alg": "EAGLE", **CHAIN, "topk": 2, "multi_layer": True}, "at start", draft=EAGLE),
    Row("A5", {"alg": "NGRAM", "backend": "hpc_ops", "breadth": 1}, "at start"),
    Row(
        "A6",
        {"alg": "EAGLE", "steps": 3, "topk": 2, "tokens": 4, "backend": "flashinfer"},
        "at start",
        target=DEEPSEEK,
    ),
    Row(
        "A7",
        {"alg": "EAGLE", "steps": 3, "topk": 2, "tokens": 4},
        "at start",
        draft=EAGLE,
        platform="mi300",
    ),
    Row(
        "A12",
        {"alg": "EAGLE", "steps": 3, "topk": 2, "tokens": 4, "backend": "fa3", "page": 16},
        "at start",
        target=like("Step3p5ForCausalLM"),
    ),
    Row("A14", {"alg": "EAGLE", **CHAIN, "draft_backend": "wave"}, "at start", draft=EAGLE),
    Row("A15", {"alg": "NEXTN", "steps": 3, "topk": 2, "tokens": 4}, "at start", draft=ASSISTANT),
    Row(
        "A16",
        {"alg": "EAGLE", **CHAIN, "dcp_size": 2, "tp_size": 2},
        "at start",
        target=DEEPSEEK,
        platform="b200",
    ),
    Row("S2", {"alg": "NGRAM", "rejection": True}, "unchecked"),
    Row(
        "S7",
        {"alg": "EAGLE3", **CHAIN, "rejection": True},
        "at start",
        draft={**EAGLE3, "draft_vocab_size": 500},
    ),
    Row("S12", {"alg": "DFLASH", "block_verify": True}, "warns", draft=DFLASH),
    Row("S13", {"alg": "NGRAM", "single": 1.5}, "at start"),
    Row("S15", {"alg": "NGRAM"}, "told", platform="cpu"),
    Row("V4", {"alg": "EAGLE", "speculative_adaptive_config": "x"}, "warns", draft=EAGLE),
    Row("V9", {"alg": "EAGLE", "adaptive": True}, "told", draft=EAGLE),
    Row(
        "F3",
        {"alg": "DFLASH", **HEAD},
        "at start",
        draft={**DFLASH, "architectures": ["LiLiCorrDraftModel"]},
    ),
    Row("F9", {"alg": "DFLASH", "block": 4}, "warns", draft=DFLASH),
    Row(
        "F11",
        {"alg": "DFLASH"},
        "at start",
        draft={**DFLASH, "dflash_config": {"target_layer_ids": [9]}},
    ),
    Row(
        "F12",
        {"alg": "DFLASH"},
        "at start",
        draft={**DFLASH, "dflash_config": {"mask_token_id": 1000}},
    ),
    Row("F13", {"alg": "DFLASH"}, "warns", draft={**DFLASH, "num_target_layers": 9}),
    Row(
        "F16",
        {"alg": "DFLASH"},
        "at start",
        draft={**DFLASH, "dflash_config": {"selector_rank": 2}},
    ),
    Row(
        "K12",
        {"alg": "DSPARK"},
        "at start",
        draft={**DSPARK, "dflash_config": {"markov_head_type": "gru", "markov_rank": 2}},
    ),
    Row(
        "K13",
        {"alg": "DSPARK", "speculative_dspark_align_verify_tokens_to_graph_tier": True},
        "warns",
        draft=DSPARK,
    ),
    Row("K14", {"alg": "DSPARK", "speculative_dspark_sps_table_path": "/x"}, "warns", draft=DSPARK),
    Row(
        "K15",
        {"alg": "DSPARK"},
        "at start",
        draft={**DSPARK, "enable_confidence_head": False},
        env=COMPACT,
    ),
    Row(
        "K17",
        {"alg": "DSPARK", "speculative_dspark_confidence_sts_path": "/x"},
        "warns",
        draft={**DSPARK, "enable_confidence_head": False},
    ),
    Row("K19", {"alg": "DSPARK"}, "warns", draft=DSPARK, env=COMPACT),
    Row("K20", {"alg": "DSPARK", **HEAD}, "at start", draft=DSPARK, env=COMPACT),
    Row(
        "K21",
        {"alg": "DSPARK", "disable_cuda_graph_padding": True},
        "at start",
        draft=DSPARK,
        env=COMPACT,
    ),
    Row(
        "K23",
        {"alg": "DSPARK"},
        "at start",
        draft=DSPARK,
        env={"SGLANG_RAGGED_VERIFY_MODE": "cap-accept", "SGLANG_SIMULATE_ACC_LEN": "3"},
    ),
    Row("K24", {"alg": "DSPARK"}, "at start", draft=like("Qwen3DSparkModel")),
    Row("K25", {"alg": "DSPARK", "window": 8}, "warns", draft=DSPARK),
    Row("G7", {"alg": "NGRAM", "budget": 3}, "unchecked"),
    Row("G7", {"alg": "NGRAM", "speculative_ngram_min_bfs_breadth": 20}, "unchecked"),
    Row("G8", {"alg": "NGRAM", "tokens": 5}, "unchecked"),
    Row("Z1", {"alg": "NEXTN"}, "unchecked", draft=ASSISTANT),
    Row("Z2", {"alg": "NEXTN", **CHAIN, "tokens": 9}, "at start", draft=ASSISTANT),
    Row("Z4", {"alg": "STANDALONE"}, "at start", draft=like("LlamaForCausalLM", vocab_size=900)),
    Row(
        "P9",
        {"alg": "EAGLE", "steps": 3, "topk": 20, "tokens": 21, "mode": "prefill"},
        "at start",
        draft=EAGLE,
    ),
    Row("P11", {"alg": "EAGLE", "serial": True}, "warns", draft=EAGLE),
    Row("O17", {"alg": "EAGLE", "steps": 12, "topk": 1, "tokens": 13}, "at start", target=V4),
    Row("O18", {"alg": "EAGLE"}, "at start", draft={**EAGLE, "max_position_embeddings": 64}),
    Row("O20", {"alg": "NGRAM", "window": 8}, "warns"),
    Row("O22", {"alg": "NGRAM"}, "at start", env={"SGLANG_SIMULATE_ACC_METHOD": "mean"}),
    Row("F14", {"alg": "DFLASH", "enable_return_hidden_states": True}, "told", draft=DFLASH),
    Row(
        "F17",
        {"alg": "DFLASH", "speculative_domino_candidate_pool_size": -1},
        "at start",
        draft={**DFLASH, "projector_type": "domino"},
    ),
    Row(
        "F18",
        {"alg": "DFLASH"},
        "at start",
        draft={**DFLASH, "architectures": ["LiLiCorrDraftModel"]},
    ),
    Row("S16", {"alg": "DFLASH"}, "told", draft=DFLASH, platform="npu"),
    Row(
        "G6", {"alg": "NGRAM", "corpus": "/x", "budget": 2, "skip_tokenizer_init": True}, "at start"
    ),
    Row("U11", {"alg": "UNO", "lora": "/x", "tokens": 4}, "told"),
    Row("O23", {"alg": "EAGLE", "speculative_dsa_topk_backend": "torch"}, "at start", draft=EAGLE),
    Row("4.13", {"alg": "EAGLE", **CHAIN}, "told", draft=EAGLE),
    Row("5", {"alg": "NGRAM", "single": 0.5}, "told"),
    Row("5", {"alg": "NGRAM"}, "told", env={"SGLANG_SIMULATE_ACC_LEN": "2.5"}),
)


def told(row: Row) -> Effective | Refused:
    return effective(row.long, row.target, row.draft, row.platform, row.env)


def named(row: Row) -> str:
    return f"{row.rule} {row.args}"


@pytest.mark.parametrize("row", REFUSED, ids=named)
def test_a_row_that_stops_the_engine_stops_it(row) -> None:
    got = told(row)
    assert isinstance(got, Refused), got
    # A2 also stands for what its own row says of fa4, and V7 for its assertion.
    assert got.rule == {"A13": "A2"}.get(row.rule, row.rule), got
    assert got.reason
    assert got.error == {"V7": "AssertionError"}.get(row.rule, row.error)


@pytest.mark.parametrize("row", EFFECTIVE, ids=named)
def test_a_row_that_sets_a_value_sets_it(row) -> None:
    got = told(row)
    assert isinstance(got, Effective), got
    assert isinstance(row.expect, dict)
    expected = {SHORT.get(k, k): v for k, v in row.expect.items()}
    assert {k: got[k] for k in expected} == expected
    changed = [k for k in expected if expected[k] != row.long.get(k, FLAGS.all[k].default)]
    for name in changed:
        decision = got.decision(name)
        assert decision is not None
        assert decision.because
    rules = {got.decision(name).rule for name in changed}
    assert not changed or row.rule in rules, rules


@pytest.mark.parametrize("row", NOTED, ids=named)
def test_a_row_that_is_remarked_on_is(row) -> None:
    got = told(row)
    assert isinstance(got, Effective), got
    assert (row.rule, Kind(row.expect)) in {(n.rule, n.kind) for n in got.notes}, got.notes


def test_a_file_of_adaptive_slots_is_read(tmp_path) -> None:
    path = tmp_path / "slots.json"
    args = {
        "speculative_algorithm": "EAGLE",
        "speculative_adaptive": True,
        "speculative_adaptive_config": str(path),
    }

    def with_slots(slots: Any) -> Effective | Refused:
        path.write_text(json.dumps(slots))
        return effective(args, LLAMA, EAGLE)

    good = with_slots({"1": {"candidate_steps": [2, 4]}, "8": {"candidate_steps": [0]}})
    assert isinstance(good, Effective)
    assert good["speculative_num_steps"] == 2
    for bad in ({}, {"1": {}}, {"1": {"candidate_steps": [-1]}}, [], {"x": 1}):
        got = with_slots(bad)
        assert isinstance(got, Refused)
        assert got.rule == "V4"


def test_the_dspark_folder_of_a_checkpoint_is_its_draft(tmp_path) -> None:
    (tmp_path / "dspark").mkdir()
    (tmp_path / "dspark" / "config.json").write_text(json.dumps({**DSPARK, "block_size": 4}))
    args = {"speculative_algorithm": "DSPARK", "model_path": str(tmp_path)}
    got = effective(args, LLAMA)
    assert isinstance(got, Effective)
    assert got["speculative_draft_model_path"] == str(tmp_path / "dspark")
    assert got["speculative_num_draft_tokens"] == 5


def test_an_unknown_flag_names_its_neighbours() -> None:
    got = effective({"speculative-num-step": 3}, LLAMA)
    assert isinstance(got, Refused)
    assert "speculative_num_steps" in got.reason


def test_a_flag_has_the_spellings_of_the_command_line() -> None:
    got = effective({"--tensor-parallel-size": 2, "speculative-draft-model": "d"}, LLAMA)
    assert isinstance(got, Effective)
    assert got["tp_size"] == 2
    assert got["speculative_draft_model_path"] == "d"


RULES = sorted((ROOT / "specflow" / "engines").joinpath("sglang").glob("*.py"))


@pytest.mark.parametrize("path", RULES, ids=lambda p: p.stem)
def test_a_rule_reads_flags_that_there_are(path) -> None:
    """A rule that few arguments reach would otherwise fail when they come."""
    text = path.read_text()
    named = re.findall(r'run(?:\.asked)?\[\s*"([a-z0-9_]+)"\s*\]|run\.set\(\s*"([a-z0-9_]+)"', text)
    names = {name for pair in named for name in pair if name}
    assert names <= set(FLAGS.all)
