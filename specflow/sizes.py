"""How large a network is, from headers and config alone: its weights, and what attention keeps.

All numbers are counts of numbers, not of bytes. What is not known is `Unknown`, with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from specflow import config_sizes, formats, published
from specflow.config_sizes import Attention, Sizes, Unknown
from specflow.facts import CAUSAL_LM, DraftFacts, Facts, ModelFacts
from specflow.headers import INTEGERS, Tensor
from specflow.layer_sizes import attention, experts, geometry, latent, number
from specflow.remembered import remembering
from specflow.stored import ATTENDS, EXPERT, SCALE, bits, held, packed, recorded

__all__ = ["Attention", "Sizes", "Unknown", "sizes_of_draft", "sizes_of_target"]

EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens(?:_per_layer)?|wte)\.weight$")
HEAD = re.compile(r"(?:^|\.)lm_head\.(?:weight|bias)$")
OTHER_SENSES = re.compile(r"(?:^|\.)(?:vision|visual|audio|embed_vision|embed_audio|multi_modal)")
ATTENTION = re.compile(r"(.*(?:^|\.)(?:self_attn|attn))\.(\w+?)(?:_proj|_proj_with_mqa)\.weight")
PLACE = re.compile(r"(?:layers|steps)\.(\d+)\.")
ENTRY = re.compile(
    r"(?:steps\.\d+\.)?(?:fc\..+)|(?:pre|post)_projection\.weight|hidden_norm\.weight"
)


@remembering  # the header of a large mixture has a hundred thousand tensors
def sizes_of_target(facts: ModelFacts) -> Sizes | Unknown:
    """The sizes of a whole language model; what drafts in its checkpoint is not counted."""
    if facts.problem is not None and not facts.tensors:
        return Unknown(f"`{facts.model}` cannot be read")
    config = known_config(facts)
    if not facts.tensors:
        if facts.tokens is not None:
            return Unknown(f"the header of `{facts.model}` is read for its tokens alone")
        return _recorded(facts, config_sizes.whole(facts.model, config))
    of_draft = _of_draft(facts)
    tensors = {n: t for n, t in facts.tensors.items() if n not in of_draft}
    counted = _counted(facts, tensors, config)
    if isinstance(counted, Unknown):
        return counted
    layers = _attention(facts.model, tensors, config, facts.layers)
    if isinstance(layers, Unknown):
        return layers
    return replace(counted, layers=layers, stored=held(tensors))


@remembering
def sizes_of_draft(facts: Facts) -> Sizes | Unknown:
    """The sizes of the network that drafts; without a head of its own it has the target's."""
    net, target = facts.net, sizes_of_target(facts["target"])
    if net.format == CAUSAL_LM:
        return sizes_of_target(facts["draft"])
    source = facts["target" if net.bundled else "draft"]
    if not net.format:
        return Unknown(f"what `{source.model}` is made of is not known")
    if isinstance(target, Unknown):
        return target
    form = formats.named(net.format)
    if source.tensors:
        return _network(source, form, net, facts["target"].layers, target)
    known = known_config(source)
    return _recorded(source, config_sizes.network(source.model, known, form.net, net, target))


def _recorded(facts: ModelFacts, sizes: Sizes | Unknown) -> Sizes | Unknown:
    """Sizes by config, with what is recorded of how its weights are stored."""
    said = str((published.record(facts.model) or {}).get("weights", ""))
    return replace(sizes, stored=recorded(said, sizes)) if isinstance(sizes, Sizes) else sizes


def known_config(facts: ModelFacts) -> Mapping[str, Any]:
    """What config.json says of the language model, or what is recorded of it."""
    if facts.config:
        named = {"architecture": facts.architecture}
        return {**facts.text, **named, "vocab_size": facts.vocab_size}
    recorded = published.record(facts.model) or {}
    return {
        "model_type": facts.model_type,
        "architecture": facts.architecture,
        "hidden_size": facts.hidden_size,
        "num_hidden_layers": facts.layers,
        "vocab_size": facts.vocab_size,
        "layer_types": list(facts.layer_types),
        **recorded.get("sizes", {}),
    }


def _of_draft(facts: ModelFacts) -> frozenset[str]:
    """The tensors of a target's checkpoint that are of the draft in it."""
    form = formats.recognise(facts.tensors, facts.layers, bundled=True)
    if form is None:
        return frozenset()
    patterns = [re.compile(p.replace("{L}", str(facts.layers))) for p, _ in form.keys]
    return frozenset(n for n in facts.tensors if any(p.fullmatch(n) for p in patterns))


def _weights(tensors: Mapping[str, Tensor], each: int = 0) -> Iterator[tuple[str, int]]:
    """Name and length of every weight; a packed one holds weights of `each` bits."""
    for name, tensor in tensors.items():
        if packed(name, tensor) and each:
            yield name, 8 * (tensor.end - tensor.begin) // each
        elif tensor.dtype not in INTEGERS and not SCALE.search(name):
            yield name, math.prod(tensor.shape)


def _counted(
    facts: ModelFacts, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> Sizes | Unknown:
    """The weights of a language model, by what reads them."""
    model, each = facts.model, bits(facts.config) or bits(facts.text)
    closed = next((name for name, tensor in tensors.items() if packed(name, tensor)), "")
    if closed and not each:
        return Unknown(f"`{model}` packs several weights into one number (`{closed}`)")
    total = embedding = head = routed = body = attends = 0
    for name, count in _weights(tensors, each):
        total += count
        if OTHER_SENSES.search(name):
            continue
        if EMBEDDING.search(name):
            embedding += count
        elif HEAD.search(name):
            head += count
        elif EXPERT.search(name):
            routed += count
        else:
            body += count
            attends += count if ATTENDS.search(name) else 0
    # A head that is not written is the embedding itself, or the part of it that is no table of
    # further embeddings a layer (Gemma).
    tied = number(config, "vocab_size") * number(config, "hidden_size")
    routes = experts(config)
    if routed and not all(routes):
        return Unknown(f"config.json of `{model}` does not say how many experts a token has")
    head = head or tied
    return Sizes(total, head, body, routed, experts=routes, attends=attends)


def _attention(
    model: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any], layers: int
) -> tuple[Attention, ...] | Unknown:
    """What each layer keeps and reads: by its weights, or by the config where they are fused."""
    said = attention(model, config)
    if isinstance(said, Unknown):
        return said
    found = _projections(tensors)
    by_layer = {int(m[1]): p for n, p in found.items() if (m := formats.LAYER.search(n))}
    if len(said) != layers:
        return Unknown(f"`{model}` does not say how many layers it has")
    return tuple(_held(each, by_layer.get(i, {})) for i, each in enumerate(said))


def _projections(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Shapes of the projections of each attention, by its name and theirs."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        match = ATTENTION.fullmatch(name)
        if match and len(tensor.shape) == 2:
            found.setdefault(f"{match[1]}.", {})[match[2]] = tensor.shape
    return found


def _held(said: Attention, shapes: Mapping[str, tuple[int, ...]]) -> Attention:
    """A layer as its weights have it, where they are one matrix a projection."""
    if said.latent or not {"q", "o"} <= shapes.keys():
        return said
    width, work = _widths(shapes)
    if not width:
        return replace(said, work=work)
    heads = max(width * said.heads // said.reads, 1)  # by weights, as wide as the config has them
    return replace(said, keeps=width if said.keeps else 0, reads=width, work=work, heads=heads)


def _widths(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    """Numbers kept of a position, 0 where a layer keeps none itself, and FLOPs of a pair."""
    work = 2 * (shapes["q"][0] + shapes["o"][1])
    return shapes["k"][0] + shapes.get("v", shapes["k"])[0] if "k" in shapes else 0, work


def _network(
    source: ModelFacts, form: formats.Format, net: DraftFacts, layers: int, target: Sizes
) -> Sizes | Unknown:
    """The sizes of a draft network from its tensors, by our names for them."""
    names = formats.rename(source.tensors, form, layers)
    ours = {name: source.tensors[theirs] for name, theirs in names.items()}
    config = known_config(source)
    head = 0
    parts = dict.fromkeys(("embedding", "head", "entry", "markov", "routed", "body", "rest"), 0)
    for name, count in _weights(ours):
        parts[_part(name)] += count
    if form.net.reads == formats.TARGET_KV:
        # An embedding that is the head too, of which fewer rows may be read.
        said, rows = {**source.config, **config}, net.vocab_size
        read = config_sizes.head_rows(said, rows, ordered=net.ordered_embeddings)
        head = read * parts["embedding"] // max(rows, 1)
    found = _projections(ours)
    shapes = [found[name] for name in sorted(found, key=_place)]
    windows = _windows(net, config, len(shapes))
    seen = config_sizes.seen_layers(config, target, len(shapes))
    each = zip(shapes, windows, seen, strict=False)
    kept = [_drafts(layer, config, window, other) for layer, window, other in each]
    if not kept or not all(kept):
        return Unknown(f"the attention of `{source.model}` is not known")
    return Sizes(
        total=sum(parts.values()),
        head=head or parts["head"] or target.head,
        body=parts["body"],
        routed=parts["routed"],
        experts=experts(config) if parts["routed"] else (0, 0),
        entry=parts["entry"],
        markov=parts["markov"],
        layers=tuple(filter(None, kept)),
        steps=net.steps if form.net.own_layers else 1,
        hidden=net.hidden_size,
        stored=held(ours),
    )


def _place(name: str) -> int:
    """The number of a layer or a step in the name of its attention, by our names."""
    match = PLACE.search(name)
    return int(match[1]) if match else 0


def _part(name: str) -> str:
    """What a tensor of a draft network is, by our name for it."""
    if name in formats.EMBEDDINGS:
        return "embedding"
    if name.startswith("lm_head."):
        return "head"
    if name.startswith(("markov.w1.", "confidence.", "masked_embedding.")):
        return "rest"
    if name.startswith("markov."):
        return "markov"
    if EXPERT.search(name):
        return "routed"
    return "entry" if ENTRY.fullmatch(name) else "body"


def _drafts(
    shapes: Mapping[str, tuple[int, ...]],
    config: Mapping[str, Any],
    window: int,
    seen: Attention | None,
) -> Attention | None:
    """The attention of a layer of a draft; None where it is of no kind that is known.

    window  how far it sees, 0 for all
    seen    the target's layer that it reads, where it keeps nothing itself
    """
    if "kv_a" in shapes:  # a layer of the target's own kind, which keeps latents
        return latent(config)
    if not {"q", "o"} <= shapes.keys():
        return None
    width, work = _widths(shapes)
    if width:
        _, _, key, value = geometry(config, 0, sliding=bool(window))
        heads = max(width // max(key + value, 1), 1)
        return Attention(keeps=width, reads=width, work=work, window=window, heads=heads)
    return replace(seen, keeps=0, work=work) if seen is not None else None


def _windows(net: DraftFacts, config: Mapping[str, Any], count: int) -> list[int]:
    """How far each layer of a draft sees, 0 for all."""
    if net.block.windows:
        return [*net.block.windows, *[0] * count][:count]
    sliding = str(config.get("model_type")) in config_sizes.SLIDING_STEPS and net.steps == count
    return [number(config, "sliding_window") if sliding else 0] * count
