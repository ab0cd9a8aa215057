"""A Gemma 4 assistant on our pool against the library's own, and its generation against ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Gemma4AssistantForCausalLM, Gemma4ForCausalLM, PreTrainedModel

from specflow.errors import RuntimeFault
from specflow.models.assistant import Assistant, shared_layers
from specflow.models.lm import LanguageModel
from specflow.pools import KVPool
from tests.differential.tiny_drafts import VOCABULARY, Shelf, edit, requests
from tests.differential.tiny_models import WINDOW
from tests.toys import tokens

PAIRS = ["assistant", "assistant_shared", "assistant_ordered"]
LENGTHS = (1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 23)  # around the sliding window
STEPS = 3
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("drafts"))


def stock_of(name: str, shelf: Shelf) -> Gemma4AssistantForCausalLM:
    found = Gemma4AssistantForCausalLM.from_pretrained(shelf[name].draft)
    assert isinstance(found, Gemma4AssistantForCausalLM)
    return found.eval()


def open_assistant(name: str, shelf: Shelf, pool: KVPool) -> Assistant:
    folder, target = shelf[name].draft, shelf.target(name)
    assert folder is not None
    made = Assistant.load(folder, target.adapter, pool, device="cpu", dtype="float32")
    assert isinstance(made, Assistant)
    return made


def filled(target: LanguageModel, texts: list[list[int]]) -> tuple[KVPool, Tensor]:
    """A pool with the KV of texts, and what the target shows at the last token of each [B, H]."""
    pool, shown = target.pool(len(texts), 64), []
    for row, text in enumerate(texts):
        _, hidden, _ = target.window(pool, 64, row=row).prefill(torch.tensor(text))
        shown.append(hidden[0, -1])
    return pool, torch.stack(shown)


def texts_of(seed: int = 5) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]


@torch.inference_mode()
def stock_steps(
    target: PreTrainedModel, assistant: Gemma4AssistantForCausalLM, text: list[int], first: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The library's assistant at the last committed position: token, logits and state of each step.

    Its sliding layers would see one key more than the target's, whose rule is ours (serial.md
    §6.5e); so it is given the keys that the target's rule leaves.
    """
    out = target(
        torch.tensor([text]), use_cache=False, output_hidden_states=True,
        return_shared_kv_states=True,
    )  # fmt: skip
    keys, values = out.shared_kv_states["sliding_attention"]
    near = (keys[:, :, -WINDOW:], values[:, :, -WINDOW:])
    kept = {"sliding_attention": near, "full_attention": out.shared_kv_states["full_attention"]}
    state, token = out.hidden_states[-1][:, -1:], first
    for _ in range(STEPS):
        embedded = target.get_input_embeddings()(torch.tensor([[token]]))
        made = assistant(
            inputs_embeds=torch.cat([embedded, state], dim=-1), attention_mask=None,
            position_ids=torch.tensor([[len(text) - 1]]), shared_kv_states=kept, use_cache=False,
        )  # fmt: skip
        yield token, made.logits[0, 0], made.last_hidden_state[0, 0]
        state, token = made.last_hidden_state, int(made.logits.argmax(-1))


@pytest.mark.parametrize("name", PAIRS)
def test_an_assistant_says_what_the_librarys_says(name: str, shelf: Shelf) -> None:
    """Logits and state of each step, of a batch of texts within and beyond the window."""
    stock, texts = stock_of(name, shelf), texts_of()
    pool, state = filled(shelf.target(name), texts)
    window = open_assistant(name, shelf, pool).window(pool, 64)
    lens = torch.tensor([len(text) for text in texts])
    runs = [stock_steps(shelf[name].stock, stock, text, 3 + i) for i, text in enumerate(texts)]
    for _ in range(STEPS):
        expected = [next(run) for run in runs]
        logits, state = window.decode_hidden(torch.tensor([t for t, _, _ in expected]), state, lens)
        for row, (_, theirs, carried) in enumerate(expected):
            torch.testing.assert_close(state[row], carried, **CLOSE)
            compare(logits[row], theirs, stock)


def compare(ours: Tensor, theirs: Tensor, stock: Gemma4AssistantForCausalLM) -> None:
    """Logits [V] alike; those of tokens near no chosen centroid are lower than all that are."""
    if stock.masked_embedding is None:
        torch.testing.assert_close(ours, theirs, **CLOSE)
        return
    chosen = theirs > theirs.min()
    ordered = stock.masked_embedding
    assert chosen.sum() == ordered.centroid_intermediate_top_k * ordered.vocab_size_per_centroid
    torch.testing.assert_close(ours[chosen], theirs[chosen], **CLOSE)
    assert ours[~chosen].max() < -1e30
    assert ours.isfinite().all()


@torch.inference_mode()
def test_the_chosen_tokens_are_those_of_the_likeliest_centroids(shelf: Shelf) -> None:
    """By hand: half of the clusters, and which ones depends on the state."""
    stock, texts = stock_of("assistant_ordered", shelf), texts_of()
    pool, shown = filled(shelf.target("assistant_ordered"), texts)
    window = open_assistant("assistant_ordered", shelf, pool).window(pool, 64)
    lens = torch.tensor([len(text) for text in texts])
    seen = set()
    for token in range(VOCABULARY):
        logits, carried = window.decode_hidden(torch.full((len(texts),), token), shown, lens)
        inner = carried @ torch.linalg.pinv(stock.post_projection.weight).T
        near = stock.masked_embedding.centroids(inner).topk(3, dim=-1).indices
        clusters = stock.masked_embedding.token_ordering.view(6, 4)
        for row in range(len(texts)):
            likely = set((logits[row] > -1e30).nonzero()[:, 0].tolist())
            assert likely == set(clusters[near[row]].flatten().tolist())
            seen.add(frozenset(likely))
    assert len(seen) > 3


@pytest.mark.parametrize("name", PAIRS)
def test_branches_do_not_see_each_other(name: str, shelf: Shelf) -> None:
    texts, branches = texts_of(6), 3
    pool, shown = filled(shelf.target(name), texts)
    window = open_assistant(name, shelf, pool).window(pool, 64)
    lens = torch.tensor([len(text) for text in texts])
    ids = torch.randint(3, VOCABULARY, (len(texts), branches))
    states = shown[:, None] + torch.randn(len(texts), branches, shown.shape[1]) * 0.3
    logits, carried = window.grow_frozen(ids, states, lens)
    for branch in range(branches):
        alone, state = window.decode_hidden(ids[:, branch], states[:, branch], lens)
        torch.testing.assert_close(logits[:, branch], alone, **CLOSE)
        torch.testing.assert_close(carried[:, branch], state, **CLOSE)


@pytest.mark.parametrize("name", PAIRS)
def test_only_committed_keys_are_seen(name: str, shelf: Shelf) -> None:
    """What a refused guess left beyond the committed positions changes nothing (trap 30)."""
    texts = texts_of(7)
    pool, shown = filled(shelf.target(name), texts)
    window = open_assistant(name, shelf, pool).window(pool, 64)
    lens = torch.tensor([len(text) for text in texts])
    ids = torch.arange(3, 3 + len(texts))
    before = window.decode_hidden(ids, shown, lens)
    shelf.target(name).window(pool, 64).verify(torch.randint(3, VOCABULARY, (len(texts), 5)), lens)
    for ours, again in zip(before, window.decode_hidden(ids, shown, lens), strict=True):
        assert torch.equal(ours, again)
    nearer = window.decode_hidden(ids, shown, (lens - 1).clamp(min=1))
    assert not torch.allclose(nearer[0][1:], before[0][1:], atol=1e-4)


def test_layers_read_the_last_of_their_kind_that_has_kv(shelf: Shelf) -> None:
    """Where the target's last layers share the KV of earlier ones, those earlier ones are read."""
    found = {}
    for name in ("assistant", "assistant_shared"):
        target = shelf.target(name)
        found[name] = shared_layers(target.adapter, target.pool(1, 4))
    assert found["assistant"] == {"sliding_attention": 2, "full_attention": 3}
    assert found["assistant_shared"] == {"sliding_attention": 0, "full_attention": 1}


def test_a_target_without_a_kind_of_layer_is_refused(shelf: Shelf) -> None:
    target, pool = shelf.target("assistant"), shelf.target("assistant").pool(1, 4)
    pool.shapes = {layer: shape for layer, shape in pool.shapes.items() if layer in {0, 2}}
    with pytest.raises(RuntimeFault, match="reads a `full_attention` layer, and the target has no"):
        Assistant(stock_of("assistant", shelf), target.adapter, pool)


def test_a_broken_assistant_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    pair = shelf["assistant"]
    assert pair.draft is not None
    for name, change, said in (
        ("less", lambda w: w.pop("post_projection.weight"), "missing weights, `post_projection"),
        ("more", lambda w: w.update(odd=torch.ones(2)), "weights nothing reads, `odd`"),
    ):
        folder = tmp_path / name
        stock_of("assistant", shelf).save_pretrained(folder)
        edit(folder, change)
        target = shelf.target("assistant")
        with pytest.raises(RuntimeFault, match=said):
            Assistant.load(folder, target.adapter, target.pool(1, 4), device="cpu", dtype="float32")


@pytest.mark.parametrize("name", PAIRS)
def test_the_librarys_assisted_generation_says_the_same(name: str, shelf: Shelf) -> None:
    """Its assistant stands one position further on (serial.md §6.5): only acceptance differs."""
    target = Gemma4ForCausalLM.from_pretrained(shelf[name].target).eval()
    assistant, asked = stock_of(name, shelf), requests(5, 12)
    assistant.generation_config.num_assistant_tokens = STEPS
    calls = []
    assistant.register_forward_pre_hook(lambda *_: calls.append(1))
    made = tokens(shelf.session(name, 3, draft={"num_steps": STEPS}), asked)
    for request in asked:
        calls.clear()
        ids = torch.tensor([request.tokens])
        out = target.generate(
            ids, attention_mask=torch.ones_like(ids), assistant_model=assistant, do_sample=False,
            max_new_tokens=request.max_new_tokens, eos_token_id=None, pad_token_id=2,
        )  # fmt: skip
        assert len(calls) > STEPS
        assert made[request.id] == out[0, len(request.tokens) :].tolist()
