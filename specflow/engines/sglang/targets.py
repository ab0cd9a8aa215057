"""Step 5: targets with rules of their own, by the name of the algorithm as it was written."""

from __future__ import annotations

from specflow.engines.outcome import Kind, Run
from specflow.engines.sglang.env import ragged_mode
from specflow.engines.sglang.names import ATTENTION
from specflow.engines.sglang.start import Given, attention_dp, backends, no_backend
from specflow.engines.sglang.tables import GIGACHAT, KIMI_HYBRID, MAX_RUNNING_V4, MIMO_V2


def multi_layer(run: Run, given: Given) -> None:
    """N8, N4: an MTP layer a step turns itself on, if the name is written exactly EAGLE."""
    arch = given.target.architecture
    if not (given.target.step or arch in (*MIMO_V2, *GIGACHAT)):
        return
    name = run["speculative_algorithm"]
    if name == "EAGLE":
        run.set("enable_multi_layer_eagle", True, "N8", f"{arch} has an MTP layer a step")
    elif (
        name is not None
        and name.upper() in ("EAGLE", "NEXTN")
        and not run["enable_multi_layer_eagle"]
    ):
        said = (
            f"written {name!r}, {arch} runs one MTP layer for every step; written EAGLE it turns "
            "--enable-multi-layer-eagle on"
        )
        run.note("N4", Kind.UNCHECKED, said)


def deepseek_v4(run: Run, given: Given) -> None:
    """N5, 3.4: DeepSeek-V4 has a backend, a page and a number of requests of its own."""
    arch = given.target.architecture
    if arch != "DeepseekV4ForCausalLM":
        return
    npu = run["device"] == "npu"
    run.set("attention_backend", "dsv4", "3.6", f"the only backend of {arch}")
    run.set("page_size", 128 if npu else 256, "3.6", f"the page of {arch}")
    if npu:
        run.set("prefill_attention_backend", "dsv4", "3.6", f"the only backend of {arch}")
        run.set("decode_attention_backend", "dsv4", "3.6", f"the only backend of {arch}")
    _v4_kv(run)
    if run["max_running_requests"] is None:
        run.set("max_running_requests", MAX_RUNNING_V4, "3.4", f"what {arch} starts with")
    name = run["speculative_algorithm"]
    if name is None:
        return
    if name not in ("EAGLE", "DSPARK"):
        run.crash("N5", f"{arch} takes EAGLE and DSPARK, written so; {name!r} is neither")
    if name == "EAGLE" and run["speculative_eagle_topk"] != 1:
        run.crash("N5", f"EAGLE on {arch} needs --speculative-eagle-topk 1 written out")


def _v4_kv(run: Run) -> None:
    dtype = run["kv_cache_dtype"]
    if dtype == "auto":
        dtype = "fp8_e4m3"
    if run["device"] == "npu":
        dtype = "bfloat16"
    if dtype not in ("fp8_e4m3", "bfloat16"):
        run.crash("N5", f"DeepSeek-V4 keeps KV as fp8_e4m3 or bfloat16, not {dtype}")
    run.set("kv_cache_dtype", dtype, "3.6", "the KV of DeepSeek-V4")


def deepseek_v41(run: Run, given: Given) -> None:
    """K29: V4.1 drafts by DSPARK alone."""
    if given.target.get("model_type") != "deepseek_v41":
        return
    if given.target.architecture != "DeepseekV4ForCausalLM":
        return
    name = run["speculative_algorithm"]
    kept = {
        "speculative decoding other than DSPARK": name is not None and name.upper() != "DSPARK",
        "HiSparse": run["enable_hisparse"],
        "two-batch overlap": run["enable_two_batch_overlap"],
        "pipeline parallelism": run["pp_size"] > 1,
    }
    run.refuse_first("K29", kept, "DeepSeek-V4.1 does not go with ")
    if run["disaggregation_mode"] == "null" or name is None:
        return
    prefill_cp = (
        run["disaggregation_mode"] == "prefill"
        and run["enable_prefill_cp"]
        and run["cp_strategy"] == "interleave"
    )
    split = run["enable_prefill_cp"] or run["attn_cp_size"] != 1
    if (
        ragged_mode(run, given.env) != "static"
        or run["disaggregation_transfer_backend"] not in ("mooncake", "nixl")
        or (split and not prefill_cp)
        or run["dcp_size"] != 1
    ):
        run.refuse(
            "K29",
            "DSPARK of DeepSeek-V4.1 under PD needs static verify, Mooncake or NIXL, DCP 1, and "
            "CP 1 on decode",
        )


def iquest(run: Run, given: Given) -> None:
    """A20: IQuest Q1 runs on fa3 and drafts serially."""
    if given.target.architecture != "IQuestQ1ForCausalLM":
        return
    name = run["speculative_algorithm"]
    topk = run["speculative_eagle_topk"]
    drafts = name is not None
    wrong = {
        "runs on fa3 alone": any(run[f] not in (None, "fa3") for f in ATTENTION),
        "drafts by EAGLE or NEXTN": drafts and name.upper() not in ("EAGLE", "NEXTN"),
        "drafts on fa3 alone": drafts
        and run["speculative_draft_attention_backend"] not in (None, "fa3"),
        "has no context parallelism": run["attn_cp_size"] > 1
        or run["dcp_size"] > 1
        or run["enable_prefill_cp"],
        "drafts chains: topk 1": topk is not None and topk > 1,
        "has no multi-layer EAGLE": run["enable_multi_layer_eagle"],
        "has no attention DP": attention_dp(run),
        "has no pipeline parallelism": run["pp_size"] > 1,
    }
    run.refuse_first("A20", wrong, "IQuest Q1 ")
    if no_backend(run):
        run.set("attention_backend", "fa3", "A20", "IQuest Q1 runs on fa3")
    elif run["attention_backend"] is None:
        for field in ATTENTION[1:]:
            run.set(field, "fa3", "A20", "IQuest Q1 runs on fa3")


def kimi(run: Run, given: Given) -> None:
    """K27, 3.8: Kimi hybrids verify by a kernel of their own."""
    arch, machine = given.target.architecture, given.machine
    if arch not in KIMI_HYBRID:
        return
    name = run["speculative_algorithm"]
    if arch == KIMI_HYBRID[1]:
        _kimi_k3(run, given)
    if name is None:
        return
    field = "linear_attn_verify_backend"
    if run[field] is None:
        run.set(field, "nv_cutedsl", "3.8", "the verify kernel of Kimi hybrids")
    field = "speculative_draft_attention_backend"
    if name == "DSPARK" and run[field] is None and machine.sm100:
        run.set(field, "trtllm_mha", "3.8", "a DSPARK draft of a Kimi hybrid on SM100")


def _kimi_k3(run: Run, given: Given) -> None:
    dspark = run["speculative_algorithm"] == "DSPARK"
    decode = backends(run)[1]
    if run["dcp_size"] > 1:
        if dspark:
            if ragged_mode(run, given.env) != "static":
                run.refuse("K27", "DSPARK on Kimi-K3 with DCP needs static verify")
            run.set("speculative_attention_mode", "decode", "K27", "verify under DCP")
        if decode not in (None, "cutedsl_mla", "aiter"):
            run.crash("K27", f"Kimi-K3 under DCP decodes on cutedsl_mla or aiter, not {decode}")
        on_aiter = decode == "aiter"
        run.set("decode_attention_backend", decode or "cutedsl_mla", "K27", "decode under DCP")
        prefill = "trtllm_mla"
        if on_aiter:
            prefill = "triton" if backends(run)[0] == "triton" else "aiter"
        run.set("prefill_attention_backend", prefill, "K27", "prefill under DCP")
        return
    if not given.machine.sm100:
        return
    if no_backend(run):
        decode = "trtllm_mla"
        for field in ATTENTION[1:]:
            run.set(field, decode, "3.8", "Kimi-K3 on SM100")
    if dspark and decode in ("trtllm_mla", "cutedsl_mla"):
        run.set("speculative_attention_mode", "decode", "3.8", "DSPARK verifies on this backend")


def glm5_next(run: Run, given: Given) -> None:
    """3.8: GLM-5-Next on SM100 verifies by a kernel of its own."""
    field = "linear_attn_verify_backend"
    if (
        given.target.architecture == "Glm5NextForConditionalGeneration"
        and run["speculative_algorithm"] is not None
        and run[field] is None
        and given.machine.sm100
    ):
        run.set(field, "nv_cutedsl", "3.8", "the verify kernel of GLM-5-Next on SM100")


def muse_spark(run: Run, given: Given) -> None:
    """3.6: Muse Spark keeps its KV in eight bits."""
    open_ = run["kv_cache_dtype"] == "auto"
    if given.target.architecture == "MuseSparkForConditionalGeneration" and open_:
        run.set("kv_cache_dtype", "fp8_e4m3", "3.6", "the KV of Muse Spark")
