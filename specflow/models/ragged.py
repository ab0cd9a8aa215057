"""The plan of a batch at run time: rows come, move and go, and what they expected is kept.

B  requests of the batch      K  guesses of a request
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from torch import Tensor

from specflow import planning
from specflow.kernels import survivals
from specflow.recipe import ResolvedRecipe
from specflow.stages.verify_ragged import planned


class BatchPlanner:
    """How many positions a batch may verify, by its confidences of earlier steps.

    They are a confidence head's, or averages of what was accepted: the step says which, by what it
    calls. A step may be planned before the one before it was read; what it says is then of the rows
    as they were when it was planned.
    """

    def __init__(
        self,
        table: planning.Table,
        width: int,
        temperatures: tuple[float, ...],
        *,
        lag: int,
        bucket: int,
    ) -> None:
        self.planner = planning.Planner(table, width, lag, bucket)
        self.averages = planning.Averages(width)
        self.width = width
        self.temperatures = temperatures or (1.0,) * width
        # Who had which row in the steps that were planned and have said nothing yet.
        self._open: deque[dict[int, int]] = deque()

    @classmethod
    def of(cls, recipe: ResolvedRecipe) -> BatchPlanner | None:
        """The plan of a recipe, where it makes one."""
        if not planned(recipe):
            return None
        return cls(
            recipe.facts.cost.value,
            recipe["verify.num_draft_tokens"] - 1,
            recipe.facts.temperatures,
            lag=recipe["verify.lag_steps"],
            bucket=recipe["verify.token_bucket"],
        )

    @property
    def lag(self) -> int:
        """How many steps lie between what a plan goes by and the step it is for."""
        return self.planner.lag

    def budgets(self, rows: int) -> tuple[int, ...]:
        """All that `plan` may say of so many rows."""
        return self.planner.budgets(rows)

    def admit(self, row: int) -> None:
        """A request begins in a row: nothing is known of it."""
        self.planner.admit(row)
        self.averages.admit(self.planner.holders[row])

    def move(self, source: int, target: int) -> None:
        """A request changes its row; the one it takes over has ended."""
        self._drop(target)
        self.planner.move(source, target)

    def release(self, row: int) -> None:
        """The request of a row has ended, or moved away before."""
        self._drop(row)
        self.planner.release(row)

    def _drop(self, row: int) -> None:
        holder = self.planner.holders.get(row)
        if holder is not None:
            self.averages.release(holder)

    def plan(self, rows: int) -> int:
        """Positions that the coming step may verify."""
        budget = self.planner.tokens(rows, unread=len(self._open))
        self._open.append(dict(self.planner.holders))
        return budget

    def expect(self, survival: Tensor) -> None:
        """Fill survival [B, K] from past acceptance."""
        said = self._expected(self.planner.holders, survival.shape[0])
        survival.copy_(survival.new_tensor(said))

    def publish(self, trust: Tensor) -> None:
        """Keep what the confidence head said [B, K] of the oldest step that has said nothing."""
        self.planner.publish(survivals(trust, self.temperatures).tolist(), self._next())

    def look_back(self, accept_len: Tensor, verify_len: Tensor) -> None:
        """Learn how many of its verified guesses held: both [B], bonus included.

        A later plan goes by what was expected of it, with all that was known before it.
        """
        holders = self._next()
        pairs = zip(accept_len.tolist(), verify_len.tolist(), strict=True)
        expected = self._expected(holders, accept_len.shape[0])
        for row, (gained, verified) in enumerate(pairs):
            if row in holders:
                self.averages.observe(holders[row], gained - 1, verified - 1)
        self.planner.publish(expected, holders)

    def forget(self) -> None:
        """Steps that are under way will not be read."""
        self._open.clear()

    def _next(self) -> dict[int, int]:
        return self._open.popleft() if self._open else dict(self.planner.holders)

    def _expected(self, holders: Mapping[int, int], rows: int) -> list[list[float]]:
        return self.averages.of(holders.get(row) for row in range(rows))
