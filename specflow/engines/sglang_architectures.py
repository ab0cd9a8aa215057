"""Step 5, the rest: attention backends that an architecture picks or is held to (3.6, 3.8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from specflow.engines.outcome import Run
from specflow.engines.sglang_backends import default_backend, extra_buffer
from specflow.engines.sglang_model import Config
from specflow.engines.sglang_start import Given, backends, no_backend
from specflow.engines.sglang_tables import (
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
    QWEN_HYBRID,
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


def own_backend(run: Run, given: Given) -> None:
    """Architectures that pick a backend where nobody names one."""
    arch, machine = given.target.architecture, given.machine
    name = _picked(arch, given, run)
    if name:
        run.set("attention_backend", name, "3.6", f"what {arch} runs on with {machine.kind}")


def _picked(arch: str, given: Given, run: Run) -> str:
    machine, unset = given.machine, no_backend(run)
    common_unset = run["attention_backend"] is None
    if given.target.step and unset and (machine.blackwell or machine.hopper):
        return "fa4" if machine.blackwell else "fa3"
    if arch in MIMO_V2 and unset and machine.sm100:
        return "fa4"
    if arch == "GptOssForCausalLM" and unset:
        return _first(machine, "trtllm_mha", "fa3", "aiter", "intel_xpu", "triton")
    if arch in GEMMA4 and common_unset:
        return "trtllm_mha" if machine.sm100 else "triton"
    if arch in LLAMA4 and common_unset and run["device"] != "cpu":
        return _first(machine, "trtllm_mha", "fa3", "aiter", "intel_xpu", "triton")
    swa = arch in EXAONE and given.target.get("sliding_window_pattern") is not None
    if (swa or arch == "Olmo2ForCausalLM") and common_unset:
        if machine.sm100:
            return "trtllm_mha"
        return "fa3" if machine.sm >= 80 else "triton"
    if arch in LFM2 and common_unset and machine.sm100:
        return "flashinfer"
    return _inkling(arch, machine, unset=unset)


def _inkling(arch: str, machine: Machine, *, unset: bool) -> str:
    if arch != "InklingForConditionalGeneration" or not unset:
        return ""
    return "fa4" if machine.hopper or machine.sm100 else "triton"


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


def held_to_backends(run: Run, given: Given) -> None:
    """Architectures that run on some backends only."""
    arch, (prefill, decode) = given.target.architecture, backends(run)
    rows: dict[str, tuple[Callable[[Config], bool], Iterable[str | None]]] = {
        "gpt_oss": (lambda t: t.architecture == "GptOssForCausalLM", GPT_OSS_BACKENDS),
        "gemma4": (lambda t: t.architecture in GEMMA4, GEMMA4_BACKENDS),
    }
    for fits, allowed in rows.values():
        if fits(given.target) and not {prefill, decode} <= set(allowed):
            run.crash("3.6", f"{arch} runs on {', '.join(map(str, allowed))}")
    common = run["attention_backend"]
    if arch in LLAMA4 and run["device"] != "cpu" and common not in LLAMA4_BACKENDS:
        run.crash("3.6", f"{arch} runs on {', '.join(LLAMA4_BACKENDS)}, not {common}")
    if arch in EXAONE and given.target.get("sliding_window_pattern") is not None:
        if common not in EXAONE_BACKENDS:
            run.crash("3.6", f"{arch} runs on {', '.join(EXAONE_BACKENDS)}, not {common}")
    if arch == "Olmo2ForCausalLM" and common == "flashinfer":
        run.crash("3.6", f"{arch} does not run on flashinfer")
    if arch in LFM2 and common == "triton":
        run.crash("3.6", f"{arch} does not run on triton")
