"""What a legal step graph is: before the passes, and after each of them."""

from __future__ import annotations

from specflow.errors import CompileError
from specflow.graph.ir import (
    Buffer,
    Constant,
    Node,
    Op,
    Phase,
    Repeat,
    StepGraph,
    Store,
    Value,
    reads,
)
from specflow.graph.ops import OPS


def check(graph: StepGraph) -> None:
    """Raise CompileError where the graph breaks a law."""
    declared: set[Buffer | Constant] = {*graph.buffers, *graph.constants}
    for phase in graph.phases:
        _phase(phase, declared)
    names = [p.name for p in graph.phases]
    if len(set(names)) != len(names):
        raise CompileError(f"two phases have one name: {names}")
    for variant in graph.variants:
        for name in variant.phases:
            if name not in names or graph.phase(name).place != "device":
                raise CompileError(
                    f"variant `{variant.name}` runs `{name}`, which is no device phase"
                )
        _flow(graph, variant.phases)


def _flow(graph: StepGraph, phases: tuple[str, ...]) -> None:
    """Each phase's arguments were returned by an earlier phase; whole numbers are the launch's."""
    known: set[str] = set()
    for phase in map(graph.phase, phases):
        missing = [v.name for v in phase.inputs if v.name not in known and v.dtype != "int"]
        if missing:
            raise CompileError(
                f"phase `{phase.name}` takes {missing}, which no earlier phase gives"
            )
        known |= {v.name for v in phase.outputs}


def _phase(phase: Phase, declared: set[Buffer | Constant]) -> None:
    known = {v.name for v in phase.inputs}
    for node in phase.nodes:
        known |= _node(node, known, declared, phase)
    for value in phase.outputs:
        if value.name not in known:
            raise CompileError(
                f"phase `{phase.name}` returns `{value.name}`, which it never assigns"
            )


def _node(node: Node, known: set[str], declared: set[Buffer | Constant], phase: Phase) -> set[str]:
    """Check a node; returns the names it assigns."""
    if isinstance(node, Repeat):
        inside = known | {node.index}
        for inner in node.body:
            inside |= _node(inner, inside, declared, phase)
        missing = [c.next.name for c in node.carries if c.next.name not in inside]
        if missing:
            raise CompileError(
                f"a loop of `{phase.name}` carries {missing}, which its body never assigns"
            )
        return {c.name for c in node.carries} | {c.collected for c in node.carries if c.collected}
    _reads(node, known, declared, phase)
    if isinstance(node, Store):
        if node.buffer not in declared:
            raise CompileError(f"state `{node.buffer.name}` is not declared")
        return set()
    return _op(node, known, phase)


def _reads(
    node: Op | Store, known: set[str], declared: set[Buffer | Constant], phase: Phase
) -> None:
    """Every operand is assigned or declared before it is read."""
    for operand in reads(node):
        if isinstance(operand, Value) and operand.name not in known:
            raise CompileError(f"`{operand.name}` is read in `{phase.name}` before it is assigned")
        if isinstance(operand, Buffer | Constant) and operand not in declared:
            raise CompileError(f"`{operand.name}` is not declared")


def _op(node: Op, known: set[str], phase: Phase) -> set[str]:
    spec = OPS.get(node.kind)
    if spec is None:
        raise CompileError(f"`{node.kind}` is no op")
    if (len(node.inputs), len(node.outputs)) != spec.arity:
        raise CompileError(
            f"`{node.kind}` has {spec.arity} operands and results, not "
            f"({len(node.inputs)}, {len(node.outputs)})"
        )
    if (spec.domain == "host") != (phase.place == "host"):
        raise CompileError(
            f"`{node.kind}` cannot run in `{phase.name}`, a phase of the {phase.place}"
        )
    if "{model}" in spec.spelling and not phase.model:
        raise CompileError(f"`{node.kind}` needs a model, and phase `{phase.name}` has none")
    again = [v.name for v in node.outputs if v.name in known]
    if again and phase.place == "device" and not _carried(phase, again):
        raise CompileError(f"{again} are assigned twice in `{phase.name}`")
    return {v.name for v in node.outputs}


def _carried(phase: Phase, names: list[str]) -> bool:
    """Whether the names are carried by a loop of the phase: only those are assigned again."""
    carried = {c.name for n in phase.nodes if isinstance(n, Repeat) for c in n.carries}
    carried |= {
        v.name
        for n in phase.nodes
        if isinstance(n, Repeat)
        for i in n.body
        if isinstance(i, Op)
        for v in i.outputs
    }
    return set(names) <= carried
