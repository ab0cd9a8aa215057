"""What a captured step costs on a GPU: an EAGLE3 chain at the shape of Llama 3 8B, bfloat16.

Weights are made up (`run.load_format: dummy`), in the shapes of the published target and draft:
time does not depend on their values. What they would accept does, so it is set: see `Lifted`. Each
measurement leaves a line of JSON as it ends.

Time outside the forwards is a difference: the step as a graph, less the same graph without the
kernels between the forwards, whose results are put in their place as they were. Both are timed in
turns, by events on the stream. The profiler's sum of those kernels stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from statistics import median, quantiles
from time import perf_counter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_device import Device
from benchmarks.gpu_sessions import Silent, stepping
from specflow import kernels
from specflow.capture import GraphStep, buffers
from specflow.cost import forward_loads, networks, step_cost
from specflow.execute import open_target, plain_of
from specflow.load import load
from specflow.models.lm import LanguageModel
from specflow.models.tokenizer import Tokenizer
from specflow.packs import find
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.session import Request, Session

TRACED = 8  # steps under the profiler
KERNEL = "_kernel"  # a Triton kernel is named so; a generated one after its launcher
MOVE = "move_kernel"  # what a window launches for `move_accepted`


@dataclass(frozen=True)
class Size:
    """What is run, and for how long."""

    chain: str
    tree: str
    overrides: tuple[str, ...]
    prompt: int
    new: int
    turns: int
    rounds: int


LLAMA = Size(
    "llama/llama3_1_eagle3_chain",
    "llama/llama3_1_eagle3_tree",
    ("run.dtype=bfloat16", "run.load_format=dummy", "run.max_length=2048"),
    prompt=512,
    new=256,
    turns=40,
    rounds=5,
)
SMALL = Size(
    "pico/eagle3",
    "pico/eagle3_tree",
    ("run.load_format=dummy", "run.max_length=256"),
    prompt=24,
    new=12,
    turns=2,
    rounds=2,
)


class Lifted:
    """A target that agrees with a set number of guesses: an accept length without training.

    Before a step judges the target's logits, the guesses are lifted above all other words up to
    that length, and the one after them is put below all. One scatter, captured with the step; what
    accepts, moves and extends is the step's own. The same graph serves every length.

    lift  [B, K, 1]  what is written over the logit of each guess
    """

    def __init__(self, window: Any, lift: Tensor) -> None:
        self._window, self._lift = window, lift

    def __getattr__(self, name: str) -> Any:
        return getattr(self._window, name)

    @torch.inference_mode()
    def verify_taps(
        self, tokens: Tensor, seq_lens: Tensor, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """As the window's own, the guesses lifted."""
        logits, tapped = self._window.verify_taps(tokens, seq_lens, taps)
        logits[:, :-1].scatter_(2, tokens[:, 1:, None], self._lift[: tokens.shape[0]])
        return logits, tapped


def set_length(lift: Tensor, length: int) -> None:
    """Accept so many tokens a step, the bonus token included."""
    about = torch.finfo(lift.dtype)
    lift[:, : length - 1] = about.max
    lift[:, length - 1 :] = about.min


@dataclass(frozen=True)
class Bench:
    """A recipe at its size, and what it runs on."""

    device: Device
    size: Size
    recipe: ResolvedRecipe
    target: LanguageModel
    tokenizer: Tokenizer

    def session(self) -> Session:
        """A session over a captured step."""
        return stepping(self.recipe, (self.target, self.tokenizer), GraphStep)

    def request(self, new: int) -> Request:
        """A prompt of drawn words."""
        drawn = torch.Generator().manual_seed(7)
        words = torch.randint(10, self.target.vocab_size, (self.size.prompt,), generator=drawn)
        return Request("drawn", words.tolist(), new)

    def begun(self) -> Session:
        """A session whose one row has read its prompt, and taken a step."""
        made = self.session()
        made.submit(self.request(self.size.new))
        made.step()
        return made

    @property
    def needed(self) -> int:
        """Positions that a series of steps may reach."""
        width = int(self.recipe["verify.num_draft_tokens"])
        return self.size.prompt + width * (self.size.turns + 4)


def spread(times: list[float]) -> dict[str, float]:
    """Median, and the tenth and ninetieth percent, in milliseconds."""
    tenths = quantiles(times, n=10) if len(times) > 2 else [min(times), max(times)]
    return {
        "median": round(median(times), 4),
        "p10": round(tenths[0], 4),
        "p90": round(tenths[-1], 4),
        "turns": len(times),
    }


class Still:
    """The state of a session as it is now, to begin every series of steps with."""

    def __init__(self, session: Session) -> None:
        self._state = session.captured.state
        self._kept = {n: t.clone() for n, t in buffers(self._state).items()}

    def restore(self) -> None:
        """As it was."""
        for name, tensor in buffers(self._state).items():
            tensor.copy_(self._kept[name])


# --- the step ------------------------------------------------------------------------------------


def step(bench: Bench) -> dict[str, Any]:
    """The step as one graph: its time, what of it is outside the forwards, what it launches."""
    device, size, session = bench.device, bench.size, bench.begun()
    captured: Any = session.captured
    variant = next(iter(captured.widths))
    extent = captured.extent(bench.needed)
    window, drafter = bench.target.window(captured.pool, extent), session.drafter.bind(extent)
    function, state = captured.runs.VARIANTS[variant], captured.view(1)
    still = Still(session)

    def whole() -> None:
        function(window, drafter, state)

    full = device.captured(whole)
    still.restore()
    with left_out(captured.runs, window, whole) as kept:
        bare = device.captured(whole)
    still.restore()
    taken: dict[str, list[float]] = {"step": [], "forwards": []}
    for _ in range(size.rounds):
        for name, call in (("step", full), ("forwards", bare)):
            still.restore()
            taken[name] += device.times(call, size.turns)
    still.restore()
    lines = {name: spread(times) for name, times in taken.items()}
    outside = lines["step"]["median"] - lines["forwards"]["median"]
    share = outside / lines["step"]["median"]
    del kept
    launch = launcher(bench, session)
    device.traced(launch)  # the profiler sets itself up
    still.restore()
    trace = device.traced(lambda: [launch() for _ in range(TRACED)])
    known = tuple(launched(captured.runs))
    rows = sum(took for name, took in trace.kernels if name.startswith(known)) / TRACED / 1e3
    return {
        **lines,
        "outside_ms": round(outside, 4),
        "outside_share": round(share, 5),
        "outside_ms_by_profiler": round(rows, 4),
        "launches": {
            "steps": TRACED,
            "graphs": trace.graphs,
            "singles": trace.singles,
            "kernels": len(trace.kernels),
        },
        "width": captured.widths[variant],
    }


def launcher(bench: Bench, session: Session) -> Callable[[], None]:
    """A step of a session's one row as the session launches it; its graph is captured."""
    captured: Any = session.captured
    variant = next(iter(captured.widths))

    def launch() -> None:
        captured.launch(1, variant, bench.needed)

    launch()
    return launch


def between(module: Any) -> dict[str, FunctionType]:
    """What a step calls between its forwards: the package's kernels, and launchers of its own.

    A launcher has its kernel beside it; what is compiled is no function of Python, and stays.
    """
    made = {name.removesuffix(KERNEL) for name in vars(module) if name.endswith(KERNEL)}
    names = made.union(kernels.__all__)  # those of a device have the same
    return {n: f for n, f in vars(module).items() if n in names and isinstance(f, FunctionType)}


def launched(module: Any) -> set[str]:
    """The Triton kernels of the modules that those come from, as a profiler names them."""
    beside = (f.__globals__ for f in between(module).values())
    return {name for each in beside for name in each if name.endswith(KERNEL)} | {MOVE}


@contextmanager
def left_out(module: Any, window: Any, call: Callable[[], None]) -> Iterator[dict[str, list[Any]]]:
    """A step's module without what it does between its forwards: the results of a call stand in.

    Whoever captures in here has to hold on to what is given: a graph knows addresses only.
    """
    own = between(module)
    said: dict[str, list[Any]] = {name: [] for name in own}

    def noted(name: str) -> Callable[..., Any]:
        def ask(*given: Any, **more: Any) -> Any:
            said[name].append(own[name](*given, **more))
            return said[name][-1]

        return ask

    def repeated(name: str) -> Callable[..., Any]:
        turns = cycle(said[name])
        return lambda *_given, **_more: next(turns)

    try:
        for name in own:
            setattr(module, name, noted(name))
        call()
        for name in own:
            setattr(module, name, repeated(name))
        window.move_accepted = lambda *_given: None
        yield said
    finally:
        window.__dict__.pop("move_accepted", None)  # the class's own again
        for name, function in own.items():
            setattr(module, name, function)


def verify(bench: Bench, copy: float) -> dict[str, Any]:
    """The target's forward over a chain of guesses: GB/s of what it has to read."""
    device, size, session = bench.device, bench.size, bench.begun()
    captured: Any = session.captured
    width = next(iter(captured.widths.values()))
    extent = captured.extent(bench.needed)
    window = bench.target.window(captured.pool, extent)
    lens = captured.view(1).seq_lens.clone()
    tokens = torch.randint(10, bench.target.vocab_size, (1, width)).to(lens)
    taps = bench.recipe["draft.taps"]
    call = device.captured(lambda: window.verify_taps(tokens, lens, taps))
    taken = spread(device.times(call, size.turns * size.rounds))
    moved = read_bytes(bench.recipe, int(lens[0]) + width)
    speed = moved / taken["median"] / 1e6
    return {
        "forward": taken,
        "positions": width,
        "bytes": moved,
        "gb_s": round(speed, 1),
        "copy_gb_s": round(copy, 1),
        "share_of_copy": round(speed / copy, 4) if copy else 0.0,
    }


def read_bytes(recipe: ResolvedRecipe, length: int) -> int:
    """What the target's forward of a step has to read: weights, and keys and values of a row."""
    asked = [each for each in step_cost(recipe).forwards if each.model == "target"]
    loads = forward_loads(tuple(asked), networks(recipe), 1, length)
    if loads is None:
        raise ValueError("; ".join(networks(recipe).unknown))
    return round(sum(each.bytes for each in loads))


# --- tokens a second -----------------------------------------------------------------------------


def accept(bench: Bench) -> dict[str, Any]:
    """Steps of a set accept length: of the device alone, and of a whole session."""
    device, size = bench.device, bench.size
    width = int(bench.recipe["verify.num_draft_tokens"])
    lift = torch.zeros(1, width - 1, 1, dtype=bench.target.dtype, device=bench.target.device)
    own = bench.target.window
    set_length(lift, 1)

    def window(*given: Any, **more: Any) -> Lifted:
        return Lifted(own(*given, **more), lift)

    bench.target.window = window  # type: ignore[method-assign, assignment]
    found = {}
    try:
        session, whole = bench.begun(), bench.session()
        still, launch = Still(session), launcher(bench, session)
        decoded(device, whole, bench.request(size.new))  # all keys are captured, at every length
        for length in range(1, width + 1):
            set_length(lift, length)
            still.restore()
            took = spread(device.times(launch, size.turns))
            gained = [int(n) for n in session.captured.state.accept_len[:1].tolist()]
            speed, mean = decoded(device, whole, bench.request(size.new))
            found[str(length)] = {
                "step": took,
                "device_tok_s": round(1e3 * length / took["median"], 1),
                "session_tok_s": round(speed, 1),
                "session_accept_length": round(mean, 3),
                "as_set": gained == [length],
            }
    finally:
        del bench.target.window  # the class's own again
    if not all(each["as_set"] for each in found.values()):
        raise AssertionError(f"accept lengths are not those set: {found}")
    return {"by_accept_length": found}


def decoded(device: Device, session: Session, request: Request) -> tuple[float, float]:
    """Tokens a second of a request behind its prompt, as a host sees it; tokens a step."""
    session.submit(request)
    session.step()
    row = session.rows[0]
    device.wait()
    had, began = len(row.tokens), perf_counter()
    while session.rows:
        session.step()
    device.wait()
    seconds = perf_counter() - began
    lens = row.accept_lens[:-1] or [0]  # the last one is cut where the request ends
    return (len(row.tokens) - had) / seconds, sum(lens) / len(lens)


def plain(bench: Bench) -> dict[str, Any]:
    """The same target and engine with nothing drafted: one token a step."""
    device, size = bench.device, bench.size
    took = spread(device.times(launcher(bench, bench.begun()), size.turns))
    whole = bench.session()
    decoded(device, whole, bench.request(size.new))
    speed, _ = decoded(device, whole, bench.request(size.new))
    return {
        "step": took,
        "device_tok_s": round(1e3 / took["median"], 1),
        "session_tok_s": round(speed, 1),
    }


def transformers(bench: Bench) -> dict[str, Any]:
    """The library's own greedy loop: static cache, compiled forward, the same shape."""
    from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

    from specflow.models.dummy import pretrained

    device, size = bench.device, bench.size
    model = pretrained(bench.recipe, "target")
    marks: list[Any] = []

    class Mark(LogitsProcessor):
        """Notes when a step's logits are there."""

        def __call__(self, _ids: Tensor, scores: Tensor) -> Tensor:
            """The scores as they are."""
            marks.append(device.mark())
            return scores

    ids = torch.tensor([bench.request(1).tokens], device=device.kind)
    config = GenerationConfig(
        do_sample=False, max_new_tokens=size.new, min_new_tokens=size.new, pad_token_id=0,
        cache_implementation="static",
    )  # fmt: skip
    taken = []
    for _ in range(2):  # the first one compiles
        marks.clear()
        began = perf_counter()
        model.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config,
            logits_processor=LogitsProcessorList([Mark()]),
        )  # fmt: skip
        device.wait()
        taken.append(round(perf_counter() - began, 2))
    times = device.between(marks)[len(marks) // 4 :]  # graphs are recorded in the first ones
    return {
        "step": spread(times),
        "tok_s": round(1e3 / median(times), 1),
        "seconds": taken,
        "compiled": device.kind == "cuda",
    }


# --- all of it -----------------------------------------------------------------------------------


def measurements(device: Device) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Every measurement by name, the quick and important ones first; models are made once."""
    size = LLAMA if device.kind == "cuda" else SMALL
    opened: list[Any] = []
    copied: list[float] = []

    def bench(name: str, *, drafts: bool = True) -> Bench:
        """A recipe of the benchmark over the one target."""
        asked = [*device.overrides, *size.overrides, "run.batch_size=1", "sampling.ignore_eos=true"]
        recipe = load(find(name), asked)
        resolved = resolve(recipe if drafts else plain_of(recipe))
        if not opened:
            opened.extend(open_target(resolved, Silent()))
        return Bench(device, size, resolved, *opened)

    def copy() -> dict[str, Any]:
        copied.append(device.copy_speed())
        device.forget()
        return {"gb_s": round(copied[0], 1), **device.facts()}

    yield "copy", copy
    yield "step", lambda: step(bench(size.chain))
    yield "verify", lambda: verify(bench(size.chain), copied[0] if copied else device.copy_speed())
    yield "accept", lambda: accept(bench(size.chain))
    yield "plain", lambda: plain(bench(size.chain, drafts=False))
    yield "tree", lambda: step(bench(size.tree))
    yield "transformers", lambda: transformers(bench(size.chain))
