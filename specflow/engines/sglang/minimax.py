"""Step 5 for MiniMax-M3: a page for its sparse attention, and few drafts beside FP4 (K28)."""

from __future__ import annotations

from specflow.engines.outcome import Run
from specflow.engines.sglang.env import ragged_mode
from specflow.engines.sglang.names import DRAFT_BACKEND, NAME
from specflow.engines.sglang.start import Given, no_backend
from specflow.engines.sglang.tables import MINIMAX_M3

FP4 = "minimax_m3_nvfp4"


def minimax_m3(run: Run, given: Given) -> None:
    """K28, 3.6, 3.8: what M3 runs on, by quantization and machine."""
    if given.target.architecture not in MINIMAX_M3:
        return
    asked = run.asked.get("quantization")
    method = _method(given) if asked is None else run["quantization"]
    if asked is None and method is not None:
        run.set("quantization", method, "K28", "what the checkpoint says")
    if method == FP4:
        _fp4(run, given)
        return
    machine = given.machine
    silent = no_backend(run)
    backend = run["attention_backend"]
    if silent and machine.rocm:
        backend = "triton"
    elif silent and machine.sm100:
        fp8 = run["kv_cache_dtype"] == "fp8_e4m3"
        fp8 = fp8 and not given.env.on("SGLANG_DISABLE_M3_FP8_ATTN_GEMM")
        backend = "trtllm_mha" if fp8 else "fa4"
    elif silent and machine.hopper:
        backend = "fa3"
    run.set("attention_backend", backend, "3.6", f"what MiniMax-M3 runs on with {machine.name}")
    paged = (machine.sm100 and backend in ("fa4", "trtllm_mha")) or (
        machine.hopper and backend == "fa3"
    )
    if run["page_size"] is None and paged:
        run.set("page_size", 128, "3.6", "the page of MiniMax-M3's sparse attention")
    _runner(run, given, method)


def _runner(run: Run, given: Given, method: str | None) -> None:
    field, machine = "moe_runner_backend", given.machine
    picks = {
        ("mxfp8", "rocm"): "triton",
        ("mxfp8", "sm100"): "deep_gemm",
        ("modelopt_mixed", "sm100"): "flashinfer_trtllm_routed",
    }
    kind = "rocm" if machine.rocm else "sm100" if machine.sm100 else ""
    if run[field] == "auto" and (method or "", kind) in picks:
        run.set(field, picks[method or "", kind], "3.9", f"experts of {method} here")
    if method is None and run[field] in ("auto", "deep_gemm"):
        run.set(field, "triton", "3.9", "experts of MiniMax-M3 in bfloat16")


def _method(given: Given) -> str | None:
    said = given.target.nested("quantization_config")
    method = said.get("quant_method")
    packed = (
        str(said.get("moe_quant_algo", "")).upper() == "NVFP4"
        and said.get("moe_quant_format") == "nvfp4-pack-quantized"
    )
    if method == "mxfp8" and packed:
        return FP4
    return method if isinstance(method, str) else None


def _fp4(run: Run, given: Given) -> None:
    name = run[NAME]
    if name not in (None, "DSPARK", "DFLASH"):
        run.refuse("K28", f"MiniMax-M3 in FP4 drafts by DSPARK or DFLASH, not by {name}")
    if name is not None:
        _fp4_draft(run, given, name)
    _fp4_serving(run, given)


def _fp4_serving(run: Run, given: Given) -> None:
    machine = given.machine
    if run["page_size"] not in (None, 128):
        run.refuse("K28", f"MiniMax-M3 in FP4 has a page of 128, not {run['page_size']}")
    run.set("page_size", 128, "K28", "the page of MiniMax-M3 in FP4")
    if not machine.blackwell:
        if run["moe_runner_backend"] == "auto":
            run.set("moe_runner_backend", "marlin", "3.9", "FP4 experts before Blackwell")
        if no_backend(run):
            run.set("attention_backend", "fa3", "K28", "MiniMax-M3 before Blackwell")
        return
    if run["moe_a2a_backend"] not in ("none", "megamoe"):
        run.refuse("K28", "MiniMax-M3 in FP4 takes --moe-a2a-backend none or megamoe")
    if run["moe_runner_backend"] != "flashinfer_trtllm_routed":
        run.set("moe_a2a_backend", "megamoe", "K28", "experts of MiniMax-M3 in FP4")
        if run["moe_runner_backend"] == "auto":
            run.set("moe_runner_backend", "deep_gemm", "3.9", "experts of MiniMax-M3 in FP4")
    if run["kv_cache_dtype"] not in ("auto", "fp8_e4m3"):
        run.refuse("K28", "MiniMax-M3 in FP4 keeps KV as fp8_e4m3")
    run.set("kv_cache_dtype", "fp8_e4m3", "K28", "the KV of MiniMax-M3 in FP4")
    if no_backend(run):
        run.set("attention_backend", "trtllm_mha", "K28", "MiniMax-M3 in FP4 on Blackwell")


def _fp4_draft(run: Run, given: Given, name: str) -> None:
    arch = given.target.architecture
    wrong = {
        f"needs the target with its vision tower, not {arch}": arch != MINIMAX_M3[1],
        "needs Blackwell": not given.machine.blackwell,
        "needs static verify": ragged_mode(run, given.env) != "static",
        "does not go with a pipeline": run["pp_size"] != 1,
        "does not go with PD": name == "DFLASH" and run["disaggregation_mode"] != "null",
    }
    run.refuse_first("K28", wrong, f"{name} on MiniMax-M3 in FP4 ")
    if run["speculative_draft_kv_cache_dtype"] in (None, "auto"):
        run.set("speculative_draft_kv_cache_dtype", "bf16", "3.8", "a draft of MiniMax-M3 in FP4")
    if name == "DSPARK" and run[DRAFT_BACKEND] is None:
        run.set(DRAFT_BACKEND, "trtllm_mha", "3.8", "a DSPARK draft of MiniMax-M3 in FP4")
