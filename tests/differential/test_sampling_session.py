"""Sampled decoding through whole sessions: its law is the target's, whatever drafts."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from scipy.stats import chi2
from torch import Tensor

from specflow.kernels import filter_law, law_of
from specflow.load import loads
from specflow.models.drafters import prefill
from specflow.models.lm import LanguageModel
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.session import Draws, Request
from tests.differential.tiny_models import build
from tests.toys import requests, session, target, tokens

VOCABULARY = 5
PROMPT = [3, 4, 3, 4, 2, 3]
NEW = 3
ASKED = 1500
STANDALONE = {"algorithm": "STANDALONE", "model": "builtin:pico-llama-s"}
CASES = {
    "plain": ({"algorithm": "NONE"}, {}),
    "ngram_tree": ({"algorithm": "NGRAM", "min_match": 1}, {"num_draft_tokens": 8}),
    "ngram_chain": (
        {"algorithm": "NGRAM", "min_match": 1},
        {"shape": "chain", "num_draft_tokens": 4},
    ),
    "rejection": (STANDALONE, {}),
    "block": (STANDALONE, {"accept": "block"}),
    "target_only": (STANDALONE, {"accept": "target_only"}),
}


def recipe(name: str, batch: int, sampling: dict[str, float], **verify: float) -> ResolvedRecipe:
    """A case at a temperature; its own target stands in for the one it names."""
    draft, shape = CASES[name]
    written = {
        "recipe": f"toy/sampled_{name}",
        "target": {"model": "builtin:pico-llama"},
        "draft": draft,
        "verify": shape | verify,
        "sampling": {"temperature": 0.9} | sampling,
        "run": {"batch_size": batch, "max_length": 64},
    }
    return resolve(loads(yaml.safe_dump({k: v for k, v in written.items() if v}), f"{name}.yaml"))


def small(seed: int) -> LanguageModel:
    """A random model of five tokens whose law is neither flat nor sharp."""
    return LanguageModel.wrap(build("llama", seed, vocab_size=VOCABULARY))


def exact(model: LanguageModel, resolved: ResolvedRecipe) -> Tensor:
    """The law of the first NEW tokens [V, V, V], by scoring every continuation."""
    sampling = resolved.sampling
    found = torch.zeros([VOCABULARY] * NEW, dtype=torch.float64)

    def law(text: list[int]) -> Tensor:
        logits = prefill(model, model.pool(1, len(text)), 0, text, len(text))
        made = law_of(logits[:, None].double(), torch.tensor([sampling.temperature]))
        if sampling.cuts:
            cuts = (torch.tensor([v]) for v in (sampling.top_k, sampling.top_p, sampling.min_p))
            made = filter_law(made, *cuts)
        return made[0, 0]

    for said in itertools.product(range(VOCABULARY), repeat=NEW - 1):
        chance = torch.tensor(1.0, dtype=torch.float64)
        for i in range(NEW - 1):
            chance = chance * law(PROMPT + list(said[:i]))[said[i]]
        found[said] = chance * law(PROMPT + list(said))
    return found


def drawn(
    model: LanguageModel, draft: LanguageModel | None, resolved: ResolvedRecipe, root: Path
) -> Tensor:
    """How often each continuation came out of ASKED requests with seeds of their own."""
    asked = [
        Request(str(i), PROMPT, NEW, Draws(**sampling_of(resolved), seed=1000 + i))
        for i in range(ASKED)
    ]
    counts = torch.zeros([VOCABULARY] * NEW, dtype=torch.float64)
    for said in tokens(session(resolved, model, root, draft), asked).values():
        counts[tuple(said)] += 1
    return counts


def sampling_of(resolved: ResolvedRecipe) -> dict[str, float]:
    s = resolved.sampling
    return {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p}


def p_value(counts: Tensor, law: Tensor) -> float:
    """Chi-square of counts against a law, cells expected less than five times taken together."""
    expected = law.flatten() * counts.sum()
    observed = counts.flatten()
    assert observed[expected < 1e-6].sum() == 0  # what the law forbids never comes out
    rare = expected < 5
    observed = torch.cat([observed[~rare], observed[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    kept = expected > 0
    statistic = ((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    return float(chi2.sf(float(statistic), int(kept.sum()) - 1))


@pytest.mark.parametrize(
    "cuts", [{}, {"top_k": 3, "top_p": 0.9}, {"min_p": 0.2}], ids=["whole", "top", "min"]
)
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_law_is_the_targets(name: str, cuts: dict[str, float], tmp_path: Path) -> None:
    model = small(0)
    draft = small(1) if CASES[name][0]["algorithm"] == "STANDALONE" else None
    resolved = recipe(name, 64, cuts)
    # Fixed seeds: the draw is the same each time, so 1e-4 is a bound that was met once and for all.
    assert p_value(drawn(model, draft, resolved, tmp_path), exact(model, resolved)) > 1e-4


def test_a_lossy_threshold_is_seen(tmp_path: Path) -> None:
    """The test above can fail: at half the threshold the law is another."""
    model = small(0)
    resolved = recipe("target_only", 64, {}, threshold_acc=0.5)
    assert p_value(drawn(model, small(1), resolved, tmp_path), exact(model, resolved)) < 1e-9


@pytest.mark.parametrize("name", ["plain", "rejection", "block", "target_only"])
def test_draws_do_not_depend_on_the_batch(name: str, tmp_path: Path) -> None:
    """The same seeds give the same tokens alone and in company; a shared trie is company."""
    asked = [replace(r, draws=Draws(temperature=0.8, seed=int(r.id))) for r in requests(7, 20)]
    draft = target(seed=1) if name != "plain" else None
    alone = tokens(session(recipe(name, 1, {}), target(), tmp_path, draft), asked)
    together = tokens(session(recipe(name, 7, {}), target(), tmp_path, draft), asked)
    assert alone == together
    again = [replace(r, draws=replace(r.draws, seed=99)) for r in asked]
    assert tokens(session(recipe(name, 7, {}), target(), tmp_path, draft), again) != together


@pytest.mark.parametrize("name", sorted(CASES))
def test_greedy_requests_in_a_sampled_batch_stay_greedy(name: str, tmp_path: Path) -> None:
    draft = target(seed=1) if CASES[name][0]["algorithm"] == "STANDALONE" else None
    asked = requests(6, 16)
    mixed = [replace(r, draws=Draws(temperature=float(i % 2), seed=i)) for i, r in enumerate(asked)]
    found = tokens(session(recipe(name, 6, {}), target(), tmp_path, draft), mixed)
    plain = tokens(session(recipe("plain", 1, {"temperature": 0.0}), target(), tmp_path), asked)
    greedy = {r.id for i, r in enumerate(asked) if i % 2 == 0}
    assert {i: t for i, t in found.items() if i in greedy} == {
        i: t for i, t in plain.items() if i in greedy
    }
    assert found != plain
