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
from specflow.models.protocols import Planner
from specflow.pools import KVPool

EXTENT = 64  # positions; the key's extent grows in such steps, so that few keys are made


@dataclass(frozen=True)
class Key:
    """What a captured step is specialised to.

    rows     requests in the batch
    variant  which of the module's steps
    extent   positions of the KV that attention sees
    budget   positions that the batch verifies, where a plan says so; else 0
    """

    rows: int
    variant: str
    extent: int
    budget: int = 0


class CapturedStep(Protocol):
    """One step on fixed buffers.

    widths  positions that each variant verifies
    """

    state: Any
    widths: dict[str, int]

    def draft(self, rows: int) -> str:
        """Run the host draft, if there is one; the variant to launch."""

    def plan(self, rows: int) -> int:
        """How many positions the batch may verify, where a plan says so; else 0."""

    def launch(self, rows: int, variant: str, needed: int, budget: int = 0) -> None:
        """Run one step for the first `rows` rows; none reaches beyond `needed` positions."""

    def learn(self, rows: int) -> None:
        """Tell the plan what the step found, while rows are as they were."""

    def commit(self, gained: list[list[int]]) -> None:
        """Run the host commit, if there is one."""


class EagerStep:
    """The module's own functions, called as they are."""

    def __init__(
        self,
        module: ModuleType,
        target: LanguageModel,
        pool: KVPool,
        drafter: Drafter,
        planner: Planner | None,
    ) -> None:
        self.module, self.target, self.pool, self.drafter = module, target, pool, drafter
        self.planner = planner
        self.state: Any = module.State.new(pool.slots, str(target.device))
        self.widths: dict[str, int] = module.WIDTHS
        self._bound: dict[Key, Callable[[], None]] = {}
        self._views: dict[int, Any] = {}

    def draft(self, rows: int) -> str:
        """The variant that the host draft names; without one there is a single variant."""
        if self.module.HOST_DRAFT is None:
            return str(next(iter(self.module.VARIANTS)))
        return str(self.module.HOST_DRAFT(self.drafter, self.view(rows)))

    def plan(self, rows: int) -> int:
        """Ask the host plan."""
        ask = getattr(self.module, "HOST_PLAN", None)
        return int(ask(self.planner, self.view(rows))) if ask is not None else 0

    def learn(self, rows: int) -> None:
        """Hand the step's state to the host plan."""
        tell = getattr(self.module, "HOST_LEARN", None)
        if tell is not None:
            tell(self.planner, self.view(rows))

    def launch(self, rows: int, variant: str, needed: int, budget: int = 0) -> None:
        """Run one step."""
        extent = min(-(-needed // EXTENT) * EXTENT, self.pool.length)
        key = Key(rows, variant, extent, budget)
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
        given = (key.budget,) if key.budget else ()
        return lambda: function(window, drafter, state, *given)

    def view(self, rows: int) -> Any:
        """The state of the first `rows` rows: the same addresses."""
        if rows not in self._views:
            self._views[rows] = self.state.rows(rows)
        return self._views[rows]


def capture(
    module: ModuleType,
    target: LanguageModel,
    pool: KVPool,
    drafter: Drafter,
    planner: Planner | None = None,
) -> CapturedStep:
    """Make a module's steps ready to launch."""
    return EagerStep(module, target, pool, drafter, planner)


def buffers(state: Any) -> dict[str, Tensor]:
    """Every tensor of a state, by name."""
    return {f.name: getattr(state, f.name) for f in fields(state)}
