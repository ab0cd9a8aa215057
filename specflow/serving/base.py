"""What a run by another engine is made of: requests, answers, and the engine's own counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specflow.report import Tally
from specflow.session import Request

ALL = -1  # the `top_k` of engines that keeps every token


@dataclass(frozen=True)
class Answer:
    """What an engine says to one request.

    tokens  of the completion, without those of the prompt
    finish  stop or length, or the engine's own word for anything else
    tally   what it counted for this request; None where it counts all of them at once
    """

    tokens: Sequence[int]
    text: str
    finish: str
    tally: Tally | None = None


class Adapter(Protocol):
    """An engine that is running.

    conversions  what its counters do not say exactly, each in a sentence
    """

    def __init__(self, args: Mapping[str, Any]) -> None:
        """Start it with arguments by their own names."""
        ...

    def generate(
        self, requests: Sequence[Request], stop: Sequence[str], *, ignore_eos: bool
    ) -> list[Answer]:
        """The answers, in the order of the requests."""
        ...

    def tally(self) -> Tally | None:
        """What was counted since it started, over all requests; None where each has its own."""
        ...

    @property
    def conversions(self) -> tuple[str, ...]:
        """What its counters do not say exactly."""
        ...

    def close(self) -> None:
        """Stop it, and give its memory back."""
        ...


def settings(request: Request, stop: Sequence[str], *, ignore_eos: bool) -> dict[str, Any]:
    """The sampling parameters that engines call alike; how long and which seed each says itself."""
    draws = request.draws
    said: dict[str, Any] = {
        "temperature": draws.temperature,
        "top_k": draws.top_k or ALL,
        "top_p": draws.top_p,
        "min_p": draws.min_p,
        "ignore_eos": ignore_eos,
    }
    return said | ({"stop": list(stop)} if stop else {})
