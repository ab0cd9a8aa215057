"""Steps 7 and 9 to 12: what the rest of the server has to say, before and after the algorithm."""

from __future__ import annotations

from specflow.engines.outcome import Run
from specflow.engines.sglang_env import PLAN_STREAM, PP_SPEC
from specflow.engines.sglang_start import Given, attention_dp, backends
from specflow.engines.sglang_tables import (
    EAGLES,
    LAYERNORM_SP,
    MIXED_CHUNK,
    UNIFIED_MHA,
    UNIFIED_MLA,
)

NAME = "speculative_algorithm"


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
    for reason, holds in wrong.items():
        if holds:
            run.refuse("O9", f"HiCache under DCP {reason}", "NotImplementedError")


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


def context_parallel(run: Run, given: Given) -> None:  # noqa: ARG001
    """Widths that divide the ranks (4.11)."""
    width, ranks = run["attn_cp_size"], run["tp_size"]
    if run["enable_prefill_cp"] and run["cp_strategy"] is None:
        run.refuse("4.11", "--enable-prefill-cp needs --cp-strategy")
    if width > 1 and (ranks % width or ranks % (run["attn_dp_size"] * width)):
        run.crash("4.11", f"--attn-cp-size {width} and attention DP do not divide tp_size {ranks}")


def kv_sharding(run: Run, given: Given) -> None:
    """P16."""
    if not run["enable_kv_cache_sharding"]:
        return
    flag = "--enable-kv-cache-sharding"
    if run["disaggregation_mode"] != "prefill":
        run.refuse("P16", f"{flag} is for PD prefill servers")
    if run[NAME] is None:
        return
    if (
        run[NAME] != "EAGLE"
        or given.target.architecture != "GlmMoeDsaForCausalLM"
        or given.target.count("num_nextn_predict_layers") != 1
        or run["speculative_eagle_topk"] != 1
        or run["enable_multi_layer_eagle"]
    ):
        run.refuse("P16", f"{flag} drafts by EAGLE of one MTP layer of GLM, topk 1 written out")


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
    for reason, holds in wrong.items():
        if holds:
            run.refuse("P13", f"--enable-layernorm-sp {reason}")


def weight_cache(run: Run, given: Given) -> None:  # noqa: ARG001
    """O8."""
    if run["weight_cache_mode"] != "off" and run[NAME] is not None:
        run.refuse("O8", "--weight-cache-mode keeps no draft's weights")


def external_cache(run: Run, given: Given) -> None:  # noqa: ARG001
    """O7."""
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
    for feature, on in kept.items():
        if on:
            run.refuse("O7", f"LMCache does not go with {feature}", "NotImplementedError")


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
    for reason, holds in wrong.items():
        if holds:
            run.crash("O11", f"{flag} {reason}")


def mega_moe(run: Run, given: Given) -> None:
    """P19, in part: where MegaMoE runs at all."""
    if run["moe_a2a_backend"] != "megamoe":
        return
    machine = given.machine
    if run["enable_two_batch_overlap"] or run["enable_single_batch_overlap"]:
        run.refuse("P19", "MegaMoE does not go with two-batch or single-batch overlap")
    if not (machine.hopper or machine.sm100 or machine.rocm):
        run.refuse("P19", "MegaMoE runs on Hopper, SM100 and ROCm alone")


def all_to_all(run: Run, given: Given) -> None:  # noqa: ARG001
    """P18."""
    name, own = run[NAME], run["speculative_moe_a2a_backend"]
    inherited = run["moe_a2a_backend"] if name not in (None, "NGRAM") else None
    if "deepep_v2" in ((own,) if own is not None else (inherited,)):
        run.refuse("P18", "a draft does not run on deepep_v2")


def engine_start(run: Run, given: Given) -> None:
    """Step 12: what is checked when the engine starts."""
    if run["pp_size"] > 1:
        _pipelined(run, given)
    _lora(run, given)
    if run[NAME] is not None and run["enable_mixed_chunk"] and run[NAME] not in MIXED_CHUNK:
        run.crash("O6", f"{run[NAME]} does not mix prefill and verify")
    _chunks(run)
    _multiplexing(run)
    _hisparse(run, given)
    _two_batches(run)
    _watermark(run)


def _pipelined(run: Run, given: Given) -> None:
    """P2 to P5, P17."""
    name, mode, pp_spec = run[NAME], run["disaggregation_mode"], given.env.on(PP_SPEC)
    if not run["disable_overlap_schedule"]:
        run.crash("P1", "pipeline parallelism does not overlap")
    if name == "DSPARK":
        if mode != "prefill":
            run.crash("P5", "DSPARK with a pipeline runs on a PD prefill server")
        if pp_spec:
            run.crash("P5", f"{PP_SPEC} does not go with DSPARK")
    elif name is not None:
        _pipelined_eagle(run, name, mode, pp_spec=pp_spec)
    if run["min_free_slots_delay"] is not None:
        run.crash("P17", "--min-free-slots-delay does not go with a pipeline")


def _pipelined_eagle(run: Run, name: str, mode: str, *, pp_spec: bool) -> None:
    if name != "EAGLE" or run["enable_multi_layer_eagle"]:
        run.crash("P2", f"a pipeline speculates by EAGLE of a single layer, not by {name}")
    if not pp_spec:
        if mode != "prefill":
            run.crash("P3", f"EAGLE with a pipeline runs on a PD prefill server, or with {PP_SPEC}")
        return
    wrong = {
        "PD": mode != "null",
        "--speculative-adaptive": run["speculative_adaptive"],
        "attention DP": attention_dp(run),
    }
    for feature, on in wrong.items():
        if on:
            run.crash(
                "P4" if feature != "--speculative-adaptive" else "V7",
                f"{PP_SPEC} does not go with {feature}",
            )


def _lora(run: Run, given: Given) -> None:
    """O1 to O4, V5."""
    if run["max_loras_per_batch"] <= 0:
        run.crash("O1", "--max-loras-per-batch is not positive")
    if run["lora_paths"] and run["enable_lora"] is None:
        run.set("enable_lora", True, "O1", "--lora-paths is given")
    name, runner = run[NAME], run["speculative_moe_runner_backend"]
    if run["enable_lora"]:
        _lora_draft(run, given, name, runner)
        if not run["lora_paths"] and not (run["max_lora_rank"] and run["lora_target_modules"]):
            run.crash("O1", "LoRA without --lora-paths needs --max-lora-rank and target modules")
    if name is not None and (runner or "").startswith("lora"):
        run.refuse("O4", f"a draft has no adapters, so {runner} does not run it")


def _lora_draft(run: Run, given: Given, name: str | None, runner: str | None) -> None:
    if name in (None, "NGRAM"):
        return
    if name not in MIXED_CHUNK:
        run.refuse("O1", f"LoRA does not go with {name}")
    if name == "DSPARK" and given.env.ragged != "static":
        run.refuse("O2", "LoRA with DSPARK needs static verify")
    if run["speculative_adaptive"]:
        run.refuse("V5", "LoRA does not go with adaptive steps")
    if "experimental_sgl_trtllm" in (run["moe_runner_backend"], runner):
        run.refuse("O3", "LoRA with a draft does not run on experimental_sgl_trtllm")
    if given.env.on(PLAN_STREAM):
        run.refuse("O3", f"LoRA with a draft does not go with {PLAN_STREAM}")


def _chunks(run: Run) -> None:
    chunk, page = run["chunked_prefill_size"], run["page_size"]
    if chunk <= 0 or run["disaggregation_mode"] == "decode":
        return
    if page == 0:
        run.crash("3.6", "a page of no tokens", "ZeroDivisionError")
    if chunk % page:
        run.crash("3.6", f"--chunked-prefill-size {chunk} is no multiple of the page, {page}")


def _multiplexing(run: Run) -> None:
    if not run["enable_pdmux"]:
        return
    wrong = {
        "pp_size 1": run["pp_size"] != 1,
        "--chunked-prefill-size -1": run["chunked_prefill_size"] != -1,
        "no PD": run["disaggregation_mode"] != "null",
        "--disable-overlap-schedule": not run["disable_overlap_schedule"],
    }
    for needed, missing in wrong.items():
        if missing:
            run.crash("4.11", f"PD multiplexing needs {needed}")


def _hisparse(run: Run, given: Given) -> None:
    """O10, V6."""
    if not run["enable_hisparse"]:
        return
    target = given.target
    v4 = target.architecture == "DeepseekV4ForCausalLM"
    if not (target.dsa or v4 or target.architecture.startswith("MiniMaxM3")):
        run.crash("O10", "HiSparse needs a target with sparse attention")
    if not run["disable_radix_cache"]:
        run.crash("O10", "HiSparse needs --disable-radix-cache")
    if run["enable_mixed_chunk"]:
        run.refuse("O10", "HiSparse does not mix prefill and decode")
    if run[NAME] in (None, "NONE"):
        return
    if (run["speculative_eagle_topk"] or 1) != 1:
        run.refuse("O10", "HiSparse drafts chains: topk 1")
    if run["speculative_adaptive"]:
        run.refuse("V6", "HiSparse does not go with adaptive steps")


def _two_batches(run: Run) -> None:
    overlaps = run["enable_two_batch_overlap"]
    if overlaps and run["moe_a2a_backend"] == "none" and not attention_dp(run):
        run.refuse("4.11", "two-batch overlap needs a MoE all-to-all or attention DP")


def _watermark(run: Run) -> None:
    """S17."""
    if run["watermark_config"] is not None and not run["enable_watermark"]:
        run.refuse("S17", "--watermark-config needs --enable-watermark")
    if not run["enable_watermark"]:
        return
    name = run[NAME]
    wrong = {
        f"a watermark needs CUDA, not {run['device']}": run["device"] != "cuda",
        "a watermark does not go with PD": run["disaggregation_mode"] != "null",
        f"a watermark does not go with {name}": name not in (None, "NGRAM", *EAGLES),
        "a watermark does not speculate with a pipeline": run["pp_size"] > 1 and name is not None,
        "a watermark does not go with rejection sampling": run[
            "speculative_use_rejection_sampling"
        ],
    }
    for reason, holds in wrong.items():
        if holds:
            run.refuse("S17", reason)
