"""A draft that guesses a whole block at once: what it computes, as a module (parallel.md 1b, 2b).

It has no text of its own. At every layer its block attends to keys and values projected from the
target's tapped hidden states, one for each committed position; they are injected once and never
change.

B  rows      q  tokens a row      n  tapped layers      D  draft layers      M  hidden width
K  guesses      V  vocabulary (the draft may have its own)      R  rank of a Markov head
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from specflow.block_config import MOST_WINDOW
from specflow.formats import GATED, RNN
from specflow.kernels.inject import Turning
from specflow.models.adapters import Adapter
from specflow.models.attention import ATTENTION

FOREIGN = {"model_type", "architectures", "auto_map"}  # of a config, read by the library otherwise
SLIDING = "sliding_attention"


@dataclass(frozen=True)
class BlockSizes:
    """What a checkpoint says of a block draft beyond its layers.

    taps        target layers it reads in each row
    vocab       rows of its own head, 0 without one
    markov      its Markov head: vanilla, gated, rnn, or empty
    rank        of the Markov head
    trust       inputs of its confidence head, 0 without one
    trust_bias  the confidence head has a bias
    scale       multiplies the embeddings of a block
    multiplier  multiplies the logits, before `softcap` bounds them
    """

    taps: int
    vocab: int = 0
    embedding: bool = False
    mapped: bool = False
    markov: str = ""
    rank: int = 0
    trust: int = 0
    trust_bias: bool = True
    scale: float = 1.0
    multiplier: float = 1.0
    softcap: float = 0.0


class MarkovHead(nn.Module):
    """What the token before a guess says about it: a low-rank bias on the block's own logits (2c).

    The names of its inputs' order are part of the format: gated reads [hidden; embedding], rnn
    reads [memory; embedding; hidden].
    """

    def __init__(self, kind: str, vocabulary: int, rows: int, rank: int, width: int) -> None:
        super().__init__()
        self.kind, self.rank = kind, rank
        self.w1 = nn.Embedding(vocabulary, rank)
        self.w2 = nn.Linear(rank, rows, bias=False)
        self.gate = nn.Linear(width + rank, rank) if kind == GATED else None
        self.joint = nn.Linear(2 * rank + width, 3 * rank) if kind == RNN else None

    def forward(
        self, last: Tensor, hidden: Tensor, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The bias [..., V] on the logits of a row, and what an rnn remembers [..., R].

        last    [...]     the token before the guess
        hidden  [..., M]  the row of the block that guesses
        """
        embedded = self.w1(last)
        if self.gate is not None:
            share = torch.sigmoid(self.gate(torch.cat([hidden, embedded], dim=-1)))
            return self.w2(share * embedded), memory
        if self.joint is None:
            return self.w2(embedded), memory
        if memory is None:
            memory = torch.zeros_like(embedded)
        mixed = self.joint(torch.cat([memory, embedded, hidden], dim=-1))
        keep, new, out = mixed.chunk(3, dim=-1)
        keep = torch.sigmoid(keep)
        # The output is of the memory before this step (2c).
        return self.w2(torch.tanh(out)), keep * memory + (1 - keep) * torch.tanh(new)


class BlockNet(nn.Module):
    """Blocks of tokens to hidden states, beside injected context; it trains and drafts alike."""

    layers: Any  # a ModuleList of Qwen3DecoderLayer

    def __init__(self, sizes: BlockSizes, target: Adapter, said: dict[str, Any]) -> None:
        super().__init__()
        self.sizes = sizes
        self._target = (target,)  # in a tuple: the target's weights are not ours to save
        config = block_config(said)
        width, eps = int(config.hidden_size), config.rms_norm_eps
        self.fc = nn.Linear(sizes.taps * int(target.config.hidden_size), width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList(
            Qwen3DecoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        self.norm = Qwen3RMSNorm(width, eps=eps)
        self._rotary = (Qwen3RotaryEmbedding(config),)
        rows = sizes.vocab or target.vocab_size
        self.embed_tokens = nn.Embedding(target.vocab_size, width) if sizes.embedding else None
        self.lm_head = nn.Linear(width, sizes.vocab, bias=False) if sizes.vocab else None
        self.markov = (
            MarkovHead(sizes.markov, target.vocab_size, rows, sizes.rank, width)
            if sizes.markov
            else None
        )
        self.confidence = nn.Linear(sizes.trust, 1, bias=sizes.trust_bias) if sizes.trust else None
        # Offsets, as published: target id = draft id + d2t[draft id].
        self.d2t = nn.Buffer(torch.zeros(sizes.vocab, dtype=torch.int64)) if sizes.mapped else None

    @property
    def target(self) -> Adapter:
        """Whose embedding and head it uses."""
        return self._target[0]

    @property
    def windows(self) -> list[int | None]:
        """How far each layer sees, the current token included; None is without bound."""
        return [layer.self_attn.sliding_window for layer in self.layers]

    def context(self, taps: Tensor) -> Tensor:
        """What the draft knows of positions: taps [B, q, n * H] as states [B, q, M]."""
        projected: Tensor = self.hidden_norm(self.fc(taps))
        return projected

    def keys_values(self, context: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of each layer, keys and values [B, kv heads, q, E] of context [B, q, M].

        The layer's norm of its input is left out and no residual is added: the context is the same
        for all layers (1b).
        """
        made = []
        projected = self.projected(context, positions)
        for layer, (keys, values, turning) in zip(self.layers, projected, strict=True):
            normed = layer.self_attn.k_norm(keys).transpose(1, 2)
            turned, _ = apply_rotary_pos_emb(normed, normed, turning.cos, turning.sin)
            made.append((turned, values.transpose(1, 2)))
        return made

    def projected(
        self, context: Tensor, positions: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Turning]]:
        """The same before norm and rotation: keys and values [B, q, kv heads, E] of each layer."""
        cos, sin = self._rotary[0](context, positions)
        for layer in self.layers:
            attention = layer.self_attn
            shape = (*context.shape[:-1], -1, attention.head_dim)
            norm = attention.k_norm
            turning = Turning(norm.weight, norm.variance_epsilon, cos, sin)
            keys, values = attention.k_proj(context), attention.v_proj(context)
            yield keys.view(shape), values.view(shape), turning

    def forward(self, tokens: Tensor, positions: Tensor, step: Any) -> Tensor:
        """Normed hidden states [B, q, M] of block tokens [B, q] over what `step` keeps."""
        table = self.target.decoder.embed_tokens if self.embed_tokens is None else self.embed_tokens
        hidden: Tensor = table(tokens)
        if self.sizes.scale != 1.0:
            hidden = hidden * self.sizes.scale
        turn = self._rotary[0](hidden, positions)
        for layer in self.layers:
            hidden = layer(
                hidden, position_embeddings=turn, attention_mask=None, position_ids=positions,
                cache=step, use_cache=True, step=step,
            )  # fmt: skip
        out: Tensor = self.norm(hidden)
        return out

    def score(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states, before a Markov head corrects them."""
        head = self.target.head if self.lm_head is None else self.lm_head
        logits: Tensor = head(hidden) * self.sizes.multiplier
        if self.sizes.softcap:
            logits = torch.tanh(logits / self.sizes.softcap) * self.sizes.softcap
        return logits

    def trust(self, hidden: Tensor, last: Tensor) -> Tensor:
        """Logits [..., K] of the chance that each guess holds, from what was known before it (2d).

        hidden  [..., K, M]  the rows that guess
        last    [..., K]     the token before each guess: the first of them is the bonus token
        """
        if self.confidence is None:
            raise ValueError("this draft has no confidence head")
        if self.confidence.in_features > hidden.shape[-1] and self.markov is not None:
            hidden = torch.cat([hidden, self.markov.w1(last).to(hidden.dtype)], dim=-1)
        # In float32: survivals multiply, and a rounding there decides who is verified.
        bias = None if self.confidence.bias is None else self.confidence.bias.float()
        return F.linear(hidden.float(), self.confidence.weight.float(), bias)[..., 0]


def block_config(said: dict[str, Any]) -> Qwen3Config:
    """The config of a block draft's layers, whatever its model_type calls itself."""
    kept = {k: v for k, v in said.items() if k not in FOREIGN}
    kinds = kept.get("layer_types") or []
    kept["use_sliding_window"] = SLIDING in kinds
    if type(kept.get("sliding_window")) is int:
        kept["sliding_window"] = min(kept["sliding_window"], MOST_WINDOW)
    config = Qwen3Config(**kept)
    config._attn_implementation = ATTENTION  # noqa: SLF001 - no public setter outside a model
    return config
