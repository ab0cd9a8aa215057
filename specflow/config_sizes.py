"""How large a network is by its config.json alone, for the families whose layers are known.

All of it is foreign text: what is no whole number counts as unsaid, and then sizes are `Unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specflow.facts import DraftFacts
from specflow.formats import CONTEXT, TAPS, TARGET_KV, Net

LARGEST = 2**31
MOST_LAYERS = 4096
KINDS = frozenset({"full_attention", "sliding_attention"})
# Whose latent attention keeps latents alone; others expand them before they are kept.
ABSORBED = frozenset(
    {"DeepseekV3ForCausalLM", "KimiK2ForCausalLM", "Kimi_K25ForConditionalGeneration"}
)
# Families that are made of the layers below, weight for weight.
FAMILIES = frozenset(
    {
        "deepseek_v3", "glm4_moe", "kimi_k2", "llama", "mimo", "mimo_v2_flash", "mistral",
        "qwen2", "qwen3", "qwen3_moe",
    }
)  # fmt: skip
ALWAYS_NORMED = frozenset({"qwen3", "qwen3_moe"})  # queries and keys, whatever the config says
OUT_BIASED = frozenset({"llama", "qwen3", "qwen3_moe"})  # what attention puts out, with the rest
ALWAYS_BIASED = frozenset({"qwen2"})  # queries, keys and values
SLIDING_STEPS = frozenset({"mimo_v2_flash"})  # MTP layers that are dense and see a window
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
    """

    keeps: int
    reads: int
    work: int
    window: int = 0
    latent: bool = False

    def sees(self, context: int) -> int:
        """How many of so many positions it attends to."""
        return min(context, self.window) if self.window else context


@dataclass(frozen=True)
class Sizes:
    """The weights of a network, by what reads them, and the attention of its layers.

    total    of the weights it brings along; what it shares with another is that one's
    head     passed through where logits are asked for; it may be another's, or the embedding
    body     passed through by every token, but the routed experts
    routed   of all routed experts of all layers
    experts  how many a layer has, and how many of them a token passes through
    entry    passed through by what the target shows
    markov   passed through for each guess of a block that is told the one before
    steps    layers of its own that the draft steps have, where each has one
    hidden   width of what it reads, 0 where that does not matter
    """

    total: int
    head: int
    body: int
    routed: int = 0
    experts: tuple[int, int] = (0, 0)
    entry: int = 0
    markov: int = 0
    layers: tuple[Attention, ...] = ()
    steps: int = 1
    hidden: int = 0

    @property
    def kept(self) -> int:
        """Numbers that all layers keep of a position."""
        return sum(each.keeps for each in self.layers)

    def touched(self, tokens: int) -> float:
        """Expected share of the routed experts that so many tokens pass through between them.

        Each expert is missed by a token with the chance 1 - k/E, as if tokens chose by themselves.
        """
        count, chosen = self.experts
        if not count or not self.routed:
            return 0.0
        return 1.0 - (1.0 - min(chosen / count, 1.0)) ** tokens

    @property
    def active(self) -> float:
        """Weights that one token passes through, head left out."""
        count, chosen = self.experts
        return self.body + (self.routed * min(chosen / count, 1.0) if count else 0)


def number(config: Mapping[str, Any], *keys: str) -> int:
    """The first of these that is a whole number above 0; else 0."""
    said = (config.get(key) for key in keys)
    return next((n for n in said if type(n) is int and 0 < n < LARGEST), 0)


def experts(config: Mapping[str, Any]) -> tuple[int, int]:
    """How many experts a layer routes over, and to how many a token goes."""
    count = number(config, "n_routed_experts", "num_experts", "num_local_experts")
    return count, number(config, "num_experts_per_tok", "top_k_experts", "num_experts_per_token")


def _kinds(config: Mapping[str, Any], layers: int) -> list[str]:
    said = config.get("layer_types")
    if not isinstance(said, list) or not said:
        return ["full_attention"] * layers
    return [str(kind) for kind in said]


def attention(model: str, config: Mapping[str, Any]) -> tuple[Attention, ...] | Unknown:
    """What each layer of a language model keeps and reads."""
    layers = number(config, "num_hidden_layers")
    if not 0 < layers <= MOST_LAYERS:
        return Unknown(f"`{model}` does not say how many layers it has")
    kinds = _kinds(config, layers)
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
    return Attention(width, width, 2 * width, latent=True)


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


def whole(model: str, config: Mapping[str, Any]) -> Sizes | Unknown:
    """The sizes of a language model of a family that is known."""
    family = str(config.get("model_type") or "")
    if family not in FAMILIES:
        return Unknown(f"no rule counts the weights of `{model}` by its config ({family or '?'})")
    layers = attention(model, config)
    if isinstance(layers, Unknown):
        return layers
    hidden, vocab = number(config, "hidden_size"), number(config, "vocab_size")
    body = hidden  # the last norm
    routed = 0
    kinds = _kinds(config, len(layers))
    for i, kind in enumerate(kinds):
        weights = _layer(config, family, i, sliding=kind == "sliding_attention")
        if weights is None or not (hidden and vocab):
            return Unknown(f"`{model}` does not say all sizes of its layers")
        body, routed = body + weights[0], routed + weights[1]
    if routed and not all(experts(config)):
        return Unknown(f"`{model}` does not say how many experts a token has")
    tied = config.get("tie_word_embeddings") is True
    return Sizes(
        total=body + routed + hidden * vocab * (1 if tied else 2),
        head=hidden * vocab,
        body=body,
        routed=routed,
        experts=experts(config),
        layers=layers,
        hidden=hidden,
    )


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


def _layer(
    config: Mapping[str, Any], family: str, layer: int, *, sliding: bool
) -> tuple[int, int] | None:
    """Weights of one layer that every token passes, and those of its routed experts."""
    hidden = number(config, "hidden_size")
    attends = _attends(config, family, layer, sliding=sliding)
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


def _attends(config: Mapping[str, Any], family: str, layer: int, *, sliding: bool) -> int:
    """Weights of the attention of one layer; 0 where its sizes are not said."""
    hidden = number(config, "hidden_size")
    if number(config, "kv_lora_rank"):
        return _latent_weights(config, hidden)
    heads, groups, key, value = geometry(config, layer, sliding=sliding)
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


def network(
    model: str, config: Mapping[str, Any], net: Net, facts: DraftFacts, target: Sizes
) -> Sizes | Unknown:
    """The sizes of a draft network that is not here, by what is recorded of it."""
    if net.reads == TARGET_KV:
        return Unknown(f"no rule counts the weights of `{model}` by its config")
    hidden, reads = facts.hidden_size, facts.reads_width
    head = hidden * facts.vocab_size
    total_head = head + hidden * facts.embed_rows
    entry = reads * hidden if net.reads == TAPS else (reads + hidden) * hidden
    if net.block == "target":
        return _like_target(model, config, entry, total_head, target, facts)
    family = "qwen3" if net.block == CONTEXT else "llama"
    layers = number(config, "num_hidden_layers") if net.block == CONTEXT else 1
    if not (number(config, "intermediate_size") and number(config, "num_attention_heads")):
        return Unknown(f"the sizes of the layers of `{model}` are not recorded")
    heads, groups, key, value = geometry(config, 0, sliding=False)
    dense = {**config, "hidden_size": hidden, "n_routed_experts": 0}
    each = _layer(dense, family, 0, sliding=False)
    if each is None or not layers:
        return Unknown(f"the sizes of the layers of `{model}` are not recorded")
    wide = hidden * (heads * key + groups * (key + value)) + hidden if net.block == "wide" else 0
    width = groups * (key + value)
    body = layers * each[0] + wide + hidden * (net.final_norm - (not net.input_norm))
    entry += hidden if net.block == CONTEXT else 0  # what was read is normed
    markov = facts.vocab_size or target.head // max(hidden, 1)
    markov *= facts.block.rank
    return Sizes(
        total=body + entry + total_head + 2 * markov,
        head=head or target.head,
        body=body,
        entry=entry,
        markov=markov,
        layers=(Attention(width, width, 2 * heads * (key + value), facts.block.window),) * layers,
        hidden=hidden,
    )


def _like_target(
    model: str,
    config: Mapping[str, Any],
    entry: int,
    head: int,
    target: Sizes,
    facts: DraftFacts,
) -> Sizes | Unknown:
    """A layer of the target's own kind: its last one; or several, one a step."""
    family, last = str(config.get("model_type") or ""), len(target.layers) - 1
    sliding = family in SLIDING_STEPS
    if sliding:
        config = {**config, "n_routed_experts": 0}
    each = _layer(config, family, last, sliding=sliding) if family in FAMILIES else None
    if each is None:
        return Unknown(f"the sizes of the draft in `{model}` are not recorded")
    hidden, steps = facts.hidden_size, facts.steps
    layer = target.layers[-1]
    if sliding:
        alike = [each for each in target.layers if each.window]
        layer = alike[-1] if alike else layer
    return Sizes(
        total=steps * (each[0] + each[1] + entry + 3 * hidden) + head,
        head=hidden * facts.vocab_size or target.head,
        body=steps * (each[0] + 3 * hidden),
        routed=steps * each[1],
        experts=experts(config) if each[1] else (0, 0),
        entry=steps * entry,
        layers=(layer,) * steps,
        steps=steps,
        hidden=hidden,
    )
