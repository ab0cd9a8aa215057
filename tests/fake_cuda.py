"""What a captured step asks of CUDA, on a CPU: graphs, streams, events, and memory that is late.

A graph is the calls made while it was captured, and capturing runs nothing, as on a device. What is
copied to pinned memory is there when somebody has waited for it, and a number that means nothing
before; what is copied from it must lie still until then. Whoever waits for the device in another
way is stopped, from `watch` on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode,
    _pop_mode_temporarily,
)

from specflow import capture_graph
from specflow.capture import EagerStep, Key

NOTHING = -77  # what lies in pinned memory before a copy has arrived
# Of a device's tensor each of them makes the host wait.
WAITS = frozenset(
    {
        *("item", "tolist", "numpy", "cpu", "nonzero", "unique", "equal", "allclose", "is_nonzero"),
        *("__bool__", "__int__", "__float__", "__index__", "__contains__"),
        *("masked_select", "argwhere", "new_tensor", "__repr__", "__format__", "to", "type"),
    }
)


class WaitError(AssertionError):
    """The host waited for the device."""


class FakeCuda(TorchFunctionMode):
    """A CPU in the place of a device.

    calls    what was asked, in order: capture, replay, record, synchronize, send, fetch
    asked    torch's functions that were called between replays, by name, while it was watched
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.asked: Counter[str] = Counter()
        self.capturing: Graph | None = None
        self.before_call: Callable[[], None] = lambda: None  # what a test wants to happen then
        self._pinned: dict[int, Tensor] = {}
        self._device: dict[int, Tensor] = {}
        self._copies = 0
        self._landing: list[tuple[int, Tensor, Tensor]] = []
        self._leaving: list[tuple[int, Tensor]] = []
        self._watched = self._apart = False

    # -- what is where -----------------------------------------------------------------------------

    def own(self, tensors: Iterable[Tensor]) -> None:
        """These lie on the device."""
        for tensor in tensors:
            self._device[_place(tensor)] = tensor

    def pinned(self, *shape: Any, **more: Any) -> Tensor:
        """Host memory of that kind."""
        made = torch.full(*shape, NOTHING, dtype=more["dtype"])
        self._pinned[_place(made)] = made
        return made

    def arrived(self, until: int) -> None:
        """All copies up to that one are done."""
        for _, target, value in [each for each in self._landing if each[0] <= until]:
            target.copy_(value)
        self._landing = [each for each in self._landing if each[0] > until]
        self._leaving = [each for each in self._leaving if each[0] > until]

    # -- who calls what ----------------------------------------------------------------------------

    @contextmanager
    def watch(self) -> Iterator[None]:
        """From here on nobody may wait for the device but by an event."""
        self._watched = True
        try:
            yield
        finally:
            self._watched = False

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is called in here is a graph's, or an admission's."""
        before, self._apart = self._apart, True
        try:
            yield
        finally:
            self._apart = before

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._apart:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        on_device = [each for each in tensors if _place(each) in self._device]
        if name == "copy_" and len(tensors) > 1:
            return self._copy(*tensors[:2], late=bool(kwargs.get("non_blocking")))
        if self._watched and on_device:
            self._count(name, args, tensors)
        made = func(*args, **kwargs)
        if on_device and isinstance(made, Tensor):
            self._device[_place(made)] = made
        return made

    def _count(self, name: str, args: Any, tensors: list[Tensor]) -> None:
        self.asked[name] += 1
        if name in WAITS:
            raise WaitError(f"`{name}` of a tensor of the device")
        if name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(i, Tensor | list) for i in index):
                raise WaitError(f"`{name}` by a tensor")
        if name == "__setitem__" and any(_place(each) not in self._device for each in tensors):
            raise WaitError("a tensor of the host is written to the device")

    def _copy(self, target: Tensor, source: Tensor, *, late: bool) -> Tensor:
        to, of = (_place(each) in self._device for each in (target, source))
        pinned = [_place(each) in self._pinned for each in (target, source)]
        if to == of or not self._pinned:
            moving = any(_place(target) == _place(each) for _, each in self._leaving)
            assert not (pinned[0] and moving), "pinned memory is written while it is copied from"
            with self.apart():
                return target.copy_(source)
        if self._watched:
            self.asked["copy_"] += 1
            if not (late and any(pinned)):
                raise WaitError("a copy that the host waits for")
        self._copies += 1
        self.calls.append("send" if to else "fetch")
        with self.apart():
            if to:
                self._leaving.append((self._copies, source))
                return target.copy_(source)
            self._landing.append((self._copies, target, source.clone()))
            return target.fill_(NOTHING)

    def mark(self) -> int:
        """The copies that were asked for so far."""
        return self._copies


class Graph:
    """The calls made while it was captured."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.held: list[Callable[[], None]] = []

    def replay(self) -> None:
        """Make them."""
        self._cuda.calls.append("replay")
        with self._cuda.apart():
            for call in self.held:
                call()


def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:  # noqa: C901 - a list of fakes
    """Put one in the place of torch's CUDA, for steps that are made from here on."""
    cuda = FakeCuda()

    class Stream:
        def wait_stream(self, _other: Any) -> None:
            cuda.calls.append("wait")

    class Event:
        def record(self) -> None:
            cuda.calls.append("record")
            self._mark = cuda.mark()

        def synchronize(self) -> None:
            cuda.calls.append("synchronize")
            with cuda.apart():
                cuda.arrived(self._mark)

    class Capturing:
        def __init__(self, graph: Graph, **_: Any) -> None:
            self._graph = graph

        def __enter__(self) -> None:
            cuda.calls.append("capture")
            cuda.capturing = self._graph

        def __exit__(self, *_: object) -> None:
            cuda.capturing = None

    class On:
        def __init__(self, _stream: Stream) -> None:
            return None

        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            return None

    bind, empty, compiled = EagerStep.bind, torch.empty, capture_graph.compiled
    within: dict[Callable[[], None], Callable[[], None]] = {}

    def around(function: Callable[[], None]) -> Callable[[], None]:
        def called() -> None:
            if cuda.capturing is not None:
                cuda.capturing.held.append(function)
                return
            cuda.before_call()
            with cuda.apart():
                function()

        within[called] = function
        return called

    def bound(self: EagerStep, key: Key) -> Callable[[], None]:
        return around(bind(self, key))

    def built(called: Callable[[], None], name: str) -> Callable[[], None]:
        """What is compiled is the step's own: of a trace no fake is a part."""
        own = compiled(within[called], name)

        def outside() -> None:
            on = _get_current_function_mode() is cuda
            with _pop_mode_temporarily() if on else nullcontext():
                own()

        return around(outside)

    def allocated(*shape: Any, **more: Any) -> Tensor:
        if more.pop("pin_memory", False):
            return cuda.pinned(*shape, **more)
        return empty(*shape, **more)

    def never() -> None:
        raise WaitError("`torch.cuda.synchronize`")

    monkeypatch.setattr(EagerStep, "bind", bound)
    monkeypatch.setattr(capture_graph, "compiled", built)
    monkeypatch.setattr(torch, "empty", allocated)
    for name, fake in {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": lambda: Graph(cuda),
        "graph": Capturing,
        "stream": On,
        "graph_pool_handle": lambda: (0, 0),
        "current_stream": Stream,
        "synchronize": never,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return cuda


def _place(tensor: Tensor) -> int:
    """Where it lies; 0 for weights that are packed for a CPU."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0
