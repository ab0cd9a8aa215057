"""A tree's growth as a device runs it: a level is one launch, and so is the choice of the tree.

What a level's branches say, the best of it, and where these go on, are looked at by one program a
request at the end, so that only forwards lie between two launches. Ops whose results something else
reads stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from specflow.graph.ir import (
    Launch,
    Line,
    Listed,
    Node,
    Op,
    Operand,
    Value,
    reads,
)


def grown(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines with the runs of ops that grow a tree as one op each."""
    left, out = list(lines), list[Line]()
    while left:
        made = next((m for find in (_planted, _level, _chosen) if (m := find(left))), None)
        if made is None:
            out.append(left.pop(0))
        else:
            out.append(made.line)
            del left[: made.count]
    return tuple(out)


@dataclass(frozen=True)
class _Made:
    """One line in place of the first few."""

    line: Launch
    count: int


def _planted(lines: Sequence[Line]) -> _Made | None:
    """The branches of level 0: which they are, and whom they see."""
    run = _run(lines, "ranks", "roots")
    if run is None or run[0].inputs[0] != run[1].inputs[0]:
        return None
    made = Op("plant", run[1].inputs, (*run[0].outputs, *run[1].outputs))
    return _Made(_like(lines, made), 2)


def _level(lines: Sequence[Line]) -> _Made | None:
    """From what branches say to the branches of the next level."""
    ops = _ops(lines)
    if len(ops) < 3 or ops[0].kind != "likeliest" or len(ops[0].outputs[0].shape) != 3:
        return None
    said, chances = ops[0].outputs
    mapped = ops[1].kind == "target_ids"
    words = ops[1].outputs[0] if mapped else said
    kinds = ("likeliest", *(["target_ids"] if mapped else []), "grow_tree", "follow")
    run = _run(lines, *kinds)
    if run is None or (mapped and run[1].inputs != (said,)):
        return None
    grow, follow = run[-2:]
    if grow.inputs[1] != chances or follow.inputs != (words, grow.outputs[1]):
        return None
    lanes = follow.outputs[1]
    count, inner = len(run), [said, chances, lanes, *([words] if mapped else [])]
    more: dict[str, Op] = {}
    for op in ops[count : count + 2]:
        beside = {"take_rows": "hidden", "branch": "sees"}.get(op.kind)
        if beside is None or beside in more or op.inputs[1] != lanes:
            break
        more[beside] = op
    count += len(more)
    after = _read(lines[count:])
    if after & {v.name for v in inner}:
        return None
    wanted = {k: op for k, op in more.items() if op.outputs[0].name in after}
    kind = "_".join(["level", *(k for k in ("hidden", "sees") if k in wanted)])
    inputs: list[Operand] = [grow.inputs[0], ops[0].inputs[0]]
    outputs = [*grow.outputs, follow.outputs[0], follow.outputs[2]]
    if "hidden" in wanted:
        inputs.append(wanted["hidden"].inputs[0])
        outputs += wanted["hidden"].outputs
    if "sees" in wanted:
        inputs += [wanted["sees"].inputs[0], wanted["sees"].inputs[2]]
        outputs += wanted["sees"].outputs
    made = Op(f"{kind}_mapped" if mapped else kind, tuple(inputs), tuple(outputs))
    return _Made(_like(lines, made), count)


def _chosen(lines: Sequence[Line]) -> _Made | None:
    """The tree that is verified, with what its forward takes."""
    run = _run(lines, "select_tree", "window", "tree_arrays")
    if run is None:
        return None
    select, window, arrays = run
    guesses, parents = select.outputs
    if window.inputs[1] != guesses or arrays.inputs != (parents,):
        return None
    outputs = (*select.outputs, *window.outputs, *arrays.outputs)
    made = Op("choose_tree", (*select.inputs, window.inputs[0]), outputs)
    return _Made(_like(lines, made), 3)


def _run(lines: Sequence[Line], *kinds: str) -> tuple[Op, ...] | None:
    """The ops of the first lines, where they are of these kinds."""
    ops = _ops(lines[: len(kinds)])
    return tuple(ops) if [op.kind for op in ops] == list(kinds) else None


def _ops(lines: Sequence[Line]) -> list[Op]:
    """The ops that the lines begin with."""
    out = []
    for line in lines[:6]:
        if not isinstance(line, Launch):
            break
        out.append(line.op)
    return out


def _like(lines: Sequence[Line], op: Op) -> Launch:
    """An op in the place of the first lines; a draft's table is the draft's."""
    models = [line.model for line in lines[:6] if isinstance(line, Launch) and line.model]
    return Launch(op, models[0] if models else "")


def _read(lines: Iterable[Line]) -> set[str]:
    """What is read, by name."""
    nodes = (line.op if isinstance(line, Launch) else line for line in lines)
    return {o.name for node in nodes for o in operands(node) if isinstance(o, Value)}


def operands(node: Node) -> Iterator[Operand]:
    """What a node reads, the members of lists among it."""
    for operand in reads(node):
        if isinstance(operand, Listed):
            yield from operand.values
        else:
            yield operand
