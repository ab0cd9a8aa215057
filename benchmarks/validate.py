"""How quick `specflow validate` answers, against importing what it is made of.

    python benchmarks/validate.py [--times 15]

CPU seconds of whole processes, alternating; lowest and median. The bound is twice the imports.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys

IMPORTS = [sys.executable, "-c", "import pydantic, omegaconf, rich"]
VALIDATE = [sys.executable, "-m", "specflow", "validate", "pico/ngram"]


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Measure both in turn, print the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=15)
    times = parser.parse_args().times
    pairs = [(cpu_seconds(IMPORTS), cpu_seconds(VALIDATE)) for _ in range(times)]
    for name, pick in (("lowest", min), ("median", statistics.median)):
        imports, validate = (pick(side) for side in zip(*pairs, strict=True))
        print(
            f"{name}: imports {imports * 1000:.0f} ms, validate {validate * 1000:.0f} ms, "
            f"ratio {validate / imports:.2f}"
        )


if __name__ == "__main__":
    main()
