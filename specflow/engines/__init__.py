"""Engines that a recipe can be exported to: one row a version, one file an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from specflow.engines.outcome import Effective, Refused
from specflow.stages import Table


class Resolver(Protocol):
    """What an engine makes of arguments, beside the configs of a target and of a draft."""

    def __call__(
        self,
        args: Mapping[str, Any],
        target_config: Mapping[str, Any],
        draft_config: Mapping[str, Any] | None = None,
        platform: str = "h100",
        env: Mapping[str, str] | None = None,
    ) -> Effective | Refused:
        """The arguments in force, or why the engine does not start."""
        ...


ENGINES = Table[Resolver]("engine", {"sglang@0.5.23": "specflow.engines.sglang:effective"})
