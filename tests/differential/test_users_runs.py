"""What users lost days to, as runs of a model whose words are scripted (users.md 3a, D8 to D10)."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
import yaml

from specflow.kernels import accept_rejection, accept_sampled, chain_parents
from specflow.load import loads
from specflow.models.drafters import prefill
from specflow.models.lm import LanguageModel
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.session import Completion, Draws, Request
from tests.differential.tiny_models import build
from tests.toys import session

VOCABULARY = 32
EOS = 1
STREAM = (5, 10, 11, EOS, 20, 21, 22, 23, 24)  # a prompt of one token, and what follows it
NEVER = -60.0  # a logit whose chance is below 1e-25


def scripted(logits: torch.Tensor) -> LanguageModel:
    """A model whose logits after token i are row i of a table, whatever stood before.

    Tokens are axes of the hidden state, nothing is mixed or added, and the head undoes the scale
    that the last norm puts on an axis.
    """
    size = logits.shape[0]
    model = build("llama", 0, vocab_size=size, hidden_size=size, num_attention_heads=2)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.model.norm.weight.fill_(1.0)
        model.lm_head.weight.copy_(logits.T / math.sqrt(size))
    return LanguageModel.wrap(model)


def stream(words: tuple[int, ...]) -> torch.Tensor:
    """Logits of a model that says one word after another."""
    table = torch.full((VOCABULARY, VOCABULARY), 0.0)
    for before, after in itertools.pairwise(words):
        table[before, after] = 30.0
    return table


def recipe(sampling: dict[str, float], steps: int, **verify: str) -> ResolvedRecipe:
    """A small model drafts a chain; tests bring the models."""
    written = {
        "recipe": "toy/scripted",
        "target": {"model": "builtin:pico-llama"},
        "draft": {
            "algorithm": "STANDALONE",
            "model": "builtin:pico-llama-s",
            "num_steps": steps,
        },
        "verify": verify,
        "sampling": sampling,
        "run": {"batch_size": 4, "max_length": 64},
    }
    return resolve(loads(yaml.safe_dump({k: v for k, v in written.items() if v}), "toy.yaml"))


def spoken(
    resolved: ResolvedRecipe,
    target: LanguageModel,
    draft: LanguageModel,
    asked: list[Request],
    root: Path,
) -> list[Completion]:
    made = session(resolved, target, root, draft, frozenset({EOS}))
    for request in asked:
        made.submit(request)
    return list(made.run())


def test_a_table_is_what_the_model_says() -> None:
    """The script itself: the logits of the model are the table's."""
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))
    model = scripted(table)
    pool = model.pool(1, 8)
    said = prefill(model, pool, 0, [7, 3], 2)[0]
    # The norm's epsilon is 1e-6 beside a mean square of 1 / 32.
    assert torch.allclose(said, table[3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("accept", ["target_only", "rejection", "block"])
def test_what_min_p_cuts_is_never_said(accept: str, tmp_path: Path) -> None:
    """D8: law [0.90, 0.06, 0.04], min_p 0.05: the third is cut, and the draft guesses no other."""
    table = torch.full((VOCABULARY, VOCABULARY), NEVER)
    table[:, 10:13] = torch.tensor([0.90, 0.06, 0.04]).log()
    guesses = torch.full((VOCABULARY, VOCABULARY), NEVER)
    guesses[:, 12] = 0.0
    resolved = recipe({"temperature": 1.0, "min_p": 0.05}, 3, accept=accept)
    asked = [
        Request(str(i), [5], 20, Draws(temperature=1.0, min_p=0.05, seed=1000 + i))
        for i in range(100)
    ]
    done = spoken(resolved, scripted(table), scripted(guesses), asked, tmp_path)
    said = [token for completion in done for token in completion.tokens]
    assert len(said) == 2000
    assert 12 not in said
    # 0.06 / 0.96; four standard deviations of 2000 draws are 0.022.
    assert abs(said.count(11) / len(said) - 0.0625) < 0.022
    assert {n for completion in done for n in completion.accept_lens} == {1}


@pytest.mark.parametrize(
    ("most", "tokens", "finish"),
    [
        (5, [10, 11, EOS], "stop"),  # what follows the end is never seen
        (2, [10, 11], "length"),
        (3, [10, 11, EOS], "stop"),  # a stop inside of the budget goes before the cap
    ],
)
def test_a_completion_ends_inside_of_what_was_accepted(
    most: int, tokens: list[int], finish: str, tmp_path: Path
) -> None:
    """D9: a perfect draft of five guesses runs past the end of the text."""
    model = scripted(stream(STREAM))
    asked = [Request("a", [STREAM[0]], most)]
    done = spoken(recipe({}, 5), model, scripted(stream(STREAM)), asked, tmp_path)
    assert [c.tokens for c in done] == [tokens]
    assert [c.finish for c in done] == [finish]
    # What is counted is what is seen: the first token is the prefill's, the rest were verified.
    assert sum(done[0].accept_lens) == len(tokens) - 1


@pytest.mark.parametrize("rule", ["target_only", "rejection"])
def test_a_coin_of_zero_accepts_nothing_that_cannot_be(rule: str) -> None:
    """D10: law [0.6, 0.4, 0, 0], token 3 guessed, the coin is exactly 0."""
    law = torch.tensor([0.6, 0.4, 0.0, 0.0])
    target = law.expand(1, 2, 4).contiguous()
    guesses = torch.tensor([[3]])
    drawn = []
    for last in torch.linspace(0, 1, 1001)[:-1]:
        coins = torch.tensor([[0.0, 0.0, float(last)]])
        if rule == "target_only":
            parents = chain_parents(guesses)
            _, length, tokens = accept_sampled(guesses, parents, target, coins, 1.0, 1.0)
        else:
            guessed = torch.tensor([[[0.0, 0.0, 0.0, 1.0]]])
            length, tokens = accept_rejection(guesses, guessed, target, coins)
        assert int(length) == 1
        drawn.append(int(tokens[0, 0]))
    assert set(drawn) == {0, 1}
    assert abs(drawn.count(0) - 600) <= 1  # a grid of 1000 coins, not a sample
