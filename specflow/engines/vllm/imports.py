"""Arguments of vLLM as a recipe; what no field says is passed through under `engine.vllm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.engines.base import ENV, NOTHING, Beside, Gap, Import, variables
from specflow.engines.vllm.exports import WIDEST
from specflow.engines.vllm.given import whole
from specflow.engines.vllm.lines import flat, folded
from specflow.engines.vllm.methods import BARE, LOOKUPS, PATHS, SHORTHANDS
from specflow.engines.vllm.names import DRAFTS, DTYPES, REFINES, RUN
from specflow.engines.vllm.versions import FACTS, SPEC, flags_of, key, methods_of, renamed, since

LONGEST = 63  # guesses of a recipe's chain
MOST_REQUESTS = 256  # of a recipe's batch
SCHEDULE = "num_speculative_tokens_per_batch_size"


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
        one = _option(dotted[0].partition(".")[2])
        said = f"beside {one} vLLM drops the JSON object: say all keys one way"
        return Import({}, refused=(Gap(f"--{SPEC.replace('_', '-')}", said),))
    return _Back(flat(args, version), variables(env), version, beside).run()


class _Back:
    """An import in the making: flags are taken off as they are understood."""

    def __init__(
        self, args: dict[str, Any], env: dict[str, str], version: str, beside: Beside
    ) -> None:
        self.args = args
        self.beside = beside
        self.env = env
        self.version = version
        self.written: dict[str, dict[str, Any]] = {}
        self.lost: list[Gap] = []
        self.approximate: list[Gap] = []
        self.overruled: list[Gap] = []
        self.refused: list[Gap] = []

    def run(self) -> Import:
        """Every block of a recipe, then what is left over."""
        self._put("target.model", self.args.pop("model", None))
        if any(name.startswith(f"{SPEC}.") or name in SHORTHANDS for name in self.args):
            self._speculate()
        else:
            self._put("draft.algorithm", "NONE")
        self._run()
        self._rest()
        gaps = (self.lost, self.approximate, self.overruled, self.refused)
        lost, approximate, overruled, refused = (tuple(found) for found in gaps)
        return Import(self.written, lost, approximate, overruled, refused)

    def _put(self, path: str, value: Any) -> None:
        if value is not None:
            block, _, name = path.partition(".")
            self.written.setdefault(block, {})[name] = value

    def _take(self, name: str) -> Any:
        return self.args.pop(key(name), None)

    def _speculate(self) -> None:
        self._shorthands()
        if self._take("tensor_parallel_size") is not None:
            text = "it is no key of a draft: write draft_tensor_parallel_size"
            self.refused.append(Gap(_option("tensor_parallel_size"), text))
        method = self._method()
        tokens = self.args.get(key("num_speculative_tokens"))
        if tokens is None and method not in LOOKUPS:
            tokens = self._predicted(method)
            if tokens is not None:
                self.args[key("num_speculative_tokens")] = tokens
        draft = DRAFTS.get(REFINES.get(method, method))
        if draft is None or (tokens is not None and not 0 < tokens <= LONGEST):
            self._foreign(method, tokens)
            return
        if method in REFINES:
            self.args[key("method")] = method
            text = f"the recipe says {draft}: {method} is the same look-up in another place"
            self.approximate.append(Gap(_option("method"), text))
        self._put("draft.algorithm", draft)
        self._guesses(draft, self._take("num_speculative_tokens"))
        if draft == "NGRAM":
            self._lookup()
        else:
            self._put("draft.model", self._take("model"))
        self._accept(draft)
        self._adaptive(draft)
        self._ragged(draft)

    def _predicted(self, method: str) -> int | None:
        """The guesses of a draft by its config, where nobody says how many (row V10)."""
        option, draft = _option("num_speculative_tokens"), self.beside.draft
        if self.args.get(key("model")) is None:
            if method in BARE:
                return None
            text = "neither a draft model nor a number of guesses is said (row V11 of its rules)"
            self.refused.append(Gap(option, text))
        elif draft is None:
            text = "vLLM takes the number of the draft's config, which is not known here"
            self.approximate.append(Gap(option, f"{text}; the recipe leaves it open"))
        else:
            names = ("block_size", "dspark_block_size") if _block(method, self.version) else ()
            found = whole(draft, *(names or ("n_predict",)))
            if found is None:
                text = "it is not said, and the draft's config has none (row V11 of its rules)"
                self.refused.append(Gap(option, text))
            return found
        return None

    def _shorthands(self) -> None:
        """`--spec-method`, `--spec-model` and `--spec-tokens` are keys of the JSON object."""
        for short, full in SHORTHANDS.items():
            value = self.args.pop(short, None)
            if value is None:
                continue
            if full in self.args:
                option = "--" + short.replace("_", "-")
                self.refused.append(
                    Gap(option, f"{_option(full.partition('.')[2])} stands there as well")
                )
            self.args[full] = value

    def _method(self) -> str:
        """The method that vLLM goes by; a recipe has it by name, so it is told."""
        said, model = self._take("method"), str(self.args.get(key("model")) or "")
        method = str(said or ("ngram" if model in ("ngram", "[ngram]") else "draft_model"))
        if renamed(method):
            text = f"vLLM runs mtp: {method} is an old name of it"
            self.overruled.append(Gap(_option("method"), text))
            method = "mtp"
        by_path = _by_path(model.lower(), method, methods_of(self.version))
        if by_path != method and said is not None:
            text = f"vLLM runs {by_path}, not {said}, for the path of the draft"
            self.overruled.append(Gap(_option("method"), f"{text} (row V8 of its rules)"))
        elif said is None:
            text = f"vLLM infers {by_path}, and the recipe says so"
            more = "" if by_path != "draft_model" else ", unless the draft's config says otherwise"
            self.approximate.append(Gap(_option("method"), text + more))
        return by_path

    def _foreign(self, method: str, tokens: int | None) -> None:
        """A draft that no recipe has: its keys stay under `engine.vllm`."""
        known = DRAFTS.get(REFINES.get(method, method))
        what = f"no draft {method}" if known is None else f"no chain of {tokens} guesses"
        text = f"specflow has {what}; this recipe drafts nothing"
        at = "method" if known is None else "num_speculative_tokens"
        self.lost.append(Gap(_option(at), text))
        self.args[key("method")] = method
        self._put("draft.algorithm", "NONE")

    def _guesses(self, draft: str, tokens: int | None) -> None:
        if tokens is None:
            return
        if draft == "NGRAM":
            self._put("verify.num_draft_tokens", tokens + 1)
        elif draft == "DFLASH":
            self._put("draft.block_size", tokens + 1)
        elif draft == "DSPARK":
            self._put("draft.block_size", tokens)
        else:
            self._put("draft.num_steps", tokens)

    def _lookup(self) -> None:
        least, most = self._take("prompt_lookup_min"), self._take("prompt_lookup_max")
        if self.args.get(key("model")) in ("ngram", "[ngram]"):
            self._take("model")
        if least is None and most is None:
            text = "vLLM looks for 5 tokens where neither bound is said, and the recipe says so"
            bounds = ("prompt_lookup_min", "prompt_lookup_max")
            self.approximate += [Gap(_option(bound), text) for bound in bounds]
            least = most = 5
        elif least is None or most is None:
            text = "the bound that is missing is the other one, and the recipe says so"
            at = "prompt_lookup_min" if least is None else "prompt_lookup_max"
            self.approximate.append(Gap(_option(at), text))
            least = most = least if most is None else most
        if least > most:
            text = f"{least} is above prompt_lookup_max {most}"
            self.refused.append(Gap(_option("prompt_lookup_min"), text))
        if not 1 <= least <= most < MOST_REQUESTS:
            self.lost.append(Gap(_option("prompt_lookup_max"), f"specflow has no match of {most}"))
            return
        self._put("verify.shape", "chain")
        self._put("draft.min_match", least)
        self._put("draft.max_trie_depth", most + 1)
        text = "specflow's requests share a trie; vLLM looks up each request's own tokens"
        self.approximate.append(Gap(_option("method"), text))

    def _accept(self, draft: str) -> None:
        """The rule of acceptance; what keeps no law is passed through."""
        rule, drawn = key("rejection_sample_method"), key("draft_sample_method")
        said = self.args.get(rule, "strict" if FACTS[self.version].strict else "standard")
        probable = self.args.get(drawn) == "probabilistic"
        if said in ("synthetic", "fly"):
            text = f"{said} acceptance keeps no law; no recipe has it"
            self.lost.append(Gap(_option("rejection_sample_method"), text))
        elif draft == "NGRAM":
            return  # a look-up has no law of its own: whatever is said, the same comes of it
        elif said == "probabilistic" or (said == "standard" and probable):
            self.args.pop(rule, None)
            self.args.pop(drawn, None)
            self._put("verify.accept", "rejection")
        elif said == "block" and probable:
            self.args.pop(rule)
            self.args.pop(drawn)
            self._put("verify.accept", "block")

    def _adaptive(self, draft: str) -> None:
        """A schedule is slots of one choice each, where a recipe can say all of it."""
        rows = self.args.get(key(SCHEDULE))
        if rows is None:
            return
        steps = self.written["draft"].get("num_steps")
        slots = _slots(rows, steps) if draft in ("EAGLE", "EAGLE3") else None
        if slots is None:
            text = "the recipe drafts the most guesses at every size of a batch"
            self.approximate.append(Gap(_option(SCHEDULE), text))
            return
        self._take(SCHEDULE)
        self._put("draft.adaptive", True)
        self._put("draft.adaptive_slots", slots)
        if steps not in slots[1]:
            self._put("draft.num_steps", max(1, slots[1][0]))

    def _ragged(self, draft: str) -> None:
        """A planned verify, where a recipe plans that draft."""
        name = "enable_adaptive_verification"
        if draft not in ("DSPARK", "DFLASH") or not self._take(name):
            return
        self._put("verify.shape", "ragged")
        if draft == "DFLASH":
            self._put("verify.confidence", "average")
            text = "specflow tells survival from past acceptance, vLLM from the draft's logits"
            self.approximate.append(Gap(_option(name), text))

    def _run(self) -> None:
        if (file := self.args.pop("config", None)) is not None:
            text = f"the flags in {file} are not read here: import that file too"
            self.lost.append(Gap("--config", text))
        for path, flag in RUN.items():
            value = self.args.get(flag)
            fits = value in DTYPES if flag == "dtype" else _fits(path, value)
            if fits:
                self._put(path, self.args.pop(flag))

    def _rest(self) -> None:
        """What no field says goes under `engine.vllm`, by its own name."""
        usual = flags_of(self.version).defaults
        kept: dict[str, Any] = folded({k: v for k, v in self.args.items() if v != usual[k]})
        if self.env:
            kept[ENV] = dict(self.env)
        if kept:
            self.written["engine"] = {"vllm": kept}


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


def _fits(path: str, value: Any) -> bool:
    """Whether a field of a run takes a number."""
    least = 2 if path == "run.max_length" else 1
    most = MOST_REQUESTS if path == "run.batch_size" else 2**24
    return isinstance(value, int) and least <= value <= most


def _option(name: str) -> str:
    return f"--{SPEC.replace('_', '-')}.{name}"
