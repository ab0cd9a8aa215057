"""A tree's growth as a device runs it: a level is one launch, and so is the choice of the tree.

What a level's branches say, the best of it, and where these go on, are looked at by one program a
request at the end, so that only forwards lie between two launches. Ops whose results something else
reads stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specflow.graph.device_runs import Made, read, replaced, run_of
from specflow.graph.ir import Launch, Op, Operand, Single


def grown(lines: Iterable[Single]) -> tuple[Single, ...]:
    """The lines with the runs of ops that grow a tree as one op each."""
    return replaced(lines, _planted, _level, _chosen)


def _planted(lines: Sequence[Single]) -> Made | None:
    """The branches of level 0: which they are, and whom they see."""
    run = run_of(lines, "ranks", "roots")
    if run is None or run[0].inputs[0] != run[1].inputs[0]:
        return None
    return Made(Op("plant", run[1].inputs, (*run[0].outputs, *run[1].outputs)), 2)


def _level(lines: Sequence[Single]) -> Made | None:
    """From what branches say to the branches of the next level."""
    ops = _ops(lines)
    if len(ops) < 3 or ops[0].kind != "likeliest" or len(ops[0].outputs[0].shape) != 3:
        return None
    said, chances = ops[0].outputs
    mapped = ops[1].kind == "target_ids"
    words = ops[1].outputs[0] if mapped else said
    kinds = ("likeliest", *(["target_ids"] if mapped else []), "grow_tree", "follow")
    run = run_of(lines, *kinds)
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
    after = read(lines[count:])
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
    kind = f"{kind}_mapped" if mapped else kind
    return Made(Op(kind, tuple(inputs), tuple(outputs)), count)


def _chosen(lines: Sequence[Single]) -> Made | None:
    """The tree that is verified, with what its forward takes."""
    run = run_of(lines, "select_tree", "window", "tree_arrays")
    if run is None:
        return None
    select, window, arrays = run
    guesses, parents = select.outputs
    if window.inputs[1] != guesses or arrays.inputs != (parents,):
        return None
    outputs = (*select.outputs, *window.outputs, *arrays.outputs)
    return Made(Op("choose_tree", (*select.inputs, window.inputs[0]), outputs), 3)


def _ops(lines: Sequence[Single]) -> list[Op]:
    """The ops that the lines begin with."""
    out = []
    for line in lines[:6]:
        if not isinstance(line, Launch):
            break
        out.append(line.op)
    return out
