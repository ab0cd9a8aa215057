"""What does a Llama-shaped decoder compute, with as few operations as it takes?

    B  rows      q  tokens a row      M  hidden width      H, K  query and key-value heads      E  head width

The same weights as the library's modules, which keep them as views: queries, keys and values are one matrix, gate and
up another. On a CPU a wide float32 matrix is stored by columns, which multiplies one to three rows far faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specflow.models.attention import mix

Linear = tuple[Tensor, Tensor | None]  # weight, bias


@dataclass(frozen=True)
class LeanLayer:
    """The weights of one layer."""

    norm: Tensor  # [M]
    qkv: Linear  # [(H + 2K) E, M]
    head_norm: Tensor | None  # [H + K, E]: Qwen3 norms each head of queries and keys
    out: Linear
    middle_norm: Tensor  # [M]
    gate_up: Linear  # [2 I, M]
    down: Linear
    window: int | None


class LeanDecoder:
    """Tokens to hidden states, through the weights of a Llama, Mistral, Qwen2 or Qwen3 of the library."""

    def __init__(self, decoder: nn.Module, config: Any) -> None:
        attention = decoder.layers[0].self_attn
        self.embedding = decoder.embed_tokens.weight
        self.rotary = decoder.rotary_emb
        self.norm = decoder.norm.weight
        self.eps = float(config.rms_norm_eps)
        self.width = int(attention.head_dim)
        self.heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads)
        self.scaling = float(attention.scaling)
        self.layers = [self._gather(layer) for layer in decoder.layers]

    def _gather(self, layer: Any) -> LeanLayer:
        attention, mlp = layer.self_attn, layer.mlp
        window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        counts = (self.heads, self.kv_heads)
        scales = [n.weight.expand(count, -1) for n, count in zip(norms, counts, strict=True) if n is not None]
        return LeanLayer(
            norm=layer.input_layernorm.weight,
            qkv=fuse([attention.q_proj, attention.k_proj, attention.v_proj]),
            head_norm=torch.cat(scales) if scales else None,
            out=(attention.o_proj.weight, attention.o_proj.bias),
            middle_norm=layer.post_attention_layernorm.weight,
            gate_up=fuse([mlp.gate_proj, mlp.up_proj]),
            down=(mlp.down_proj.weight, mlp.down_proj.bias),
            window=window,
        )

    def __call__(self, tokens: Tensor, positions: Tensor, step: Any) -> Tensor:
        """Hidden states [B, q, M] after the final norm."""
        hidden = F.embedding(tokens, self.embedding)
        cos, sin = self.rotary(hidden, positions)  # [B, q, E] each, halves repeated
        low, high = sin.chunk(2, dim=-1)
        turn = (cos.unsqueeze(2), torch.cat((-low, high), dim=-1).unsqueeze(2))
        for index, layer in enumerate(self.layers):
            hidden = hidden + self._attend(layer, self._norm(hidden, layer.norm), turn, step, index)
            gate, up = F.linear(self._norm(hidden, layer.middle_norm), *layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + F.linear(F.silu(gate) * up, *layer.down)
        return self._norm(hidden, self.norm)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self.eps)

    def _attend(self, layer: LeanLayer, hidden: Tensor, turn: tuple[Tensor, Tensor], step: Any, index: int) -> Tensor:
        rows, queries, _ = hidden.shape
        both = self.heads + self.kv_heads
        merged = F.linear(hidden, *layer.qkv).view(rows, queries, -1, self.width)
        turned = merged[:, :, :both]  # queries and keys, [B, q, H + K, E]
        if layer.head_norm is not None:
            turned = F.rms_norm(turned, (self.width,), None, self.eps) * layer.head_norm
        # With the sign of the lower half in `sin`, rotating halves is a roll.
        turned = torch.addcmul(turned * turn[0], turned.roll(self.width // 2, -1), turn[1]).transpose(1, 2)
        values = merged[:, :, both:].transpose(1, 2)
        keys, values = step.update(turned[:, self.heads :], values, index)
        mixed = mix(turned[:, : self.heads], keys, values, step, self.scaling, layer.window, None)
        return F.linear(mixed.transpose(1, 2).reshape(rows, queries, -1), *layer.out)


@torch.no_grad()
def fuse(linears: Sequence[nn.Linear]) -> Linear:
    """One matrix of several that read the same input; the modules keep views of it."""
    weight = by_columns(torch.cat([linear.weight for linear in linears]))
    biases = [linear.bias for linear in linears if linear.bias is not None]
    for linear, part in zip(linears, weight.split([l.out_features for l in linears]), strict=True):
        linear.weight = nn.Parameter(part, requires_grad=False)
    return weight, torch.cat(biases) if biases else None


def by_columns(weight: Tensor) -> Tensor:
    """The same matrix [N, M], stored by columns where a CPU multiplies that faster."""
    wide = weight.shape[0] >= weight.shape[1]
    if wide and weight.device.type == "cpu" and weight.dtype == torch.float32:
        return weight.t().contiguous().t()
    return weight
