"""Fusion: each maximal run of row ops between two other nodes becomes one function, one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from specflow.graph.ir import Buffer, Fused, Node, Op, Phase, StepGraph, Store, Value, reads, writes
from specflow.graph.ops import is_row


def rows(graph: StepGraph) -> StepGraph:
    """Gather runs of two or more row ops, with stores, into Fused nodes; never on the host."""
    return replace(
        graph, phases=tuple(_fuse(p) if p.place == "device" else p for p in graph.phases)
    )


def _fuse(phase: Phase) -> Phase:
    nodes: list[Node] = []
    made = 0
    for run in _runs(phase.nodes):
        if len(run) > 1:
            made += 1
            name = f"{phase.name}_rows" + (f"_{made}" if made > 1 else "")
            body = tuple(n for n in run if isinstance(n, Op | Store))
            nodes.append(_fused(name, body, phase))
        else:
            nodes.extend(run)
    return replace(phase, nodes=tuple(nodes))


def _runs(nodes: Iterable[Node]) -> Iterator[list[Node]]:
    """Maximal runs of row ops, every other node alone.

    A kernel loads state before it stores any, so a run ends before a node that reads what the run
    has written.
    """
    run: list[Node] = []
    stored: set[Buffer] = set()
    for node in nodes:
        read = {o for o in reads(node) if isinstance(o, Buffer)}
        if run and (not is_row(node) or read & stored):
            yield run
            run, stored = [], set()
        if is_row(node):
            run.append(node)
            stored |= {b for b in writes(node) if isinstance(b, Buffer)}
        else:
            yield [node]
    if run:
        yield run


def _fused(name: str, body: tuple[Op | Store, ...], phase: Phase) -> Fused:
    """A run with what it takes from outside and what the rest of the phase takes from it."""
    made = {v.name: v for n in body for v in writes(n) if isinstance(v, Value)}
    taken = {
        o.name: o for n in body for o in reads(n) if isinstance(o, Value) and o.name not in made
    }
    inside = set(map(id, body))
    wanted = {v.name for v in phase.outputs}
    for node in phase.nodes:
        if id(node) not in inside:
            wanted |= {o.name for o in reads(node) if isinstance(o, Value)}
    return Fused(
        name, body, tuple(taken.values()), tuple(v for v in made.values() if v.name in wanted)
    )
