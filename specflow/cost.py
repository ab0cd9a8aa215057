"""What a step costs by its graph and the sizes of its models: bytes, FLOPs, memory.

A step is counted from the graph that the recipe lowers to, so whatever compiles is counted. Weights
and KV are counted, activations are not: they stay small beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from specflow.config_sizes import Attention, Sizes, Unknown
from specflow.formats import TAPS
from specflow.graph import Op, Repeat, StepGraph, Variant
from specflow.graph.device import launched
from specflow.graph.ir import Buffer, Shape, Value
from specflow.graph.ops import OPS
from specflow.lower import lower
from specflow.memory import BYTES, footprint, sizes_of
from specflow.recipe import ResolvedRecipe
from specflow.stages.base import NARROW
from specflow.stages.growing import adapts


@dataclass(frozen=True)
class Pass:
    """What one op of the domain `model` passes its rows through.

    body    of its network: all layers, or one of those that each draft step has of its own
    head    the head, for as many rows as there are logits
    entry   what reads the target's hidden states, where it has to be passed
    markov  the head that tells a guess the one before
    inject  the projections to keys and values alone
    """

    body: str = ""
    head: bool = False
    entry: str = ""
    markov: bool = False
    inject: bool = False


PACKED = "verify_packed_taps"  # as many positions as a plan has room for, at least one a request
WHOLE = Pass("all", head=True)
STEP = Pass("all", head=True, entry="unless carried")  # a step on the state that a step handed on
ENTERED = Pass("all", head=True, entry="always")
PASSES: dict[str, Pass] = {
    "verify": WHOLE,
    "verify_tree": WHOLE,
    "verify_hidden": WHOLE,
    "verify_taps": WHOLE,
    "verify_tree_hidden": WHOLE,
    "verify_tree_taps": WHOLE,
    "verify_packed_taps": WHOLE,
    "decode": WHOLE,
    "grow": WHOLE,
    "extend": WHOLE,
    "decode_hidden": STEP,
    "grow_hidden": STEP,
    "grow_frozen": STEP,
    "extend_hidden": ENTERED,
    "extend_layer": Pass("one", head=True, entry="always"),
    "denoise": Pass("all"),
    "score": Pass(head=True),
    "markov": Pass(markov=True),
    "markov_memory": Pass(markov=True),
    "no_memory": Pass(),
    "trust": Pass(),
    "inject": Pass(entry="always", inject=True),
}


@dataclass(frozen=True)
class Forward:
    """An op of a step that asks a model, so many times a step.

    model  target or draft
    rows   tokens passed through its body, over the whole batch
    outs   rows that logits are asked for
    """

    model: str
    kind: str
    times: int
    rows: int
    outs: int

    @property
    def whole(self) -> bool:
        """Whether layers are passed, or only a part beside them."""
        return bool(PASSES[self.kind].body)


@dataclass(frozen=True)
class Load:
    """What a forward moves and computes; `weights` and `kv` are bytes."""

    weights: float
    kv: float
    flops: float

    @property
    def bytes(self) -> float:
        """All that is read."""
        return self.weights + self.kv


@dataclass(frozen=True)
class Captured:
    """A captured step of a recipe: its name, the positions it verifies of a request, its forwards.

    fewest  of a step that verifies as many positions as a plan has room for: it has room for one
    """

    name: str
    width: int
    forwards: tuple[Forward, ...]
    fewest: bool = False


@dataclass(frozen=True)
class StepCost:
    """What a step of a recipe costs; None is not known, and `unknown` says why.

    variant             the captured step that is counted: the widest, or where adaptation starts
    width               positions that it verifies of a request
    draft_forwards      through layers of the draft, what its commit extends included
    verified_positions  fewest and most of a request, whatever is launched
    launches            kernels outside the forwards
    weight_bytes        of target and draft in memory
    kv_bytes_a_token    that target and draft keep of a position
    draft_kv_bytes      the draft's share of that
    step_bytes          weights and KV that one step reads, `context` tokens into every request
    step_flops          of one step
    memory_bytes        weights, KV and logits of the whole batch
    others              the other steps that a launch may take, widest first
    """

    variant: str
    width: int
    draft_forwards: int
    verified_positions: tuple[int, int]
    launches: int
    batch: int
    context: int
    forwards: tuple[Forward, ...]
    weight_bytes: int | None
    kv_bytes_a_token: int | None
    draft_kv_bytes: int | None
    step_bytes: int | None
    step_flops: int | None
    memory_bytes: int | None
    others: tuple[Captured, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Networks:
    """The models of a recipe; `draft` is None where no network drafts.

    carried  a draft step hands on a state that does not enter again as the target's does
    """

    target: Sizes | Unknown
    draft: Sizes | Unknown | None
    width: int
    carried: bool

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """Why some number is not known."""
        found = (each.reason for each in (self.target, self.draft) if isinstance(each, Unknown))
        return tuple(dict.fromkeys(found))

    def of(self, model: str) -> Sizes | None:
        """The sizes of one of them, where they are known."""
        found = self.target if model == "target" else self.draft
        return found if isinstance(found, Sizes) else None


def networks(recipe: ResolvedRecipe) -> Networks:
    """The sizes of the models of a recipe."""
    carried = recipe.facts.net.reads == TAPS
    return Networks(*sizes_of(recipe), BYTES[recipe.run.dtype], carried)


def step_cost(recipe: ResolvedRecipe, *, context: int | None = None) -> StepCost:
    """What a step costs, `context` tokens into every request: half of the longest unless said."""
    graph = lower(recipe)
    variant = main_variant(graph, recipe)
    batch = recipe.run.batch_size
    at = recipe.run.max_length // 2 if context is None else context
    asked = merged(forwards(graph, variant, batch))
    models = networks(recipe)
    loads = forward_loads(asked, models, batch, at)
    summed = None if loads is None else [*zip((each.times for each in asked), loads, strict=True)]
    memory = footprint(recipe)
    return StepCost(
        variant=variant.name,
        width=variant.width,
        draft_forwards=sum(f.times for f in asked if f.model == "draft" and f.whole),
        verified_positions=positions_of(graph, asked),
        launches=launched(graph, variant)[1],
        batch=batch,
        context=at,
        forwards=asked,
        weight_bytes=memory.weights,
        kv_bytes_a_token=memory.kv_a_token,
        draft_kv_bytes=memory.draft_kv_a_token,
        step_bytes=None if summed is None else round(sum(n * each.bytes for n, each in summed)),
        step_flops=None if summed is None else round(sum(n * each.flops for n, each in summed)),
        memory_bytes=memory.total(batch),
        others=tuple(others(graph, variant, batch)),
        unknown=tuple(dict.fromkeys((*models.unknown, *memory.unknown))),
    )


def main_variant(graph: StepGraph, recipe: ResolvedRecipe) -> Variant:
    """The widest captured step; where acceptance picks among them, the one it starts with."""
    if adapts(recipe):
        name = f"steps_{recipe['draft.num_steps']}"
        start = next((v for v in graph.variants if v.name == name), None)
        if start is not None:
            return start
    return max(graph.variants, key=lambda v: v.width)


def others(graph: StepGraph, main: Variant, batch: int) -> Iterator[Captured]:
    """What may be launched besides the step that is counted, the widest first."""
    for each in sorted(graph.variants, key=lambda v: -v.width):
        asked = merged(forwards(graph, each, batch))
        if each is not main:
            yield Captured(each.name, each.width, asked)
        if any(f.kind == PACKED for f in asked):
            few = [replace(f, rows=batch, outs=batch) if f.kind == PACKED else f for f in asked]
            yield Captured(each.name, 1, tuple(few), fewest=True)


def positions_of(graph: StepGraph, asked: tuple[Forward, ...]) -> tuple[int, int]:
    """Fewest and most positions that a step verifies of a request."""
    packed = any(f.kind == PACKED for f in asked)
    widths = [v.width for v in graph.variants]
    return (1 if packed else min(widths)), max(widths)


def forwards(graph: StepGraph, variant: Variant, batch: int) -> Iterator[Forward]:
    """Every op of a captured step that asks a model, in order."""
    extents = _extents(graph, batch)
    for phase in map(graph.phase, variant.phases):
        for node in phase.nodes:
            turns = node.times.count - node.first if isinstance(node, Repeat) else 1
            for op in node.body if isinstance(node, Repeat) else (node,):
                if isinstance(op, Op) and OPS[op.kind].domain == "model":
                    yield _forward(op, turns, phase.model, extents)


def merged(asked: Iterable[Forward]) -> tuple[Forward, ...]:
    """Forwards that differ in nothing as one, which happens several times."""
    times: dict[Forward, int] = {}
    for each in asked:
        alike = replace(each, times=1)
        times[alike] = times.get(alike, 0) + each.times
    return tuple(replace(each, times=count) for each, count in times.items() if count)


def _forward(op: Op, times: int, model: str, extents: dict[str, int]) -> Forward:
    """An op with the rows it passes through layers, and the rows it asks logits for."""
    spec, rows, outs = PASSES[op.kind], 0, 0
    if spec.body or spec.inject:
        taken = op.inputs[0].shape if isinstance(op.inputs[0], Value | Buffer) else ()
        rows = _rows(taken[:-1] if spec.inject else taken, extents)
    if spec.head or spec.markov:
        outs = _rows(op.outputs[0].shape[:-1], extents)
    return Forward(model, op.kind, times, rows, outs)


def _rows(shape: Shape, extents: dict[str, int]) -> int:
    return math.prod(_extent(dim, extents) for dim in shape)


def _extents(graph: StepGraph, batch: int) -> dict[str, int]:
    """The letters of shapes as numbers."""
    counts = {c.name: c.count for c in graph.constants if isinstance(c.value, int)}
    width = counts.get("NUM_DRAFT_TOKENS", 1)
    narrow = counts.get(NARROW, width)
    return {
        "B": batch,
        "W": width,
        "K": width - 1,
        "w": narrow,
        "k": narrow - 1,
        "T": counts.get("TOPK", 1),
        "Q": counts.get("BLOCK_ROWS", 1),
        "R": counts.get("NUM_RECENT", 0),
    }


def _extent(dim: str | int, extents: dict[str, int]) -> int:
    """One extent: a number, a letter, a letter with the number of its steps, or a sum of those."""
    if isinstance(dim, int):
        return dim
    total = 0
    for part in dim.replace(" ", "").split("+"):
        if part.isdecimal():
            total += int(part)
        elif part[1:].isdecimal():  # K3 and W3: of the captured step with three guesses
            total += int(part[1:]) + (part[0] == "W")
        else:
            total += extents[part]
    return total


def forward_loads(
    asked: tuple[Forward, ...], models: Networks, batch: int, context: int
) -> tuple[Load, ...] | None:
    """What each forward reads and computes; None where the sizes of some model are not known."""
    loads = [load(each, models, batch, context) for each in asked]
    known = tuple(each for each in loads if each is not None)
    return known if len(known) == len(loads) else None


def load(forward: Forward, models: Networks, batch: int, context: int) -> Load | None:
    """What a forward reads and computes; None where the sizes of its model are not known."""
    sizes = models.of(forward.model)
    if sizes is None:
        return None
    spec, width, rows = PASSES[forward.kind], models.width, forward.rows
    entered = spec.entry == "always" or (spec.entry == "unless carried" and not models.carried)
    weights, work, layers = 0.0, 0.0, _layers(sizes, spec)
    if spec.body:
        share = 1 / sizes.steps if spec.body == "one" else 1
        weights += share * (sizes.body + sizes.routed * sizes.touched(rows))
        work += 2 * rows * share * sizes.active
    if entered:
        share = 1 / sizes.steps
        weights += share * sizes.entry
        work += 2 * rows * share * sizes.entry
    if spec.inject:
        into = sizes.kept * sizes.hidden
        weights, work = weights + into, work + 2 * rows * into
    if spec.head:
        weights, work = weights + sizes.head, work + 2 * forward.outs * sizes.head
    if spec.markov:
        weights, work = weights + sizes.markov, work + 2 * forward.outs * sizes.markov
    kv = sum(each.reads * each.sees(context) for each in layers) * batch
    pairs = sum(each.work * each.sees(context) for each in layers)
    return Load(weights * width, kv * width, work + pairs * rows)


def _layers(sizes: Sizes, spec: Pass) -> tuple[Attention, ...]:
    """The layers whose attention a forward runs."""
    if not spec.body:
        return ()
    return sizes.layers[: len(sizes.layers) // sizes.steps] if spec.body == "one" else sizes.layers
