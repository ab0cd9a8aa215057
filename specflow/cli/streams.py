"""The last resort: streams that are closed, full or narrow, and a bug.

A command never learns that nobody takes what it says: it does all of its work, and its exit code is
the true one. What was lost is told at the end, unless the reader closed the pipe and so wanted no
more.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from specflow.cli.common import FINDINGS, USAGE, told

OUT, ERR = 1, 2  # file descriptors
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"  # torch makes that folder where it is imported
# A path that is named and cannot be used, rather than a machine that gives up.
PATHS = (errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)


class Outlet(io.RawIOBase):
    """A file descriptor to write to; what it does not take is gone, and `refused` says why."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.refused: OSError | None = None

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self.number

    def isatty(self) -> bool:
        """Whether a person reads it."""
        return os.isatty(self.number)

    def write(self, data: Any) -> int:
        """Write, or give up for good; all of the data counts as written then."""
        while self.refused is None:
            try:
                return os.write(self.number, data)
            except BlockingIOError:  # whoever shares the descriptor made it so
                import select  # rare, and `validate` has to answer at once

                select.select((), (self.number,), ())
            except OSError as error:
                self.refused = error
        return len(data)


def open_streams() -> None:
    """Make both streams writable: a closed one goes nowhere, a narrow one writes `?`.

    Those that something else stands in for already are left alone.
    """
    # A file opened later must not get the number of a closed stream.
    while (spare := os.open(os.devnull, os.O_RDWR)) <= ERR:
        pass
    os.close(spare)
    for number, name in ((OUT, "stdout"), (ERR, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _guarded(number, getattr(stream, "encoding", "utf-8")))


def _guarded(number: int, encoding: str) -> io.TextIOWrapper:
    outlet = Outlet(number)
    at_once = number == ERR or outlet.isatty()
    buffered = io.BufferedWriter(outlet)
    return io.TextIOWrapper(buffered, encoding, errors="replace", line_buffering=at_once)


def delivered(code: int) -> int:
    """The exit code, once all is written: a result that was lost is a finding."""
    sys.stdout.flush()
    outlet = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    lost = outlet.refused if isinstance(outlet, Outlet) else None
    if lost is not None and lost.errno != errno.EPIPE:
        print(f"error[SF091]: stdout could not be written: {lost.strerror}", file=sys.stderr)
        code = max(code, FINDINGS)
    sys.stderr.flush()
    return code


def refused(error: OSError, form: str) -> int:
    """Say what the system did not let be read or written; a path that cannot be used is usage."""
    where = f" `{error.filename}`" if error.filename else ""
    message = f"the system refused{where}: {error.strerror or error}"
    offer = "see that it is there, that you may use it, and that there is room"
    if error.filename and _of_inductor(str(error.filename)):
        offer = f"set `{INDUCTOR}` to a folder that can be written"
    code = USAGE if error.filename and error.errno in PATHS else FINDINGS
    return told("SF091", "run-fault", message, form, code, offer)


def _of_inductor(path: str) -> bool:
    """Whether a path leads to, or lies in, the folder of inductor's cache that a variable names."""
    folder = os.environ.get(INDUCTOR, "")  # noqa: TID251 - torch reads it, not we
    return bool(folder) and (path.startswith(folder) or folder.startswith(path + os.sep))


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
