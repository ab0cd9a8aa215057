"""Arguments of llama.cpp's server as a recipe; what no field says is kept under `engine`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.engines import command_line
from specflow.engines.base import ENV, Gap, Import, variables
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
from specflow.engines.llamacpp.exports import CUTS, NAME, NO_SEED, ORDER, RUN

ALGORITHMS = {
    SIMPLE: "STANDALONE",
    EAGLE3: "EAGLE3",
    MTP: "NEXTN",
    DFLASH: "DFLASH",
    DSPARK: "DSPARK",
}
MOST, DEEPEST = 63, 256  # the most tokens that a recipe guesses, and matches
AUTO = 4  # slots, where they are left open
DEPTH = 18  # of a trie, where a recipe says none


def from_args(args: Mapping[str, Any], env: Mapping[str, str], build: Build) -> Import:
    """Arguments of the server as the fields of a recipe; no model has to be here.

    A variable stands for its flag where the line has none. Raises `Refusal` for a way of drafting
    that the build has not.
    """
    given = {k: v for k, v in args.items() if v is not None}
    env = variables(env)
    flags = {name: build.variables[name] for name in env if name in build.variables}
    said = {flag: env[name] for name, flag in flags.items() if flag not in given}
    given |= command_line.typed(build.flags, said)
    return _Back(given, {k: v for k, v in env.items() if k not in flags}, build).run()


class _Back:
    """An import in the making: flags are taken off as they are understood."""

    def __init__(self, args: dict[str, Any], env: dict[str, str], build: Build) -> None:
        self.args = args
        self.env = env
        self.build = build
        self.written: dict[str, dict[str, Any]] = {}
        self.kept: dict[str, Any] = {}
        self.lost: list[Gap] = []
        self.approximate: list[Gap] = []
        self.refused: list[Gap] = []

    def run(self) -> Import:
        """Every block of a recipe, then what is left over."""
        self._model()
        kind = self._kind()
        if kind in LOOKUPS:
            self._lookup(kind)
        elif kind:
            self._draft(kind)
        self._run()
        self._sampling()
        self._rest()
        gaps = (tuple(self.lost), tuple(self.approximate))
        return Import(self.written, *gaps, refused=tuple(self.refused))

    def _put(self, path: str, value: Any) -> None:
        if value is not None:
            block, _, key = path.partition(".")
            self.written.setdefault(block, {})[key] = value

    def _take(self, flag: str) -> Any:
        """A flag as it is in force: as it was written, else its default."""
        return self.args.pop(flag, self.build.flags[flag].default)

    def _lose(self, flag: str, text: str) -> None:
        self.lost.append(Gap(_option(flag), text))

    def _model(self) -> None:
        path = self.args.pop("model", None)
        repository = self.args.get("hf_repo")
        if path is None and repository is not None:
            path = str(repository).partition(":")[0]
            self._lose("hf_repo", "the recipe names the repository, not which file of it")
            self.args.pop("hf_repo")
        self._put("target.model", path)

    def _kind(self) -> str:
        """The way of drafting; where there are several, the first that has a draft model."""
        build = self.build
        said = self._take("spec_type") if "spec_type" in build.flags else "none"
        kinds = build.chosen(said)
        if build.types and self.args.pop("spec_default", False) and "ngram-mod" not in kinds:
            kinds.append("ngram-mod")
        models = [f for f in (build.model, build.repository) if f in self.args]
        if not [kind for kind in kinds if kind in ALGORITHMS] and models:
            if build.explicit:
                text = "without a --spec-type of its kind it is loaded, and drafts nothing"
                self._lose(models[0], f"{text} unless its metadata say DFLASH, DSPARK or MTP")
            else:
                kinds = [*kinds, SIMPLE]  # this build drafts by any draft model that is named
        ignored = [kind for kind in kinds if kind not in build.runs]
        if ignored:
            text = f"{build.title} takes {', '.join(ignored)}, and does not run it"
            if models and SIMPLE not in kinds and MTP not in kinds:
                text += f"; it runs {SIMPLE} in its place"
                kinds = [*kinds, SIMPLE]
            self._lose("spec_type", text)
            kinds = [kind for kind in kinds if kind not in ignored]
        drafts = [kind for kind in kinds if kind in ALGORITHMS]
        kind = next(iter([*drafts, *kinds]), "")
        if len(kinds) > 1:
            text = f"specflow has one draft at a time: this recipe is of {kind} alone"
            self.approximate.append(Gap("--spec-type", text))
            if build.listed:
                self.kept["spec_type"] = ",".join(kinds)
        self._put("draft.algorithm", ALGORITHMS.get(kind, "NGRAM" if kind else "NONE"))
        return kind

    def _draft(self, kind: str) -> None:
        build = self.build
        path, repository = self.args.pop(build.model, None), self.args.pop(build.repository, None)
        if path is None and repository is not None:
            path = str(repository).partition(":")[0]
            self._lose(build.repository, "the recipe names the repository, not which file of it")
        if path is None and kind != MTP:
            said = "--spec-type" if "spec_type" in build.flags else _option(build.model)
            text = f"{kind} needs {_option(build.model)}: without one nothing is drafted"
            self.refused.append(Gap(said, text))
        if path != self.written.get("target", {}).get("model"):
            self._put("draft.model", path)
        guesses = self._guesses(build.most, self._take(build.most))
        if kind == DFLASH:
            self._put("draft.block_size", min(guesses + 1, MOST))
        elif kind == DSPARK:
            self._put("draft.block_size", guesses)
        else:
            self._put("draft.num_steps", guesses)
            self._put("draft.topk", 1)
        least = self.args.get(build.least, 0)
        if least > guesses:
            text = f"{least} beside {_option(build.most)} {guesses}: nothing would be verified"
            self.refused.append(Gap(_option(build.least), text))
        surest = self._take(build.surest)
        if surest > 0:
            self.kept[build.surest] = surest
            text = f"a guess below {surest:g} ends the draft; no field of a recipe says so"
            self.approximate.append(Gap(_option(build.surest), text))

    def _guesses(self, flag: str, said: int) -> int:
        if said > MOST:
            self._lose(flag, f"a recipe guesses {MOST} tokens at most")
        elif said < 1:
            self._lose(flag, "with no guess nothing is drafted; this recipe guesses one")
        return max(1, min(said, MOST))

    def _lookup(self, kind: str) -> None:
        flag = f"spec_{kind.replace('-', '_')}"
        names = ("n_match", "n_max") if kind == "ngram-mod" else ("size_n", "size_m")
        text = f"specflow's requests share a trie; {kind} is another look-up"
        self.approximate.append(Gap("--spec-type", text))
        if kind in SIZED or kind == "ngram-mod":
            least = self._take(f"{flag}_{names[0]}")
            if not 1 <= least <= DEEPEST - 1:
                self._lose(f"{flag}_{names[0]}", f"a recipe matches {DEEPEST - 1} tokens at most")
            least = max(1, min(least, DEEPEST - 1))
            self._put("draft.min_match", least)
            if least >= DEPTH:
                self._put("draft.max_trie_depth", least + 1)
            most = f"{flag}_{names[1]}"
            self._put("verify.num_draft_tokens", self._guesses(most, self._take(most)) + 1)
        if kind == "ngram-mod":
            self.kept["spec_ngram_mod_n_min"] = self._take("spec_ngram_mod_n_min")
        self._put("verify.shape", "chain")
        if kind == "ngram-map-k4v":
            self._put("draft.order", "frequency")
        elif kind != "ngram-simple":
            self.kept.setdefault("spec_type", kind)

    def _run(self) -> None:
        slots, context = self.args.pop("parallel", None), self.args.pop("ctx_size", None)
        shared = bool(self.args.get("kv_unified"))
        auto = slots is None or slots < 0
        if auto and context and "kv_unified" in self.build.flags:
            slots, shared = AUTO, True  # what the server picks where slots are left open
            self.kept["kv_unified"] = True
        elif auto:
            slots = None
        elif not 1 <= slots <= 256:
            self._lose("parallel", "a recipe decodes 1 to 256 requests at once")
            slots = None
        self._put("run.batch_size", slots)
        if context is not None and context > 0:
            self._context(context, 1 if shared else slots or 1)
        for path, flag in RUN.items():
            value = self.args.get(flag)
            if value is not None and 1 <= value <= (256 if flag == "threads" else 2**24):
                self._put(path, self.args.pop(flag))
        self._device()

    def _context(self, context: int, parts: int) -> None:
        share, rest = divmod(context, parts)
        if rest:
            self._lose("ctx_size", f"{parts} slots of {share} positions leave {rest} unused")
        if 2 <= share <= 2**24:
            self._put("run.max_length", share)
        else:
            self._lose("ctx_size", "a recipe's requests have 2 to 16777216 positions")

    def _device(self) -> None:
        layers = self.args.get("gpu_layers")
        known = {"0": "cpu", str(self.build.all_layers): "cuda"}
        if str(layers) not in known:
            return
        self._put("run.device", known[str(layers)])
        self.args.pop("gpu_layers")
        if str(self.args.get(self.build.layers)) == str(layers):
            self.args.pop(self.build.layers)

    def _sampling(self) -> None:
        """What the server draws by where a request says nothing, its defaults included."""
        temperature = self._take("temp")
        cuts = {key: self._take(key) for key in CUTS}
        if temperature > 100:
            self._lose("temp", "a recipe's temperature is 100 at most")
        self._put("sampling.temperature", max(0.0, min(temperature, 100.0)))
        self._put("sampling.max_new_tokens", self._positive("predict"))
        if self.args.pop("ignore_eos", False):
            self._put("sampling.ignore_eos", value=True)
        seed = self.args.get("seed")
        if seed is not None and 0 <= seed < NO_SEED:
            self._put("sampling.seed", self.args.pop("seed"))
        elif seed in (-1, NO_SEED):
            self.args.pop("seed")  # a seed of chance, which is its default
        if temperature <= 0:
            return
        self._put("sampling.top_k", max(0, min(cuts["top_k"], 2**31)))
        if cuts["top_p"] <= 0:
            self._lose("top_p", "a recipe's top_p is above 0")
        self._put("sampling.top_p", min(cuts["top_p"], 1.0) if cuts["top_p"] > 0 else 1.0)
        self._put("sampling.min_p", max(0.0, min(cuts["min_p"], 1.0)))
        if self.args.get("samplers") == ORDER:
            self.args.pop("samplers")
        elif temperature != 1 and "samplers" not in self.args:
            text = f"llama.cpp cuts before it divides by the temperature; a recipe is {ORDER!r}"
            self.approximate.append(Gap("--samplers", text))

    def _positive(self, flag: str) -> int | None:
        value = self.args.get(flag)
        if value is None or not 1 <= value <= 2**31:
            return None
        return int(self.args.pop(flag))

    def _rest(self) -> None:
        """What no field says goes under `engine.llamacpp`, by its own name."""
        usual = self.build.flags.defaults
        kept = {k: v for k, v in self.args.items() if v != usual.get(k)} | self.kept
        if self.env:
            kept[ENV] = dict(self.env)
        if kept:
            self.written["engine"] = {NAME: kept}


def _option(flag: str) -> str:
    return "--" + flag.replace("_", "-")
