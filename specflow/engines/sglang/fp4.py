"""Step 6 for KV of four bits (O13)."""

from __future__ import annotations

from specflow.engines.outcome import Run
from specflow.engines.sglang.start import Given, backends


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
