"""How is each architecture driven: where its parts are, and what cannot be driven at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, ExpertsInterface

from specflow.errors import RuntimeFault
from specflow.models.attention import ATTENTION, Step
from specflow.models.lean import LeanDecoder, by_columns

INSTEAD = "use another target model, or run the recipe on an engine"
EXPERTS = "specflow"
MOST_COPIED = 64  # tokens up to which copying the weights of each chosen expert is bearable


@dataclass(frozen=True)
class Architecture:
    """One row: where the parts of an architecture are, and which shortcuts are proven for it."""

    decoder: str = "model"
    head: str = "lm_head"
    lean: bool = False  # the decoder is Llama-shaped: `LeanDecoder` computes it
    absorbed: bool = False  # latent attention reads the pool without expanding it
    proven: bool = True  # tests hold every node of a tree against the stock model


ARCHITECTURES = {
    "DeepseekV3ForCausalLM": Architecture(absorbed=True),
    "Gemma2ForCausalLM": Architecture(),
    "Gemma3ForCausalLM": Architecture(),
    "Gemma3ForConditionalGeneration": Architecture(decoder="model.language_model"),
    "Gemma4ForCausalLM": Architecture(),
    "Gemma4ForConditionalGeneration": Architecture(decoder="model.language_model"),
    "Glm4MoeForCausalLM": Architecture(),
    "LlamaForCausalLM": Architecture(lean=True),
    "MistralForCausalLM": Architecture(lean=True),
    "Qwen2ForCausalLM": Architecture(lean=True),
    "Qwen3ForCausalLM": Architecture(lean=True),
    "Qwen3MoeForCausalLM": Architecture(),
}
UNLISTED = Architecture(proven=False)  # tried, and held against its own stock forward at load


@dataclass(frozen=True)
class Adapter:
    """The parts of one model in memory that a forward needs."""

    run: Callable[[Tensor, Tensor, Any], Tensor]  # tokens, positions, step -> hidden states after the final norm
    head: nn.Module
    softcap: float | None
    vocab_size: int
    max_positions: int
    layers: int
    device: torch.device
    dtype: torch.dtype

    def score(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states."""
        logits: Tensor = self.head(hidden)
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


def architecture_of(model: PreTrainedModel) -> Architecture:
    """The row of a model's class."""
    return ARCHITECTURES.get(type(model).__name__, UNLISTED)


def adapt(model: PreTrainedModel) -> Adapter:
    """Turn a stock model into one that reads and writes our pool; its own cache no longer works afterwards."""
    config = model.config.get_text_config()
    refuse(model, config)
    row = architecture_of(model)
    model.eval().requires_grad_(requires_grad=False)
    decoder, head = find(model, row.decoder), find(model, row.head)
    model.set_attn_implementation(ATTENTION)
    if hasattr(decoder, "set_experts_implementation"):
        decoder.set_experts_implementation(EXPERTS)
    weight = head.weight
    store_by_columns(model)
    ...
    return Adapter(
        run=LeanDecoder(decoder, config) if row.lean else stock_run(decoder),
        head=head,
        softcap=getattr(config, "final_logit_softcapping", None),
        vocab_size=int(head.weight.shape[0]),
        max_positions=int(getattr(config, "max_position_embeddings", sys.maxsize)),
        layers=int(config.num_hidden_layers),
        device=weight.device,
        dtype=weight.dtype,
    )
