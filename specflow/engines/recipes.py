"""A recipe as arguments of SGLang, and arguments as a recipe; what does not go across is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specflow.engines.configs import draft_config, target_config
from specflow.engines.outcome import Effective, Refused
from specflow.engines.sglang import effective
from specflow.engines.sglang_env import LAG, RAGGED
from specflow.engines.sglang_flags import defaults
from specflow.engines.sglang_tables import ADAPTIVE_SLOTS, EAGLES, MIXED_CHUNK
from specflow.provenance import Origin
from specflow.recipe import ResolvedRecipe

STEPS, TOPK, TOKENS = (
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
NAME, DRAFT = "speculative_algorithm", "speculative_draft_model_path"
SLOTS_FILE = "adaptive_slots.json"
# Ours to theirs; a name that is not here is the same there.
NAMES = {"MULTI_LAYER_EAGLE": "EAGLE"}
SERIAL = ("STANDALONE", "EAGLE", "EAGLE3", "MULTI_LAYER_EAGLE", "FROZEN_KV_MTP")
ORDERS = {"recency": "BFS", "frequency": "PROB"}
WRITTEN = (Origin.USER, Origin.OVERRIDE, Origin.ALIAS)


@dataclass(frozen=True)
class Gap:
    """A field, or a flag, that does not go across as it is."""

    at: str
    text: str


@dataclass(frozen=True)
class Export:
    """A recipe for an engine.

    args         flags by name
    env          variables that the server reads
    files        files that the arguments name and that are not there yet, by name
    requests     what a request says, not the server
    lost         what the engine cannot say: it will do otherwise
    approximate  what it says differently
    """

    args: Mapping[str, Any]
    env: Mapping[str, str]
    files: Mapping[str, str]
    requests: Mapping[str, Any]
    lost: tuple[Gap, ...]
    approximate: tuple[Gap, ...]


@dataclass(frozen=True)
class Import:
    """Arguments as a recipe: nested fields, and the flags that no field says."""

    written: Mapping[str, Any]
    lost: tuple[Gap, ...]


@dataclass
class _Out:
    """An export in the making."""

    recipe: ResolvedRecipe
    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)
    lost: list[Gap] = field(default_factory=list)
    approximate: list[Gap] = field(default_factory=list)

    def __getitem__(self, path: str) -> Any:
        return self.recipe[path]

    def has(self, path: str) -> bool:
        """Whether the recipe has a field."""
        return path in self.recipe

    def wrote(self, path: str) -> bool:
        """Whether somebody wrote a field, rather than a default or a checkpoint."""
        return path in self.recipe and self.recipe.ledger[path].origin in WRITTEN

    def lose(self, path: str, text: str) -> None:
        """A field the engine has no word for."""
        self.lost.append(Gap(path, text))

    def bend(self, path: str, text: str) -> None:
        """A field the engine takes another way."""
        self.approximate.append(Gap(path, text))


def to_args(recipe: ResolvedRecipe, platform: str = "h100") -> Export:
    """A resolved recipe as SGLang's arguments, in canonical names.

    platform  what it is to run on: a tree needs a backend and a page that it can have there
    """
    out = _Out(recipe)
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
    _run(out)
    _sampling(out)
    _pin_backend(out, platform)
    return Export(
        out.args,
        out.env,
        out.files,
        out.requests,
        tuple(out.lost),
        tuple(out.approximate),
    )


def _model(out: _Out, block: str) -> str:
    """A model as the engine finds it: those that ship with specflow are folders."""
    facts = out.recipe.facts[block]
    name = str(out[f"{block}.model"])
    if name.startswith("builtin:") and facts.folder is not None:
        return str(facts.folder)
    if name.endswith(".gguf"):
        out.bend(f"{block}.model", "SGLang reads the tokenizer of a GGUF file from elsewhere")
    return name


def _path(out: _Out, draft: str) -> None:
    """The draft's path, where it is not in the target's checkpoint."""
    inside = out.recipe.facts.net.bundled or not out.has("draft.model")
    if draft != "NGRAM" and not inside and out["draft.model"] != out["target.model"]:
        out.args[DRAFT] = _model(out, "draft")


def _serial(out: _Out, draft: str) -> None:
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


def _adaptive(out: _Out) -> None:
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


def _ngram(out: _Out, shape: str) -> None:
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


def _block(out: _Out, draft: str) -> None:
    """The block by the flag of its algorithm, and nothing of steps (exporter's note 3)."""
    width = out["verify.num_draft_tokens"]
    if draft == "DSPARK":
        block = out["draft.block_size"]
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
        elif width != out["draft.block_size"]:
            out.bend("draft.block_size", f"SGLang's block is what it verifies, {width}")
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


def _ragged(out: _Out, draft: str, shape: str) -> None:
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


def _accept(out: _Out, draft: str) -> None:
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


def _rejection(out: _Out, draft: str) -> None:
    if draft == "DSPARK":
        return  # what it does anyway
    if NAMES.get(draft, draft) in EAGLES:
        out.args["speculative_use_rejection_sampling"] = True
    else:
        out.bend("verify.accept", f"SGLang judges {draft} guesses by the target alone; same law")


def _block_verification(out: _Out, draft: str) -> None:
    if NAMES.get(draft, draft) in MIXED_CHUNK:
        out.args["speculative_use_block_verification"] = True
    else:
        out.bend("verify.accept", f"SGLang judges {draft} guesses by the target alone; same law")


def _pin_backend(out: _Out, platform: str) -> None:
    """A tree names its backend and page: SGLang picks both before it knows of a tree (note 4)."""
    branches = out.args.get(TOPK) or out.args.get("speculative_ngram_max_bfs_breadth") or 1
    if branches <= 1:
        return
    given = (target_config(out.recipe), draft_config(out.recipe), platform, out.env)
    found = effective(out.args, *given)
    tried = {"attention_backend": "triton", "page_size": 1}
    if isinstance(found, Refused) and not isinstance(effective(out.args | tried, *given), Refused):
        out.args |= tried
        text = f"on {platform} SGLang has trees on triton, with a page of one token"
        out.bend("verify.shape", text)
    elif isinstance(found, Effective):
        out.args |= {name: found[name] for name in tried}


_DTYPES = ("float32", "bfloat16", "float16")
_RUN = {
    "run.batch_size": "max_running_requests",
    "run.max_length": "context_length",
    "run.prefill_chunk": "chunked_prefill_size",
    "run.dtype": "dtype",
    "run.device": "device",
}


def _run(out: _Out) -> None:
    """What was written of a run; specflow's own defaults are for a laptop."""
    for path, flag in _RUN.items():
        if out.wrote(path):
            out.args[flag] = out[path]
    if out.wrote("run.threads") and out["run.threads"]:
        out.lose("run.threads", "SGLang has no such flag")


def _sampling(out: _Out) -> None:
    """What SGLang takes with each request."""
    names = {"seed": "sampling_seed"}
    for key in type(out.recipe.sampling).model_fields:
        if out.wrote(f"sampling.{key}"):
            value = out[f"sampling.{key}"]
            out.requests[names.get(key, key)] = list(value) if key == "stop" else value
    if out.requests:
        said = ", ".join(out.requests)
        out.bend("sampling", f"SGLang takes {said} with each request, not when it starts")


def from_args(args: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Import:
    """Arguments of SGLang as the fields of a recipe; no model has to be here."""
    back = _Back({k: v for k, v in args.items() if v is not None}, dict(env or {}))
    return back.run()


class _Back:
    """An import in the making: flags are taken off as they are understood."""

    def __init__(self, args: dict[str, Any], env: dict[str, str]) -> None:
        self.args = args
        self.env = env
        self.written: dict[str, dict[str, Any]] = {}
        self.lost: list[Gap] = []

    def run(self) -> Import:
        """Every block of a recipe, then what is left over."""
        self._put("target.model", self.args.pop("model_path", None))
        name = self._name()
        self._put("draft.model", self.args.pop(DRAFT, None))
        if name in SERIAL or name == "NEXTN":
            self._serial(name)
        elif name == "NGRAM":
            self._ngram()
        elif name in ("DFLASH", "DSPARK"):
            self._block(name)
        self._accept(name)
        self._run()
        self._rest()
        return Import(self.written, tuple(self.lost))

    def _put(self, path: str, value: Any) -> None:
        if value is not None:
            block, _, key = path.partition(".")
            self.written.setdefault(block, {})[key] = value

    def _lose(self, flag: str, text: str) -> None:
        self.lost.append(Gap("--" + flag.replace("_", "-"), text))

    def _name(self) -> str:
        name = str(self.args.pop(NAME, None) or "NONE").upper()
        multi = self.args.pop("enable_multi_layer_eagle", False)
        if multi and name in ("EAGLE", "NEXTN"):
            name = "MULTI_LAYER_EAGLE"
        elif multi:
            self._lose("enable_multi_layer_eagle", f"it does nothing for {name}")
        known = (*SERIAL, "NEXTN", "NGRAM", "DFLASH", "DSPARK", "NONE")
        if name not in known:
            self._lose(NAME, f"specflow has no draft {name}; this recipe drafts nothing")
            name = "NONE"
        self._put("draft.algorithm", name)
        return name

    def _serial(self, name: str) -> None:
        topk = self.args.pop(TOPK, None)
        self._put("draft.num_steps", self.args.pop(STEPS, None))
        self._put("draft.topk", topk)
        tokens = self.args.pop(TOKENS, None)
        if topk is not None and topk > 1:
            self._put("verify.shape", "tree")
        if self.args.pop("speculative_adaptive", False):
            self._adaptive(name)  # the width of a step is that of its own steps
        else:
            self._put("verify.num_draft_tokens", tokens)

    def _adaptive(self, name: str) -> None:
        path = self.args.pop("speculative_adaptive_config", None)
        if name not in ("EAGLE", "EAGLE3", "NEXTN"):
            self._lose("speculative_adaptive", f"{name} takes a fixed number of steps")
            return
        self._put("draft.adaptive", True)
        if path is None:
            return
        try:
            said = json.loads(Path(path).read_text(encoding="utf-8"))
            slots = {int(k): list(v["candidate_steps"]) for k, v in said.items() if k.isdigit()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self._lose("speculative_adaptive_config", f"no slots can be read from {path}")
            return
        self._put("draft.adaptive_slots", slots)

    def _ngram(self) -> None:
        fields = "speculative_ngram_"
        least = self.args.pop(f"{fields}min_bfs_breadth", 1)
        most = self.args.pop(f"{fields}max_bfs_breadth", 10)
        self.args.pop(TOPK, None)  # SGLang itself puts the breadth there
        self.args.pop(STEPS, None)
        if most > 1:
            self._put("draft.breadth", [least, most])
        self._put("verify.shape", "tree" if most > 1 else "chain")
        self._put("verify.num_draft_tokens", self.args.pop(TOKENS, None))
        self._put("draft.max_trie_depth", self.args.pop(f"{fields}max_trie_depth", None))
        self._put("draft.capacity", self.args.pop(f"{fields}capacity", None))
        kind = self.args.pop(f"{fields}match_type", None)
        by_kind = {theirs: ours for ours, theirs in ORDERS.items()}
        self._put("draft.order", by_kind.get(kind or ""))

    def _block(self, name: str) -> None:
        tokens = self.args.pop(TOKENS, None)
        block = self.args.pop(f"speculative_{name.lower()}_block_size", None)
        if block is None and tokens is not None:
            block = tokens if name == "DFLASH" else tokens - 1
        self._put("draft.block_size", block)
        for flag in (STEPS, TOPK):
            if self.args.pop(flag, 1) != 1:
                self._lose(flag, f"{name} guesses a block in one step of one branch")
        window = self.args.pop("speculative_draft_window_size", None)
        if name == "DFLASH":
            self._put("draft.window_size", window)
        elif window is not None:
            self._lose("speculative_draft_window_size", "it does nothing for DSPARK")
        if name == "DSPARK":
            self._ragged()

    def _ragged(self) -> None:
        mode = self.env.pop(RAGGED, "static")
        pops = {
            "verify.cost_table": "speculative_dspark_sps_table_path",
            "verify.temperatures": "speculative_dspark_confidence_sts_path",
        }
        found = {path: self.args.pop(flag, None) for path, flag in pops.items()}
        align = self.args.pop("speculative_dspark_align_verify_tokens_to_graph_tier", False)
        lag = self.env.pop(LAG, None)
        if mode == "static":
            for path, flag in pops.items():
                if found[path] is not None:
                    self._lose(flag, "it does nothing in mode static")
            return
        self._put("verify.shape", "ragged")
        self._put("verify.mode", mode)
        for path, value in found.items():
            self._put(path, value)
        if align:
            self._put("verify.token_bucket", 8)
        if lag is not None and lag.isdecimal():
            self._put("verify.lag_steps", int(lag))

    def _accept(self, name: str) -> None:
        rejection = self.args.pop("speculative_use_rejection_sampling", False)
        if self.args.pop("speculative_use_block_verification", False):
            self._put("verify.accept", "block")
        elif rejection:
            self._put("verify.accept", "rejection")
        for key in ("single", "acc"):
            value = self.args.pop(f"speculative_accept_threshold_{key}", None)
            if name != "NONE":
                self._put(f"verify.threshold_{key}", value)

    def _run(self) -> None:
        for path, flag in _RUN.items():
            value = self.args.pop(flag, None)
            strange = (flag == "dtype" and value not in _DTYPES) or (
                flag == "device" and value not in ("cpu", "cuda")
            )
            if value is None or value == "auto":
                continue
            if strange:
                self._lose(flag, f"specflow has no {flag} {value}")
            else:
                self._put(path, value)

    def _rest(self) -> None:
        for flag in ("attention_backend", "page_size"):
            if flag in self.args:
                self._lose(flag, "specflow's own kernels have no such choice")
                del self.args[flag]
        usual = defaults()
        for flag, value in self.args.items():
            if value != usual.get(flag):
                self._lose(flag, "no field of a recipe says it")
        self.lost += [Gap(key, "no field of a recipe says it") for key in self.env]
