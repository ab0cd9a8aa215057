"""How large a network is by its config.json alone, where its layers are of families we know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specflow.facts import DraftFacts
from specflow.formats import CONTEXT, TAPS, TARGET_KV, Net
from specflow.layer_sizes import (
    FAMILIES,
    GEMMA,
    Attention,
    Unknown,
    attention,
    attention_weights,
    experts,
    geometry,
    layer_kinds,
    layer_weights,
    number,
    stem,
    tied,
)

__all__ = ["Attention", "Sizes", "Unknown", "head_rows", "network", "seen_layers", "whole"]

SLIDING_STEPS = frozenset({"mimo_v2_flash"})  # MTP layers that are dense and see a window


@dataclass(frozen=True)
class Stored:
    """Bytes of weights as a checkpoint has them.

    routed   of all routed experts
    attends  of the attention of a target's layers
    dtypes   what they are stored as, in words
    packed   narrower than any float that is loaded: an engine keeps them so
    """

    total: int
    routed: int
    attends: int
    dtypes: str
    packed: bool


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
    attends  of the attention of a target's layers, a part of `body`
    stored   what they take as the checkpoint has them; None where that is not known
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
    attends: int = 0
    stored: Stored | None = None

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


def whole(model: str, config: Mapping[str, Any]) -> Sizes | Unknown:
    """The sizes of a language model of a family that is known."""
    family = str(config.get("model_type") or "")
    if family not in FAMILIES:
        return Unknown(f"no rule counts the weights of `{model}` by its config ({family or '?'})")
    layers = attention(model, config)
    if isinstance(layers, Unknown):
        return layers
    hidden, vocab = number(config, "hidden_size"), number(config, "vocab_size")
    (body, tables), routed, attends = stem(config), 0, 0
    kinds = layer_kinds(config, len(layers))
    for i, kind in enumerate(kinds):
        weights = layer_weights(config, family, i, sliding=kind == "sliding_attention")
        if weights is None or not (hidden and vocab):
            return Unknown(f"`{model}` does not say all sizes of its layers")
        body, routed = body + weights[0], routed + weights[1]
        attends += attention_weights(config, family, i, sliding=kind == "sliding_attention")
    if routed and not all(experts(config)):
        return Unknown(f"`{model}` does not say how many experts a token has")
    return Sizes(
        total=body + routed + tables + hidden * vocab * (1 if tied(config) else 2),
        head=hidden * vocab,
        body=body,
        routed=routed,
        experts=experts(config),
        layers=layers,
        hidden=hidden,
        attends=attends,
    )


def network(
    model: str, config: Mapping[str, Any], net: Net, facts: DraftFacts, target: Sizes
) -> Sizes | Unknown:
    """The sizes of a draft network that is not here, by what is recorded of it."""
    if net.reads == TARGET_KV:
        return _assistant(model, config, facts, target)
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
    each = layer_weights(dense, family, 0, sliding=False)
    if each is None or not layers:
        return Unknown(f"the sizes of the layers of `{model}` are not recorded")
    wide = hidden * (heads * key + groups * (key + value)) + hidden if net.block == "wide" else 0
    width, window = groups * (key + value), facts.block.window
    attends = Attention(width, width, 2 * heads * (key + value), window, heads=groups)
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
        layers=(attends,) * layers,
        hidden=hidden,
    )


def head_rows(config: Mapping[str, Any], vocabulary: int, *, ordered: bool) -> int:
    """Rows of a head that are read: of one with ordered embeddings those of the best clusters."""
    count, best = (number(config, k) for k in ("num_centroids", "centroid_intermediate_top_k"))
    return count + best * (vocabulary // count) if ordered and count and best else vocabulary


def seen_layers(config: Mapping[str, Any], target: Sizes, count: int) -> list[Attention | None]:
    """The target's last layer of the kind of each layer that keeps nothing itself."""
    last = {bool(each.window): each for each in target.layers if each.keeps}
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != count:
        return [None] * count
    return [last.get(kind == "sliding_attention") for kind in kinds]


def _assistant(
    model: str, config: Mapping[str, Any], facts: DraftFacts, target: Sizes
) -> Sizes | Unknown:
    """An assistant on the target's KV: layers of Gemma 4 that keep nothing."""
    count, own = number(config, "num_hidden_layers"), number(config, "hidden_size")
    kinds, seen = layer_kinds(config, count), seen_layers(config, target, count)
    sharing = {**config, "num_kv_shared_layers": count}
    body, layers = own, []
    for i, (kind, other) in enumerate(zip(kinds, seen, strict=False)):
        sliding = kind == "sliding_attention"
        each = layer_weights(sharing, next(iter(GEMMA)), i, sliding=sliding)
        heads, _, key, value = geometry(config, i, sliding=sliding)
        if each is None or other is None:
            return Unknown(f"the sizes of the layers of `{model}` are not recorded")
        body += each[0]
        layers.append(replace(other, keeps=0, work=2 * heads * (key + value)))
    rows = head_rows(config, facts.vocab_size, ordered=facts.ordered_embeddings)
    centroids = number(config, "num_centroids") if facts.ordered_embeddings else 0
    entry = 3 * facts.hidden_size * own  # in from an embedding and a state, out to a state
    return Sizes(
        total=body + entry + (facts.vocab_size + centroids) * own,
        head=rows * own,
        body=body,
        entry=entry,
        layers=tuple(layers),
        hidden=facts.hidden_size,
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
    each = layer_weights(config, family, last, sliding=sliding) if family in FAMILIES else None
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
