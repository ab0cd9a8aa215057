"""A fused run as a Triton kernel: what it loads, which row functions it calls, what it stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specflow.errors import CompileError
from specflow.graph import Buffer, Constant, Fused, Op, Operand, StepGraph, Store, Value
from specflow.graph.ir import reads
from specflow.graph.ops import OPS
from specflow.stages.base import NARROW, STEPS


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


def kernels(graph: StepGraph) -> list[Kernel]:
    """Every fused run of a graph, in order."""
    sizes = extents(graph)
    return [_kernel(n, sizes) for p in graph.phases for n in p.nodes if isinstance(n, Fused)]


def extents(graph: StepGraph) -> dict[str, int]:
    """The letters of a row's lanes: K3 and W3 are those of a step of three guesses."""
    known = {c.name: c.count for c in graph.constants if c.name in ("NUM_DRAFT_TOKENS", NARROW)}
    width, few = known["NUM_DRAFT_TOKENS"], known.get(NARROW, 1)
    sizes = {"K": width - 1, "W": width, "k": few - 1, "w": few}
    for constant in graph.constants:
        if constant.name.startswith(STEPS):
            steps = constant.count
            sizes |= {f"K{steps}": steps, f"W{steps}": steps + 1}
    return sizes


def _kernel(node: Fused, sizes: Mapping[str, int]) -> Kernel:
    taken = {v.name for v in node.inputs}
    loaded: dict[str, Argument] = {v.name: Argument(v.name, v.name, v.shape) for v in node.inputs}
    for operand in (o for inner in node.body for o in reads(inner)):
        if isinstance(operand, Buffer):
            if operand.name in taken:
                raise CompileError(
                    f"`{node.name}` reads a value and a state named `{operand.name}`"
                )
            loaded[operand.name] = _state(operand, taken)
    outputs = tuple(Argument(v.name, v.name, v.shape) for v in node.outputs)
    stores = [(_state(n.buffer, taken), _stored(n)) for n in node.body if isinstance(n, Store)]
    stores += [(Argument(f"{o.name}_out", o.name, o.shape), o.name) for o in outputs]
    ops = [n for n in node.body if isinstance(n, Op)]
    lanes = {a.lanes for a in (*loaded.values(), *(s[0] for s in stores))}
    return Kernel(
        name=node.name,
        loads=tuple(loaded.values()),
        lines=tuple(map(_call, ops)),
        stores=tuple(stores),
        inputs=node.inputs,
        outputs=outputs,
        functions=tuple(sorted({row_function(n.kind) for n in ops})),
        extents=tuple((e, str(size)) for e, size in sizes.items() if e in lanes),
        block=str(1 << max(sizes["W"] - 1, 1).bit_length()),
    )


def row_function(kind: str) -> str:
    """The Triton function that a row op calls."""
    return OPS[kind].row.partition("(")[0]


def _state(buffer: Buffer, taken: set[str]) -> Argument:
    """State as an argument; a value of the same name that the kernel is given keeps the name."""
    name = f"state_{buffer.name}" if buffer.name in taken else buffer.name
    return Argument(name, f"state.{buffer.name}", buffer.shape)


def _call(node: Op) -> str:
    """A line of the kernel: the op's row call, {n0} being the extent of its first operand."""
    outs = ", ".join(v.name for v in node.outputs)
    first = node.inputs[0]
    extent = first.shape[-1] if isinstance(first, Value | Buffer) and first.shape else ""
    return f"{outs} = {OPS[node.kind].row.format(*map(_name, node.inputs), n0=extent)}"


def _stored(node: Store) -> str:
    value = _name(node.value)
    return f"{node.buffer.name} + {value}" if node.mode == "add" else value


def _name(operand: Operand) -> str:
    return operand.name if isinstance(operand, Value | Buffer | Constant) else str(operand)
