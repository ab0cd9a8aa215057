"""The run report, schema version 1: what is counted, every formula, the table a person reads."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specflow.dummies import FORMAT as DUMMY

COMPLETIONS, REPORT = "completions.jsonl", "report.json"  # what a run leaves in its folder
SCHEMA = 1
TOO_FEW = 64  # verifies below which a low accept length says nothing
TOO_LOW = 1.05
LOOP = 8  # tokens: a text that says so many twice is counted as looping


@dataclass(frozen=True)
class Counted:
    """One completion as the report counts it."""

    id: str
    tokens: Sequence[int]
    accept_lens: Sequence[int]
    drafted: Sequence[int]
    finish: str


@dataclass(frozen=True)
class Tally:
    """What was counted over some verifies.

    histogram  verifies in which exactly 0, 1, .. guesses held; None where nobody counted that
    """

    verifies: int
    drafted: int
    accepted: int
    histogram: tuple[int, ...] | None = None

    @property
    def accept_length(self) -> float:
        """Tokens gained a verify, the bonus token among them."""
        return _ratio(self.accepted + self.verifies, self.verifies)

    def by_position(self, guesses: int) -> dict[str, list[float | None]]:
        """`by_position` of a chain whose every verify judged all its guesses."""
        counts = [*(self.histogram or ()), *([0] * (guesses + 1))][: guesses + 1]
        held = [sum(counts[i:]) for i in range(guesses + 1)]
        pairs = list(zip(held[1:], held, strict=False))
        return {
            "accept_rate_at": [h / self.verifies if self.verifies else None for h, _ in pairs],
            "cond_accept_rate_at": [h / r if r else None for h, r in pairs],
        }


def merged(tallies: Sequence[Tally]) -> Tally:
    """What several counted, together; without a histogram where one of them has none."""
    known = [t.histogram for t in tallies if t.verifies]
    histogram = None
    if known and all(h is not None for h in known):
        rows = itertools.zip_longest(*(h or () for h in known), fillvalue=0)
        histogram = tuple(sum(row) for row in rows)
    totals = (sum(t.verifies for t in tallies), sum(t.drafted for t in tallies))
    return Tally(*totals, sum(t.accepted for t in tallies), histogram)


IN_STEP = ("step", "draft", "verify", "commit")  # phases of a step: one, or the three
PHASES = ("prefill", *IN_STEP, "other")


@dataclass(frozen=True)
class Timed:
    """Seconds of a run: by phase, inside forwards, in all, and the process's CPU seconds.

    forward  None where a step is one launch, whose inside no clock sees
    steps    how many the phases but the prefill were spent in
    """

    phases: Mapping[str, float]
    total: float
    forward: float | None
    cpu: float
    steps: int = 0

    @property
    def step_ms(self) -> dict[str, float]:
        """Milliseconds of a mean step: in all, and by phase; empty where there was none."""
        if not self.steps:
            return {}
        each = {p: 1000 * s / self.steps for p, s in self.phases.items() if p in IN_STEP}
        return {"total": sum(each.values()), **each}


@dataclass
class Report:
    """Everything a run has to say; `as_json` is the stable form."""

    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    prompts: Mapping[str, Any]
    counted: list[Counted]
    timed: Timed
    chain: bool
    width: int
    baseline: Mapping[str, Any] | None = None
    lossless: Mapping[str, Any] | None = None
    cut_short: bool = False
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, in the order of the schema."""
        lens = [n for c in self.counted for n in c.accept_lens]
        drafted = sum(d for c in self.counted for d in c.drafted)
        tokens = sum(len(c.tokens) for c in self.counted)
        accepted = sum(lens) - len(lens)
        tok_s = _ratio(tokens, self.timed.total)
        out: dict[str, Any] = {
            "schema": SCHEMA,
            "recipe": dict(self.recipe),
            "environment": dict(self.environment),
            "prompts": dict(self.prompts),
            "totals": {
                "completion_tokens": tokens,
                "verifies": len(lens),
                "drafted": drafted,
                "accepted": accepted,
            },
            "accept_length": _ratio(accepted + len(lens), len(lens)),
            "draft_accept_rate": _ratio(accepted, drafted),
            "accept_histogram": [lens.count(n) for n in range(1, self.width + 1)],
        }
        if self.chain and self.width > 1:
            out |= by_position(self.counted, self.width - 1)
        other = max(0.0, self.timed.total - sum(self.timed.phases.values()))
        out["seconds"] = {**self.timed.phases, "other": other, "total": self.timed.total}
        out["forward_seconds"] = self.timed.forward
        out["cpu_seconds"] = self.timed.cpu
        out["steps"] = self.timed.steps
        out["step_ms"] = self.timed.step_ms
        out["tok_s"] = tok_s
        if self.baseline is not None:
            out["baseline"] = dict(self.baseline)
            out["speedup"] = _ratio(tok_s, self.baseline["tok_s"])
        out["per_prompt"] = _spread(self.counted)
        looping = sum(repeats(c.tokens) for c in self.counted)
        out["looping"] = _ratio(looping, len(self.counted))
        if self.lossless is not None:
            out["lossless"] = dict(self.lossless)
        out["cut_short"] = self.cut_short
        out["warnings"] = [*self.notes, *warnings(out)]
        return out


def repeats(tokens: Sequence[int], length: int = LOOP) -> bool:
    """Whether a run of `length` tokens occurs twice: drafting such text well proves little."""
    runs = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
    return len(set(runs)) < len(runs)


def _ratio(numerator: float, denominator: float) -> float:
    """Their quotient, or 0 where there is nothing to divide by."""
    return numerator / denominator if denominator else 0.0


def by_position(counted: Sequence[Counted], guesses: int) -> dict[str, list[float | None]]:
    """For chains: how often each position's guess held, of all made, and given the last held.

    None where no guess was ever made there.
    """
    made, held, reached = [0] * guesses, [0] * guesses, [0] * guesses
    for completion in counted:
        for length, drafted in zip(completion.accept_lens, completion.drafted, strict=True):
            for i in range(drafted):
                made[i] += 1
                reached[i] += i < length
                held[i] += i < length - 1
    return {
        "accept_rate_at": [h / m if m else None for h, m in zip(held, made, strict=True)],
        "cond_accept_rate_at": [h / r if r else None for h, r in zip(held, reached, strict=True)],
    }


def _spread(counted: Sequence[Counted]) -> dict[str, float]:
    """Lowest, middle and highest accept length of a prompt."""
    return spread_of([statistics.fmean(c.accept_lens) for c in counted if c.accept_lens])


def spread_of(means: Sequence[float]) -> dict[str, float]:
    """Lowest, middle and highest."""
    if not means:
        return {"min": 0.0, "median": 0.0, "max": 0.0}
    return {"min": min(means), "median": statistics.median(means), "max": max(means)}


def warnings(report: Mapping[str, Any]) -> list[str]:
    """What a reader should be told about the numbers."""
    verifies, drafted = report["totals"]["verifies"], report["totals"]["drafted"]
    if (
        made_up(report)
        or verifies < TOO_FEW
        or report["accept_length"] > TOO_LOW
        or report["recipe"].get("verify", {}).get("num_draft_tokens", 1) == 1
    ):
        return []
    if not drafted:
        nothing = (
            f"nothing was drafted in {verifies} verifies: the text never repeats what the draft "
            "looks up; lower `draft.min_match`, or draft with a model"
        )
        return [nothing]
    low = (
        f"the accept length is {report['accept_length']:.2f} over {verifies} verifies: the draft "
        "may belong to another target, the prompts may lack the chat template, or the text is new "
        "to the draft"
    )
    return [low]


def table(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The report as rows of (what, figure, how it is made)."""
    if made_up(report) and report.get("step_ms"):  # of another engine a step is not known
        return _of_steps(report)
    totals, seconds = report["totals"], report["seconds"]
    gained = f"({totals['accepted']} accepted + {totals['verifies']} verifies)"
    rows = []
    if totals["verifies"]:
        length = f"{report['accept_length']:.3f}"
        rows.append(("accept length", length, f"{gained} / {totals['verifies']}"))
    if totals["drafted"]:
        how = f"{totals['accepted']} accepted / {totals['drafted']} drafted"
        rows.append(("draft accept rate", f"{report['draft_accept_rate']:.3f}", how))
    if totals["verifies"] and report["recipe"].get("verify", {}).get("shape") == "ragged":
        judged, width = 1 + totals["drafted"] / totals["verifies"], report["recipe"]["verify"]
        most = width["num_draft_tokens"]
        rows.append(("positions judged", f"{judged:.2f}", f"of {most}, a request and step"))
    if "accept_rate_at" in report:
        rows.append(
            (
                "accept rate at 1, 2, ..",
                " ".join("-" if x is None else f"{x:.2f}" for x in report["accept_rate_at"]),
                "guess held / guess made, by position",
            )
        )
        given = " ".join("-" if x is None else f"{x:.2f}" for x in report["cond_accept_rate_at"])
        rows.append(("where those before held", given, "guess held / guess reached"))
    spread = report["per_prompt"]
    if totals["drafted"] and spread is not None:
        said = f"{spread['min']:.2f} .. {spread['median']:.2f} .. {spread['max']:.2f}"
        rows.append(("accept length, prompts", said, "lowest, median, highest of a prompt"))
    rows += [
        (
            "speed",
            f"{report['tok_s']:.1f} tok/s",
            f"{totals['completion_tokens']} tokens / {seconds['total']:.2f} s",
        ),
    ]
    if "baseline" in report:
        rows += [
            (
                "plain decoding",
                f"{report['baseline']['tok_s']:.1f} tok/s",
                report["baseline"].get("how", "same session, nothing drafted"),
            ),
            ("speedup", f"{report['speedup']:.2f}x", "speed / plain decoding"),
        ]
    if "prefill" in seconds:  # the phases of another engine are not known
        rows += _shares(report)
    rows.append(
        ("looping", f"{100 * report['looping']:.0f}%", f"completions that say {LOOP} tokens twice")
    )
    return rows + _lossless(report)


def made_up(report: Mapping[str, Any]) -> bool:
    """Whether weights were random: then nothing that hangs on what a model says means anything."""
    return bool(report["recipe"].get("run", {}).get("load_format") == DUMMY)


def _of_steps(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What means something where weights are random: how long a step takes."""
    steps, plain = report["step_ms"], report.get("baseline", {}).get("step_ms")
    rows = [("a step", f"{steps['total']:.2f} ms", f"the mean of {report['steps']}")]
    parts = [f"{p} {steps[p]:.2f}" for p in IN_STEP if p in steps]
    if len(parts) > 1:
        rows.append(("of it", " ".join(parts), "ms, by phase"))
    if plain:
        count = f"the mean of {report['baseline']['steps']}, nothing drafted"
        rows.append(("a plain step", f"{plain['total']:.2f} ms", count))
        even = _ratio(steps["total"], plain["total"])
        rows.append(("breaks even at", f"{even:.2f}", "accept length: a step / a plain step"))
    return [*rows, *_shares(report), *_lossless(report)]


def _lossless(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    if "lossless" not in report:
        return []
    return [("lossless", report["lossless"]["verdict"], "against plain decoding, token by token")]


def _shares(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Where the time went."""
    seconds, phases = report["seconds"], [p for p in PHASES if p in report["seconds"]]
    shares = " ".join(f"{p} {100 * _ratio(seconds[p], seconds['total']):.0f}%" for p in phases)
    rows = [("time", shares, "of the total")]
    if report["forward_seconds"] is not None:
        overhead = 100 * (1 - _ratio(report["forward_seconds"], seconds["total"]))
        rows.append(("loop overhead", f"{overhead:.1f}%", "1 - seconds inside forwards / total"))
    return rows
