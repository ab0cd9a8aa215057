"""Step 8 for drafts of a block: DFLASH and DSPARK."""

from __future__ import annotations

import json
from pathlib import Path

from specflow.engines.outcome import Kind, Run
from specflow.engines.sglang.eagle import cap_requests
from specflow.engines.sglang.env import COORDINATION, ragged_mode
from specflow.engines.sglang.model import (
    Config,
    UnusableConfig,
    all_sliding_or_causal,
    dflash_block,
    dspark_gamma,
)
from specflow.engines.sglang.names import DRAFT, STEPS, TOKENS, TOPK
from specflow.engines.sglang.start import Given, attention_dp, backends
from specflow.engines.sglang.tables import (
    BLOCK_DRAFT_BACKENDS,
    DFLASH_BLOCK,
    DSPARK_GAMMA,
)
from specflow.foreign_files import read_text
from specflow.headers import LARGEST_JSON


def _one_step(run: Run, rule: str, name: str) -> None:
    """F5, K8: a block is one step of one branch."""
    for field in (STEPS, TOPK):
        run.set(field, 1, rule, f"{name} guesses a block in one step of one branch")


def dflash(run: Run, given: Given) -> None:
    """F1 to F8, D4."""
    device = run["device"]
    if not device.startswith("cuda") and device not in ("npu", "xpu"):
        run.refuse("F1", f"DFLASH runs on CUDA, NPU and XPU, not on {device}")
    if attention_dp(run) and device != "npu":
        _dflash_dp(run, given)
    if run["pp_size"] != 1:
        run.refuse("F4", "DFLASH needs pp_size 1")
    if run[DRAFT] is None:
        run.refuse("D4", "DFLASH needs --speculative-draft-model-path")
    _one_step(run, "F5", "DFLASH")
    _dflash_block(run, given)
    window, block = run["speculative_draft_window_size"], run[TOKENS]
    if window is not None and window < block:
        run.refuse("F8", f"a window of {window} is below the block, {block}")
    _dflash_backend(run, given)
    cap_requests(run)


def _dflash_dp(run: Run, given: Given) -> None:
    wrong = {
        "CUDA": not run["device"].startswith("cuda"),
        "--enable-dp-lm-head": not run["enable_dp_lm_head"],
        "attn_cp_size 1": run["attn_cp_size"] != 1,
        f"{COORDINATION} off": given.env.on(COORDINATION),
    }
    run.refuse_first("F2", wrong, "DFLASH with attention DP needs ")


def _dflash_block(run: Run, given: Given) -> None:
    """F6, F7, 3.2: the block is the flag's, or the draft tokens', or the checkpoint's, or 16."""
    flag, tokens = run["speculative_dflash_block_size"], run[TOKENS]
    if flag is not None:
        if flag <= 0:
            run.refuse("F6", f"--speculative-dflash-block-size is {flag}, not positive")
        if tokens is not None and tokens != flag:
            run.refuse(
                "F7", f"a block of {flag} and {tokens} draft tokens are the same thing said twice"
            )
        run.set(TOKENS, flag, "3.2", "the block, bonus included")
    if run[TOKENS] is not None:
        return
    try:
        block = dflash_block(given.draft) if given.draft.known else None
    except UnusableConfig as error:
        run.note("F16", Kind.AT_START, f"the draft's config cannot be used: {error}")
        block = None
    if block is None:
        run.set(TOKENS, DFLASH_BLOCK, "3.2", "the default, as the checkpoint says no block size")
    else:
        run.set(TOKENS, block, "3.2", "the block size of the checkpoint")


def _dflash_backend(run: Run, given: Given) -> None:
    """3.8: the flag, or the target's prefill backend, or what this machine falls back on."""
    field = "speculative_draft_attention_backend"
    machine = given.machine
    fallback = "triton" if machine.kind == "xpu" or machine.rocm else "flashinfer"
    asked = run[field]
    name = asked if asked is not None else backends(run)[0]
    if name is None:
        run.set(field, fallback, "3.8", "the default of DFLASH drafts")
    elif name not in BLOCK_DRAFT_BACKENDS:
        run.set(field, fallback, "3.8", f"DFLASH drafts do not run on {name}")
    elif name == "trtllm_mha" and not all_sliding_or_causal(given.draft):
        because = "trtllm_mha serves drafts whose layers all slide, or are causal"
        run.set(field, "fa4" if machine.sm100 else fallback, "3.8", because)
    else:
        run.set(field, name, "3.8", "the target's prefill backend")


def dspark(run: Run, given: Given) -> None:
    """K1 to K14, D5."""
    device = run["device"]
    if not device.startswith(("cuda", "npu", "xpu")):
        run.refuse("K1", f"DSPARK runs on CUDA, NPU and XPU, not on {device}")
    if run["attn_dp_size"] > 1:
        _dspark_dp(run, given)
    if run["pp_size"] != 1 and run["disaggregation_mode"] != "prefill":
        run.refuse("K7", "DSPARK with pp_size above 1 runs on a PD prefill server alone")
    _dspark_path(run, given)
    _one_step(run, "K8", "DSPARK")
    _gamma(run, given)
    cap_requests(run)
    mode = ragged_mode(run, given.env)
    align = "speculative_dspark_align_verify_tokens_to_graph_tier"
    if run[align] and mode != "compact":
        run.note("K13", Kind.WARNS, f"--{align.replace('_', '-')} does nothing in mode {mode}")
    if run["speculative_dspark_sps_table_path"] and mode == "static":
        run.note("K14", Kind.WARNS, "a cost table does nothing in mode static")


def _dspark_dp(run: Run, given: Given) -> None:
    a2a, own = run["moe_a2a_backend"], run["speculative_moe_a2a_backend"]
    npu = run["device"].startswith("npu")
    coordinated = given.env.on(COORDINATION)
    if not run["enable_dp_lm_head"]:
        run.refuse("K2", "DSPARK with attention DP needs --enable-dp-lm-head")
    if not npu and a2a not in ("none", "megamoe", "mori"):
        said = "DSPARK with attention DP takes --moe-a2a-backend none, megamoe or mori"
        run.refuse("K3", f"{said}, not {a2a}")
    if not npu and (a2a != "none" or coordinated) and ragged_mode(run, given.env) != "static":
        run.refuse("K4", "DSPARK with attention DP and this all-to-all needs static verify")
    if run["attn_cp_size"] > 1:
        run.refuse("K5", "DSPARK with attention DP does not go with context parallelism")
    if not npu and own is not None and own != a2a:
        run.refuse("K6", f"a DSPARK draft has its target's all-to-all, {a2a}, not {own}")


def _dspark_path(run: Run, given: Given) -> None:
    """D5: the draft is named, or in the target's checkpoint, or in a folder of it."""
    if run[DRAFT] is not None:
        return
    if given.target.bundles_dspark:
        run.set(DRAFT, run["model_path"], "D5", "the target's checkpoint has a DSPARK head")
        revision = "speculative_draft_model_revision"
        run.set(revision, run["revision"], "D5", "the revision of the target")
        return
    folder = Path(run["model_path"]) / "dspark"
    if config_in(folder) is not None:
        run.set(DRAFT, str(folder), "D5", "the target's checkpoint has a folder dspark/")
        return
    if not given.target.known:
        said = "whether the target's checkpoint has a DSPARK head is not known here"
        run.note("D5", Kind.UNCHECKED, said)
        run.set(DRAFT, run["model_path"], "D5", "no draft is named, so the target brings one along")
        return
    run.refuse("D5", "DSPARK needs --speculative-draft-model-path: the target has no DSPARK head")


def config_in(folder: Path) -> str | None:
    """The text of a folder's config, if it has one; a path of any spelling may be asked for."""
    try:
        return read_text(folder / "config.json", LARGEST_JSON)
    except (OSError, ValueError):
        return None


def _gamma(run: Run, given: Given) -> None:
    """K9 to K12, 3.2: guesses a block are the flag's, the checkpoint's, draft tokens - 1, or 7."""
    flag, tokens = run["speculative_dspark_block_size"], run[TOKENS]
    told = _told_gamma(run, given)
    gamma, of = told, "the block size of the checkpoint"
    if flag is not None:
        if flag <= 0:
            run.refuse("K9", f"--speculative-dspark-block-size is {flag}, not positive")
        if told not in (None, flag):
            run.note("K10", Kind.WARNS, f"the checkpoint was trained for blocks of {told}")
        gamma, of = flag, "--speculative-dspark-block-size"
    if gamma is None and tokens is None:
        gamma, of = DSPARK_GAMMA, "the default, as the checkpoint says no block size"
    if gamma is not None:
        if tokens not in (None, gamma + 1):
            said = f"a block of {gamma} guesses verifies {gamma + 1} tokens, not {tokens}"
            run.refuse("K10", f"{said} ({of})")
        run.set(TOKENS, gamma + 1, "3.2", f"the block and one more; {of}")
    if run[TOKENS] < 2:
        run.refuse("K11", f"DSPARK verifies at least 2 tokens, not {run[TOKENS]}")


def _told_gamma(run: Run, given: Given) -> int | None:
    draft = _dspark_config(run, given)
    if not draft.known:
        return None
    try:
        return dspark_gamma(draft)
    except UnusableConfig as error:
        run.note("K12", Kind.AT_START, f"the draft's config cannot be used: {error}")
        return None


def _dspark_config(run: Run, given: Given) -> Config:
    """The draft's config: the target's, or the one of the folder, or the one handed over."""
    if run[DRAFT] == run["model_path"]:
        return given.target
    if DRAFT in run.asked:
        return given.draft
    try:
        return Config.of(json.loads(config_in(Path(run[DRAFT])) or "null"))
    except (ValueError, RecursionError):
        return Config.of(None)
