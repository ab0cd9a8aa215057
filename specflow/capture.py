"""A step module as something to launch: fixed buffers, keyed by batch, variant and extent.

On CPU the step stays eager. It is written as if it were captured: no host sync, no data-dependent
shape, state at fixed addresses; what changes from step to step by the host's decision is the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, Protocol

from torch import Tensor

from specflow.models.drafters import Drafter
from specflow.models.lm import LanguageModel
from specflow.pools import KVPool

EXTENT = 64  # positions; the key's extent grows in such steps, so that few keys are made


@dataclass(frozen=True)
class Key:
    """What a captured step is specialised to.

    rows     requests in the batch
    variant  which of the module's steps
    extent   positions of the KV that attention sees
    """

    rows: int
    variant: str
    extent: int


class CapturedStep(Protocol):
    """One step on fixed buffers.

    widths  positions that each variant verifies
    """

    state: Any
    widths: dict[str, int]

    def draft(self, rows: int) -> str:
        """Run the host draft, if there is one; the variant to launch."""

    def launch(self, rows: int, variant: str, needed: int) -> None:
        """Run one step for the first `rows` rows; none reaches beyond `needed` positions."""

    def commit(self, gained: list[list[int]]) -> None:
        """Run the host commit, if there is one."""


class EagerStep:
    """The module's own functions, called as they are."""

    def __init__(
        self, module: ModuleType, target: LanguageModel, pool: KVPool, drafter: Drafter
    ) -> None:
        self.module, self.target, self.pool, self.drafter = module, target, pool, drafter
        self.state: Any = module.State.new(pool.slots, str(target.device))
        self.widths: dict[str, int] = module.WIDTHS
        self._bound: dict[Key, Callable[[], None]] = {}
        self._views: dict[int, Any] = {}

    def draft(self, rows: int) -> str:
        """The variant that the host draft names; without one there is a single variant."""
        if self.module.HOST_DRAFT is None:
            return str(next(iter(self.module.VARIANTS)))
        return str(self.module.HOST_DRAFT(self.drafter, self.view(rows)))

    def launch(self, rows: int, variant: str, needed: int) -> None:
        """Run one step."""
        key = Key(rows, variant, min(-(-needed // EXTENT) * EXTENT, self.pool.length))
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self.bind(key)
        bound()

    def commit(self, gained: list[list[int]]) -> None:
        """Hand the tokens gained to the host commit."""
        if self.module.HOST_COMMIT is not None:
            self.module.HOST_COMMIT(self.drafter, gained)

    def bind(self, key: Key) -> Callable[[], None]:
        """The step of a key, with its models and state in place."""
        function = self.module.VARIANTS[key.variant]
        window, drafter = self.target.window(self.pool, key.extent), self.drafter.bind(key.extent)
        state = self.view(key.rows)
        return lambda: function(window, drafter, state)

    def view(self, rows: int) -> Any:
        """The state of the first `rows` rows: the same addresses."""
        if rows not in self._views:
            self._views[rows] = self.state.rows(rows)
        return self._views[rows]


def capture(
    module: ModuleType, target: LanguageModel, pool: KVPool, drafter: Drafter
) -> CapturedStep:
    """Make a module's steps ready to launch."""
    return EagerStep(module, target, pool, drafter)


def buffers(state: Any) -> dict[str, Tensor]:
    """Every tensor of a state, by name."""
    return {f.name: getattr(state, f.name) for f in fields(state)}
