"""What a Llama-shaped decoder computes, with as few operations as it takes.

    B  rows      q  tokens a row      M  hidden width      H, K  query and key-value heads
    E  head width      T  B * q tokens      R  T, or the fewest rows a matrix likes

Queries, keys and values are one matrix, gate and up another. Tokens are kept flat and padded once;
attention alone looks at the T real ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specflow.models.attention import mix
from specflow.models.linear import PackedLinear, PlainLinear, fuse, padded


@dataclass(frozen=True)
class LeanLayer:
    """The weights of one layer."""

    norm: Tensor  # [M]
    qkv: PackedLinear | PlainLinear  # M -> (H + 2K) E
    head_norm: Tensor | None  # [H + K, E]: Qwen3 norms each head of queries and keys
    out: PackedLinear | PlainLinear
    middle_norm: Tensor  # [M]
    gate_up: PackedLinear | PlainLinear
    down: PackedLinear | PlainLinear
    window: int | None


class LeanDecoder:
    """Tokens to hidden states, by the weights of a Llama, Mistral, Qwen2 or Qwen3."""

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
        first = self.layers[0]
        self.fewest = min(each.fewest for each in (first.qkv, first.out, first.gate_up, first.down))

    def _gather(self, layer: Any) -> LeanLayer:
        attention, mlp = layer.self_attn, layer.mlp
        window = getattr(
            attention, "sliding_window", getattr(attention.config, "sliding_window", None)
        )
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        counts = (self.heads, self.kv_heads)
        scales = [
            n.weight.expand(count, -1)
            for n, count in zip(norms, counts, strict=True)
            if n is not None
        ]
        return LeanLayer(
            norm=layer.input_layernorm.weight,
            qkv=fuse([attention.q_proj, attention.k_proj, attention.v_proj]),
            head_norm=torch.cat(scales) if scales else None,
            out=fuse([attention.o_proj]),
            middle_norm=layer.post_attention_layernorm.weight,
            gate_up=fuse([mlp.gate_proj, mlp.up_proj]),
            down=fuse([mlp.down_proj]),
            window=window,
        )

    def __call__(
        self, tokens: Tensor, positions: Tensor, step: Any, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """Hidden states [B, q, M] after the final norm; what enters the taps [B, q, n * M]."""
        flat = F.embedding(tokens, self.embedding).flatten(0, 1)
        cos, sin = self.rotary(flat, positions)  # [B, q, E] each, halves repeated
        low, high = sin.chunk(2, dim=-1)
        turn = (cos.unsqueeze(2), torch.cat((-low, high), dim=-1).unsqueeze(2))
        hidden = padded(flat, self.fewest)  # [R, M]
        entered = {0: hidden}
        for index, layer in enumerate(self.layers):
            merged = layer.qkv.multiply(self._norm(hidden, layer.norm))[: flat.shape[0]]
            mixed = self._attend(
                layer, merged.view(*tokens.shape, -1, self.width), turn, step, index
            )
            hidden = hidden + layer.out.multiply(padded(mixed, self.fewest))
            gate, up = layer.gate_up.multiply(self._norm(hidden, layer.middle_norm)).chunk(
                2, dim=-1
            )
            hidden = hidden + layer.down.multiply(F.silu(gate) * up)
            entered[index + 1] = hidden
        normed = self._norm(hidden, self.norm)
        tapped = torch.cat([entered[tap] for tap in taps], dim=-1) if taps else normed[:, :0]
        shape = (*tokens.shape, -1)
        return normed[: flat.shape[0]].view(shape), tapped[: flat.shape[0]].view(
            *tokens.shape, tapped.shape[-1]
        )

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self.eps)

    def _attend(
        self, layer: LeanLayer, merged: Tensor, turn: tuple[Tensor, Tensor], step: Any, index: int
    ) -> Tensor:
        """Heads merged [B, q, H + 2K, E] to what they read [T, H E]."""
        both = self.heads + self.kv_heads
        turned = merged[:, :, :both]  # queries and keys
        if layer.head_norm is not None:
            turned = F.rms_norm(turned, (self.width,), None, self.eps) * layer.head_norm
        # With the sign of the lower half in `sin`, rotating halves is a roll.
        turned = torch.addcmul(turned * turn[0], turned.roll(self.width // 2, -1), turn[1])
        turned = turned.transpose(1, 2)
        values = merged[:, :, both:].transpose(1, 2)
        keys, values = step.update(turned[:, self.heads :], values, index)
        mixed = mix(turned[:, : self.heads], keys, values, step, self.scaling, layer.window, None)
        return mixed.transpose(1, 2).reshape(-1, self.heads * self.width)
