"""Runs of ops for which a device has one op: found where they begin, and put in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from specflow.graph.ir import Launch, Op, Single, Value, node_of, operands


@dataclass(frozen=True)
class Made:
    """One op in place of the first few lines."""

    op: Op
    count: int


Finder = Callable[[Sequence[Single]], Made | None]


def replaced(lines: Iterable[Single], *finders: Finder) -> tuple[Single, ...]:
    """The lines, each run that a finder makes one op of as that op, which asks the run's model."""
    left, out = list(lines), list[Single]()
    while left:
        first = left[0]
        made = next((m for find in finders if (m := find(left))), None)
        if made is None or not isinstance(first, Launch):
            out.append(left.pop(0))
        else:
            out.append(replace(first, op=made.op))
            del left[: made.count]
    return tuple(out)


def run_of(lines: Sequence[Single], *kinds: str) -> tuple[Op, ...] | None:
    """The ops of the first lines, where they are of these kinds."""
    ops = tuple(line.op for line in lines[: len(kinds)] if isinstance(line, Launch))
    return ops if tuple(op.kind for op in ops) == kinds else None


def read(lines: Iterable[Single]) -> set[str]:
    """What is read, by name."""
    nodes = map(node_of, lines)
    return {o.name for node in nodes for o in operands(node) if isinstance(o, Value)}
