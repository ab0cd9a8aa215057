"""flashinfer's paged prefill over our pool: runs of positions are pages, a step's mask packed bits.

Written against flashinfer 0.7.4, whose signatures the tests have on record; this code has not run
on a device.

Of a wrapper the host plans how long each row's keys are, in pages, and a captured step keeps what
was planned at fixed addresses. How long they are the host knows once it has read the last step, and
our loop does not wait for that. So a plan goes by how far a launch may reach at most, and the mask
says what is there: a masked score is -inf and takes no share, so the result is exact, and what is
read too much is less than an eighth of a row. It is made anew before a launch that reaches further,
never inside of a capture, and from host memory alone: nothing waits for the device but for the last
plan's own copies.

Prompts are read by torch's attention, of any shape as they are.

    B  rows      q  tokens a row      S  extent      H  query heads      K  key-value heads
    E  head width      L  positions of a slot
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from specflow.backends import EXTRA
from specflow.errors import RuntimeFault
from specflow.kernels.block import unpack
from specflow.models.attention import SDPA, Injector, Step, Writer
from specflow.pools import KVPool

WORKSPACE = 128 * 2**20  # bytes, as its manual advises
LAYOUT = "HND"  # heads before positions, as our pool has them
LARGEST_PAGE = 64  # positions: rows are cut among programs by whole pages
FINENESS = 8  # parts of the next lower power of two, by which planned lengths grow
OTHERWISE = "write `run.attention: triton`"


@dataclass(frozen=True)
class Kind:
    """What a wrapper is made for: all that a plan says, but for how far rows reach.

    turns  slots are rings, of which all is planned
    """

    rows: int
    count: int
    heads: int
    shared: int
    width: int
    deep: int
    length: int
    turns: bool
    scale: float
    softcap: float | None
    window: int | None
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, step: Step, **more: Any) -> Kind:
        """As tensors show it; a slot is as long as its heads lie apart."""
        rows, heads, count, width = query.shape
        return cls(
            rows, count, heads, key.shape[1], width, value.shape[3], key.stride(1) // width,
            step.turns, dtype=query.dtype, device=query.device, **more,
        )  # fmt: skip

    @property
    def page(self) -> int:
        """Positions of a page: as many as divide a slot."""
        return gcd(self.length, LARGEST_PAGE)

    def planned(self, needed: int) -> int:
        """Positions to plan for rows that reach so far: whole pages, in few different numbers."""
        if self.turns:
            return self.length
        grain = max(self.page, (1 << max(needed, 1).bit_length() - 1) // FINENESS)
        return min(-(-needed // grain) * grain, self.length)

    def pages(self, tensor: Tensor) -> Tensor:
        """Slots [B, K, S, E] as pages [P, K, page, E].

        Position p of slot b is in page b * K * (L / page) + p / page: a slot's heads lie one behind
        the other.
        """
        count = (self._of_a_slot * (self.rows - 1)) + self.length // self.page
        width = tensor.shape[3]
        return tensor.as_strided(
            (count, self.shared, self.page, width),
            (self.page * width, self.length * width, width, 1),
        )

    def numbers(self, reach: int) -> Tensor:
        """The pages of all rows, in order, of so many positions each."""
        each = torch.arange(reach // self.page, dtype=torch.int32)
        slots = torch.arange(self.rows, dtype=torch.int32) * self._of_a_slot
        return (slots[:, None] + each).flatten()

    @property
    def _of_a_slot(self) -> int:
        return self.shared * self.length // self.page


class Planned:
    """A wrapper, the buffers that a captured step reads, and how far it is planned to reach."""

    def __init__(self, make: Any, workspace: Tensor, kind: Kind) -> None:
        self.kind, self.reach = kind, 0
        # Each row's bits begin at a byte of its own, whatever is planned.
        self.bytes_each = -(-kind.count * kind.length // 8)
        device, whole = kind.device, kind.rows * (kind.length // kind.page)
        self.mask = torch.zeros(kind.rows * self.bytes_each, dtype=torch.uint8, device=device)
        each = torch.arange(kind.rows + 1, dtype=torch.int32, device=device)
        self.asked = _host(torch.arange(kind.rows + 1, dtype=torch.int32) * kind.count, device)
        self.reaches = torch.zeros(1, dtype=torch.int64, device=device)  # as the mask is laid out
        self.wrapper = make(
            workspace,
            LAYOUT,
            use_cuda_graph=True,
            qo_indptr_buf=each.clone(),
            paged_kv_indptr_buf=each.clone(),
            paged_kv_indices_buf=torch.zeros(whole, dtype=torch.int32, device=device),
            paged_kv_last_page_len_buf=each[1:].clone(),
            custom_mask_buf=self.mask,  # `plan` is told of no mask, so it leaves both as they are
            mask_indptr_buf=each * self.bytes_each,
            backend="fa2",  # the one that reads a mask of one's own
        )
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    @torch.inference_mode()  # as the forwards are, in which buffers may have been made
    def plan(self, needed: int) -> None:
        """Plan for rows that reach so far, if it is not what is planned."""
        kind = self.kind
        reach = kind.planned(needed)
        if reach == self.reach:
            return
        if self._copied is not None and self.reach:
            self._copied.synchronize()  # its own host memory is written again
        self.reach = reach
        pages = reach // kind.page
        firsts = torch.arange(kind.rows + 1, dtype=torch.int32) * pages
        last = torch.full((kind.rows,), kind.page, dtype=torch.int32)
        self.reaches.fill_(reach)
        self.wrapper.plan(
            self.asked,
            _host(firsts, kind.device),
            _host(kind.numbers(reach), kind.device).to(kind.device, non_blocking=True),
            _host(last, kind.device),
            kind.heads,
            kind.shared,
            kind.width,
            kind.page,
            head_dim_vo=kind.deep,
            sm_scale=kind.scale,
            logits_soft_cap=kind.softcap,
            q_data_type=kind.dtype,
            kv_data_type=kind.dtype,
            uniform_q_len=kind.count,
        )
        if self._copied is not None:
            self._copied.record()

    def cover(self, seen: Tensor) -> None:
        """Write a step's mask [B, q, S]."""
        self.mask.copy_(laid_out(seen, self.reaches, self.bytes_each, self.kind.page))

    def run(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What queries [B, H, q, E] read [B, H, q, E'], by the mask that was written."""
        kind = self.kind
        flat = query.transpose(1, 2).reshape(kind.rows * kind.count, kind.heads, kind.width)
        read: Tensor = self.wrapper.run(flat, (kind.pages(key), kind.pages(value)))
        return read.view(kind.rows, kind.count, kind.heads, -1).transpose(1, 2)


@dataclass
class FlashInfer:
    """The backend of that name."""

    injector: Injector | None = None
    writer: Writer | None = None
    _planned: dict[Kind, Planned] = field(default_factory=dict)
    _workspaces: dict[torch.device, Tensor] = field(default_factory=dict)
    _reach: int | None = None  # of the launch that is under way

    move = staticmethod(KVPool.move)
    unpack = staticmethod(unpack)

    def __post_init__(self) -> None:
        try:
            import flashinfer
        except ImportError as error:
            raise RuntimeFault(
                f"`run.attention: flashinfer` needs the package flashinfer-python ({error}); "
                f"install {EXTRA}, or {OTHERWISE}"
            ) from error
        self._make = flashinfer.BatchPrefillWithPagedKVCacheWrapper

    @contextmanager
    def launching(self, rows: int, needed: int) -> Iterator[None]:
        """Plan for a launch of so many rows, none of which reaches further."""
        self._reach = needed
        for kind, planned in self._planned.items():
            if kind.rows == rows:
                planned.plan(needed)
        try:
            yield
        finally:
            self._reach = None

    def mix(  # noqa: PLR0917 - what an attention is made of
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        step: Step,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """What queries [B, H, q, E] read of keys and values [B, K, S, E]."""
        if sinks is not None:
            raise RuntimeFault(f"flashinfer knows no attention sinks here: {OTHERWISE}")
        if step.prompt:  # of any shape: a plan for each would never be used again
            return SDPA.mix(query, key, value, step, scaling, window, softcap, sinks)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        kind = Kind.of(query, key, value, step, scale=scale, softcap=softcap, window=window)
        planned = self._planned.get(kind)
        if planned is None:
            planned = self._planned[kind] = Planned(self._make, self._workspace(kind.device), kind)
        # Before a capture it was planned; of forwards outside of a launch nobody says how far.
        planned.plan(kind.length if self._reach is None else self._reach)
        if kind not in step.memo:  # layers of a kind share a mask
            step.memo.add(kind)
            planned.cover(step.seen(window))
        return planned.run(query, key, value)

    def mix_latent(self, *_: Any) -> Tensor:
        """Not known here; a rule says so before a run."""
        raise RuntimeFault(f"flashinfer does not read latents here: {OTHERWISE}")

    def _workspace(self, device: torch.device) -> Tensor:
        """Where programs leave what they read: one of a device, since launches follow another."""
        if device not in self._workspaces:
            self._workspaces[device] = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        return self._workspaces[device]


def laid_out(seen: Tensor, reach: Tensor, bytes_each: int, page: int) -> Tensor:
    """Masks [B, q, S] as bits [B * bytes_each], query after query, the first in the lowest.

    reach  [1]  bits that a query has, in whole pages; what lies past q queries is 0
    """
    if page % 8:
        return _packed(_side_by_side(seen, reach, bytes_each * 8)).flatten()
    # Each query begins at a byte: an eighth to be moved.
    return _side_by_side(_packed(seen), reach // 8, bytes_each).flatten()


def _side_by_side(told: Tensor, reach: Tensor, count: int) -> Tensor:
    """The first `reach` of each query's S entries, one query after the other [B, count]; then 0."""
    _, queries, extent = told.shape
    where = torch.arange(count, device=told.device)
    query, key = where // reach, where % reach
    inside = (query < queries) & (key < extent)
    found = told.flatten(1).index_select(1, torch.where(inside, query * extent + key, 0))
    return torch.where(inside, found, torch.zeros_like(found))


def _packed(seen: Tensor) -> Tensor:
    """Bits [.., n] as bytes [.., n / 8]."""
    whole = F.pad(seen, (0, -seen.shape[-1] % 8)).to(torch.uint8).unflatten(-1, (-1, 8))
    places = 1 << torch.arange(8, dtype=torch.uint8, device=seen.device)
    packed: Tensor = (whole * places).sum(-1, dtype=torch.uint8)
    return packed


def _host(tensor: Tensor, device: torch.device) -> Tensor:
    """Memory from which the device copies while the host goes on."""
    return tensor.pin_memory() if device.type == "cuda" else tensor
