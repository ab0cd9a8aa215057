"""Step 6 for recurrent state: its snapshots, and kernels of linear attention."""

from __future__ import annotations

from specflow.engines.outcome import Run
from specflow.engines.sglang.env import PP_SPEC, ragged_mode
from specflow.engines.sglang.start import Given
from specflow.engines.sglang.tables import EXTRA_BUFFER, KIMI_HYBRID


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
    run.refuse_first("O16", wrong, error="AssertionError")


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
    run.refuse_first("A21", wrong)


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
