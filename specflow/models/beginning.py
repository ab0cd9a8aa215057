"""What a request's first draft begins with: the same words the commit leaves for every later one.

B is 1 here: requests are admitted one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specflow.kernels import best_token, draft_coins, law_of, likeliest, pick
from specflow.recipe import ResolvedRecipe
from specflow.stages import ACCEPTS


@dataclass(frozen=True)
class First:
    """The first token after a prompt, and what the request's draws are made from.

    length  tokens of the prompt
    """

    token: int
    length: int
    seed: int
    temperature: float


def row(value: float, dtype: torch.dtype, like: Tensor) -> Tensor:
    """A setting of one request as a batch of one has it, [1], where `like` is."""
    return torch.tensor([value], dtype=dtype, device=like.device)


@dataclass(frozen=True)
class Beginning:
    """How the logits after the first token become the first guess.

    branches  1 for a chain
    steps     guesses a round
    drawn     guesses are drawn, and their laws kept
    """

    branches: int
    steps: int
    drawn: bool

    @classmethod
    def of(cls, recipe: ResolvedRecipe) -> Beginning:
        """As the recipe's step goes on."""
        drawn = ACCEPTS[recipe["verify.accept"]].laws
        return cls(recipe["draft.topk"], recipe["draft.num_steps"], drawn)

    def __call__(
        self,
        logits: Tensor,
        first: First,
        ids: Callable[[Tensor], Tensor],
        whole: Callable[[Tensor], Tensor],
    ) -> dict[str, Tensor | int]:
        """State of a row from logits [1, V].

        ids    draft ids as ids of the target
        whole  a law over the draft's vocabulary as one over the target's
        """
        if self.branches > 1:
            words, chances = likeliest(logits, self.branches)
            return {"first_words": ids(words)[0], "first_scores": chances[0]}
        guess, law = self.guess(logits, first, 0, ids, whole)
        return {"first_guess": guess} | ({"first_law": law} if law is not None else {})

    def guess(
        self,
        logits: Tensor,
        first: First,
        step: int,
        ids: Callable[[Tensor], Tensor],
        whole: Callable[[Tensor], Tensor],
    ) -> tuple[int, Tensor | None]:
        """Guess number `step` from logits [1, V], and the law [V] it was drawn from."""
        if not self.drawn:
            return int(ids(best_token(logits))), None
        law = whole(law_of(logits, row(first.temperature, torch.float32, logits)))
        seed, at = row(first.seed, torch.int64, logits), row(first.length, torch.int64, logits)
        coins = draft_coins(seed, at, self.steps)
        return int(pick(law, coins[:, step])), law[0]
