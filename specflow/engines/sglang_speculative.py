"""Step 8: the algorithm gets its canonical name, and its own rules fill in and overrule numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from specflow.diagnostics import closest
from specflow.engines.outcome import Kind, Run
from specflow.engines.sglang_blocks import dflash, dspark
from specflow.engines.sglang_env import COORDINATION, SIMULATE, ragged_mode
from specflow.engines.sglang_start import TARGET_PATH, Given, attention_dp, backends
from specflow.engines.sglang_tables import (
    ADAPTIVE_SLOTS,
    ALGORITHMS,
    BUNDLED_MTP,
    CHAIN,
    EAGLES,
    HEADS,
    MAX_RUNNING,
    MIXED_CHUNK,
    NGRAM_TOKENS,
    PAGED_TREE_BACKENDS,
    RESERVED,
    SEPARATE_TOO,
    SHAPES,
    WITH_MTP,
)
from specflow.engines.sglang_uno import uno

STEPS, TOPK, TOKENS = (
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
DRAFT = "speculative_draft_model_path"
REJECTION = "speculative_use_rejection_sampling"


def speculate(run: Run, given: Given) -> None:
    """Everything of step 8, in SGLang's order."""
    _revision(run)
    _draft_runner(run)
    _name(run, given)
    _decode_radix(run)
    _block_verification(run)
    _window(run)
    _known(run)
    _coordination(run, given)
    if run["speculative_adaptive"]:
        _adaptive(run)
    elif run["speculative_adaptive_config"] is not None:
        run.note("V4", Kind.WARNS, "--speculative-adaptive-config without --speculative-adaptive")
    name = run["speculative_algorithm"]
    if name is None:
        return
    ragged_mode(run, given.env)
    handler = _HANDLERS.get(name)
    if handler is not None:
        handler(run, given)


def _revision(run: Run) -> None:
    if run[DRAFT] is not None and run["speculative_draft_model_revision"] is None:
        run.set("speculative_draft_model_revision", "main", "3.7", "a path without a revision")


def _draft_runner(run: Run) -> None:
    """3.9: the draft's MoE runner is the target's, but for two that only fit a target."""
    if run["speculative_moe_runner_backend"] is not None:
        return
    runner = run["moe_runner_backend"]
    if runner == "flashinfer_megamoe":
        runner = "flashinfer_trtllm"
    elif runner.startswith("lora_"):
        runner = "auto"
    run.set("speculative_moe_runner_backend", runner, "3.9", "what the target runs on")


def _name(run: Run, given: Given) -> None:
    """N2, N6, N7: one of the canonical names."""
    written = run["speculative_algorithm"]
    if written is None:
        return
    name = written.upper()
    assistant = run[DRAFT] is not None and given.draft.assistant
    if assistant and name == "EAGLE3":
        run.refuse("N7", "a Gemma 4 assistant drafts as NEXTN or EAGLE, not as EAGLE3")
    if assistant and name in ("NEXTN", "EAGLE"):
        because = "a Gemma 4 assistant reads the target's KV"
        run.set("speculative_algorithm", "FROZEN_KV_MTP", "N6", because)
    elif name == "NEXTN":
        run.set("speculative_algorithm", "EAGLE", "N2", "NEXTN is a name of EAGLE")
    else:
        run.set("speculative_algorithm", name, "N1", "names are upper-case")


def _decode_radix(run: Run) -> None:
    name = run["speculative_algorithm"]
    if (
        run["disaggregation_mode"] == "decode"
        and run["disaggregation_decode_enable_radix_cache"]
        and name not in (None, "DSPARK", *EAGLES)
    ):
        run.refuse("P7", f"a decode server's radix cache does not go with {name}")


def _block_verification(run: Run) -> None:
    """S9 to S11."""
    if not run["speculative_use_block_verification"]:
        return
    name = run["speculative_algorithm"]
    if name not in (*EAGLES, "DFLASH", "DSPARK"):
        run.refuse("S9", f"block verification does not go with {name or 'no draft'}")
    if run["device"] != "cuda":
        run.refuse("S10", f"block verification runs on CUDA and ROCm, not on {run['device']}")
    if name in EAGLES:
        run.set(REJECTION, True, "S11", "block verification needs drafts with a law")


def _window(run: Run) -> None:
    """O20, O21: window and sink of a draft's attention."""
    window, sink = run["speculative_draft_window_size"], run["speculative_draft_sink_size"]
    name = run["speculative_algorithm"]
    if window is not None:
        if window <= 0:
            run.refuse("O21", f"--speculative-draft-window-size is {window}, not positive")
        if name not in (*EAGLES, "DFLASH"):
            rule = "K25" if name == "DSPARK" else "O20"
            said = f"--speculative-draft-window-size does nothing for {name or 'no draft'}"
            run.note(rule, Kind.WARNS, said)
    if sink is not None:
        if sink < 0:
            run.refuse("O21", f"--speculative-draft-sink-size is {sink}, below 0")
        if window is None:
            run.refuse("O21", "--speculative-draft-sink-size needs a window")


def _known(run: Run) -> None:
    """N1, N3: a name of the table."""
    name = run["speculative_algorithm"]
    if name is None:
        return
    if name == "NONE":
        run.note(
            "N3",
            Kind.UNCHECKED,
            "the text NONE is kept as a name, so parts of the server think that it speculates; "
            "leave the flag out",
        )
    if name in RESERVED:
        return
    if name in HEADS:
        run.refuse("N1", f"{name} is a head of a {HEADS[name]} checkpoint, not an algorithm")
    near = closest(name, (*ALGORITHMS, "NEXTN"))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    run.refuse("N1", f"SGLang has no speculative algorithm {name!r}{hint}")


def _coordination(run: Run, given: Given) -> None:
    if not given.env.on(COORDINATION):
        return
    name = run["speculative_algorithm"]
    if name not in (*EAGLES, "DSPARK") or run["enable_multi_layer_eagle"]:
        said = f"{COORDINATION} takes EAGLE or EAGLE3 of a single layer, or DSPARK"
        run.refuse("P6", f"{said}; here it is {name or 'no draft'}")


def _adaptive(run: Run) -> None:
    """V1 to V4: acceptance chooses the steps, where nothing stands against it."""
    reason = _static_because(run)
    if reason:
        run.set("speculative_adaptive", False, "V1", f"adaptive steps do not go with {reason}")
        return
    steps = _candidates(run)
    if run[TOPK] is None:
        run.set(TOPK, 1, "3.3", "adaptive steps are of a chain")
    if run[STEPS] is None:
        run.set(STEPS, steps[len(steps) // 2], "3.3", f"the middle of {steps}")
    if run[STEPS] not in steps:
        run.refuse("V2", f"--speculative-num-steps {run[STEPS]} is not one of {steps}")
    run.set(TOKENS, run[STEPS] + 1, "V3", "a chain verifies its steps and one more")
    most = f"buffers are sized for {max(steps)} steps and verify {max(steps) + 1}"
    run.note("V9", Kind.TOLD, most)


def _static_because(run: Run) -> str:
    name, topk = run["speculative_algorithm"], run[TOPK]
    against = {
        f"{name or 'no draft'}": name not in EAGLES,
        f"topk {topk}": topk not in (None, 1),
        "attention DP": attention_dp(run),
        "multi-layer EAGLE": run["enable_multi_layer_eagle"],
        "two-batch overlap": run["enable_two_batch_overlap"],
        "PD multiplexing": run["enable_pdmux"],
    }
    return next((reason for reason, holds in against.items() if holds), "")


def _candidates(run: Run) -> list[int]:
    """Steps of every slot, in order; a file of slots must be there and well formed."""
    path = run["speculative_adaptive_config"]
    if path is None:
        return sorted({s for slot in ADAPTIVE_SLOTS.values() for s in slot})
    try:
        said = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        run.crash("V4", f"{path} cannot be read: {error}"[:200], type(error).__name__)
    if not isinstance(said, dict):
        run.crash("V4", f"{path} holds no slots", "AttributeError")
    slots = {key: slot for key, slot in said.items() if key.isdigit()}
    if not slots:
        run.refuse("V4", f"{path} has no slot for a batch size")
    found: set[int] = set()
    for key, slot in slots.items():
        steps = slot.get("candidate_steps") if isinstance(slot, dict) else None
        if not isinstance(steps, list) or not steps or not all(map(_step, steps)):
            run.refuse("V4", f"{path}: the slot of batch size {key} has no list of steps")
        found |= set(steps)
    return sorted(found)


def _step(value: object) -> bool:
    return isinstance(value, int) and value >= 0


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


def ngram(run: Run, given: Given) -> None:  # noqa: ARG001
    """G1 to G8, A3."""
    if run["device"] not in ("cuda", "cpu", "xpu"):
        run.refuse("G1", f"NGRAM runs on CUDA, CPU and XPU, not on {run['device']}")
    no_overlap_on_cpu(run)
    cap_requests(run)
    run.set("enable_mixed_chunk", False, "G3", "NGRAM does not mix prefill and verify")
    breadth = run["speculative_ngram_max_bfs_breadth"]
    run.set(TOPK, breadth, "G4", "topk of NGRAM is --speculative-ngram-max-bfs-breadth")
    if run[TOKENS] is None:
        run.set(TOKENS, NGRAM_TOKENS, "3.2", "what NGRAM verifies")
    if run[STEPS] is None:
        if breadth == 0:
            run.crash("G8", "--speculative-ngram-max-bfs-breadth is 0", "ZeroDivisionError")
        run.set(STEPS, run[TOKENS] // breadth, "3.2", "draft tokens by breadth")
    _corpus(run)
    page, backend = run["page_size"], run["attention_backend"]
    if breadth > 1 and page > 1 and backend != "flashinfer":
        said = f"breadth {breadth} with a page of {page} is right on flashinfer alone"
        run.refuse("A3", f"{said}, not on {backend}")
    if attention_dp(run):
        run.refuse("G2", "NGRAM does not go with attention DP")


def _corpus(run: Run) -> None:
    """G5: a corpus takes a share of the nodes."""
    budget = run["speculative_ngram_external_sam_budget"]
    if run["speculative_ngram_external_corpus_path"] is None:
        if budget:
            said = "--speculative-ngram-external-sam-budget without a corpus"
            run.note("G7", Kind.UNCHECKED, said)
        return
    most = run[TOKENS] - 1
    if budget <= 0:
        run.refuse("G5", f"a corpus needs a budget of nodes, not {budget}")
    if run["speculative_ngram_external_corpus_max_tokens"] <= 0:
        run.refuse("G5", "--speculative-ngram-external-corpus-max-tokens is not positive")
    if budget > most:
        run.refuse("G5", f"a budget of {budget} nodes is above draft tokens - 1 = {most}")


_HANDLERS: dict[str, Callable[[Run, Given], None]] = {
    "EAGLE": eagle,
    "EAGLE3": eagle,
    "STANDALONE": eagle,
    "FROZEN_KV_MTP": frozen_kv,
    "NGRAM": ngram,
    "DFLASH": dflash,
    "DSPARK": dspark,
    "UNO": uno,
}

__all__ = ["TARGET_PATH", "speculate"]
