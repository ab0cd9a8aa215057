"""A fused run as a Triton kernel: what it loads, which row functions it calls, what it stores."""

from __future__ import annotations

from dataclasses import dataclass

from specflow.codegen.spell import shape_of
from specflow.graph import Buffer, Constant, Fused, Op, Operand, StepGraph, Store, Value
from specflow.graph.ir import reads
from specflow.graph.ops import OPS


@dataclass(frozen=True)
class Argument:
    """A tensor the kernel is given: `expression` is how the launcher names it."""

    name: str
    expression: str
    shape: tuple[str | int, ...]

    @property
    def lanes(self) -> str:
        """Its extent in a row: empty for one number a request."""
        return str(self.shape[1]) if len(self.shape) > 1 else ""


@dataclass(frozen=True)
class Kernel:
    """One fused run, laid out for the template."""

    name: str
    loads: tuple[Argument, ...]
    lines: tuple[str, ...]
    stores: tuple[tuple[Argument, str], ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Argument, ...]
    functions: tuple[str, ...]
    extents: tuple[tuple[str, str], ...]
    block: str


# Row functions that take more than their operands: the lane numbers, and an extent.
_EXTRA = {
    "accept_chain": ("lane", "K"),
    "accept_tree": ("lane", "K"),
    "take_path": ("lane",),
    "mask_rejected": ("lane",),
    "take_last": ("lane",),
    "take_previous": ("lane",),
    "first": ("lane",),
    "hold": (),
}


def kernels(graph: StepGraph) -> list[Kernel]:
    """Every fused run of a graph, in order."""
    width = next(c for c in graph.constants if c.name == "NUM_DRAFT_TOKENS")
    return [_kernel(n, width) for p in graph.phases for n in p.nodes if isinstance(n, Fused)]


def _kernel(node: Fused, width: Constant) -> Kernel:
    buffers: dict[str, Buffer] = {}
    loaded: dict[str, Argument] = {v.name: Argument(v.name, v.name, v.shape) for v in node.inputs}
    for inner in node.body:
        for operand in reads(inner):
            if isinstance(operand, Buffer):
                loaded[operand.name] = Argument(
                    operand.name, f"state.{operand.name}", operand.shape
                )
        if isinstance(inner, Store):
            buffers[inner.buffer.name] = inner.buffer
    outputs = tuple(Argument(v.name, v.name, v.shape) for v in node.outputs)
    lines, stores = [], []
    for inner in node.body:
        if isinstance(inner, Op):
            lines.append(_call(inner))
        else:
            target = Argument(inner.buffer.name, f"state.{inner.buffer.name}", inner.buffer.shape)
            stores.append((target, _stored(inner)))
    stores += [(Argument(f"{o.name}_out", o.name, o.shape), o.name) for o in outputs]
    widths = {"W": width.value, "K": width.value - 1}
    used = {a.lanes for a in (*loaded.values(), *(s[0] for s in stores))} - {""}
    extents = {
        e: str(widths.get(e, e))
        for e in ("K", "W", "1")
        if e in used or (e == "K" and _needs_k(node))
    }
    functions = sorted({OPS[n.kind].row for n in node.body if isinstance(n, Op)})
    block = 1 << max(width.value - 1, 1).bit_length()
    return Kernel(
        node.name,
        tuple(loaded.values()),
        tuple(lines),
        tuple(stores),
        node.inputs,
        outputs,
        tuple(functions),
        tuple((k, v) for k, v in extents.items() if k != "1"),
        str(block),
    )


def _needs_k(node: Fused) -> bool:
    return any(isinstance(n, Op) and "K" in _EXTRA.get(n.kind, ()) for n in node.body)


def _call(node: Op) -> str:
    outs = ", ".join(v.name for v in node.outputs)
    operands = [_name(o) for o in node.inputs]
    if node.kind == "widen":  # its constant is the row's extent; a kernel needs the tokens' own
        source = node.inputs[0]
        assert isinstance(source, Value)
        return f"{outs} = widen({operands[0]}, lane, {source.shape[1]})"
    return f"{outs} = {OPS[node.kind].row}({', '.join((*operands, *_EXTRA[node.kind]))})"


def _stored(node: Store) -> str:
    value = _name(node.value)
    return f"{node.buffer.name} + {value}" if node.mode == "add" else value


def _name(operand: Operand) -> str:
    return operand.name if isinstance(operand, Value | Buffer | Constant) else str(operand)


__all__ = ["Argument", "Kernel", "kernels", "shape_of"]
