"""The words a step graph is made of; all frozen, a pass returns new ones.

Shapes are tuples of letters and numbers: B requests, K guesses, W verified positions, V target
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specflow.errors import CompileError

Shape = tuple[str | int, ...]


@dataclass(frozen=True)
class Value:
    """A tensor inside a phase, assigned once."""

    name: str
    shape: Shape
    dtype: str = "int64"


@dataclass(frozen=True)
class Buffer:
    """State at a fixed address: what one step leaves for the next, or tells the host."""

    name: str
    shape: Shape
    doc: str
    dtype: str = "int64"


@dataclass(frozen=True)
class Constant:
    """A number of the recipe, or several, named in the generated module; `because`: who set it."""

    name: str
    value: int | float | tuple[int, ...] | tuple[float, ...]
    because: str

    @property
    def count(self) -> int:
        """The number as a whole one."""
        if not isinstance(self.value, int):
            raise CompileError(f"`{self.name}` is {self.value}, which counts nothing")
        return self.value


@dataclass(frozen=True)
class Listed:
    """Several operands as a list: what the turns of a loop made, once it is unrolled."""

    values: tuple[Operand, ...]


Operand = Value | Buffer | Constant | Listed | int


@dataclass(frozen=True)
class Op:
    """One row of OPS applied: one line of the module."""

    kind: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Value, ...]
    note: str = ""


@dataclass(frozen=True)
class Store:
    """Write a value into a buffer in place: mode `copy` or `add`."""

    buffer: Buffer
    value: Operand
    mode: str = "copy"
    note: str = ""


@dataclass(frozen=True)
class Carry:
    """A value one turn of a loop hands to the next; `collected` names the list of all of them.

    fresh  the list begins empty: the start is none of them
    """

    name: str
    start: Value
    next: Value
    collected: str = ""
    fresh: bool = False


@dataclass(frozen=True)
class Repeat:
    """A loop of a fixed number of turns; it stays a loop in the module, and capture unrolls it."""

    index: str
    first: int
    times: Constant  # a whole number
    carries: tuple[Carry, ...]
    body: tuple[Op | Store, ...]


Node = Op | Store | Repeat


@dataclass(frozen=True)
class Launch:
    """One forward, or one op that no kernel has taken in, with the model it asks."""

    op: Op
    model: str


@dataclass(frozen=True)
class Fused:
    """A run of row ops that becomes one function, and one kernel: one program a request."""

    name: str
    body: tuple[Op | Store, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


Single = Launch | Store  # a line of a variant, its loops unrolled
Line = Single | Fused  # and as a device runs it


@dataclass(frozen=True)
class Choice:
    """What a host phase decides: the first case that `value` reaches, else `otherwise`."""

    value: Value
    cases: tuple[tuple[Constant, str], ...]
    otherwise: str


@dataclass(frozen=True)
class Phase:
    """One function of the module.

    role     draft, verify or commit; on the host also plan and learn
    model    "target", "draft" or "planner" where it asks one, else ""
    place    device or host
    """

    name: str
    role: str
    doc: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    model: str = ""
    place: str = "device"
    choice: Choice | None = None


@dataclass(frozen=True)
class Variant:
    """One captured step: the device phases it runs, in order, and the positions it verifies."""

    name: str
    phases: tuple[str, ...]
    width: int
    doc: str


@dataclass(frozen=True)
class StepGraph:
    """What one step computes: phases, the variants that run them, the state between steps.

    drafter  what guesses, as a key of the runtime's table of drafters
    """

    phases: tuple[Phase, ...]
    variants: tuple[Variant, ...]
    buffers: tuple[Buffer, ...]
    constants: tuple[Constant, ...]
    drafter: str

    def phase(self, name: str) -> Phase:
        """The phase of that name."""
        return next(p for p in self.phases if p.name == name)


def leaves(nodes: tuple[Node, ...]) -> tuple[Op | Store, ...]:
    """Every op and store, inside loops too, in order."""
    out: list[Op | Store] = []
    for node in nodes:
        if isinstance(node, Repeat):
            out.extend(leaves(node.body))
        else:
            out.append(node)
    return tuple(out)


def reads(node: Node) -> tuple[Operand, ...]:
    """What a node reads, buffers and constants included."""
    if isinstance(node, Op):
        return node.inputs
    if isinstance(node, Store):
        return (node.value, *((node.buffer,) if node.mode == "add" else ()))
    starts = tuple(c.start for c in node.carries if not c.fresh)
    return (*starts, node.times, *(o for n in node.body for o in reads(n)))


def operands(node: Node) -> Iterator[Operand]:
    """What a node reads, the members of lists among it."""
    for operand in reads(node):
        if isinstance(operand, Listed):
            yield from operand.values
        else:
            yield operand


def node_of(line: Single) -> Op | Store:
    """What a line of an unrolled variant does, whatever model it asks."""
    return line.op if isinstance(line, Launch) else line


def writes(node: Node) -> tuple[Value | Buffer, ...]:
    """What a node assigns."""
    if isinstance(node, Op):
        return node.outputs
    if isinstance(node, Store):
        return (node.buffer,)
    return tuple(o for n in node.body for o in writes(n))
