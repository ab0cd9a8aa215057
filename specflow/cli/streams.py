"""The last resort: streams that are closed or narrow, a disk that is full, a bug."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from specflow.cli.common import FINDINGS, told


def open_streams() -> None:
    """Make both streams writable: a closed one goes nowhere, a narrow one writes `?`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def close_streams() -> None:
    """Point stdout nowhere, so that the interpreter's own flush at the end says nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def unwritable(error: OSError) -> int:
    """Say what the system did not let be read or written."""
    where = f" `{error.filename}`" if error.filename else ""
    print(f"error[SF091]: the system refused{where}: {error.strerror}", file=sys.stderr)
    return FINDINGS


def crashed(error: Exception, form: str) -> int:
    """Tell a bug as a finding; the traceback is kept in a file for the report."""
    kept = keep_traceback(error)
    message = f"specflow failed where it should not: {type(error).__name__}: {error}"
    offer = f"report it, with `specflow explain RECIPE --format json`{kept}"
    return told("SF090", "broken-invariant", message[:500], form, FINDINGS, offer)


def keep_traceback(error: Exception) -> str:
    """Where the traceback was kept, as the end of a sentence; nothing where it could not be."""
    import tempfile  # only a bug needs them, and `validate` has to answer at once
    import traceback

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="specflow-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return ""
    return f" and {file.name}"
