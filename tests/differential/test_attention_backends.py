"""Every forward told by lengths reads what it reads told by a mask, and whole sessions agree."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specflow.errors import RuntimeFault
from specflow.kernels.attention import Scoring, Sight, attend_new
from specflow.kernels.inject import inject_rows
from specflow.kernels.kv import move_accepted
from specflow.models.attention import SDPA, Step
from specflow.models.backends import Triton
from specflow.models.flashinfer import FlashInfer, packed_bits
from specflow.models.lm import LanguageModel
from specflow.pools import KVPool
from tests.conftest import ROOT
from tests.differential.sessions_interpreted import run_with
from tests.differential.test_attention_kernels import interpreted
from tests.differential.tiny_models import WINDOW, build
from tests.toys import recipe, requests, session, tokens


class Both:
    """Reads by the reference of the kernel and by masks, and holds one against the other."""

    def __init__(self) -> None:
        self.ours, self.compared = Triton(attend_new, move_accepted, inject_rows), 0
        self.injector, self.injected = self._inject, 0

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


RECORD = ROOT / "tests/parity/flashinfer-0.7.4.json"


def signature(name: str) -> inspect.Signature:
    """What a method of flashinfer's wrapper takes, from the record."""
    said = json.loads(RECORD.read_text())["methods"][name]
    kind = inspect.Parameter
    made = [kind(each, kind.POSITIONAL_OR_KEYWORD) for each in said["required"]]
    made += [kind(each, kind.POSITIONAL_OR_KEYWORD, default=None) for each in said["optional"]]
    made += [kind("rest", kind.VAR_POSITIONAL)] if said["star"] else []
    made += [kind(each, kind.KEYWORD_ONLY, default=None) for each in said["keyword"]]
    return inspect.Signature(made)


class Recorded:
    """What flashinfer's manual says its wrapper computes, in torch, under its own signatures."""

    plans = 0

    def __init__(self, *given: Any, **named: Any) -> None:
        self.made = signature("__init__").bind(*given, **named).arguments
        assert self.made["kv_layout"] == "HND"

    def plan(self, *given: Any, **named: Any) -> None:
        """Keep what was planned; the mask goes into the buffer that was handed over."""
        type(self).plans += 1
        self.planned = signature("plan").bind(*given, **named).arguments
        asked, pages = self.planned["qo_indptr"], self.planned["paged_kv_indptr"]
        assert asked.dtype == pages.dtype == torch.int32
        self.rows = len(asked) - 1
        self.count = int(asked[1])
        assert self.planned["custom_mask"].numel() == (
            self.rows * self.count * self.planned["page_size"]
        )

    def run(self, *given: Any, **named: Any) -> Tensor:
        """[B * q, H, E] of pages [B, K, S, E], by the bits of the mask."""
        said = signature("run").bind(*given, **named).arguments
        query, (keys, values) = said["q"], said["paged_kv_cache"]
        pages = self.planned["paged_kv_indices"].long()
        keys, values = keys[pages], values[pages]
        extent = self.planned["page_size"]
        bits = np.unpackbits(
            self.made["custom_mask_buf"].numpy().reshape(self.rows, -1), axis=1, bitorder="little"
        )
        seen = torch.from_numpy(bits[:, : self.count * extent]).bool()
        seen = seen.view(self.rows, self.count, extent)
        at = torch.zeros(self.rows, self.count, dtype=torch.int64)
        sight = Sight(torch.zeros(self.rows, dtype=torch.int64), at, seen)
        scoring = Scoring(self.planned["sm_scale"], None, self.planned["logits_soft_cap"])
        split = query.view(self.rows, self.count, *query.shape[1:]).transpose(1, 2)
        read = attend_new(split, keys, values, sight, scoring)
        return read.transpose(1, 2).flatten(0, 1)


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
def test_flashinfer_is_called_as_its_record_says(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Recorded)
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    asked = requests(3, 2 * WINDOW)
    plain = tokens(session(recipe("ngram", 2), LanguageModel.wrap(build(arch)), tmp_path), asked)
    model = LanguageModel.wrap(build(arch), FlashInfer())
    Recorded.plans = 0
    made = session(recipe("ngram", 2), model, tmp_path)
    assert tokens(made, asked) == plain
    assert 0 < Recorded.plans < model.forwards  # planned by shape, not by step


def test_the_record_of_flashinfer_is_what_is_installed() -> None:
    flashinfer = pytest.importorskip("flashinfer")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper
    for name in ("__init__", "plan", "run"):
        known = set(inspect.signature(getattr(wrapper, name)).parameters)
        assert set(signature(name).parameters) - {"rest"} <= known


def test_flashinfer_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(RuntimeFault, match=r"install specflow\[gpu\]"):
        FlashInfer()


@pytest.mark.parametrize("extent", [1, 7, 8, 64, 65])
def test_a_mask_in_bits_is_the_mask(extent: int) -> None:
    seen = torch.rand(3, 5, extent) < 0.5
    packed = packed_bits(seen).view(3, -1).numpy()
    bits = np.unpackbits(packed, axis=1, bitorder="little")[:, : 5 * extent]
    assert torch.equal(torch.from_numpy(bits).bool().view(3, 5, extent), seen)
