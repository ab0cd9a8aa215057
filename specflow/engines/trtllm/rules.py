"""What TensorRT-LLM makes of its configuration, by rule.

T1   a key that a decoding type has not is refused: its models are strict
T2   a decoding type that the release has not is refused
T3   EAGLE3 and a draft model need `speculative_model`
T4   a decoding type needs `max_draft_len` above 0
T5   a dynamic tree has from max_draft_len to topK times it tokens; topK alone turns it on
T6   a chain has as many tokens as it is long
T7   a schedule by batch size begins with max_draft_len, and stands alone
T8   `max_concurrency` is a schedule of one key
T9   rejection sampling is for EAGLE3 alone, and not beside a suffix automaton
T10  MTP counts by max_draft_len, in 1.2 by num_nextn_predict_layers, else by the checkpoint
T11  `allow_advanced_sampling` does nothing since 1.3; in 1.2 a draft in the model needs it
T12  Eagle is EAGLE3
T13  speculation does not go with logits: requests for them, and for logprobs, are refused
T14  a draft outside of the model waits for no overlap scheduler
T15  a window of acceptance may turn speculation off for good
T16  a schedule pads CUDA graphs
T17  relaxed acceptance is not the target's law
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.engines.base import Export
from specflow.engines.outcome import OPEN, START, TOLD, WARN, Effective, Refusal, Refused, Run
from specflow.engines.trtllm.lines import checked, spread
from specflow.engines.trtllm.releases import (
    EAGLE,
    EAGLE3,
    MTP,
    NGRAM,
    SMALL,
    SPEC,
    TYPE,
    Release,
    key,
)
from specflow.engines.trtllm.schedules import fault
from specflow.recipe import ResolvedRecipe

LENGTH, TOTAL, TOPK = (
    key(name) for name in ("max_draft_len", "max_total_draft_tokens", "dynamic_tree_max_topK")
)
TREE, LAYERS = key("use_dynamic_tree"), key("num_nextn_predict_layers")
SCHEDULE, CONCURRENCY = key("draft_len_schedule"), key("max_concurrency")
REJECTION = key("use_rejection_sampling")
LENGTHLESS = ("AUTO", "SaveState", "User_Provided", "Medusa")


def effective(recipe: ResolvedRecipe, export: Export, release: Release) -> Effective | Refused:
    """The configuration that is in force, or why it is refused; never an exception."""
    try:
        args = spread(checked(export.args, release))
        run = Run(args, release.flags.defaults)
        kind = run[key(TYPE)]
        if kind is None and any(name.startswith(f"{SPEC}.") for name in run.asked):
            run.refuse("T2", "a speculative_config says its decoding_type")
        if kind is not None:
            release.held(kind, run.asked)
            _speculation(run, recipe, release)
        return run.outcome()
    except Refusal as refusal:
        return refusal.refused


def _speculation(run: Run, recipe: ResolvedRecipe, release: Release) -> None:
    _alias(run)
    kind = run[key(TYPE)]
    _length(run, recipe, release, kind)
    _model(run, kind)
    if kind in (EAGLE3, MTP):
        _tree(run, release, kind)
    _chain(run, kind)
    _schedule(run, release, kind)
    _sampling(run, release, kind)
    _beside(run, kind)


def _alias(run: Run) -> None:
    """T12: an earlier name."""
    if run[key(TYPE)] == EAGLE:
        run.set(key(TYPE), EAGLE3, "T12", "drafts of EAGLE 1 and 2 do not run here")


def _length(run: Run, recipe: ResolvedRecipe, release: Release, kind: str) -> None:
    """T4, T10: how many tokens are guessed."""
    if kind == MTP:
        _mtp_length(run, recipe, release)
    longest = run[LENGTH]
    if kind not in LENGTHLESS and (longest is None or longest < 1):
        run.refuse("T4", f"{kind} needs max_draft_len above 0")
    if longest is not None and longest < 0:
        run.refuse("T4", "max_draft_len is 0 or more")


def _mtp_length(run: Run, recipe: ResolvedRecipe, release: Release) -> None:
    layers = run[LAYERS]
    if release.counts == "num_nextn_predict_layers":
        count = 1 if layers is None else layers
        run.set(LENGTH, count, "T10", "what num_nextn_predict_layers says, 1 where it says nothing")
        return
    if layers is not None:
        said = "num_nextn_predict_layers is an earlier name of max_draft_len"
        run.note("T10", WARN, said)
        if run[LENGTH] is None:
            run.set(LENGTH, layers, "T10", said)
        run.set(LAYERS, None, "T10", "read as max_draft_len")
    if run[LENGTH] is None:
        count = max(recipe.facts["target"].mtp_layers, 1)
        run.set(LENGTH, count, "T10", "the MTP layers of the checkpoint")


def _model(run: Run, kind: str) -> None:
    """T3: where the draft lies."""
    if kind in (EAGLE3, SMALL) and run[key("speculative_model")] is None:
        run.refuse("T3", f"{kind} needs speculative_model")


def _tree(run: Run, release: Release, kind: str) -> None:
    """T5: a dynamic tree."""
    if key("use_dynamic_tree") not in release.flags or not release.has("use_dynamic_tree", kind):
        return
    if run[TOPK] is not None and kind in release.trees:
        run.set(TREE, value=True, rule="T5", because="dynamic_tree_max_topK is given")
    if not run[TREE]:
        return
    choices = key("eagle_choices")
    if choices in release.flags and run[choices] is not None:
        run.refuse("T5", "eagle_choices is of a static tree")
    topk, longest, total = run[TOPK], run[LENGTH], run[TOTAL]
    if topk is None or topk < 1:
        said = "a dynamic tree needs dynamic_tree_max_topK above 0"
        run.refuse("T5", said)
    if kind not in release.trees:
        text = f"{release.title} sets max_total_draft_tokens to max_draft_len, tree or not"
        run.note("T5", OPEN, text)
        run.set(TOTAL, longest, "T5", "max_draft_len, tree or not")
        return
    if total is None:
        run.set(TOTAL, topk * longest, "T5", "dynamic_tree_max_topK times max_draft_len")
    elif not longest <= total <= topk * longest:
        said = f"max_total_draft_tokens is from {longest} to {topk * longest}, not {total}"
        run.refuse("T5", said)


def _chain(run: Run, kind: str) -> None:
    """T6: a chain has as many tokens as it is long."""
    if kind in LENGTHLESS or (TREE in run.values and run[TREE]):
        return
    run.set(TOTAL, run[LENGTH], "T6", f"{kind} guesses a chain")


def _schedule(run: Run, release: Release, kind: str) -> None:
    """T7, T8, T16: guesses by batch size."""
    schedule, cap = run[SCHEDULE], run[CONCURRENCY]
    if cap is not None and cap < (0 if release.upwards else 1):
        run.refuse("T8", f"max_concurrency is above 0, not {cap}")
    if schedule is not None:
        if cap is not None and not release.upwards:
            said = "draft_len_schedule and max_concurrency exclude each other"
            run.refuse("T7", said)
        wrong = fault(schedule, run[LENGTH], upwards=release.upwards)
        if wrong:
            run.refuse("T7", wrong)
    elif cap is not None and kind in (EAGLE3, MTP) and not release.upwards:
        because = f"above {cap} requests nothing is drafted"
        run.set(SCHEDULE, {cap: run[LENGTH]}, "T8", because)
    if run[SCHEDULE] is not None:
        run.note("T16", TOLD, "CUDA graphs are padded, and captured for the schedule's batch sizes")


def _sampling(run: Run, release: Release, kind: str) -> None:
    """T9, T11, T17: how guesses are judged."""
    asked = run.asked
    advanced = key("allow_advanced_sampling")
    if release.has("use_rejection_sampling"):
        if advanced in asked:
            run.note("T11", WARN, "allow_advanced_sampling does nothing any more")
        enhanced = key("sa_config") in release.flags and run[key("sa_config")] is not None
        if run[REJECTION] and enhanced:
            run.set(REJECTION, value=False, rule="T9", because="a suffix automaton guesses too")
        elif run[REJECTION] and kind != EAGLE3:
            because = "rejection sampling is for Eagle3 alone"
            run.set(REJECTION, value=False, rule="T9", because=because)
    elif not run[advanced] and kind not in (NGRAM, SMALL):
        run.note("T11", TOLD, "without allow_advanced_sampling every request is greedy")
    relaxed = key("use_relaxed_acceptance_for_thinking")
    if kind == MTP and run[relaxed]:
        run.note("T17", TOLD, "relaxed acceptance while it thinks: the output has another law")


def _beside(run: Run, kind: str) -> None:
    """T13, T14, T15: what stands beside speculation."""
    if run["gather_generation_logits"]:
        text = "requests for logits or logprobs are refused with speculation, or hang"
        run.note("T13", START, text)
    if kind == NGRAM and not run["disable_overlap_scheduler"]:
        text = f"{kind} drafts outside of the model: set disable_overlap_scheduler"
        run.note("T14", OPEN, text)
    if _windowed(run.values):
        text = "speculation is turned off for good once acceptance falls below the threshold"
        run.note("T15", TOLD, text)


def _windowed(values: Mapping[str, Any]) -> bool:
    pairs = (
        ("acceptance_rate_window_size", "acceptance_rate_threshold"),
        ("acceptance_window", "acceptance_length_threshold"),
    )
    return any(values.get(key(a)) and values.get(key(b)) is not None for a, b in pairs)
