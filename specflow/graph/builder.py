"""How a stage writes its part of the graph: one method call a line of the module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from specflow.errors import CompileError
from specflow.graph.ir import (
    Buffer,
    Carry,
    Choice,
    Constant,
    Node,
    Op,
    Operand,
    Phase,
    Repeat,
    Shape,
    StepGraph,
    Store,
    Value,
    Variant,
)


@dataclass
class _Carried:
    """A loop value while its loop is being written; one that no turn reads has no name yet."""

    name: str
    start: Value
    now: Value
    collected: str
    fresh: bool = False
    next: Value | None = None

    @property
    def all(self) -> Value:
        """The list of every turn's value, the start included."""
        return Value(self.collected, self.start.shape, self.start.dtype)


@dataclass
class Loop:
    """A loop while it is being written."""

    index: Value
    carried: list[_Carried] = field(default_factory=list)

    def carry(self, start: Value, collected: str = "") -> _Carried:
        """Hand a value from turn to turn, beginning with `start`; keep all in a list if named."""
        kept = _Carried(start.name, start, Value(start.name, start.shape, start.dtype), collected)
        self.carried.append(kept)
        return kept

    def gather(self, start: Value, collected: str, *, fresh: bool = False) -> _Carried:
        """Put what each turn makes into a list that begins with `start`; no turn reads it.

        fresh  the list begins empty; of `start` only the kind counts
        """
        kept = _Carried("", start, start, collected, fresh)
        self.carried.append(kept)
        return kept


class PhaseBuilder:
    """Writes one phase: ops, stores, loops."""

    def __init__(self, name: str, role: str, doc: str, model: str, place: str) -> None:
        self._head = (name, role, doc, model, place)
        self._nodes: list[Node] = []
        self._body: list[Op | Store] | None = None
        self._inputs: list[Value] = []
        self._outputs: tuple[Value, ...] = ()
        self._choice: Choice | None = None

    def _add(self, node: Op | Store) -> None:
        (self._nodes if self._body is None else self._body).append(node)

    def take(self, value: Value) -> Value:
        """Receive a value of an earlier phase as an argument."""
        self._inputs.append(value)
        return value

    def op(
        self,
        kind: str,
        *inputs: Operand,
        out: str,
        shape: Shape,
        dtype: str = "int64",
        note: str = "",
    ) -> Value:
        """Apply an op with one result."""
        value = Value(out, shape, dtype)
        self._add(Op(kind, inputs, (value,), note))
        return value

    def ops(
        self, kind: str, *inputs: Operand, outs: tuple[Value, ...], note: str = ""
    ) -> tuple[Value, ...]:
        """Apply an op with several results, or none."""
        self._add(Op(kind, inputs, outs, note))
        return outs

    def store(self, buffer: Buffer, value: Operand, mode: str = "copy", note: str = "") -> None:
        """Write a value into a buffer."""
        self._add(Store(buffer, value, mode, note))

    @contextmanager
    def repeat(self, times: Constant, *, first: int, index: str = "step") -> Iterator[Loop]:
        """Write a loop: `for index in range(first, times)`."""
        loop = Loop(Value(index, (), "int"))
        self._body = []
        yield loop
        body, self._body = tuple(self._body), None
        carries = []
        for kept in sorted(loop.carried, key=lambda each: not each.name):
            if kept.next is None:
                raise CompileError(
                    f"`{kept.name or kept.collected}` is carried by a loop that never sets its "
                    "next value"
                )
            name = kept.name or kept.next.name
            carries.append(Carry(name, kept.start, kept.next, kept.collected, kept.fresh))
        self._nodes.append(Repeat(index, first, times, tuple(carries), body))

    def give(self, *values: Value) -> None:
        """What the phase returns."""
        self._outputs = values

    def choose(self, value: Value, *cases: tuple[Constant, str], otherwise: str) -> None:
        """End a host phase with the name of the variant to run: the first case `value` reaches."""
        self._choice = Choice(value, cases, otherwise)

    def done(self) -> Phase:
        """The finished phase."""
        name, role, doc, model, place = self._head
        return Phase(
            name,
            role,
            doc,
            tuple(self._nodes),
            tuple(self._inputs),
            self._outputs,
            model,
            place,
            self._choice,
        )


class Builder:
    """Collects phases, buffers, constants and variants of one step.

    `width` and `guesses` are W and K of the recipe, as constants that the module names.
    """

    def __init__(self, drafter: str) -> None:
        self._drafter = drafter
        self.phases: list[Phase] = []
        self._variants: list[Variant] = []
        self._buffers: dict[str, Buffer] = {}
        self.constants: dict[str, Constant] = {}

    def buffer(self, name: str, shape: Shape, doc: str, dtype: str = "int64") -> Buffer:
        """Declare state, or find the state of that name."""
        made = Buffer(name, shape, doc, dtype)
        known = self._buffers.setdefault(name, made)
        if known.shape != shape or known.dtype != dtype:
            raise CompileError(f"state `{name}` is declared twice, as {known.shape} and {shape}")
        return known

    def constant(
        self, name: str, value: float | tuple[int, ...] | tuple[float, ...], because: str
    ) -> Constant:
        """Name a number of the recipe, or several."""
        return self.constants.setdefault(name, Constant(name, value, because))

    @contextmanager
    def phase(
        self, name: str, role: str, doc: str, *, model: str = "", place: str = "device"
    ) -> Iterator[PhaseBuilder]:
        """Write one phase."""
        builder = PhaseBuilder(name, role, doc, model, place)
        yield builder
        self.phases.append(builder.done())

    def variant(self, name: str, *phases: str, width: int, doc: str) -> None:
        """Declare a captured step out of device phases."""
        self._variants.append(Variant(name, phases, width, doc))

    def done(self) -> StepGraph:
        """The finished graph."""
        return StepGraph(
            tuple(self.phases),
            tuple(self._variants),
            tuple(self._buffers.values()),
            tuple(self.constants.values()),
            self._drafter,
        )
