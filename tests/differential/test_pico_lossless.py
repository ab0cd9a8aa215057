"""On the trained models: every draft, chain and tree, at several batches, says what plain says.

256 new tokens in float32, prompts of one token to more than a prefill chunk, in the slow set.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from specflow.execute import Run, decode, draws_of, make_session, plain_of
from specflow.load import load
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.tokenizer import Tokenizer
from specflow.prompts import read
from specflow.resolve import resolve
from specflow.session import Request, Session
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

NEW, CHUNK = 256, 48
RECIPES = (
    "ngram",
    "ngram_chain",
    "standalone",
    "standalone_tree",
    "eagle",
    "eagle_tree",
    "eagle3",
    "eagle3_tree",
    "eagle3_adaptive",
    "nextn",
    "nextn_tree",
    "multi_layer",
    "frozen_kv",
    "frozen_kv_tree",
    "dflash",
    "dflash_planned",
    "dspark",
    "dspark_capped",
    "dspark_planned",
    "dspark_window",
)


class Silent:
    """A run that nobody watches."""

    def say(self, _text: str) -> None:
        """Nothing."""

    def progress(self, _done: int, _of: int, _session: Session, _seconds: float) -> None:
        """Nothing."""


@cache
def target(model: str) -> tuple[LanguageModel, Tokenizer]:
    """A model and its tokenizer, loaded once."""
    folder = open_model(model)
    return LanguageModel.load(folder, device="cpu", dtype="float32"), Tokenizer(folder)


def requests(tokenizer: Tokenizer, recipe) -> list[Request]:
    """Sixteen prompts; the first has one token, some are longer than a prefill chunk."""
    found = read(ROOT / "recipes/pico/prompts/code.jsonl", 16).items
    made = []
    for at, prompt in enumerate(found):
        tokens = tokenizer.encode(prompt.text)[: 1 if at == 0 else None]
        made.append(Request(prompt.id, tokens, NEW - at, draws_of(prompt, recipe)))
    assert len(made[0].tokens) == 1
    assert max(len(each.tokens) for each in made) > CHUNK
    return made


def completions(recipe, asked: list[Request]) -> Run:
    """What a recipe makes of the requests."""
    model, tokenizer = target(recipe.target.model)
    return decode(make_session(recipe, model, tokenizer), asked, Silent(), None)


@cache
def plainly(model: str, batch: int) -> dict[str, list[int]]:
    """Plain decoding of the same requests."""
    for name in RECIPES:
        written = load(ROOT / f"recipes/pico/{name}.yaml", overrides(batch))
        if resolve(written).target.model == model:
            plain = resolve(plain_of(written))
            done = completions(plain, requests(target(model)[1], plain))
            return {c.request.id: c.tokens for c in done.completions}
    raise LookupError(model)


def overrides(batch: int) -> list[str]:
    """The fields that a proof sets."""
    return [
        f"run.batch_size={batch}",
        f"run.prefill_chunk={CHUNK}",
        f"sampling.max_new_tokens={NEW}",
        "sampling.ignore_eos=true",
    ]


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("name", RECIPES)
def test_trained_models_say_what_plain_says(name: str, batch: int) -> None:
    torch.set_num_threads(1)
    recipe = resolve(load(Path(ROOT / f"recipes/pico/{name}.yaml"), overrides(batch)))
    done = completions(recipe, requests(target(recipe.target.model)[1], recipe))
    spoken = {c.request.id: c.tokens for c in done.completions}
    assert sum(map(len, spoken.values())) == sum(NEW - at for at in range(16))
    assert spoken == plainly(recipe.target.model, batch)
    gained = sum(sum(c.accept_lens) for c in done.completions)
    assert gained / sum(len(c.accept_lens) for c in done.completions) > 1.2
