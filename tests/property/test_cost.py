"""Laws of the estimate: whatever resolves can be told, and foreign checkpoints never crash it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.config_sizes import Sizes, Unknown
from specflow.facts import Facts, read
from specflow.fit import fits
from specflow.machines import MACHINES
from specflow.roofline import estimate, rows
from specflow.sizes import sizes_of_draft, sizes_of_target
from specflow.stages import DRAFTS
from tests.checkpoint_files import CONFIG, DFLASH, DFLASH_CONFIG, DSPARK, EAGLE, EAGLE3, LM, write
from tests.property.test_resolve import FITTING, LIKELY, attempt, recipes

TREES = {"topk": st.integers(1, 4), "block_size": st.integers(2, 16), "window_size": st.just(8)}


@st.composite
def sound(draw: st.DrawFn) -> dict[str, Any]:
    """A recipe that likely resolves, of any draft and verify shape."""
    name = draw(st.sampled_from(DRAFTS.names()))
    stage = DRAFTS[name]
    shape = draw(st.sampled_from(sorted(stage.shapes)))
    fields = stage.fields.model_fields
    known = {n: s for n, s in (LIKELY | TREES).items() if n in fields and n != "model"}
    chosen = (
        draw(st.lists(st.sampled_from(sorted(known)), max_size=2, unique=True)) if known else []
    )
    target, model = FITTING.get(name, ("builtin:pico-llama", "builtin:pico-llama-s"))
    made = {n: draw(known[n]) for n in chosen} | {"algorithm": name}
    if "model" in fields:
        made["model"] = model
    return {
        "target": {"model": target},
        "draft": made,
        "verify": {"shape": shape},
        "run": {"batch_size": draw(st.integers(1, 64)), "max_length": draw(st.integers(2, 900))},
        "sampling": {"temperature": draw(st.sampled_from([0.0, 0.7]))},
    }


@given(st.one_of(sound(), recipes()), st.sampled_from(sorted(MACHINES)), st.integers(0, 2**44))
@settings(max_examples=150, deadline=None)
def test_whatever_resolves_can_be_told(made: dict[str, Any], machine: str, memory: int) -> None:
    resolved = attempt(made)
    if resolved is None:
        return
    found = estimate(resolved, MACHINES[machine])
    told = rows(found)
    assert all(row.formula for row in told)
    least, most = found.cost.verified_positions
    assert 1 <= least <= most == resolved["verify.num_draft_tokens"]
    if found.break_even is not None:
        assert found.break_even >= 1 - 1e-9
        assert found.cost.step_bytes > 0
        assert found.cost.step_flops > 0
    total = found.cost.memory_bytes
    if total is not None:
        assert bool(fits(resolved, memory)) == (total > memory)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_some_drawn_recipes_are_estimated(data: st.DataObject) -> None:
    """The law above says nothing if every drawn recipe is refused: this one never is."""
    made = data.draw(sound())
    made["draft"] = {"algorithm": "NGRAM"}
    made["verify"] = {"shape": "tree"}
    made["target"] = {"model": "builtin:pico-llama"}
    resolved = attempt(made)
    assert resolved is not None
    assert estimate(resolved, MACHINES["h200"]).break_even is not None


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2**30), st.text(max_size=3),
    st.lists(st.one_of(st.none(), st.just("sliding_attention"), st.integers(-1, 3)), max_size=5),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip
KEYS = st.sampled_from([
    "model_type", "head_dim", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "layer_types", "kv_lora_rank", "sliding_window", "num_kv_shared_layers", "n_routed_experts",
    "num_experts_per_tok", "per_layer_config", "architectures", "tie_word_embeddings",
])  # fmt: skip
SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)
NAMES = st.sampled_from([
    "model.layers.0.self_attn.k_proj.weight", "model.layers.9.self_attn.q_proj.weight",
    "model.layers.0.mlp.experts.0.up_proj.weight", "layers.0.self_attn.q_proj.weight",
    "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", "midlayer.self_attn.o_proj.weight",
    "model.vision_tower.x.weight", "lm_head.weight", "fc.weight", "d2t", "odd",
])  # fmt: skip


@pytest.mark.parametrize(
    "draft", [EAGLE, EAGLE3, DFLASH, DSPARK], ids=["eagle", "eagle3", "dflash", "dspark"]
)
@given(
    said=st.dictionaries(KEYS, JUNK, max_size=4),
    tensors=st.dictionaries(NAMES, SHAPES, max_size=3),
    both=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_foreign_checkpoints_are_counted_or_unknown(
    tmp_path_factory: pytest.TempPathFactory,
    draft: dict[str, Any],
    said: dict[str, Any],
    tensors: dict[str, Any],
    both: bool,
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    target = read(str(write(folder / "t", {**LM, **tensors}, **{**CONFIG, **said})))
    odd = {**draft, **tensors} if both else draft
    config = DFLASH_CONFIG if draft in (DFLASH, DSPARK) else {"hidden_size": 8}
    other = read(str(write(folder / "d", odd, **{**config, **said})))
    for found in (
        sizes_of_target(target),
        sizes_of_draft(Facts({"target": target, "draft": other})),
    ):
        assert isinstance(found, Sizes | Unknown)
        if isinstance(found, Unknown):
            assert found.reason
        else:
            assert found.total >= 0
            assert found.touched(3) <= 1
