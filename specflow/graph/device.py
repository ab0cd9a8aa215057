"""A variant as it runs on a device: its phases in one line of nodes, loops unrolled, runs fused.

Nothing here looks at what an op computes. Between two forwards every op that has a form for one
program a request joins its neighbours in one kernel; whatever has none is a launch of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from specflow.errors import CompileError
from specflow.graph.device_row import asked
from specflow.graph.device_runs import read
from specflow.graph.device_tree import grown
from specflow.graph.ir import (
    Buffer,
    Fused,
    Launch,
    Line,
    Listed,
    Node,
    Op,
    Operand,
    Phase,
    Repeat,
    Shape,
    Single,
    StepGraph,
    Store,
    Value,
    Variant,
    node_of,
    operands,
    reads,
    writes,
)
from specflow.graph.ops import BEST, OPS

Names = dict[str, "Operand"]
LANES = frozenset("BWKwk")  # letters of what a program holds in registers
WIDE = frozenset("HV")  # and of what it only copies


def flat(graph: StepGraph, variant: Variant) -> tuple[Single, ...]:
    """The nodes of a variant in order, every value assigned once, no loops, no phases."""
    flattened = _Flattening()
    given: dict[str, Operand] = {}
    for phase in map(graph.phase, variant.phases):
        made = flattened.phase(phase, given)
        given |= made
    return tuple(flattened.lines)


class _Flattening:
    """Names taken so far, and the lines."""

    def __init__(self) -> None:
        self.lines: list[Single] = []
        self.taken: set[str] = set()

    def phase(self, phase: Phase, given: Mapping[str, Operand]) -> dict[str, Operand]:
        """Write a phase; what it gives, by the names that later phases take."""
        names: Names = {}
        for value in phase.inputs:
            names[value.name] = value if value.dtype == "int" else given[value.name]
        for node in phase.nodes:
            self._node(node, names, phase.model)
        return {v.name: names[v.name] for v in phase.outputs}

    def _node(self, node: Node, names: Names, model: str) -> None:
        if isinstance(node, Repeat):
            self._repeat(node, names, model)
        elif isinstance(node, Store):
            self.lines.append(replace(node, value=_named(node.value, names)))
        else:
            self._op(node, names, model)

    def _op(self, node: Op, names: Names, model: str) -> None:
        inputs = tuple(_named(o, names) for o in node.inputs)
        alias = _alias(node.kind, inputs)
        if alias is not None:
            names[node.outputs[0].name] = alias
            return
        outputs = tuple(self._fresh(v) for v in node.outputs)
        names |= {old.name: new for old, new in zip(node.outputs, outputs, strict=True)}
        self.lines.append(Launch(replace(node, inputs=inputs, outputs=outputs), model))

    def _repeat(self, node: Repeat, names: Names, model: str) -> None:
        """Each turn in turn; a list is a list of what every turn handed on."""
        lists = {
            c.collected: [] if c.fresh else [_named(c.start, names)]
            for c in node.carries
            if c.collected
        }
        for carry in node.carries:
            if not carry.fresh:  # of such a start only the kind counts
                names[carry.name] = _named(carry.start, names)
        for turn in range(node.first, node.times.count):
            names[node.index] = turn
            for inner in node.body:
                self._node(inner, names, model)
            after = {c.name: names[c.next.name] for c in node.carries}
            for carry in node.carries:
                if carry.collected:
                    lists[carry.collected].append(after[carry.name])
            names |= after
        for name, values in lists.items():
            names[name] = Listed(tuple(values))

    def _fresh(self, value: Value) -> Value:
        """A value under a name that nothing else has."""
        name, count = value.name, 1
        while name in self.taken:
            count += 1
            name = f"{value.name}_{count}"
        self.taken.add(name)
        return replace(value, name=name)


def _named(operand: Operand, names: Names) -> Operand:
    if isinstance(operand, Value):
        found = names.get(operand.name)
        if found is None:
            raise CompileError(f"`{operand.name}` is read before it is assigned")
        return found
    return operand


def _alias(kind: str, inputs: tuple[Operand, ...]) -> Operand | None:
    """What an op is another name of: nothing is launched for that."""
    if kind == "read":
        return inputs[0]
    if kind == "standing" and inputs[1] == 1:  # seq_lens + 1 - 1
        return inputs[0]
    return None


def fused(lines: Iterable[Single]) -> tuple[Line, ...]:
    """The lines, every run of ops that one program a request can do gathered into one kernel."""
    out: list[Line] = []
    lines = grown(asked(lines))
    run: list[Op | Store] = []
    named: Counter[str] = Counter()
    for at, line in enumerate(lines):
        alone = not in_a_row(line)
        if run and (not _before(line, run) if alone else _clashes(run, line)):
            out.append(_kernel(tuple(run), lines[at:], named))
            run = []
        if alone:
            out.append(line)
        else:
            run.append(node_of(line))
    if run:
        out.append(_kernel(tuple(run), (), named))
    return tuple(out)


def in_a_row(line: Single) -> bool:
    """Whether one program a request can do it: its lanes in registers, wide rows only copied."""
    if isinstance(line, Store):
        letters = {str(d)[0] for d in line.buffer.shape if not isinstance(d, int)}
        if _in_lanes(line.buffer.shape):
            return True
        return line.mode == "copy" and len(line.buffer.shape) == 2 and letters <= LANES | WIDE
    return bool(OPS[line.op.kind].row) and all(_in_lanes(v.shape) for v in line.op.outputs)


def _in_lanes(shape: Shape) -> bool:
    """Whether a request's share of a tensor is a number, or a row of lanes; T are few branches."""
    return len(shape) < 3 and all(d == "T" or str(d)[0] in LANES for d in shape)


def _clashes(run: list[Op | Store], line: Single) -> bool:
    """A kernel loads state before it stores any: what reads stored state begins the next one."""
    stored = {n.buffer for n in run if isinstance(n, Store)}
    node = node_of(line)
    if _reduces(node) and any(map(_reduces, run)):
        return True  # the programs of a row come together once
    return any(isinstance(o, Buffer) and o in stored for o in reads(node))


def _before(line: Single, run: list[Op | Store]) -> bool:
    """Whether a launch may as well stand before a run that goes on behind it.

    An op that gives something changes nothing else; a forward parts two runs all the same.
    """
    if not isinstance(line, Launch) or not line.op.outputs:
        return False
    if OPS[line.op.kind].domain == "model":
        return False
    made = {v.name for n in run for v in writes(n)}
    return not any(isinstance(o, Value | Buffer) and o.name in made for o in operands(line.op))


def _reduces(node: Node) -> bool:
    return isinstance(node, Op) and node.kind in BEST


def _kernel(body: tuple[Op | Store, ...], after: Iterable[Single], named: Counter[str]) -> Fused:
    """A run with what it takes from outside and what is taken from it.

    It is named after what it leaves first: what it keeps in the state, else what it makes.
    """
    made = {v.name: v for n in body for v in writes(n) if isinstance(v, Value)}
    taken = {
        o.name: o for n in body for o in operands(n) if isinstance(o, Value) and o.name not in made
    }
    wanted = read(after)
    outputs = tuple(v for v in made.values() if v.name in wanted)
    kept = [n.buffer.name for n in body if isinstance(n, Store)]
    name = f"keep_{kept[0]}" if kept else f"make_{outputs[0].name}"
    named[name] += 1
    if named[name] > 1:
        name += f"_{named[name]}"
    return Fused(name, body, tuple(taken.values()), outputs)


def launched(graph: StepGraph, variant: Variant) -> tuple[int, int]:
    """Launches of a variant outside the forwards, op by op, and as kernels."""
    lines = flat(graph, variant)
    return launches(lines), launches(fused(lines))


def launches(lines: Iterable[Line]) -> int:
    """Kernels outside the forwards: one a fused run, and what any other op that is no view takes.

    An op counts as one launch unless its row says more, so that op by op this is the least that
    torch would launch: it makes several kernels of many an op.
    """
    count = 0
    for line in lines:
        if isinstance(line, Launch):
            spec = OPS[line.op.kind]
            if spec.domain != "model" and not spec.view:
                count += spec.launches
        else:
            count += 1
    return count
