"""Arguments of SGLang as a recipe; what no field says is passed through under `engine`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specflow.engines.base import (
    DTYPES,
    LOAD_FORMAT,
    NOTHING,
    Back,
    Beside,
    Import,
    fits,
    option,
    variables,
)
from specflow.engines.sglang.env import LAG, RAGGED
from specflow.engines.sglang.exports import ORDERS, RUN, SERIAL
from specflow.engines.sglang.flags import FLAGS
from specflow.engines.sglang.names import DRAFT, NAME, STEPS, TOKENS, TOPK
from specflow.engines.sglang.tables import ADAPTIVE_SLOTS, CHAIN, NGRAM_TOKENS, SHAPES
from specflow.foreign_files import read_text

# The slots of its draft are the steps of this one (row D7): no default of an architecture.
BY_DRAFT = "IQuestQ1ForCausalLM"


def from_args(
    args: Mapping[str, Any], env: Mapping[str, str] | None = None, beside: Beside = NOTHING
) -> Import:
    """Arguments of SGLang as the fields of a recipe; no model has to be here."""
    given = {k: v for k, v in args.items() if v is not None}
    return _Back(given, variables(env), beside).run()


class _Back(Back):
    """An import in the making: flags are taken off as they are understood."""

    def run(self) -> Import:
        """Every block of a recipe, then what is left over."""
        self.put("target.model", self.args.pop("model_path", None))
        name = self._name()
        self.put("draft.model", self.args.pop(DRAFT, None))
        if name in SERIAL or name == "NEXTN":
            self._serial(name)
        elif name == "NGRAM":
            self._ngram()
        elif name in ("DFLASH", "DSPARK"):
            self._block(name)
        self._accept(name)
        self._run()
        return self.done("sglang", FLAGS)

    def _name(self) -> str:
        name = str(self.args.pop(NAME, None) or "NONE").upper()
        multi = self.args.pop("enable_multi_layer_eagle", False)
        if multi and name in ("EAGLE", "NEXTN"):
            name = "MULTI_LAYER_EAGLE"
        elif multi:
            self.lose("enable_multi_layer_eagle", f"it does nothing for {name}")
        known = (*SERIAL, "NEXTN", "NGRAM", "DFLASH", "DSPARK", "NONE")
        if name not in known:
            self.lose(NAME, f"specflow has no draft {name}; this recipe drafts nothing")
            name = "NONE"
        self.put("draft.algorithm", name)
        return name

    def _serial(self, name: str) -> None:
        topk, steps = self.args.pop(TOPK, None), self.args.pop(STEPS, None)
        tokens = self.args.pop(TOKENS, None)
        adaptive = self.args.pop("speculative_adaptive", False)
        if adaptive and topk not in (None, 1):
            said = f"SGLang 0.5.23 keeps to fixed steps beside topk {topk} (row V1 of its rules)"
            self.overrule("speculative_adaptive", said)
            self.args.pop("speculative_adaptive_config", None)
            adaptive = False
        if adaptive and self._adaptive(name, steps):
            self.put("draft.topk", topk)
            return  # the width of a step is that of its own steps
        steps, topk, tokens = self._shape(name, steps, topk, tokens)
        self.put("draft.num_steps", steps)
        self.put("draft.topk", topk)
        if topk == 1 and steps is not None and tokens not in (None, steps + 1):
            said = f"SGLang 0.5.23 will run {steps + 1}, not {tokens}: a chain of {steps} steps"
            self.overrule(TOKENS, f"{said} (row E4 of its rules)")
            tokens = None
        if topk is not None and topk > 1:
            self.put("verify.shape", "tree")
        self.put("verify.num_draft_tokens", tokens)

    def _shape(self, name: str, *said: int | None) -> tuple[int | None, ...]:
        """Steps, branches and width as they run: all of them are a default, or none (row E1)."""
        if said == (None, None, None) and name != "FROZEN_KV_MTP":
            return self._default(name)
        fault = _fault(name, said)
        if fault and self._architecture() != BY_DRAFT:
            self._incomplete(said, fault)
        return said

    def _default(self, name: str) -> tuple[int | None, ...]:
        """What SGLang runs where nothing is said, as far as it is known (row 3.1)."""
        architecture = self._architecture()
        if name == "STANDALONE":
            return CHAIN
        if architecture not in ("", BY_DRAFT):
            return SHAPES.get(architecture, CHAIN)
        text = "SGLang's default goes by the target's architecture, which is not known here"
        if architecture:
            text = "SGLang takes the slots of the draft, which are not known here"
        self.bend(STEPS, f"{text}; the recipe leaves it open")
        return None, None, None

    def _architecture(self) -> str:
        names = (self.beside.target or {}).get("architectures")
        return str(names[0]) if isinstance(names, list | tuple) and names else ""

    def _incomplete(self, said: tuple[int | None, ...], text: str) -> None:
        """What is missing of the three, by the first of those that were said."""
        named = dict(zip((STEPS, TOPK, TOKENS), said, strict=True))
        missing = " and ".join(option(f) for f, value in named.items() if value is None)
        at = next((f for f, value in named.items() if value is not None), NAME)
        self.refuse(at, f"it stands without {missing}: {text}")

    def _adaptive(self, name: str, steps: int | None) -> bool:
        """Slots of steps, where the draft has them; whether it has."""
        path = self.args.pop("speculative_adaptive_config", None)
        if name not in ("EAGLE", "EAGLE3", "NEXTN"):
            self.lose("speculative_adaptive", f"{name} takes a fixed number of steps")
            return False
        slots: Mapping[int, Any] | None = ADAPTIVE_SLOTS
        if path is not None:
            slots = self._slots(str(path))
        self.put("draft.adaptive", True)
        if slots and path is not None:
            self.put("draft.adaptive_slots", slots)
        if steps is None and slots:
            every = sorted({each for slot in slots.values() for each in slot})
            steps = every[len(every) // 2]  # what SGLang starts with (row 3.3)
        self.put("draft.num_steps", steps)
        return True

    def _slots(self, path: str) -> dict[int, list[int]] | None:
        """The slots of a file: one that the script writes, or one that is here."""
        try:
            text = self.beside.files.get(path)
            if text is None:
                text = read_text(Path(path))
            return {
                int(k): list(map(int, v["candidate_steps"]))
                for k, v in json.loads(text).items()
                if k.isdigit()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.lose("speculative_adaptive_config", f"no slots can be read from {path}")
            return None

    def _ngram(self) -> None:
        fields = "speculative_ngram_"
        least = self.args.pop(f"{fields}min_bfs_breadth", 1)
        most = self.args.pop(f"{fields}max_bfs_breadth", 10)
        self.args.pop(TOPK, None)  # SGLang itself puts the breadth there
        self.args.pop(STEPS, None)
        if most > 1:
            self.put("draft.breadth", [least, most])
        self.put("verify.shape", "tree" if most > 1 else "chain")
        self.put("verify.num_draft_tokens", self.args.pop(TOKENS, NGRAM_TOKENS))
        self.put("draft.max_trie_depth", self.args.pop(f"{fields}max_trie_depth", None))
        self.put("draft.capacity", self.args.pop(f"{fields}capacity", None))
        kind = self.args.pop(f"{fields}match_type", None)
        by_kind = {theirs: ours for ours, theirs in ORDERS.items()}
        self.put("draft.order", by_kind.get(kind or ""))

    def _block(self, name: str) -> None:
        tokens = self.args.pop(TOKENS, None)
        flag = f"speculative_{name.lower()}_block_size"
        block = self.args.pop(flag, None)
        self._agree(name, flag, block, tokens)
        if block is None and tokens is not None:
            block = tokens if name == "DFLASH" else tokens - 1
        self.put("draft.block_size", block)
        for flag in (STEPS, TOPK):
            if self.args.pop(flag, 1) != 1:
                self.lose(flag, f"{name} guesses a block in one step of one branch")
        window = self.args.pop("speculative_draft_window_size", None)
        if name == "DFLASH":
            self.put("draft.window_size", window)
        elif window is not None:
            self.lose("speculative_draft_window_size", "it does nothing for DSPARK")
        if name == "DSPARK":
            self._ragged()

    def _agree(self, name: str, flag: str, block: int | None, tokens: int | None) -> None:
        """Rows F7 and K10: a block and a width that are both given say the same."""
        if block is None or tokens is None:
            return
        width = block if name == "DFLASH" else block + 1
        if tokens != width:
            said = f"{name} verifies {width} positions of a block of {block}: must be {width}"
            self.refuse(TOKENS, f"{tokens} beside {option(flag)}; {said}")

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
                    self.lose(flag, "it does nothing in mode static")
            return
        self.put("verify.shape", "ragged")
        self.put("verify.mode", mode)
        for path, value in found.items():
            self.put(path, value)
        if align:
            self.put("verify.token_bucket", 8)
        if lag is not None and lag.isdecimal():
            self.put("verify.lag_steps", int(lag))

    def _accept(self, name: str) -> None:
        rejection = self.args.pop("speculative_use_rejection_sampling", False)
        if self.args.pop("speculative_use_block_verification", False):
            self.put("verify.accept", "block")
        elif rejection:
            self.put("verify.accept", "rejection")
        for key in ("single", "acc"):
            value = self.args.pop(f"speculative_accept_threshold_{key}", None)
            if name != "NONE":
                self.put(f"verify.threshold_{key}", value)

    def _run(self) -> None:
        for path, flag in RUN.items():
            if path == LOAD_FORMAT and not fits(path, self.args.get(flag)):
                continue  # how a checkpoint is stored, which only an engine has to be told
            value = self.args.pop(flag, None)
            strange = (flag == "dtype" and value not in DTYPES) or (
                flag == "device" and value not in ("cpu", "cuda")
            )
            if value is None or value == "auto":
                continue
            if strange:
                self.lose(flag, f"specflow has no {flag} {value}")
            else:
                self.put(path, value)


def _fault(name: str, said: tuple[int | None, ...]) -> str:
    """What SGLang makes of steps, branches and width that are not all there; empty for nothing."""
    steps, topk, tokens = said
    if name == "FROZEN_KV_MTP":
        lacks = "FROZEN_KV_MTP has no default: the server fails (row Z1 of SGLang's rules)"
        return lacks if None in said else ""
    if steps is None:
        return "SGLang stops: it fills in all three, or none (row E1 of its rules)"
    if topk is None:
        return "SGLang stops: it compares nothing with 1 (row E2 of its rules)"
    if topk > 1 and tokens is None:
        return "SGLang starts a tree of no width, and fails at a request (row E3 of its rules)"
    return ""
