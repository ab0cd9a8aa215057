"""All that the checks and the benchmark of a GPU ask of CUDA, in one small object; its rehearsal.

`Cuda` is the device. `Rehearsal` answers the same questions on a CPU, with graphs that are the
calls made while they were captured, so that every other line runs before there is a GPU. What the
rehearsal says of time is of no meaning.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch

from specflow.capture import EagerStep, Key

Call = Callable[[], Any]
WARM_UPS = 3
COPIED = 2 << 30  # bytes of the copy that the memory's speed is measured by


@dataclass(frozen=True)
class Trace:
    """What a profiler saw: calls of the runtime by name, kernels with microseconds, copies."""

    calls: Counter[str] = field(default_factory=Counter)
    kernels: tuple[tuple[str, float], ...] = ()
    copies: int = 0

    @property
    def graphs(self) -> int:
        """Launches of a whole graph."""
        return sum(n for name, n in self.calls.items() if name.startswith("cudaGraphLaunch"))

    @property
    def singles(self) -> int:
        """Launches of one kernel, and fills of memory."""
        return sum(
            count
            for name, count in self.calls.items()
            if "LaunchKernel" in name or "LaunchCooperative" in name or "emset" in name
        )

    @classmethod
    def read(cls, file: Path) -> Trace:
        """Of a file in Chrome's format, as torch writes it."""
        events = [e for e in json.loads(file.read_text())["traceEvents"] if e.get("ph") == "X"]
        of = {kind: [e for e in events if e.get("cat") == kind] for kind in CATEGORIES}
        return cls(
            Counter(e["name"] for kind in ("cuda_runtime", "cuda_driver") for e in of[kind]),
            tuple((e["name"], float(e["dur"])) for e in of["kernel"]),
            len(of["gpu_memcpy"]),
        )


CATEGORIES = ("cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy")


class Clock(Protocol):
    """Points of what a device does, and the time between them."""

    def mark(self) -> Any:
        """A point."""

    def between(self, marks: list[Any]) -> list[float]:
        """Milliseconds from each point to the next."""

    def times(self, call: Call, turns: int) -> list[float]:
        """Milliseconds of each of so many calls; nothing waits between."""
        marks = [self.mark()]
        for _ in range(turns):
            call()
            marks.append(self.mark())
        return self.between(marks)


class Cuda(Clock):
    """A CUDA device."""

    kind = "cuda"
    overrides = ("run.device=cuda",)  # and its graphs, which are the default there

    def __init__(self) -> None:
        self.replays = 0
        replay = torch.cuda.CUDAGraph.replay

        def counted(graph: torch.cuda.CUDAGraph) -> None:
            self.replays += 1
            replay(graph)

        torch.cuda.CUDAGraph.replay = counted  # type: ignore[method-assign]

    def facts(self) -> dict[str, Any]:
        """The device and the versions that bear on figures."""
        about = torch.cuda.get_device_properties(0)
        return {
            "device": torch.cuda.get_device_name(0),
            "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
            "memory_gib": round(about.total_memory / 2**30, 1),
            "multiprocessors": about.multi_processor_count,
            "cuda": torch.version.cuda,
        }

    def wait(self) -> None:
        """Until the device has done all it was given."""
        torch.cuda.synchronize()

    def mark(self) -> Any:
        """A point of the stream: an event."""
        point = torch.cuda.Event(enable_timing=True)
        point.record()
        return point

    def between(self, marks: list[Any]) -> list[float]:
        """Milliseconds from each point to the next."""
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairwise(marks)]

    def captured(self, call: Call) -> Call:
        """A call as a graph of its own."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Whoever waits for the device in here is stopped, as far as torch knows of it."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def traced(self, call: Call) -> Trace:
        """What a call asks of the runtime, and what the device runs for it."""
        from torch.profiler import ProfilerActivity, profile

        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            call()
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            seen.export_chrome_trace(str(file))
            return Trace.read(file)

    def copy_speed(self) -> float:
        """GB/s of a copy on the device, bytes read and bytes written both counted."""
        source = torch.zeros(COPIED, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        taken = sorted(self.times(lambda: target.copy_(source), 12))
        return 2 * COPIED / taken[len(taken) // 2] / 1e6

    def alive(self) -> bool:
        """Whether calls of this process still reach the device, after one that failed."""
        try:
            return int(torch.ones(1, device="cuda").sum()) == 1
        except RuntimeError:
            return False

    def forget(self) -> None:
        """Give back what nobody holds any more: no capture is to be disturbed by it later."""
        gc.collect()
        torch.cuda.empty_cache()


class Rehearsal(Clock):
    """A CPU that stands in for a GPU."""

    kind = "cpu"
    overrides: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.replays = 0
        self.capturing: PretendedGraph | None = None
        pretend(self)

    def facts(self) -> dict[str, Any]:
        """That it is none."""
        return {"device": "rehearsal", "memory_gib": 0.0}

    def wait(self) -> None:
        """A CPU is done when a call returns."""

    def mark(self) -> float:
        """A point in time, by the clock."""
        return perf_counter()

    def between(self, marks: list[float]) -> list[float]:
        """Milliseconds from each point to the next."""
        return [1e3 * (b - a) for a, b in pairwise(marks)]

    def captured(self, call: Call) -> Call:
        """A call, counted as a graph's replay is."""
        call()
        graph = PretendedGraph(self)
        graph.call = call
        return graph.replay

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Nobody waits on a CPU."""
        yield

    def traced(self, call: Call) -> Trace:
        """A file as torch writes it, with what the pretended graphs would have left in it."""
        before = self.replays
        call()
        launches = [("cuda_runtime", "cudaGraphLaunch")] * (self.replays - before)
        kernels = [
            ("kernel", "move_kernel"),
            ("kernel", "gemm"),
            ("gpu_memcpy", "Memcpy DtoH"),
        ]
        events = [
            {"ph": "X", "cat": kind, "name": name, "ts": 0, "dur": 1}
            for kind, name in (*launches, *kernels)
        ]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            file.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "x"}, *events]}))
            return Trace.read(file)

    def copy_speed(self) -> float:
        """A number."""
        return 1.0

    def alive(self) -> bool:
        """A CPU is."""
        return True

    def forget(self) -> None:
        """Nothing is held back."""


class PretendedGraph:
    """A graph whose content is the call made while it was captured."""

    def __init__(self, device: Rehearsal) -> None:
        self._device = device
        self.call: Call = lambda: None

    def replay(self) -> None:
        """Make the call."""
        self._device.replays += 1
        self.call()


class _Nothing:
    """A stream, an event, a capture: enters, leaves, waits, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Of whatever."""

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, *_: object) -> None:
        """Nothing."""

    def wait_stream(self, _other: Any) -> None:
        """Nothing."""

    def record(self) -> None:
        """Nothing."""

    def synchronize(self) -> None:
        """Nothing."""


def pretend(device: Rehearsal) -> None:
    """Put what a capture asks of CUDA in place, for the rest of this process."""

    class Capturing(_Nothing):
        def __init__(self, graph: PretendedGraph, **_: Any) -> None:
            self._graph = graph

        def __enter__(self) -> None:
            device.capturing = self._graph

        def __exit__(self, *_: object) -> None:
            device.capturing = None

    bind = EagerStep.bind

    def bound(self: EagerStep, key: Key) -> Call:
        """What is called while a graph is captured is kept for it, and not run, as on a GPU."""
        function = bind(self, key)

        def called() -> None:
            if device.capturing is None:
                function()
            else:
                device.capturing.call = function

        return called

    EagerStep.bind = bound  # type: ignore[method-assign]
    for name, stand_in in {
        "Stream": _Nothing,
        "Event": _Nothing,
        "stream": _Nothing,
        "graph": Capturing,
        "CUDAGraph": lambda: PretendedGraph(device),
        "graph_pool_handle": lambda: (0, 0),
        "current_stream": _Nothing,
    }.items():
        setattr(torch.cuda, name, stand_in)
    empty = torch.empty

    def unpinned(*shape: Any, **more: Any) -> torch.Tensor:
        return empty(*shape, **{k: v for k, v in more.items() if k != "pin_memory"})

    torch.empty = unpinned  # type: ignore[assignment]


Device = Cuda | Rehearsal


def open_device(*, rehearse: bool) -> Device:
    """The device, or its rehearsal; SystemExit where there is none."""
    if rehearse:
        return Rehearsal()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device is here; `--rehearse` runs every part without one")
    return Cuda()
