"""Rejection: a drawn guess is kept with probability min(1, p / q), else the residual is drawn from.

The guesses are drawn from the draft's own law, which the step keeps for the verdict (serial.md
§3.3).
"""

from __future__ import annotations

from specflow.errors import CompileError
from specflow.graph import Builder, PhaseBuilder, Value
from specflow.recipe import ResolvedRecipe
from specflow.stages.base import AcceptStage, Gained, Guess, draw_single, taken
from specflow.stages.base import target_law as judge
from specflow.stages.base import verdict_coins as coins


def accept(
    guess: Guess, law: Value, _recipe: ResolvedRecipe, p: PhaseBuilder, b: Builder
) -> Gained:
    """One coin a guess and one for the last token."""
    if guess.laws is None:
        raise CompileError("guesses are judged by a law they were not drawn from")
    drafted, laws = taken(guess.tokens, p), p.take(guess.laws)
    length, gained = Value("accept_len", ("B",)), Value("gained", ("B", guess.w))
    p.ops("accept_rejection", drafted, laws, law, coins(p, b), outs=(length, gained))
    return Gained(tokens=gained, accept_len=length)


REJECTION = AcceptStage(
    name="rejection",
    doc="rejection against the draft's law",
    shapes=("chain",),
    judge=judge,
    accept=accept,
    single=draw_single,
    laws=True,
)
