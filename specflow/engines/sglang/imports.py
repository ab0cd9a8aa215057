"""Arguments of SGLang as a recipe; what no field says is passed through under `engine`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specflow.engines.base import ENV, Gap, Import
from specflow.engines.sglang.env import LAG, RAGGED
from specflow.engines.sglang.exports import DTYPES, ORDERS, RUN, SERIAL
from specflow.engines.sglang.flags import FLAGS
from specflow.engines.sglang.names import DRAFT, NAME, STEPS, TOKENS, TOPK


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
        self.overruled: list[Gap] = []
        self.refused: list[Gap] = []

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
        overruled, refused = tuple(self.overruled), tuple(self.refused)
        return Import(self.written, tuple(self.lost), overruled=overruled, refused=refused)

    def _put(self, path: str, value: Any) -> None:
        if value is not None:
            block, _, key = path.partition(".")
            self.written.setdefault(block, {})[key] = value

    def _lose(self, flag: str, text: str) -> None:
        self.lost.append(Gap(_option(flag), text))

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
        topk, steps = self.args.pop(TOPK, None), self.args.pop(STEPS, None)
        self._put("draft.num_steps", steps)
        self._put("draft.topk", topk)
        tokens = self.args.pop(TOKENS, None)
        if topk == 1 and steps is not None and tokens not in (None, steps + 1):
            said = f"SGLang 0.5.23 will run {steps + 1}, not {tokens}: a chain of {steps} steps"
            self.overruled.append(Gap(_option(TOKENS), f"{said} (row E4 of its rules)"))
            tokens = None
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
        flag = f"speculative_{name.lower()}_block_size"
        block = self.args.pop(flag, None)
        self._agree(name, flag, block, tokens)
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

    def _agree(self, name: str, flag: str, block: int | None, tokens: int | None) -> None:
        """Rows F7 and K10: a block and a width that are both given say the same."""
        if block is None or tokens is None:
            return
        width = block if name == "DFLASH" else block + 1
        if tokens != width:
            said = f"{name} verifies {width} positions of a block of {block}: must be {width}"
            self.refused.append(Gap(_option(TOKENS), f"{tokens} beside {_option(flag)}; {said}"))

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
        for path, flag in RUN.items():
            value = self.args.pop(flag, None)
            strange = (flag == "dtype" and value not in DTYPES) or (
                flag == "device" and value not in ("cpu", "cuda")
            )
            if value is None or value == "auto":
                continue
            if strange:
                self._lose(flag, f"specflow has no {flag} {value}")
            else:
                self._put(path, value)

    def _rest(self) -> None:
        """What no field says goes under `engine.sglang`, by its own name."""
        usual = FLAGS.defaults
        kept: dict[str, Any] = {k: v for k, v in self.args.items() if v != usual.get(k)}
        if self.env:
            kept[ENV] = dict(self.env)
        if kept:
            self.written["engine"] = {"sglang": kept}


def _option(flag: str) -> str:
    return "--" + flag.replace("_", "-")
