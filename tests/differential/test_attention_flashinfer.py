"""flashinfer is called as its record says, and what was planned is what is read, step by step."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.captured import Key, copies, put_back
from specflow.errors import RuntimeFault
from specflow.models.attention import SDPA, Backend, Frame
from specflow.models.flashinfer import FlashInfer, Kind, laid_out
from specflow.models.lm import LanguageModel
from specflow.pools import KVPool, LayerShape
from specflow.session import Session
from tests import toys
from tests.conftest import ROOT
from tests.differential.sessions_interpreted import run_with
from tests.differential.test_captured import Padded
from tests.differential.tiny_models import WINDOW, build
from tests.toys import recipe, requests, session, tokens

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
    """What the wrapper's manual says of its CUDA graph mode, in torch, under its own signatures.

    `plan` copies into the buffers that were handed over, and `run` knows nothing but them.

    captured  whether a graph is being captured or replayed: then nothing can be planned
    plans     how often something was planned
    """

    captured = False
    plans = 0

    def __init__(self, *given: Any, **named: Any) -> None:
        assert not self.captured
        made = signature("__init__").bind(*given, **named).arguments
        assert (made["kv_layout"], made["use_cuda_graph"], made["backend"]) == ("HND", True, "fa2")
        self.asked, self.firsts = made["qo_indptr_buf"], made["paged_kv_indptr_buf"]
        self.pages, self.last = made["paged_kv_indices_buf"], made["paged_kv_last_page_len_buf"]
        self.mask, self.mask_firsts = made["custom_mask_buf"], made["mask_indptr_buf"]
        for each in (self.asked, self.firsts, self.pages, self.last, self.mask_firsts):
            assert each.dtype == torch.int32
        assert len(self.asked) == len(self.firsts) == len(self.mask_firsts) == len(self.last) + 1
        self.planned: dict[str, Any] = {}

    def plan(self, *given: Any, **named: Any) -> None:
        """Take over where rows lie; what a captured kernel was made for stays as it was."""
        assert not self.captured, "a plan cannot be captured"
        type(self).plans += 1
        said = dict(signature("plan").bind(*given, **named).arguments)
        assert "custom_mask" not in said  # it would lay the mask's rows out anew
        assert "packed_custom_mask" not in said
        firsts, pages = said.pop("paged_kv_indptr"), said.pop("paged_kv_indices")
        assert int(firsts[-1]) == len(pages) <= len(self.pages)
        asked = said.pop("qo_indptr")
        assert (asked.diff() == said["uniform_q_len"]).all()
        self.asked.copy_(asked)
        self.firsts.copy_(firsts)
        self.pages.fill_(-1)
        self.pages[: len(pages)].copy_(pages)
        self.last.copy_(said.pop("paged_kv_last_page_len"))
        assert said == (self.planned or said)
        self.planned = said

    def run(self, *given: Any, **named: Any) -> Tensor:
        """[B * q, H, E'] of pages [P, K, page, E]."""
        said = signature("run").bind(*given, **named).arguments
        query, (keys, values) = said["q"], said["paged_kv_cache"]
        assert keys.shape[1:] == (
            self.planned["num_kv_heads"], self.planned["page_size"], self.planned["head_dim_qk"]
        )  # fmt: skip
        assert keys.stride(3) == values.stride(3) == 1
        read = [self._row(row, query, keys, values) for row in range(len(self.last))]
        return torch.cat(read)

    def _row(self, row: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        begin, end = int(self.asked[row]), int(self.asked[row + 1])
        own = self.pages[int(self.firsts[row]) : int(self.firsts[row + 1])].long()
        page = self.planned["page_size"]
        length = (len(own) - 1) * page + int(self.last[row])
        bits = torch.arange((end - begin) * length)
        its = self.mask[int(self.mask_firsts[row]) :]
        seen = ((its[bits // 8] >> (bits % 8)) & 1).bool().view(-1, length)
        groups = self.planned["num_qo_heads"] // self.planned["num_kv_heads"]
        near, far = (
            pool[own].transpose(0, 1).flatten(1, 2)[:, :length].repeat_interleave(groups, 0)
            for pool in (keys, values)
        )  # [H, length, E]
        scores = query[begin:end].transpose(0, 1) @ near.transpose(1, 2)
        scores = scores * self.planned["sm_scale"]
        cap = self.planned["logits_soft_cap"]
        scores = torch.tanh(scores / cap) * cap if cap else scores
        shares = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
        return (shares.nan_to_num(0) @ far).transpose(0, 1)  # of nothing 0


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in in the place of the package."""
    package = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Recorded)
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setattr(Recorded, "plans", 0)
    monkeypatch.setattr(Recorded, "captured", False)


class Replayed(Padded):
    """A step as a graph: warmed up, captured and replayed, with late reading and in buckets.

    A graph is its calls here, so what they are given is held against what they were captured with.
    """

    def bind(self, key: Key) -> Callable[[], None]:
        """Warm up, capture, and hand out what replays."""
        called = super().bind(key)
        kept = copies(self.state)
        held = []
        for captured in (False, True):
            with runs(captured=captured) as calls:
                called()
            held.append(calls)
            put_back(self.state, kept)

        def replay() -> None:
            with runs(captured=True) as again:
                called()
            assert again == held[1]

        return replay


@contextmanager
def runs(*, captured: bool) -> Iterator[list[tuple[Any, ...]]]:
    """What a graph would hold of each run: whose it is, shapes, strides and where buffers lie."""
    calls: list[tuple[Any, ...]] = []
    run = Recorded.run

    def watched(self: Recorded, *given: Any, **named: Any) -> Tensor:
        pools = [(pool.data_ptr(), pool.shape, pool.stride()) for pool in given[1]]
        calls.append((id(self), given[0].shape, *pools))
        return run(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorded, "run", watched)
        patch.setattr(Recorded, "captured", captured)
        yield calls


def replayed(made: Session) -> Session:
    """The session over steps that are replayed, each over the whole extent."""
    old = made.captured
    made.captured = Replayed(
        old.module, old.target, old.pool, old.drafter, old.planner, by_length=True
    )
    made.captured.prepare(made.reach + 2)
    return made


def drafted(name: str, backend: Backend, arch: str, root: Path, batch: int) -> Session:
    """A session whose target, and a draft like it, read by a backend."""
    draft = LanguageModel.wrap(build(arch, 1), backend) if name != "ngram" else None
    model = LanguageModel.wrap(build(arch), backend)
    return session(recipe(name, batch), model, root, draft)


@pytest.mark.parametrize(
    ("name", "arch"),
    [("standalone", "llama"), ("standalone_tree", "llama"), ("standalone_tree", "gemma2")],
)
@pytest.mark.usefixtures("installed")
def test_what_is_planned_before_a_replay_is_what_it_reads(
    name: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = toys.positions
    monkeypatch.setattr(toys, "positions", lambda r: reach(r) + r["verify.num_draft_tokens"])
    asked = requests(5, 3 * WINDOW)
    plain = tokens(drafted(name, SDPA, arch, tmp_path, 3), asked)
    made = replayed(drafted(name, FlashInfer(), arch, tmp_path, 3))
    captured, Recorded.plans = Recorded.plans, 0
    assert tokens(made, asked) == plain
    assert captured > 0
    assert Recorded.plans > captured  # rows grew, and everything was captured before


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["standalone_tree", "frozen_kv", "dflash_planned", "multi_layer"])
def test_every_kind_of_forward_reads_what_a_mask_says(name: str) -> None:
    """Tree and levels, nothing new, packed, a chain of layers (sinks are refused: see below)."""
    if name == "multi_layer":
        with pytest.raises(RuntimeFault, match="attention sinks"):
            run_with(FlashInfer(), name, 1, 4)
        return
    done = run_with(FlashInfer(), name, 3, 20)
    said = [(c.tokens, c.accept_lens) for c in done.completions]
    plain = run_with(SDPA, name, 3, 20).completions
    assert said == [(c.tokens, c.accept_lens) for c in plain]
    assert 0 < Recorded.plans < 60  # planned as rows grow, not by step and layer


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("length", [200, 61, 64])
def test_pages_are_positions_of_slots(length: int) -> None:
    """Pools whose slots are whole pages of 8, of 1 and of 64, read past a narrow plan's end."""
    torch.manual_seed(1)
    pool = KVPool(3, length, {0: LayerShape(2, 16, 8)})
    for tensor in pool.read(0, 3, length):
        tensor.copy_(torch.randn(tensor.shape))
    backend, starts = FlashInfer(), torch.tensor([0, 7, 40])
    query = torch.randn(3, 4, 5, 16)
    for needed in (47, 58, None):
        for window in (None, 6):
            read = []
            for each in (SDPA, backend):
                _, step = Frame(pool, length, torch.float32, backend=each).chain(5, starts)
                with backend.launching(3, needed or length):
                    given = (*pool.read(0, 3, length), step, None, window, None, None)
                    read.append(each.mix(query, *given))
            # Sums of numbers around 1 in another order.
            torch.testing.assert_close(*read, atol=1e-5, rtol=1e-5)
    lengths = {planned.reach for planned in backend._planned.values()}
    assert lengths == {length}


def test_a_plan_reaches_a_little_further_than_a_launch() -> None:
    kind = Kind(
        1, 1, 1, 1, 16, 16, 2**17, turns=False, scale=1.0, softcap=None, window=None,
        dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip
    assert kind.page == 64
    for needed in (1, 63, 64, 65, 1000, 1024, 1025, 99_999, 2**17, 2**18):
        planned = kind.planned(needed)
        assert planned % kind.page == 0
        assert min(needed, kind.length) <= planned <= max(64, needed * 9 / 8 + 64)
    assert len({kind.planned(needed) for needed in range(1, 2**17)}) < 100
    assert replace(kind, turns=True).planned(5) == kind.length
    assert [replace(kind, length=n).page for n in (200, 61, 96)] == [8, 1, 32]


@pytest.mark.parametrize(("extent", "reach", "page"), [(48, 16, 16), (64, 64, 8), (61, 13, 1)])
def test_a_mask_lies_query_after_query(extent: int, reach: int, page: int) -> None:
    torch.manual_seed(reach)
    seen = torch.rand(3, 5, extent) < 0.5
    laid = laid_out(seen, torch.tensor([reach]), -(-5 * extent // 8), page).view(3, -1)
    bits = (laid[:, :, None] >> torch.arange(8)) & 1
    expected = seen[:, :, :reach].flatten(1)
    assert torch.equal(bits.flatten(1)[:, : 5 * reach].bool(), expected)
    assert not bits.flatten(1)[:, 5 * reach :].any()


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
