"""A step graph as text, for `compile --show graph` and for goldens."""

from __future__ import annotations

from specflow.graph.device import launched
from specflow.graph.ir import (
    Constant,
    Listed,
    Node,
    Op,
    Operand,
    Phase,
    StepGraph,
    Store,
    Value,
)
from specflow.graph.ops import OPS


def show(graph: StepGraph) -> str:
    """Constants, state, phases op by op with domains and shapes, variants with their launches."""
    lines = ["constants"]
    lines += [f"  {c.name} = {c.value}  # {c.because}" for c in graph.constants]
    lines += ["state"]
    width = max(len(b.name) for b in graph.buffers)
    lines += [f"  {b.name:{width}} {_shape(b.shape):12} {b.dtype:6} {b.doc}" for b in graph.buffers]
    for phase in graph.phases:
        lines += ["", *_phase(phase)]
    lines += ["", "variants"]
    for v in graph.variants:
        apart, fused = launched(graph, v)
        outside = f"{apart} launches outside forwards, {fused} on a device"
        lines += [f"  {v.name}: {' -> '.join(v.phases)}  # {v.doc}; {outside}"]
    return "\n".join(lines) + "\n"


def _phase(phase: Phase) -> list[str]:
    args = ", ".join(v.name for v in phase.inputs)
    runs = f", runs the {phase.model}" if phase.model else ""
    lines = [f"phase {phase.name}({args})  # {phase.role} on the {phase.place}{runs}"]
    for node in phase.nodes:
        lines += _node(node, "  ")
    if phase.choice:
        c = phase.choice
        lines += [f"  choose {then} if {c.value.name} >= {least.name}" for least, then in c.cases]
        lines += [f"  choose {c.otherwise} otherwise"]
    if phase.outputs:
        lines += ["  give " + ", ".join(v.name for v in phase.outputs)]
    return lines


def _node(node: Node, pad: str) -> list[str]:
    if isinstance(node, Op):
        outs = ", ".join(f"{v.name} {_shape(v.shape)}" for v in node.outputs)
        call = f"{node.kind}({', '.join(map(_operand, node.inputs))})"
        return [f"{pad}{OPS[node.kind].domain:5} {outs + ' = ' if outs else ''}{call}"]
    if isinstance(node, Store):
        sign = "+=" if node.mode == "add" else "="
        return [f"{pad}store {node.buffer.name} {sign} {_operand(node.value)}"]
    carried = ", ".join(c.name for c in node.carries)
    head = f"{pad}repeat {node.index} in {node.first}..{node.times.name}, carrying {carried}"
    return [head, *(line for n in node.body for line in _node(n, pad + "  "))]


def _operand(operand: Operand) -> str:
    if isinstance(operand, Value | Constant):
        return operand.name
    if isinstance(operand, Listed):
        return f"[{', '.join(map(_operand, operand.values))}]"
    return str(operand) if isinstance(operand, int) else f"state.{operand.name}"


def _shape(shape: tuple[str | int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
