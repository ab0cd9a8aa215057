"""Environment variables that SGLang 0.5.23 reads while it resolves its arguments (1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specflow.engines.outcome import Kind, Run, shown
from specflow.engines.sglang.tables import RAGGED_MODES

RAGGED = "SGLANG_RAGGED_VERIFY_MODE"
COORDINATION = "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"
PP_SPEC = "SGLANG_ENABLE_PP_SPEC"
PLAN_STREAM = "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"
SIMULATE = "SGLANG_SIMULATE_ACC_LEN"
LAG = "SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS"

_TRUE = ("true", "1", "yes", "y")
_NO_EFFECT = {
    "SGLANG_DSPARK_FAST_SAMPLING": "was removed",
    "SGLANG_DSPARK_OPT_FUSED_GREEDY_MARKOV": "was removed",
    "SGLANG_DSPARK_FOLDED_SAMPLING": "was removed",
    "SGLANG_NGRAM_FORCE_GREEDY_VERIFY": "is declared and read nowhere",
}
_SYNC = ("all", "rng", "init", "off", "none")
_WORDS = {
    "SGLANG_SIMULATE_ACC_METHOD": ("match-expected", "multinomial"),
    "SGLANG_SIMULATE_ACC_TOKEN_MODE": ("fixed", "real-draft-token"),
}


@dataclass(frozen=True)
class Env:
    """Variables by name, as text."""

    values: Mapping[str, str]

    @classmethod
    def of(cls, raw: object) -> Env:
        """Variables of whatever was handed over."""
        if not isinstance(raw, Mapping):
            return cls({})
        said = {k: v for k, v in raw.items() if isinstance(k, str)}
        return cls(
            {k: v if isinstance(v, str) else shown(v) for k, v in said.items() if v is not None}
        )

    def on(self, name: str) -> bool:
        """A switch; what is no switch counts as its default, off."""
        return self.values.get(name, "").lower() in _TRUE

    def number(self, name: str, default: float) -> float:
        """A number; what is none counts as the default."""
        try:
            return float(self.values.get(name, default))
        except (ValueError, OverflowError):
            return default

    @property
    def ragged(self) -> str:
        """How much is verified; any other word stops every algorithm."""
        return self.values.get(RAGGED, RAGGED_MODES[0])


def ragged_mode(run: Run, env: Env) -> str:
    """The mode, which must be one of three even where no DSPARK runs (1.2)."""
    if env.ragged not in RAGGED_MODES:
        run.refuse("1.2", f"{RAGGED} is {env.ragged!r}, not one of {', '.join(RAGGED_MODES)}")
    return env.ragged


def remark(run: Run, env: Env) -> None:
    """Variables that do nothing, or stop the engine later."""
    for name, why in _NO_EFFECT.items():
        if name in env.values:
            run.note("1.2", Kind.WARNS, f"{name} {why}: no effect")
    for name, words in _WORDS.items():
        if env.values.get(name, words[0]) not in words:
            said = f"{name} is {env.values[name]!r}, not one of {', '.join(words)}"
            run.note("O22", Kind.AT_START, said)
    if env.number(SIMULATE, -1.0) > 0:
        run.note("5", Kind.TOLD, f"{SIMULATE} is set: accepted lengths and outputs are made up")
    if env.on("SGLANG_LILICORR_REQUIRE_SAMPLING") and not env.on("SGLANG_ENABLE_LILICORR_SAMPLING"):
        said = "SGLANG_LILICORR_REQUIRE_SAMPLING without SGLANG_ENABLE_LILICORR_SAMPLING"
        run.note("1.2", Kind.AT_START, said)
    sync = env.values.get("SGLANG_SPEC_TP_SYNC", "all").split(",")
    strange = [word for word in map(str.strip, sync) if word and not _known_sync(word)]
    if strange:
        said = f"SGLANG_SPEC_TP_SYNC names {strange[0]!r}, which may be no site of a decision"
        run.note("1.2", Kind.AT_START, said)


def _known_sync(word: str) -> bool:
    bare = word.removeprefix("-")
    return bare in _SYNC or bare.isdecimal()
