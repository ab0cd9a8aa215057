"""Rejection: a drawn guess is kept with probability min(1, p / q), else the residual is drawn from.

The guesses are drawn from the draft's own law, which the step keeps for the verdict (serial.md
§3.3).
"""

from __future__ import annotations

from specflow.stages.base import AcceptStage, by_draft_law, draw_single, target_law

REJECTION = AcceptStage(
    name="rejection",
    doc="rejection against the draft's law",
    shapes=("chain", "ragged"),
    judge=target_law,
    accept=by_draft_law("accept_rejection"),
    single=draw_single,
    laws=True,
)
