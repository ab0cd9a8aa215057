"""Steps as CUDA graphs: each key captured once, and replayed, one launch a step.

What is captured when: a session's keys, every bucket of rows with every variant, are captured
before its first request, the largest first, so that no step waits for one and the smaller ones find
room in the memory that all keys share. Two kinds come later, at the first step that needs them:
with attention that spans a fixed extent (`sdpa`), the extents beyond the first; with a plan,
batches that are not full. A warm-up or a capture in the middle of a run leaves state as it was, and
of the KV it writes what the step behind it writes again.

When the host reads what a step said, so that the device has always something to do:

    no host phase      LATE: step n is read while step n + 1 runs, and a request that ended in it is
                       found out then; its part of step n + 1 is thrown away
    a plan, 2 behind   LATE: the plan for step n goes by what step n - 2 said, which has been read
    a host draft       NEXT: the look-up for step n + 1 needs the tokens of step n, and the trie has
                       to hold them (serial.md 4.1): they are read, counted, inserted, looked up and
                       sent, and step n + 1 launched; texts, files and whoever looks on come behind
    a plan, 1 behind   NEXT
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specflow.captured import (
    EagerStep,
    Key,
    Reads,
    Results,
    Told,
    buffers,
    compiled,
    copies,
    put_back,
)
from specflow.errors import RuntimeFault
from specflow.faults import asked_and_free, compile_faults, out_of_memory

WARM_UPS = 2  # calls before a capture: libraries set themselves up in the first
SAID = ("accept_len", "output_tokens", "verify_len")  # what a session reads of a step
LEARNT = ("trust",)  # what a plan reads beside it
WRITTEN = ("guesses", "parents", "survival")  # what a host phase fills before a step


@dataclass(frozen=True)
class Slot:
    """One turn of the ring: host memory that the device reads and writes by itself.

    said     what a step tells, by name, all rows
    written  what the host fills before it
    done     recorded behind the copies
    """

    said: dict[str, Tensor]
    written: dict[str, Tensor]
    done: Any
    views: dict[tuple[str, int], Any] = field(default_factory=dict)


class GraphStep(EagerStep):
    """Each key captured once as a CUDA graph, and replayed.

    A batch runs in the next larger bucket of rows (`EagerStep.idle`). What the host and the device
    tell one another goes through a ring of two: a turn is written again when the step two before it
    has been read, which is when all that was copied for it is done.

    inductor  what is captured is compiled first
    """

    whole = True

    def __init__(self, *parts: Any, inductor: bool = False, **more: Any) -> None:
        self.inductor = self.spelled = inductor
        super().__init__(*parts, **more)
        self.reads = self._reading()
        self._memory = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._ring = [self._slot() for _ in range(2)]
        self._turn = 0
        self._larger: dict[Key, Key] = {}  # what runs in place of a key that found no room

    def _reading(self) -> Reads:
        behind = 0 if self.planner is None else self.planner.lag
        by_plan = behind >= 2 and self.host.keys() <= {"HOST_PLAN", "HOST_LEARN"}
        return Reads.LATE if by_plan or not self.host else Reads.NEXT

    def _slot(self) -> Slot:
        plans = self.planner is not None
        said = self._pinned((*SAID, *LEARNT) if plans else SAID)
        writes = plans or "HOST_DRAFT" in self.host
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return Slot(said, self._pinned(WRITTEN) if writes else {}, done)

    def _pinned(self, wanted: tuple[str, ...]) -> dict[str, Tensor]:
        """Host memory that the device copies to and from without the host waiting."""
        there = buffers(self.state)
        return {
            name: torch.empty(there[name].shape, dtype=there[name].dtype, pin_memory=True)
            for name in wanted
            if name in there
        }

    def first(self, needed: int) -> Iterator[Key]:
        """Every bucket and variant, the largest first; of a plan all budgets of a full batch."""
        for variant in self.widths:
            if self.planner is not None:
                rows = self.pool.slots
                for budget in sorted(self.planner.budgets(rows), reverse=True):
                    yield self.key(rows, variant, needed, budget)
            else:
                for rows in reversed(self.buckets):
                    yield self.key(rows, variant, needed)

    # -- the host's part ---------------------------------------------------------------------------

    def draft(self, rows: int) -> str:
        """As the eager step's; what the host filled is on its way when it returns."""
        variant = super().draft(rows)
        if "HOST_DRAFT" in self.host:
            self._send(rows)
        return variant

    def plan(self, rows: int) -> int:
        """Likewise."""
        budget = super().plan(rows)
        if budget:
            self._send(rows)
        return budget

    def desk(self, rows: int) -> Any:
        """The state with pinned memory for what the host writes."""
        return self._beside("written", rows)

    def _send(self, rows: int) -> None:
        for name, pinned in self._ring[self._turn].written.items():
            getattr(self.state, name)[:rows].copy_(pinned[:rows], non_blocking=True)

    def _beside(self, kind: str, rows: int) -> Any:
        """The state of the first `rows` rows, some of it in a turn's pinned memory."""
        slot = self._ring[self._turn]
        if (kind, rows) not in slot.views:
            held = {name: pinned[:rows] for name, pinned in getattr(slot, kind).items()}
            slot.views[kind, rows] = replace(self.view(rows), **held)
        return slot.views[kind, rows]

    # -- the device's part -------------------------------------------------------------------------

    def results(self, rows: int) -> Results:
        """Copies on their way to the host; whoever reads them waits for them, and nothing else."""
        slot, state = self._ring[self._turn], self._beside("said", rows)
        for name in slot.said:
            getattr(state, name).copy_(getattr(self.state, name)[:rows], non_blocking=True)
        slot.done.record()
        self._turn = 1 - self._turn
        return Told(state, slot.done.synchronize)

    def ready(self, key: Key) -> Key:
        """As the eager step's; where there is no room for a graph of it, the next larger one."""
        try:
            return super().ready(self._larger.get(key, key))
        except NoRoom:
            fits = [k for k in self._bound if _covers(k, key)]
            if not fits:
                raise
            self._larger[key] = min(fits, key=lambda k: (k.rows, k.extent))
            return self._larger[key]

    def bind(self, key: Key) -> Callable[[], None]:
        """Warm up beside the step's own stream, put the state back, and capture."""
        called = super().bind(key)
        if self.inductor:
            called = compiled(called, f"step_{len(self._bound)}")
        kept = copies(self.state)
        graph = torch.cuda.CUDAGraph()
        try:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                for _ in range(WARM_UPS):
                    with compile_faults() if self.inductor else nullcontext():
                        called()
                    put_back(self.state, kept)
            torch.cuda.current_stream().wait_stream(self._side)
            with torch.cuda.graph(graph, pool=self._memory, stream=self._side):
                called()
            put_back(self.state, kept)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            torch.cuda.current_stream().wait_stream(self._side)
            put_back(self.state, kept)
            raise NoRoom(
                f"a captured step of {key.rows} rows and {key.extent} positions does not fit: "
                f"{asked_and_free(error)}; lower `run.batch_size` or `run.max_length`"
            ) from error
        replay: Callable[[], None] = graph.replay
        return replay


class NoRoom(RuntimeFault):
    """There was not enough memory for a capture."""


def _covers(made: Key, asked: Key) -> bool:
    """Whether one captured step can run what is asked of another."""
    same = (made.variant, made.budget) == (asked.variant, asked.budget)
    larger = made.rows >= asked.rows and made.extent >= asked.extent
    # A plan is for the rows it was made for.
    return same and larger and (not asked.budget or made.rows == asked.rows)
