"""Step 5, the rest: attention backends that an architecture picks or is held to (3.6, 3.8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specflow.engines.outcome import Run
from specflow.engines.sglang.backends import default_backend
from specflow.engines.sglang.model import Config
from specflow.engines.sglang.start import Given, backends, no_backend
from specflow.engines.sglang.state import extra_buffer
from specflow.engines.sglang.tables import (
    DEEPSEEK_FAMILY,
    EXAONE,
    EXAONE_BACKENDS,
    GEMMA4,
    GEMMA4_BACKENDS,
    GPT_OSS_BACKENDS,
    LFM2,
    LLAMA4,
    LLAMA4_BACKENDS,
    MIMO_V2,
    NEMOTRON_H,
    PLAIN_HYBRID,
    QWEN_HYBRID,
    QWEN_MOE,
    Machine,
)


def _first(machine: Machine, sm100: str, sm90: str, rocm: str, xpu: str, other: str) -> str:
    """A backend by machine."""
    if machine.sm100:
        return sm100
    if machine.hopper:
        return sm90
    if machine.rocm:
        return rocm
    return xpu if machine.kind == "xpu" else other


def deepseek(run: Run, given: Given) -> None:
    """The DeepSeek family: sparse attention has a backend and a page, the others one on SM100."""
    target, machine = given.target, given.machine
    if target.architecture not in DEEPSEEK_FAMILY:
        return
    if not target.dsa:
        if machine.sm100 and no_backend(run):
            run.set("attention_backend", "trtllm_mla", "3.6", "DeepSeek's attention on SM100")
        return
    if run["dcp_size"] > 1 and run["speculative_eagle_topk"] not in (None, 1):
        run.refuse("P14", "sparse attention under DCP drafts chains: topk 1")
    if no_backend(run):
        run.set("attention_backend", "dsa", "3.6", "DeepSeek's sparse attention")
    if machine.kind == "xpu":
        run.set("page_size", 128, "3.6", "the page of sparse attention on XPU")
    elif machine.kind != "npu":
        page = 1 if machine.rocm else 64 * max(target.count("index_kpool"), 1)
        run.set("page_size", page, "3.6", "the page of sparse attention")
    if machine.kind != "npu":
        _sparse_kv(run, given)


def _sparse_kv(run: Run, given: Given) -> None:
    dtype, newest = run["kv_cache_dtype"], given.machine.sm >= 100 and not given.target.sinks
    if given.machine.kind == "xpu":
        if dtype == "auto":
            run.set("kv_cache_dtype", "bfloat16", "3.6", "the KV of sparse attention here")
        return
    if given.target.text("learnable_sink") and dtype not in ("auto", "bf16", "bfloat16"):
        run.refuse("3.6", f"learned sinks of sparse attention keep KV as bfloat16, not {dtype}")
    if dtype == "auto":
        dtype = "fp8_e4m3" if newest else "bfloat16"
    dtype = "bfloat16" if dtype == "bf16" else dtype
    if dtype not in ("bfloat16", "fp8_e4m3"):
        run.crash("3.6", f"sparse attention keeps KV as bfloat16 or fp8_e4m3, not {dtype}")
    run.set("kv_cache_dtype", dtype, "3.6", "the KV of sparse attention here")


def moe_runner(run: Run, given: Given) -> None:
    """3.9: the MoE runner of DeepSeek and Qwen targets on SM100, which their drafts inherit."""
    arch, machine = given.target.architecture, given.machine
    open_, alone = run["moe_runner_backend"] == "auto", run["moe_a2a_backend"] == "none"
    if open_ and arch in NEMOTRON_H and given.target.get("quantization_config") is None:
        name = "flashinfer_trtllm" if machine.sm100 and alone else "flashinfer_cutlass"
        run.set("moe_runner_backend", name, "3.9", f"{arch} on {machine.name}")
        return
    if not (open_ and alone):
        return
    newer = machine.hopper or machine.blackwell
    if arch == "DeepseekV4ForCausalLM" and newer and run["device"] == "cuda":
        run.set("moe_runner_backend", "flashinfer_mxfp4", "3.9", f"the FP4 experts of {arch}")
    others = ("Glm4MoeForCausalLM", "Cohere2MoeForCausalLM")
    family = arch in DEEPSEEK_FAMILY or arch in (*QWEN_MOE, *others)
    if not family or not machine.sm100 or arch.startswith("Longcat"):
        return
    method = run["quantization"] or given.target.nested("quantization_config").get("quant_method")
    if method in (None, "fp8", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed", "modelopt"):
        run.set("moe_runner_backend", "flashinfer_trtllm", "3.9", f"{arch} on SM100")


def own_backend(run: Run, given: Given) -> None:
    """Architectures that pick a backend where nobody names one."""
    arch, machine = given.target.architecture, given.machine
    for pick in PICKS:
        silent = no_backend(run) if pick.all_open else run["attention_backend"] is None
        name = pick.backend(machine) if silent and pick.fits(given.target) else ""
        if name and not (arch in LLAMA4 and run["device"] == "cpu"):
            run.set("attention_backend", name, "3.6", f"what {arch} runs on with {machine.name}")


@dataclass(frozen=True)
class Pick:
    """Targets and the backend they pick; no backend is the engine's own choice.

    all_open  they pick only where the flags of single phases are open too
    """

    fits: Callable[[Config], bool]
    backend: Callable[[Machine], str]
    all_open: bool = False


def _step_backend(machine: Machine) -> str:
    if machine.blackwell:
        return "fa4"
    return "fa3" if machine.hopper else ""


def _swa_backend(machine: Machine) -> str:
    if machine.sm100:
        return "trtllm_mha"
    return "fa3" if machine.sm >= 80 else "triton"


def _on_sm100(name: str, other: str = "") -> Callable[[Machine], str]:
    return lambda machine: name if machine.sm100 else other


def _whole_range(machine: Machine) -> str:
    return _first(machine, "trtllm_mha", "fa3", "aiter", "intel_xpu", "triton")


def _inkling_backend(machine: Machine) -> str:
    return "fa4" if machine.hopper or machine.sm100 else "triton"


def _is(*names: str) -> Callable[[Config], bool]:
    return lambda target: target.architecture in names


def _patterned(target: Config) -> bool:
    """Exaone with a window; the engine's reader of its configs knows a pattern where none is."""
    default = 4 if str(target.get("model_type")).startswith("exaone") else None
    pattern = target.get("sliding_window_pattern", default)
    return target.architecture in EXAONE and pattern is not None


def _granite(target: Config) -> bool:
    return target.architecture == "GraniteMoeHybridForCausalLM" and target.hybrid_mamba


PICKS: tuple[Pick, ...] = (
    Pick(lambda target: target.step, _step_backend, all_open=True),
    Pick(_is(*MIMO_V2), _on_sm100("fa4"), all_open=True),
    Pick(_is("GptOssForCausalLM"), _whole_range, all_open=True),
    Pick(_is(*GEMMA4), _on_sm100("trtllm_mha", "triton")),
    Pick(_is(*LLAMA4), _whole_range),
    Pick(_patterned, _swa_backend),
    Pick(_is("Olmo2ForCausalLM"), _swa_backend),
    Pick(_is(*LFM2), _on_sm100("flashinfer")),
    Pick(_is(*PLAIN_HYBRID), _on_sm100("triton")),
    Pick(_granite, _on_sm100("flashinfer")),
    Pick(_is("InklingForConditionalGeneration"), _inkling_backend, all_open=True),
)


def qwen_hybrid(run: Run, given: Given) -> None:
    """Qwen's recurrent targets on SM100: TRT-LLM and a page of 64 only for chains."""
    arch = given.target.architecture
    if arch not in QWEN_HYBRID or not given.machine.sm100:
        return
    if run["attention_backend"] is not None:
        return
    plain = run["speculative_algorithm"] is None
    snapshots = extra_buffer(run) or run["disable_radix_cache"]
    fits = default_backend(run, given) == "trtllm_mha" and (snapshots or not plain)
    name = "trtllm_mha" if fits else "triton"
    run.set("attention_backend", name, "3.6", f"what {arch} runs on with SM100")
    run.set("page_size", 64 if fits else 1, "3.6", f"the page of {name} here")


def nemotron(run: Run, given: Given) -> None:
    """3.8: Nemotron-H on Blackwell picks backends of target and draft by topk."""
    arch, machine = given.target.architecture, given.machine
    if arch not in NEMOTRON_H or not machine.blackwell or not no_backend(run):
        return
    name = (run["speculative_algorithm"] or "").upper()
    if not name:
        if machine.sm100:
            run.set("attention_backend", "trtllm_mha", "3.8", f"{arch} on SM100")
        return
    chain = machine.sm100 and run["speculative_eagle_topk"] in (None, 1)
    run.set("attention_backend", "trtllm_mha" if chain else "triton", "3.8", f"{arch} on Blackwell")
    if chain and run["page_size"] is None:
        run.set("page_size", 64, "3.8", f"{arch} on SM100")
    if chain and run["mamba_radix_cache_strategy"] == "auto":
        run.set("mamba_radix_cache_strategy", "extra_buffer", "3.8", f"{arch} on SM100")
    drafts = ("EAGLE", "NEXTN", "DSPARK") if chain else ("EAGLE", "NEXTN", "DFLASH", "DSPARK")
    field = "speculative_draft_attention_backend"
    if run[field] is None and name in drafts:
        run.set(field, "trtllm_mha" if chain else "flashinfer", "3.8", f"a draft of {arch}")


HELD: tuple[tuple[Callable[[Config], bool], tuple[str, ...]], ...] = (
    (_is("GptOssForCausalLM"), GPT_OSS_BACKENDS),
    (_is(*GEMMA4), GEMMA4_BACKENDS),
    (_is(*LLAMA4), LLAMA4_BACKENDS),
    (_patterned, EXAONE_BACKENDS),
)
KEPT_OFF: tuple[tuple[Callable[[Config], bool], str], ...] = (
    (_is("Olmo2ForCausalLM"), "flashinfer"),
    (_is(*LFM2), "triton"),
)


def held_to_backends(run: Run, given: Given) -> None:
    """Architectures that run on some backends only."""
    arch, common = given.target.architecture, run["attention_backend"]
    phases = backends(run) if arch in (*GEMMA4, "GptOssForCausalLM") else (common,)
    if arch in LLAMA4 and run["device"] == "cpu":
        return
    for fits, allowed in HELD:
        if fits(given.target) and not set(phases) <= set(allowed):
            run.crash("3.6", f"{arch} runs on {', '.join(allowed)}")
    for fits, name in KEPT_OFF:
        if fits(given.target) and common == name:
            run.crash("3.6", f"{arch} does not run on {name}")
