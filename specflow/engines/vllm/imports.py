"""Arguments of vLLM as a recipe; what no field says is passed through under `engine.vllm`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specflow.engines.base import (
    DEEPEST,
    MOST_GUESSES,
    NOTHING,
    Back,
    Beside,
    Gap,
    Import,
    fits,
    variables,
)
from specflow.engines.flags import folded
from specflow.engines.vllm.exports import WIDEST
from specflow.engines.vllm.given import whole
from specflow.engines.vllm.lines import flat
from specflow.engines.vllm.methods import BARE, LOOKUPS, PATHS, SHORTHANDS
from specflow.engines.vllm.names import DRAFTS, REFINES, RUN
from specflow.engines.vllm.versions import (
    FACTS,
    SCHEDULE,
    SPEC,
    flags_of,
    key,
    methods_of,
    option,
    renamed,
    since,
)


def from_args(
    args: Mapping[str, Any],
    env: Mapping[str, str] | None,
    version: str,
    beside: Beside = NOTHING,
) -> Import:
    """Arguments of vLLM as the fields of a recipe; no model has to be here.

    args  by name, keys of the JSON object inside it or by dotted names; not both
    """
    dotted = sorted(name for name in args if name.startswith(f"{SPEC}."))
    if args.get(SPEC) is not None and dotted:
        one = option(dotted[0])
        said = f"beside {one} vLLM drops the JSON object: say all keys one way"
        return Import({}, refused=(Gap(option(SPEC), said),))
    return _Back(flat(args, version), variables(env), beside, version=version).run()


@dataclass
class _Back(Back):
    """An import in the making: flags are taken off as they are understood."""

    version: str = field(kw_only=True)

    def called(self, flag: str) -> str:
        """A key of the JSON object by its dotted name."""
        return option(flag)

    def run(self) -> Import:
        """Every block of a recipe, then what is left over."""
        self.put("target.model", self.args.pop("model", None))
        if any(name.startswith(f"{SPEC}.") or name in SHORTHANDS for name in self.args):
            self._speculate()
        else:
            self.put("draft.algorithm", "NONE")
        self._run()
        return self.done("vllm", flags_of(self.version), folded)

    def _take(self, name: str) -> Any:
        return self.args.pop(key(name), None)

    def _speculate(self) -> None:
        self._shorthands()
        if self._take("tensor_parallel_size") is not None:
            text = "it is no key of a draft: write draft_tensor_parallel_size"
            self.refuse(key("tensor_parallel_size"), text)
        method = self._method()
        tokens = self.args.get(key("num_speculative_tokens"))
        if tokens is None and method not in LOOKUPS:
            tokens = self._predicted(method)
            if tokens is not None:
                self.args[key("num_speculative_tokens")] = tokens
        draft = DRAFTS.get(REFINES.get(method, method))
        if draft is None or (tokens is not None and not 0 < tokens <= MOST_GUESSES):
            self._foreign(method, tokens)
            return
        if method in REFINES:
            self.args[key("method")] = method
            text = f"the recipe says {draft}: {method} is the same look-up in another place"
            self.bend(key("method"), text)
        self.put("draft.algorithm", draft)
        self._guesses(draft, self._take("num_speculative_tokens"))
        if draft == "NGRAM":
            self._lookup()
        else:
            self.put("draft.model", self._take("model"))
        self._accept(draft)
        self._adaptive(draft)
        self._ragged(draft)

    def _predicted(self, method: str) -> int | None:
        """The guesses of a draft by its config, where nobody says how many (row V10)."""
        tokens, draft = key("num_speculative_tokens"), self.beside.draft
        if self.args.get(key("model")) is None:
            if method in BARE:
                return None
            text = "neither a draft model nor a number of guesses is said (row V11 of its rules)"
            self.refuse(tokens, text)
        elif draft is None:
            text = "vLLM takes the number of the draft's config, which is not known here"
            self.bend(tokens, f"{text}; the recipe leaves it open")
        else:
            names = ("block_size", "dspark_block_size") if _block(method, self.version) else ()
            found = whole(draft, *(names or ("n_predict",)))
            if found is None:
                text = "it is not said, and the draft's config has none (row V11 of its rules)"
                self.refuse(tokens, text)
            return found
        return None

    def _shorthands(self) -> None:
        """`--spec-method`, `--spec-model` and `--spec-tokens` are keys of the JSON object."""
        for short, full in SHORTHANDS.items():
            value = self.args.pop(short, None)
            if value is None:
                continue
            if full in self.args:
                self.refuse(short, f"{option(full)} stands there as well")
            self.args[full] = value

    def _method(self) -> str:
        """The method that vLLM goes by; a recipe has it by name, so it is told."""
        said, model = self._take("method"), str(self.args.get(key("model")) or "")
        method = str(said or ("ngram" if model in ("ngram", "[ngram]") else "draft_model"))
        if renamed(method):
            text = f"vLLM runs mtp: {method} is an old name of it"
            self.overrule(key("method"), text)
            method = "mtp"
        by_path = _by_path(model.lower(), method, methods_of(self.version))
        if by_path != method and said is not None:
            text = f"vLLM runs {by_path}, not {said}, for the path of the draft"
            self.overrule(key("method"), f"{text} (row V8 of its rules)")
        elif said is None:
            text = f"vLLM infers {by_path}, and the recipe says so"
            more = "" if by_path != "draft_model" else ", unless the draft's config says otherwise"
            self.bend(key("method"), text + more)
        return by_path

    def _foreign(self, method: str, tokens: int | None) -> None:
        """A draft that no recipe has: its keys stay under `engine.vllm`."""
        known = DRAFTS.get(REFINES.get(method, method))
        what = f"no draft {method}" if known is None else f"no chain of {tokens} guesses"
        text = f"specflow has {what}; this recipe drafts nothing"
        at = "method" if known is None else "num_speculative_tokens"
        self.lose(key(at), text)
        self.args[key("method")] = method
        self.put("draft.algorithm", "NONE")

    def _guesses(self, draft: str, tokens: int | None) -> None:
        if tokens is None:
            return
        if draft == "NGRAM":
            self.put("verify.num_draft_tokens", tokens + 1)
        elif draft == "DFLASH":
            self.put("draft.block_size", tokens + 1)
        elif draft == "DSPARK":
            self.put("draft.block_size", tokens)
        else:
            self.put("draft.num_steps", tokens)

    def _lookup(self) -> None:
        least, most = self._take("prompt_lookup_min"), self._take("prompt_lookup_max")
        if self.args.get(key("model")) in ("ngram", "[ngram]"):
            self._take("model")
        if least is None and most is None:
            text = "vLLM looks for 5 tokens where neither bound is said, and the recipe says so"
            for bound in ("prompt_lookup_min", "prompt_lookup_max"):
                self.bend(key(bound), text)
            least = most = 5
        elif least is None or most is None:
            text = "the bound that is missing is the other one, and the recipe says so"
            at = "prompt_lookup_min" if least is None else "prompt_lookup_max"
            self.bend(key(at), text)
            least = most = least if most is None else most
        if least > most:
            text = f"{least} is above prompt_lookup_max {most}"
            self.refuse(key("prompt_lookup_min"), text)
        if not 1 <= least <= most < DEEPEST:
            self.lose(key("prompt_lookup_max"), f"specflow has no match of {most}")
            return
        self.put("verify.shape", "chain")
        self.put("draft.min_match", least)
        self.put("draft.max_trie_depth", most + 1)
        text = "specflow's requests share a trie; vLLM looks up each request's own tokens"
        self.bend(key("method"), text)

    def _accept(self, draft: str) -> None:
        """The rule of acceptance; what keeps no law is passed through."""
        rule, drawn = key("rejection_sample_method"), key("draft_sample_method")
        said = self.args.get(rule, "strict" if FACTS[self.version].strict else "standard")
        probable = self.args.get(drawn) == "probabilistic"
        if said in ("synthetic", "fly"):
            text = f"{said} acceptance keeps no law; no recipe has it"
            self.lose(key("rejection_sample_method"), text)
        elif draft == "NGRAM":
            return  # a look-up has no law of its own: whatever is said, the same comes of it
        elif said == "probabilistic" or (said == "standard" and probable):
            self.args.pop(rule, None)
            self.args.pop(drawn, None)
            self.put("verify.accept", "rejection")
        elif said == "block" and probable:
            self.args.pop(rule)
            self.args.pop(drawn)
            self.put("verify.accept", "block")

    def _adaptive(self, draft: str) -> None:
        """A schedule is slots of one choice each, where a recipe can say all of it."""
        rows = self.args.get(key(SCHEDULE))
        if rows is None:
            return
        steps = self.written["draft"].get("num_steps")
        slots = _slots(rows, steps) if draft in ("EAGLE", "EAGLE3") else None
        if slots is None:
            text = "the recipe drafts the most guesses at every size of a batch"
            self.bend(key(SCHEDULE), text)
            return
        self._take(SCHEDULE)
        self.put("draft.adaptive", True)
        self.put("draft.adaptive_slots", slots)
        if steps not in slots[1]:
            self.put("draft.num_steps", max(1, slots[1][0]))

    def _ragged(self, draft: str) -> None:
        """A planned verify, where a recipe plans that draft."""
        name = "enable_adaptive_verification"
        if draft not in ("DSPARK", "DFLASH") or not self._take(name):
            return
        self.put("verify.shape", "ragged")
        if draft == "DFLASH":
            self.put("verify.confidence", "average")
            text = "specflow tells survival from past acceptance, vLLM from the draft's logits"
            self.bend(key(name), text)

    def _run(self) -> None:
        if (file := self.args.pop("config", None)) is not None:
            text = f"the flags in {file} are not read here: import that file too"
            self.lose("config", text)
        for path, flag in RUN.items():
            if fits(path, self.args.get(flag)):
                self.put(path, self.args.pop(flag))


def _block(method: str, version: str) -> bool:
    """Whether the block of a draft's config is the number of its guesses."""
    return method == "dspark" and since(version, "0.32.0")


def _by_path(path: str, method: str, known: tuple[str, ...]) -> str:
    """The method by a part of the draft's path, which vLLM goes by before its config (V8)."""
    if method not in ("draft_model", "mtp"):
        return method
    fits = (found for mark, found in PATHS.items() if mark in path and found in known)
    return next(fits, method)


def _slots(rows: Any, steps: int | None) -> dict[int, list[int]] | None:
    """A schedule as slots; None where slots would not come back as the same schedule."""
    try:
        ranges = [tuple(map(int, row)) for row in rows]
        starts, ends, most = zip(*ranges, strict=True)
    except (TypeError, ValueError):
        return None
    follow = all(end + 1 == start for end, start in zip(ends, starts[1:], strict=False))
    whole = starts[0] == 1 and follow and ends[-1] == max(WIDEST, starts[-1])
    if not whole or max(most) != steps or min(most) < 0:
        return None
    return {start: [guesses] for start, guesses in zip(starts, most, strict=True)}
