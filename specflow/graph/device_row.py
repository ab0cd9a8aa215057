"""What is asked of a row of logits, as a device runs it: its likeliest token, or a draw, in one op.

A row may be corrected by a bias before; then nothing else may read the sum, which is never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specflow.graph.device_runs import Made, read, replaced, run_of
from specflow.graph.ir import Op, Operand, Single

# Ops whose last results are asked of the first's logits, and the op that does the same.
BEST_OF_SUM = ("corrected", "best_token")
DRAWN_OF_SUM = ("corrected", "law_of", "pick_at")
DRAWN = ("law_of", "pick_at")


def asked(lines: Iterable[Single]) -> tuple[Single, ...]:
    """The lines with such runs of ops as one op each."""
    return replaced(lines, _best_of_sum, _drawn)


def _best_of_sum(lines: Sequence[Single]) -> Made | None:
    """The likeliest token of a row and its bias."""
    run = run_of(lines, *BEST_OF_SUM)
    if run is None:
        return None
    (summed,) = run[0].outputs
    if run[1].inputs != (summed,) or summed.name in read(lines[2:]):
        return None
    return Made(Op("best_sum", run[0].inputs, run[1].outputs), 2)


def _drawn(lines: Sequence[Single]) -> Made | None:
    """The law of a row, with a bias or without, and a token drawn from it."""
    run = run_of(lines, *DRAWN_OF_SUM) or run_of(lines, *DRAWN)
    if run is None:
        return None
    law_of, pick = run[-2:]
    (law,), (logits, temperature) = law_of.outputs, law_of.inputs
    if pick.inputs[0] != law or len(law.shape) != 2:
        return None
    outputs = (*law_of.outputs, *pick.outputs)
    inputs: tuple[Operand, ...] = (logits, temperature, *pick.inputs[1:])
    if len(run) == 2:
        return Made(Op("propose", inputs, outputs), 2)
    (summed,) = run[0].outputs
    if logits != summed or summed.name in read(lines[3:]):
        return None
    return Made(Op("propose_sum", (*run[0].inputs, *inputs[1:]), outputs), 3)
