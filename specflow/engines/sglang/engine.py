"""Step 12: what is checked when the engine starts, after everything is resolved."""

from __future__ import annotations

from specflow.engines.outcome import Run
from specflow.engines.sglang.env import PLAN_STREAM, PP_SPEC
from specflow.engines.sglang.names import NAME
from specflow.engines.sglang.start import Given, attention_dp
from specflow.engines.sglang.tables import EAGLES, MIXED_CHUNK


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
    own = run["moe_runner_backend"]
    if own.startswith("lora") and not run["enable_lora"]:
        run.refuse("O4", f"--moe-runner-backend {own} needs --enable-lora")


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
    run.refuse_first("4.11", wrong, "PD multiplexing needs ", error="AssertionError")


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
    run.refuse_first("S17", wrong)
