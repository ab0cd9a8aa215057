"""The plan of a batch at run time: rows come, move and go, and what they expected is kept.

B  requests of the batch      K  guesses of a request
"""

from __future__ import annotations

from torch import Tensor

from specflow import planning
from specflow.kernels import survivals
from specflow.recipe import ResolvedRecipe
from specflow.stages.verify_ragged import planned


class BatchPlanner:
    """How many positions a batch may verify, by its confidences of earlier steps.

    They are a confidence head's, or averages of what was accepted: the step says which, by what it
    calls.
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
        self.lengths: list[int] = []  # positions that each row verified in the last step

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

    def admit(self, row: int) -> None:
        """A request begins in a row: nothing is known of it."""
        self.planner.admit(row)
        self.averages.admit(row)

    def move(self, source: int, target: int) -> None:
        """A request changes its row."""
        self.planner.move(source, target)
        self.averages.move(source, target)

    def release(self, row: int) -> None:
        """The request of a row has ended."""
        self.planner.release(row)
        self.averages.release(row)

    def plan(self, rows: int) -> int:
        """Positions that the coming step may verify."""
        return self.planner.tokens(rows)

    def expect(self, survival: Tensor) -> None:
        """Fill survival [B, K] from past acceptance; a later plan goes by the same."""
        said = self.averages.survivals(survival.shape[0])
        survival.copy_(survival.new_tensor(said))

    def publish(self, trust: Tensor) -> None:
        """Keep what the confidence head said [B, K] of the step that ended."""
        self.planner.publish(survivals(trust, self.temperatures).tolist())

    def look_back(self, accept_len: Tensor, verify_len: Tensor) -> None:
        """Learn how many of the verified guesses held: both [B], bonus included."""
        pairs = zip(accept_len.tolist(), verify_len.tolist(), strict=True)
        expected = self.averages.survivals(accept_len.shape[0])
        for row, (gained, verified) in enumerate(pairs):
            self.averages.observe(row, gained - 1, verified - 1)
        self.planner.publish(expected)
