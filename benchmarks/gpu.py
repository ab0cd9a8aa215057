"""What has to be seen on a GPU, in one run of a few minutes; and what a step costs there.

    python benchmarks/gpu.py [--out FOLDER] [--only PART ...] [--minutes 6.5]
    python benchmarks/gpu.py --rehearse     every part on a CPU, few cases, tiny models

Kernels, generated steps and captured graphs are checked first, in several processes at once; then
one process alone measures. Every part has its own time limit, leaves each result as it gets it, and
stops no other. Exit code 0 where everything that must be shown was.

Written: FOLDER/<gpu>-<date>.json and .md, anew after every part.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic, sleep
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BROKEN = 75  # a process whose CUDA context an error broke asks to be started once more
RESTARTS = 4
MOST_OUTSIDE = 0.05  # of a step of one request at the shape of Llama 3 8B
# One launch a step, whatever else they do: these have no host phase.
ONE_LAUNCH = (
    *("eagle3", "eagle3_sampled", "eagle3_tree", "nextn", "nextn_tree", "frozen_kv"),
    *("frozen_kv_tree", "dflash", "dspark", "dspark_sampled"),
)
Line = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One part of the run.

    shards   processes that share its items
    seconds  after which they are killed
    alone    nothing else runs beside it
    """

    name: str
    shards: int
    seconds: int
    alone: bool = False


PARTS = (
    Part("slots", 1, 120),
    Part("pairs", 3, 180),
    Part("attention", 3, 180),
    Part("steps", 4, 180),
    Part("captured", 5, 180),
    Part("speed", 1, 210, alone=True),
)


@dataclass
class Job:
    """A process of a part."""

    part: Part
    shard: int
    command: list[str]
    file: Path
    began: float = 0.0
    running: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    ended: str = ""

    def start(self) -> None:
        """Begin, or go on where a broken process left off."""
        self.began = self.began or monotonic()
        log = self.file.with_suffix(".log").open("ab")
        self.running = subprocess.Popen(
            self.command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
        )
        log.close()

    def look(self, until: float) -> None:
        """Note how it ended; kill it where its time is over."""
        if self.running is None or self.ended:
            return
        code = self.running.poll()
        if code == BROKEN and self.restarts < RESTARTS:
            self.restarts += 1
            self.start()
        elif code is not None:
            self.ended = "done" if code == 0 else f"exit code {code}"
        elif monotonic() > min(until, self.began + self.part.seconds):
            self.kill()
            self.ended = "out of time"

    def kill(self) -> None:
        """End it and whatever it started."""
        if self.running is not None and self.running.poll() is None:
            os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()

    def lines(self) -> list[Line]:
        """What it has left so far."""
        lines = []
        for text in self.file.read_text().splitlines() if self.file.is_file() else ():
            try:
                lines.append(json.loads(text))
            except ValueError:  # cut off by the kill
                continue
        return lines


@dataclass
class Found:
    """All that was left so far: items by part, and how jobs ended."""

    items: dict[str, dict[str, Line]] = field(default_factory=dict)
    expected: dict[str, set[str]] = field(default_factory=dict)
    ended: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def gather(cls, jobs: list[Job]) -> Found:
        """Read every file."""
        found = cls()
        for job in jobs:
            name = job.part.name
            found.ended.setdefault(name, []).append(job.ended or "running")
            for line in job.lines():
                if "expects" in line:
                    found.expected.setdefault(name, set()).update(line["expects"])
                else:
                    found.items.setdefault(name, {})[line["item"]] = line
        return found

    def of(self, part: str) -> dict[str, Line]:
        """A part's items."""
        return self.items.get(part, {})

    @property
    def whole(self) -> Callable[[str], bool]:
        """Whether a part's jobs all said what they would do, and did it."""
        return lambda part: (
            bool(self.ended.get(part))
            and all(each == "done" for each in self.ended[part])
            and self.expected.get(part, set()) <= self.of(part).keys()
        )


# --- what it must show ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """One thing that has to be seen: pass, fail or not reached, and what of it was."""

    what: str
    verdict: str
    said: str


def verdicts(found: Found) -> Iterator[Verdict]:
    """All that must be shown, in the words of its issue."""
    yield all_of(found, "pairs", "kernels = their references")
    yield all_of(found, "attention", "attention kernel = its reference")
    yield all_of(found, "slots", "KV move and injection = their references")
    yield all_of(found, "steps", "steps of a device = steps in torch, every small recipe")
    yield all_of(found, "captured", "captured = called, token for token, every small recipe")
    yield one_launch(found)
    yield no_sync(found)
    yield outside(found)


def all_of(found: Found, part: str, what: str) -> Verdict:
    """Every item of a part passed."""
    items, expected = found.of(part), found.expected.get(part, set())
    wrong = sorted(name for name, line in items.items() if not line["passed"])
    said = f"{len(items) - len(wrong)} of {len(expected) or '?'}"
    if wrong:
        return Verdict(what, "fail", f"{said}; not {', '.join(wrong)}")
    return Verdict(what, "pass" if items and found.whole(part) else "not reached", said)


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


# --- running -------------------------------------------------------------------------------------


def run(jobs: list[Job], until: float, at_once: int) -> None:
    """Start the jobs, so many at once, and look after them until all have ended."""
    waiting = list(jobs)
    while any(not job.ended for job in jobs):
        running = [job for job in jobs if job.running is not None and not job.ended]
        while waiting and len(running) < at_once and monotonic() < until:
            job = waiting.pop(0)
            job.start()
            running.append(job)
        if monotonic() > until:
            for job in waiting:
                job.ended = "not started: out of time"
            waiting.clear()
        for job in jobs:
            job.look(until)
        sleep(0.1)


def made(part: Part, args: argparse.Namespace, folder: Path) -> list[Job]:
    """The processes of a part."""
    shards = 1 if args.rehearse else part.shards
    more = ["--rehearse"] if args.rehearse else []
    told = ["OMP_WAIT_POLICY=PASSIVE", *(["TRITON_INTERPRET=1"] if args.rehearse else [])]
    return [
        Job(
            part,
            i,
            [
                "env", *told, sys.executable, "-u", "-m", "benchmarks.gpu_parts", part.name,
                "--shard", f"{i}/{shards}",
                "--out", str(folder / f"{part.name}-{i}.jsonl"), *more,
            ],
            folder / f"{part.name}-{i}.jsonl",
        )
        for i in range(shards)
    ]  # fmt: skip


def main() -> int:
    """Run the parts, say what was seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--minutes", type=float, default=6.5, help="for everything")
    parser.add_argument("--at-once", type=int, default=max(2, min(16, os.cpu_count() or 2)))
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, to find slips")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = monotonic()
    until = began + 60 * args.minutes
    chosen = [part for part in PARTS if not args.only or part.name in args.only]
    with tempfile.TemporaryDirectory() as folder:
        jobs = [job for part in chosen for job in made(part, args, Path(folder))]
        groups = ([j for j in jobs if not j.part.alone], [j for j in jobs if j.part.alone])
        try:
            for group, at_once in zip(groups, (args.at_once, 1), strict=True):
                run(group, until, at_once)
                write(args, Found.gather(jobs), monotonic() - began)
        finally:  # a signal ends what it started, and keeps what they left
            for job in jobs:
                job.kill()
            found = Found.gather(jobs)
            file = write(args, found, monotonic() - began)
            report_logs(jobs)
    print("\n".join(page(found, monotonic() - began)))
    print(f"\nwritten to {file} and {file.with_suffix('.md').name}")
    wrong = any(not line["passed"] for items in found.items.values() for line in items.values())
    shown = all(each.verdict == "pass" for each in verdicts(found)) or args.rehearse
    undone = any(each != "done" for ends in found.ended.values() for each in ends)
    return int(wrong or undone or not shown)


def report_logs(jobs: list[Job]) -> None:
    """The end of what processes printed that did not end well; what several said, once."""
    said: dict[str, list[str]] = {}
    for job in jobs:
        log = job.file.with_suffix(".log")
        if job.ended != "done" and log.is_file():
            tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-15:])
            said.setdefault(tail, []).append(
                f"{job.part.name} {job.shard} ({job.ended or 'killed'})"
            )
    for tail, who in said.items():
        print(f"--- {', '.join(who)}\n  {tail}")


def name_of(found: Found) -> str:
    """The device, as a part of a file's name."""
    said = str(found.of("speed").get("copy", {}).get("device") or device_name())
    return re.sub(r"[^a-z0-9]+", "-", said.lower()).strip("-") or "gpu"


def device_name() -> str:
    """What the driver calls the first device; this process loads no torch."""
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said.splitlines()[0] if said.strip() else "unknown"


def write(args: argparse.Namespace, found: Found, seconds: float) -> Path:
    """Everything so far, as JSON and as a page."""
    args.out.mkdir(parents=True, exist_ok=True)
    kind = "rehearsal" if args.rehearse else name_of(found)
    file: Path = args.out / f"{kind}-{datetime.now(UTC):%Y-%m-%d}.json"
    whole = {
        "versions": versions(),
        "seconds": round(seconds, 1),
        "shown": [vars(each) for each in verdicts(found)],
        "ended": found.ended,
        "parts": {part: list(items.values()) for part, items in found.items.items()},
    }
    file.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    text = "\n".join(page(found, seconds)) + "\n"
    file.with_suffix(".md").write_text(text, encoding="utf-8")
    return file


def versions() -> dict[str, str]:
    """Of what bears on the figures."""
    told = {"python": platform.python_version()}
    for name in ("torch", "triton", "transformers"):
        try:
            told[name] = version(name)
        except PackageNotFoundError:
            told[name] = "none"
    return told


def page(found: Found, seconds: float) -> Iterator[str]:
    """The table, what was shown, and what failed."""
    about = ", ".join(f"{name} {which}" for name, which in versions().items())
    yield f"# {name_of(found)}, {about}, {seconds:.0f} s"
    yield from ("", "| what | | |", "|---|---|---|")
    for row in table(found):
        yield f"| {' | '.join(row)} |"
    yield from ("", "| must be shown | | |", "|---|---|---|")
    for each in verdicts(found):
        yield f"| {each.what} | {each.verdict} | {each.said} |"
    failed = [line for items in found.items.values() for line in items.values()]
    failed = [line for line in failed if not line["passed"]]
    if failed:
        yield ""
    for line in failed:
        yield f"- {line['part']} {line['item']}: {line['error']} ({' < '.join(line['where'][-3:])})"


if __name__ == "__main__":
    sys.exit(main())
