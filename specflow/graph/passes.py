"""The plain rewrites: drop what nobody reads, compute once what is computed twice."""

from __future__ import annotations

from dataclasses import replace

from specflow.graph.ir import Node, Op, Phase, Repeat, StepGraph, Store, Value, reads
from specflow.graph.ops import OPS

PURE = frozenset({"vocab", "rows", "shape"})


def drop_untaken(graph: StepGraph) -> StepGraph:
    """A device phase gives only what another phase takes."""

    def taken(phase: Phase) -> set[str]:
        return {v.name for other in graph.phases if other is not phase for v in other.inputs}

    phases = (
        replace(p, outputs=tuple(v for v in p.outputs if v.name in taken(p)))
        if p.place == "device"
        else p
        for p in graph.phases
    )
    return replace(graph, phases=tuple(phases))


def drop_dead(graph: StepGraph) -> StepGraph:
    """Remove pure ops whose results nobody reads."""
    return replace(graph, phases=tuple(_drop_dead(p) for p in graph.phases))


def _drop_dead(phase: Phase) -> Phase:
    wanted = {v.name for v in phase.outputs} | (
        {phase.choice.value.name} if phase.choice else set()
    )
    kept: list[Node] = []
    for node in reversed(phase.nodes):
        if _pure(node) and isinstance(node, Op) and not {v.name for v in node.outputs} & wanted:
            continue
        kept.append(node)
        wanted |= {o.name for o in reads(node) if isinstance(o, Value)}
        if isinstance(node, Repeat):
            wanted |= {c.next.name for c in node.carries}
    return replace(phase, nodes=tuple(reversed(kept)))


def share(graph: StepGraph) -> StepGraph:
    """Compute equal values of a phase once, where no store to what they read lies between."""
    return replace(graph, phases=tuple(_share(p) for p in graph.phases))


def _share(phase: Phase) -> Phase:
    seen: dict[tuple[str, tuple[object, ...]], tuple[Value, ...]] = {}
    renamed: dict[str, Value] = {}
    kept: list[Node] = []
    for node in phase.nodes:
        fresh = rename(node, renamed)
        if isinstance(fresh, Store):
            seen = {key: outs for key, outs in seen.items() if fresh.buffer not in key[1]}
        if isinstance(fresh, Op) and _pure(fresh):
            key = (fresh.kind, fresh.inputs)
            if key in seen:
                renamed |= {
                    old.name: new for old, new in zip(fresh.outputs, seen[key], strict=True)
                }
                continue
            seen[key] = fresh.outputs
        kept.append(fresh)
    outputs = tuple(renamed.get(v.name, v) for v in phase.outputs)
    return replace(phase, nodes=tuple(kept), outputs=outputs)


def rename(node: Node, names: dict[str, Value]) -> Node:
    """The node reading `names[x]` where it read x."""
    if isinstance(node, Op):
        return replace(
            node,
            inputs=tuple(names.get(o.name, o) if isinstance(o, Value) else o for o in node.inputs),
        )
    if isinstance(node, Store):
        value = node.value
        return (
            replace(node, value=names.get(value.name, value)) if isinstance(value, Value) else node
        )
    body = tuple(n for n in (rename(i, names) for i in node.body) if isinstance(n, Op | Store))
    carries = tuple(replace(c, start=names.get(c.start.name, c.start)) for c in node.carries)
    return replace(node, carries=carries, body=body)


def _pure(node: Node) -> bool:
    return isinstance(node, Op) and OPS[node.kind].domain in PURE and bool(node.outputs)
