"""A difference from plain decoding is put into the right class, and only one class fails a run."""

from __future__ import annotations

import pytest
import torch

from specflow import lossless
from specflow.models.lm import LanguageModel
from tests.differential.tiny_models import build

PROMPT = [3, 4, 5, 6]


def greedy(model: LanguageModel, prompt: list[int], count: int) -> list[int]:
    """Plain decoding."""
    said: list[int] = []
    for _ in range(count):
        narrow, _ = lossless._rescore(prompt, said, model)
        said.append(int(narrow.argmax()))
    return said


def test_equal_completions_have_no_difference() -> None:
    model = LanguageModel.wrap(build("llama"))
    said = greedy(model, PROMPT, 5)
    assert lossless.explain("a", PROMPT, said, said, model) is None


def test_a_wrong_token_is_the_algorithms_fault() -> None:
    model = LanguageModel.wrap(build("llama"))
    plain = greedy(model, PROMPT, 6)
    spoken = [*plain[:3], (plain[3] + 1) % 90, *plain[4:]]
    found = lossless.explain("a", PROMPT, spoken, plain, model)
    assert found is not None
    assert (found.index, found.token, found.plain) == (3, spoken[3], plain[3])
    assert found.kind == "algorithm"
    assert found.gap > lossless.NOISE["float32"]
    verdict = lossless.verdict([found], 2)
    assert verdict["failed"]
    assert verdict["identical"] == 1


def test_a_completion_that_ends_early_is_the_algorithms_fault() -> None:
    model = LanguageModel.wrap(build("llama"))
    plain = greedy(model, PROMPT, 6)
    found = lossless.explain("a", PROMPT, plain[:4], plain, model)
    assert found is not None
    assert (found.index, found.token, found.kind) == (4, -1, "algorithm")


def test_a_tie_is_a_near_tie() -> None:
    """Two tokens with the same row in the head have the same logit."""
    stock = build("llama")
    model = LanguageModel.wrap(build("llama"))
    best = greedy(model, PROMPT, 1)[0]
    twin = (best + 1) % 90
    with torch.no_grad():
        stock.lm_head.weight[twin] = stock.lm_head.weight[best]
    tied = LanguageModel.wrap(stock)
    found = lossless.explain("a", PROMPT, [max(best, twin)], [min(best, twin)], tied)
    assert found is not None
    assert found.kind == "near-tie"
    assert not lossless.verdict([found], 1)["failed"]


@pytest.mark.parametrize("at", [0, 1])
def test_a_flip_by_width_is_told_as_one(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel.wrap(build("llama"))
    narrow, wide = torch.tensor([0.0, 3.0, 1.0]), [torch.tensor([0.0, 3.0, 1.0])] * 2
    wide[at] = torch.tensor([0.0, 3.0, 4.0])
    monkeypatch.setattr(lossless, "_rescore", lambda *_: (narrow, wide))
    found = lossless.explain("a", PROMPT, [2], [1], model)
    assert found is not None
    assert found.kind == "width-dependent"
    assert not lossless.verdict([found], 1)["failed"]
