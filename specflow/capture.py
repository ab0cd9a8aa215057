"""A step module as something to launch: fixed buffers, keyed by batch, variant and extent.

A step has no host sync, no data-dependent shape, and state at fixed addresses; what changes from
step to step by the host's decision is the key. On a CPU a key is called as it is, or compiled; on a
GPU it is captured once as a CUDA graph and replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import FunctionType, ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from specflow.codegen.cache import on_device
from specflow.errors import RuntimeFault
from specflow.models.drafters import Drafter
from specflow.models.lm import LanguageModel
from specflow.models.protocols import Planner
from specflow.pools import KVPool

EXTENT = 64  # positions; the key's extent grows in such steps, so that few keys are made
WARM_UPS = 2  # calls before a capture: libraries set themselves up in the first


@dataclass(frozen=True)
class Key:
    """What a captured step is specialised to.

    rows     requests in the batch
    variant  which of the module's steps
    extent   positions of the KV that attention sees
    budget   positions that the batch verifies, where a plan says so; else 0
    """

    rows: int
    variant: str
    extent: int
    budget: int = 0


class Results(Protocol):
    """What a step tells the host, once it is there."""

    def lengths(self) -> list[int]:
        """Tokens that each row gained."""

    def tokens(self) -> list[list[int]]:
        """The tokens themselves, then -1."""

    def judged(self) -> list[int] | None:
        """Positions that were verified, where a plan decides it."""


@dataclass(frozen=True)
class Told:
    """Results as tensors of the host, and what to wait for before they are read."""

    accept_len: Tensor
    output_tokens: Tensor
    verify_len: Tensor | None
    ready: Callable[[], None]

    def lengths(self) -> list[int]:
        """Tokens that each row gained."""
        self.ready()
        return [int(n) for n in self.accept_len.tolist()]

    def tokens(self) -> list[list[int]]:
        """The tokens themselves, then -1."""
        self.ready()
        return [list(map(int, row)) for row in self.output_tokens.tolist()]

    def judged(self) -> list[int] | None:
        """Positions that were verified, where a plan decides it."""
        self.ready()
        return None if self.verify_len is None else [int(n) for n in self.verify_len.tolist()]


class CapturedStep(Protocol):
    """One step on fixed buffers.

    widths  positions that each variant verifies
    late    results are read one step late: the device never waits for the host
    whole   a step is one launch, whose phases no clock sees
    """

    state: Any
    widths: dict[str, int]
    late: bool
    whole: bool

    def draft(self, rows: int) -> str:
        """Run the host draft, if there is one; the variant to launch."""

    def plan(self, rows: int) -> int:
        """How many positions the batch may verify, where a plan says so; else 0."""

    def launch(self, rows: int, variant: str, needed: int, budget: int = 0) -> None:
        """Run one step for the first `rows` rows; none reaches beyond `needed` positions."""

    def results(self, rows: int) -> Results:
        """What the last launch says of its first `rows` rows, when it is asked for."""

    def learn(self, rows: int) -> None:
        """Tell the plan what the step found, while rows are as they were."""

    def commit(self, gained: list[list[int]]) -> None:
        """Run the host commit, if there is one."""


class EagerStep:
    """The module's own functions, called as they are."""

    late = False
    whole = False

    def __init__(
        self,
        module: ModuleType,
        target: LanguageModel,
        pool: KVPool,
        drafter: Drafter,
        planner: Planner | None,
    ) -> None:
        self.module, self.target, self.pool, self.drafter = module, target, pool, drafter
        self.planner = planner
        self.runs = on_device(module) if target.device.type == "cuda" else module
        made = self.runs.Device if self.runs is not module else module.State
        self.state: Any = made.new(pool.slots, str(target.device))
        self.widths: dict[str, int] = module.WIDTHS
        self._bound: dict[Key, Callable[[], None]] = {}
        self._views: dict[int, Any] = {}

    def draft(self, rows: int) -> str:
        """The variant that the host draft names; without one there is a single variant."""
        if self.module.HOST_DRAFT is None:
            return str(next(iter(self.module.VARIANTS)))
        return str(self.module.HOST_DRAFT(self.drafter, self.view(rows)))

    def plan(self, rows: int) -> int:
        """Ask the host plan."""
        ask = getattr(self.module, "HOST_PLAN", None)
        return int(ask(self.planner, self.view(rows))) if ask is not None else 0

    def learn(self, rows: int) -> None:
        """Hand the step's state to the host plan."""
        tell = getattr(self.module, "HOST_LEARN", None)
        if tell is not None:
            tell(self.planner, self.view(rows))

    def launch(self, rows: int, variant: str, needed: int, budget: int = 0) -> None:
        """Run one step."""
        key = Key(rows, variant, self.extent(needed), budget)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self.bind(key)
        bound()

    def extent(self, needed: int) -> int:
        """Positions that attention sees, of which so many are needed."""
        return min(-(-needed // EXTENT) * EXTENT, self.pool.length)

    def commit(self, gained: list[list[int]]) -> None:
        """Hand the tokens gained to the host commit."""
        if self.module.HOST_COMMIT is not None:
            self.module.HOST_COMMIT(self.drafter, gained)

    def bind(self, key: Key) -> Callable[[], None]:
        """The step of a key, with its models and state in place."""
        function = self.runs.VARIANTS[key.variant]
        window, drafter = self.target.window(self.pool, key.extent), self.drafter.bind(key.extent)
        state = self.view(key.rows)
        given = (key.budget,) if key.budget else ()
        return lambda: function(window, drafter, state, *given)

    def results(self, rows: int) -> Results:
        """Tensors of the state itself: nothing else is launched before they are read."""
        state = self.view(rows)
        return Told(
            state.accept_len, state.output_tokens, getattr(state, "verify_len", None), _at_once
        )

    def view(self, rows: int) -> Any:
        """The state of the first `rows` rows: the same addresses."""
        if rows not in self._views:
            self._views[rows] = self.state.rows(rows)
        return self._views[rows]


def _at_once() -> None:
    """There is nothing to wait for."""


class CompiledStep(EagerStep):
    """The torch functions of the module, each key compiled whole by inductor."""

    whole = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.runs = self.module  # inductor makes kernels of its own of the torch spelling
        self.state = self.module.State.new(self.pool.slots, str(self.target.device))

    def extent(self, needed: int) -> int:
        """Few extents, since each is compiled: powers of two times the least."""
        steps = max(1, -(-needed // EXTENT))
        return min(EXTENT << (steps - 1).bit_length(), self.pool.length)

    def bind(self, key: Key) -> Callable[[], None]:
        """The step of a key, traced with no break and compiled."""
        called = super().bind(key)
        # One cache of the tracer for each key: by default all keys would share one, and fill it.
        own = FunctionType(
            called.__code__.replace(co_name=f"step_{len(self._bound)}"),
            called.__globals__,
            "step",
            called.__defaults__,
            called.__closure__,
        )
        compiled: Callable[[], None] = torch.compile(own, fullgraph=True, dynamic=False)
        return compiled


class GraphStep(EagerStep):
    """Each key captured once as a CUDA graph, and replayed: one launch a step.

    A batch runs in the next larger bucket of rows; rows beyond it belong to no request, and are set
    back to position 0 before each launch, so that what they write nobody reads. All keys share one
    pool of memory. Results leave through pinned memory and are read when the next step is on its
    way, where no host phase has to see them first.
    """

    whole = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.late = all(
            getattr(self.module, name, None) is None
            for name in ("HOST_DRAFT", "HOST_COMMIT", "HOST_PLAN", "HOST_LEARN")
        )
        self._memory = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._ring = [self._pinned() for _ in range(2)]
        self._turn = 0

    def _pinned(self) -> dict[str, Tensor]:
        """Host memory that the device writes to by itself."""
        wanted = ("accept_len", "output_tokens", "verify_len")
        found = {name: getattr(self.state, name, None) for name in wanted}
        return {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            for name, tensor in found.items()
            if tensor is not None
        }

    def launch(self, rows: int, variant: str, needed: int, budget: int = 0) -> None:
        """Replay the graph of the bucket; rows that are nobody's begin at position 0 again."""
        bucket = bucket_of(rows, self.pool.slots)
        if bucket > rows:
            self.state.seq_lens[rows:bucket].zero_()
        super().launch(bucket, variant, needed, budget)

    def results(self, rows: int) -> Results:
        """A copy on its way to the host; whoever reads it waits for it, and for nothing else."""
        kept, self._turn = self._ring[self._turn], 1 - self._turn
        for name, pinned in kept.items():
            pinned[:rows].copy_(getattr(self.state, name)[:rows], non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        planned = kept.get("verify_len")
        return Told(
            kept["accept_len"][:rows],
            kept["output_tokens"][:rows],
            None if planned is None else planned[:rows],
            done.synchronize,
        )

    def bind(self, key: Key) -> Callable[[], None]:
        """Warm up beside the step's own stream, put the state back, and capture."""
        called = super().bind(key)
        kept = {name: tensor.clone() for name, tensor in buffers(self.state).items()}
        graph = torch.cuda.CUDAGraph()
        try:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                for _ in range(WARM_UPS):
                    called()
                    self._put_back(kept)
            torch.cuda.current_stream().wait_stream(self._side)
            with torch.cuda.graph(graph, pool=self._memory, stream=self._side):
                called()
            self._put_back(kept)
        except torch.cuda.OutOfMemoryError as error:
            free, whole = torch.cuda.mem_get_info()
            raise RuntimeFault(
                f"a captured step of {key.rows} rows and {key.extent} positions does not fit: "
                f"{free / 2**30:.2f} GiB of {whole / 2**30:.2f} GiB are free; lower "
                "`run.batch_size` or `run.max_length`"
            ) from error
        replay: Callable[[], None] = graph.replay
        return replay

    def _put_back(self, kept: dict[str, Tensor]) -> None:
        """The state as it was: a warm-up and a capture leave no mark on it."""
        for name, tensor in buffers(self.state).items():
            tensor.copy_(kept[name])


def bucket_of(rows: int, most: int) -> int:
    """The rows that a batch runs with: the next power of two, or all there are."""
    return min(1 << (rows - 1).bit_length(), most)


def capture(
    module: ModuleType,
    target: LanguageModel,
    pool: KVPool,
    drafter: Drafter,
    planner: Planner | None = None,
    *,
    graph: bool = False,
    compiled: bool = False,
) -> CapturedStep:
    """Make a module's steps ready to launch: as they are, compiled, or as CUDA graphs."""
    parts = (module, target, pool, drafter, planner)
    if compiled:
        return CompiledStep(*parts)
    return GraphStep(*parts) if graph else EagerStep(*parts)


def buffers(state: Any) -> dict[str, Tensor]:
    """Every tensor of a state, by name."""
    return {f.name: getattr(state, f.name) for f in fields(state)}
