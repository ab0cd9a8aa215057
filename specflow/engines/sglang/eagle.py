"""Step 8 for serial drafts: EAGLE, EAGLE3, STANDALONE and FROZEN_KV_MTP."""

from __future__ import annotations

from specflow.engines.outcome import Kind, Run
from specflow.engines.sglang.env import SIMULATE
from specflow.engines.sglang.names import DRAFT, REJECTION, STEPS, TOKENS, TOPK
from specflow.engines.sglang.start import Given, attention_dp, backends
from specflow.engines.sglang.tables import (
    BUNDLED_MTP,
    CHAIN,
    EAGLES,
    MAX_RUNNING,
    MIXED_CHUNK,
    PAGED_TREE_BACKENDS,
    SEPARATE_TOO,
    SHAPES,
    WITH_MTP,
)


def cap_requests(run: Run) -> None:
    """3.4: at most 48 requests, where nobody says how many."""
    if run["max_running_requests"] is None:
        because = "what speculative decoding starts with"
        run.set("max_running_requests", MAX_RUNNING, "3.4", because)


def no_overlap_on_cpu(run: Run) -> None:
    """P10."""
    if run["device"] == "cpu":
        run.set("disable_overlap_schedule", True, "P10", "a CPU does not overlap and speculate")


def frozen_kv(run: Run, given: Given) -> None:  # noqa: ARG001
    """Z1, Z2, Z5: nothing is filled in, and nothing checked."""
    cap_requests(run)
    run.set("enable_mixed_chunk", False, "Z5", "FROZEN_KV_MTP does not mix prefill and verify")
    open_ = [f for f in (STEPS, TOPK, TOKENS) if run[f] is None]
    if open_:
        said = ", ".join("--" + f.replace("_", "-") for f in open_)
        run.note("Z1", Kind.UNCHECKED, f"FROZEN_KV_MTP has no default for {said}; the server fails")
    elif run[TOPK] == 1 and run[TOKENS] != run[STEPS] + 1:
        said = f"a chain of {run[STEPS]} steps verifies {run[STEPS] + 1}, not {run[TOKENS]}"
        run.note("Z2", Kind.AT_START, said)


def eagle(run: Run, given: Given) -> None:
    """EAGLE, EAGLE3 and STANDALONE."""
    name = run["speculative_algorithm"]
    if name == "STANDALONE" and attention_dp(run):
        run.refuse("Z3", "STANDALONE does not go with attention DP")
    cap_requests(run)
    no_overlap_on_cpu(run)
    if run["disable_overlap_schedule"]:
        run.note("P11", Kind.WARNS, "steps are scheduled one after another, not overlapped")
    if name not in MIXED_CHUNK:
        run.set("enable_mixed_chunk", False, "Z5", f"{name} does not mix prefill and verify")
    _draft_path(run, given)
    _iquest_draft(run, given)
    _auto_shape(run, given)
    _chain_backends(run)
    _rejection(run, given)
    _chain_width(run)
    _paged_tree(run)


def _draft_path(run: Run, given: Given) -> None:
    """D1 to D3: an MTP layer lies in the target's own checkpoint."""
    arch, name = given.target.architecture, run["speculative_algorithm"]
    if arch in BUNDLED_MTP:
        if run[DRAFT] is None:
            run.set(DRAFT, run["model_path"], "D1", f"{arch} has its draft in its checkpoint")
            revision = "speculative_draft_model_revision"
            run.set(revision, run["revision"], "D1", "the revision of the target")
        elif arch not in SEPARATE_TOO and run[DRAFT] != run["model_path"]:
            said = f"{arch} has a draft in its own checkpoint; the one given is taken"
            run.note("D2", Kind.WARNS, said)
    elif run[DRAFT] is None:
        _no_draft(run, name, mtp=given.target.step or arch in WITH_MTP)


def _no_draft(run: Run, name: str, *, mtp: bool) -> None:
    loads = "no draft is named, so the target's own checkpoint is loaded as one"
    if name in ("STANDALONE", "EAGLE3"):
        run.note("D3", Kind.UNCHECKED, f"{loads}, which is no {name} draft")
    elif mtp:
        run.note("D3", Kind.TOLD, f"{loads}: its MTP layer")
    else:
        run.note("D3", Kind.UNCHECKED, f"{loads}, and no MTP layer of it is known")


def _iquest_draft(run: Run, given: Given) -> None:
    """D7."""
    target, draft = given.target, given.draft
    if target.architecture != "IQuestQ1ForCausalLM":
        return
    if run[DRAFT] in (None, run["model_path"]):
        run.refuse("D7", "IQuest Q1 needs a draft checkpoint of its own")
    if draft.known and "IQuestQ1MTP" not in draft.architectures:
        run.refuse("D7", "IQuest Q1 needs its own MTP draft")
    pairs = (("hidden_size", "hidden_size"), ("vocab_size", "vocab_size"))
    for mine, theirs in (*pairs, ("num_target_layers", "num_hidden_layers")):
        if draft.known and draft.count(mine) != target.count(theirs):
            run.refuse("D7", f"the draft's {mine} is not the target's {theirs}")
    if run["speculative_token_map"] is not None:
        run.refuse("D7", "IQuest Q1 takes no token map")
    slots = draft.count("num_draft_slots")
    steps = run[STEPS] if run[STEPS] is not None else slots
    if steps < 1:
        run.refuse("D7", "IQuest Q1 needs steps of at least 1")
    if run[TOPK] not in (None, 1) or run[TOKENS] not in (None, steps + 1):
        run.refuse("D7", "IQuest Q1 drafts chains: topk 1, steps + 1 draft tokens")
    for field, value in ((STEPS, steps), (TOPK, 1), (TOKENS, steps + 1)):
        run.set(field, value, "D7", "the slots of the draft")


def _auto_shape(run: Run, given: Given) -> None:
    """E1, 3.1: all three numbers are filled in, or none."""
    if run["speculative_adaptive"] or run[STEPS] is not None:
        return
    if run[TOPK] is not None or run[TOKENS] is not None:
        said = [f"--{f.replace('_', '-')}" for f in (TOPK, TOKENS) if run[f] is not None]
        run.crash(
            "E1",
            f"{' and '.join(said)} without --speculative-num-steps (an assertion without a "
            "message): give all three, or none",
        )
    arch, name = given.target.architecture, run["speculative_algorithm"]
    shape = CHAIN if name == "STANDALONE" else SHAPES.get(arch, CHAIN)
    of = name if name == "STANDALONE" else arch or "this target"
    for field, value in zip((STEPS, TOPK, TOKENS), shape, strict=True):
        run.set(field, value, "3.1", f"the default of {of}")


def _topk(run: Run, rule: str) -> int:
    """Branches as the engine compares it; open, the comparison itself fails (E2)."""
    topk = run[TOPK]
    if topk is None:
        run.crash(
            rule,
            "--speculative-num-steps without --speculative-eagle-topk: SGLang compares nothing "
            "with 1 (a TypeError without a word to the user)",
            "TypeError",
        )
    return int(topk)


def _chain_backends(run: Run) -> None:
    if "trtllm_mha" in backends(run) and _topk(run, "E2") > 1:
        run.refuse("A1", "trtllm_mha drafts chains: topk 1")


def _rejection(run: Run, given: Given) -> None:
    """S1 to S8."""
    name, topk = run["speculative_algorithm"], run[TOPK]
    lossless = (
        run["speculative_accept_threshold_single"] == 1.0
        and run["speculative_accept_threshold_acc"] == 1.0
    )
    if (
        given.machine.rocm
        and name == "EAGLE"
        and topk == 1
        and run["speculative_token_map"] is None
        and lossless
        and not run["enable_deterministic_inference"]
        and given.env.number(SIMULATE, -1.0) <= 0
    ):
        run.set(REJECTION, True, "S8", "on ROCm nothing else draws at a temperature")
    if not run[REJECTION]:
        return
    if name not in EAGLES:
        run.refuse("S1", f"rejection sampling does not go with {name}", "NotImplementedError")
    if topk != 1:
        run.refuse("S4", f"rejection sampling drafts chains: topk 1, not {topk}")
    if run["enable_deterministic_inference"] and not run["device"].startswith("cuda"):
        run.refuse("S6", "rejection sampling is deterministic on CUDA alone")
    if not lossless:
        run.refuse("S5", "rejection sampling does not go with accept thresholds below 1")


def _chain_width(run: Run) -> None:
    """E4: a chain verifies steps + 1, whatever was asked."""
    if run[TOPK] == 1 and run[TOKENS] != run[STEPS] + 1:
        because = f"a chain of {run[STEPS]} steps verifies {run[STEPS] + 1} tokens"
        run.set(TOKENS, run[STEPS] + 1, "E4", because)


def _paged_tree(run: Run) -> None:
    page, backend = run["page_size"], run["attention_backend"]
    if _topk(run, "E2") > 1 and page > 1 and backend not in PAGED_TREE_BACKENDS:
        on = ", ".join(PAGED_TREE_BACKENDS)
        run.refuse("A2", f"a tree with a page of {page} runs on {on}, not on {backend}")
