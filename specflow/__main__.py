"""`specflow`, and `python -m specflow`: a signal ends it in one word, however early it comes."""

from __future__ import annotations

try:
    import contextlib
    import gc
    import os
    import sys

    from specflow.interrupts import listen, rest, seen
except KeyboardInterrupt:
    raise SystemExit("interrupted") from None  # which says so, and exits with 1


def start() -> int:
    """Run the command line; the exit code."""
    code = 1
    try:
        listen()
        gc.disable()  # imports leave no garbage, and looking for it costs `validate` a twentieth
        from specflow.cli import main

        code = main()
    except KeyboardInterrupt:
        _tell()
    except Exception:
        if not seen():
            raise
        _tell()  # an import that the interrupt broke off failed in another way
    finally:
        rest()
    if seen():
        # CPython kills itself by SIGINT at its end, though the interrupt was dealt with, when it
        # came while an extension module ran Python code of its own.
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(code)
    return code


def _tell() -> None:
    """One word, whatever became of the streams so far."""
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")


if __name__ == "__main__":
    sys.exit(start())
