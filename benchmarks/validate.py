"""How quick `specflow validate` and `diff` answer, against importing what they are made of.

    python benchmarks/validate.py [--times 15] [--recipes 500] [-o FILE]

CPU seconds of whole processes, in turn: lowest and median. One recipe, and `diff` of two, have 2.5
times the imports; many recipes in one call, 5 seconds of user time.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from specflow.packs import names, root

SPECFLOW = [sys.executable, "-m", "specflow"]
COMMANDS = {
    "imports": [sys.executable, "-c", "import pydantic, omegaconf, rich"],
    "validate pico/ngram": [*SPECFLOW, "validate", "pico/ngram"],
    "validate pico/eagle3": [*SPECFLOW, "validate", "pico/eagle3"],
    "diff pico/ngram pico/eagle3": [*SPECFLOW, "diff", "pico/ngram", "pico/eagle3"],
}
BOUND, MANY_BOUND = 2.5, 5.0


def cpu_seconds(command: list[str]) -> tuple[float, float]:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode > 1:  # 1 is what `diff` says of recipes that differ
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def many(count: int) -> dict[str, float]:
    """User seconds of so many recipes in one call: each of those that ship in turn, extended."""
    with tempfile.TemporaryDirectory() as folder:
        files = [root() / f"{name}.yaml" for name in names()]
        for i in range(count):
            text = f"extends: {files[i % len(files)]}\nrun: {{threads: {1 + i % 8}}}\n"
            (Path(folder) / f"{i}.yaml").write_text(text)
        user, system = cpu_seconds([*SPECFLOW, "validate", folder])
    return {"recipes": count, "user_seconds": round(user, 2), "system_seconds": round(system, 2)}


def main() -> None:
    """Measure all in turn, print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--recipes", type=int, default=500)
    parser.add_argument("-o", "--out", type=Path)
    args = parser.parse_args()
    turns = [{n: sum(cpu_seconds(c)) for n, c in COMMANDS.items()} for _ in range(args.times)]
    found: dict[str, dict[str, float]] = {}
    for name in COMMANDS:
        found[name] = {}
        for word, pick in (("lowest", min), ("median", statistics.median)):
            seconds, imports = (pick([turn[n] for turn in turns]) for n in (name, "imports"))
            found[name] |= {f"{word}_ms": round(seconds * 1000), word: round(seconds / imports, 2)}
        said = ", ".join(f"{found[name][f'{w}_ms']} ms {w}" for w in ("lowest", "median"))
        print(f"{name:28} {said}: {found[name]['lowest']} and {found[name]['median']} x imports")
    whole = many(args.recipes)
    print(f"{whole['recipes']} recipes in one call: {whole['user_seconds']} s of user time")
    if args.out:
        bounds = {"times_imports": BOUND, "user_seconds": MANY_BOUND}
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        report = {"machine": machine, "times": args.times, "bounds": bounds}
        report |= {"commands": found, "many": whole}
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
