"""Which draft network a config.json means, and how large it is, where no tensor is there to tell.

A config says less than tensors do: what it leaves open is as the published checkpoints of its
format have it, or as the recipe asks. All of it is foreign text: what is no number counts as
unsaid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specflow import block_config, formats
from specflow.block_config import HEAD, KEYS, whole

SPECULATORS = {
    "eagle3": "eagle3_speculators",
    "mtp": "mtp_speculators",
    "dflash": "dflash",
    "dspark": "dspark",
}
# Formats that only the recipe can tell from a language model of one layer.
BY_RECIPE = ("eagle", "eagle3", "dflash", "dspark")
# The layers for drafting that lie in a target's checkpoint, by its model_type; `mtp` is the rest.
BUNDLED = {"mimo": "mtp_mimo", "mimo_v2_flash": "mtp_layers", "qwen3_next": "mtp_qwen3_next"}
# How many they are, of a family whose config does not count them.
UNSAID = {"mimo_v2_flash": 3, "qwen3_next": 1}
TAPS = 3  # that an EAGLE3 draft reads where its config lists none
BIAS = "bias"  # of the projection of an EAGLE draft: there unless the config denies it


@dataclass(frozen=True)
class Beside:
    """What counts of the target; 0 is not known.

    layers  for drafting, that its config declares
    """

    kind: str
    hidden: int
    vocab: int
    drafts: int


def bundled_format(target: Beside) -> str:
    """The format of the layers for drafting that a target brings along; empty where it has none."""
    if not (target.drafts or target.kind in UNSAID):
        return ""
    return BUNDLED.get(target.kind, "mtp")


def own_format(config: Mapping[str, Any], asked: tuple[str, ...]) -> str:
    """The format of a draft of its own; empty where it is none, or a whole language model.

    asked  the formats that the recipe's algorithm runs
    """
    kind, names = config.get(block_config.KIND), config.get("architectures")
    if isinstance(kind, str):
        return SPECULATORS.get(kind, "")
    called = " ".join(map(str, names)) if isinstance(names, list) else ""
    if "Assistant" in called:
        return "assistant"
    if any(word in called for word in ("DFlash", "DSpark")) or _nested(config):
        return _block(config)
    if "Eagle3" in called or formats.TAP_KEY in config or "eagle_config" in config:
        return "eagle3"
    if whole(config, "draft_vocab_size") and "eagle3" in asked:
        return "eagle3"
    found = next((form for form in BY_RECIPE if form in asked), "")
    return _block(config) if found in ("dflash", "dspark") else found


def _nested(config: Mapping[str, Any]) -> bool:
    return any(isinstance(config.get(key), Mapping) for key in block_config.NESTED)


def _block(config: Mapping[str, Any]) -> str:
    """The two kinds of block drafts differ by a Markov head."""
    return "dspark" if whole(config, "markov_rank") else "dflash"


def network(
    form: str, config: Mapping[str, Any], text: Mapping[str, Any], target: Beside
) -> dict[str, Any]:
    """The fields of `facts.DraftFacts` that say how large a network is, but for its taps and block.

    text  the part of the config about its layers
    """
    net = formats.named(form).net
    width = whole(text, "hidden_size")
    if net.reads == formats.TARGET_KV:
        rows = whole(text, "vocab_size")
        back = whole(config, "backbone_hidden_size") or target.hidden
        ordered = config.get("use_ordered_embeddings") is True
        return {
            "hidden_size": back, "reads_width": back, "vocab_size": rows, "embed_rows": rows,
            "has_embedding": True, "ordered_embeddings": ordered,
        }  # fmt: skip
    if net.block == "target":
        steps = (target.drafts or UNSAID.get(target.kind, 1)) if net.own_layers else 1
        return {"hidden_size": target.hidden, "reads_width": target.hidden, "steps": steps}
    seen = whole(config, "target_hidden_size") or target.hidden or width
    shared = {} if width == seen else _embedding(whole(text, "vocab_size"))
    if net.reads == formats.HIDDEN:
        said = config.get(BIAS, True)
        return {"hidden_size": width, "reads_width": seen, "fc_bias": said is not False, **shared}
    if net.block == formats.CONTEXT:
        return {"hidden_size": width, **_block_heads(config, text, target)}
    if form == "eagle3_speculators":
        shared = _embedding(whole(text, "vocab_size"))
    return {"hidden_size": width, **_head(config, text, target), **shared}


def taps_width(config: Mapping[str, Any], target: Beside, taps: int) -> int:
    """Numbers of the target that a draft reads in a row of so many taps."""
    return taps * (whole(config, "target_hidden_size") or target.hidden)


def _embedding(rows: int) -> dict[str, Any]:
    return {"embed_rows": rows, "has_embedding": True}


def _head(config: Mapping[str, Any], text: Mapping[str, Any], target: Beside) -> dict[str, Any]:
    """A head of its own, and a map where it knows fewer tokens than the target."""
    known = target.vocab or whole(text, "vocab_size")
    rows = whole(config, "draft_vocab_size") or known
    return {"vocab_size": rows} | ({} if rows == known else {"has_map": True, "map_size": rows})


def _block_heads(
    config: Mapping[str, Any], text: Mapping[str, Any], target: Beside
) -> dict[str, Any]:
    """What a block draft has of its own: a head where it says so, or knows fewer tokens."""
    head = _head(config, text, target)
    own_head = config.get("has_own_lm_head") is True or "has_map" in head
    own_rows = config.get("has_own_embed") is True
    rows = _embedding(whole(text, "vocab_size")) if own_rows else {}
    return (head if own_head else {}) | rows


def block_shapes(
    config: Mapping[str, Any], text: Mapping[str, Any], target: Beside
) -> dict[str, tuple[int, ...]]:
    """The shapes of a block draft's tensors by which `block_config.describe` tells what it has."""
    return dict(_block_shapes(config, text, target))


def _block_shapes(
    config: Mapping[str, Any], text: Mapping[str, Any], target: Beside
) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, rank = whole(text, "hidden_size"), whole(config, "markov_rank")
    keys = (whole(text, "num_key_value_heads") or KEYS) * (whole(text, "head_dim") or HEAD)
    for layer in range(min(whole(text, "num_hidden_layers"), block_config.MOST_LAYERS)):
        for name in ("k", "v"):
            yield f"layers.{layer}.self_attn.{name}_proj.weight", (keys, width)
    if rank:
        yield "markov.w1.weight", (target.vocab, rank)
        kind = block_config.find(config, "markov_head_type")
        if kind == formats.GATED:
            yield "markov.gate.weight", (rank, width + rank)
        if kind == formats.RNN:
            yield "markov.joint.weight", (3 * rank, 2 * rank + width)
    said = block_config.find(config, "enable_confidence_head")
    if said is True or (rank and said is not False):
        yield "confidence.weight", (1, trust_width(config, width, rank))


def trust_width(config: Mapping[str, Any], width: int, rank: int) -> int:
    """What a confidence head reads: the row that guesses, and what a Markov head knows beside."""
    beside = block_config.find(config, "confidence_head_with_markov") is not False
    return width + (rank if beside else 0)
