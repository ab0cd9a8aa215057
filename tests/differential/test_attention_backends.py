"""Every forward told by lengths reads what it reads told by a mask, and whole sessions agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.kernels.attention import attend_new
from specflow.kernels.block import unpack
from specflow.kernels.inject import inject_rows
from specflow.kernels.kv import move_accepted, write_rows
from specflow.models.attention import SDPA, Frame, Step, causal, nothing_planned
from specflow.models.backends import Triton
from specflow.models.lm import LanguageModel
from specflow.pools import KVPool, LayerShape
from tests.differential.sessions_interpreted import run_with
from tests.differential.test_attention_kernels import interpreted
from tests.differential.tiny_models import WINDOW, build
from tests.toys import recipe, requests, session, tokens


class Both:
    """Reads by the reference of the kernel and by masks, and holds one against the other."""

    def __init__(self) -> None:
        self.ours, self.compared = Triton(attend_new, move_accepted, inject_rows), 0
        self.injector, self.injected = self._inject, 0

    launching = staticmethod(nothing_planned)
    writer, unpack = staticmethod(write_rows), staticmethod(unpack)

    def mix(self, query: Tensor, *rest: Any) -> Tensor:
        """As `Backend.mix`."""
        return self._same(SDPA.mix(query, *rest), self.ours.mix(query, *rest), rest[2])

    def mix_latent(self, query: Tensor, *rest: Any) -> Tensor:
        """As `Backend.mix_latent`."""
        return self._same(
            SDPA.mix_latent(query, *rest), self.ours.mix_latent(query, *rest), rest[2]
        )

    def move(self, pool: KVPool, path: Tensor, seq_lens: Tensor) -> None:
        """As `Backend.move`; the session goes on with what the reference of the kernel left."""
        before = [slots.clone() for slots in pool.blocks()]
        pool.move(path, seq_lens)
        expected = [slots.clone() for slots in pool.blocks()]
        for slots, old in zip(pool.blocks(), before, strict=True):
            slots.copy_(old)
        self.ours.move(pool, path, seq_lens)
        assert all(map(torch.equal, pool.blocks(), expected))

    def _inject(self, *given: Any) -> None:
        """By the reference; `test_slot_kernels` holds it against the library."""
        self.injected += 1
        inject_rows(*given)

    def _same(self, masked: Tensor, told: Tensor, step: Step) -> Tensor:
        seen = step.visible.any(-1)[:, None, :, None]  # of nothing a mask reads the mean
        torch.testing.assert_close(
            torch.where(seen, told, 0), torch.where(seen, masked, 0), atol=1e-4, rtol=1e-4
        )  # values reach 20, scores 50: their sums in another order differ by some 1e-5
        self.compared += 1
        return masked


# One for each way a forward is told of: chain, tree, level, packed, frozen, ring, block, latents.
RECIPES = {
    "standalone_tree": "tree and levels", "frozen_kv_tree": "nothing new", "nextn": "latents",
    "dflash_planned": "packed", "dspark_window": "a ring", "multi_layer": "a chain of layers",
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_lengths_tell_what_a_mask_tells(name: str) -> None:
    both = Both()
    done = run_with(both, name, 3, 20)
    assert both.compared > 40
    assert max(n for c in done.completions for n in c.accept_lens) > 1
    said = [(c.tokens, c.accept_lens) for c in done.completions]
    plain = [(c.tokens, c.accept_lens) for c in run_with(SDPA, name, 3, 20).completions]
    assert said == plain  # what was injected guesses the same
    assert bool(both.injected) == name.startswith("d")


@pytest.mark.parametrize("arch", ["gemma2", "gemma3", "mimo_v2", "mistral"])
def test_windows_softcaps_and_sinks_are_told_too(arch: str, tmp_path: Path) -> None:
    both = Both()
    model = LanguageModel.wrap(build(arch), both)
    tokens(session(recipe("ngram", 2), model, tmp_path), requests(3, 2 * WINDOW))
    assert both.compared > 40


INTERPRETED = {
    "standalone": "Llama, chain", "standalone_tree": "Llama, tree",
    "frozen_kv": "Gemma, chain", "frozen_kv_tree": "Gemma, tree", "dspark_window": "a ring",
}  # fmt: skip


def test_whole_sessions_by_the_kernel_say_the_same() -> None:
    pytest.importorskip("triton")
    found = interpreted("sessions_interpreted.py", *INTERPRETED)
    assert set(found) == set(INTERPRETED)
    for each in found.values():
        assert each["by_kernel"] == each["by_mask"]
        assert each["launches"] > 20
        assert all(len(said) == 12 for said, _ in each["by_kernel"].values())
    assert any(max(n) > 1 for each in found.values() for _, n in each["by_kernel"].values())


@pytest.mark.parametrize(("start", "count"), [(0, 70), (33, 70), (5, 1)])
def test_a_part_of_a_prompt_reads_what_lies_before_it(start: int, count: int) -> None:
    """As the torch backend reads it on a device, without a mask, and as the kernel is told it."""
    torch.manual_seed(start)
    pool = KVPool(2, start + count + 9, {0: LayerShape(2, 16, 16)})
    for tensor in pool.read(0, 2, pool.length):
        tensor.copy_(torch.randn(tensor.shape))
    _, step = Frame(pool, pool.length, torch.float32, row=1).prefill(count, start)
    query = torch.randn(1, 4, count, 16)
    keys, values = pool.read(0, 1, start + count, 1)
    masked = SDPA.mix(query, keys, values, step, None, None, None, None)
    for read in (
        causal(query, keys, values, None),
        Triton(attend_new, move_accepted, inject_rows).mix(
            query, keys, values, step, None, None, None, None
        ),
    ):
        torch.testing.assert_close(read, masked, atol=1e-5, rtol=1e-5)  # another order of sums
