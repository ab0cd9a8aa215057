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

from specflow.constraints.drafts import RECURRENT
from specflow.errors import RuntimeFault
from specflow.models.attention import ATTENTION, SDPA, Backend
from specflow.models.experts import EXPERTS, uses_experts
from specflow.models.lean import LeanDecoder
from specflow.models.linear import fuse, pack

# Tokens, positions, step, taps -> normed hidden states, and what enters the tapped layers.
Run = Callable[[Tensor, Tensor, Any, tuple[int, ...]], tuple[Tensor, Tensor]]
INSTEAD = "use another target model, or run the recipe on an engine"
DRIVEN_LAYERS = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True)
class Architecture:
    """One row: where the parts of an architecture are, and which shortcuts are proven for it."""

    decoder: str = "model"
    head: str = "lm_head"
    lean: bool = False  # the decoder is Llama-shaped: `LeanDecoder` computes it
    absorbed: bool = False  # latent attention reads the pool without expanding it
    proven: bool = (
        True  # tests hold every node of a tree against the stock model; else a trial at load
    )


ARCHITECTURES = {
    "DeepseekV3ForCausalLM": Architecture(absorbed=True),
    "Gemma2ForCausalLM": Architecture(),
    "Gemma3ForCausalLM": Architecture(),
    "Gemma3ForConditionalGeneration": Architecture(decoder="model.language_model", proven=False),
    "Gemma4ForCausalLM": Architecture(),
    "Gemma4ForConditionalGeneration": Architecture(decoder="model.language_model", proven=False),
    "Glm4MoeForCausalLM": Architecture(),
    "KimiK2ForCausalLM": Architecture(absorbed=True),
    "Kimi_K25ForConditionalGeneration": Architecture(
        decoder="model.language_model", absorbed=True, proven=False
    ),
    "LlamaForCausalLM": Architecture(lean=True),
    "MiMoV2FlashForCausalLM": Architecture(),
    "MiMoForCausalLM": Architecture(lean=True),
    "MistralForCausalLM": Architecture(lean=True),
    "Qwen2ForCausalLM": Architecture(lean=True),
    "Qwen3ForCausalLM": Architecture(lean=True),
    "Qwen3MoeForCausalLM": Architecture(),
}
UNLISTED = Architecture(proven=False)  # tried, and held against its own stock forward at load


@dataclass(frozen=True)
class Adapter:
    """The parts of one model in memory that a forward needs."""

    run: Run
    decoder: Any  # the library's module: its embedding, norm and kind of layer serve drafts too
    config: Any
    row: Architecture
    head: nn.Module
    softcap: float | None
    vocab_size: int
    max_positions: int
    layers: int
    sliding: int  # layers that see a sliding window only
    device: torch.device
    dtype: torch.dtype
    backend: Backend  # of its attention, and of the drafts beside it

    def score(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states."""
        logits: Tensor = self.head(hidden)
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


def architecture_of(model: PreTrainedModel) -> Architecture:
    """The row of a model's class."""
    return ARCHITECTURES.get(type(model).__name__, UNLISTED)


def adapt(model: PreTrainedModel, backend: Backend = SDPA) -> Adapter:
    """Make a stock model read and write our pool; it no longer runs on its own afterwards."""
    config = model.config.get_text_config()
    refuse(model, config)
    row = architecture_of(model)
    decoder, head = find(model, row.decoder), find(model, row.head)
    model.eval().requires_grad_(requires_grad=False)
    model.set_attn_implementation(ATTENTION)
    if uses_experts(decoder):
        decoder.set_experts_implementation(EXPERTS)
    if row.absorbed:
        absorb(decoder)
    if row.lean:
        run: Run = LeanDecoder(decoder, config)
    else:
        run = stock_run(decoder, packed=row.proven)
    return Adapter(
        run=run,
        decoder=decoder,
        config=config,
        row=row,
        head=fuse([head]),
        softcap=getattr(config, "final_logit_softcapping", None),
        vocab_size=int(head.weight.shape[0]),
        max_positions=longest(config),
        layers=int(config.num_hidden_layers),
        sliding=expected_windows(config),
        device=head.weight.device,
        dtype=head.weight.dtype,
        backend=backend,
    )


def stock_run(decoder: nn.Module, *, packed: bool) -> Run:
    """The library's own forward; our step stands where its cache would."""
    if packed:
        pack(decoder)

    heard: set[int] = set()
    entered: dict[int, Tensor] = {}  # empty between two forwards: a trace looks into it

    def run(
        tokens: Tensor, positions: Tensor, step: Any, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        for tap in taps:
            if tap not in heard:
                heard.add(tap)
                listen(decoder, tap, entered)
        out = decoder(
            input_ids=tokens, position_ids=positions, cache=step, use_cache=True, step=step
        )
        hidden: Tensor = out.last_hidden_state
        tapped = torch.cat([entered[t] for t in taps], dim=-1) if taps else hidden[..., :0]
        entered.clear()
        return hidden, tapped

    return run


def listen(decoder: Any, tap: int, entered: dict[int, Tensor]) -> None:
    """Keep what enters layer `tap`; the last tap is what the final norm reads."""
    module = decoder.layers[tap] if tap < len(decoder.layers) else decoder.norm

    def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entered[tap] = args[0] if args else kwargs["hidden_states"]

    module.register_forward_pre_hook(keep, with_kwargs=True)


def find(model: PreTrainedModel, path: str) -> Any:
    """The part of a model at a dotted path."""
    try:
        return attrgetter(path)(model)
    except AttributeError:
        raise RuntimeFault(f"`{type(model).__name__}` has no `{path}`: {INSTEAD}") from None


def refuse(model: PreTrainedModel, config: Any) -> None:
    """Stop at what our pool cannot hold or our attention would ignore."""
    for obstacle in obstacles(model.config, config):
        raise RuntimeFault(f"`{type(model).__name__}` cannot be a target: {obstacle}; {INSTEAD}")


def obstacles(whole: Any, config: Any) -> Iterator[str]:
    """What keeps a model from being driven, from its config alone."""
    if getattr(whole, "is_encoder_decoder", False):
        yield "it has an encoder"
    if "dynamic" in rope_types(config):
        yield "rope type `dynamic` turns with the longest text of the batch"
    kinds = set(getattr(config, "layer_types", None) or ()) - DRIVEN_LAYERS
    if kinds:
        kind = min(kinds)
        recurs = kind in RECURRENT
        yield f"layers of type `{kind}` " + (
            "keep a state that cannot be rolled back" if recurs else "attend in a way of their own"
        )
    if getattr(config, "use_bidirectional_attention", None) in {True, "all"}:
        yield "its attention is not causal"


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """The rotary settings of a model; several where they differ by layer type."""
    given = getattr(config, "rope_parameters", None) or {}
    return (
        [given]
        if "rope_type" in given
        else [each for each in given.values() if isinstance(each, dict)]
    )


def rope_types(config: Any) -> set[str]:
    """The kinds of rotary embedding a model uses."""
    return {str(each.get("rope_type", "default")) for each in rope_parameters(config)}


def longest(config: Any) -> int:
    """Positions a text may have; with `longrope` those that need no change of factors midway."""
    limits = [int(getattr(config, "max_position_embeddings", None) or sys.maxsize)]
    limits += [
        int(each["original_max_position_embeddings"])
        for each in rope_parameters(config)
        if each.get("rope_type") == "longrope" and "original_max_position_embeddings" in each
    ]
    return min(limits)


def expected_windows(config: Any) -> int:
    """How many layers say in the config that they see a sliding window only."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return list(kinds).count("sliding_attention")
    return int(config.num_hidden_layers) if getattr(config, "sliding_window", None) else 0


def absorb(decoder: Any) -> None:
    """Let latent attention hand over its latents, which `attend` reads without expanding them."""
    for layer in decoder.layers:
        attention = layer.self_attn
        up = attention.kv_b_proj.weight.view(attention.num_heads, -1, attention.kv_lora_rank)
        attention.latent_weights = (
            up[:, : attention.qk_nope_head_dim],
            up[:, attention.qk_nope_head_dim :],
        )
        attention.expand_kv = _keep


def _keep(latent: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    return latent, rotated
