"""A step module as something to launch: called, compiled, or captured as CUDA graphs."""

from __future__ import annotations

from functools import partial
from types import ModuleType

from specflow.capture_graph import GraphStep
from specflow.captured import (
    CapturedStep,
    CompiledStep,
    EagerStep,
    Key,
    Reads,
    Results,
    Told,
    buckets,
    buffers,
    copies,
    put_back,
)
from specflow.models.drafters import Drafter
from specflow.models.lm import LanguageModel
from specflow.models.ragged import BatchPlanner
from specflow.pools import KVPool

__all__ = [
    "CapturedStep",
    "CompiledStep",
    "EagerStep",
    "GraphStep",
    "Key",
    "Reads",
    "Results",
    "Told",
    "buckets",
    "buffers",
    "capture",
    "copies",
    "put_back",
]


def capture(
    module: ModuleType,
    target: LanguageModel,
    pool: KVPool,
    drafter: Drafter,
    planner: BatchPlanner | None = None,
    *,
    graph: bool = False,
    compiled: bool = False,
    by_length: bool = False,
) -> CapturedStep:
    """Make a module's steps ready to launch: as they are, compiled, or as CUDA graphs of either.

    by_length  attention reads rows as far as they are long (`specflow.backends`)
    """
    if graph:
        kind: type[EagerStep] | partial[GraphStep] = partial(GraphStep, inductor=compiled)
    else:
        kind = CompiledStep if compiled else EagerStep
    return kind(module, target, pool, drafter, planner, by_length=by_length)
