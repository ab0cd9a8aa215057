"""What a step costs: sizes by hand, the graph's forwards, the roofline and what fits."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow import config_sizes, formats, layer_sizes, published
from specflow.config_sizes import Sizes, Unknown
from specflow.cost import PASSES, Forward, Networks, networks, step_cost
from specflow.cost import load as load_of
from specflow.facts import INTEGERS, builtins, read
from specflow.graph.ops import OPS
from specflow.load import load, loads
from specflow.machines import MACHINES
from specflow.memory import footprint, positions
from specflow.packs import find, names
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.roofline import estimate, rows
from specflow.sizes import known_config, sizes_of_draft, sizes_of_target
from tests.checkpoint_files import CONFIG, LM, write, write_tokenizer

H200 = MACHINES["h200"]


def pack(name: str, *overrides: str) -> ResolvedRecipe:
    return resolve(load(find(name), overrides))


def whole(config: dict[str, Any], **changed: Any) -> Sizes:
    found = config_sizes.whole("m", {**config, **changed})
    assert isinstance(found, Sizes), found
    return found


# -- sizes -----------------------------------------------------------------------------------------

LLAMA = {
    "model_type": "llama",
    "hidden_size": 100,
    "num_hidden_layers": 3,
    "vocab_size": 1000,
    "num_attention_heads": 10,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 300,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "architecture": "DeepseekV3ForCausalLM",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "vocab_size": 500,
    "num_attention_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}


def test_a_grouped_llama_by_hand() -> None:
    found = whole(LLAMA)
    attention = 100 * 10 * 12 + 2 * 100 * 2 * 12 + 10 * 12 * 100
    layer = attention + 3 * 100 * 300 + 2 * 100
    assert found.body == 3 * layer + 100
    assert found.total == found.body + 2 * 1000 * 100
    assert whole(LLAMA, tie_word_embeddings=True).total == found.total - 1000 * 100
    assert found.kept == 3 * 2 * 2 * 12  # keys and values of two heads
    assert {each.work for each in found.layers} == {2 * 10 * (12 + 12)}
    assert found.active == found.body


def test_a_latent_mixture_by_hand() -> None:
    found = whole(DEEPSEEK)
    queries = 64 * 24 + 24 + 24 * 4 * (8 + 4)
    keys = 64 * (16 + 4) + 16 + 16 * 4 * (8 + 6)
    attention = queries + keys + 4 * 6 * 64
    expert = 3 * 64 * 32
    sparse = attention + 2 * 64 + 8 * 64 + 8 + expert  # router, its bias, the shared expert
    dense = attention + 2 * 64 + 3 * 64 * 128
    assert found.body == dense + 3 * sparse + 64
    assert found.routed == 3 * 8 * expert
    assert found.active == found.body + 3 * 2 * expert
    assert found.kept == 4 * (16 + 4)  # a latent and its rotated key, whatever the heads
    assert {each.work for each in found.layers} == {2 * 4 * (16 + 4 + 16)}


def test_latents_that_are_expanded_keep_every_head() -> None:
    """An architecture whose latents specflow does not read as they are."""
    found = whole(DEEPSEEK, architecture="DeepseekV2ForCausalLM")
    assert found.kept == 4 * 4 * (8 + 4 + 6)


def test_windows_and_shared_layers() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    config = {**LLAMA, "num_hidden_layers": 4, "layer_types": kinds, "sliding_window": 50}
    found = config_sizes.attention("m", {**config, "num_kv_shared_layers": 1})
    assert not isinstance(found, Unknown)
    assert [each.window for each in found] == [50, 0, 50, 0]
    assert [each.keeps for each in found] == [48, 48, 48, 0]
    assert found[3].reads == 48  # of the layer it shares
    assert [found[0].sees(n) for n in (20, 50, 200)] == [20, 50, 50]
    assert found[1].sees(200) == 200


TARGETS = [n for n in builtins() if n.count("-") == 1 or n == "pico-llama-s"]


@pytest.mark.parametrize("name", TARGETS)
def test_a_header_and_its_config_count_the_same(name: str) -> None:
    """For targets of families that are counted by config; of MiMo's, with what its class adds."""
    facts = read(f"builtin:{name}")
    config = {**known_config(facts)}
    by_config, by_header = config_sizes.whole(name, config), sizes_of_target(facts)
    if name == "pico-mimo":
        by_config = config_sizes.whole(name, config | {"swa_num_key_value_heads": 2})
    assert isinstance(by_header, Sizes)
    assert by_header == replace(by_config, hidden=by_header.hidden, stored=by_header.stored)


@pytest.mark.parametrize("name", TARGETS)
def test_a_header_is_summed_whole(name: str) -> None:
    """Target and draft of one file share none of its weights, and leave none out."""
    facts = read(f"builtin:{name}")
    floats = {n: t for n, t in facts.tensors.items() if t.dtype not in INTEGERS}
    held = sum(math.prod(t.shape) for t in floats.values())
    found = sizes_of_target(facts)
    bundled = {"pico-deepseek": "NEXTN", "pico-glm": "NEXTN", "pico-mimo": "MULTI_LAYER_EAGLE"}
    assert isinstance(found, Sizes)
    drafts = 0
    if name in bundled:
        text = f"target: {{model: builtin:{name}}}\ndraft: {{algorithm: {bundled[name]}}}"
        draft = sizes_of_draft(resolve(loads(text)).facts)
        assert isinstance(draft, Sizes)
        drafts = draft.total
    assert found.total + drafts == held


DRAFTED = (
    "frozen_kv",
    "eagle",
    "eagle3",
    "nextn",
    "multi_layer",
    "dflash",
    "dspark",
    "dspark_window",
)


@pytest.mark.parametrize("name", [f"pico/{name}" for name in DRAFTED])
def test_a_draft_by_its_config_is_what_its_header_holds(name: str) -> None:
    """What stands for drafts that are only recorded, on drafts that are here."""
    recipe = pack(name)
    facts, net = recipe.facts, recipe.facts.net
    by_header, target = sizes_of_draft(facts), sizes_of_target(facts["target"])
    source = facts["target" if net.bundled else "draft"]
    config = {**known_config(source), "swa_num_key_value_heads": 2}
    by_config = config_sizes.network(name, config, formats.named(net.format).net, net, target)
    assert isinstance(by_config, Sizes)
    assert isinstance(by_header, Sizes)
    small = 1 + net.block.rank + net.hidden_size if net.block.confidence else 0
    assert by_header.total - by_config.total == small  # a confidence head is not worth recording
    assert replace(by_header, total=0, stored=None) == replace(by_config, total=0)


@pytest.mark.parametrize(
    ("model", "billions", "active"),
    [
        ("deepseek-ai/DeepSeek-V3", 671.0, 36.6),  # its report: 671B, 37B activated
        ("moonshotai/Kimi-K2-Instruct", 1026, 31.8),  # its card: 1T, 32B activated
        ("zai-org/GLM-4.5", 352.8, 32.0),  # 355B with its MTP layer, 32B active
        ("zai-org/GLM-4.5-Air", 106.9, 12.2),  # 106B, 12B active
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03, 7.5),
        ("Qwen/Qwen3-8B", 8.19, 7.57),
        ("Qwen/Qwen3-4B", 4.02, 4.02),
        ("XiaomiMiMo/MiMo-V2-Flash", 309, 15),  # its card: 309B, 15B activated
        ("google/gemma-4-31B-it", 30.7, 30.7),  # its card: 30.7B
        ("google/gemma-4-26B-A4B-it", 25.2, 3.8),  # its card: 25.2B, 3.8B active
    ],
)
def test_recorded_sizes_add_up_to_what_is_published(
    model: str, billions: float, active: float
) -> None:
    found = sizes_of_target(read(model))
    assert isinstance(found, Sizes)
    assert found.total / 1e9 == pytest.approx(billions, rel=0.006)
    assert (found.active + found.head) / 1e9 == pytest.approx(active, rel=0.08)


def test_latent_kv_of_deepseek_v3_is_what_is_published() -> None:
    """70.3 kB a token in two bytes: 61 layers of 512 + 64."""
    assert footprint(pack("deepseek/v3_nextn", "run.dtype=bfloat16")).kv_a_token == 62 * 576 * 2


def test_what_is_not_known_says_why() -> None:
    cost = step_cost(pack("kimi/k3_dspark"))
    assert cost.weight_bytes is cost.step_bytes is cost.memory_bytes is None
    assert cost.unknown == (
        "no rule counts the weights of `moonshotai/Kimi-K3` by its config (kimi_k3)",
    )
    assert cost.draft_kv_bytes == 10_240 * 4  # recorded of the draft itself
    assert (cost.draft_forwards, cost.verified_positions) == (1, (1, 8))


def test_packed_weights_are_not_counted_as_if_they_were_whole(tmp_path) -> None:
    shapes = {**LM, "model.layers.0.mlp.gate_proj.qweight": ("I32", [1, 2, 3])}
    write_tokenizer(write(tmp_path / "m", shapes, **CONFIG))
    found = sizes_of_target(read(str(tmp_path / "m")))
    assert isinstance(found, Unknown)
    assert "packs several weights" in found.reason


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**33), st.floats(), st.text(max_size=3),
    st.lists(st.one_of(st.none(), st.text(max_size=2), st.integers(-1, 3)), max_size=5),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip
KEYS = st.sampled_from(sorted({*LLAMA, *DEEPSEEK, "layer_types", "per_layer_config",
    "mlp_layer_types", "moe_layer_freq", "sliding_window", "num_kv_shared_layers"}))  # fmt: skip


@given(st.sampled_from([LLAMA, DEEPSEEK]), st.dictionaries(KEYS, JUNK, max_size=4))
@settings(deadline=None)
def test_foreign_config_never_crashes(config: dict[str, Any], junk: dict[str, Any]) -> None:
    found = config_sizes.whole("m", {**config, **junk})
    assert isinstance(found, Unknown) or found.total > 0


# -- experts ---------------------------------------------------------------------------------------


def test_expected_experts() -> None:
    """Two of eight: a second token misses each of them with the chance 3/4 again."""
    found = whole(DEEPSEEK)
    assert found.touched(1) == 2 / 8
    assert found.touched(2) == pytest.approx(1 - (6 / 8) ** 2)
    assert found.touched(1000) == pytest.approx(1)
    assert whole(LLAMA).touched(4) == 0


def test_a_wider_verify_reads_more_experts() -> None:
    forward = Forward("target", "verify", 1, 1, 1)
    models = Networks(whole(DEEPSEEK), None, 2, carried=False)
    one, four = (load_of(replace(forward, rows=n, outs=n), models, 1, 0) for n in (1, 4))
    assert one is not None
    assert four is not None
    expert = 3 * 64 * 32 * 3  # of three layers
    assert one.weights == 2 * (models.target.body + 2 * expert + models.target.head)
    assert four.weights - one.weights == pytest.approx(2 * expert * 8 * (0.75 - 0.75**4))


# -- a step ----------------------------------------------------------------------------------------


def test_every_op_that_asks_a_model_is_counted() -> None:
    assert PASSES.keys() == {kind for kind, spec in OPS.items() if spec.domain == "model"}


def counted(name: str, *overrides: str) -> list[tuple[str, str, int, int, int]]:
    return [
        (f.model, f.kind, f.times, f.rows, f.outs)
        for f in step_cost(pack(name, *overrides)).forwards
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pico/plain", [("target", "verify", 1, 1, 1)]),
        ("pico/ngram", [("target", "verify_tree", 1, 12, 12)]),
        (
            "pico/standalone",
            [
                ("draft", "decode", 1, 2, 1),
                ("draft", "decode", 2, 1, 1),
                ("target", "verify", 1, 4, 4),
            ],
        ),
        (
            "pico/eagle3_tree",
            [
                ("draft", "grow_hidden", 2, 3, 3),
                ("target", "verify_tree_taps", 1, 8, 8),
                ("draft", "extend_hidden", 1, 8, 1),
            ],
        ),
        (
            "pico/multi_layer",
            [("target", "verify_hidden", 1, 4, 4), ("draft", "extend_layer", 3, 6, 1)],
        ),
        (
            "pico/eagle3_adaptive",  # counted where it starts, at three steps
            [
                ("draft", "decode_hidden", 2, 1, 1),
                ("target", "verify_taps", 1, 4, 4),
                ("draft", "extend_hidden", 1, 4, 1),
            ],
        ),
    ],
)
def test_the_forwards_of_a_step(name: str, expected: list[tuple[str, str, int, int, int]]) -> None:
    assert counted(name) == expected


def test_other_steps_that_a_launch_may_take() -> None:
    """A look-up verifies fewer where it matches less; acceptance and plans choose among widths."""
    lookup, adaptive, planned = (
        step_cost(pack(f"pico/{n}")) for n in ("ngram", "eagle3_adaptive", "dspark_planned")
    )
    assert [(c.name, c.width) for c in lookup.others] == [("narrow", 4), ("single", 1)]
    assert [c.width for c in adaptive.others] == [8, 6, 2, 1]
    (fewest,) = planned.others
    assert (fewest.width, fewest.fewest) == (1, True)
    verifies = [f for f in fewest.forwards if f.model == "target"]
    assert [f.rows for f in verifies] == [planned.batch]


def test_fewer_positions_never_take_longer() -> None:
    for name in ("pico/ngram", "pico/eagle3_adaptive", "pico/dspark_planned"):
        found = estimate(pack(name), MACHINES["cpu"])
        assert len(found.others) == len(found.cost.others)
        wider = [found.cost.width > other.width for other in found.cost.others]
        assert any(wider)
        assert all(
            seconds <= found.step
            for seconds, narrower in zip(found.others, wider, strict=True)
            if narrower
        )


def test_a_batch_multiplies_rows() -> None:
    one, many = counted("pico/eagle3_tree"), counted("pico/eagle3_tree", "run.batch_size=5")
    assert [(5 * rows, 5 * outs) for *_, rows, outs in one] == [m[3:] for m in many]


def test_a_block_is_denoised_once_and_told_each_guess() -> None:
    kinds = {kind: (times, rows, outs) for _, kind, times, rows, outs in counted("pico/dspark")}
    assert kinds["denoise"] == (1, 7, 0)
    assert kinds["score"] == (1, 0, 7)
    assert kinds["markov"] == (7, 0, 1)
    assert kinds["inject"] == (1, 8, 0)
    assert step_cost(pack("pico/dspark")).draft_forwards == 1


def test_bytes_and_flops_of_plain_decoding_by_hand() -> None:
    """pico-llama: 4 layers of 737,792 weights, a norm, a tied head; 256 numbers kept a layer."""
    cost = step_cost(pack("pico/plain"), context=100)
    read_once = 4 * 737_792 + 256 + 2048 * 256
    assert cost.weight_bytes == 4 * read_once
    assert cost.kv_bytes_a_token == 4 * 256 * 4
    assert cost.step_bytes == 4 * read_once + 100 * 4 * 256 * 4
    assert cost.step_flops == 2 * read_once + 100 * 4 * 2 * 4 * (64 + 64)


def test_a_draft_of_taps_passes_its_projection_only_where_taps_enter() -> None:
    recipe = pack("pico/eagle3")
    models = networks(recipe)
    draft = models.draft
    assert isinstance(draft, Sizes)
    assert draft.entry == 3 * 256 * 256
    step = load_of(Forward("draft", "decode_hidden", 1, 1, 1), models, 1, 0)
    enter = load_of(Forward("draft", "extend_hidden", 1, 1, 1), models, 1, 0)
    assert step is not None
    assert enter is not None
    assert enter.weights - step.weights == 4 * draft.entry


def test_a_draft_without_a_head_reads_the_targets() -> None:
    eagle, eagle3 = networks(pack("pico/eagle")), networks(pack("pico/eagle3"))
    assert eagle.draft.head == eagle.target.head == 2048 * 256
    assert eagle3.draft.head == 1216 * 256


# -- the roofline ----------------------------------------------------------------------------------

KNOWN = [n for n in names() if not step_cost(pack(n)).unknown]


def test_most_packs_are_known() -> None:
    assert len(KNOWN) > len(names()) * 3 / 4
    assert {"deepseek/v3_nextn", "kimi/k2_eagle3", "glm/glm4_5_nextn", "qwen3/dspark"} <= {*KNOWN}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("machine", ["h200", "cpu"])
def test_a_step_takes_no_less_than_plain_decoding(name: str, machine: str) -> None:
    found = estimate(pack(name), MACHINES[machine])
    assert found.break_even is not None
    assert found.break_even >= 1
    assert found.speedup(found.break_even) == pytest.approx(1)


def test_the_roofline_by_hand() -> None:
    """Llama 3.1 8B with its EAGLE3 draft, on an H200 in bfloat16, at 1,024 tokens."""
    found = estimate(pack("llama/llama3_1_eagle3_chain", "run.dtype=bfloat16"), H200, context=1024)
    body = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096) + 4096
    head = 128256 * 4096
    kv = 1024 * 32 * 2 * 8 * 128
    assert found.plain is not None
    assert found.plain.load.bytes == 2 * (body + head + kv)
    assert found.plain.load.flops == 2 * (body + head) + 1024 * 32 * 4 * 32 * 128
    assert found.plain.seconds == pytest.approx(2 * (body + head + kv) / 4.8e12)
    assert found.plain.limit == "bytes"
    assert found.seconds("target") == found.plain.seconds  # four positions are still bytes
    layer = 3 * 4096 * 14336 + 2 * 4096 * (4096 + 1024 + 1024) + 4096 * 4096 + 3 * 4096
    draft = 2 * (layer + 4096 + 32_000 * 4096 + 1024 * 2048)
    extend = draft + 2 * 3 * 4096 * 4096
    assert found.seconds("draft") == pytest.approx((2 * draft + extend) / 4.8e12)
    assert found.break_even == pytest.approx(1.156, abs=0.001)


def test_many_requests_are_limited_by_arithmetic() -> None:
    found = estimate(pack("pico/eagle", "run.batch_size=256"), MACHINES["cpu"], context=1)
    assert found.timed is not None
    assert {t.limit for t in found.timed if t.forward.model == "target"} == {"FLOPs"}


@given(st.floats(1, 1000), st.floats(1, 1000))
@settings(deadline=None)
def test_times_fall_as_bandwidth_and_peak_rise(faster: float, quicker: float) -> None:
    recipe = pack("pico/nextn", "run.batch_size=8")
    slow, cpu = estimate(recipe, MACHINES["cpu"]), MACHINES["cpu"]
    wide = replace(cpu, bandwidth=cpu.bandwidth * faster, single=cpu.single * quicker)
    fast = estimate(recipe, wide)
    assert fast.step is not None
    assert slow.step is not None
    assert slow.step / max(faster, quicker) * 0.999999 <= fast.step <= slow.step


def test_more_context_takes_longer_and_a_window_bounds_it() -> None:
    steps = [estimate(pack("pico/frozen_kv"), MACHINES["cpu"], context=n).step for n in (0, 200)]
    assert steps[0] < steps[1]
    near, far = (step_cost(pack("pico/frozen_kv"), context=n).step_bytes for n in (128, 1000))
    assert near is not None
    assert far is not None
    full = 2 * 2 * 64 * 4  # only the two layers that see all read more past their window
    of_draft = 3 * 2 * 64 * 4  # and the assistant's one such layer, in three forwards
    assert far - near == (1000 - 128) * (full + of_draft)


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWN)
def test_memory_is_made_of_what_is_listed(name: str) -> None:
    recipe = pack(name, "run.batch_size=3")
    found, cost = footprint(recipe), step_cost(recipe)
    assert cost.memory_bytes == found.total(3) == found.weights + 3 * found.a_request
    assert found.kv_a_request - found.draft_kv == (
        found.kv_a_token - found.draft_kv_a_token
    ) * positions(recipe)


def test_a_window_keeps_less() -> None:
    ring, whole_kv = (
        footprint(pack("pico/dspark_window", *over)) for over in ([], ["draft.window_size=0"])
    )
    assert ring.draft_kv < whole_kv.draft_kv
    assert ring.kv_a_token == whole_kv.kv_a_token


@pytest.mark.parametrize("name", ["pico/eagle3", "pico/dspark_window", "deepseek/v3_nextn"])
@given(room=st.integers(-(2**24), 2**36))
@settings(deadline=None)
def test_the_largest_batch_is_the_largest(name: str, room: int) -> None:
    found = FOOTPRINTS[name]
    memory = found.weights + room
    batch = found.largest_batch(memory)
    assert batch == 0 or found.total(batch) <= memory
    assert found.total(batch + 1) > memory


FOOTPRINTS = {
    n: footprint(pack(n)) for n in ("pico/eagle3", "pico/dspark_window", "deepseek/v3_nextn")
}


def test_drawing_keeps_a_law_beside_the_logits() -> None:
    greedy, drawn = footprint(pack("pico/eagle3")), footprint(pack("pico/eagle3_sampled"))
    assert greedy.logits == 4 * 2048 * 4
    assert drawn.logits == 2 * greedy.logits


# -- what is shown ---------------------------------------------------------------------------------


def told(recipe: ResolvedRecipe, lengths: Sequence[float | None] = (None,)) -> list[str]:
    return [row.name for length in lengths for row in rows(estimate(recipe, H200), length)]


@pytest.mark.parametrize("name", names())
def test_every_recipe_can_be_told(name: str) -> None:
    said = told(pack(name))
    assert len(set(said)) == len(said) or "unknown" in said
    assert all(row.formula for row in rows(estimate(pack(name), H200)))


def test_speedups_go_by_the_accept_length_that_is_given() -> None:
    assert [n for n in told(pack("pico/eagle3"), [2.25]) if n.startswith("speedup")] == [
        "speedup at accept length 2.25"
    ]
    assert sum(n.startswith("speedup") for n in told(pack("pico/eagle3"))) == 3


def test_what_is_recorded_is_read() -> None:
    """A key that is spelled as no reader spells it would count as unsaid."""
    recorded = json.loads(published.FILE.read_text()).values()
    keys = {key for each in recorded for key in each.get("sizes", {})}
    source = "".join(Path(m.__file__).read_text() for m in (layer_sizes, config_sizes))
    assert {key for key in keys if f'"{key}"' not in source} == set()
    assert len(keys) > 20
