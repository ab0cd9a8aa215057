"""A step module bound to its models and its state: what it is keyed by, and what it says.

A step has no host sync, no data-dependent shape, and state at fixed addresses; what changes from
step to step by the host's decision is the key. Here a key is called as it is, or compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from enum import Enum
from time import perf_counter, process_time
from types import FunctionType, ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from specflow.codegen.cache import on_device
from specflow.errors import RuntimeFault
from specflow.faults import compile_faults
from specflow.models.drafters import Drafter
from specflow.models.lm import LanguageModel
from specflow.models.ragged import BatchPlanner
from specflow.pools import KVPool

HOST_PHASES = ("HOST_DRAFT", "HOST_COMMIT", "HOST_PLAN", "HOST_LEARN")
EXTENT = 64  # positions; the key's extent grows in such steps, so that few keys are made


class Reads(Enum):
    """When the host reads what a step said.

    AT_ONCE  nothing else is launched before
    NEXT     before the next launch, which a host phase makes ready; all else is done behind it
    LATE     behind the next launch: the device never waits for the host
    """

    AT_ONCE = "at once"
    NEXT = "before the next launch"
    LATE = "behind the next launch"


@dataclass(frozen=True)
class Key:
    """What a captured step is specialised to.

    rows     requests in the batch, those of a bucket that nobody has included
    variant  which of the module's steps
    extent   positions of the KV that attention spans; one for all where it reads rows by length
    budget   positions that the batch verifies, where a plan says so; else 0
    """

    rows: int
    variant: str
    extent: int
    budget: int = 0


class Results(Protocol):
    """What a step tells the host, once it is there."""

    @property
    def state(self) -> Any:
        """All that it tells, as state of the host's; there once its lengths are."""

    def wait(self) -> None:
        """Wait until it is there, and all that was sent for it has arrived."""

    def lengths(self) -> list[int]:
        """Tokens that each row gained."""

    def tokens(self) -> list[list[int]]:
        """The tokens themselves, then -1."""

    def judged(self) -> list[int] | None:
        """Positions that were verified, where a plan decides it."""


@dataclass(frozen=True)
class Told:
    """Results as a state of the host's, and what to wait for before it is read."""

    state: Any
    ready: Callable[[], None]

    def wait(self) -> None:
        """Wait until it is there, and all that was sent for it has arrived."""
        self.ready()

    def lengths(self) -> list[int]:
        """Tokens that each row gained."""
        self.ready()
        return [int(n) for n in self.state.accept_len.tolist()]

    def tokens(self) -> list[list[int]]:
        """The tokens themselves, then -1."""
        self.ready()
        return [list(map(int, row)) for row in self.state.output_tokens.tolist()]

    def judged(self) -> list[int] | None:
        """Positions that were verified, where a plan decides it."""
        self.ready()
        planned = getattr(self.state, "verify_len", None)
        return None if planned is None else [int(n) for n in planned.tolist()]


@dataclass
class Making:
    """What it took to compile or capture keys in the middle of a run: no part of a run's time."""

    keys: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count one key, whether it can be made or not."""
        began, cpu = perf_counter(), process_time()
        try:
            yield
        finally:
            self.keys += 1
            self.seconds += perf_counter() - began
            self.cpu += process_time() - cpu

    def forget(self) -> None:
        """Count from here on."""
        self.keys, self.seconds, self.cpu = 0, 0.0, 0.0


class CapturedStep(Protocol):
    """One step on fixed buffers.

    widths  positions that each variant verifies
    reads   when the host reads what it said
    whole   a step is one launch, whose phases no clock sees
    made    what keys took that were made since `prepare`
    """

    state: Any
    widths: dict[str, int]
    reads: Reads
    whole: bool
    made: Making

    def prepare(self, needed: int) -> None:
        """Make ready what a session begins with; a request needs so many positions at first."""

    def draft(self, rows: int) -> str:
        """Run the host draft, if there is one; the variant to launch."""

    def plan(self, rows: int) -> int:
        """How many positions the batch may verify, where a plan says so; else 0."""

    def launch(self, rows: int, variant: str, needed: int, budget: int = 0) -> None:
        """Run one step for the first `rows` rows; none reaches beyond `needed` positions."""

    def results(self, rows: int) -> Results:
        """What the last launch says of its first `rows` rows, when it is asked for."""

    def learn(self, told: Results) -> None:
        """Tell the plan what a step found, once its lengths were read."""

    def commit(self, gained: list[list[int]]) -> None:
        """Run the host commit, if there is one."""


class EagerStep:
    """The module's own functions, called as they are.

    by_length  attention reads a row as far as it is long: one extent does for all
    """

    reads = Reads.AT_ONCE
    whole = False
    spelled = False  # run the torch spelling on a device too

    def __init__(
        self,
        module: ModuleType,
        target: LanguageModel,
        pool: KVPool,
        drafter: Drafter,
        planner: BatchPlanner | None,
        *,
        by_length: bool = False,
    ) -> None:
        self.module, self.target, self.pool, self.drafter = module, target, pool, drafter
        self.planner, self.by_length = planner, by_length
        own = target.device.type == "cuda" and not self.spelled
        self.runs = on_device(module) if own else module
        made = self.runs.Device if own else module.State
        self.state: Any = made.new(pool.slots, str(target.device))
        self.widths: dict[str, int] = module.WIDTHS
        named = {name: getattr(module, name, None) for name in HOST_PHASES}  # or None, or not there
        self.host = {name: phase for name, phase in named.items() if phase is not None}
        self.buckets = buckets(pool.slots)
        self.made = Making()
        self._bound: dict[Key, Callable[[], None]] = {}
        self._views: dict[int, Any] = {}

    def prepare(self, needed: int) -> None:
        """Run what a session begins with once, on rows that nobody has; the state as new after.

        So page faults, first allocations, compilations and captures are not part of a run's time.
        One token is taken as committed: a draft that catches up begins one position before it.
        """
        for key in self.first(needed):
            self.state.seq_lens.fill_(1)
            self._bound[self.ready(key)]()
        for tensor in buffers(self.state).values():
            tensor.zero_()
        self.made.forget()

    def first(self, needed: int) -> Iterator[Key]:
        """Every variant on row 0; where a plan is made, with room for all positions."""
        for variant, width in self.widths.items():
            budget = 0 if self.planner is None else width
            yield self.key(1, variant, needed, budget)

    # -- the host's part ---------------------------------------------------------------------------

    def draft(self, rows: int) -> str:
        """The variant that the host draft names; without one there is a single variant."""
        if "HOST_DRAFT" not in self.host:
            return str(next(iter(self.module.VARIANTS)))
        return str(self.host["HOST_DRAFT"](self.drafter, self.desk(rows)))

    def plan(self, rows: int) -> int:
        """Ask the host plan."""
        if "HOST_PLAN" not in self.host:
            return 0
        return int(self.host["HOST_PLAN"](self.planner, self.desk(rows)))

    def learn(self, told: Results) -> None:
        """Hand what a step said to the host plan."""
        if "HOST_LEARN" in self.host:
            self.host["HOST_LEARN"](self.planner, told.state)

    def commit(self, gained: list[list[int]]) -> None:
        """Hand the tokens gained to the host commit."""
        if "HOST_COMMIT" in self.host:
            self.host["HOST_COMMIT"](self.drafter, gained)

    def desk(self, rows: int) -> Any:
        """The state that the host writes to before a launch: here the step's own."""
        return self.view(rows)

    # -- the device's part -------------------------------------------------------------------------

    def launch(self, rows: int, variant: str, needed: int, budget: int = 0) -> None:
        """Run one step."""
        key = self.ready(self.key(rows, variant, needed, budget))  # before rows are set back
        self.idle(rows, key.rows)
        with self.target.adapter.backend.launching(key.rows, needed):
            self._bound[key]()

    def key(self, rows: int, variant: str, needed: int, budget: int = 0) -> Key:
        """What a launch runs as."""
        return Key(self.bucket(rows, budget), variant, self.extent(needed), budget)

    def bucket(self, rows: int, budget: int) -> int:
        """The rows that a batch runs with: all it has, unless each number is a step of its own.

        A planned batch is never filled up: whoever is in it has a share of its budget.
        """
        if rows > self.pool.slots:
            raise RuntimeFault(
                f"a batch of {rows} rows is more than the {self.pool.slots} a step is made for; "
                "raise `run.batch_size`"
            )
        return next(b for b in self.buckets if b >= rows) if self.whole and not budget else rows

    def extent(self, needed: int) -> int:
        """Positions that attention spans, of which so many are needed."""
        if self.by_length:
            return self.pool.length
        steps = max(1, -(-needed // EXTENT))
        if self.whole:  # few, since each is a step of its own
            steps = 1 << (steps - 1).bit_length()
        return min(steps * EXTENT, self.pool.length)

    def idle(self, rows: int, bucket: int) -> None:
        """Set rows that fill a bucket back to their beginning: they write what nobody reads.

        Row i has slot i, and requests have the first rows, so the slots of the others are empty: a
        request that comes into one writes it anew. One token counts as committed, as in `prepare`.
        """
        if bucket > rows:
            self.state.seq_lens[rows:bucket].fill_(1)

    def ready(self, key: Key) -> Key:
        """The key whose step runs what is asked, made when it is first asked for: here the same."""
        if key not in self._bound:
            with self.made.counting() if self.whole else nullcontext():
                self._bound[key] = self.bind(key)
        return key

    def bind(self, key: Key) -> Callable[[], None]:
        """The step of a key, with its models and state in place."""
        function = self.runs.VARIANTS[key.variant]
        window, drafter = self.target.window(self.pool, key.extent), self.drafter.bind(key.extent)
        state = self.view(key.rows)
        given = (key.budget,) if key.budget else ()
        return lambda: function(window, drafter, state, *given)

    def results(self, rows: int) -> Results:
        """The state itself: nothing else is launched before it is read."""
        return Told(self.view(rows), _at_once)

    def view(self, rows: int) -> Any:
        """The state of the first `rows` rows: the same addresses."""
        if rows not in self._views:
            self._views[rows] = self.state.rows(rows)
        return self._views[rows]


def _at_once() -> None:
    """There is nothing to wait for."""


class CompiledStep(EagerStep):
    """The torch functions of the module, each key compiled whole by inductor.

    On a device too it is the torch spelling: inductor makes kernels of its own of it.

    What a session begins with is compiled before its first request; fewer rows, and extents beyond
    the first, when a step first needs them. That leaves state as it was, and of the KV it writes
    what the step behind it writes again.
    """

    whole = True
    spelled = True

    def first(self, needed: int) -> Iterator[Key]:
        """Every variant for a full batch."""
        rows = self.pool.slots
        for variant, width in self.widths.items():
            yield self.key(rows, variant, needed, 0 if self.planner is None else rows * width)

    def bind(self, key: Key) -> Callable[[], None]:
        """The step of a key, traced with no break and compiled."""
        called = compiled(super().bind(key), f"step_{len(self._bound)}")
        kept = copies(self.state)
        with compile_faults():
            called()  # the first call is what compiles
        put_back(self.state, kept)
        return called


def compiled(called: Callable[[], None], name: str) -> Callable[[], None]:
    """A function traced with no break, compiled by inductor, and called without gradients."""
    if not isinstance(called, FunctionType):
        raise TypeError(f"`{name}` is no function")
    # One cache of the tracer for each: by default all keys would share one, and fill it.
    own = FunctionType(
        called.__code__.replace(co_name=name),
        called.__globals__,
        "step",
        called.__defaults__,
        called.__closure__,
    )
    with compile_faults():  # inductor makes its folder here
        made: Callable[[], None] = torch.compile(own, fullgraph=True, dynamic=False)
    return torch.no_grad()(made)


def buckets(most: int) -> tuple[int, ...]:
    """Rows that a batch may run with: powers of two, and as many as there are."""
    powers = (1 << power for power in range(most.bit_length()))
    return (*(each for each in powers if each < most), most)


def buffers(state: Any) -> dict[str, Tensor]:
    """Every tensor of a state, by name."""
    return {f.name: getattr(state, f.name) for f in fields(state)}


def copies(state: Any) -> dict[str, Tensor]:
    """What a state holds now, for `put_back`."""
    return {name: tensor.clone() for name, tensor in buffers(state).items()}


def put_back(state: Any, kept: dict[str, Tensor]) -> None:
    """A state as it was: what was only tried leaves no mark on it."""
    for name, tensor in buffers(state).items():
        tensor.copy_(kept[name])
