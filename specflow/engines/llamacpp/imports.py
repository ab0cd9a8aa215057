"""Arguments of llama.cpp's server as a recipe; what no field says is kept under `engine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specflow.engines import command_line
from specflow.engines.base import DEEPEST, MOST_GUESSES, Back, Import, fits, option, variables
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
    return _Back(given, {k: v for k, v in env.items() if k not in flags}, build=build).run()


@dataclass
class _Back(Back):
    """An import in the making: flags are taken off as they are understood."""

    build: Build = field(kw_only=True)

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
        return self.done(NAME, self.build.flags)

    def _take(self, flag: str) -> Any:
        """A flag as it is in force: as it was written, else its default."""
        return self.args.pop(flag, self.build.flags[flag].default)

    def _model(self) -> None:
        path = self.args.pop("model", None)
        if path is None and self.args.get("hf_repo") is not None:
            path = self._of_repository("hf_repo")
        self.put("target.model", path)

    def _of_repository(self, flag: str) -> str:
        """A model by the repository that it is fetched from."""
        self.lose(flag, "the recipe names the repository, not which file of it")
        return str(self.args.pop(flag)).partition(":")[0]

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
                self.lose(models[0], f"{text} unless its metadata say DFLASH, DSPARK or MTP")
            else:
                kinds = [*kinds, SIMPLE]  # this build drafts by any draft model that is named
        ignored = [kind for kind in kinds if kind not in build.runs]
        if ignored:
            text = f"{build.title} takes {', '.join(ignored)}, and does not run it"
            if models and SIMPLE not in kinds and MTP not in kinds:
                text += f"; it runs {SIMPLE} in its place"
                kinds = [*kinds, SIMPLE]
            self.lose("spec_type", text)
            kinds = [kind for kind in kinds if kind not in ignored]
        drafts = [kind for kind in kinds if kind in ALGORITHMS]
        kind = next(iter([*drafts, *kinds]), "")
        if len(kinds) > 1:
            text = f"specflow has one draft at a time: this recipe is of {kind} alone"
            self.bend("spec_type", text)
            if build.listed:
                self.kept["spec_type"] = ",".join(kinds)
        self.put("draft.algorithm", ALGORITHMS.get(kind, "NGRAM" if kind else "NONE"))
        return kind

    def _draft(self, kind: str) -> None:
        build = self.build
        path = self.args.pop(build.model, None)
        if path is None and self.args.get(build.repository) is not None:
            path = self._of_repository(build.repository)
        self.args.pop(build.repository, None)
        if path is None and kind != MTP:
            said = "spec_type" if "spec_type" in build.flags else build.model
            text = f"{kind} needs {option(build.model)}: without one nothing is drafted"
            self.refuse(said, text)
        if path != self.written.get("target", {}).get("model"):
            self.put("draft.model", path)
        guesses = self._guesses(build.most, self._take(build.most))
        if kind == DFLASH:
            self.put("draft.block_size", min(guesses + 1, MOST_GUESSES))
        elif kind == DSPARK:
            self.put("draft.block_size", guesses)
        else:
            self.put("draft.num_steps", guesses)
            self.put("draft.topk", 1)
        least = self.args.get(build.least, 0)
        if least > guesses:
            text = f"{least} beside {option(build.most)} {guesses}: nothing would be verified"
            self.refuse(build.least, text)
        surest = self._take(build.surest)
        if surest > 0:
            self.kept[build.surest] = surest
            text = f"a guess below {surest:g} ends the draft; no field of a recipe says so"
            self.bend(build.surest, text)

    def _guesses(self, flag: str, said: int) -> int:
        if said > MOST_GUESSES:
            self.lose(flag, f"a recipe guesses {MOST_GUESSES} tokens at most")
        elif said < 1:
            self.lose(flag, "with no guess nothing is drafted; this recipe guesses one")
        return max(1, min(said, MOST_GUESSES))

    def _lookup(self, kind: str) -> None:
        flag = f"spec_{kind.replace('-', '_')}"
        names = ("n_match", "n_max") if kind == "ngram-mod" else ("size_n", "size_m")
        text = f"specflow's requests share a trie; {kind} is another look-up"
        self.bend("spec_type", text)
        if kind in SIZED or kind == "ngram-mod":
            least = self._take(f"{flag}_{names[0]}")
            if not 1 <= least <= DEEPEST - 1:
                self.lose(f"{flag}_{names[0]}", f"a recipe matches {DEEPEST - 1} tokens at most")
            least = max(1, min(least, DEEPEST - 1))
            self.put("draft.min_match", least)
            if least >= DEPTH:
                self.put("draft.max_trie_depth", least + 1)
            most = f"{flag}_{names[1]}"
            self.put("verify.num_draft_tokens", self._guesses(most, self._take(most)) + 1)
        if kind == "ngram-mod":
            self.kept["spec_ngram_mod_n_min"] = self._take("spec_ngram_mod_n_min")
        self.put("verify.shape", "chain")
        if kind == "ngram-map-k4v":
            self.put("draft.order", "frequency")
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
        elif not fits("run.batch_size", slots):
            self.lose("parallel", "a recipe decodes 1 to 256 requests at once")
            slots = None
        self.put("run.batch_size", slots)
        if context is not None and context > 0:
            self._context(context, 1 if shared else slots or 1)
        for path, flag in RUN.items():
            value = self.args.get(flag)
            if fits(path, value):
                self.put(path, self.args.pop(flag))
        self._device()

    def _context(self, context: int, parts: int) -> None:
        share, rest = divmod(context, parts)
        if rest:
            self.lose("ctx_size", f"{parts} slots of {share} positions leave {rest} unused")
        if fits("run.max_length", share):
            self.put("run.max_length", share)
        else:
            self.lose("ctx_size", "a recipe's requests have 2 to 16777216 positions")

    def _device(self) -> None:
        layers = self.args.get("gpu_layers")
        known = {"0": "cpu", str(self.build.all_layers): "cuda"}
        if str(layers) not in known:
            return
        self.put("run.device", known[str(layers)])
        self.args.pop("gpu_layers")
        if str(self.args.get(self.build.layers)) == str(layers):
            self.args.pop(self.build.layers)

    def _sampling(self) -> None:
        """What the server draws by where a request says nothing, its defaults included."""
        temperature = self._take("temp")
        cuts = {key: self._take(key) for key in CUTS}
        if temperature > 100:
            self.lose("temp", "a recipe's temperature is 100 at most")
        self.put("sampling.temperature", max(0.0, min(temperature, 100.0)))
        self.put("sampling.max_new_tokens", self._positive("predict"))
        if self.args.pop("ignore_eos", False):
            self.put("sampling.ignore_eos", value=True)
        seed = self.args.get("seed")
        if seed is not None and 0 <= seed < NO_SEED:
            self.put("sampling.seed", self.args.pop("seed"))
        elif seed in (-1, NO_SEED):
            self.args.pop("seed")  # a seed of chance, which is its default
        if temperature <= 0:
            return
        self.put("sampling.top_k", max(0, min(cuts["top_k"], 2**31)))
        if cuts["top_p"] <= 0:
            self.lose("top_p", "a recipe's top_p is above 0")
        self.put("sampling.top_p", min(cuts["top_p"], 1.0) if cuts["top_p"] > 0 else 1.0)
        self.put("sampling.min_p", max(0.0, min(cuts["min_p"], 1.0)))
        if self.args.get("samplers") == ORDER:
            self.args.pop("samplers")
        elif temperature != 1 and "samplers" not in self.args:
            text = f"llama.cpp cuts before it divides by the temperature; a recipe is {ORDER!r}"
            self.bend("samplers", text)

    def _positive(self, flag: str) -> int | None:
        value = self.args.get(flag)
        if value is None or not 1 <= value <= 2**31:
            return None
        return int(self.args.pop(flag))
