"""`specflow`, and `python -m specflow`: a signal ends it in one word, however early it comes."""

from __future__ import annotations

import sys

from specflow.interrupts import listen, rest


def start() -> int:
    """Run the command line; the exit code."""
    try:
        listen()
        from specflow.cli import main

        return main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        rest()


if __name__ == "__main__":
    sys.exit(start())
