"""What gpu.py says of what it saw: what was shown, what was measured, what failed."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from benchmarks.gpu_jobs import NAMES, Found, Line

MOST_OUTSIDE = 0.05  # of a step of one request at the shape of Llama 3 8B
# One launch a step, whatever else they do: these have no host phase.
ONE_LAUNCH = (
    *("eagle3", "eagle3_sampled", "eagle3_tree", "nextn", "nextn_tree", "frozen_kv"),
    *("frozen_kv_tree", "dflash", "dspark", "dspark_sampled"),
)
TOLD = ("torch", "triton", "transformers")  # versions that bear on figures


@dataclass(frozen=True)
class Asked:
    """What a run is to do: which parts, on what, and whether it is only rehearsed."""

    parts: tuple[str, ...] = NAMES
    device: str = "gpu"
    rehearse: bool = False


@dataclass(frozen=True)
class Verdict:
    """One thing that has to be seen: pass, fail or not reached, and what of it was."""

    what: str
    verdict: str
    said: str


# --- what it must show ---------------------------------------------------------------------------


def verdicts(found: Found, asked: Asked) -> Iterator[Verdict]:
    """All that must be shown by the parts that were asked for.

    A rehearsal can only fail: it has few cases, and times that mean nothing.
    """
    for part, judge in JUDGES:
        if part not in asked.parts or (asked.rehearse and judge is outside):
            continue
        seen = judge(found)
        if asked.rehearse and seen.verdict != "fail":
            seen = Verdict(seen.what, "not asked in a rehearsal", seen.said)
        yield seen


def all_of(part: str, what: str) -> Callable[[Found], Verdict]:
    """Every item of a part passed."""

    def judge(found: Found) -> Verdict:
        items, expected = found.of(part), found.expected.get(part, set())
        wrong = sorted(name for name, line in items.items() if not line["passed"])
        said = f"{len(items) - len(wrong)} of {len(expected) or '?'}"
        if wrong:
            return Verdict(what, "fail", f"{said}; not {', '.join(wrong)}")
        return Verdict(what, "pass" if items and found.whole(part) else "not reached", said)

    return judge


def one_launch(found: Found) -> Verdict:
    """A graph a step, no kernel beside it."""
    what = "one graph launch a step, none beside it: " + ", ".join(ONE_LAUNCH)
    wrong, right = [], []
    items = found.of("captured")
    for name in ONE_LAUNCH:
        seen = items.get(name, {}).get("launches", {})
        if not seen.get("graphs"):
            continue  # not run, or the profiler saw nothing of the device
        ok = seen["graphs"] == seen["replays"] == seen["steps"] and not seen["singles"]
        (right if ok else wrong).append(name)
    said = f"{len(right)} of {len(ONE_LAUNCH)}"
    if wrong:
        return Verdict(what, "fail", f"{said}; not {', '.join(wrong)}")
    return Verdict(what, "pass" if len(right) == len(ONE_LAUNCH) else "not reached", said)


def no_sync(found: Found) -> Verdict:
    """Nobody waited in a loop of replays."""
    what = 'no host sync in the replay loop (set_sync_debug_mode("error"))'
    items = {n: line for n, line in found.of("captured").items() if "sync" in line}
    wrong = sorted(name for name, line in items.items() if line["sync"])
    said = f"{len(items) - len(wrong)} of {len(found.expected.get('captured', ())) or '?'}"
    if wrong:
        return Verdict(what, "fail", f"{said}; {wrong[0]}: {items[wrong[0]]['sync']}")
    whole = bool(items) and items.keys() >= found.expected.get("captured", set())
    return Verdict(what, "pass" if whole and found.whole("captured") else "not reached", said)


def outside(found: Found) -> Verdict:
    """The time between the forwards."""
    what = f"at most {MOST_OUTSIDE:.0%} of a step outside the forwards, Llama 8B shape, batch 1"
    share = found.of("speed").get("step", {}).get("outside_share")
    if share is None:
        return Verdict(what, "not reached", "not measured")
    # As far below nothing, the two that were compared are too unsteady to say anything.
    within = -MOST_OUTSIDE <= share <= MOST_OUTSIDE
    return Verdict(what, "pass" if within else "fail", f"{share:.1%}")


JUDGES: tuple[tuple[str, Callable[[Found], Verdict]], ...] = (
    ("pairs", all_of("pairs", "kernels = their references")),
    ("attention", all_of("attention", "attention kernel = its reference")),
    ("slots", all_of("slots", "KV move and injection = their references")),
    ("steps", all_of("steps", "steps of a device = steps in torch, every small recipe")),
    ("captured", all_of("captured", "captured = called, token for token, every small recipe")),
    ("captured", one_launch),
    ("captured", no_sync),
    ("speed", outside),
)


def slips(found: Found, asked: Asked) -> list[str]:
    """Items that failed, and parts that did not do all they were asked."""
    wrong = [f"{line['part']} {line['item']}" for line in found.failed]
    for part in asked.parts:
        if not found.whole(part):
            ends = sorted(set(found.ended.get(part, ["not started"])) - {"done"})
            wrong.append(f"{part} ({', '.join(ends) or 'less than it said'})")
    if asked.rehearse and not wrong:  # nothing raised, and yet a step launched too much, or waited
        judged = verdicts(found, asked)
        wrong = [each.what.partition(":")[0] for each in judged if each.verdict == "fail"]
    return wrong


def shown(found: Found, asked: Asked) -> bool:
    """Whether a run may end with 0: nothing slipped, and all that was asked for was seen."""
    whole = asked.rehearse or all(each.verdict == "pass" for each in verdicts(found, asked))
    return whole and not slips(found, asked)


def summary(found: Found, asked: Asked) -> str:
    """What came of it, in a line."""
    wrong = slips(found, asked)
    if asked.rehearse:
        ran = sum(len(items) for items in found.items.values())
        said = f"slips: {', '.join(wrong)}" if wrong else "no slips"
        return f"the rehearsal found {said} ({ran} items ran, of {', '.join(asked.parts)})"
    left = [
        each.what.partition(":")[0] for each in verdicts(found, asked) if each.verdict != "pass"
    ]
    said = "all that must be shown was seen" if not left else f"not seen: {'; '.join(left)}"
    of = "" if asked.parts == NAMES else f" (of {', '.join(asked.parts)} alone)"
    return said + of + (f"; went wrong: {', '.join(wrong)}" if wrong else "")


# --- the table -----------------------------------------------------------------------------------


def table(found: Found) -> Iterator[tuple[str, str, str]]:
    """What was measured: a name, a number, what it comes from."""
    items = {n: line for n, line in found.of("speed").items() if line["passed"]}
    if "copy" in items:
        yield "device copy", f"{items['copy']['gb_s']:.0f} GB/s", "bytes read and written"
    if "step" in items:
        yield from step_rows("EAGLE3 chain", items["step"])
    if "verify" in items:
        seen = items["verify"]
        read = f"{seen['bytes'] / 1e9:.2f} GB"
        yield (
            "verify forward", f"{seen['gb_s']:.0f} GB/s",
            f"{read} in {seen['forward']['median']:.3f} ms, {seen['share_of_copy']:.0%} of a copy",
        )  # fmt: skip
    if "plain" in items:
        seen = items["plain"]
        yield "plain, nothing drafted", f"{seen['session_tok_s']:.1f} tok/s", timed(seen)
    if "transformers" in items:
        seen = items["transformers"]
        how = "static cache, compiled forward" if seen["compiled"] else "static cache, not compiled"
        yield "transformers", f"{seen['tok_s']:.1f} tok/s", f"{how}, {timed(seen)}"
    for length, seen in items.get("accept", {}).get("by_accept_length", {}).items():
        yield (
            f"accept length set to {length}", f"{seen['session_tok_s']:.1f} tok/s",
            f"the device alone {seen['device_tok_s']:.1f}, {timed(seen)}",
        )  # fmt: skip
    if "tree" in items:
        yield from step_rows("EAGLE3 tree", items["tree"])


def step_rows(name: str, seen: Line) -> Iterator[tuple[str, str, str]]:
    """What a step took, and what of it was outside the forwards."""
    step, launches = seen["step"], seen["launches"]
    yield name, f"{step['median']:.3f} ms a step", f"{step['p10']:.3f} .. {step['p90']:.3f} ms"
    both = f"{seen['outside_ms']:.3f} ms by difference, {seen['outside_ms_by_profiler']:.3f} ms"
    yield "outside the forwards", f"{seen['outside_share']:.2%}", f"{both} by the profiler"
    graphs, singles, kernels = (
        f"{launches[kind] / launches['steps']:g}" for kind in ("graphs", "singles", "kernels")
    )
    yield "launches a step", f"{graphs} graphs", f"{singles} beside them, {kernels} kernels inside"


def timed(seen: Line) -> str:
    """A step's time, of a line."""
    return f"{seen['step']['median']:.3f} ms a step"


def versions(names: tuple[str, ...] = TOLD) -> dict[str, str]:
    """Of Python and packages, as installed; nothing is imported."""
    told = {"python": platform.python_version()}
    for name in names:
        try:
            told[name] = version(name)
        except PackageNotFoundError:
            told[name] = "none"
    return told


def page(found: Found, seconds: float, asked: Asked) -> Iterator[str]:
    """The table, what was shown, what failed, and what came of it."""
    about = ", ".join(f"{name} {which}" for name, which in versions().items())
    yield f"# {asked.device}, {about}, {seconds:.0f} s"
    if measured := list(table(found)):
        note = " (in a rehearsal, of no meaning)" if asked.rehearse else ""
        yield from ("", f"| what{note} | | |", "|---|---|---|")
        for row in measured:
            yield f"| {' | '.join(row)} |"
    if judged := list(verdicts(found, asked)):
        heads = "on a GPU | | ran here" if asked.rehearse else "| |"
        yield from ("", f"| must be shown {heads} |", "|---|---|---|")
        for each in judged:
            yield f"| {each.what} | {each.verdict} | {each.said} |"
    if found.failed:
        yield ""
    for line in found.failed:
        yield f"- {line['part']} {line['item']}: {line['error']} ({' < '.join(line['where'][-3:])})"
    yield from ("", summary(found, asked))
