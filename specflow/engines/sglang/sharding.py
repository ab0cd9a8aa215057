"""Ranks that share a sequence: context parallelism, and KV that lies on several of them."""

from __future__ import annotations

from specflow.engines.outcome import Run
from specflow.engines.sglang.names import DRAFT, NAME, TOPK
from specflow.engines.sglang.start import Given, attention_dp, backends
from specflow.engines.sglang.tables import DEEPSEEK_FAMILY, MIMO_V2

SHARED = {  # targets whose context ranks are their tensor ranks, and how they cut a sequence
    "Glm5NextForConditionalGeneration": "interleave",
    "Qwen4ExpForConditionalGeneration": "zigzag",
}
GLM5 = "Glm5NextForConditionalGeneration"
Wrong = dict[str, bool]


def deepseek_cp(run: Run, given: Given) -> None:
    """4.11: prefill of a DeepSeek target in parallel has all ranks that attention DP leaves."""
    target, kind = given.target, given.machine.kind
    if target.architecture not in DEEPSEEK_FAMILY or not run["enable_prefill_cp"]:
        return
    if target.architecture == "HYV4ForCausalLM":
        run.refuse("4.11", "HYV4 does not prefill in parallel")
    if target.dsa and run["disaggregation_mode"] == "decode":
        run.crash("4.11", "context parallelism of sparse attention is for prefill servers")
    if not target.mla or (target.dsa and kind in ("npu", "xpu")):
        return
    rows, because = run["attn_dp_size"], "context parallelism of DeepSeek targets"
    if rows > 1 and run["dp_size"] > 1:
        run.crash("4.11", "--attn-dp-size and --dp-size above 1 exclude each other")
    rows *= run["dp_size"]
    if target.dsa and run["tp_size"] > 8:
        run.crash("4.11", f"{because} has at most 8 ranks")
    if rows == 0:
        run.crash("4.11", "no attention-DP groups", "ZeroDivisionError")
    run.set("attn_dp_size", rows, "4.11", because)
    run.set("dp_size", 1, "4.11", because)
    cut = run["cp_strategy"]
    if not (target.dsa and cut == "interleave" and run["attn_cp_size"] > 1):
        run.set("attn_cp_size", run["tp_size"] // rows, "4.11", because)
    if not target.dsa or cut == "zigzag":
        run.set("moe_a2a_backend", "deepep", "4.11", because)
        run.set("ep_size", run["tp_size"], "4.11", because)


def context_parallel(run: Run, given: Given) -> None:
    """Widths that divide the ranks (4.11), and targets that cut a sequence one way (P15)."""
    width, ranks, arch = run["attn_cp_size"], run["tp_size"], given.target.architecture
    on, cut = run["enable_prefill_cp"], run["cp_strategy"]
    wrong = {
        f"prefills in parallel on ROCm by DeepSeek-V4 alone, not {arch}": given.machine.rocm
        and arch != "DeepseekV4ForCausalLM",
        "of DeepSeek-V3.2 needs --cp-strategy interleave": arch == "DeepseekV32ForCausalLM"
        and cut == "zigzag",
        "of MiMo-V2 needs --cp-strategy zigzag": arch in MIMO_V2 and cut != "zigzag",
    }
    if on:
        run.refuse_first("4.11", wrong, "--enable-prefill-cp ")
    if on and width > 1 and arch in SHARED:
        _shared_ranks(run, arch)
        for key in ("linear_num_key_heads", "linear_num_value_heads"):
            if given.target.count(key) % max(ranks, 1):
                run.refuse("P15", f"{key} is no multiple of --tp-size {ranks}")
    if on and cut is None:
        run.refuse("4.11", "--enable-prefill-cp needs --cp-strategy")
    if width > 1 and (ranks % width or ranks % (run["attn_dp_size"] * width)):
        run.crash("4.11", f"--attn-cp-size {width} and attention DP do not divide tp_size {ranks}")


def _shared_ranks(run: Run, arch: str) -> None:
    """P15."""
    name, topk = run[NAME], run[TOPK]
    mtp = name is not None and name.upper() in ("EAGLE", "NEXTN")
    own = run[DRAFT] in (None, run["model_path"])
    pd = run["disaggregation_mode"]
    wrong: Wrong = {
        f"--attn-cp-size {run['attn_cp_size']} is not --tp-size {run['tp_size']}": (
            run["attn_cp_size"] != run["tp_size"]
        ),
        f"it needs --cp-strategy {SHARED[arch]}": run["cp_strategy"] != SHARED[arch],
        "it does not speculate": name is not None and arch != GLM5,
        "it drafts by DFLASH, or its own MTP layer with topk 1": name not in (None, "DFLASH")
        and not (mtp and own and topk in (None, 1)),
        "it does not go with DCP": run["dcp_size"] > 1,
        "it does not mix prefill and decode": run["enable_mixed_chunk"],
        "it does not go with MoE data parallelism": run["moe_dp_size"] > 1,
        "it does not decode for a PD server": pd == "decode",
        "it does not go with a pipeline": run["pp_size"] > 1 and (arch != GLM5 or pd != "null"),
    }
    if arch == GLM5 and pd != "null":
        wrong |= {
            "under PD it transfers over Mooncake": run["disaggregation_transfer_backend"]
            != "mooncake",
            "under PD it drafts by DFLASH alone": name != "DFLASH",
            "under PD it does not go with replicas": run["dp_size"] > 1 or run["ep_size"] > 1,
        }
    run.refuse_first("P15", wrong, f"context parallelism of {arch}: ")


def kv_sharding(run: Run, given: Given) -> None:
    """P16."""
    if not run["enable_kv_cache_sharding"]:
        return
    page, chunk = run["page_size"], run["chunked_prefill_size"]
    cp = run["enable_prefill_cp"] and run["attn_cp_size"] > 1
    latent = given.target.mla
    wrong: Wrong = {
        "is for PD prefill servers": run["disaggregation_mode"] != "prefill",
        "drafts by EAGLE of one MTP layer of GLM, topk 1 written out": _drafts_otherwise(
            run, given
        ),
        "does not go with --radix-cache-backend": run["radix_cache_backend"] is not None,
        "does not go with --enable-unified-memory": run["enable_unified_memory"],
        "does not go with DCP": run["dcp_size"] > 1,
        "does not go with LMCache": run["enable_lmcache"],
        "does not go with HiSparse": run["enable_hisparse"],
        "does not go with two-batch overlap": run["enable_two_batch_overlap"],
    }
    _refuse(run, wrong)
    _shard_backend(run, given, cp=cp)
    _refuse(
        run,
        {
            "transfers over Mooncake or NIXL": run["disaggregation_transfer_backend"]
            not in ("mooncake", "nixl"),
            "of latent attention needs --attn-dp-size 1 and --tp-size above 1": latent
            and run["attn_cp_size"] <= 1
            and (attention_dp(run) or run["tp_size"] <= 1),
            "needs --enable-prefill-cp and --attn-cp-size above 1": not latent and not cp,
            "needs pages of more than a token": (1 if page is None else page) <= 1,
            "needs --chunked-prefill-size above 0": chunk <= 0,
        },
    )
    if chunk % page:
        whole = -(-chunk // page) * page
        run.set("chunked_prefill_size", whole, "P16", "chunks of whole pages")


def _drafts_otherwise(run: Run, given: Given) -> bool:
    return run[NAME] is not None and (
        run[NAME] != "EAGLE"
        or given.target.architecture != "GlmMoeDsaForCausalLM"
        or given.target.count("num_nextn_predict_layers") != 1
        or run[TOPK] != 1
        or run["enable_multi_layer_eagle"]
    )


def _shard_backend(run: Run, given: Given, *, cp: bool) -> None:
    prefill = backends(run)[0]
    if prefill == "dsa":
        trtllm = {run["dsa_prefill_backend"], run["dsa_decode_backend"]} == {"trtllm"}
        wrong: Wrong = {
            "of sparse attention needs CUDA, --cp-strategy interleave above 1, and pp_size 1": (
                run["device"] != "cuda"
                or not cp
                or run["cp_strategy"] != "interleave"
                or run["pp_size"] != 1
            ),
            "of sparse attention runs on trtllm, KV of fp8_e4m3 and pages of 64": not trtllm
            or run["kv_cache_dtype"] != "fp8_e4m3"
            or run["page_size"] != 64,
            "of sparse attention transfers over Mooncake": run["disaggregation_transfer_backend"]
            != "mooncake"
            or run["enable_dsa_cache_layer_split"],
        }
        _refuse(run, wrong)
        return
    wrong = {
        "of sparse attention runs on dsa": given.target.dsa,
        f"prefills on fa3 or trtllm_mla, not on {prefill}": prefill not in ("fa3", "trtllm_mla"),
    }
    if prefill == "trtllm_mla":
        wrong |= {
            "on trtllm_mla needs latent attention": not given.target.mla,
            "on trtllm_mla needs --attn-cp-size 1": run["attn_cp_size"] > 1,
            "on trtllm_mla needs the cache of chunked prefixes": run[
                "disable_chunked_prefix_cache"
            ],
        }
    _refuse(run, wrong)


def _refuse(run: Run, wrong: Wrong) -> None:
    run.refuse_first("P16", wrong, "--enable-kv-cache-sharding ")
