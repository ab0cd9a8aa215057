"""A step on a device: forwards in a line, and between them kernels laid out for the template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from specflow.codegen.spell import (
    MODELS,
    asks_draft,
    comment,
    expression,
    operand,
    shape_of,
    step_arguments,
    step_name,
    stored,
)
from specflow.errors import CompileError
from specflow.graph import Buffer, Constant, Fused, Op, Operand, StepGraph, Store, Value, Variant
from specflow.graph.buffers import LETTERS
from specflow.graph.device import WIDE, flat, fused, launches
from specflow.graph.ir import Launch, Line, Listed, Single, node_of, operands, writes
from specflow.graph.ops import BEST, OPS
from specflow.stages.base import NARROW, STEPS

PARTS = 32  # programs that look for the best of a row of logits together
TILE = 2048  # logits a program looks at at once
TURN = Value("turn", (), "int")  # which of a loop's turns it is: a number, not a tensor
TYPES = {"state": "Device", "drafter": "Draft", TURN.name: "int"}  # beside tensors
NUMBERED = re.compile(r"_\d+$")


@dataclass(frozen=True)
class Argument:
    """A tensor the kernel is given: `expression` is how the launcher names it."""

    name: str
    expression: str
    shape: tuple[str | int, ...]
    dtype: str = "int64"

    @property
    def lanes(self) -> str:
        """Its extent in a row: empty for one number a request."""
        return str(self.shape[1]) if len(self.shape) > 1 else ""


@dataclass(frozen=True)
class Best:
    """The likeliest tokens of a row of logits, or of several: what many programs find together.

    bias  what is added to the one row `at` of the logits, where the best of their sum is asked
    """

    name: str
    logits: Argument
    bias: Argument | None = None
    at: str = ""

    @property
    def rows(self) -> str:
        """How many rows of logits a request has that are asked about; empty for one."""
        several = len(self.logits.shape) > 2 and self.bias is None
        return str(self.logits.shape[1]) if several else ""

    @property
    def read(self) -> set[str]:
        """What it reads, by name."""
        return {self.logits.name} | ({self.bias.name} if self.bias else set())


@dataclass(frozen=True)
class Kernel:
    """One run of ops, laid out for the template.

    loads    lanes and numbers, read before anything is computed
    best     the reduction it begins with, where it has one
    tables   maps of ids, by name: read where a line asks for them
    copies   wide rows that are stored as they are
    table    what the launcher takes of the draft
    turn     whether it is told its turn
    """

    name: str
    loads: tuple[Argument, ...]
    lines: tuple[str, ...]
    stores: tuple[tuple[Argument, str], ...]
    copies: tuple[tuple[Argument, Argument], ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Argument, ...]
    functions: tuple[str, ...]
    extents: tuple[tuple[str, str], ...]
    block: str
    best: Best | None
    table: str
    turn: bool
    like: str

    @property
    def given(self) -> tuple[str, ...]:
        """What its launcher is given, by name."""
        expressions = [a.expression for a in self.loads]
        expressions += [to.expression for to, _ in (*self.stores, *self.copies)]
        stateful = self.best is not None or any(e.startswith("state.") for e in expressions)
        model = ["drafter"] if self.table else []
        turn = [TURN.name] if self.turn else []
        return (*(["state"] if stateful else []), *model, *(v.name for v in self.inputs), *turn)

    @property
    def arguments(self) -> str:
        """The same with their types."""
        return ", ".join(f"{name}: {TYPES.get(name, 'Tensor')}" for name in self.given)

    @property
    def reduces(self) -> tuple[str, ...]:
        """The Triton functions that its reduction calls."""
        if self.best is None:
            return ()
        find = "find_best_sum" if self.best.bias else "find_best"
        return ("arrived_last", find, "best_of_rows" if self.best.rows else "best_of_parts")

    @property
    def updates(self) -> bool:
        """Whether it stores what it has loaded: a program's warps run apart until they meet."""
        return bool({a.name for a in self.loads} & {a.name for a, _ in self.stores})

    @property
    def far(self) -> bool:
        """Whether it reaches into rows of logits, or wide ones."""
        return self.best is not None or bool(self.copies)

    @property
    def lanes(self) -> bool:
        """Whether anything in it is a vector, not one number a request."""
        vectors = [*self.loads, *(to for to, _ in self.stores)]
        several = self.best is not None and bool(self.best.rows)
        return several or any(a.lanes for a in vectors) or any("lane" in s for s in self.lines)


@dataclass(frozen=True)
class DeviceStep:
    """A variant as a function: its name, its lines, its kernels, and launches without forwards."""

    variant: Variant
    name: str
    arguments: str
    lines: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    called: tuple[str, ...]
    constants: tuple[str, ...]
    types: tuple[str, ...]
    launches: int


def device_steps(graph: StepGraph) -> list[DeviceStep]:
    """Every variant of a graph as it runs on a device."""
    sizes = extents(graph)
    known: dict[Kernel, str] = {}
    return [_step(v, graph, sizes, known) for v in graph.variants]


def extents(graph: StepGraph) -> dict[str, int]:
    """The letters of a row's lanes: K3 and W3 are those of a step of three guesses."""
    asked = (LETTERS["W"], NARROW, LETTERS["T"])
    known = {c.name: c.count for c in graph.constants if c.name in asked}
    width, few = known[LETTERS["W"]], known.get(NARROW, 1)
    sizes = {"K": width - 1, "W": width, "k": few - 1, "w": few}
    sizes["T"] = known.get(LETTERS["T"], 1)
    for constant in graph.constants:
        if constant.name.startswith(STEPS):
            steps = constant.count
            sizes |= {f"K{steps}": steps, f"W{steps}": steps + 1}
    return sizes


def _step(
    variant: Variant, graph: StepGraph, sizes: Mapping[str, int], known: dict[Kernel, str]
) -> DeviceStep:
    """A variant; `known` are kernels by all but their names, which variants share."""
    prefix = "" if variant is graph.variants[0] else f"{variant.name}_"
    laid = fused(flat(graph, variant))
    lines, made = [], []
    read = {o.name for line in laid for o in _reads(line) if isinstance(o, Value)}
    for line in laid:
        if isinstance(line, Fused):
            kernel = _kernel(by_itself(line), f"{prefix}{line.name}", sizes)
            same = replace(kernel, name="")
            if same not in known:
                known[same] = kernel.name
                made.append(kernel)
            lines.append(_call(line, replace(kernel, name=known[same])))
        else:
            lines.append(_spelled(line, read))
    ops = [line.op for line in laid if isinstance(line, Launch)]
    launched = {OPS[op.kind].kernel for op in ops} - {""}
    named = {o.name for op in ops for o in operands(op) if isinstance(o, Constant)}
    return DeviceStep(
        variant,
        step_name(variant, graph),
        step_arguments(variant, graph, "Device"),
        tuple(lines),
        tuple(made),
        tuple(sorted(launched)),
        tuple(sorted(named)),
        ("Draft", "Target") if asks_draft(variant, graph) else ("Target",),
        launches(laid),
    )


def _reads(line: Line) -> Iterator[Operand]:
    """What a line takes from those before it."""
    yield from line.inputs if isinstance(line, Fused) else operands(node_of(line))


def _spelled(line: Single, read: set[str]) -> str:
    """A forward, or an op that is a launch of its own; what nobody reads is marked."""
    if isinstance(line, Store):
        return stored(line, operand(line.value))
    outs = ", ".join(v.name if v.name in read else f"_{v.name}" for v in line.op.outputs)
    shapes = ", ".join(shape_of(v) for v in line.op.outputs if v.shape)
    text = expression(line.op, MODELS.get(line.model, ""))
    return comment(f"{outs} = {text}" if outs else text, shapes)


def by_itself(node: Fused) -> Fused:
    """A run with values under the names that they have where nothing stands before it.

    The number of its turn, where it asks for one, is given. So it reads as one piece, and is the
    same piece wherever it stands: turns and variants share it.
    """
    turn = _turn(node)
    held = [v for n in node.body for v in (*writes(n), *operands(n))]
    taken = {v.name for v in held if isinstance(v, Value | Buffer)}
    names: dict[str, str] = {}
    for value in held:
        if isinstance(value, Value) and value.name not in names:
            short = NUMBERED.sub("", value.name)
            names[value.name] = value.name if short in taken else short
            taken.add(names[value.name])

    def new(value: Value) -> Value:
        return replace(value, name=names[value.name])

    def of(operand: Operand) -> Operand:
        if isinstance(operand, Listed):
            return Listed(tuple(map(of, operand.values)))
        if isinstance(operand, int) and operand == turn:
            return TURN
        return new(operand) if isinstance(operand, Value) else operand

    def renamed(body: Op | Store) -> Op | Store:
        if isinstance(body, Store):
            value = body.value
            return replace(body, value=new(value) if isinstance(value, Value) else value)
        return replace(
            body, inputs=tuple(map(of, body.inputs)), outputs=tuple(map(new, body.outputs))
        )

    return Fused(
        node.name,
        tuple(map(renamed, node.body)),
        tuple(map(new, node.inputs)),
        tuple(map(new, node.outputs)),
    )


def _turn(node: Fused) -> int | None:
    """The one number that a run's ops are told, if there is just one."""
    told = {o for n in node.body if isinstance(n, Op) for o in n.inputs if isinstance(o, int)}
    return told.pop() if len(told) == 1 else None


def _call(node: Fused, kernel: Kernel) -> str:
    outs = ", ".join(v.name for v in node.outputs)
    given = [name for name in kernel.given if name in ("state", "drafter")]
    given += [v.name for v in node.inputs]
    given += [str(_turn(node))] if kernel.turn else []
    call = f"{kernel.name}({', '.join(given)})"
    shapes = ", ".join(shape_of(v) for v in node.outputs)
    return comment(f"{outs} = {call}" if outs else call, shapes)


def _kernel(node: Fused, name: str, sizes: Mapping[str, int]) -> Kernel:
    ops = [n for n in node.body if isinstance(n, Op)]
    reduced = [n for n in ops if n.kind in BEST]
    best = _best(reduced[0]) if reduced else None
    taken = {v.name for v in node.inputs}
    copied = {
        n.value.name
        for n in node.body
        if isinstance(n, Store) and _wide(n.buffer.shape) and isinstance(n.value, Value)
    }
    loaded: dict[str, Argument] = {}
    for value in node.inputs:
        if value.name not in copied and (best is None or value.name not in best.read):
            loaded[value.name] = Argument(value.name, value.name, value.shape, value.dtype)
    for each in (o for n in node.body for o in operands(n)):
        if isinstance(each, Buffer):
            if each.name in taken:
                raise CompileError(f"`{name}` reads a value and a state named `{each.name}`")
            if not _wide(each.shape):
                loaded[each.name] = _state(each, taken)
    outputs = tuple(Argument(v.name, v.name, v.shape, v.dtype) for v in node.outputs)
    written = [n for n in node.body if isinstance(n, Store)]
    stores = [(_state(n.buffer, taken), _stored(n)) for n in written if not _wide(n.buffer.shape)]
    stores += [(Argument(f"{o.name}_out", o.name, o.shape, o.dtype), o.name) for o in outputs]
    copies = tuple(
        (_state(n.buffer, taken), Argument(n.value.name, n.value.name, n.value.shape))
        for n in written
        if _wide(n.buffer.shape) and isinstance(n.value, Value)
    )
    lanes = {a.lanes for a in (*loaded.values(), *(s[0] for s in stores))}
    lanes |= {best.rows} if best is not None else set()
    lines = tuple(line for n in ops if n.kind not in BEST for line in _lines(n))
    firsts = [*loaded.values(), *([best.logits] if best else []), *(c[1] for c in copies)]
    functions = {f for n in ops for f in _functions(n)} | ({"copy_row"} if copies else set())
    widest = max([sizes[e] for e in lanes if e in sizes] + [sizes["W"]])
    return Kernel(
        name=name,
        loads=tuple(loaded.values()),
        lines=lines,
        stores=tuple(stores),
        copies=copies,
        inputs=node.inputs,
        outputs=outputs,
        functions=tuple(sorted(functions)),
        extents=tuple((e, str(size)) for e, size in sizes.items() if e in lanes),
        block=str(1 << max(widest - 1, 1).bit_length()),
        best=best,
        table=next(filter(None, (OPS[n.kind].table for n in ops)), ""),
        turn=any(o is TURN for n in ops for o in n.inputs),
        like=firsts[0].expression,
    )


def _best(node: Op) -> Best:
    tensors = [o for o in node.inputs if isinstance(o, Value) and o is not TURN]
    logits, *beside = map(_logits, tensors)
    name = node.outputs[0].name
    return Best(name, logits, beside[0], _name(node.inputs[1])) if beside else Best(name, logits)


def _logits(value: Value) -> Argument:
    return Argument(value.name, value.name, value.shape, "float")


def _wide(shape: tuple[str | int, ...]) -> bool:
    """Whether a row of state is longer than a program's lanes: it is copied, and never computed."""
    return len(shape) > 1 and str(shape[1])[0] in WIDE


def _state(buffer: Buffer, taken: set[str]) -> Argument:
    """State as an argument; a value of the same name that the kernel is given keeps the name."""
    name = f"state_{buffer.name}" if buffer.name in taken else buffer.name
    return Argument(name, f"state.{buffer.name}", buffer.shape, buffer.dtype)


def _functions(node: Op) -> Iterator[str]:
    """The Triton functions that a line calls."""
    call = OPS[node.kind].row
    if "(" in call and not call.startswith(("(", "{")):
        yield call.partition("(")[0]


def _lines(node: Op) -> Iterator[str]:
    """The lines of an op: {n0} is the extent of its first operand; a list is laid out in lanes."""
    outs = ", ".join(v.name for v in node.outputs)
    first = node.inputs[0]
    if isinstance(first, Listed):
        yield f"{outs} = tl.full((BLOCK,), -1, tl.int64)"
        for i, value in enumerate(first.values):
            yield f"{outs} = tl.where(lane == {i}, {_name(value)}, {outs})"
        return
    extent = first.shape[-1] if isinstance(first, Value | Buffer) and first.shape else ""
    yield f"{outs} = {OPS[node.kind].row.format(*map(_name, node.inputs), n0=extent)}"


def _stored(node: Store) -> str:
    value = _name(node.value)
    return f"{node.buffer.name} + {value}" if node.mode == "add" else value


def _name(value: Operand) -> str:
    if isinstance(value, Constant):
        return str(value.value)
    return value.name if isinstance(value, Value | Buffer) else str(value)


def unique(names: Iterable[Iterable[str]]) -> list[str]:
    """All names, each once, in order."""
    return sorted({name for each in names for name in each})
