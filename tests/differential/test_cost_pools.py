"""What `explain --cost` counts from headers beside what is loaded and allocated."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from specflow.load import load
from specflow.lower import lower
from specflow.memory import footprint, positions
from specflow.models.block_draft import BlockDrafter
from specflow.models.drafters import DRAFTERS, LanguageModelDrafter
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.net_drafters import HiddenDrafter, LayersDrafter
from specflow.packs import find
from specflow.pools import KVPool
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.sizes import sizes_of_target

BATCH = 2
# Recipes of one target each, and every kind of draft; MLA, MoE, GQA, sliding windows.
RECIPES = (
    "pico/ngram",
    "pico/standalone",
    "pico/eagle",
    "pico/eagle3_tree",
    "pico/nextn",
    "pico/multi_layer",
    "pico/frozen_kv",
    "pico/dflash",
    "pico/dspark",
    "pico/dspark_window",
)
OTHERS = ("builtin:pico-glm", "builtin:pico-kimi", "builtin:pico-qwen3")


def resolved(name: str) -> ResolvedRecipe:
    overrides = [f"run.batch_size={BATCH}", "run.max_length=200"]
    return resolve(load(find(name), overrides))


@cache
def target(model: str) -> LanguageModel:
    torch.set_num_threads(1)
    return LanguageModel.load(open_model(model), device="cpu", dtype="float32")


def allocated(pool: KVPool) -> int:
    """Bytes of a pool but for its spare rows."""
    spare = sum(b.shape[0] * b.shape[2] * b.itemsize for b in pool._blocks.values())
    return pool.nbytes - spare


def own_pool(drafter: object) -> KVPool | None:
    """The pool that a drafter allocates for itself, where it has one."""
    if isinstance(drafter, BlockDrafter):
        return drafter.ring.pool
    if isinstance(drafter, LanguageModelDrafter | HiddenDrafter | LayersDrafter):
        return drafter.pool
    return None


@pytest.mark.parametrize("name", RECIPES)
def test_kv_is_what_the_pools_take(name: str) -> None:
    recipe = resolved(name)
    model, said = target(recipe.target.model), footprint(recipe)
    pool = model.pool(BATCH, positions(recipe))
    drafter = DRAFTERS[lower(recipe).drafter](recipe, model, pool)
    own = own_pool(drafter)
    of_draft = allocated(own) if own is not None else 0
    assert said.unknown == ()
    assert BATCH * said.draft_kv == of_draft
    assert BATCH * said.kv_a_request == allocated(pool) + of_draft
    if name == "pico/dspark_window":  # its ring is smaller than the text, so that it counts
        assert own is not None
        assert own.length < pool.length


@pytest.mark.parametrize("model", OTHERS)
def test_kv_of_other_targets(model: str) -> None:
    loaded = target(model)
    recipe = resolve(load(find("pico/plain"), [f"target.model={model}", "run.max_length=24"]))
    taken = allocated(loaded.pool(1, positions(recipe)))
    assert footprint(recipe).kv_a_request == taken


@pytest.mark.parametrize("model", ["builtin:pico-llama", "builtin:pico-gemma4", *OTHERS])
def test_weights_are_what_a_stock_model_has(model: str) -> None:
    """Every parameter once, a tied head too; buffers that a checkpoint holds count too."""
    from transformers import AutoModelForCausalLM

    recipe = resolve(load(find("pico/plain"), [f"target.model={model}"]))
    stock = AutoModelForCausalLM.from_pretrained(recipe.facts["target"].folder)
    held = sum(p.numel() for p in stock.parameters())
    held += sum(b.numel() for n, b in stock.named_buffers() if n in stock.state_dict())
    assert sizes_of_target(recipe.facts["target"]).total == held
