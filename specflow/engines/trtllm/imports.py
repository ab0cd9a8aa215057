"""Configurations of TensorRT-LLM as a recipe; what no field says is kept under `engine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specflow.engines.base import (
    DEEPEST,
    LOAD_FORMAT,
    MOST_GUESSES,
    NOTHING,
    Back,
    Beside,
    Import,
    fits,
    variables,
)
from specflow.engines.flags import folded
from specflow.engines.trtllm.exports import NAME, OUTSIDE, OVERLAP, RUN
from specflow.engines.trtllm.lines import spread
from specflow.engines.trtllm.releases import (
    DFLASH,
    DSPARK,
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
from specflow.engines.trtllm.schedules import fault, to_slots

ALGORITHMS = {
    SMALL: "STANDALONE",
    EAGLE: "EAGLE3",
    EAGLE3: "EAGLE3",
    MTP: "NEXTN",
    NGRAM: "NGRAM",
    DFLASH: "DFLASH",
    DSPARK: "DSPARK",
}


def from_args(
    args: Mapping[str, Any],
    env: Mapping[str, str],
    release: Release,
    beside: Beside = NOTHING,
) -> Import:
    """A configuration as the fields of a recipe; no model has to be here.

    Raises `Refusal` for a decoding type that the release has not, or a key that is none of it.
    """
    flat = {name: value for name, value in spread(args).items() if value is not None}
    return _Back(flat, variables(env), beside, release=release).run()


@dataclass
class _Back(Back):
    """An import in the making: keys are taken off as they are understood."""

    release: Release = field(kw_only=True)

    def called(self, flag: str) -> str:
        """A key by its name: there are no flags."""
        return flag

    def run(self) -> Import:
        """Every block of a recipe, then what is left over."""
        self.put("target.model", self.args.pop("model", None))
        kind = self._kind()
        if kind in ALGORITHMS:
            self._draft(kind)
        self._run()
        return self.done(NAME, self.release.flags, folded)

    def _take(self, name: str, default: Any = None) -> Any:
        return self.args.pop(key(name), default)

    def _kind(self) -> str:
        """The decoding type; where specflow has none, what belongs to it is dropped."""
        kind = self._take(TYPE)
        if kind is None:
            if any(name.startswith(f"{SPEC}.") for name in self.args):
                self.refuse(key(TYPE), "a speculative_config says which one it is of")
            self.put("draft.algorithm", "NONE")
            return ""
        self.release.held(kind, self.args)
        self.put("draft.algorithm", ALGORITHMS.get(kind, "NONE"))
        if kind not in ALGORITHMS:
            text = f"specflow has no draft {kind}; this recipe drafts nothing"
            self.lose(key(TYPE), text)
            self.args = {n: v for n, v in self.args.items() if not n.startswith(f"{SPEC}.")}
        return str(kind)

    def _draft(self, kind: str) -> None:
        model = self._take("speculative_model")
        if model is None and kind in (SMALL, EAGLE, EAGLE3, DFLASH):
            self.refuse(key("speculative_model"), f"{kind} needs one")
        if model is not None and kind in (NGRAM, MTP):
            self.lose(key("speculative_model"), f"it does nothing for {kind}")
        else:
            self.put("draft.model", model)
        guesses = self._guesses(kind)
        if kind in OUTSIDE and self.args.get(OVERLAP):
            self.args.pop(OVERLAP)
        if kind == NGRAM:
            self._lookup(guesses)
        elif kind in (DFLASH, DSPARK):
            self._block(kind, guesses)
        else:
            self._serial(kind, guesses)
        self._total(kind, guesses)
        self._accept(kind)

    def _guesses(self, kind: str) -> int:
        """How many tokens are guessed; MTP counts by its own key, or by the checkpoint."""
        longest, layers = self._take("max_draft_len"), self._take("num_nextn_predict_layers")
        if kind == MTP:
            first, second = (
                (layers, longest)
                if self.release.counts == "num_nextn_predict_layers"
                else (longest, layers)
            )
            if first is not None and second is not None and first != second:
                text = f"max_draft_len {longest} beside num_nextn_predict_layers {layers}"
                self.refuse(key("max_draft_len"), f"{text}: name one of them")
            longest = first if first is not None else second
            if longest is None:
                longest = self._layers()
        if longest is None or longest < 1:
            said = f"max_draft_len is above 0 for {kind}"
            self.refuse(key("max_draft_len"), said)
            longest = 1
        if longest > MOST_GUESSES:
            self.lose(key("max_draft_len"), f"a recipe guesses {MOST_GUESSES} tokens at most")
        return int(min(longest, MOST_GUESSES))

    def _layers(self) -> int:
        """The MTP layers of the checkpoint, which are counted where no number is said."""
        layers = (self.beside.target or {}).get("num_nextn_predict_layers")
        if isinstance(layers, int) and layers > 0:
            return layers
        text = "left open, a checkpoint's MTP layers are counted; this recipe guesses one"
        self.lose(key(self.release.counts), text)
        return 1

    def _total(self, kind: str, guesses: int) -> None:
        """All tokens of a tree; of a chain they are its guesses."""
        total = self._take("max_total_draft_tokens")
        if total is None or "shape" in self.written.get("verify", {}):
            return
        if total != guesses:
            text = f"{total} beside max_draft_len {guesses}: {kind} guesses a chain"
            self.refuse(key("max_total_draft_tokens"), text)

    def _serial(self, kind: str, guesses: int) -> None:
        self.put("draft.num_steps", guesses)
        topk = self._take("dynamic_tree_max_topK")
        tree = self._take("use_dynamic_tree", default=False) or topk is not None
        if tree and ("Eagle3" if kind == EAGLE else kind) in self.release.trees:
            self._tree(guesses, topk)
        elif tree:
            text = f"{self.release.title} is given a tree, and runs a chain of {kind}"
            self.lose(key("use_dynamic_tree"), text)
            self._take("max_total_draft_tokens")
            self.put("draft.topk", 1)
        else:
            self.put("draft.topk", 1)
        schedule = self._take("draft_len_schedule")
        if schedule is not None:
            self._adaptive(kind, guesses, schedule)
        self._taps("eagle3_layers_to_capture")

    def _tree(self, guesses: int, topk: int | None) -> None:
        if topk is None or not 1 <= topk <= 16:
            self.refuse(key("dynamic_tree_max_topK"), "a dynamic tree has 1 to 16 branches a step")
            return
        total = self._take("max_total_draft_tokens")
        if total is None:
            total = topk * guesses
        if not guesses <= total <= topk * guesses:
            text = f"{total} is not from max_draft_len {guesses} to {topk} times it"
            self.refuse(key("max_total_draft_tokens"), text)
        if total > MOST_GUESSES:
            self.lose(
                key("max_total_draft_tokens"), f"a recipe verifies {MOST_GUESSES} guesses at most"
            )
        self.put("draft.topk", topk)
        self.put("verify.shape", "tree" if topk > 1 else "chain")
        if topk > 1:
            self.put("verify.num_draft_tokens", min(total, MOST_GUESSES) + 1)

    def _adaptive(self, kind: str, guesses: int, schedule: Mapping[int, int]) -> None:
        name = key("draft_len_schedule")
        upwards = self.release.upwards
        wrong = fault(schedule, guesses, upwards=upwards)
        if self.args.get(key("max_concurrency")) is not None:
            wrong = "it stands beside max_concurrency: name one of them"
        if wrong:
            self.refuse(key("draft_len_schedule"), wrong)
        elif kind not in (EAGLE, EAGLE3, MTP):
            self.lose(name, f"a recipe has one number of steps for every batch of {kind}")
        elif self.written.get("verify", {}).get("shape") == "tree":
            self.lose(name, "a recipe's tree has one number of steps for every batch")
        else:
            self.put("draft.adaptive", value=True)
            slots = to_slots(schedule, upwards=upwards)
            self.put("draft.adaptive_slots", slots)
            text = "specflow lets acceptance choose within a slot; here each has one choice"
            self.bend(name, text)

    def _lookup(self, guesses: int) -> None:
        self.put("verify.shape", "chain")
        self.put("verify.num_draft_tokens", guesses + 1)
        longest = self._take("max_matching_ngram_size", 2)
        if not 1 <= longest < DEEPEST:
            text = f"a recipe's trie is {DEEPEST} deep at most"
            self.lose(key("max_matching_ngram_size"), text)
        depth = max(1, min(longest, DEEPEST - 1)) + 1
        self.put("draft.max_trie_depth", depth)
        self.put("draft.min_match", 1)
        if self._take("is_use_oldest", default=True):
            text = "specflow copies the newest match, or the most frequent"
            self.lose(key("is_use_oldest"), text)
        text = "specflow keeps a trie that requests share; NGram a pool of matches"
        self.bend(key(TYPE), text)

    def _block(self, kind: str, guesses: int) -> None:
        if kind == DFLASH:
            self.put("draft.block_size", min(guesses + 1, MOST_GUESSES))
        else:
            size = self._take("block_size")
            if size is not None and size != guesses:
                text = f"{size} beside max_draft_len {guesses}: DSpark guesses its whole block"
                self.refuse(key("block_size"), text)
            self.put("draft.block_size", guesses)
        mask = self._take("mask_token_id")
        self.put("draft.mask_token", mask if mask is None or mask >= 0 else None)
        self._taps("target_layer_ids")
        if self._take("draft_len_schedule") is not None:
            text = f"a recipe has one number of steps for every batch of {kind}"
            self.lose(key("draft_len_schedule"), text)
        if self._take("enable_confidence_scheduling", default=False):
            self.put("verify.shape", "ragged")
            files = {
                "verify.cost_table": "confidence_cost_table_path",
                "verify.temperatures": "confidence_calibration_path",
            }
            for path, name in files.items():
                value = self._take(name)
                self.put(path, value)
                if value is not None:
                    text = "specflow's file may have another form"
                    self.bend(key(name), text)

    def _taps(self, name: str) -> None:
        """Layers by what they put out, where a recipe can name them: none from the end."""
        layers = self.args.get(key(name))
        if not isinstance(layers, list | tuple) or not 1 <= len(layers) <= 16:
            return
        if all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in layers):
            self.put("draft.taps", [layer + 1 for layer in layers])
            self._take(name)

    def _accept(self, kind: str) -> None:
        rejection = self._take("use_rejection_sampling", default=False)
        if self.args.get(key("sa_config")) is not None:
            text = "a suffix automaton may guess in the draft's place; no field of a recipe says so"
            self.bend(key("sa_config"), text)
            if rejection:
                self.lose(key("use_rejection_sampling"), "it does nothing beside sa_config")
        elif rejection and kind in (EAGLE, EAGLE3):
            self.put("verify.accept", "rejection")
        elif rejection:
            text = f"{self.release.title} does it for Eagle3 alone, not for {kind}"
            self.lose(key("use_rejection_sampling"), text)
        self._take("allow_advanced_sampling")  # requests say what is drawn
        if self.args.get(key("use_relaxed_acceptance_for_thinking")):
            text = "relaxed acceptance changes the output's law; no field of a recipe says so"
            name = key("use_relaxed_acceptance_for_thinking")
            self.bend(name, text)

    def _run(self) -> None:
        for path, flag in RUN.items():
            value = self.args.get(flag)
            if value is None:
                continue
            if fits(path, value):
                self.put(path, self.args.pop(flag))
            elif value != "auto" and path != LOAD_FORMAT:
                self.lose(flag, f"a recipe's {path} cannot be {value}")
                self.args.pop(flag)
        if "prefill_chunk" in self.written.get("run", {}):
            self.args.pop("enable_chunked_prefill", None)
