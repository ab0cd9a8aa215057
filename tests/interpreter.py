"""A plain interpreter of step graphs: ops by name on tensors, no text, no emission."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specflow import kernels
from specflow.graph import (
    Buffer,
    Constant,
    Fused,
    Node,
    Op,
    Operand,
    Repeat,
    StepGraph,
    Store,
    Value,
)

SHAPES: dict[str, Callable[..., Any]] = {
    "first": lambda x: x[:, 0],
    "few": lambda x, n: x[:, : n - 1],
    "hold": lambda x: x.clone(),
    "window": lambda a, b: torch.cat([a[:, None], b], 1),
    "known_window": lambda a, b: torch.cat([a[:, None], b.clamp(min=0)], 1),
    "pair": lambda a, b: torch.stack([a, b], 1),
    "column": lambda x: x[:, None],
    "stack": lambda xs: torch.stack(xs, 1),
    "read": lambda x: x,
    "spread": lambda x, n: x[:, None].expand(-1, n, -1),
    "standing": lambda x, n: x + n - 1,
    "beyond": lambda x: x + 1,
    "back": lambda x, n: x - n,
    "after_recent": lambda a, b: torch.cat([a, b], 1),
    "before": lambda x: x - 1,
    "after": lambda x, n: x + n,
    "pick_at": lambda law, coins, i: kernels.pick(law, coins[:, i]),
    "pick_one": lambda law, coins: kernels.pick(law[:, 0], coins[:, 0]),
    "pick_all": kernels.pick,
    "later": lambda x: x[:, 1:],
    "corrected": lambda base, i, bias: base[:, i] + bias,
}
# What a model is asked about one row of a block: the row's states instead of the block's.
OF_A_ROW: dict[str, Callable[..., Any]] = {
    "markov": lambda model, last, hidden, i: model.markov(last, hidden[:, i]),
    "markov_memory": lambda model, last, hidden, i, memory: model.markov_memory(
        last, hidden[:, i], memory
    ),
}


def interpret(
    graph: StepGraph, variant: str, state: dict[str, Tensor], models: dict[str, Any], **given: int
) -> None:
    """Run a variant's phases on a state, in place; `given` is what the host decides."""
    known: dict[str, Any] = dict(given)
    chosen = next(v for v in graph.variants if v.name == variant)
    for phase in map(graph.phase, chosen.phases):
        local = {v.name: known[v.name] for v in phase.inputs}
        for node in phase.nodes:
            _run(node, local, state, models.get(phase.model))
        known |= {v.name: local[v.name] for v in phase.outputs}


def _run(node: Node, local: dict[str, Any], state: dict[str, Tensor], model: Any) -> None:
    def value(operand: Operand) -> Any:
        if isinstance(operand, Value):
            return local[operand.name]
        if isinstance(operand, Buffer):
            return state[operand.name]
        return operand.value if isinstance(operand, Constant) else operand

    if isinstance(node, Op):
        function = (
            (partial(OF_A_ROW[node.kind], model) if node.kind in OF_A_ROW else None)
            or SHAPES.get(node.kind)
            or (getattr(kernels, node.kind) if node.kind in kernels.__all__ else None)
            or getattr(model, node.kind)
        )
        results = function(*map(value, node.inputs))
        results = results if len(node.outputs) > 1 else (results,)
        local.update(zip((v.name for v in node.outputs), results, strict=False))
    elif isinstance(node, Store):
        _store(state[node.buffer.name], value(node.value), node.mode)
    elif isinstance(node, Fused):
        for inner in node.body:
            _run(inner, local, state, model)
    elif isinstance(node, Repeat):
        _loop(node, local, state, model)


def _store(buffer: Tensor, new: Any, mode: str) -> None:
    if mode == "add":
        buffer.add_(new)
    elif isinstance(new, int):
        buffer.fill_(new)
    else:
        buffer.copy_(new)


def _loop(node: Repeat, local: dict[str, Any], state: dict[str, Tensor], model: Any) -> None:
    for carry in node.carries:
        local[carry.collected] = [] if carry.fresh else [local[carry.start.name]]
    for turn in range(node.first, node.times.value):
        local[node.index] = turn
        for inner in node.body:
            _run(inner, local, state, model)
        for carry in node.carries:
            local[carry.name] = local[carry.next.name]
            local[carry.collected].append(local[carry.name])
