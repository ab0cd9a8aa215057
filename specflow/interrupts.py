"""Whether somebody asked the process to end: libraries turn that into errors of their own."""

from __future__ import annotations

import signal
from types import FrameType

_POLITE = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_SEEN: list[int] = []


def listen() -> None:
    """Let Ctrl-C, and the signals that end a process politely, raise KeyboardInterrupt."""
    for name in _POLITE:
        signal.signal(getattr(signal, name), _interrupt)


def rest() -> None:
    """Let the interpreter end in peace: a signal from here on changes nothing."""
    for name in _POLITE:
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def seen() -> bool:
    """Whether one of them came."""
    return bool(_SEEN)


def heed() -> None:
    """Raise again what a library kept to itself: an import of C does so now and then."""
    if _SEEN:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _SEEN.append(number)
    raise KeyboardInterrupt
