"""Step 8 for UNO: the target drafts for itself through one adapter (4.7)."""

from __future__ import annotations

from specflow.engines.outcome import Run
from specflow.engines.sglang.names import STEPS, TOKENS, TOPK
from specflow.engines.sglang.start import Given, attention_dp, backends

MOST_NODES, MOST_SLOTS = 128, 2048


def uno(run: Run, given: Given) -> None:  # noqa: ARG001
    """U1 to U10, D6."""
    _kept_out(run)
    width = run[TOKENS]
    if width is None or width < 1:
        run.refuse("U4", "UNO needs --speculative-num-draft-tokens of at least 1")
    topk = 1 if run[TOPK] is None else run[TOPK]
    if topk < 1:
        run.refuse("U5", f"UNO needs --speculative-eagle-topk of at least 1, not {topk}")
    if topk > 1:
        _tree(run, width, topk)
    else:
        for field in (STEPS, TOPK):
            run.set(field, 1, "U7", "UNO without a tree guesses in one step of one branch")
    _alone(run)
    run.set("enable_lora_overlap_loading", False, "U9", "UNO pins its adapter")
    run.set("lora_strict_loading", True, "U9", "UNO pins its adapter")
    if run["speculative_use_rejection_sampling"]:
        run.refuse("S3", "UNO verifies in its own way, not by rejection sampling")
    run.set("enable_mixed_chunk", False, "U9", "UNO does not mix prefill and verify")
    prefill, decode = backends(run)
    if (prefill, decode) != ("fa3", "fa3"):
        run.refuse("U10", f"UNO runs on fa3 alone, not on {prefill} and {decode}")


def _kept_out(run: Run) -> None:
    wrong = (
        ("U1", "UNO runs on CUDA alone", not run["device"].startswith("cuda")),
        (
            "D6",
            "UNO drafts with the target: drop --speculative-draft-model-path",
            run["speculative_draft_model_path"] is not None,
        ),
        ("U2", "UNO needs --uno-lora-path", run["uno_lora_path"] is None),
        (
            "U3",
            "UNO does not go with deterministic inference",
            run["enable_deterministic_inference"],
        ),
        ("U3", "UNO does not go with --enable-strict-thinking", run["enable_strict_thinking"]),
    )
    for rule, reason, holds in wrong:
        if holds:
            run.refuse(rule, reason)


def _tree(run: Run, width: int, topk: int) -> None:
    """U6: Q nodes of F = steps + 1 levels of K branches."""
    steps = run[STEPS]
    if steps is None:
        run.refuse("U6", "a tree of UNO needs --speculative-num-steps")
    if steps < 1:
        run.refuse("U6", f"a tree of UNO needs at least 1 step, not {steps}")
    wrong = {
        f"{width} nodes do not hold {steps + 1} levels": width < steps + 1,
        f"{width} nodes are above {MOST_NODES}": width > MOST_NODES,
        f"{width} nodes of {topk} branches are above {MOST_SLOTS}": width * topk > MOST_SLOTS,
        f"{steps} steps of {topk} branches do not make {width} nodes": width > _nodes(topk, steps),
        f"{steps} steps of {topk} branches do not name {width} parents": width - 1
        > topk * (steps - 1) + 1,
        "a tree of UNO does not go with PD multiplexing": run["enable_pdmux"],
        "a tree of UNO does not go with two-batch overlap": run["enable_two_batch_overlap"],
    }
    run.refuse_first("U6", wrong)
    single, acc = (run[f"speculative_accept_threshold_{k}"] for k in ("single", "acc"))
    if single != 1.0 or acc != 1.0:
        run.refuse("S14", "a tree of UNO needs both accept thresholds at 1")


def _nodes(topk: int, steps: int) -> int:
    """Nodes of a full tree, as far as they matter here."""
    nodes = level = 1
    for _ in range(steps):
        level *= topk
        nodes += level
        if nodes >= MOST_NODES:
            break
    return nodes


def _alone(run: Run) -> None:
    if (run["tp_size"], run["pp_size"]) != (1, 1):
        run.refuse("U8", "UNO needs tp_size 1 and pp_size 1")
    if attention_dp(run) or run["attn_cp_size"] != 1:
        run.refuse("U8", "UNO has no attention DP and no context parallelism")
    if run["enable_lora"] or run["lora_paths"]:
        run.refuse("U8", "UNO serves no adapters")
