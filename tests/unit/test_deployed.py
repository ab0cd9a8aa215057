"""What one GPU of an engine holds: weights as stored; layers, experts and heads divided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specflow import stored
from specflow.config_sizes import Sizes, Unknown
from specflow.deployed import Deployment, share
from specflow.engines.layouts import deployment
from specflow.facts import read
from specflow.fit import fits, judged, told
from specflow.load import load
from specflow.machines import MACHINES
from specflow.memory import footprint, positions, size, sizes_apart
from specflow.packs import find
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.sizes import sizes_of_draft, sizes_of_target
from tests.checkpoint_files import CONFIG, LM, Shapes, write, write_tokenizer

GIB = 2**30


def pack(name: str, *overrides: str) -> ResolvedRecipe:
    return resolve(load(find(name), overrides))


def sglang(**values: object) -> Deployment:
    return deployment("sglang", "SGLang", values)


# -- as stored -------------------------------------------------------------------------------------


def test_fp8_weights_are_what_the_published_index_sums_up_to() -> None:
    """model.safetensors.index.json of DeepSeek-V3 says 688,586,727,753 bytes, with the MTP layer.

    It holds embedding and head twice, and its norms and routers in two bytes: 0.1 % is for those.
    """
    recipe = pack("deepseek/v3_nextn")
    target, draft = sizes_of_target(recipe.facts["target"]), sizes_of_draft(recipe.facts)
    again = 2 * 2 * 129280 * 7168
    total = target.stored.total + draft.stored.total + again
    assert total == pytest.approx(688_586_727_753, rel=1e-3)
    assert target.stored.packed


def test_a_header_says_what_is_stored(tmp_path) -> None:
    write_tokenizer(write(tmp_path / "m", LM, **CONFIG))
    facts = read(str(tmp_path / "m"))
    found = sizes_of_target(facts)
    assert found.stored.total == sum(t.end - t.begin for t in facts.tensors.values())
    assert not found.stored.packed


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4}, 4),
        ({"quant_method": "gptq", "bits": 8}, 8),
        ({"quant_method": "mxfp4"}, 4),
        ({"quant_algo": "NVFP4"}, 4),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, 4),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "fp8"}, 0),
        ([], 0),
        (None, 0),
    ],
)
def test_bits_of_packed_weights(config: object, bits: int) -> None:
    assert stored.bits({"quantization_config": config}) == bits


def test_packed_weights_are_counted_where_their_bits_are_said(tmp_path) -> None:
    name = "model.layers.0.mlp.gate_proj.qweight"
    plain = sizes_of_target(read(str(write_tokenizer_of(tmp_path / "a", LM))))
    shapes = {**LM, name: ("I32", [1, 2])}
    four = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    found = sizes_of_target(read(str(write_tokenizer_of(tmp_path / "b", shapes, **four))))
    assert isinstance(found, Sizes)
    assert found.total - plain.total == 2 * 8  # eight to a number of 32 bits
    assert found.stored.total - plain.stored.total == 2 * 4
    assert found.stored.packed
    assert isinstance(
        sizes_of_target(read(str(write_tokenizer_of(tmp_path / "c", shapes)))), Unknown
    )


def write_tokenizer_of(folder: Path, shapes: Shapes, **more: Any) -> Path:
    """A folder of a language model with a tokenizer."""
    write(folder, shapes, **{**CONFIG, **more})
    write_tokenizer(folder)
    return folder


# -- a share ---------------------------------------------------------------------------------------


def test_eight_gpus_hold_deepseek_v3_in_fp8() -> None:
    """The user's case: 688 GB over 8 is 80 GiB a GPU, and one H200 has 140."""
    recipe = pack("deepseek/v3_nextn", "engine.sglang.tp_size=8", "run.dtype=bfloat16")
    eight = sglang(tp_size=8, dtype="bfloat16")
    taken = share(recipe, eight)
    assert 78 * GIB < taken.weights < 82 * GIB
    assert fits(recipe, MACHINES["h200"].memory, eight) == []
    assert fits(recipe, MACHINES["h200"].memory) != []  # specflow's own engine: one machine, bf16
    (finding,) = fits(recipe, MACHINES["h200"].memory, sglang(tp_size=4))
    assert "on each of 4 GPUs" in finding.message
    assert "`engine.sglang.tp_size: 8`" in finding.help
    assert fits(recipe, MACHINES["h200"].memory, sglang(tp_size=8)) == []


def test_latents_are_on_every_gpu_and_heads_are_divided() -> None:
    latent = pack("deepseek/v3_nextn")
    one, eight = (share(latent, sglang(tp_size=n)) for n in (1, 8))
    assert one.kv_a_request == eight.kv_a_request == 62 * 576 * 2 * positions(latent)
    grouped = pack("llama/llama3_1_eagle3_chain")
    one, four, sixteen = (share(grouped, sglang(tp_size=n)) for n in (1, 4, 16))
    assert one.kv_a_request == 4 * four.kv_a_request
    assert one.kv_a_request == 8 * sixteen.kv_a_request  # eight heads go no further


def test_attention_groups_repeat_attention_and_share_requests() -> None:
    recipe = pack("deepseek/v3_nextn", "run.batch_size=64")
    plain, groups = sglang(tp_size=8), sglang(tp_size=8, attn_dp_size=8)
    more = share(recipe, groups).weights - share(recipe, plain).weights
    attends = sizes_of_target(recipe.facts["target"]).stored.attends
    assert more == pytest.approx(attends * 7 / 8, rel=1e-6)
    limit = MACHINES["h200"].memory
    assert (judged(recipe, limit, plain).batch, judged(recipe, limit, groups).batch) == (64, 8)
    assert judged(recipe, limit, groups).largest > 4 * judged(recipe, limit, plain).largest


def test_a_pipeline_and_replicas() -> None:
    recipe = pack("deepseek/v3_nextn")
    one, two = (share(recipe, sglang(tp_size=4, pp_size=n)) for n in (1, 2))
    assert two.target_weights == pytest.approx(one.target_weights * 31 / 61, rel=1e-6)
    vllm = {"tensor_parallel_size": 2, "data_parallel_size": 4}
    spread = deployment("vllm", "vLLM", vllm)
    assert (spread.tensor, spread.experts, spread.gpus) == (2, 8, 8)
    assert deployment("llamacpp", "llama.cpp", {}).gpus == 1


def test_kv_of_one_byte() -> None:
    recipe = pack("llama/llama3_1_eagle3_chain")
    half, byte = (share(recipe, sglang(kv_cache_dtype=d)) for d in ("auto", "fp8_e4m3"))
    assert half.kv_a_request == 2 * byte.kv_a_request


def test_flags_of_odd_types_are_one_gpu() -> None:
    odd = sglang(tp_size="8", pp_size=0, attn_dp_size=None, dtype=3)
    assert odd.gpus == 1
    assert share(pack("pico/eagle3"), replace(odd, dtype="")).weights > 0


# -- windows ---------------------------------------------------------------------------------------


def test_windows_are_kept_by_engines_alone() -> None:
    recipe = pack("gemma4/nextn_31b", "run.max_length=131072", "run.dtype=bfloat16")
    found = footprint(recipe)
    full, near = 10 * 2 * 4 * 512, 50 * 2 * 16 * 256  # numbers of a position, by hand
    at = positions(recipe)
    assert found.kv_a_request == 2 * at * (full + near)
    beyond = at - 131072
    assert found.windowed == 2 * (at * full + (1024 + beyond) * near)
    assert 10 * GIB < found.windowed < 12 * GIB
    (finding,) = fits(recipe, MACHINES["h200"].memory)
    assert "windows alone takes 10.8 GiB" in " ".join(finding.notes)
    engine = judged(recipe, MACHINES["h200"].memory, sglang())
    assert engine.largest == 7
    assert "of all positions it is 110 GiB" in " ".join(told(engine))
    whole = judged(recipe, MACHINES["h200"].memory, sglang(disable_hybrid_swa_memory=True))
    assert whole.largest == 0


# -- what is said ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (132 * 2**10, "132 KiB"),
        (69.8 * 2**10, "69.8 KiB"),
        (1.5 * 2**20, "1.50 MiB"),
        (0.13 * 2**30, "133 MiB"),
        (1271.65 * 2**30, "1272 GiB"),
    ],
)
def test_three_digits_of_a_number_that_is_at_least_one(count: float, text: str) -> None:
    assert size(count) == text


def test_two_sizes_are_told_apart() -> None:
    assert sizes_apart(80 * GIB, 80 * GIB + 2**20) == ("80.000 GiB", "80.001 GiB")


@pytest.mark.parametrize(("name", "gib"), [("h200", 140.4), ("h100", 79.6), ("a100", 80.0)])
def test_memory_is_what_a_device_reports(name: str, gib: float) -> None:
    """Not the data sheet's 141 and 80 GB, which are other numbers in either sense."""
    assert MACHINES[name].memory / GIB == pytest.approx(gib, abs=0.05)


def test_a_yes_says_what_is_left_and_what_was_assumed() -> None:
    found = judged(pack("pico/standalone"), GIB)
    said = " ".join(told(found))
    assert f"the largest `run.batch_size` is {found.largest}" in said
    assert fits(pack("pico/standalone", f"run.batch_size={min(found.largest, 256)}"), GIB) == []
    assert f"{size(GIB - found.total)} are left" in said
    assert "a batch of 1 (`run.batch_size`, default)" in said
    assert "a dtype of float32 (`run.dtype`, derived)" in said
    assert told(judged(pack("pico/standalone"), 10**6)) == []
