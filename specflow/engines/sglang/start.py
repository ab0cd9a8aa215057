"""Steps 1 to 5 of SGLang's resolution: what is decided before anything knows the attention backend.

Here the algorithm still has the name that was written, upper case or not (section 0).
"""

from __future__ import annotations

from dataclasses import dataclass

from specflow.engines.outcome import Run
from specflow.engines.sglang.env import Env
from specflow.engines.sglang.model import Config
from specflow.engines.sglang.names import ATTENTION
from specflow.engines.sglang.tables import Machine

TARGET_PATH = "TARGET"  # stands for the target's path where the arguments leave it out
DRAFT_PATH = "DRAFT"


@dataclass(frozen=True)
class Given:
    """What rules read beside the arguments."""

    target: Config
    draft: Config
    machine: Machine
    env: Env


def backends(run: Run) -> tuple[str | None, str | None]:
    """Attention backends of prefill and decode; a split flag goes before the common one."""
    common = run["attention_backend"]
    return (
        run["prefill_attention_backend"] or common,
        run["decode_attention_backend"] or common,
    )


def no_backend(run: Run) -> bool:
    """Whether none of the three backend flags says anything."""
    return all(run[name] is None for name in ATTENTION)


def attention_dp(run: Run) -> bool:
    """Whether attention is data parallel."""
    return bool(run["attn_dp_size"] > 1 or run["ep_join_mode"] == "scale")


def old_dp_attention(run: Run, given: Given) -> None:  # noqa: ARG001
    """`--dp-size N --enable-dp-attention` is the old spelling of `--attn-dp-size N`."""
    if not run["enable_dp_attention"]:
        return
    if run["attn_dp_size"] == 1:
        because = "--enable-dp-attention is the old spelling of --attn-dp-size"
        run.set("attn_dp_size", run["dp_size"], "4.11", because)
        run.set("dp_size", 1, "4.11", because)
    run.set("enable_dp_attention", False, "4.11", "the flag is told by --attn-dp-size from here on")


def capture_without_draft(run: Run, given: Given) -> None:  # noqa: ARG001
    """N13: the algorithm only names what is captured; no draft runs."""
    ids = run["return_aux_hidden_state_layer_ids"]
    if not run["enable_return_aux_hidden_states"]:
        if ids is not None:
            run.refuse("N13", "layer ids of hidden states need --enable-return-aux-hidden-states")
        return
    method = (run["speculative_algorithm"] or "").upper()
    wrong = {
        f"hidden states are captured as EAGLE3, DFLASH or DSPARK do, not {method or 'nobody'}": (
            method not in ("EAGLE3", "DFLASH", "DSPARK")
        ),
        "hidden states are captured without a draft: drop the draft's path": (
            run["speculative_draft_model_path"] is not None
        ),
        "hidden states are captured with pp_size 1 only": run["pp_size"] != 1,
        f"{method} needs layer ids": method != "EAGLE3" and not ids,
    }
    run.refuse_first("N13", wrong)
    if ids is not None:
        _layer_ids(run, list(ids))
    run.set("speculative_algorithm", None, "N13", f"hidden states only, as {method} reads them")


def _layer_ids(run: Run, ids: list[object]) -> None:
    whole = all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
    if not whole:
        run.crash("N13", "layer ids are whole numbers", "TypeError")
    wrong = {
        "the list of layer ids is empty": not ids,
        "a layer id is negative": any(isinstance(i, int) and i < 0 for i in ids),
        "a layer id is there twice": len(set(ids)) < len(ids),
    }
    run.refuse_first("N13", wrong)


def device(run: Run, given: Given) -> None:
    """The device in words of torch, without an index."""
    asked = run["device"]
    run.set(
        "device",
        (asked or given.machine.device).split(":")[0],
        "3.6",
        "the device of the platform, without an index",
    )


def draft_quantization(run: Run, given: Given) -> None:  # noqa: ARG001
    """3.7: a draft is quantized as its target is, unless told otherwise."""
    own, quantization = "speculative_draft_model_quantization", run["quantization"]
    if run[own] is None and quantization is not None:
        run.set(own, quantization, "3.7", "a draft takes the target's --quantization")
    if run[own] == "unquant":
        run.set(own, None, "3.7", "`unquant` is no quantization")
    if quantization == "unquant":
        run.set("quantization", None, "3.7", "`unquant` is no quantization")


def old_backends(run: Run, given: Given) -> None:  # noqa: ARG001
    """3.8: backends that have a new name."""
    speaks = "tokenspeed_mla" in (run["attention_backend"], run["decode_attention_backend"])
    new = {"compressed": "dsv4", "tokenspeed_mla": "cutedsl_mla"}
    for field in (*ATTENTION, "speculative_draft_attention_backend"):
        name = new.get(run[field])
        if name is None:
            continue
        if field == "prefill_attention_backend" and name == "cutedsl_mla":
            name = "trtllm_mla"  # the new one only decodes
        run.set(field, name, "3.8", f"{run[field]} is an old name")
    if not speaks:
        return
    run.set("kv_cache_dtype", "fp8_e4m3", "3.8", "what tokenspeed_mla had")
    if run["speculative_algorithm"] is not None:
        run.set("speculative_attention_mode", "decode", "3.8", "tokenspeed_mla verified so")


def prefill_decode(run: Run, given: Given) -> None:  # noqa: ARG001
    """PD: the flags of a server that only prefills or only decodes (P8)."""
    mode, transfer = run["disaggregation_mode"], run["disaggregation_transfer_backend"]
    if mode == "decode":
        radix = run["disaggregation_decode_enable_radix_cache"]
        if radix and run["enable_hisparse"]:
            run.refuse("P7", "a decode server's radix cache does not go with HiSparse")
        if radix and transfer == "fake":
            run.refuse("P7", "a decode server's radix cache needs a real transfer backend")
        run.set(
            "disable_radix_cache", not radix, "P7", "a decode server has no radix cache unasked"
        )
    elif mode == "prefill" and transfer == "fake":
        run.crash("P7", "a prefill server needs a real transfer backend")
    if mode != "null" and run["enable_pd_role_switch"]:
        _role_switch(run)


def _role_switch(run: Run) -> None:
    kept = {
        "expert parallelism": run["ep_size"] > 1,
        "MoE all-to-all": run["moe_a2a_backend"] != "none",
        "pipeline parallelism": run["pp_size"] > 1,
        "decode context parallelism": run["dcp_size"] > 1,
        "speculative decoding": run["speculative_algorithm"] is not None,
    }
    run.refuse_first("P8", kept, "a server that switches its PD role cannot rebuild ")


def parallel(run: Run, given: Given) -> None:  # noqa: ARG001
    """DCP and DWDP, as far as speculative decoding meets them (P12)."""
    if run["dcp_size"] < 1:
        run.refuse("P12", f"--dcp-size is {run['dcp_size']}, below 1")
    if run["dcp_size"] > 1 and run["enable_prefill_cp"]:
        run.refuse("P12", "--dcp-size above 1 does not go with --enable-prefill-cp")
    size = run["dwdp_size"]
    if size <= 1:
        return
    wrong = {
        f"--dwdp-size {size} is not --tp-size {run['tp_size']}": size != run["tp_size"],
        "DWDP does not decode for a PD server": run["disaggregation_mode"] == "decode",
        "DWDP does not go with EPLB": run["enable_eplb"],
        "DWDP does not speculate": run["speculative_algorithm"] is not None,
        "DWDP needs pp_size 1": run["pp_size"] != 1,
        "DWDP does not go with two-batch overlap": run["enable_two_batch_overlap"],
    }
    run.refuse_first("P12", wrong, error="AssertionError")
    run.set("attn_dp_size", size, "P12", "DWDP runs attention DP of its own width")
    run.set("dp_size", 1, "P12", "DWDP runs attention DP of its own width")


def npu_dcp(run: Run, given: Given) -> None:
    """P12: an NPU decodes in parallel with sparse attention alone."""
    if given.machine.kind == "npu" and run["dcp_size"] > 1 and not given.target.dsa:
        run.refuse("P12", "an NPU has DCP for sparse attention alone")


def device_defaults(run: Run, given: Given) -> None:
    """Backends that a device has no choice of (3.6)."""
    kind = run["device"]
    if kind == "cpu" and run["attention_backend"] is None:
        run.set("attention_backend", "intel_amx", "3.6", "the backend of CPUs")
    if kind == "npu":
        for field in ATTENTION:
            run.set(field, "ascend", "3.6", "the only backend of an NPU")
        if run["page_size"] is None:
            run.set("page_size", 128, "3.6", "the page of an NPU")
    if run["chunked_prefill_size"] is None:
        chunk = _chunk(given.machine.memory)
        run.set("chunked_prefill_size", chunk, "3.6", "by the memory of the device")


def _chunk(memory: int) -> int:
    """Tokens a prefill chunk has, by MiB of the device."""
    steps = ((20, 2048), (60, 4096), (160, 8192), (10**6, 16384))
    if not memory:
        return 4096
    return next(chunk for gib, chunk in steps if memory < gib * 1024)
