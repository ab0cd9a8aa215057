"""SF019, SF022, SF029, SF066 to SF070, SF073: drafts that run and guess nothing that holds.

All of it is told from configs, names and shapes, before any weight loads; only the values of `d2t`
are read, and for SF029 what `deep` found in a sample of the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specflow.constraints.drafts import holder, network, offsets
from specflow.dummies import BESIDE, QUANTIZED
from specflow.facts import DraftFacts, ModelFacts
from specflow.formats import TAPS, TARGET_KV, named
from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, rule

PACKED = frozenset({"U8", "I8", "I32", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2"})
# What lies beside a weight that is stored packed: its scales, by the names that quantisers give.
SCALES = re.compile(
    r".*(\.(weight_scale(_inv|_2)?|weight_packed|qweight|qzeros|scales|absmax|SCB)|_scales)"
)
_OF_LAYER = re.compile(r"model\.(?:mtp_)?layers\.(0|[1-9]\d{0,9})\.", re.ASCII)
MOST_TOLD = 4  # tensors that look wrong which are told one by one
TIED = "tie_word_embeddings"  # the head is the embedding
DECLARED = ("draft_vocab_size", "draft_vocabulary_size")


@dataclass(frozen=True)
class Rope:
    """How positions are told: the base of the angles, and how they are stretched."""

    theta: float
    scaling: str

    def __str__(self) -> str:
        return f"theta {self.theta:g}, {self.scaling}"


def rope(model: ModelFacts) -> Rope | None:
    """What a config says of positions; None where it says nothing, or something of each layer."""
    text = model.text
    said = text.get("rope_parameters")
    said = said if isinstance(said, Mapping) else {}
    theta = text.get("rope_theta", said.get("rope_theta"))
    if not _number(theta):
        return None
    scaling = text.get("rope_scaling", said)
    return Rope(float(theta), _scaling(scaling if isinstance(scaling, Mapping) else {}))


def _number(said: Any) -> bool:
    """Whether a config says a number that a float can hold."""
    return type(said) in (int, float) and abs(said) < 1e300


def _scaling(said: Mapping[str, Any]) -> str:
    kind = said.get("rope_type", said.get("type", "default"))
    if kind in (None, "default"):
        return "not scaled"
    parts = [str(kind)]
    if "factor" in said:
        parts.append(f"x{said['factor']:g}" if _number(said["factor"]) else "")
    if "original_max_position_embeddings" in said:
        parts.append(f"from {said['original_max_position_embeddings']}")
    return " ".join(filter(None, parts))


def packed_weight(model: ModelFacts) -> tuple[str, str]:
    """Name and dtype of a weight that is stored packed beside its scales; both empty for none."""
    if model.no_float is None or not any(map(SCALES.fullmatch, model.tensors)):
        return "", ""
    found = ((name, each.dtype) for name, each in model.tensors.items() if each.dtype in PACKED)
    return next(found, ("", ""))


def _packed(r: ResolvedRecipe) -> Iterator[tuple[str, ModelFacts, str, str]]:
    """The models whose weights are stored packed: block, model, name and dtype of one of those."""
    for block in ("target", "draft"):
        name, dtype = packed_weight(r.facts[block])
        if name:
            yield block, r.facts[block], name, dtype


def quantiser(model: ModelFacts) -> str:
    """What a checkpoint says it was quantised with; empty where it says nothing."""
    for config in (model.config, model.text):
        for key in QUANTIZED:
            said = config.get(key)
            if isinstance(said, Mapping):
                return str(said.get("quant_method") or said.get("format") or "quantised")
    if model.folder is not None:
        for name in BESIDE:
            if (model.folder / name).is_file():
                return name
    return ""


def fewer_words(draft: ModelFacts, target: ModelFacts, net: DraftFacts) -> int:
    """How many words a draft says it has, where those are fewer than the target's; else 0."""
    said = (config.get(key) for config in (draft.config, draft.text) for key in DECLARED)
    words = next((n for n in said if type(n) is int and n > 0), net.map_size)
    return words if words < target.vocab_size else 0


def headless(r: ResolvedRecipe) -> bool:
    """Whether the draft is of a kind that brings a head, and brings none."""
    net = network(r)
    if net.reads != TAPS or not r.facts[holder(r)].tensors or net.vocab_size:
        return False
    return named(net.format).net.own_head


def _rows_of(name: int, width: int) -> str:
    return f"`lm_head.weight` of [{name}, {width}]"


@rule("SF022", "borrowed-head", warning=True)
def borrowed_head(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft of a kind that brings a head of its own brings one.

    ## Why
    An EAGLE3 draft was trained with a head of its own. Where its checkpoint has none and its words
    are the target's, specflow borrows the target's head, which is right for a draft that was saved
    without a copy of it. Where the head was lost on the way, the draft's states mean nothing to the
    target's head; and an engine may leave a head that it misses as random as it was made.

    ## Example
    `tiny-eagle3-no-head` has `fc.weight`, a layer and the target's own vocabulary, and no
    `lm_head.weight`.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3-no-head}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3}
    ```

    ## Fix
    Save the draft with its head; or write `tie_word_embeddings: true` into its config.json where
    the head is its own embedding; or say with `allow` that the target's head is meant.
    """
    draft, target = r.facts[holder(r)], r.facts["target"]
    net = network(r)
    if not headless(r) or net.has_map or draft.says(TIED):
        return
    if fewer_words(draft, target, net):
        return  # a head of its own is the only one that fits: SF066
    yield Finding(
        at=f"{holder(r)}.model",
        message=f"`{draft.model}` has no `lm_head`: the target's head is shared",
        label="no head of its own",
        because={"target.model": f"lends its head of {target.vocab_size} rows"},
        help="check that the draft was trained with the target's head, then silence this with "
        "`allow: {SF022: why}`; or save the draft with its `lm_head.weight`",
    )


@rule("SF029", "untrained-weights", warning=True)
def untrained_weights(r: ResolvedRecipe) -> Iterator[Finding]:
    """The weights of a draft look trained.

    ## Why
    A conversion that loses a tensor leaves in its place what a fresh layer holds: numbers as they
    were drawn, or zeros. The draft loads, every name and shape is right, and nothing it guesses
    holds. `specflow validate --deep` reads a sample of the weights: of a head, a projection or an
    MTP entry a spread of `initializer_range` with the tails of a normal law is one that no training
    has touched; so are the tails of a uniform law. Zeros and numbers that are not finite are told
    of every matrix.

    ## Example
    The weights of `tiny-eagle3` are zeros.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3}
    ```
    ```sh
    specflow validate recipe.yaml --deep
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: EAGLE3, model: builtin:pico-llama-eagle3}
    ```
    ```sh
    specflow validate recipe.yaml --deep
    ```

    ## Fix
    Download the draft again, or convert it again from the training run; where it is untrained on
    purpose, say so with `allow`.
    """
    draft = r.facts[holder(r)]
    for name, odd in r.facts.oddities[:MOST_TOLD]:
        more = len(r.facts.oddities) - MOST_TOLD
        yield Finding(
            at=f"{holder(r)}.model",
            message=f"`{name}` of `{draft.model}` is {odd}",
            label="told from a sample of its weights",
            notes=(f"{more} tensors more look wrong",) if more > 0 else (),
            help="download or convert the draft again, or silence this with `allow: {SF029: why}`",
        )


@rule("SF066", "missing-draft-head")
def missing_draft_head(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft with a vocabulary of its own has a head for it.

    ## Why
    A draft that knows fewer words than the target needs a head with a row for each of them; the
    target's head has other rows. With such a file an engine starts, leaves the head as random as it
    was made, and accepts nothing, for ever.

    ## Example
    The config.json of `tiny-eagle3-lost-head` has a `draft_vocab_size` below the target's
    vocabulary, and its weights no `lm_head.weight`.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3-lost-head}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3}
    ```

    ## Fix
    Take the checkpoint that has the head; or write the target's vocabulary as `draft_vocab_size`
    to borrow the target's head.
    """
    draft, target, net = r.facts[holder(r)], r.facts["target"], network(r)
    words = fewer_words(draft, target, net)
    if not headless(r) or not words:
        return
    yield Finding(
        at=f"{holder(r)}.model",
        message=f"`{draft.model}` has {words} words of the target's {target.vocab_size}, and no "
        "`lm_head` for them: it would accept nothing",
        label=f"no head of {words} rows",
        because={"target.model": f"{target.vocab_size} tokens"},
        help=f"supply {_rows_of(words, net.hidden_size)}, or write `draft_vocab_size: "
        f"{target.vocab_size}` into its config.json and leave `d2t` out to borrow the target's",
    )


@rule("SF067", "packed-without-config")
def packed_without_config(r: ResolvedRecipe) -> Iterator[Finding]:
    """Weights that are stored packed are said to be so.

    ## Why
    A quantised weight is whole numbers and scales. What reads it as plain weights gets noise: the
    draft loads without a word and nothing it guesses holds. An engine is told by
    `quantization_config` in config.json.

    ## Example
    The tensors of `tiny-eagle3-packed` are `qweight`, `qzeros` and `scales`, and its config.json
    has no `quantization_config`.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3-packed}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3}
    ```

    ## Fix
    Take config.json from the quantised checkpoint, or the weights from the one that is not.
    """
    for block, model, name, dtype in _packed(r):
        if not quantiser(model):
            yield Finding(
                at=f"{block}.model",
                message=f"`{name}` of `{model.model}` is stored as {dtype} with scales beside it, "
                "and its config.json says nothing of a quantisation",
                label="packed, and not said to be",
                help="take config.json and weights from one checkpoint",
            )


@rule("SF073", "quantised-weights", warning=True)
def quantised_weights(r: ResolvedRecipe) -> Iterator[Finding]:
    """Weights that specflow's own engine runs are stored as floats.

    ## Why
    specflow's own engine unpacks no quantised weights, and says so when it would load them. A
    recipe for an engine that does may name them all the same.

    ## Example
    The config.json of `tiny-eagle3-quantised` has a `quantization_config`, and its weights are
    whole numbers and scales.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3-quantised}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3}
    ```

    ## Fix
    Name the checkpoint that is not quantised, or say with `allow` that an engine runs it.
    """
    for block, model, name, dtype in _packed(r):
        if quantiser(model):
            yield Finding(
                at=f"{block}.model",
                message=f"`{model.model}` is quantised ({quantiser(model)}): specflow's own engine "
                "will not run it, an engine that unpacks it will",
                label=f"`{name}` is {dtype}",
                help="name the checkpoint that is not quantised, or silence this with "
                "`allow: {SF073: why}`",
            )


def _reaches_alone(r: ResolvedRecipe) -> bool:
    """Whether the draft has positions of its own to be trained on, and a config that tells them."""
    draft, net = r.facts["draft"], r.facts.net
    if not draft.model or draft.recorded or net.bundled or not net.format:
        return False
    return network(r).reads != TARGET_KV


@rule("SF068", "draft-context-shorter", warning=True)
def draft_context_shorter(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft was made for as many positions as a request may fill.

    ## Why
    Past the positions it was trained on a draft goes on, and little it guesses holds: the output
    stays right, and from there on speculation costs more than it gains. Nothing else tells.

    ## Example
    `tiny-eagle3-short` has a `max_position_embeddings` below `run.max_length`.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3-short}
    run: {max_length: 64}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3-short}
    run: {max_length: 16}
    ```

    ## Fix
    Lower `run.max_length`, name a draft that was made for long texts, or expect it with `allow`.
    """
    most, asked = r.facts["draft"].max_positions, r.run.max_length
    if most and asked > most and _reaches_alone(r):
        yield Finding(
            at="draft.model",
            message=f"beyond position {most} the draft proposes nothing useful, and a request may "
            f"fill {asked}",
            label=f"max_position_embeddings is {most}",
            because={"run.max_length": "positions of a request"},
            help=f"lower `run.max_length` to {most}, or name a draft made for longer texts",
        )


@rule("SF069", "rope-mismatch", warning=True)
def rope_mismatch(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft that reads the target's states tells positions as the target does.

    ## Why
    A draft on the target's states was trained at its positions. Where one of the two was stretched
    to longer texts afterwards (`rope_scaling`), guesses get worse with every position, though each
    model by itself is fine. Another base of the angles alone is a draft's own choice.

    ## Example
    The config.json of `tiny-yarn` stretches its positions by `rope_scaling`; its draft's does not.
    ```yaml
    target: {model: tiny-yarn}
    draft: {algorithm: EAGLE3, model: tiny-eagle3-unscaled}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3-unscaled}
    ```

    ## Fix
    Write the target's `rope_scaling` into the draft's config.json where it was trained with it;
    say with `allow` that it was trained with its own.
    """
    ours, theirs = rope(r.facts["target"]), rope(r.facts["draft"])
    if not network(r).format or not _reaches_alone(r) or ours is None or theirs is None:
        return
    if ours.scaling != theirs.scaling:
        yield Finding(
            at="draft.model",
            message="the draft's positions are stretched otherwise than the target's: guesses get "
            "worse with the length of the text",
            label=str(theirs),
            because={"target.model": str(ours)},
            help="write the target's `rope_scaling` into the draft's config.json, or silence this "
            "with `allow: {SF069: why}` where it was trained with its own",
        )


@rule("SF070", "map-without-offsets", warning=True)
def map_without_offsets(r: ResolvedRecipe) -> Iterator[Finding]:
    """The map of a reduced vocabulary leads somewhere else than to itself.

    ## Why
    `d2t` holds offsets: target id = draft id + offset. All of them 0 mean that the draft's words
    are the target's first ones, which no choice of frequent tokens gives; it is what a map looks
    like that was made and never filled.

    ## Example
    The `d2t` of `tiny-eagle3-empty-map` is all zeros.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3-empty-map}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3}
    ```

    ## Fix
    Take the map from the training run that made the draft.
    """
    draft, net = r.facts[holder(r)], network(r)
    reduced = 0 < net.map_size < r.facts["target"].vocab_size
    if net.has_map and reduced and net.problem is None and not any(offsets(draft) or [1]):
        yield Finding(
            at=f"{holder(r)}.model",
            message=f"`d2t` of `{draft.model}` is {net.map_size} zeros: it maps each draft id to "
            "the same target id",
            label="an empty map",
            help="take `d2t` from the training run that made the draft, or silence this with "
            "`allow: {SF070: why}`",
        )


@rule("SF019", "fewer-mtp-layers", warning=True)
def fewer_mtp_layers(r: ResolvedRecipe) -> Iterator[Finding]:
    """Every layer for drafting that config.json declares is in the weights.

    ## Why
    Copies of a checkpoint lose such layers: a quantiser that does not know them leaves them out.
    Where one is left the draft runs, and an engine that asks for the others does not start.

    ## Example
    The config.json of `tiny-one-of-two-mtp` declares two such layers; its weights hold one.
    ```yaml
    target: {model: tiny-one-of-two-mtp}
    draft: {algorithm: NEXTN}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-one-of-two-mtp}
    draft: {algorithm: NEXTN}
    allow: {SF019: the one layer is enough here}
    ```

    ## Fix
    Take the whole checkpoint, or correct its config.json.
    """
    target, net = r.facts["target"], network(r)
    if not net.bundled or not target.tensors or net.problem is not None:
        return
    found = mtp_layers_found(target, net)
    if found < target.mtp_layers:
        yield Finding(
            at="target.model",
            message=f"the config of `{target.model}` declares {target.mtp_layers} MTP layers, and "
            f"its weights hold {found}: layer {target.layers + found} is missing",
            label="dropped by a quantiser?",
            help="take a checkpoint that kept its MTP weights, or correct config.json",
        )


def mtp_layers_found(target: ModelFacts, net: DraftFacts) -> int:
    """How many layers for drafting lie in a target's checkpoint that brings one along."""
    if named(net.format).net.own_layers:
        return net.steps
    # By what the weights hold, as a config may declare any number of layers.
    layers = range(target.layers, target.layers + max(target.mtp_layers, 1))
    found = {int(each[1]) for name in target.tensors if (each := _OF_LAYER.match(name))}
    return max(sum(layer in layers for layer in found), 1)


PAIR_RULES = (
    fewer_mtp_layers,
    borrowed_head,
    untrained_weights,
    missing_draft_head,
    packed_without_config,
    draft_context_shorter,
    rope_mismatch,
    map_without_offsets,
    quantised_weights,
)
