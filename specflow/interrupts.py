"""Whether somebody asked the process to end: libraries turn that into errors of their own."""

from __future__ import annotations

import signal
from types import FrameType

_SEEN: list[int] = []


def listen() -> None:
    """Let Ctrl-C, and the signals that end a process politely, raise KeyboardInterrupt."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _interrupt)


def seen() -> bool:
    """Whether one of them came."""
    return bool(_SEEN)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _SEEN.append(number)
    raise KeyboardInterrupt
