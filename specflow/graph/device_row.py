"""What is asked of a row of logits, as a device runs it: its likeliest token, or a draw, in one op.

A row may be corrected by a bias before; then nothing else may read the sum, which is never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from specflow.graph.device_tree import operands
from specflow.graph.ir import Launch, Line, Op, Operand

# Ops whose last results are asked of the first's logits, and the op that does the same.
BEST_OF_SUM = ("corrected", "best_token")
DRAWN_OF_SUM = ("corrected", "law_of", "pick_at")
DRAWN = ("law_of", "pick_at")


def asked(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines with such runs of ops as one op each."""
    left, out = list(lines), list[Line]()
    while left:
        made = next((m for find in (_best_of_sum, _drawn) if (m := find(left))), None)
        if made is None:
            out.append(left.pop(0))
        else:
            line, count = made
            out.append(line)
            del left[:count]
    return tuple(out)


def _best_of_sum(lines: Sequence[Line]) -> tuple[Line, int] | None:
    """The likeliest token of a row and its bias."""
    run = _run(lines, BEST_OF_SUM)
    if run is None:
        return None
    (summed,) = run[0].outputs
    if run[1].inputs != (summed,) or _read(lines[2:], summed):
        return None
    return _like(lines, Op("best_sum", run[0].inputs, run[1].outputs)), 2


def _drawn(lines: Sequence[Line]) -> tuple[Line, int] | None:
    """The law of a row, with a bias or without, and a token drawn from it."""
    run = _run(lines, DRAWN_OF_SUM) or _run(lines, DRAWN)
    if run is None:
        return None
    law_of, pick = run[-2:]
    (law,), (logits, temperature) = law_of.outputs, law_of.inputs
    if pick.inputs[0] != law or len(law.shape) != 2:
        return None
    outputs = (*law_of.outputs, *pick.outputs)
    inputs: tuple[Operand, ...] = (logits, temperature, *pick.inputs[1:])
    if len(run) == 2:
        return _like(lines, Op("propose", inputs, outputs)), 2
    (summed,) = run[0].outputs
    if logits != summed or _read(lines[3:], summed):
        return None
    made = Op("propose_sum", (*run[0].inputs, *inputs[1:]), outputs)
    return _like(lines, made), 3


def _run(lines: Sequence[Line], kinds: tuple[str, ...]) -> tuple[Op, ...] | None:
    """The ops of the first lines, where they are of these kinds."""
    ops = tuple(line.op for line in lines[: len(kinds)] if isinstance(line, Launch))
    return ops if tuple(op.kind for op in ops) == kinds else None


def _read(lines: Iterable[Line], value: Operand) -> bool:
    """Whether anything reads a value."""
    return any(value in tuple(_operands(line)) for line in lines)


def _operands(line: Line) -> Iterator[Operand]:
    yield from operands(line.op if isinstance(line, Launch) else line)


def _like(lines: Sequence[Line], op: Op) -> Line:
    """An op in the place of the first lines."""
    first = lines[0]
    assert isinstance(first, Launch)
    return replace(first, op=op)
