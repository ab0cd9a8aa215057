"""The config.json of a recipe's models, as an engine reads it; made of facts where none is here."""

from __future__ import annotations

from typing import Any

from specflow import published
from specflow.facts import DraftFacts, ModelFacts, read
from specflow.recipe import ResolvedRecipe

# Architectures of drafts that are only known by their format: what SGLang calls such a network.
DRAFT_ARCHITECTURES = {
    "eagle": "LlamaForCausalLMEagle",
    "eagle3": "LlamaForCausalLMEagle3",
    "eagle3_speculators": "LlamaForCausalLMEagle3",
    "assistant": "Gemma4AssistantForCausalLM",
    "dflash": "DFlashDraftModel",
    "dspark": "Qwen3DSparkModel",
}
# What is divided among devices, of the sizes that are recorded.
HEADS = ("num_attention_heads", "num_key_value_heads")


def target_config(recipe: ResolvedRecipe) -> dict[str, Any] | None:
    """The target's; None where it is not here, and nothing is recorded of it."""
    if recipe.facts["target"].elsewhere:
        return None
    config, net = _config(recipe.facts["target"]), recipe.facts.net
    if net.bundled and net.format == "dspark" and not recipe.facts["target"].config:
        config |= {"dspark_block_size": net.block.size, "dspark_markov_rank": net.block.rank}
    return config


def draft_config(recipe: ResolvedRecipe) -> dict[str, Any] | None:
    """The draft's; None where there is none, it is in the target's checkpoint, or not here."""
    facts = recipe.facts["draft"]
    if not facts.model or facts.elsewhere or facts.model == recipe.facts["target"].model:
        return None
    config = _config(facts)
    if not facts.config:
        config |= _network(recipe.facts.net)
    return config


def config_of(model: str) -> dict[str, Any] | None:
    """A model's by its name; None where the model is not here, and nothing is recorded of it."""
    facts = read(model)
    if facts.problem is not None and not facts.config:
        return None
    return _config(facts) or None


def _config(facts: ModelFacts) -> dict[str, Any]:
    if facts.config:
        return dict(facts.config)
    known = {
        "architectures": [facts.architecture] if facts.architecture else None,
        "model_type": facts.model_type,
        "hidden_size": facts.hidden_size,
        "num_hidden_layers": facts.layers,
        "vocab_size": facts.vocab_size,
        "max_position_embeddings": facts.max_positions,
        "num_nextn_predict_layers": facts.mtp_layers,
        "layer_types": list(facts.layer_types),
    }
    sizes = (published.record(facts.model) or {}).get("sizes", {}) if facts.recorded else {}
    known |= {key: sizes.get(key) for key in HEADS}
    return {key: value for key, value in known.items() if value}


def _network(net: DraftFacts) -> dict[str, Any]:
    """What is recorded of a published draft, under the keys that its config has."""
    block = net.block
    known = {
        "architectures": [DRAFT_ARCHITECTURES.get(net.format, "")],
        "hidden_size": net.hidden_size,
        "block_size": block.size,
        "draft_vocab_size": net.vocab_size if net.has_map else 0,
        "target_layer_ids": list(net.taps),
        "mask_token_id": block.mask_token if block.mask_token >= 0 else None,
        "markov_rank": block.rank,
        "markov_head_type": block.markov,
        "enable_confidence_head": block.confidence if net.format == "dspark" else None,
    }
    return {key: value for key, value in known.items() if value not in (None, 0, "", [], [""])}
