"""Sessions of the small trained models over steps of a kind, a CPU in the place of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow import execute, memory
from specflow.capture import CapturedStep, EagerStep, GraphStep, Key, buffers
from specflow.execute import draws_of, make_session
from specflow.load import load
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.tokenizer import Tokenizer
from specflow.packs import find
from specflow.pools import KVPool
from specflow.prompts import read
from specflow.resolve import resolve
from specflow.session import Request, Session
from tests.conftest import ROOT
from tests.fake_cuda import FakeCuda

# One of each kind of step: what drafts, what is verified, how the draft goes on, who plans.
KINDS = (
    *("plain", "ngram", "standalone", "standalone_tree", "eagle3", "eagle3_tree"),
    *("eagle3_adaptive", "multi_layer", "frozen_kv", "dflash", "dspark_window"),
    *("dspark_planned", "dflash_planned"),
)


class Called(GraphStep):
    """A graph's buckets, ring and order of reading; what a graph would hold is called instead."""

    def bind(self, key: Key) -> Callable[[], None]:
        """As an eager step does: no warm-up, no capture."""
        return EagerStep.bind(self, key)


@cache
def target(model: str) -> tuple[LanguageModel, Tokenizer]:
    """A model and its tokenizer, loaded once."""
    torch.set_num_threads(1)
    folder = open_model(model)
    return LanguageModel.load(folder, device="cpu", dtype="float32"), Tokenizer(folder)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions for the step that runs behind the end of a request, as `run.graph: on` asks for."""
    monkeypatch.setattr(
        execute, "positions", lambda r: memory.positions(r) + r["verify.num_draft_tokens"]
    )


def session(
    name: str, batch: int, kind: type[EagerStep] | None = None, *overrides: str, **more: Any
) -> Session:
    """A session of a pico recipe; its step of a kind, or as it comes."""
    recipe = resolve(load(find(f"pico/{name}"), [f"run.batch_size={batch}", *overrides]))
    made = make_session(recipe, *target(recipe.target.model))
    if kind is not None:
        old: Any = made.captured
        made.captured = kind(old.module, old.target, old.pool, old.drafter, old.planner, **more)
    return made


def asked(made: Session, count: int, new: int) -> list[Request]:
    """Prompts of several lengths, with completions of several."""
    tokenizer = target(made.recipe.target.model)[1]
    prompts = read(ROOT / "recipes/pico/prompts/code.jsonl", count).items
    return [
        Request(p.id, tokenizer.encode(p.text)[: 50 - 9 * (i % 5)], new + 3 * (i % 4), draws)
        for i, p in enumerate(prompts)
        for draws in [draws_of(p, made.recipe)]
    ]


def pools(made: Session) -> Iterator[KVPool]:
    """The target's, and the draft's."""
    yield made.pool
    drafter: Any = made.drafter
    own = getattr(drafter, "pool", None) or getattr(getattr(drafter, "ring", None), "pool", None)
    if own is not None and own is not made.pool:
        yield own


def kept(made: Session) -> dict[str, Tensor]:
    """All that a step reads and writes, by name: state, keys and values."""
    state = {f"state.{name}": tensor for name, tensor in buffers(made.captured.state).items()}
    blocks = [block for pool in pools(made) for block in pool.blocks()]
    return state | {f"pool.{i}": block for i, block in enumerate(blocks)}


def owned(cuda: FakeCuda, made: Session) -> Session:
    """The session, its tensors on the device."""
    cuda.own(kept(made).values())
    cuda.own(pool.positions for pool in pools(made))
    return made


def step_of(made: Session) -> GraphStep:
    """The session's step, which is a graph's."""
    step: CapturedStep = made.captured
    assert isinstance(step, GraphStep)
    return step
