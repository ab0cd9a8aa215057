"""The layers that draft networks have and the library has not.

B  rows      q  tokens a row      M  hidden width
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
)

from specflow.models.attention import ATTENTION

Turn = tuple[Tensor, Tensor]  # cosines and sines [B, q, E] of RoPE

# What the MTP layers of a family are, where its config says only what the target's layers are.
MTP_LAYERS: dict[str, dict[str, str]] = {
    "mimo_v2_flash": {"layer_types": "sliding_attention", "mlp_layer_types": "dense"},
    "qwen3_next": {"layer_types": "full_attention", "mlp_layer_types": "sparse"},
}
ALWAYS_SPARSE = "first_k_dense_replace"  # MTP layers of an MoE model are sparse (serial.md §6.3)


class WideBlock(nn.Module):
    """EAGLE3's layer: attention reads the embedding and the hidden state side by side (§6.2)."""

    def __init__(self, config: LlamaConfig, index: int, *, residual_normed: bool = False) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.residual_normed = residual_normed
        self.input_layernorm = LlamaRMSNorm(width, eps=eps)
        self.hidden_norm = LlamaRMSNorm(width, eps=eps)
        self.self_attn = LlamaAttention(config, index)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            wide = nn.Linear(2 * width, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps=eps)
        self.mlp = LlamaMLP(config)

    def forward(self, embedded: Tensor, hidden: Tensor, turn: Turn, step: Any) -> Tensor:
        """The next hidden state [B, q, M], not normed."""
        normed = self.hidden_norm(hidden)
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        mixed, _ = self.self_attn(
            both, position_embeddings=turn, attention_mask=None, cache=step, step=step
        )
        hidden = (normed if self.residual_normed else hidden) + mixed
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


def llama_block(config: LlamaConfig, index: int, *, input_norm: bool) -> nn.Module:
    """A Llama layer; EAGLE's has no norm before its attention."""
    block: Any = LlamaDecoderLayer(config, index)
    if not input_norm:
        block.input_layernorm = nn.Identity()
    made: nn.Module = block
    return made


def llama_config(said: dict[str, Any]) -> LlamaConfig:
    """The config of a draft's own Llama layers, whatever its model_type calls itself."""
    kept = {k: v for k, v in said.items() if k not in {"model_type", "architectures", "auto_map"}}
    config = LlamaConfig(**kept)
    config._attn_implementation = ATTENTION  # noqa: SLF001 - no public setter outside a model
    return config


def target_config(config: PreTrainedConfig, steps: int) -> PreTrainedConfig:
    """The target's config with `steps` MTP layers instead of its own layers."""
    made = deepcopy(config)
    made.num_hidden_layers = steps
    for name, kind in MTP_LAYERS.get(config.model_type, {}).items():
        setattr(made, name, [kind] * steps)
    if hasattr(made, ALWAYS_SPARSE):
        setattr(made, ALWAYS_SPARSE, 0)
    return made
