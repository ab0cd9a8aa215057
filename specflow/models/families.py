"""Model families that the library knows by another name: MiMo-7B is a Qwen2 with MTP layers."""

from __future__ import annotations

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
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


def register() -> None:
    """Tell the library, once."""
    AutoConfig.register(MiMoConfig.model_type, MiMoConfig, exist_ok=True)
    AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM, exist_ok=True)
