"""Experts of a MoE target: their all-to-all, and the tokens it must hold (P18, P19)."""

from __future__ import annotations

from math import isfinite

from specflow.engines.outcome import Run
from specflow.engines.sglang.names import NAME, TOKENS, TOPK
from specflow.engines.sglang.start import Given, attention_dp
from specflow.engines.sglang.tables import (
    A2A_RUNNERS,
    CAPACITY,
    DEEPSEEK_FAMILY,
    MXFP8_RUNNERS,
    NO_MEGA_MOE_FALLBACK,
)

PREFILLS = "the prefill chunk"


def mega_moe(run: Run, given: Given) -> None:
    """P19, in part: where MegaMoE runs at all."""
    if run["moe_a2a_backend"] != "megamoe":
        return
    machine = given.machine
    if run["enable_two_batch_overlap"] or run["enable_single_batch_overlap"]:
        run.refuse("P19", "MegaMoE does not go with two-batch or single-batch overlap")
    if not (machine.hopper or machine.sm100 or machine.rocm):
        run.refuse("P19", "MegaMoE runs on Hopper, SM100 and ROCm alone")


def draft_of_fp4(run: Run, given: Given) -> None:
    """3.9: on ROCm the MTP layer of an FP4 DeepSeek is no FP4, and runs on kernels of its own."""
    runner, a2a = "speculative_moe_runner_backend", "speculative_moe_a2a_backend"
    if (
        not given.machine.rocm
        or given.target.architecture not in DEEPSEEK_FAMILY
        or run["quantization"] != "modelopt_fp4"
        or run[NAME] != "EAGLE"
        or (run[runner] is not None and run[a2a] is not None)
    ):
        return
    because = "the MTP layer of an FP4 checkpoint on ROCm"
    if not given.env.on("SGLANG_NVFP4_CKPT_FP8_NEXTN_MOE"):
        run.set(runner, "triton", "3.9", because)
        run.set(a2a, "none", "3.9", because)
        return
    if run["ep_size"] == 1:
        run.refuse("3.9", "SGLANG_NVFP4_CKPT_FP8_NEXTN_MOE needs --ep-size above 1")
    run.set(runner, "deep_gemm", "3.9", because)
    run.set(a2a, "deepep", "3.9", because)


def quantized_runner(run: Run, given: Given) -> None:
    """3.9: runners that a quantization has no choice of."""
    field, machine, method = "moe_runner_backend", given.machine, run["quantization"]
    trtllm = ("flashinfer_trtllm", "flashinfer_trtllm_routed")
    if method == "mxfp8" and machine.kind != "npu":
        kept = (*MXFP8_RUNNERS, "triton") if machine.rocm else MXFP8_RUNNERS
        if run[field] not in kept:
            run.set(field, "flashinfer_trtllm", "3.9", "experts in mxfp8")
    if method == "modelopt_fp4" and machine.sm120 and run[field] == "auto":
        run.set(field, "flashinfer_cutlass", "3.9", "experts in FP4 on SM120")
    if method == "nvfp4_online":
        if not machine.sm100:
            run.refuse("3.9", "--quantization nvfp4_online needs SM100")
        if run[field] not in ("auto", *trtllm, "flashinfer_cutedsl"):
            run.refuse("3.9", f"experts of nvfp4_online do not run on {run[field]}")
        if run[field] == "auto":
            run.set(field, "flashinfer_trtllm", "3.9", "experts of nvfp4_online")


def all_to_all(run: Run, given: Given) -> None:
    """Where each all-to-all of experts runs (4.11), by its own conditions."""
    name, runner = run["moe_a2a_backend"], run["moe_runner_backend"]
    if name != "none":
        run.set("ep_size", run["tp_size"], "4.11", f"{name} spreads experts over all ranks")
    chunk, prefills = run["chunked_prefill_size"], run["disaggregation_mode"] != "decode"
    if name == "flashinfer":
        muse = given.target.architecture == "MuseSparkForConditionalGeneration"
        wide = muse and run["enable_layernorm_sp"] and run["tp_size"] in (4, 8)
        if not wide and not (attention_dp(run) and run["attn_dp_size"] == run["tp_size"]):
            run.crash("4.11", "the all-to-all of FlashInfer needs --attn-dp-size of --tp-size")
        if runner not in A2A_RUNNERS:
            run.crash("4.11", f"the all-to-all of FlashInfer does not run on {runner}")
    capacity = _capacity(given, name)
    if name == "mori" and prefills and chunk > capacity:
        run.crash("P19", f"MoRI holds {capacity} tokens a rank, not {PREFILLS} of {chunk}")
    if name != "pplx":
        return
    if run["attn_dp_size"] < 2:
        run.crash("4.11", "pplx needs --attn-dp-size of at least 2")
    if runner not in ("deep_gemm", "auto"):
        run.crash("4.11", f"pplx runs on deep_gemm, not on {runner}")
    run.set("moe_runner_backend", "deep_gemm", "3.9", "what pplx runs on")
    most = max(chunk, run["cuda_graph_max_bs_decode"] or 0)
    if prefills and chunk > 0 and most > capacity:
        run.crash("P19", f"pplx holds {capacity} tokens a rank, not {most}")


def _capacity(given: Given, name: str) -> int:
    """Tokens a rank's buffer holds; a variable says so, or its default."""
    variable, default = CAPACITY.get(name, ("", 0))
    said = given.env.number(variable, default)
    return int(said) if isfinite(said) else default


def budgets(run: Run, given: Given) -> None:
    """P19: what a step verifies, and what a chunk prefills, fit into the buffers of experts."""
    name = run["moe_a2a_backend"]
    chunk = run["chunked_prefill_size"]
    if name == "flashinfer":
        if run["disaggregation_mode"] != "decode" and chunk <= 0:
            run.refuse("P19", "the all-to-all of FlashInfer needs --chunked-prefill-size above 0")
        _must_hold(run, name, _verified(run, given), max(_capacity(given, name), chunk, 0))
    if name != "megamoe":
        return
    _flydsl(run, given)
    said = given.target.nested("quantization_config").get("quant_algo", "")
    fp4 = run["quantization"] in ("modelopt_fp4", "minimax_m3_nvfp4") or "FP4" in str(said)
    if given.machine.rocm or not (fp4 or given.target.architecture in NO_MEGA_MOE_FALLBACK):
        return
    capacity = _capacity(given, name)
    if run["disaggregation_mode"] != "prefill":
        _must_hold(run, name, _verified(run, given), capacity)
    if run["disaggregation_mode"] == "decode":
        return
    if chunk <= 0:
        run.refuse("P19", "MegaMoE needs --chunked-prefill-size above 0")
    _must_hold(run, name, chunk, capacity)


def _must_hold(run: Run, name: str, tokens: int, capacity: int) -> None:
    if tokens > capacity:
        variable = CAPACITY[name][0]
        run.refuse("P19", f"{name} holds {capacity} tokens a rank, not {tokens}: raise {variable}")


def _verified(run: Run, given: Given) -> int:
    """Tokens the largest captured step verifies on one rank."""
    small = given.machine.memory < 90 * 1024 and run["tp_size"] < 4
    graph = run["cuda_graph_max_bs_decode"] or (256 if small else 512)
    if run["max_running_requests"] is not None:
        graph = min(graph, max(run["max_running_requests"] // run["attn_dp_size"], 1))
    return int(graph * ((run[TOKENS] or 1) if run[NAME] is not None else 1))


def _flydsl(run: Run, given: Given) -> None:
    """P19 on ROCm: decode has a buffer of its own where a variable says so."""
    env, variable = given.env, "SGLANG_AMD_FLYDSL_MEGA_MOE_DECODE_MTPR"
    size = env.number(variable, 0)
    on = given.machine.rocm and env.on("SGLANG_AMD_USE_FLYDSL_MEGA_MOE") and size > 0
    if not on or run["disaggregation_mode"] == "prefill":
        return
    if size >= env.number("SGLANG_AMD_FLYDSL_MEGA_MOE_MTPR", 8192):
        return
    if run["attn_cp_size"] > 1:
        run.refuse("P19", f"{variable} does not go with context parallelism")
    requests = run["max_running_requests"]
    if requests is None:
        run.refuse("P19", f"{variable} needs --max-running-requests")
    if attention_dp(run):
        requests //= run["attn_dp_size"]
    rows = max(run[TOKENS] or 1, run[TOPK] or 1) if run[NAME] is not None else 1
    if requests * rows > size:
        run.refuse("P19", f"{variable} is {size:g}, fewer than the {requests * rows} of a step")


def draft_all_to_all(run: Run, given: Given) -> None:  # noqa: ARG001
    """P18."""
    name, own = run[NAME], run["speculative_moe_a2a_backend"]
    inherited = run["moe_a2a_backend"] if name not in (None, "NGRAM") else None
    if "deepep_v2" in ((own,) if own is not None else (inherited,)):
        run.refuse("P18", "a draft does not run on deepep_v2")
