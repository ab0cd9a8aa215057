"""Under TRITON_INTERPRET=1: the attention kernel against its reference, over named cases.

A process of its own, because Triton reads that variable once, when it is imported.
"""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specflow.kernels import attention, attention_triton
from specflow.kernels.attention import Latent, Scoring, Sight
from specflow.kernels.attention_triton import Plan
from tests.devices import onto
from tests.hastened import hasten

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Of values around 1: a sum in another order in float32; one rounding of the shares and of the
# result in a type of 8 or 11 bits.
SLACK = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@dataclass(frozen=True)
class Case:
    """What is attended to; the defaults are a chain of five in a small Llama."""

    rows: int = 1
    count: int = 5
    heads: int = 4
    groups: int = 2
    width: int = 64
    deep: int = 64
    extent: int = 96
    dtype: str = "f32"
    tree: bool = False
    region: int = 0  # new positions, where more than queries
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    page: int = 0
    ring: bool = False
    kept: bool = False  # a first position that is kept
    turned: int = 0  # rotated part of latent keys
    frozen: bool = False  # nothing is new: every query stands at the last committed position
    short: bool = False  # rows end long before the extent does
    far: bool = False  # heads lie further apart than 32 bits count
    cut: Plan | None = None

    @property
    def name(self) -> str:
        """What differs from the default."""
        usual = Case()
        changed = {k: v for k, v in vars(self).items() if v != getattr(usual, k)}
        return ",".join(f"{k}={v}" for k, v in changed.items()) or "chain"


FEW = Plan(M=16, tile=16, parts=1, warps=4, stages=1)
CASES = [
    *(Case(rows=r, count=n) for r, n in itertools.product((1, 9), (1, 5))),
    Case(count=64, extent=200),
    Case(count=64, extent=200, tree=True, window=40),
    Case(rows=9, count=64, heads=2, extent=100, tree=True),
    *(Case(rows=9, count=c, frozen=True, window=w) for c, w in ((1, None), (3, 8))),
    *(Case(rows=3, heads=8, groups=g, tree=True) for g in (1, 4, 8)),
    *(Case(rows=2, width=w, deep=w, tree=t) for w, t in ((80, True), (96, False), (128, True))),
    Case(rows=2, width=256, deep=256, tree=True),
    Case(rows=2, width=512, deep=512, window=40),
    Case(rows=2, width=128, deep=64),
    *(Case(rows=9, window=w, tree=t) for w, t in itertools.product((1, 3, 17, 500), (False, True))),
    Case(rows=9, softcap=5.0, tree=True),
    Case(rows=9, softcap=5.0, sinks=True, window=20),
    Case(rows=9, sinks=True, tree=True),
    Case(rows=9, region=12, tree=True),
    *(Case(rows=9, page=p, tree=True, window=w) for p, w in ((3, None), (16, 21), (48, None))),
    *(Case(rows=9, ring=True, extent=e, tree=True, window=w) for e, w in ((37, None), (64, 9))),
    Case(rows=9, kept=True, tree=True),
    Case(rows=9, kept=True, window=30),
    Case(rows=2, count=3, heads=8, groups=8, width=512, deep=512, turned=64, tree=True),
    Case(rows=9, heads=4, groups=4, width=64, deep=64, turned=16),
    *(Case(rows=3, dtype=d, tree=True, heads=8, groups=4) for d in ("bf16", "f16")),
    Case(rows=3, dtype="bf16", width=128, deep=128, window=30, sinks=True, softcap=8.0),
    *(Case(rows=9, tree=True, cut=replace(FEW, parts=p)) for p in (1, 2, 5)),
    Case(rows=2, tree=True, cut=replace(FEW, parts=32)),  # more parts than positions
    Case(rows=2, count=40, groups=4, extent=150, cut=replace(FEW, parts=4)),  # many query tiles
    Case(rows=5, extent=20000, short=True),  # programs without a part
    Case(rows=5, extent=20000, short=True, tree=True, window=20, sinks=True),
    Case(rows=1, count=70, extent=600),  # a part of a prompt
    Case(rows=1, heads=6, groups=2, far=True, dtype="f16", tree=True),
]


def lengths_of(case: Case, rows: int, new: int) -> Tensor:
    """Ragged: none at all, one, a tile's whole multiple, the most there is room for."""
    if case.short:
        return torch.tensor([0, 1, 64, 200, 31][:rows])
    most = case.extent - new if not case.ring else 3 * case.extent
    wanted = [most // 2 + 1, 0, 1, 16, 32, most, 33, most - 1, 15]
    if rows == 1:
        return torch.tensor([most - 3])
    return torch.tensor([min(each, most) for each in wanted[:rows]])


def family(rows: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random trees: who sees whom [B, W, W], and depths [B, W]."""
    sees = torch.eye(count, dtype=torch.bool).repeat(rows, 1, 1)
    for row in range(rows):
        for node in range(1, count):
            parent = int(torch.randint(0, node, (), generator=generator))
            sees[row, node] |= sees[row, parent]
    return sees, sees.sum(-1) - 1


def apart(*given: Tensor) -> list[Tensor]:
    """The same, each head so far behind the other that the third lies past 2**31 numbers.

    Memory that is never written is never given out: only pages of the heads are.
    """
    away = 2**30 + 2**16
    _, heads, extent, width = given[0].shape
    whole = torch.empty(heads * away, dtype=given[0].dtype)
    made = []
    for number, tensor in enumerate(given):
        size = (1, heads, extent, width)
        into = whole.as_strided(size, (heads * away, away, width, 1), number * extent * width)
        made.append(into.copy_(tensor))
    return made


def spoil(slots: Tensor, pages: Tensor | None, ends: Tensor) -> None:
    """What lies past a row's end becomes no number: whoever reads it, reads it out."""
    if pages is None:
        for row, end in enumerate(ends.tolist()):
            slots[row, :, end:] = float("nan")
        return
    page = slots.shape[2]
    for row, end in enumerate(ends.tolist()):
        for position in range(end, pages.shape[1] * page):
            slots[pages[row, position // page], :, position % page] = float("nan")


def compare(case: Case, seed: int, where: str = "cpu") -> float:
    """How far the kernel is from the reference, as a share of what the type allows.

    where  what the kernel runs on; its reference is on a CPU
    """
    generator = torch.Generator().manual_seed(seed)
    dtype = TYPES[case.dtype]

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    rows, count, shared = case.rows, case.count, case.heads // case.groups
    new = case.region or count
    lengths = lengths_of(case, rows, new)
    positions = lengths[:, None] + torch.arange(count)
    sees = None
    if case.tree:
        sees, depths = family(rows, new, generator)
        sees, depths = sees[:, new - count :], depths[:, new - count :]
        positions = lengths[:, None] + depths
    sight = Sight(lengths, positions, sees)
    if case.frozen:
        at = (lengths - 1).clamp(min=0)[:, None].expand(-1, count)
        sight = Sight(lengths, at, torch.zeros(rows, count, 0, dtype=torch.bool))
    if case.kept:
        sight = replace(sight, first=(lengths - 7).clamp(min=0))
    if case.ring:
        last = lengths + new - 1
        sight = replace(sight, first=(lengths - case.extent // 2).clamp(min=0), last=last)
    query = noise(rows, case.heads, count, case.width)
    # The pool is longer than the extent, and of a slot that is not read nothing is known.
    keys = noise(rows, shared, case.extent + 9, case.width)[:, :, : case.extent]
    values = noise(rows, shared, case.extent + 9, case.deep)[:, :, : case.extent]
    if case.far:
        keys, values = apart(keys, values)
    latent = None
    if case.turned:
        values = keys
        latent = Latent(
            noise(rows, case.heads, count, case.turned), noise(rows, 1, case.extent, case.turned)
        )
    pages = None
    if case.page:
        each = case.extent // case.page
        pages = torch.randperm(rows * each, generator=generator).view(rows, each)
        keys = noise(rows * each, shared, case.page, case.width)
        values = noise(rows * each, shared, case.page, case.deep)
    sinks = noise(case.heads) if case.sinks else None
    scoring = Scoring((case.width + case.turned) ** -0.5, case.window, case.softcap, sinks)
    given = (query, keys, values, sight, scoring, latent, pages)
    expected = attention.attend_new(*given)
    if not case.ring:
        spoil(keys, pages, lengths + (0 if case.frozen else new))
        spoil(values, pages, lengths + (0 if case.frozen else new))
    found = onto("cpu", attention_triton.attend_new(*onto(where, given), case.cut))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), case.name
    assert torch.isfinite(found).all(), case.name
    return float((found.float() - expected.float()).abs().max()) / SLACK[dtype]


def main() -> None:
    """Every case; many share a shape, so that a launch finds what another has left behind."""
    hasten()
    print(json.dumps({case.name: compare(case, number) for number, case in enumerate(CASES)}))


if __name__ == "__main__":
    sys.exit(main())
