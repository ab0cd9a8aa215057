"""`specflow`, and `python -m specflow`: a signal ends it in one word, however early it comes."""

from __future__ import annotations

import gc
import os
import sys

from specflow.interrupts import listen, rest, seen


def start() -> int:
    """Run the command line; the exit code."""
    code = 1
    try:
        listen()
        gc.disable()  # imports leave no garbage, and looking for it costs `validate` a twentieth
        from specflow.cli import main

        code = main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
    finally:
        rest()
    if seen():
        # CPython kills itself by SIGINT at its end, though the interrupt was dealt with, when it
        # came while an extension module ran Python code of its own.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(start())
