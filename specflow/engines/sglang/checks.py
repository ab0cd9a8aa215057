"""Steps 7 and 9 to 12: what the rest of the server has to say, before and after the algorithm."""

from __future__ import annotations

from specflow.engines.outcome import Run
from specflow.engines.sglang.names import NAME
from specflow.engines.sglang.start import Given, attention_dp, backends
from specflow.engines.sglang.tables import (
    EAGLES,
    LAYERNORM_SP,
    UNIFIED_MHA,
    UNIFIED_MLA,
)


def host_cache(run: Run, given: Given) -> None:
    """O9: HiCache under DCP."""
    if run["dcp_size"] <= 1 or not run["enable_hierarchical_cache"]:
        return
    wrong = {
        "drafts by DSPARK alone": run[NAME] not in (None, "DSPARK"),
        "does not go with LMCache": run["enable_lmcache"],
        "does not go with HiSparse": run["enable_hisparse"],
        "needs latent attention": not given.target.mla,
    }
    run.refuse_first("O9", wrong, "HiCache under DCP ", error="NotImplementedError")


def data_parallel(run: Run, given: Given) -> None:  # noqa: ARG001
    """Attention DP, and what it turns off or divides (4.11)."""
    width, replicas = run["attn_dp_size"], run["dp_size"]
    if width < 1:
        run.refuse("4.11", f"--attn-dp-size is {width}, not positive")
    if width > 1 and replicas > 1:
        run.refuse("4.11", "--attn-dp-size and --dp-size above 1 exclude each other")
    if replicas * width == 1 and run["ep_join_mode"] != "scale":
        run.set("enable_dp_lm_head", False, "4.11", "no data parallelism, no head for it")
    if attention_dp(run):
        if run["tp_size"] % width:
            run.crash("4.11", f"--attn-dp-size {width} does not divide --tp-size {run['tp_size']}")
        chunk = run["chunked_prefill_size"] // width
        run.set("chunked_prefill_size", chunk, "4.11", "a share of each rank")
    elif run["enable_dp_lm_head"]:
        run.crash("4.11", "--enable-dp-lm-head needs attention DP")


def pipeline(run: Run, given: Given) -> None:  # noqa: ARG001
    """P1."""
    if run["pp_size"] > 1:
        run.set("disable_overlap_schedule", True, "P1", "pipeline parallelism does not overlap")


def layernorm_sp(run: Run, given: Given) -> None:
    """P13."""
    if not run["enable_layernorm_sp"]:
        return
    arch, muse = given.target.architecture, given.target.architecture.startswith("MuseSpark")
    wrong = {
        f"is not for {arch or 'this target'}": arch not in LAYERNORM_SP,
        "needs tp_size above 1": run["tp_size"] <= 1,
        "does not go with attention DP": attention_dp(run),
        "does not speculate but by DFLASH on Muse Spark": run[NAME] is not None
        and not (muse and run[NAME] == "DFLASH"),
        "does not go with pipeline parallelism": run["pp_size"] > 1,
    }
    run.refuse_first("P13", wrong, "--enable-layernorm-sp ")


def weight_cache(run: Run, given: Given) -> None:  # noqa: ARG001
    """O8."""
    if run["weight_cache_mode"] != "off" and run[NAME] is not None:
        run.refuse("O8", "--weight-cache-mode keeps no draft's weights")


def external_cache(run: Run, given: Given) -> None:  # noqa: ARG001
    """O7, O9, and requests put away in a host pool."""
    _host_pool(run)
    if run["enable_hierarchical_cache"] and run["disable_radix_cache"]:
        run.refuse("O9", "HiCache needs the radix cache")
    if not run["enable_lmcache"]:
        return
    if run["enable_hierarchical_cache"]:
        run.refuse("O7", "LMCache and HiCache exclude each other")
    if run["disable_radix_cache"]:
        run.refuse("O7", "LMCache needs the radix cache")
    kept = {
        "speculative decoding": run[NAME] not in (None, "NONE"),
        "attention DP": attention_dp(run),
        "DCP": run["dcp_size"] > 1,
        "PD": run["disaggregation_mode"] != "null",
    }
    run.refuse_first("O7", kept, "LMCache does not go with ", error="NotImplementedError")


def _host_pool(run: Run) -> None:
    flag = "--disaggregation-decode-retraction-backup host_pool"
    if run["disaggregation_decode_retraction_backup"] != "host_pool":
        return
    if run["disaggregation_mode"] != "decode":
        run.refuse("O11", f"{flag} is for PD decode servers")
    if run["dcp_size"] > 1:
        run.refuse("O11", f"{flag} does not go with DCP")


def unified_memory(run: Run, given: Given) -> None:
    """O11: one pool for everything takes chains of audited backends."""
    if not run["enable_unified_memory"]:
        return
    name, target = run[NAME], given.target
    flag = "--enable-unified-memory"
    mooncake = run["disaggregation_transfer_backend"] == "mooncake"
    pd = run["disaggregation_mode"] != "null"
    allowed = UNIFIED_MLA if target.mla else UNIFIED_MHA
    by_name = {"DSPARK": (*UNIFIED_MLA, "fa4"), "DFLASH": UNIFIED_MHA}
    phases = set(backends(run))
    pages = (*UNIFIED_MLA, "fa3") if target.mla else (*UNIFIED_MHA, "fa4")
    draft = run["speculative_draft_attention_backend"]
    eagle = name in EAGLES
    wrong = {
        "under PD does not go with a pipeline": pd and run["pp_size"] != 1,
        "under PD does not speculate over Mooncake": pd and mooncake and name is not None,
        "under PD does not go with HiSparse": pd and run["enable_hisparse"],
        f"does not go with {name}": name not in (None, "DSPARK", "DFLASH", *EAGLES),
        "drafts chains: topk 1": run["speculative_eagle_topk"] not in (None, 1),
        f"with {name} needs a target with a window or a recurrent state": eagle
        and not (target.hybrid_swa or target.hybrid_mamba),
        f"with {name} runs on {', '.join(allowed)}": eagle and not phases <= set(allowed),
        f"with {name} drafts on {', '.join(UNIFIED_MHA)}": eagle
        and not ({draft} if draft else phases) <= set(UNIFIED_MHA),
        f"with {name} runs on other backends": name in by_name
        and not phases <= set(by_name.get(name or "", ())),
        "does not go with two-batch overlap": run["enable_two_batch_overlap"],
        f"with {name} does not back up to a host pool": eagle
        and run["disaggregation_decode_retraction_backup"] == "host_pool",
        f"with {name} does not go with HiCache": eagle and run["enable_hierarchical_cache"],
        f"runs on {', '.join(dict.fromkeys(pages))}": not phases <= set(pages),
    }
    run.refuse_first("O11", wrong, f"{flag} ", error="AssertionError")
