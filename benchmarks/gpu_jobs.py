"""The processes of gpu.py: what they are told, how long they may run, and what they left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BROKEN = 75  # exit code: an error broke the CUDA context, and another process may go on
RESTARTS = 4
Line = dict[str, Any]


def read(file: Path) -> list[Line]:
    """The lines that a process left, less one that was cut off when it was killed."""
    lines = []
    for text in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


@dataclass(frozen=True)
class Part:
    """One part of the run.

    shards   processes that share its items
    seconds  after which they are killed
    alone    nothing else runs beside it
    holds    the parts that it stands for, where those share a process
    """

    name: str
    shards: int
    seconds: int
    alone: bool = False
    holds: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What it runs."""
        return self.holds or (self.name,)


PARTS = (
    Part("slots", 1, 120),
    Part("pairs", 3, 180),
    Part("attention", 3, 180),
    Part("steps", 4, 180),
    Part("captured", 5, 180),
    Part("speed", 1, 210, alone=True),
)
NAMES = tuple(part.name for part in PARTS)


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
        with self.file.with_suffix(".log").open("ab") as log:
            self.running = subprocess.Popen(
                self.command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )

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
        return read(self.file)


@dataclass
class Found:
    """All that was left so far: items by part, and how jobs ended."""

    items: dict[str, dict[str, Line]] = field(default_factory=dict)
    expected: dict[str, set[str]] = field(default_factory=dict)
    ended: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def gather(cls, jobs: Sequence[Job]) -> Found:
        """Read every file."""
        found = cls()
        for job in jobs:
            for name in job.part.names:
                found.ended.setdefault(name, []).append(job.ended or "running")
            for line in job.lines():
                if "expects" in line:
                    found.expected.setdefault(line["part"], set()).update(line["expects"])
                else:
                    found.items.setdefault(line["part"], {})[line["item"]] = line
        return found

    def of(self, part: str) -> dict[str, Line]:
        """A part's items."""
        return self.items.get(part, {})

    def whole(self, part: str) -> bool:
        """Whether a part's jobs all said what they would do, and did it."""
        return (
            bool(self.ended.get(part))
            and all(each == "done" for each in self.ended[part])
            and self.expected.get(part, set()) <= self.of(part).keys()
        )

    @property
    def failed(self) -> list[Line]:
        """Items that went wrong."""
        return [
            line for items in self.items.values() for line in items.values() if not line["passed"]
        ]


def run(jobs: Sequence[Job], until: float, at_once: int) -> None:
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


def made(names: Sequence[str], folder: Path, *, rehearse: bool) -> list[Job]:
    """The processes of parts. A rehearsal has two: most of its time is what a process imports."""
    parts = [part for part in PARTS if part.name in names]
    if rehearse:
        both = ([p for p in parts if p.alone is alone] for alone in (False, True))
        parts = [
            Part(
                "-".join(p.name for p in each), 1, sum(p.seconds for p in each), each[0].alone,
                tuple(p.name for p in each),
            )
            for each in both if each
        ]  # fmt: skip
    more = ["--rehearse"] if rehearse else []
    told = ["OMP_WAIT_POLICY=PASSIVE", *(["TRITON_INTERPRET=1"] if rehearse else [])]
    return [
        Job(
            part,
            i,
            [
                "env", *told, sys.executable, "-u", "-m", "benchmarks.gpu_parts", *part.names,
                "--shard", f"{i}/{part.shards}",
                "--out", str(folder / f"{part.name}-{i}.jsonl"), *more,
            ],
            folder / f"{part.name}-{i}.jsonl",
        )
        for part in parts
        for i in range(part.shards)
    ]  # fmt: skip


def report_logs(jobs: Sequence[Job]) -> None:
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
