"""A Gemma 4 assistant: queries of its own, and the target's keys and values (serial.md §6.5).

B  rows      T  branches of a level      H  width of the target      A  of the assistant
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specflow.errors import RuntimeFault
from specflow.models.adapters import Adapter
from specflow.models.attention import ATTENTION, Frame
from specflow.models.inference import inference
from specflow.models.linear import pack
from specflow.models.loading import load_weights
from specflow.models.timing import now, spent
from specflow.pools import KVPool


class Assistant:
    """The assistant's weights beside its target; it keeps no KV."""

    def __init__(self, model: Any, target: Adapter, pool: KVPool) -> None:
        self.model, self.target = model, target
        model.eval().requires_grad_(requires_grad=False)
        model.set_attn_implementation(ATTENTION)
        pack(model)
        self.forwards, self.forward_seconds = 0, 0.0
        self.layers = shared_layers(target, pool)
        wanted = set(model.config.get_text_config().layer_types)
        absent = wanted - self.layers.keys()
        if absent:
            raise RuntimeFault(
                f"the assistant reads a `{min(absent)}` layer, and the target has none; "
                "name the assistant that was made for this target"
            )

    @classmethod
    def load(cls, folder: Path, target: Adapter, pool: KVPool, *, device: str, dtype: str) -> Any:
        """The assistant of a safetensors folder, every weight accounted for."""
        return cls(load_weights(folder, device=device, dtype=dtype), target, pool)

    def window(self, pool: KVPool, extent: int) -> AssistantWindow:
        """The assistant over the first `extent` positions of the target's pool."""
        return AssistantWindow(self, pool, extent)


def run_assistant(
    model: Any, read: Tensor, positions: Tensor, kept: dict[str, tuple[Tensor, Tensor]], step: Any
) -> Tensor:
    """Hidden states [B, q, A] of embeddings beside states [B, q, 2 * H], over the target's KV.

    kept  keys and values of the target, by the kind of layer that reads them
    """
    out: Tensor = model.model(
        input_ids=None,
        inputs_embeds=model.pre_projection(read),
        attention_mask=dict.fromkeys(kept),
        position_ids=positions,
        shared_kv_states=kept,
        use_cache=False,
        logits_to_keep=slice(None),  # as an int it would cut inputs that are not there
        step=step,
    ).last_hidden_state
    return out


def shared_layers(target: Adapter, pool: KVPool) -> dict[str, int]:
    """The last target layer of each kind that keeps keys and values of its own."""
    kinds = target.config.layer_types
    return {kinds[layer]: layer for layer in sorted(pool.shapes)}


class AssistantWindow:
    """An assistant over the target's pool: what the generated step calls."""

    def __init__(self, model: Assistant, pool: KVPool, extent: int) -> None:
        self.model, self.pool = model, pool
        self.frame = Frame(pool, extent, model.target.dtype, backend=model.target.backend)

    @inference
    def decode_hidden(
        self, tokens: Tensor, hidden: Tensor, seq_lens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, V] and state [B, H] after one token a row [B], its state [B, H] beside it."""
        logits, carried = self._run(tokens[:, None], hidden[:, None], seq_lens)
        return logits[:, 0], carried[:, 0]

    @inference
    def grow_frozen(
        self, tokens: Tensor, hidden: Tensor, seq_lens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, T, V] and states [B, T, H] of T branches; they do not see each other."""
        return self._run(tokens, hidden, seq_lens)

    def _run(self, tokens: Tensor, hidden: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's logits and next state; the query stands at the last committed position."""
        model, began = self.model.model, now()
        positions, step = self.frame.frozen(tokens.shape[1], seq_lens)
        embedded = self.model.target.decoder.embed_tokens(tokens)
        rows = tokens.shape[0]
        kept = {
            kind: self.pool.read(layer, rows, self.frame.extent)
            for kind, layer in self.model.layers.items()
        }
        out = run_assistant(model, torch.cat([embedded, hidden], dim=-1), positions, kept, step)
        logits, carried = self._score(out), model.post_projection(out)
        spent(self.model, began, forwards=1)
        return logits, carried

    def _score(self, hidden: Tensor) -> Tensor:
        model = self.model.model
        if model.masked_embedding is None:
            logits: Tensor = model.lm_head(hidden)
            return logits
        return ordered_logits(model.masked_embedding, hidden, model.lm_head)


def ordered_logits(ordered: Any, hidden: Tensor, head: nn.Linear) -> Tensor:
    """Logits [B, q, V] of the tokens near the likeliest centroids; the others count as impossible.

    The library's own takes its filling from the data, which waits for the device.
    """
    near = ordered.centroids(hidden).topk(ordered.centroid_intermediate_top_k, dim=-1).indices
    clusters = ordered.token_ordering.view(ordered.num_centroids, ordered.vocab_size_per_centroid)
    tokens = F.embedding(near, clusters).flatten(-2)  # [B, q, chosen]
    scores = torch.matmul(head.weight[tokens], hidden[..., None])[..., 0]
    nothing = torch.finfo(hidden.dtype).min / 2
    logits = hidden.new_full((*hidden.shape[:-1], ordered.vocab_size), nothing)
    return logits.scatter(-1, tokens, scores)
