"""Tiny random models of every architecture the target engine is proven on."""

from __future__ import annotations

import copy

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MiMoV2FlashConfig,
    MiMoV2FlashForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 97
WINDOW = 8
BASE = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
GLM = {
    "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "use_qk_norm": True,
}  # fmt: skip
SLIDING = {
    "head_dim": 16, "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
GEMMA4 = {
    **SLIDING, "global_head_dim": 32, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0,
}  # fmt: skip
MIMO_V2 = {
    "head_dim": 24, "v_head_dim": 16, "sliding_window": WINDOW, "num_key_value_heads": 2,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
}  # fmt: skip
SHAPES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": WINDOW}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 24}),
    "qwen3_moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    ),
    "deepseek_v3": (DeepseekV3ForCausalLM, DeepseekV3Config, MLA),
    "glm4_moe": (Glm4MoeForCausalLM, Glm4MoeConfig, GLM),
    "mimo_v2": (MiMoV2FlashForCausalLM, MiMoV2FlashConfig, MIMO_V2),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config, SLIDING | {"query_pre_attn_scalar": 16}),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, SLIDING),
    "gemma3_narrow": (Gemma3ForCausalLM, Gemma3TextConfig, SLIDING | {"sliding_window": 2}),
    "gemma4": (Gemma4ForCausalLM, Gemma4TextConfig, GEMMA4),
    "gemma4_shared": (Gemma4ForCausalLM, Gemma4TextConfig, GEMMA4 | {"num_kv_shared_layers": 2}),
}


def build(name: str, seed: int = 0, **changes: object) -> PreTrainedModel:
    """A random model whose distribution is not flat, so that a wrong mask shows."""
    torch.manual_seed(seed)
    model_class, config_class, shape = SHAPES[name]
    config = config_class(**copy.deepcopy({**BASE, **shape, **changes}))
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, 0.1 if parameter.shape[-1] > 32 else 0.2)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
