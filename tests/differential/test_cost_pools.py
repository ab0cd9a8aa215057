"""What `explain --cost` counts from headers beside what is loaded and allocated."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specflow import config_sizes
from specflow.config_sizes import Sizes
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
    recipe = resolve(load(find("pico/plain"), [f"target.model={model}"]))
    stock = AutoModelForCausalLM.from_pretrained(recipe.facts["target"].folder)
    held = sum(p.numel() for p in stock.parameters())
    held += sum(b.numel() for n, b in stock.named_buffers() if n in stock.state_dict())
    assert sizes_of_target(recipe.facts["target"]).total == held


COMMON = {"hidden_size": 48, "num_hidden_layers": 4, "vocab_size": 96, "num_attention_heads": 6,
          "num_key_value_heads": 2, "intermediate_size": 80, "head_dim": 10}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
ROUTED = {**EXPERTS, "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 2}
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 8}
SWA = {"layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
       "swa_num_key_value_heads": 4, "v_head_dim": 6, "n_routed_experts": 6,
       "mlp_layer_types": ["dense", *["sparse"] * 3], "sliding_window": 8}  # fmt: skip
GEMMA = {"layer_types": ["sliding_attention", "full_attention"] * 2, "global_head_dim": 20,
         "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False,
         "vocab_size_per_layer_input": 64}  # fmt: skip
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
    ("mistral", {}),
    ("qwen3", {"attention_bias": True}),
    ("deepseek_v3", {**ROUTED, **LATENT, "q_lora_rank": 14, "attention_bias": True}),
    ("mimo_v2_flash", {**EXPERTS, **SWA}),
    ("qwen2", {"head_dim": 8}),
    ("qwen3", {}),
    ("qwen3_moe", {**EXPERTS, "num_experts": 6, "mlp_only_layers": [1], "decoder_sparse_step": 1}),
    ("qwen3_moe", {**EXPERTS, "num_experts": 6, "decoder_sparse_step": 2}),
    ("deepseek_v3", {**ROUTED, **LATENT, "q_lora_rank": 14}),
    ("deepseek_v3", {**ROUTED, **LATENT, "q_lora_rank": None}),
    ("glm4_moe", {**ROUTED, "attention_bias": True, "use_qk_norm": True}),
    ("glm4_moe", {**ROUTED, "use_qk_norm": False}),
    ("gemma4_text", {**GEMMA, "hidden_size_per_layer_input": 16, "use_double_wide_mlp": True}),
    (
        "gemma4_text",
        {
            **GEMMA,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
    ),
    (
        "gemma4_text",
        {**GEMMA, **EXPERTS, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2},
    ),
]


@pytest.mark.parametrize(("family", "more"), FAMILIES, ids=lambda each: str(each)[:30])
def test_a_family_by_its_config_is_the_stock_model(family: str, more: dict[str, Any]) -> None:
    """Weights that are counted without a header, on models of a size that nobody publishes."""
    config = AutoConfig.for_model(family, **{**COMMON, **more})
    with torch.device("meta"):
        stock = AutoModelForCausalLM.from_config(config)
    said = {**config.to_dict(), **COMMON, **more, "model_type": family}
    found = config_sizes.whole(family, said)
    assert isinstance(found, Sizes), found
    held = {n: p.numel() for n, p in stock.state_dict().items() if "rotary" not in n}
    if config.tie_word_embeddings:
        held.pop("lm_head.weight")
    assert found.total == sum(held.values())
    assert found.routed == sum(n for name, n in held.items() if ".experts." in name)
