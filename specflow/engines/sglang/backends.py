"""Step 6: attention backends, page sizes, recurrent state, FP4 KV.

The backend is picked while topk may still be open, so an open topk counts as a chain (section 0).
"""

from __future__ import annotations

from specflow.engines.outcome import Kind, Run
from specflow.engines.sglang.names import ATTENTION
from specflow.engines.sglang.start import Given, backends
from specflow.engines.sglang.tables import (
    DETERMINISTIC_BACKENDS,
    DETERMINISTIC_MLA,
    DETERMINISTIC_MLA_BACKENDS,
)


def default_backend(run: Run, given: Given) -> str:
    """The backend where nobody names one (3.6)."""
    if given.target.mla:
        return _mla_backend(run, given)
    machine = given.machine
    topk, page = run["speculative_eagle_topk"], run["page_size"]
    chain = topk is None or (topk == 1 and page in (None, 1))
    if machine.hopper and chain:
        return "fa3"
    name = run["speculative_algorithm"]
    sure = name is None or topk is not None or name.upper() == "DFLASH"
    if machine.sm100 and chain and sure:
        return "fa4" if given.target.uneven_kv else "trtllm_mha"
    if machine.rocm:
        return "aiter"
    return "flashinfer" if machine.flashinfer and not given.target.sinks else "triton"


def _mla_backend(run: Run, given: Given) -> str:
    machine = given.machine
    if machine.hopper:
        return "fa3"
    if machine.sm100:
        return "flashinfer"
    if machine.rocm:
        heads = given.target.count("num_key_value_heads") or given.target.count(
            "num_attention_heads"
        )
        return "aiter" if heads // max(run["tp_size"], 1) in (16, 128) else "triton"
    return "triton"


def deterministic(run: Run, given: Given) -> None:
    """Deterministic inference holds the backend to a few."""
    if run["rl_on_policy_target"] is not None:
        because = "--rl-on-policy-target needs it"
        run.set("enable_deterministic_inference", True, "3.6", because)
    if not run["enable_deterministic_inference"]:
        return
    latent = given.target.architecture in DETERMINISTIC_MLA
    name = run["attention_backend"]
    if name is None:
        newer = given.machine.sm100 or given.machine.sm120
        name = ("triton" if latent else "flashinfer") if newer else "fa3"
        run.set("attention_backend", name, "3.6", "the backend of deterministic inference here")
    elif name not in DETERMINISTIC_BACKENDS:
        run.refuse("3.6", f"deterministic inference does not run on {name}")
    if latent and name not in DETERMINISTIC_MLA_BACKENDS:
        run.refuse("3.6", f"deterministic inference of this target does not run on {name}")
    if latent and name == "fa4" and not given.machine.sm100:
        run.refuse("3.6", "deterministic inference of this target needs SM100 for fa4")
    if name not in DETERMINISTIC_MLA_BACKENDS:
        run.set("disable_radix_cache", True, "3.6", f"{name} is not deterministic with it")


def attention(run: Run, given: Given) -> None:
    """The backend, and the pages it can have."""
    prefill = run["prefill_attention_backend"]
    if prefill is not None and prefill == run["decode_attention_backend"]:
        run.set("attention_backend", prefill, "3.6", "both phases name it")
    elif run["attention_backend"] is None:
        said = f"the default on {given.machine.name}"
        if run["speculative_algorithm"] is not None and run["speculative_eagle_topk"] is None:
            said += ", picked while topk is open"
        run.set("attention_backend", default_backend(run, given), "3.6", said)
    if run["attention_backend"] == "flex_attention" and run["speculative_algorithm"] is not None:
        run.crash("A4", "flex_attention does not speculate")
    _snap_pages(run)
    _latent_checks(run, given)
    _trtllm_mha_machine(run, given)
    if run["attention_backend"] == "fa3" and run["kv_cache_dtype"] == "fp8_e5m2":
        run.set("attention_backend", "triton", "3.6", "fa3 does not read fp8_e5m2")
    _fa4_page(run, given)
    _device_fallback(run, given)


def _snap_pages(run: Run) -> None:
    """3.6: backends with few page sizes move the page to one of them."""
    common, prefill, decode = (run[field] for field in ATTENTION)
    two, three = {common, decode}, {common, prefill, decode}
    four = three | {run["speculative_draft_attention_backend"]}
    rows = (
        ("flashmla", two, (64,)),
        ("trtllm_mla", two, (32, 64)),
        ("cutedsl_mla", three, (32, 64)),
        ("trtllm_mha", four, (16, 32, 64, 128)),
        ("hpc_ops", three, (64,)),
    )
    for name, where, sizes in rows:
        if name in where and run["page_size"] not in sizes:
            pages = ", ".join(map(str, sizes))
            run.set("page_size", 64, "3.6", f"{name} has pages of {pages}")


def _latent_checks(run: Run, given: Given) -> None:
    common, prefill, decode = (run[field] for field in ATTENTION)
    dtype = run["kv_cache_dtype"]
    if "trtllm_mla" in (common, decode):
        if not given.machine.blackwell:
            run.refuse("3.6", "trtllm_mla runs on Blackwell alone")
        if dtype not in ("fp8_e4m3", "bf16", "auto"):
            run.refuse("3.6", f"trtllm_mla does not read KV of {dtype}")
    if "cutedsl_mla" not in (common, prefill, decode):
        return
    if prefill == "cutedsl_mla":
        run.crash("3.6", "cutedsl_mla only decodes")
    if not given.machine.sm100:
        run.refuse("3.6", "cutedsl_mla runs on SM100 alone")
    if dtype not in ("fp8_e4m3", "bf16", "bfloat16", "auto"):
        run.refuse("3.6", f"cutedsl_mla does not read KV of {dtype}")
    if prefill is None:
        run.set("prefill_attention_backend", "trtllm_mla", "3.6", "cutedsl_mla only decodes")


def _trtllm_mha_machine(run: Run, given: Given) -> None:
    prefill, decode = backends(run)
    if "trtllm_mha" not in (prefill, decode):
        return
    machine = given.machine
    if not (machine.hopper or machine.sm100 or machine.sm120):
        run.refuse("3.6", "trtllm_mha runs on Hopper and Blackwell alone")
    if prefill != "trtllm_mha":
        return
    if machine.sm120 and run["kv_cache_dtype"] == "fp8_e4m3":
        run.refuse("3.6", "trtllm_mha on SM120 does not prefill KV of fp8_e4m3")
    if not machine.sm100 and run["attn_cp_size"] > 1:
        run.refuse("3.6", "trtllm_mha prefills under context parallelism on SM100 alone")


def _fa4_page(run: Run, given: Given) -> None:
    """fa4 on SM100 has a page of 128, unless topk says that a tree is drafted (A13)."""
    if "fa4" not in {run[field] for field in ATTENTION}:
        return
    if given.target.mla or not given.machine.sm100 or (run["speculative_eagle_topk"] or 0) > 1:
        return
    run.set("page_size", 128, "3.6", "fa4 on SM100 has a page of 128")


def _device_fallback(run: Run, given: Given) -> None:
    kind = run["device"]
    if run["attention_backend"] == "intel_amx" and kind == "cpu":
        run.set("attention_backend", "torch_native", "3.6", "this CPU is taken to have no AMX")
    if run["attention_backend"] == "intel_xpu" and kind == "xpu":
        run.set("attention_backend", "triton", "3.6", "this XPU is taken to have no XMX")
    name = run["speculative_algorithm"]
    if run["dcp_size"] > 1 and given.machine.kind == "xpu":
        if set(backends(run)) != {"intel_xpu"}:
            run.refuse("P12", "DCP on an XPU runs on intel_xpu alone")
        if name is not None:
            run.refuse("P12", "an XPU does not speculate under DCP")
    if "intel_xpu" in backends(run):
        sizes = (16, 32, 64, 128) if given.target.mla else (64, 128)
        if run["page_size"] not in sizes:
            run.set("page_size", 128, "3.6", "intel_xpu has pages of 64 and 128")


def page_default(run: Run, given: Given) -> None:
    """A page of one token, where nobody says otherwise."""
    if run["page_size"] is None:
        layout = given.env.values.get("SGLANG_AITER_KV_CACHE_LAYOUT", "").lower()
        page = 64 if given.machine.rocm and layout == "vectorized_5d" else 1
        run.set("page_size", page, "3.6", "the default page")
    elif run["page_size"] < 1:
        run.note("3.6", Kind.UNCHECKED, f"--page-size {run['page_size']} is no size")
