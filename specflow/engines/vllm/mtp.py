"""Which models have MTP layers for vLLM, and how many tokens those predict (hf_config_override)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specflow.engines.vllm.given import architectures_of, kind_of, whole

NEXTN = "num_nextn_predict_layers"


@dataclass(frozen=True)
class Layers:
    """What vLLM makes of a config with MTP layers.

    type     the model type that it is renamed to, and the method that some versions know it by
    predict  tokens of one pass of all layers; None where the config does not say
    """

    type: str
    predict: int | None


# model_type -> the type with `_mtp`, and where the number of layers is; a number is that number.
_BY_TYPE: dict[str, tuple[str, str | int]] = {
    "deepseek_v3": ("deepseek_mtp", NEXTN),
    "deepseek_v32": ("deepseek_mtp", NEXTN),
    "glm_moe_dsa": ("deepseek_mtp", NEXTN),
    "deepseek_v4": ("deepseek_mtp", NEXTN),
    "pangu_ultra_moe": ("pangu_ultra_moe_mtp", NEXTN),
    "kimi_k3": ("kimi_k3_mtp", NEXTN),
    "ernie4_5_moe": ("ernie_mtp", NEXTN),
    "nemotron_h": ("nemotron_h_mtp", NEXTN),
    "qwen3_next": ("qwen3_next_mtp", NEXTN),
    "qwen3_5": ("qwen3_5_mtp", "mtp_num_hidden_layers"),
    "qwen3_5_moe": ("qwen3_5_mtp", "mtp_num_hidden_layers"),
    "qwen3_5_text": ("qwen3_5_mtp", "mtp_num_hidden_layers"),
    "qwen3_5_moe_text": ("qwen3_5_mtp", "mtp_num_hidden_layers"),
    "qwen4_exp": ("qwen4_exp_mtp", "mtp_num_hidden_layers"),
    "exaone_moe": ("exaone_moe_mtp", NEXTN),
    "longcat_flash": ("longcat_flash_mtp", NEXTN),
    "step3p5": ("step3p5_mtp", NEXTN),
    "hy_v3": ("hy_v3_mtp", NEXTN),
    "hy_v4": ("hy_v4_mtp", NEXTN),
    "bailing_hybrid": ("bailing_hybrid_mtp", NEXTN),
    "glm5_next": ("glm5_next_mtp", NEXTN),
    "gemma4_assistant": ("gemma4_mtp", 1),
    "gemma4_unified_assistant": ("gemma4_mtp", 1),
}
_BY_ARCHITECTURE: dict[str, tuple[str, str | int]] = {
    "MiMoForCausalLM": ("mimo_mtp", NEXTN),
    "MiMoV2ForCausalLM": ("mimo_v2_mtp", 1),
    "MiMoV2FlashForCausalLM": ("mimo_v2_mtp", 1),
    "Glm4MoeForCausalLM": ("glm4_moe_mtp", NEXTN),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite_mtp", NEXTN),
    "GlmOcrForConditionalGeneration": ("glm_ocr_mtp", NEXTN),
}


def layers_of(config: Mapping[str, Any], methods: tuple[str, ...]) -> Layers | None:
    """The MTP layers of a config, for a version with these methods; None where it has none."""
    for name in architectures_of(config)[:1]:
        if name in _BY_ARCHITECTURE:
            return _layers(config, *_BY_ARCHITECTURE[name], methods)
    kind = kind_of(config)
    if kind in _BY_TYPE:
        return _layers(config, *_BY_TYPE[kind], methods)
    if kind.endswith("_mtp"):  # a checkpoint of the layers alone says so itself
        return _layers(config, kind, NEXTN, methods)
    return None


def _layers(
    config: Mapping[str, Any], kind: str, where: str | int, methods: tuple[str, ...]
) -> Layers | None:
    if kind not in methods:
        return None
    found = where if isinstance(where, int) else whole(config, where)
    return Layers(kind, found)
