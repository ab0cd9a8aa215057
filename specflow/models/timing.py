"""What is counted of a forward: nothing of a traced one, whose time is its step's."""

from __future__ import annotations

from time import perf_counter
from typing import Protocol

import torch


class Counted(Protocol):
    """Forwards so far, and the seconds inside of them."""

    forwards: int
    forward_seconds: float


def now() -> float:
    """Seconds of a clock; 0 while a step is traced, which no clock can be part of."""
    return 0.0 if torch.compiler.is_compiling() else perf_counter()


def spent(model: Counted, began: float, forwards: int = 0) -> None:
    """Count the time since `began`, and so many forwards; a traced one leaves no mark."""
    if torch.compiler.is_compiling():
        return
    model.forward_seconds += perf_counter() - began
    model.forwards += forwards
