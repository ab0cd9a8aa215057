"""Model families that the library knows by another name.

MiMo-7B is a Qwen2 with MTP layers, Kimi K2 a DeepSeek-V3 without.
"""

from __future__ import annotations

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)


class MiMoConfig(Qwen2Config):
    """The config of MiMo-7B; its `num_nextn_predict_layers` is kept as it stands."""

    model_type = "mimo"


class MiMoForCausalLM(Qwen2ForCausalLM):
    """The target of MiMo-7B; its MTP layers are loaded by whoever drafts with them."""

    config_class: type[PreTrainedConfig] = MiMoConfig
    _keys_to_ignore_on_load_unexpected = [r"^model\.mtp_layers\."]  # noqa: RUF012 - as the base has it


class KimiK2Config(DeepseekV3Config):
    """The config of Kimi K2: one dense layer, one group of experts, no MTP layer."""

    model_type = "kimi_k2"


class KimiK2ForCausalLM(DeepseekV3ForCausalLM):
    """The target of Kimi K2."""

    config_class: type[PreTrainedConfig] = KimiK2Config


OWN: tuple[tuple[type[PreTrainedConfig], type[PreTrainedModel]], ...] = (
    (MiMoConfig, MiMoForCausalLM),
    (KimiK2Config, KimiK2ForCausalLM),
)


def register() -> None:
    """Tell the library, once."""
    for config, model in OWN:
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModelForCausalLM.register(config, model, exist_ok=True)
