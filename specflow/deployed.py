"""What one GPU holds of a model that an engine lays out over several: an estimate by its flags."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specflow.config_sizes import Sizes, Unknown
from specflow.memory import (
    BYTES,
    Footprint,
    draft_kv,
    footprint,
    kept_numbers,
    logits,
    positions,
    sizes_of,
)
from specflow.recipe import ResolvedRecipe

HALF = 2  # bytes of a float where an engine chooses: what a checkpoint has, and float32 halved


@dataclass(frozen=True)
class Deployment:
    """How an engine lays a model out over GPUs, as far as its flags say.

    engine    as messages say it
    flag      the field of a recipe that sets `tensor`; empty where an engine has none
    tensor    GPUs that share each layer
    pipeline  parts that the layers are cut into, each on GPUs of its own
    groups    groups of those that share a layer, each with requests of its own (DP attention)
    experts   GPUs that share the routed experts
    draft     GPUs that share the draft's layers
    spread    requests go to the groups; else each of them may have as many as the recipe says
    dtype     of KV and of weights stored as floats; empty where the engine takes what it finds
    kv_dtype  of KV alone; empty where that is the same
    windows   layers that see a window keep no more than it
    """

    engine: str
    flag: str = ""
    tensor: int = 1
    pipeline: int = 1
    groups: int = 1
    experts: int = 1
    draft: int = 1
    spread: bool = False
    dtype: str = ""
    kv_dtype: str = ""
    windows: bool = True

    @property
    def gpus(self) -> int:
        """How many GPUs hold one model."""
        return max(self.tensor, self.experts) * self.pipeline

    @property
    def kv_width(self) -> int:
        """Bytes of a number of KV."""
        return 1 if "8" in self.kv_dtype else BYTES.get(self.kv_dtype or self.dtype, HALF)

    def requests(self, batch: int) -> int:
        """How many of so many requests one GPU has."""
        return math.ceil(batch / self.groups) if self.spread else batch


def share(recipe: ResolvedRecipe, by: Deployment) -> Footprint:
    """What one GPU holds: weights as they are stored, KV of its heads, logits of all words."""
    target, draft = sizes_of(recipe)
    if isinstance(target, Unknown) or isinstance(draft, Unknown):
        return footprint(recipe)  # which says what is not known
    weights, width, held = _target_weights(target, by), by.kv_width, _most(target, by)
    beside = _draft_weights(draft, by) if draft is not None else 0
    apart = by.tensor // by.groups
    whole, kept = (
        math.ceil(kept_numbers(target.layers, recipe, apart, windows=w) * held) * width
        for w in (False, True)
    )
    own, narrow = _draft_kv(draft, recipe, by)
    at, rest = positions(recipe), whole + own
    return Footprint(
        weights=weights + beside,
        target_weights=weights,
        kv_a_token=math.ceil(rest / at),
        draft_kv_a_token=math.ceil(own / at),
        kv_a_request=kept + narrow if by.windows else rest,
        draft_kv=narrow if by.windows else own,
        logits=logits(recipe, BYTES.get(by.dtype, HALF)),
        windowed=kept + narrow,
        whole=rest,
    )


def _bytes(sizes: Sizes, by: Deployment) -> tuple[int, int, int]:
    """Bytes of all weights, of the routed experts and of attention, as an engine keeps them."""
    stored = sizes.stored
    if stored is None or (by.dtype and not stored.packed):
        width = BYTES.get(by.dtype, HALF)
        return sizes.total * width, sizes.routed * width, sizes.attends * width
    return stored.total, stored.routed, stored.attends


def _target_weights(sizes: Sizes, by: Deployment) -> int:
    """Of a pipeline the part with most layers; each group has the whole attention."""
    total, routed, attends = _bytes(sizes, by)
    layers = (total - routed - attends) / by.tensor + attends * by.groups / by.tensor
    return math.ceil((layers + routed / by.experts) * _most(sizes, by))


def _most(sizes: Sizes, by: Deployment) -> float:
    """The share of the layers in the part of a pipeline that has most of them."""
    return math.ceil(len(sizes.layers) / by.pipeline) / max(len(sizes.layers), 1)


def _draft_weights(sizes: Sizes, by: Deployment) -> int:
    """Of a draft, which no pipeline cuts."""
    total, routed, _ = _bytes(sizes, by)
    return math.ceil((total - routed) / by.draft + routed / by.experts)


def _draft_kv(draft: Sizes | None, recipe: ResolvedRecipe, by: Deployment) -> tuple[int, int]:
    """Bytes of a request's KV of the draft: of all positions, and of its windows alone."""
    if draft is None:
        return 0, 0
    split, block = max(by.draft // by.groups, 1), draft_kv(recipe)
    whole, kept = (
        kept_numbers(draft.layers, recipe, split, windows=w) * by.kv_width for w in (False, True)
    )
    if block is not None:  # which may be told to keep fewer
        kept = min(kept, math.ceil(whole * block.slots / block.whole))
    return whole, kept
