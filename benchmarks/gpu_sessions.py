"""Sessions of the small trained models: a captured step against the same step called."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_device import Device
from specflow.capture import EagerStep, GraphStep, Key, Reads
from specflow.execute import draws_of, make_session, open_target
from specflow.load import load
from specflow.models.lm import LanguageModel
from specflow.models.tokenizer import Tokenizer
from specflow.packs import root
from specflow.prompts import read
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.session import Completion, Request, Session

LONGEST = 60  # tokens of a prompt


class Silent:
    """A run that nobody watches."""

    def say(self, _text: str) -> None:
        """Nothing."""


class Called(GraphStep):
    """A graph's buckets, late reading and ring; only the graph itself is left out.

    So both ways launch the same kernels on the same shapes: no rounding can excuse a difference.
    """

    def bind(self, key: Key) -> Callable[[], None]:
        """The calls that a graph would hold."""
        return EagerStep.bind(self, key)


def compare(device: Device, path: Path, batches: tuple[int, ...], new: int) -> dict[str, Any]:
    """Tokens and accept lengths of both ways in batches of each size; what a step launched.

    Both ways say everything twice: what a host phase remembers is then of the same texts, and the
    second time no graph is captured any more.
    """
    found: dict[str, Any] = {"late": False, "sync": "", "launches": {}}
    opened: tuple[LanguageModel, Tokenizer] | None = None
    wrong = []
    # In float32 no near tie falls otherwise for a reason that is not the capture's.
    both = (*device.overrides, "run.dtype=float32", "sampling.ignore_eos=true")
    for batch in batches:
        recipe = resolve(load(path, [*both, f"run.batch_size={batch}"]))
        opened = opened or open_target(recipe, Silent())
        asked = requests(recipe, opened[1], batch, new)
        eager, graphs = (stepping(recipe, opened, kind) for kind in (Called, GraphStep))
        for _ in range(2):
            ours, theirs = spoken(graphs, asked), spoken(eager, asked)
            if ours != theirs:
                wrong.append(difference(batch, ours, theirs))
        found["late"] = graphs.captured.reads is Reads.LATE
        if batch == 1:
            found["launches"] = launches(device, graphs, asked)
        found["sync"] = found["sync"] or looped(device, graphs, asked)
    if wrong:
        raise AssertionError("; ".join(wrong))
    return found


def stepping(
    recipe: ResolvedRecipe, opened: tuple[LanguageModel, Tokenizer], kind: type[EagerStep]
) -> Session:
    """A session over a step of a kind."""
    made = make_session(recipe, *opened)
    old: Any = made.captured
    if type(old) is kind:  # a device's own step: its graphs are there
        return made
    parts = (old.module, old.target, old.pool, old.drafter, old.planner)
    made.captured = kind(*parts, by_length=old.by_length)
    made.captured.prepare(made.reach + 2)
    return made


def requests(recipe: ResolvedRecipe, tokenizer: Tokenizer, batch: int, new: int) -> list[Request]:
    """As many prompts as rows, of lengths and ends of their own."""
    prompts = read(root() / "pico" / "prompts" / "code.jsonl", batch).items
    return [
        Request(p.id, tokenizer.encode(p.text)[: LONGEST - 5 * i], new + 3 * i, draws_of(p, recipe))
        for i, p in enumerate(prompts)
    ]


def spoken(session: Session, asked: list[Request]) -> dict[str, Any]:
    """What each request becomes."""
    for request in asked:
        session.submit(request)
    return told(list(session.run()))


def told(completions: list[Completion]) -> dict[str, Any]:
    """Tokens and accept lengths by request."""
    return {c.request.id: (c.tokens, c.accept_lens) for c in completions}


def looped(device: Device, session: Session, asked: list[Request]) -> str:
    """Who waited for the device, once all requests are admitted; nothing where nobody did.

    The session is of no use afterwards, where somebody did.
    """
    for request in asked:
        session.submit(request)
    session.step()
    try:
        with device.no_sync():
            while session.rows:
                session.step()
    except RuntimeError as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "specflow" in f.filename]
        return f"{' '.join(str(error).split())[:200]} at {' '.join(ours[-3:])}"
    return ""


def launches(device: Device, session: Session, asked: list[Request]) -> dict[str, Any]:
    """What a few steps of a full bucket launch, from the profiler: graphs, and what is none."""
    session.submit(asked[0])
    session.step()
    steps, before = 0, device.replays

    def few() -> None:
        nonlocal steps
        while session.rows and steps < 4:
            session.step()
            steps += 1

    try:
        trace = device.traced(few)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        return {"error": f"the profiler failed: {' '.join(str(error).split())[:200]}"}
    replays = device.replays - before
    while session.rows:
        session.step()
    return {
        "steps": steps,
        "replays": replays,
        "graphs": trace.graphs,
        "singles": trace.singles,
        "copies": trace.copies,
        "kernels": len(trace.kernels),
        "calls": dict(trace.calls),
    }


def difference(batch: int, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """The first request and token that differ."""
    if ours.keys() != theirs.keys():
        return f"batch {batch}: other requests ended"
    name = next(n for n in ours if ours[n] != theirs[n])
    a, b = ours[name][0], theirs[name][0]
    at = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    return (
        f"batch {batch}, request {name}: token {at} is {a[at : at + 4]} captured and "
        f"{b[at : at + 4]} called"
    )
