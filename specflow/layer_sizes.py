"""What the layers of a language model weigh and keep, by its config.json alone.

All of it is foreign text: what is no whole number counts as unsaid, and then sizes are `Unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LARGEST = 2**31
MOST_LAYERS = 4096
KINDS = frozenset({"full_attention", "sliding_attention"})
# Whose latent attention keeps latents alone; others expand them before they are kept.
ABSORBED = frozenset(
    {"DeepseekV3ForCausalLM", "KimiK2ForCausalLM", "Kimi_K25ForConditionalGeneration"}
)
GEMMA = frozenset({"gemma4", "gemma4_text"})
# Families that are made of the layers below, weight for weight.
FAMILIES = GEMMA | {
    "deepseek_v3", "glm4_moe", "kimi_k2", "llama", "mimo", "mimo_v2_flash", "mistral", "qwen2",
    "qwen3", "qwen3_moe",
}  # fmt: skip
ALWAYS_NORMED = frozenset({"qwen3", "qwen3_moe"})  # queries and keys, whatever the config says
OUT_BIASED = frozenset({"llama", "qwen3", "qwen3_moe"})  # what attention puts out, with the rest
ALWAYS_BIASED = frozenset({"qwen2"})  # queries, keys and values
CORRECTED = frozenset({"deepseek_v3", "glm4_moe", "kimi_k2", "mimo_v2_flash"})  # a bias an expert


@dataclass(frozen=True)
class Unknown:
    """A size that is not known, and why."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True)
class Attention:
    """The attention of one layer.

    keeps   numbers kept of a position; 0 where it reads what another layer keeps
    reads   numbers read of a position that is attended to
    work    FLOPs of a query and a position: scores, then their sum of values
    window  positions seen, 0 for all
    latent  it keeps latents that all heads share
    narrow  what it keeps where latents are kept as they are; 0 where that is no less
    heads   key-value heads, which is how far what it keeps can be split
    """

    keeps: int
    reads: int
    work: int
    window: int = 0
    latent: bool = False
    narrow: int = 0
    heads: int = 1

    def sees(self, context: int) -> int:
        """How many of so many positions it attends to."""
        return min(context, self.window) if self.window else context


def number(config: Mapping[str, Any], *keys: str) -> int:
    """The first of these that is a whole number above 0; else 0."""
    said = (config.get(key) for key in keys)
    return next((n for n in said if type(n) is int and 0 < n < LARGEST), 0)


def experts(config: Mapping[str, Any]) -> tuple[int, int]:
    """How many experts a layer routes over, and to how many a token goes."""
    count = number(config, "n_routed_experts", "num_experts", "num_local_experts")
    return count, number(config, "num_experts_per_tok", "top_k_experts", "num_experts_per_token")


def layer_kinds(config: Mapping[str, Any], layers: int) -> list[str]:
    """The kind of attention of each layer, as config.json lists it."""
    said = config.get("layer_types")
    if not isinstance(said, list) or not said:
        return ["full_attention"] * layers
    return [str(kind) for kind in said]


def attention(model: str, config: Mapping[str, Any]) -> tuple[Attention, ...] | Unknown:
    """What each layer of a language model keeps and reads."""
    layers = number(config, "num_hidden_layers")
    if not 0 < layers <= MOST_LAYERS:
        return Unknown(f"`{model}` does not say how many layers it has")
    kinds = layer_kinds(config, layers)
    other = next((kind for kind in kinds if kind not in KINDS), None)
    if other is not None or len(kinds) != layers:
        return Unknown(f"`{model}` has layers of another kind ({other or 'too few are listed'})")
    if number(config, "kv_lora_rank"):
        said = latent(config)
        return (said,) * layers if said else Unknown(f"`{model}` says no sizes of its attention")
    found = []
    shared = layers - number(config, "num_kv_shared_layers")
    for i, kind in enumerate(kinds):
        heads, groups, key, value = geometry(config, i, sliding=kind == "sliding_attention")
        if not all((heads, groups, key, value)):
            return Unknown(f"`{model}` does not say how many heads its attention has")
        width = groups * (key + value)
        window = number(config, "sliding_window", "sliding_window_size")
        found.append(
            Attention(
                keeps=width if i < shared else 0,
                reads=width,
                work=2 * heads * (key + value),
                window=window if kind == "sliding_attention" else 0,
                heads=groups,
            )
        )
    return tuple(found)


def latent(config: Mapping[str, Any]) -> Attention | None:
    """A layer of latent attention (MLA); None where its sizes are not all said."""
    rank, rope, nope, value, heads = (
        number(config, key)
        for key in (
            "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
            "num_attention_heads",
        )
    )  # fmt: skip
    if not all((rank, rope, nope, value, heads)):
        return None
    if str(config.get("architecture")) in ABSORBED:
        return Attention(rank + rope, rank + rope, 2 * heads * (2 * rank + rope), latent=True)
    width = heads * (nope + rope + value)
    return Attention(width, width, 2 * width, latent=True, narrow=rank + rope)


def geometry(config: Mapping[str, Any], layer: int, *, sliding: bool) -> tuple[int, int, int, int]:
    """Heads, key-value heads, and the widths of a key and a value of one layer; 0 is unsaid."""
    own = config.get("per_layer_config")
    own = own.get(str(layer)) if isinstance(own, Mapping) else None
    own = own if isinstance(own, Mapping) else {}
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    groups = number(config, "num_key_value_heads") or heads
    key = number(config, "head_dim") or (hidden // heads if heads else 0)
    value = number(config, "v_head_dim") or key
    if sliding:
        heads = number(config, "swa_num_attention_heads") or heads
        groups = number(config, "swa_num_key_value_heads") or groups
        value = number(config, "swa_v_head_dim", "v_head_dim") or number(config, "swa_head_dim")
        key = number(config, "swa_head_dim") or key
        value = value or key
    elif number(config, "global_head_dim"):
        key = value = number(config, "global_head_dim")
        if config.get("attention_k_eq_v") is True:
            groups = number(config, "num_global_key_value_heads") or groups
    if number(own, "head_dim"):
        key = value = number(own, "head_dim")
    return (
        number(own, "num_attention_heads") or heads,
        (number(own, "num_key_value_heads") or groups),
        key,
        value,
    )


def layer_weights(
    config: Mapping[str, Any], family: str, layer: int, *, sliding: bool
) -> tuple[int, int] | None:
    """Weights of one layer that every token passes, and those of its routed experts."""
    if family in GEMMA:
        return _gemma_layer(config, layer, sliding=sliding)
    hidden = number(config, "hidden_size")
    attends = attention_weights(config, family, layer, sliding=sliding)
    count, _ = experts(config)
    if sparse(config, layer):
        width = number(config, "moe_intermediate_size")
        beside = number(config, "n_shared_experts") * width * hidden * 3
        router = count * hidden + (count if family in CORRECTED else 0)
        mlp, routed = router + beside, count * width * hidden * 3
    else:
        width = number(config, "intermediate_size")
        mlp, routed = 3 * hidden * width, 0
    if not (attends and width):
        return None
    return 2 * hidden + attends + mlp, routed


def _gemma_layer(config: Mapping[str, Any], layer: int, *, sliding: bool) -> tuple[int, int] | None:
    """A layer of Gemma 4: four norms and a scalar; experts, if any, stand beside its MLP.

    The last layers read what earlier ones keep, and may have an MLP twice as wide.
    """
    hidden, width = number(config, "hidden_size"), number(config, "intermediate_size")
    heads, groups, key, value = geometry(config, layer, sliding=sliding)
    if not all((hidden, width, heads, groups, key, value)):
        return None
    doubled = _shares(config, layer) and config.get("use_double_wide_mlp") is True
    out = attention_weights(config, next(iter(GEMMA)), layer, sliding=sliding)
    out += 3 * hidden * width * (2 if doubled else 1) + 4 * hidden + 1
    more = number(config, "hidden_size_per_layer_input")
    out += 2 * hidden * more + hidden if more else 0
    if config.get("enable_moe_block") is not True:
        return out, 0
    count, own = experts(config)[0], number(config, "moe_intermediate_size")
    if not (count and own):
        return None
    return out + hidden + count + count * hidden + 3 * hidden, count * own * hidden * 3


def _shares(config: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer of Gemma 4 reads what another keeps."""
    layers, shared = (number(config, f"num_{key}_layers") for key in ("hidden", "kv_shared"))
    return layer >= layers - shared


def stem(config: Mapping[str, Any]) -> tuple[int, int]:
    """Weights before and after all layers: those that are passed, and tables beside the embedding.

    Gemma 4 may have a table of further embeddings for every layer.
    """
    hidden, more = number(config, "hidden_size"), number(config, "hidden_size_per_layer_input")
    if str(config.get("model_type")) not in GEMMA or not more:
        return hidden, 0
    wide = more * number(config, "num_hidden_layers")
    vocabulary = number(config, "vocab_size_per_layer_input", "vocab_size")
    return hidden + hidden * wide + more, wide * vocabulary


def tied(config: Mapping[str, Any]) -> bool:
    """Whether the head is the embedding; a family's own default where the config does not say."""
    said = config.get("tie_word_embeddings")
    return said if isinstance(said, bool) else str(config.get("model_type")) in GEMMA


def sparse(config: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer routes its tokens to experts."""
    if not experts(config)[0]:
        return False
    kinds, often = config.get("mlp_layer_types"), config.get("moe_layer_freq")
    if isinstance(kinds, list) and layer < len(kinds):
        return bool(kinds[layer] == "sparse")
    if isinstance(often, list) and layer < len(often):
        return bool(often[layer])
    dense, every = config.get("mlp_only_layers"), number(config, "decoder_sparse_step")
    if isinstance(dense, list) and layer in dense:
        return False
    if every:
        return (layer + 1) % every == 0
    return layer >= number(config, "first_k_dense_replace")


def attention_weights(config: Mapping[str, Any], family: str, layer: int, *, sliding: bool) -> int:
    """Weights of the attention of one layer; 0 where its sizes are not said."""
    hidden = number(config, "hidden_size")
    if number(config, "kv_lora_rank"):
        return _latent_weights(config, hidden)
    heads, groups, key, value = geometry(config, layer, sliding=sliding)
    if family in GEMMA:
        one = config.get("attention_k_eq_v") is True and not sliding  # keys are the values too
        kept = hidden * groups * (key + (0 if one else value)) + key
        return 2 * hidden * heads * key + key + (0 if _shares(config, layer) else kept)
    out = hidden * heads * key + hidden * groups * (key + value) + heads * value * hidden
    if family in ALWAYS_BIASED or config.get("attention_bias") is True:
        out += heads * key + groups * (key + value)
        out += hidden if family in OUT_BIASED else 0
    if family in ALWAYS_NORMED or config.get("use_qk_norm") is True:
        out += 2 * key
    if family == "mimo_v2_flash" and sliding:
        out += heads  # a sink a head
    return out


def _latent_weights(config: Mapping[str, Any], hidden: int) -> int:
    if latent(config) is None:
        return 0
    heads, rank = number(config, "num_attention_heads"), number(config, "kv_lora_rank")
    rope, nope = number(config, "qk_rope_head_dim"), number(config, "qk_nope_head_dim")
    value, query = number(config, "v_head_dim"), number(config, "q_lora_rank")
    asks = heads * (nope + rope)
    queries = hidden * query + query + query * asks if query else hidden * asks
    keys = hidden * (rank + rope) + rank + rank * heads * (nope + value)
    biases = query + rank + rope + hidden if config.get("attention_bias") is True else 0
    return queries + keys + heads * value * hidden + biases
