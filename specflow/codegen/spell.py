"""How nodes of the graph are spelled as lines of Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specflow.codegen.layout import INDENT
from specflow.graph import (
    Buffer,
    Constant,
    Node,
    Op,
    Operand,
    Repeat,
    StepGraph,
    Store,
    Value,
    Variant,
)
from specflow.graph.ir import Listed, reads
from specflow.graph.ops import OPS

MODELS = {"target": "target", "draft": "drafter", "planner": "planner"}


def spell(nodes: Sequence[Node], model: str, outputs: Sequence[Value]) -> list[str]:
    """The lines of a body, unindented; a value read once, by the store after it, is written inside.

    model    the name in the module of the model that the phase runs
    outputs  values the phase gives: these keep their names
    """
    lines: list[str] = []
    skip = False
    for i, node in enumerate(nodes):
        if skip:
            skip = False
            continue
        after = nodes[i + 1] if i + 1 < len(nodes) else None
        inner = _inlined(node, after, nodes, outputs)
        if inner is not None and isinstance(after, Store):
            lines += _store(after, model, inner)
            skip = True
        else:
            lines += _lines(node, model)
    return lines


def _inlined(
    node: Node, after: Node | None, nodes: Sequence[Node], outputs: Sequence[Value]
) -> Op | None:
    """The op itself, where its one result is read by the store after it and by nobody else."""
    if not isinstance(node, Op) or len(node.outputs) != 1 or not isinstance(after, Store):
        return None
    value = node.outputs[0]
    readers = sum(o == value for n in nodes for o in reads(n))
    return node if after.value == value and readers == 1 and value not in outputs else None


def _lines(node: Node, model: str) -> list[str]:
    if isinstance(node, Op):
        return [_op(node, model)]
    if isinstance(node, Store):
        return _store(node, model, None)
    return list(_repeat(node, model))


def _op(node: Op, model: str) -> str:
    outs = ", ".join(v.name for v in node.outputs)
    shapes = ", ".join(shape_of(v) for v in node.outputs if v.shape)
    left = f"{outs} = " if outs else ""
    return comment(left + expression(node, model), ", ".join(filter(None, (shapes, node.note))))


def expression(node: Op, model: str) -> str:
    """The right-hand side of an op."""
    return OPS[node.kind].spelling.format(*map(operand, node.inputs), model=model)


def _store(node: Store, model: str, inner: Op | None) -> list[str]:
    value = expression(inner, model) if inner is not None else operand(node.value)
    return [comment(stored(node, value), node.note)]


def stored(node: Store, value: str) -> str:
    """A store of what is spelled so."""
    how = "add_" if node.mode == "add" else "fill_" if isinstance(node.value, int) else "copy_"
    return f"{operand(node.buffer)}.{how}({value})"


def _repeat(node: Repeat, model: str) -> Iterator[str]:
    """A loop: carried values keep one name, and a list gathers them where it is asked for."""
    for carry in node.carries:
        if carry.collected:
            typed = ": list[Tensor]" if carry.fresh else ""
            yield f"{carry.collected}{typed} = [{'' if carry.fresh else carry.start.name}]"
    counted = any(o == index_of(node) for inner in node.body for o in reads(inner))
    index = node.index if counted else f"_{node.index}"
    first = f"{node.first}, " if node.first else ""
    yield f"for {index} in range({first}{node.times.name}):"
    for line in spell(node.body, model, tuple(c.next for c in node.carries)):
        yield INDENT + line
    for carry in node.carries:
        if carry.name != carry.next.name:
            yield f"{INDENT}{carry.name} = {carry.next.name}"
        if carry.collected:
            yield f"{INDENT}{carry.collected}.append({carry.name})"


def index_of(node: Repeat) -> Value:
    """The number of a loop's turn, as its body reads it."""
    return Value(node.index, (), "int")


def step_name(variant: Variant, graph: StepGraph) -> str:
    """The function that runs a variant: the first is the step itself."""
    return "step" if variant is graph.variants[0] else f"step_{variant.name}"


def step_arguments(variant: Variant, graph: StepGraph, state: str) -> str:
    """What that function takes: models, state of a type, and numbers that a launch is told."""
    drafter = "drafter: Draft" if asks_draft(variant, graph) else "_drafter: object"
    sizes = dict.fromkeys(
        v.name for p in variant.phases for v in graph.phase(p).inputs if v.dtype == "int"
    )
    return f"target: Target, {drafter}, state: {state}" + "".join(f", {n}: int" for n in sizes)


def asks_draft(variant: Variant, graph: StepGraph) -> bool:
    """Whether a variant runs a phase of the draft."""
    return any(graph.phase(p).model == "draft" for p in variant.phases)


def operand(value: Operand) -> str:
    """An operand as the module names it."""
    if isinstance(value, Buffer):
        return f"state.{value.name}"
    if isinstance(value, Listed):
        return f"[{', '.join(map(operand, value.values))}]"
    return value.name if isinstance(value, Value | Constant) else str(value)


def shape_of(value: Value | Buffer) -> str:
    """A shape as comments write it: [B, W]."""
    return "[" + ", ".join(map(str, value.shape)) + "]"


def comment(code: str, text: str) -> str:
    """A line with its comment."""
    return f"{code}  # {text}" if text else code
