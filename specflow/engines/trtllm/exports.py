"""A recipe as the configuration of TensorRT-LLM; what does not go across is named."""

from __future__ import annotations

from typing import Any

from specflow.engines.base import NO_SHAPE, NO_TREE, Export, Out, model_of
from specflow.engines.flags import folded
from specflow.engines.trtllm.lines import checked, spread
from specflow.engines.trtllm.releases import (
    DFLASH,
    DSPARK,
    EAGLE,
    EAGLE3,
    MTP,
    NGRAM,
    SMALL,
    SPEC,
    TITLE,
    TYPE,
    Release,
    key,
)
from specflow.engines.trtllm.schedules import fault, to_schedule
from specflow.recipe import ResolvedRecipe

NAME = "trtllm"
# How each of our drafts is drafted there; EAGLE only on MTP layers.
TYPES = {
    "STANDALONE": SMALL,
    "EAGLE": MTP,
    "EAGLE3": EAGLE3,
    "MULTI_LAYER_EAGLE": MTP,
    "DFLASH": DFLASH,
    "DSPARK": DSPARK,
    "NGRAM": NGRAM,
}
RUN = {
    "run.batch_size": "max_batch_size",
    "run.max_length": "max_seq_len",
    "run.prefill_chunk": "max_num_tokens",
    "run.dtype": "dtype",
    "run.load_format": "load_format",
}
OVERLAP = "disable_overlap_scheduler"
# Drafts that are made outside of the model, and need the scheduler to wait for them.
OUTSIDE = (NGRAM, SMALL)


def to_args(recipe: ResolvedRecipe, release: Release) -> Export:
    """A resolved recipe as arguments of a release; the keys of its speculation under one."""
    out = Out(recipe)
    draft, shape, _ = recipe.stages
    out.args["model"] = model_of(out, "target")
    if draft != "NONE":
        _draft(out, release, draft, shape)
    out.commit(TITLE)
    _run(out)
    out.ask(TITLE, {"max_new_tokens": "max_tokens"})
    _pass_through(out, release)
    out.args = folded(out.args)
    return out.done()


def _set(out: Out, **more: Any) -> None:
    out.args |= {key(name): value for name, value in more.items()}


def _draft(out: Out, release: Release, draft: str, shape: str) -> None:
    """A decoding type, its model, and how many tokens it guesses."""
    kind = TYPES.get(draft, "")
    if draft == "EAGLE" and not (out.recipe.facts.net.bundled or out.mtp):
        out.refuse("draft.algorithm", f"{TITLE} has EAGLE3 and MTP layers; its Eagle is EAGLE3")
        return
    if kind not in release.own:
        what = kind or "assistant on the target's KV"
        out.refuse("draft.algorithm", f"{release.title} has no {what}")
        return
    _set(out, decoding_type=kind)
    guesses = _guesses(out, draft)
    _set(out, **{release.counts if kind == MTP else "max_draft_len": guesses})
    if kind not in (NGRAM, MTP):
        _model(out, kind)
    if kind in OUTSIDE:
        out.args[OVERLAP] = True
    if kind == SMALL:
        _named(out, release)
    _shape(out, release, kind, shape)
    _accept(out, release, kind)
    if kind == NGRAM:
        _lookup(out)
    elif kind in (DFLASH, DSPARK):
        _block(out, kind)
    else:
        _serial(out, release, draft)
    if shape == "ragged" and out["verify.mode"] != "static":
        _planned(out, release, kind)


def _model(out: Out, kind: str) -> None:
    if out.inside:
        text = (
            f"no reference of {TITLE} says that {kind} finds its draft in the target's checkpoint"
        )
        out.lose("draft.model", text)
    else:
        _set(out, speculative_model=model_of(out, "draft"))


def _named(out: Out, release: Release) -> None:
    """The name of a draft model's type, which source and guide of a release spell differently."""
    if release.version.startswith("1.4"):
        text = f"{release.title} is told `{SMALL}`, as its classes say; its guide has `DraftTarget`"
        out.bend("draft.algorithm", f"{text}: check which one yours takes")


def _guesses(out: Out, draft: str) -> int:
    if draft in ("NGRAM", "DFLASH", "DSPARK"):
        return int(out["verify.num_draft_tokens"]) - 1
    return int(out["draft.num_steps"])


def _shape(out: Out, release: Release, kind: str, shape: str) -> None:
    """A chain, or a dynamic tree of so many tokens without its root."""
    if shape != "tree":
        return
    if kind not in release.trees:
        text = f"{release.title} has no tree of {kind}"
        out.refuse("verify.shape", text, NO_SHAPE if kind == NGRAM else NO_TREE)
        return
    steps, topk = out["draft.num_steps"], out["draft.topk"]
    nodes = out["verify.num_draft_tokens"] - 1
    if not steps <= nodes <= steps * topk:
        text = f"{TITLE} has {steps} to {steps * topk} tokens in such a tree, not {nodes}"
        out.refuse("verify.num_draft_tokens", f"{text}, the bonus token not among them")
        return
    _set(out, use_dynamic_tree=True, dynamic_tree_max_topK=topk, max_total_draft_tokens=nodes)


def _accept(out: Out, release: Release, kind: str) -> None:
    """What is drawn from the target is compared, or guesses are judged by rejection."""
    rule = out["verify.accept"]
    if rule in ("rejection", "block"):
        if kind == EAGLE3 and release.has("use_rejection_sampling"):
            _set(out, use_rejection_sampling=True)
            if rule == "block":
                text = f"{TITLE} judges guesses one by one, by rejection; same law"
                out.bend("verify.accept", text)
        else:
            text = f"{release.title} draws from the target and compares for {kind}; same law"
            out.bend("verify.accept", text)
    if out["sampling.temperature"] > 0 and not release.has("use_rejection_sampling"):
        _set(out, allow_advanced_sampling=True)  # else a draft in the model is greedy
    out.no_thresholds(f"{TITLE} accepts by the target's law alone")


def _lookup(out: Out) -> None:
    """A pool of what followed stands for a trie."""
    _set(out, max_matching_ngram_size=out["draft.max_trie_depth"] - 1)
    recent = out["draft.order"] == "recency"
    if recent:
        _set(out, is_use_oldest=False)
    else:
        out.lose("draft.order", f"{TITLE} keeps no counts: the oldest match is copied")
    text = f"{TITLE} looks up a pool of matches, the longest first; specflow keeps a trie"
    out.bend("draft.algorithm", text)
    for name in ("min_match", "full_match", "narrow_tokens", "capacity", "insert_prompt"):
        if out.wrote(f"draft.{name}"):
            out.lose(f"draft.{name}", f"{TITLE} has no such limit of its look-up")


def _block(out: Out, kind: str) -> None:
    """A block draft reads most of what it is from its own config.json."""
    width, block = out["verify.num_draft_tokens"], out["draft.block_size"]
    if not out.known("draft.block_size"):
        text = f"{width - 1} guesses go across; the size of the draft's own block is not known here"
        out.bend("draft.block_size", text)
    elif kind == DSPARK and width == block + 1:
        _set(out, block_size=block)
    elif kind == DSPARK:
        out.bend("draft.block_size", f"{TITLE} is told of {width - 1} guesses alone")
    elif out["draft.predicts"] == "next":
        text = f"a row of {TITLE}'s {DFLASH} guesses its own position's token"
        out.refuse("draft.predicts", text)
    elif width != block:
        text = f"{TITLE}'s block is what it verifies, {width - 1} guesses"
        out.bend("draft.block_size", text)
    if out.wrote("draft.mask_token"):
        _set(out, mask_token_id=out["draft.mask_token"])
    if out.wrote("draft.taps"):
        # Ours name what enters a layer, theirs what a layer puts out.
        _set(out, target_layer_ids=[tap - 1 for tap in out["draft.taps"]])
    for path in ("draft.window_size", "draft.page_size"):
        if out.wrote(path):
            out.lose(path, f"{TITLE} reads the window from the draft's config.json")


def _serial(out: Out, release: Release, draft: str) -> None:
    if draft == "EAGLE3" and out.wrote("draft.taps"):
        layers = [tap - 1 for tap in out["draft.taps"]]
        _set(out, eagle3_layers_to_capture=layers)
    layered = out.recipe.facts["target"].mtp_layers > 1
    if draft == "MULTI_LAYER_EAGLE":
        text = f"{TITLE} tells it from the MTP layers of the checkpoint"
        out.bend("draft.algorithm", text)
    elif draft == "EAGLE" and layered:
        text = f"{TITLE} runs an MTP layer a guess where the checkpoint has several"
        out.lose("draft.algorithm", text)
    if out.has("draft.adaptive") and out["draft.adaptive"]:
        _adaptive(out, release)


def _adaptive(out: Out, release: Release) -> None:
    """Slots become a schedule: the most steps of each, whatever acceptance says."""
    slots = out["draft.adaptive_slots"]
    schedule = to_schedule(slots, upwards=release.upwards)
    longest = schedule[min(schedule)]
    wrong = fault(schedule, longest, upwards=release.upwards)
    if wrong or longest < 1:
        text = f"{TITLE} guesses most at the smallest batch: {wrong or 'nothing is drafted there'}"
        for path in ("draft.adaptive", "draft.adaptive_slots", "verify.num_draft_tokens"):
            out.lose(path, text)
        return
    _set(out, max_draft_len=longest, draft_len_schedule=schedule)
    if out.args[key(TYPE)] == MTP:
        _set(out, **{release.counts: longest})
    text = f"{TITLE} takes the most steps of a slot, whatever acceptance says"
    out.bend("draft.adaptive_slots", text)
    out.bend("draft.num_steps", f"{TITLE} starts with {longest}, those of the smallest batch")


def _planned(out: Out, release: Release, kind: str) -> None:
    """How much is verified: by a draft's confidence, and two files of its own making."""
    if not release.has("enable_confidence_scheduling", kind):
        out.lose("verify.shape", f"{release.title} verifies every guess of {kind}")
        return
    _set(out, enable_confidence_scheduling=True)
    facts = out.recipe.facts
    files = {
        "verify.cost_table": ("confidence_cost_table_path", facts.cost),
        "verify.temperatures": ("confidence_calibration_path", facts.heat),
    }
    for path, (name, file) in files.items():
        if out[path]:
            _set(out, **{name: str(file.path)})
            out.bend(path, f"{TITLE}'s {name} may have another form than specflow's file")
    if out["verify.mode"] != "compact":
        out.lose("verify.mode", f"{TITLE} runs the planned positions only")
    if out["verify.confidence"] != "head":
        out.lose("verify.confidence", f"{TITLE} plans by a draft's confidence head alone")
    for path in ("verify.lag_steps", "verify.token_bucket"):
        if out.wrote(path):
            out.lose(path, f"{TITLE} plans by a schedule of its own")


def _run(out: Out) -> None:
    """What was written of a run; specflow's own defaults are for a laptop."""
    out.say(RUN)
    if out.wrote("run.prefill_chunk"):
        out.args["enable_chunked_prefill"] = True
        text = f"{TITLE}'s budget is of all tokens of a step, those that are decoded among them"
        out.bend("run.prefill_chunk", text)
    if out.wrote("run.device") and out["run.device"] != "cuda":
        out.lose("run.device", f"{TITLE} runs on NVIDIA GPUs alone")
    elif out.wrote("run.device"):
        out.bend("run.device", f"{TITLE} runs on NVIDIA GPUs, and no key says so")
    if out.wrote("run.threads") and out["run.threads"]:
        out.lose("run.threads", f"{TITLE} has no such key")


def _pass_through(out: Out, release: Release) -> None:
    """The keys under `engine.trtllm`, nested or dotted; one that a field says is refused."""
    own = spread(checked(out.own(NAME), release))
    if own.get(key(TYPE)) == EAGLE and out.args.get(key(TYPE)) == EAGLE3:
        own[key(TYPE)] = EAGLE3  # an earlier name of the same
    out.pass_through(NAME, own, first=(OVERLAP,))
    kind = out.args.get(key(TYPE))
    if kind is not None:
        release.held(str(kind), out.args)
    elif any(name.startswith(f"{SPEC}.") for name in own):
        text = "the recipe drafts nothing, and a speculative_config needs its decoding_type"
        out.refuse(f"engine.{NAME}.{SPEC}", text)
