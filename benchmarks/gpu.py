"""What has to be seen on a GPU, in one run of a few minutes; and what a step costs there.

    python benchmarks/gpu.py --check        imports all, names the device; the first thing to run
    python benchmarks/gpu.py [--out FOLDER] [--only PART ...] [--minutes 6.5]
    python benchmarks/gpu.py --rehearse     every part on a CPU, few cases, tiny models

Kernels, generated steps and captured graphs are checked first, in several processes at once; then
one process alone measures. Every part has its own time limit, leaves each result as it gets it, and
stops no other. Written: FOLDER/<gpu>-<date>.json and .md, anew after every phase.

Exit code 0: all that the parts asked for must show was seen; in a rehearsal, no slips.
1: something was not. 2: nothing was begun (arguments, packages, no device). 128 + N: signal N.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import FrameType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))  # a script has its own folder there, and nothing may be installed

from benchmarks.gpu_check import look  # noqa: E402
from benchmarks.gpu_jobs import NAMES, Found, made, report_logs, run  # noqa: E402
from benchmarks.gpu_page import Asked, page, shown, summary, verdicts, versions  # noqa: E402

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Results:
    """The two files of a run."""

    file: Path
    asked: Asked

    @classmethod
    def open(cls, folder: Path, asked: Asked) -> Results:
        """A name that no earlier run has; the last rehearsal is written over. May raise OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        device = re.sub(r"[^a-z0-9]+", "-", asked.device.lower()).strip("-") or "gpu"
        stem = f"{device}-{datetime.now(UTC):%Y-%m-%d}"
        file, turn = folder / f"{stem}.json", 1
        while file.exists() and not asked.rehearse:
            turn += 1
            file = folder / f"{stem}-{turn}.json"
        results = cls(file, asked)
        results.write(Found(), 0.0)
        return results

    def write(self, found: Found, seconds: float) -> None:
        """Everything so far, as JSON and as a page."""
        whole = {
            "versions": versions(),
            "seconds": round(seconds, 1),
            "asked": vars(self.asked),
            "said": summary(found, self.asked),
            "shown": [vars(each) for each in verdicts(found, self.asked)],
            "ended": found.ended,
            "parts": {part: list(items.values()) for part, items in found.items.items()},
        }
        self.file.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        text = "\n".join(page(found, seconds, self.asked)) + "\n"
        self.file.with_suffix(".md").write_text(text, encoding="utf-8")

    def keep(self, found: Found, seconds: float) -> None:
        """Write, or say why not: a full disk ends no run."""
        try:
            self.write(found, seconds)
        except OSError as error:
            print(f"error: `{self.file}` is not written: {error.strerror}", file=sys.stderr)


def main() -> int:
    """Run the parts, say what was seen."""
    args = arguments()
    began = monotonic()
    if args.check:
        return checked(rehearse=args.rehearse)
    device = "rehearsal"
    if not args.rehearse:
        machine = look(rehearse=False, device_first=True)
        if machine.problems:
            print(*machine.errors(), sep="\n", file=sys.stderr)
            return 2
        device = machine.device
    parts = tuple(name for name in NAMES if not args.only or name in args.only)
    asked = Asked(parts, device, args.rehearse)
    folder = args.out or (ROOT / "out" / "gpu" if args.rehearse else HERE / "results")
    try:
        results = Results.open(folder, asked)
    except OSError as error:
        return refused(f"`{folder}` takes no results: {error.strerror}", "`--out` names a folder")
    found = carried_out(args, results, began)
    print("\n".join(page(found, monotonic() - began, asked)))
    print(f"\nwritten to {results.file} and {results.file.with_suffix('.md').name}")
    return 0 if shown(found, asked) else 1


def checked(*, rehearse: bool) -> int:
    """Say what is here, and what is missing."""
    machine = look(rehearse=rehearse, device_first=False)
    print("\n".join(machine.lines()))
    print("not ready" if machine.problems else "ready")
    return 2 if machine.problems else 0


def carried_out(args: argparse.Namespace, results: Results, began: float) -> Found:
    """Everything run, and written. A signal ends what was started, and keeps what that left."""
    for each in ENDING:
        signal.signal(each, stopped)
    until = began + 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder:
        jobs = made(results.asked.parts, Path(folder), rehearse=args.rehearse)
        groups = ([j for j in jobs if not j.part.alone], [j for j in jobs if j.part.alone])
        try:
            for group, at_once in zip(groups, (args.at_once, 1), strict=True):
                run(group, until, at_once)
                results.keep(Found.gather(jobs), monotonic() - began)
        finally:
            for each in ENDING:
                signal.signal(each, signal.SIG_IGN)  # once is enough
            for job in jobs:
                job.kill()
            found = Found.gather(jobs)
            results.keep(found, monotonic() - began)
            report_logs(jobs)
            if any(not job.ended for job in jobs):
                print(f"stopped; what was seen until then is in {results.file}", file=sys.stderr)
    return found


def stopped(number: int, _frame: FrameType | None) -> None:
    """The exit code that a shell gives a process ended by a signal."""
    sys.exit(128 + number)


def refused(fact: str, out: str) -> int:
    """One fact, one way out: nothing was begun."""
    print(f"error: {fact}\n  help: {out}", file=sys.stderr)
    return 2


# --- arguments -----------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, not how all is called."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """As all errors of this script."""
        sys.exit(refused(message, "`--help` lists the arguments"))


def minutes(text: str) -> float:
    """A limit of time."""
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(text)
    return number


def processes(text: str) -> int:
    """How many at once."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def arguments() -> argparse.Namespace:
    """Of the command line; ends with 2 where they are none."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="what is here, and what is missing")
    parser.add_argument("--out", type=Path, help="benchmarks/results; of a rehearsal out/gpu")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="PART", help=", ".join(NAMES))
    parser.add_argument("--minutes", type=minutes, default=6.5, help="for everything")
    most = max(2, min(16, os.cpu_count() or 2))
    parser.add_argument("--at-once", type=processes, default=most, help="processes")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, to find slips")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
