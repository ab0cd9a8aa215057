"""A recipe as arguments of SGLang, and arguments as a recipe; what does not go across is named."""

from __future__ import annotations

import json
from typing import TypeGuard

from specflow.engines.base import Export, Out, model_of
from specflow.engines.command_line import sayable
from specflow.engines.configs import draft_config, target_config
from specflow.engines.outcome import START, Effective, Refused
from specflow.engines.sglang.env import LAG, RAGGED
from specflow.engines.sglang.flags import FLAGS
from specflow.engines.sglang.names import DRAFT, NAME, STEPS, TOKENS, TOPK
from specflow.engines.sglang.resolver import effective
from specflow.engines.sglang.tables import ADAPTIVE_SLOTS, EAGLES, MIXED_CHUNK
from specflow.recipe import ResolvedRecipe

SLOTS_FILE = "adaptive_slots.json"
# Ours to theirs; a name that is not here is the same there.
NAMES = {"MULTI_LAYER_EAGLE": "EAGLE"}
SERIAL = ("STANDALONE", "EAGLE", "EAGLE3", "MULTI_LAYER_EAGLE", "FROZEN_KV_MTP")
REDUCED = "SGLang judges a draft of fewer words than its target by the target alone; same law"
ORDERS = {"recency": "BFS", "frequency": "PROB"}


def to_args(recipe: ResolvedRecipe, platform: str = "h100") -> Export:
    """A resolved recipe as SGLang's arguments, in canonical names.

    platform  what it is to run on: a tree needs a backend and a page that it can have there
    """
    out = Out(recipe)
    draft, shape, _ = recipe.stages
    out.args["model_path"] = _model(out, "target")
    if draft != "NONE":
        out.args[NAME] = NAMES.get(draft, draft)
        _path(out, draft)
    if draft in SERIAL:
        _serial(out, draft)
    elif draft == "NGRAM":
        _ngram(out, shape)
    elif draft in ("DFLASH", "DSPARK"):
        _block(out, draft)
    if draft != "NONE":
        _ragged(out, draft, shape)
        _accept(out, draft)
    out.commit("SGLang")
    _run(out)
    out.ask("SGLang", {"seed": "sampling_seed"})
    out.pass_through("sglang", sayable(FLAGS, FLAGS.checked(out.own("sglang"))))
    _pin_backend(out, platform)
    return out.done()


def _model(out: Out, block: str) -> str:
    """A model as SGLang finds it."""
    name = model_of(out, block)
    if name.endswith(".gguf"):
        out.bend(f"{block}.model", "SGLang reads the tokenizer of a GGUF file from elsewhere")
    return name


def _path(out: Out, draft: str) -> None:
    """The draft's path, where it is not in the target's checkpoint."""
    if draft != "NGRAM" and not out.inside:
        out.args[DRAFT] = _model(out, "draft")


def _serial(out: Out, draft: str) -> None:
    """Steps, branches and width, always together (exporter's note 2)."""
    out.args |= {
        STEPS: out["draft.num_steps"],
        TOPK: out["draft.topk"],
        TOKENS: out["verify.num_draft_tokens"],
    }
    if draft == "MULTI_LAYER_EAGLE":
        out.args["enable_multi_layer_eagle"] = True
    if out.has("draft.adaptive") and out["draft.adaptive"]:
        _adaptive(out)
    if out.wrote("draft.taps"):
        out.lose("draft.taps", "SGLang reads the taps from the draft's config.json")


def _adaptive(out: Out) -> None:
    out.args["speculative_adaptive"] = True
    out.args[TOKENS] = out["draft.num_steps"] + 1  # SGLang counts the steps it starts with
    slots = {size: tuple(steps) for size, steps in out["draft.adaptive_slots"]}
    if slots == ADAPTIVE_SLOTS:
        return
    said = {str(size): {"candidate_steps": list(steps)} for size, steps in sorted(slots.items())}
    out.files[SLOTS_FILE] = json.dumps(said, indent=2) + "\n"
    out.args["speculative_adaptive_config"] = SLOTS_FILE
    if out["draft.num_steps"] not in {s for steps in slots.values() for s in steps}:
        out.lose("draft.num_steps", "SGLang starts with a number of steps that a slot has")


def _ngram(out: Out, shape: str) -> None:
    """No topk: SGLang takes the breadth for it (exporter's note 3)."""
    least, most = out["draft.breadth"] if shape == "tree" else (1, 1)
    out.args |= {
        TOKENS: out["verify.num_draft_tokens"],
        "speculative_ngram_min_bfs_breadth": least,
        "speculative_ngram_max_bfs_breadth": most,
        "speculative_ngram_match_type": ORDERS[out["draft.order"]],
        "speculative_ngram_max_trie_depth": out["draft.max_trie_depth"],
        "speculative_ngram_capacity": out["draft.capacity"],
    }
    for path in ("draft.min_match", "draft.full_match", "draft.narrow_tokens"):
        if out.wrote(path):
            out.lose(path, "SGLang verifies the whole width whatever matches")
    if not out["draft.insert_prompt"]:
        out.lose("draft.insert_prompt", "SGLang puts every prompt into the trie")
    out.bend("draft.order", f"SGLang expands the trie by {ORDERS[out['draft.order']]}")


def _block(out: Out, draft: str) -> None:
    """The block by the flag of its algorithm, and nothing of steps (exporter's note 3)."""
    _block_size(out, draft)
    window = "draft.window_size"
    if out.wrote(window) and out[window]:
        if draft == "DFLASH":
            out.args["speculative_draft_window_size"] = out[window]
        else:
            out.lose(window, "SGLang keeps all of a DSPARK draft's KV")
    for path in ("draft.taps", "draft.mask_token"):
        if out.wrote(path):
            out.lose(path, "SGLang reads it from the draft's config.json")
    if out.wrote("draft.page_size"):
        out.lose("draft.page_size", "SGLang has no pages of a draft's window")


def _block_size(out: Out, draft: str) -> None:
    """The flag of the algorithm; left out where only the checkpoint says it."""
    width = out["verify.num_draft_tokens"]
    sized = out.known("draft.block_size")
    if not sized and not out.known("verify.num_draft_tokens"):
        text = "it is the checkpoint's, which SGLang reads and specflow has not here"
        out.bend("draft.block_size", text)
    elif draft == "DSPARK":
        block = out["draft.block_size"] if sized else width - 1
        out.args["speculative_dspark_block_size"] = block
        if width != block + 1:
            text = f"SGLang verifies a block of {block} and one more, not {width}"
            out.lose("verify.num_draft_tokens", text)
    else:
        ahead = out["draft.predicts"] == "next"
        out.args["speculative_dflash_block_size"] = out["draft.block_size"] if ahead else width
        if ahead:
            text = "a row of SGLang's DFLASH guesses its own position's token"
            out.lose("draft.predicts", text)
            out.lose("verify.num_draft_tokens", "SGLang counts the bonus token into the block")
        elif sized and width != out["draft.block_size"]:
            out.bend("draft.block_size", f"SGLang's block is what it verifies, {width}")


def _ragged(out: Out, draft: str, shape: str) -> None:
    """How much is verified: a variable, two files and a switch."""
    if shape != "ragged" or out["verify.mode"] == "static":
        return
    if draft != "DSPARK":
        out.lose("verify.shape", f"SGLang plans the verify of DSPARK alone, not of {draft}")
        return
    out.env[RAGGED] = out["verify.mode"]
    if out["verify.confidence"] != "head":
        out.lose("verify.confidence", "SGLang plans by a draft's confidence head alone")
    facts = out.recipe.facts
    if out["verify.cost_table"]:
        out.args["speculative_dspark_sps_table_path"] = facts.cost.path
    if out["verify.temperatures"]:
        out.args["speculative_dspark_confidence_sts_path"] = facts.heat.path
    if out.wrote("verify.lag_steps"):
        out.env[LAG] = str(out["verify.lag_steps"])
    if out.wrote("verify.token_bucket") and out["verify.token_bucket"] > 1:
        out.args["speculative_dspark_align_verify_tokens_to_graph_tier"] = True
        out.bend("verify.token_bucket", "SGLang fills up to the sizes its graphs were captured for")


def _accept(out: Out, draft: str) -> None:
    """The rule of acceptance, which SGLang picks by flags and by algorithm (section 5)."""
    rule = out["verify.accept"]
    if rule == "rejection":
        _rejection(out, draft)
    elif rule == "block":
        _block_verification(out, draft)
    elif rule == "target_only" and draft == "DSPARK":
        out.bend("verify.accept", "SGLang judges sampled DSPARK guesses by rejection; same law")
    for key in ("single", "acc"):
        value = out[f"verify.threshold_{key}"]
        if value == 1.0:
            continue
        if draft == "DSPARK" or rule in ("rejection", "block"):
            out.lose(f"verify.threshold_{key}", "SGLang does not read it here")
        else:
            out.args[f"speculative_accept_threshold_{key}"] = value


def _rejection(out: Out, draft: str) -> None:
    if draft == "DSPARK":
        return  # what it does anyway
    if out.recipe.facts.net.has_map:
        out.bend("verify.accept", REDUCED)
    elif NAMES.get(draft, draft) in EAGLES:
        out.args["speculative_use_rejection_sampling"] = True
    else:
        out.bend("verify.accept", f"SGLang judges {draft} guesses by the target alone; same law")


def _block_verification(out: Out, draft: str) -> None:
    if out.recipe.facts.net.has_map and NAMES.get(draft, draft) in EAGLES:
        out.bend("verify.accept", REDUCED)
    elif NAMES.get(draft, draft) in MIXED_CHUNK:
        out.args["speculative_use_block_verification"] = True
    else:
        out.bend("verify.accept", f"SGLang judges {draft} guesses by the target alone; same law")


def _pin_backend(out: Out, platform: str) -> None:
    """A tree names its backend and page: SGLang picks both before it knows of a tree (note 4)."""
    branches = out.args.get(TOPK) or out.args.get("speculative_ngram_max_bfs_breadth") or 1
    if branches <= 1:
        return
    given = (target_config(out.recipe), draft_config(out.recipe), platform, out.env)
    found = effective(out.args, *given)
    tried = {"attention_backend": "triton", "page_size": 1}
    if _has_trees(found):
        out.args |= {name: found[name] for name in tried}
    elif any(name in out.args for name in tried):
        return  # whoever wrote one of them under `engine` decides
    elif _has_trees(effective(out.args | tried, *given)):
        out.args |= tried
        text = f"on {platform} SGLang has trees on triton, with a page of one token"
        out.bend("verify.shape", text)


def _has_trees(found: Effective | Refused) -> TypeGuard[Effective]:
    """Whether the engine starts, and its backend goes on to verify a tree (A5 to A16)."""
    if isinstance(found, Refused):
        return False
    return not any(n.kind is START and n.rule.startswith("A") for n in found.notes)


RUN = {
    "run.batch_size": "max_running_requests",
    "run.max_length": "context_length",
    "run.prefill_chunk": "chunked_prefill_size",
    "run.dtype": "dtype",
    "run.device": "device",
    "run.load_format": "load_format",
}


def _run(out: Out) -> None:
    """What was written of a run; specflow's own defaults are for a laptop."""
    out.say(RUN)
    if out.wrote("run.threads") and out["run.threads"]:
        out.lose("run.threads", "SGLang has no such flag")
