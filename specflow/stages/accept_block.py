"""Block: prefixes of a drawn block are judged whole, never shorter on average than one by one.

The guesses are drawn from the draft's own law, which the step keeps for the verdict (serial.md
§3.3).
"""

from __future__ import annotations

from specflow.stages.base import AcceptStage, by_draft_law, draw_single, target_law

BLOCK = AcceptStage(
    name="block",
    doc="block verification against the draft's law",
    shapes=("chain", "ragged"),
    judge=target_law,
    accept=by_draft_law("accept_block"),
    single=draw_single,
    laws=True,
)
