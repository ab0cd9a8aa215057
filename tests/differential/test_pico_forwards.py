"""How often a step of a pico recipe runs its draft."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from specflow.execute import draws_of, make_session
from specflow.load import load
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.tokenizer import Tokenizer
from specflow.prompts import read
from specflow.resolve import resolve
from specflow.session import Request, Session
from tests.conftest import ROOT


@cache
def target(model: str) -> tuple[LanguageModel, Tokenizer]:
    """A model and its tokenizer, loaded once."""
    folder = open_model(model)
    return LanguageModel.load(folder, device="cpu", dtype="float32"), Tokenizer(folder)


def begun(name: str) -> Session:
    """A session of three requests that has made one step."""
    torch.set_num_threads(1)
    recipe = resolve(load(ROOT / f"recipes/pico/{name}.yaml", ["run.batch_size=3"]))
    model, tokenizer = target(recipe.target.model)
    made = make_session(recipe, model, tokenizer)
    for prompt in read(ROOT / "recipes/pico/prompts/code.jsonl", 3).items:
        tokens = tokenizer.encode(prompt.text)
        made.submit(Request(prompt.id, tokens, 64, draws_of(prompt, recipe)))
    made.step()
    return made


def budgets(made: Session, width: int) -> tuple[int, ...]:
    """Positions that a step of three rows may be captured for: the least, some, all of them."""
    return (3, 2 * width, 3 * width) if made.planner is not None else (0,)


# Draft forwards a step: a chain of S steps decodes S - 1 times and is extended once (serial.md §6).
FORWARDS = {
    "plain": 0,
    "ngram": 0,
    "standalone": 3,
    "standalone_tree": 2 + 1,
    "eagle": 2 + 1,
    "eagle_tree": 2 + 1,
    "eagle3": 2 + 1,
    "eagle3_tree": 2 + 1,
    "nextn": 2 + 1,
    "nextn_tree": 2 + 1,
    "multi_layer": 0 + 3,
    "frozen_kv": 3,
    "frozen_kv_tree": 3,
    # A block is one forward, however much of it is verified, and an injection is none.
    "dflash": 1,
    "dflash_planned": 1,
    "dspark": 1,
    "dspark_capped": 1,
    "dspark_planned": 1,
    "dspark_window": 1,
}


@pytest.mark.parametrize("name", FORWARDS)
def test_a_step_runs_the_draft_so_often(name: str) -> None:
    made = begun(name)
    models = made.drafter.models()
    before = sum(model.forwards for model in models)
    variant, width = next(iter(made.captured.widths.items()))
    for _ in range(2):
        made.captured.launch(3, variant, 320, budgets(made, width)[0])
    assert sum(model.forwards for model in models) - before == 2 * FORWARDS[name]


def test_adaptive_steps_run_the_draft_as_often_as_they_say() -> None:
    made = begun("eagle3_adaptive")
    (model,) = made.drafter.models()
    for variant, width in made.captured.widths.items():
        before = model.forwards
        made.captured.launch(3, variant, 320)
        assert model.forwards - before == max(width - 2, 0) + 1  # decodes, and one extend
