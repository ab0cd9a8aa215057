"""A recipe as arguments of vLLM; what does not go across is named."""

from __future__ import annotations

from specflow.engines.base import NO_SHAPE, NO_TREE, Export, Out, model_of, ranges
from specflow.engines.command_line import sayable
from specflow.engines.flags import folded
from specflow.engines.vllm.lines import flat
from specflow.engines.vllm.names import REFINES, RUN, SERIAL, method_of
from specflow.engines.vllm.sampling import to_requests
from specflow.engines.vllm.versions import FACTS, SCHEDULE, flags_of, has, key, methods_of
from specflow.recipe import ResolvedRecipe

WIDEST = 1024  # requests of a batch: the last slot of a schedule has an end, ours has none


def to_args(recipe: ResolvedRecipe, version: str) -> Export:
    """A resolved recipe as vLLM's arguments; while they are made, keys of the draft are flags."""
    out = Out(recipe)
    draft, shape, _ = recipe.stages
    out.args["model"] = _model(out, "target")
    if draft != "NONE":
        _speculate(out, version, draft, shape)
    out.commit("vLLM")
    _run(out)
    to_requests(out, speculative=draft != "NONE")
    _pass_through(out, version)
    out.args = folded(out.args)
    return out.done()


def _speculate(out: Out, version: str, draft: str, shape: str) -> None:
    method = method_of(draft, "mtp" if out.mtp else out.recipe.facts.net.format)
    if method not in methods_of(version):
        out.refuse("draft.algorithm", f"vLLM {version} has no method `{method}`")
    if shape == "tree":
        text = "vLLM verifies chains alone: one guess follows another"
        out.refuse("verify.shape", text, NO_SHAPE if draft == "NGRAM" else NO_TREE)
    out.args[key("method")] = method
    _path(out, method)
    out.args[key("num_speculative_tokens")] = max(1, out["verify.num_draft_tokens"] - 1)
    if draft == "NGRAM":
        _ngram(out)
    elif draft in SERIAL:
        _serial(out, version, draft)
    else:
        _block(out, draft)
    if out.wrote("draft.taps"):
        out.lose("draft.taps", "vLLM reads the taps from the draft's config.json")
    _ragged(out, version, draft, shape)
    _accept(out, version)


def _model(out: Out, block: str) -> str:
    """A model as vLLM finds it."""
    name = model_of(out, block)
    if name.endswith(".gguf"):
        out.bend(f"{block}.model", "vLLM reads a GGUF file with a tokenizer from elsewhere")
    return name


def _path(out: Out, method: str) -> None:
    """The draft's path, where it is not in the target's checkpoint."""
    if method != "ngram" and not out.inside:
        out.args[key("model")] = _model(out, "draft")


def _ngram(out: Out) -> None:
    """Look-up of a request's own tokens stands for a trie that requests share."""
    least = out["draft.min_match"]
    out.args[key("prompt_lookup_min")] = least
    out.args[key("prompt_lookup_max")] = max(least, out["draft.max_trie_depth"] - 1)
    text = "vLLM looks up each request's own tokens; specflow's requests share a trie"
    out.bend("draft.algorithm", text)
    for path in ("draft.full_match", "draft.narrow_tokens"):
        if out.wrote(path):
            out.lose(path, "vLLM guesses all it is asked for whatever the match")
    for path in ("draft.order", "draft.capacity", "draft.insert_prompt", "draft.breadth"):
        if out.wrote(path):
            out.lose(path, "vLLM keeps no trie: the first earlier match is copied")


def _serial(out: Out, version: str, draft: str) -> None:
    if draft == "MULTI_LAYER_EAGLE":
        text = "vLLM runs the first MTP layer of this model again for every guess"
        out.bend("draft.algorithm", text)
    if out.has("draft.adaptive") and out["draft.adaptive"]:
        _adaptive(out, version)


def _adaptive(out: Out, version: str) -> None:
    """Slots become a schedule: the most steps of each, whatever acceptance says."""
    if not has(version, SCHEDULE):
        out.args[key("num_speculative_tokens")] = out["draft.num_steps"]
        out.lose("draft.adaptive", f"vLLM {version} has one number of guesses for every batch")
        return
    slots = out["draft.adaptive_slots"]
    rows = ranges(slots, WIDEST)
    out.args[key(SCHEDULE)] = [list(row) for row in rows]
    most = max(1, *(steps for _, _, steps in rows))
    out.args[key("num_speculative_tokens")] = most
    if out["draft.num_steps"] != most:
        text = f"vLLM is told the most steps of all slots, {most}"
        out.bend("draft.num_steps", text)
    if any(len(steps) > 1 for _, steps in slots):
        text = "vLLM takes the most steps of a slot, whatever acceptance says"
        out.bend("draft.adaptive_slots", text)


def _block(out: Out, draft: str) -> None:
    """The block is as many guesses as are asked for: its own size is not said."""
    if draft == "DFLASH" and out["draft.predicts"] == "next":
        text = "a row of vLLM's dflash guesses its own position's token, and no other kind is run"
        out.refuse("draft.predicts", text)
    width, block = out["verify.num_draft_tokens"], out["draft.block_size"]
    whole = block + (draft == "DSPARK" or out["draft.predicts"] == "next")
    if not (out.known("verify.num_draft_tokens") or out.known("draft.block_size")):
        guess = f"{width - 1} guesses are the usual: vLLM is told a number, and the draft's"
        out.bend("draft.block_size", f"{guess} own is not known here")
    elif width != whole and out.known("draft.block_size"):
        out.bend("draft.block_size", f"vLLM's block is what it verifies, {width - 1} guesses")
    if out.wrote("draft.window_size"):
        out.lose("draft.window_size", "vLLM reads the window from the draft's config.json")
    if out.wrote("draft.mask_token"):
        out.lose("draft.mask_token", "vLLM reads it from the draft's config.json")
    if out.wrote("draft.page_size"):
        out.lose("draft.page_size", "vLLM has no pages of a draft's window")


def _ragged(out: Out, version: str, draft: str, shape: str) -> None:
    """How much is verified: a switch, and costs that vLLM measures itself."""
    if shape != "ragged" or out["verify.mode"] == "static":
        return
    allowed = FACTS[version].adaptive
    method = str(out.args[key("method")])
    if not has(version, "enable_adaptive_verification") or (allowed and method not in allowed):
        out.lose("verify.shape", f"vLLM {version} verifies every guess of {draft}")
        return
    out.args[key("enable_adaptive_verification")] = True
    if out["verify.mode"] != "compact":
        out.lose("verify.mode", "vLLM runs the planned positions only")
    if out["verify.confidence"] != "head" and not allowed:
        out.bend("verify.confidence", "vLLM tells survival from the draft's own logits")
    elif out["verify.confidence"] != "head":
        out.lose("verify.confidence", "vLLM plans by a draft's confidence head alone")
    if out["verify.cost_table"]:
        out.lose("verify.cost_table", "vLLM measures the cost of its own steps when it starts")
    if out["verify.temperatures"]:
        out.lose("verify.temperatures", "vLLM takes confidences as the head says them")
    for path in ("verify.lag_steps", "verify.token_bucket"):
        if out.wrote(path):
            out.lose(path, "vLLM plans by its own schedule")


def _accept(out: Out, version: str) -> None:
    """The rule of acceptance, and what guesses are drawn from."""
    rule, strict = out["verify.accept"], FACTS[version].strict
    choices = flags_of(version)[key("rejection_sample_method")].choices
    if rule == "target_only":
        text = "vLLM judges the likeliest guess by rejection against itself alone; same law"
        out.bend("verify.accept", text)
    elif rule in ("rejection", "block") and strict:
        out.args[key("rejection_sample_method")] = "probabilistic"
    elif rule in ("rejection", "block"):
        named = rule if rule in choices else "standard"
        out.args[key("rejection_sample_method")] = named
        out.args[key("draft_sample_method")] = "probabilistic"
    if rule == "block" and rule not in choices:
        text = f"vLLM {version} judges guesses one by one, by rejection; same law"
        out.bend("verify.accept", text)
    out.no_thresholds("vLLM accepts by the target's law alone")


def _run(out: Out) -> None:
    """What was written of a run; specflow's own defaults are for a laptop."""
    out.say(RUN)
    if out.wrote("run.prefill_chunk"):
        text = "vLLM's budget is of all tokens of a step, those that are decoded among them"
        out.bend("run.prefill_chunk", text)
    if out.wrote("run.device"):
        out.bend("run.device", "vLLM runs on the device that it was built for")
    if out.wrote("run.threads") and out["run.threads"]:
        out.lose("run.threads", "vLLM has no such flag")


def _pass_through(out: Out, version: str) -> None:
    """The flags under `engine.vllm`; a method that refines the draft's own goes before it."""
    own, method = flat(out.own("vllm"), version), key("method")
    refined = REFINES.get(str(own.get(method))) == out.args.get(method)
    out.pass_through("vllm", sayable(flags_of(version), own), first=(method,) if refined else ())
