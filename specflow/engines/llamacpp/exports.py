"""A recipe as arguments of llama.cpp's server; what does not go across is named."""

from __future__ import annotations

from typing import Any

from specflow.dummies import FORMAT as DUMMY
from specflow.engines.base import NO_SHAPE, NO_TREE, Export, Out, model_of
from specflow.engines.command_line import sayable
from specflow.engines.llamacpp.builds import (
    DFLASH,
    DSPARK,
    EAGLE3,
    LOOKUPS,
    MTP,
    SIMPLE,
    SIZED,
    Build,
)
from specflow.formats import VANILLA
from specflow.recipe import ResolvedRecipe

NAME = "llamacpp"
# How each of our drafts is drafted there; EAGLE only on MTP layers.
TYPES = {
    "STANDALONE": SIMPLE,
    "EAGLE": MTP,
    "EAGLE3": EAGLE3,
    "MULTI_LAYER_EAGLE": MTP,
    "FROZEN_KV_MTP": MTP,
    "DFLASH": DFLASH,
    "DSPARK": DSPARK,
}
BY_ORDER = {"recency": "ngram-simple", "frequency": "ngram-map-k4v"}
ORDER = "temperature;top_k;top_p;min_p"  # specflow's, which is not the server's own
CUTS = ("top_k", "top_p", "min_p")
NO_SEED = 2**32 - 1  # what the server takes for a random one
RUN = {"run.prefill_chunk": "ubatch_size", "run.threads": "threads"}


def to_args(recipe: ResolvedRecipe, build: Build) -> Export:
    """A resolved recipe as arguments of the server of a build."""
    out = Out(recipe)
    draft, shape, _ = recipe.stages
    out.args["model"] = _model(out, "target")
    if draft == "NGRAM":
        _lookup(out, build, shape)
    elif draft != "NONE":
        _drafts(out, build, draft)
    if draft != "NONE":
        _verify(out, shape)
    out.commit("llama.cpp")
    _run(out, build)
    _sampling(out)
    out.pass_through(NAME, sayable(build.flags, build.flags.checked(out.own(NAME))))
    return out.done()


def _own(out: Out, flag: str) -> Any:
    """What the recipe says of a flag by its own name, under `engine`."""
    return out.recipe.engine.get(NAME, {}).get(flag)


def _model(out: Out, block: str) -> str:
    """A model as llama.cpp finds it: a GGUF file."""
    name = model_of(out, block)
    if not name.endswith(".gguf"):
        beside = " beside the target's" if block == "draft" else ""
        text = f"llama.cpp reads GGUF files: convert this checkpoint{beside}, and name that file"
        out.bend(f"{block}.model", text)
    return name


def _drafts(out: Out, build: Build, draft: str) -> None:
    """A way of drafting, its model, and how many tokens it guesses."""
    kind = TYPES[draft]
    net = out.recipe.facts.net
    if draft == "EAGLE" and not (net.bundled or out.mtp):
        out.refuse("draft.algorithm", "llama.cpp has EAGLE3 and MTP layers, and no EAGLE")
        return
    if kind not in build.runs:
        out.refuse("draft.algorithm", f"{build.title} has no {kind}")
        return
    own = _own(out, "spec_type")
    listed = str(own).split(",") if own and build.listed else []
    if kind in build.types:
        out.args["spec_type"] = own if kind in listed else kind
    if not out.inside:
        out.args[build.model] = _model(out, "draft")
    elif kind == DSPARK:
        out.args[build.model] = out.args["model"]
        text = "llama.cpp reads the draft of a target's checkpoint from a GGUF file of its own"
        out.bend("draft.model", text)
    out.args[build.most] = _guesses(out, draft)
    surest = build.flags[build.surest].default
    if surest > 0 and _own(out, build.surest) is None:
        out.args[build.surest] = 0.0  # its default would end a guess that is less likely
    _checkpoint(out, build, draft)


def _guesses(out: Out, draft: str) -> int:
    if draft not in ("DFLASH", "DSPARK"):
        return int(out["draft.num_steps"])
    width, block = out["verify.num_draft_tokens"], out["draft.block_size"]
    if not out.known("draft.block_size"):
        text = f"{width - 1} guesses go across; the size of the draft's own block is not known here"
        out.bend("draft.block_size", text)
    elif width != block + (draft == "DSPARK"):
        out.bend("draft.block_size", f"llama.cpp's block is what it verifies, {width - 1} guesses")
    return int(width) - 1


def _checkpoint(out: Out, build: Build, draft: str) -> None:
    """What llama.cpp reads from the GGUF file of the draft, or takes in one way only."""
    net = out.recipe.facts.net
    layered = draft == "MULTI_LAYER_EAGLE"
    if draft == "EAGLE" and out.recipe.facts["target"].mtp_layers > 1:
        text = "llama.cpp runs an MTP layer a guess where the file has several, each its own"
        out.lose("draft.algorithm", text)
    if layered:
        out.bend("draft.algorithm", f"{build.title} tells it from the MTP layers in the file")
    if draft == "EAGLE3" and net.tap_count not in (0, 3):
        out.refuse("draft.taps", f"llama.cpp's draft-eagle3 reads 3 layers, not {net.tap_count}")
    if draft == "DFLASH" and out["draft.predicts"] == "next":
        text = "a row of llama.cpp's draft-dflash guesses its own position's token"
        out.refuse("draft.predicts", text)
    if draft == "DSPARK" and net.block.markov not in ("", VANILLA):
        text = f"llama.cpp converts Markov heads of the kind {VANILLA} alone"
        out.refuse("draft.model", f"{text}, not {net.block.markov}")
    for path in ("draft.taps", "draft.mask_token", "draft.window_size", "draft.page_size"):
        if out.wrote(path):
            out.lose(path, "llama.cpp reads it from the draft's GGUF file, or has none")
    if out.has("draft.adaptive") and out["draft.adaptive"]:
        for path in ("draft.adaptive", "draft.adaptive_slots", "verify.num_draft_tokens"):
            out.lose(path, f"llama.cpp guesses up to {out[_STEPS]} tokens at every batch size")


_STEPS = "draft.num_steps"


def _lookup(out: Out, build: Build, shape: str) -> None:
    """What a request said before stands for a trie that requests share."""
    if shape == "tree":
        out.refuse("verify.shape", "llama.cpp verifies chains alone", NO_SHAPE)
        return
    own = _own(out, "spec_type")
    asked = [n for n in str(own).split(",") if n in LOOKUPS] if own else []
    kind = asked[0] if asked else BY_ORDER[out["draft.order"]]
    if kind not in build.runs:
        out.refuse("draft.algorithm", f"{build.title} has no look-up: no --spec-type {kind}")
        return
    out.args["spec_type"] = own if asked else kind
    least, guesses = out["draft.min_match"], out["verify.num_draft_tokens"] - 1
    flag = f"spec_{kind.replace('-', '_')}"
    if kind in SIZED:
        out.args |= {f"{flag}_size_n": least, f"{flag}_size_m": guesses}
    elif kind == "ngram-mod":
        out.args |= {f"{flag}_n_match": least, f"{flag}_n_max": guesses}
        if _own(out, f"{flag}_n_min") is None:
            out.args[f"{flag}_n_min"] = 0  # its default would drop what is shorter
    shared = "one table for all requests" if kind == "ngram-mod" else "each request's own tokens"
    text = f"llama.cpp looks up {least} tokens in {shared}; specflow's requests share a trie"
    out.bend("draft.algorithm", text)
    if asked and kind != BY_ORDER[out["draft.order"]]:
        out.bend("draft.order", f"{kind} has an order of its own")
    keeps = ("full_match", "narrow_tokens", "max_trie_depth", "capacity", "insert_prompt")
    for key in keeps:
        if out.wrote(f"draft.{key}"):
            out.lose(f"draft.{key}", "llama.cpp keeps no trie, and copies what followed")


def _verify(out: Out, shape: str) -> None:
    """Chains, judged by what is drawn from the target: that is all there is."""
    if shape == "tree" and out.recipe.stages[0] != "NGRAM":
        out.refuse("verify.shape", "llama.cpp verifies chains alone", NO_TREE)
    if shape == "ragged" and out["verify.mode"] != "static":
        out.lose("verify.shape", "llama.cpp verifies every guess that it makes")
    if out["verify.accept"] in ("rejection", "block"):
        text = "llama.cpp draws from the target and compares, so fewer are accepted; same law"
        out.bend("verify.accept", text)
    out.no_thresholds("llama.cpp accepts what it draws from the target")


def _run(out: Out, build: Build) -> None:
    """What was written of a run; specflow's own defaults are for a laptop."""
    for path, flag in RUN.items():
        if out.wrote(path) and out[path]:
            out.args[flag] = out[path]
    if out.wrote("run.max_length") or out.wrote("run.batch_size"):
        out.args["parallel"] = out["run.batch_size"]
    if out.wrote("run.max_length"):
        # The server divides its context among its slots, unless they share it.
        parts = 1 if _own(out, "kv_unified") is True else out["run.batch_size"]
        out.args["ctx_size"] = out["run.max_length"] * parts
    if out.wrote("run.dtype"):
        out.lose("run.dtype", "llama.cpp computes in the types of the GGUF file")
    if out["run.load_format"] == DUMMY:
        out.lose("run.load_format", "llama.cpp reads its weights out of a GGUF file")
    if out.wrote("run.device"):
        layers = build.all_layers if out["run.device"] == "cuda" else 0
        out.args["gpu_layers"] = layers
        if build.model in out.args:
            out.args[build.layers] = layers


def _sampling(out: Out) -> None:
    """All of it, written or not: the server's own defaults draw, and cut."""
    temperature = out["sampling.temperature"]
    out.args["temp"] = float(temperature)
    if temperature > 0:
        out.args |= {key: out[f"sampling.{key}"] for key in CUTS}
        if out.recipe.sampling.cuts and temperature != 1 and _own(out, "samplers") is None:
            out.args["samplers"] = ORDER
    if out.wrote("sampling.seed"):
        if out["sampling.seed"] < NO_SEED:
            out.args["seed"] = out["sampling.seed"]
        else:
            out.lose("sampling.seed", "llama.cpp's seed has 32 bits")
    if out.wrote("sampling.max_new_tokens"):
        out.args["predict"] = out["sampling.max_new_tokens"]
    if out.wrote("sampling.ignore_eos") and out["sampling.ignore_eos"]:
        out.args["ignore_eos"] = True
    if out["sampling.stop"]:
        out.requests["stop"] = list(out["sampling.stop"])
        out.bend("sampling.stop", "llama.cpp takes it with each request, not when it starts")
