"""Step 6: attention backends, page sizes, recurrent state, FP4 KV.

The backend is picked while topk may still be open, so an open topk counts as a chain (section 0).
"""

from __future__ import annotations

from specflow.engines.outcome import Kind, Run
from specflow.engines.sglang_env import PP_SPEC, ragged_mode
from specflow.engines.sglang_start import Given, backends
from specflow.engines.sglang_tables import (
    DETERMINISTIC_BACKENDS,
    DETERMINISTIC_MLA,
    DETERMINISTIC_MLA_BACKENDS,
    EXTRA_BUFFER,
    KIMI_HYBRID,
)

_ATTENTION = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")


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


def extra_buffer(run: Run) -> bool:
    """Whether snapshots of recurrent state have a buffer of their own."""
    return run["disable_radix_cache"] is False and run["mamba_radix_cache_strategy"] in (
        "extra_buffer",
        "extra_buffer_lazy",
    )


def recurrent_state(run: Run, given: Given) -> None:
    """O15, O16: how the prefix cache keeps recurrent state, and what must hold for it."""
    field = "mamba_radix_cache_strategy"
    if not given.target.hybrid_mamba or run["disable_radix_cache"]:
        if extra_buffer(run) and given.target.architecture != "InklingForConditionalGeneration":
            arch = given.target.architecture or "this target"
            run.refuse(
                "O16", f"--mamba-radix-cache-strategy {run[field]}: {arch} has no such state"
            )
        return
    able = _extra_buffer_fits(run, given)
    if run[field] == "auto":
        wanted = not run["disable_overlap_schedule"] or (run["page_size"] or 1) > 1
        if wanted and able:
            run.set(field, "extra_buffer", "O16", "overlap or pages need snapshots of state")
        else:
            run.set(field, "no_buffer", "O16", "snapshots of state are not to be had here")
            run.set("disable_overlap_schedule", True, "O16", "no snapshots, no overlap")
    if extra_buffer(run):
        _with_buffer(run, given, able=able)
    else:
        _without_buffer(run)


def _extra_buffer_fits(run: Run, given: Given) -> bool:
    return (
        given.target.architecture in EXTRA_BUFFER
        and given.machine.kind != "xpu"
        and run["linear_attn_backend"] == "triton"
    )


def _with_buffer(run: Run, given: Given, *, able: bool) -> None:
    arch, interval = given.target.architecture, run["mamba_track_interval"]
    if not able:
        run.crash("O16", f"{arch} has no extra buffer for its state here; use no_buffer")
    if given.machine.kind == "cpu":
        run.crash("O16", "this device keeps no snapshots of recurrent state")
    lazy = run["mamba_radix_cache_strategy"] == "extra_buffer_lazy"
    if lazy and run["disaggregation_mode"] != "null":
        run.crash("O16", "extra_buffer_lazy does not go with PD")
    width, page = run["speculative_num_draft_tokens"], run["page_size"]
    if width is not None and interval < width:
        run.crash(
            "O15",
            f"{width} draft tokens do not fit --mamba-track-interval {interval} "
            "(an assertion without a message)",
        )
    if page == 0:
        run.crash("O15", "a page of no tokens", "ZeroDivisionError")
    if page is not None and interval % page:
        run.crash("O15", f"--mamba-track-interval {interval} is no multiple of the page, {page}")


def _without_buffer(run: Run) -> None:
    wrong = {
        "recurrent state without a buffer needs --page-size 1": run["page_size"] not in (1, None),
        "recurrent state without a buffer needs --disable-overlap-schedule": not run[
            "disable_overlap_schedule"
        ],
        "recurrent state without a buffer does not go with trtllm_mha": run["attention_backend"]
        == "trtllm_mha",
    }
    for reason, holds in wrong.items():
        if holds:
            run.crash("O16", reason)


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


def fp4_prefill(run: Run, given: Given) -> None:
    """3.8: FP4 KV decodes on TRT-LLM and prefills there or on FlashInfer."""
    asked = run["prefill_kv_cache_dequant_dtype"]
    if run["kv_cache_dtype"] != "nvfp4":
        if asked != "auto":
            run.refuse("O13", "--prefill-kv-cache-dequant-dtype goes with --kv-cache-dtype nvfp4")
        return
    by_dtype = {"fp8_e4m3": "flashinfer", "nvfp4": "trtllm_mha"}
    if asked == "auto":
        named = run["prefill_attention_backend"] or run["attention_backend"]
        fits = [dtype for dtype, backend in by_dtype.items() if backend == named]
        if named is not None and not fits:
            run.refuse("O13", f"FP4 KV does not prefill on {named}")
        asked = fits[0] if fits else ("nvfp4" if given.machine.sm100 else "fp8_e4m3")
    if asked == "nvfp4" and not given.machine.sm100:
        run.refuse("O13", "FP4 KV prefills natively on SM100 alone")
    prefill, decode = run["prefill_attention_backend"], run["decode_attention_backend"]
    if prefill not in (None, by_dtype[asked]):
        run.refuse("O13", f"FP4 KV prefilled as {asked} runs on {by_dtype[asked]}, not {prefill}")
    if decode not in (None, "trtllm_mha"):
        run.refuse("O13", f"FP4 KV decodes on trtllm_mha, not {decode}")
    run.set("prefill_attention_backend", by_dtype[asked], "O13", "prefill of FP4 KV")
    run.set("decode_attention_backend", "trtllm_mha", "O13", "decode of FP4 KV")


def attention(run: Run, given: Given) -> None:
    """The backend, and the pages it can have."""
    prefill = run["prefill_attention_backend"]
    if prefill is not None and prefill == run["decode_attention_backend"]:
        run.set("attention_backend", prefill, "3.6", "both phases name it")
    elif run["attention_backend"] is None:
        said = f"the default on {given.machine.kind}"
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
    common, prefill, decode = (run[field] for field in _ATTENTION)
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
    common, prefill, decode = (run[field] for field in _ATTENTION)
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
    if "fa4" not in {run[field] for field in _ATTENTION}:
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


def linear_attention(run: Run, given: Given) -> None:
    """A21, A22: kernels of linear attention, and verify by replay."""
    machine, dtype = given.machine, run["mamba_ssm_dtype"]
    field = "linear_attn_decode_backend"
    bf16 = dtype == "bfloat16"
    if run[field] is None and run["linear_attn_backend"] != "helion" and machine.sm100 and bf16:
        kimi = given.target.architecture in KIMI_HYBRID
        name = "triton" if kimi else "flashinfer"
        run.set(field, name, "3.8", "bfloat16 state on SM100")
    decode = run[field] or run["linear_attn_backend"]
    if decode == "flashkda":
        if run[field] == "flashkda":
            run.refuse("A22", "flashkda only prefills")
        decode = "triton"
        run.set(field, decode, "A22", "flashkda only prefills")
    newest = machine.cuda and machine.sm >= 100
    if decode == "flashinfer" and not bf16 and newest:
        run.refuse("A22", "linear attention on flashinfer needs --mamba-ssm-dtype bfloat16 here")
    _verify_kernel(run, given, decode, newest=newest)
    if run["enable_linear_replayssm"]:
        _replay(run, decode)
    if run["enable_linear_replayssm_spec"]:
        _replay_verify(run, given, decode)


def _verify_kernel(run: Run, given: Given, decode: str, *, newest: bool) -> None:
    field = "linear_attn_verify_backend"
    verify = run[field]
    if verify is None and decode == "flashinfer":
        verify = "flashinfer"
    kda = given.target.architecture in KIMI_HYBRID
    if verify == "flashinfer" and kda and given.env.on(PP_SPEC) and run["pp_size"] > 1:
        verify = "triton"
        run.set(field, verify, "A22", f"{PP_SPEC} does not go with flashinfer here")
    if verify == "flashinfer" and run["mamba_ssm_dtype"] != "bfloat16" and newest:
        run.refuse("A22", "verify on flashinfer needs --mamba-ssm-dtype bfloat16 here")


def _replay(run: Run, decode: str) -> None:
    wrong = {
        f"--enable-linear-replayssm decodes on triton or helion, not {decode}": decode
        not in ("triton", "helion"),
        "--enable-linear-replayssm needs --mamba-radix-cache-strategy no_buffer": extra_buffer(run),
        "--enable-linear-replayssm does not go with PD": run["disaggregation_mode"] != "null",
        "--linear-replayssm-cache-len is below 1": run["linear_replayssm_cache_len"] < 1,
    }
    for reason, holds in wrong.items():
        if holds:
            run.refuse("A21", reason)


def _replay_verify(run: Run, given: Given, decode: str) -> None:
    topk, flag = run["speculative_eagle_topk"], "--enable-linear-replayssm-spec"
    if topk not in (None, 1):
        run.refuse("A21", f"{flag} verifies chains: topk 1, not {topk}")
    if decode not in ("triton", "flashinfer"):
        run.refuse("A21", f"{flag} decodes on triton or flashinfer, not {decode}")
    if ragged_mode(run, given.env) != "static":
        name = (run["speculative_algorithm"] or "").upper()
        verify = run["linear_attn_verify_backend"]
        if name not in ("DSPARK", "DFLASH") or verify not in ("triton", "nv_cutedsl"):
            run.refuse("A21", f"{flag} needs static verify here")
    if run["disaggregation_mode"] == "prefill":
        run.refuse("A21", f"{flag} does nothing on a prefill server")
    if run["enable_linear_replayssm"]:
        run.refuse("A21", f"{flag} and --enable-linear-replayssm exclude each other")
    if run["mamba_ssm_dtype"] is None:
        run.set("mamba_ssm_dtype", "float32", "A21", "replay keeps its state so")


def fp4_kv(run: Run, given: Given) -> None:
    """O13: FP4 KV on SM100's TRT-LLM takes few drafts."""
    dtype, machine = run["kv_cache_dtype"], given.machine
    if dtype not in ("nvfp4", "fp4_mx_block16") or not machine.cuda:
        return
    if dtype == "nvfp4" and not (machine.sm100 or machine.sm120):
        run.refuse("O13", "FP4 KV needs SM100 or SM120", "RuntimeError")
    if run["enable_unified_memory"]:
        run.refuse("O13", "FP4 KV does not go with --enable-unified-memory")
    prefill, decode = backends(run)
    if dtype != "nvfp4" or not machine.sm100 or "trtllm_mha" not in (prefill, decode):
        return
    name = run["speculative_algorithm"]
    _fp4_draft(run, name.upper() if name is not None else "")
    mixed = prefill == "flashinfer" and decode == "trtllm_mha"
    if mixed and name is not None:
        run.set("speculative_attention_mode", "decode", "3.8", "FP4 KV is verified on trtllm_mha")
    if run["disaggregation_mode"] != "null":
        run.refuse("O13", "FP4 KV on trtllm_mha does not go with PD")
    if run["enable_hierarchical_cache"] or run["enable_lmcache"]:
        run.refuse("O13", "FP4 KV on trtllm_mha does not go with a cache on the host")


def _fp4_draft(run: Run, name: str) -> None:
    if not name:
        return
    if name not in ("EAGLE", "EAGLE3", "NEXTN", "NGRAM"):
        run.refuse("O13", f"FP4 KV on trtllm_mha does not go with {name}")
    breadth = run["speculative_ngram_max_bfs_breadth"]
    if name == "NGRAM":
        if breadth != 1:
            run.refuse("O13", f"FP4 KV on trtllm_mha takes NGRAM chains, not breadth {breadth}")
        return
    field = "speculative_draft_attention_backend"
    if run[field] not in (None, "trtllm_mha"):
        run.refuse("O13", f"a draft with FP4 KV runs on trtllm_mha, not {run[field]}")
    run.set(field, "trtllm_mha", "3.8", "a draft with FP4 KV")


def page_default(run: Run, given: Given) -> None:
    """A page of one token, where nobody says otherwise."""
    if run["page_size"] is None:
        layout = given.env.values.get("SGLANG_AITER_KV_CACHE_LAYOUT", "").lower()
        page = 64 if given.machine.rocm and layout == "vectorized_5d" else 1
        run.set("page_size", page, "3.6", "the default page")
    elif run["page_size"] < 1:
        run.note("3.6", Kind.UNCHECKED, f"--page-size {run['page_size']} is no size")
