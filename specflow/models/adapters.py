"""How is each architecture driven: where its parts are, and what cannot be driven at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specflow.models.attention import ATTENTION


@dataclass
class Adapter:
    """The parts of one model in memory that a forward needs."""

    decoder: nn.Module
    head: nn.Module
    softcap: float | None
    config: Any
    device: torch.device
    dtype: torch.dtype

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def max_positions(self) -> int:
        return int(self.config.max_position_embeddings)

    @property
    def layers(self) -> int:
        return int(self.config.num_hidden_layers)

    def decode(self, tokens: Tensor, positions: Tensor, step: Any) -> Tensor:
        """Hidden states [B, q, width] after the final norm."""
        out = self.decoder(
            input_ids=tokens, position_ids=positions, cache=step, use_cache=True, step=step
        )
        return out.last_hidden_state

    def score(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states."""
        logits = self.head(hidden)
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


def adapt(model: PreTrainedModel) -> Adapter:
    config = model.config.get_text_config()
    model.eval()
    model.set_attn_implementation(ATTENTION)
    decoder = model.model
    weight = next(model.parameters())
    return Adapter(
        decoder,
        model.lm_head,
        getattr(config, "final_logit_softcapping", None),
        config,
        weight.device,
        weight.dtype,
    )
