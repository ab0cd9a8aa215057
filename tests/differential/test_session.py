"""Whatever drafts, the output is the target's; KV and draft state are what a recompute gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specflow.capture import buffers
from specflow.models.drafters import prefill
from specflow.models.lm import LanguageModel
from specflow.pools import KVPool
from specflow.session import Session
from tests.capture_safety import CaptureSafe
from tests.toys import DRAFTS, neighbour, recipe, requests, session, target, tokens

NAMES = sorted(DRAFTS)


def draft_of(name: str, seed: int = 0) -> LanguageModel | None:
    """Right some of the time: 30 % noise on the target's weights."""
    return neighbour(seed, 0.3) if name.startswith("standalone") else None


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("name", [n for n in NAMES if n != "plain"])
def test_greedy_is_plain_decoding(name: str, batch: int, tmp_path: Path) -> None:
    model = target()
    asked = requests(7 if batch < 16 else 18, 30)
    plain = tokens(session(recipe("plain"), model, tmp_path), asked)
    made = session(recipe(name, batch), model, tmp_path, draft_of(name))
    assert tokens(made, asked) == plain


@pytest.mark.parametrize("arch", ["qwen3", "gemma3", "deepseek_v3", "glm4_moe"])
@pytest.mark.parametrize("name", ["ngram", "ngram_chain"])
def test_greedy_is_plain_decoding_on_other_architectures(
    name: str, arch: str, tmp_path: Path
) -> None:
    model = target(arch)
    asked = requests(5, 20)
    plain = tokens(session(recipe("plain", 2), model, tmp_path), asked)
    assert tokens(session(recipe(name, 2), model, tmp_path), asked) == plain


def test_all_accept_lengths_occur(tmp_path: Path) -> None:
    """A test of losslessness proves nothing about lengths that never occur."""
    seen: dict[str, set[int]] = {}
    for name, noise in (("ngram_eager", 0.0), ("standalone", 0.0), ("standalone", 0.3)):
        draft = neighbour(0, noise) if name == "standalone" else None
        made = session(recipe(name, 3), target(), tmp_path, draft)
        for request in requests(7, 60):
            made.submit(request)
        lengths = {n for c in made.run() for n in c.accept_lens}
        seen.setdefault(name, set()).update(lengths)
    assert seen["standalone"] == {1, 2, 3, 4}
    assert 1 in seen["ngram_eager"]
    assert max(seen["ngram_eager"]) >= 4


def rows_of(pool: KVPool, row: int, length: int) -> list[torch.Tensor]:
    """Keys and values of a row, layer by layer."""
    return [t for layer in pool.shapes for t in pool.read(layer, 1, length, row)]


def recomputed(model: LanguageModel, text: list[int]) -> KVPool:
    """A pool with one row, filled by one plain forward."""
    pool = model.pool(1, len(text))
    prefill(model, pool, 0, text, len(text))
    return pool


@pytest.mark.parametrize("name", [n for n in NAMES if n != "plain"])
def test_kv_and_draft_state_equal_a_recompute(name: str, tmp_path: Path) -> None:
    model, draft = target(), draft_of(name)
    made = session(recipe(name, 3), model, tmp_path, draft)
    for request in requests(5, 40):
        made.submit(request)
    checked = 0
    while made.waiting or made.rows:
        made.step()
        for row, completion in enumerate(made.rows):
            text = completion.request.tokens + completion.tokens
            state = {n: t[row].tolist() for n, t in buffers(made.captured.state).items()}
            assert state["seq_lens"] == len(text) - 1
            assert state["bonus_token"] == text[-1]
            if "previous_token" in state:
                assert state["previous_token"] == text[-2]
            compare(made.pool, row, recomputed(model, text[:-1]), len(text) - 1)
            if draft is not None:  # the next draft catches up its last two positions (§6.6)
                compare(made.drafter.pool, row, recomputed(draft, text[:-1]), len(text) - 2)
            checked += 1
    assert checked > 20


def compare(pool: KVPool, row: int, whole: KVPool, length: int) -> None:
    """Equal up to rounding at another width: float32, a few layers of width 64, values near 1."""
    for ours, theirs in zip(rows_of(pool, row, length), rows_of(whole, 0, length), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_steps_can_be_captured(name: str, tmp_path: Path) -> None:
    """Every variant: no host sync, no shape that depends on data, state at the same addresses."""
    made = session(recipe(name, 3), target(), tmp_path, draft_of(name))
    for request in requests(3, 30):
        made.submit(request)
    made.step()
    addresses = addressed(made)
    for variant in made.captured.widths:
        made.captured.launch(3, variant, 80)  # a first run may set up what it keeps
        with CaptureSafe():
            made.captured.launch(3, variant, 80)
    assert addressed(made) == addresses


def addressed(made: Session) -> dict[str, int]:
    """Where state and KV lie."""
    found = {n: t.data_ptr() for n, t in buffers(made.captured.state).items()}
    for layer in made.pool.shapes:
        keys, values = made.pool.read(layer, 1, 1)
        found |= {f"k{layer}": keys.data_ptr(), f"v{layer}": values.data_ptr()}
    return found


def test_a_weak_match_verifies_one_position(tmp_path: Path) -> None:
    """NGRAM runs its second variant where nothing repeats, and its first where something does."""
    made = session(recipe("ngram"), target(), tmp_path)
    variants: list[str] = []
    launch = made.captured.launch
    made.captured.launch = lambda rows, variant, *rest: (
        variants.append(variant),
        launch(rows, variant, *rest),
    )
    for request in requests(3, 60):
        made.submit(request)
    list(made.run())
    assert set(variants) == {"tree", "narrow", "single"}
