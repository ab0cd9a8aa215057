"""The ring that keeps a window of a block draft's KV: what it holds, and that nobody notices.

T16 and T17 of parallel.md; then a ring beside a pool of all positions, under any acceptances; a
soak; and poison where nothing may be read.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.memory import ring_slots
from specflow.models.block_draft import BlockModel, BlockWindow
from specflow.pools import KVPool, LayerShape, Ring, view_start
from specflow.session import Session
from tests.differential.tiny_blocks import (
    FULL,
    SLIDING,
    ZLAB,
    Look,
    Workshop,
    hint,
    redraft,
    texts,
)
from tests.differential.tiny_drafts import VOCABULARY
from tests.toys import tokens

SHAPES = {0: LayerShape(2, 8, 8), 1: LayerShape(2, 8, 8)}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("blocks"))


def pool(rows: int, length: int) -> KVPool:
    return KVPool(rows, length, SHAPES)


# -- T16 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "page", "start", "count"),
    [(21, 4, 12, 9), (16, 4, 8, 8), (15, 4, 4, 11), (5, 4, 0, 5), (21, 1, 13, 8), (8, 1, 0, 8),
     (9, 1, 1, 8), (12, 4, 4, 8), (0, 4, 0, 0), (100, 64, 64, 36)],
)  # fmt: skip
def test_t16_where_a_view_begins(length: int, page: int, start: int, count: int) -> None:
    assert int(view_start(torch.tensor([length]), 8, page)) == start
    assert length - start == count
    assert count <= min(length, 8 + page - 1)  # T16's bound, less one: a page never begins inside


def held(ring: Ring, length: int, rows: int) -> dict[int, int]:
    """Position -> slot, of what a block at `length` may read."""
    at, visible = ring.view(torch.tensor([length]), rows, ring.extent(length + rows))
    return {int(p): s for s, (p, seen) in enumerate(zip(at[0], visible[0], strict=True)) if seen}


def test_t16_slots_of_a_ring() -> None:
    """16 slots, as an engine rounds them to pages; we need 15, since no page table is kept."""
    assert ring_slots(8, 4, 3) == 15
    ring = Ring(pool(1, 16), turns=True, window=8, page=4)
    live = torch.arange(12, 21)
    assert ring.slots(live).tolist() == [12, 13, 14, 15, 0, 1, 2, 3, 4]
    assert ring.slots(torch.arange(21, 24)).tolist() == [5, 6, 7]
    assert int(ring.slots(torch.tensor(24))) == 8  # what position 8 was in, and that is dead
    found = held(ring, 21, 3)
    assert found == {p: p % 16 for p in range(12, 24)}
    assert 8 not in found


@pytest.mark.parametrize(("window", "page", "rows"), [(8, 4, 3), (8, 1, 8), (5, 4, 5), (16, 64, 7)])
def test_no_live_slot_is_overwritten(window: int, page: int, rows: int) -> None:
    """At every length: what is live, the block, and what a commit may write are slots apart (8.2).

    One slot fewer would not do.
    """
    wanted = ring_slots(window, page, rows)
    ring, tight = (
        Ring(pool(1, size), turns=True, window=window, page=page) for size in (wanted, wanted - 2)
    )
    clash = False
    for length in range(1, 4 * wanted):
        start = max(length - window, 0) // page * page
        live = range(start, length + rows)
        assert held(ring, length, rows) == {p: p % wanted for p in live}
        written = {int(ring.slots(torch.tensor(p))) for p in range(length, length + rows + 1)}
        assert len(written) == rows + 1
        read = {p % wanted for p in range(start, length)}
        assert not read & written
        clash |= bool({p % (wanted - 2) for p in range(start, length)}
                      & {int(tight.slots(torch.tensor(length + rows)))})  # fmt: skip
    assert clash or page == 1


@pytest.mark.parametrize("window", [0, 40])
def test_a_pool_that_is_large_enough_does_not_turn(window: int) -> None:
    """A text that fits is laid out as the target's is; a window is then only what is read."""
    ring = Ring.make(pool, 2, 20, window, 4, 5)
    assert (ring.turns, ring.pool.length) == (False, 20)
    assert ring.slots(torch.arange(20)).tolist() == list(range(20))
    assert held(ring, 9, 5) == {p: p for p in range(14)}
    assert ring.extent(14) == 14


# -- T17 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("requests", "window", "page", "rows"), [(3, 32, 8, 7), (1, 64, 64, 16)])
def test_t17_bytes_of_a_ring(
    requests: int, window: int, page: int, rows: int, dtype: torch.dtype
) -> None:
    """R (W + page + rows) positions of all layers; and a spare row for each table of a layer."""
    shapes = {i: LayerShape(4, 16, 16) for i in range(5)}
    ring = Ring.make(
        lambda slots, length: KVPool(slots, length, shapes, dtype=dtype),
        requests, 10_000, window, page, rows,
    )  # fmt: skip
    each = 5 * 4 * (16 + 16) * dtype.itemsize  # D nkv (hd_k + hd_v) bytes (8.0)
    spare = 5 * (16 + 16) * dtype.itemsize
    assert ring.pool.nbytes == requests * (window + page + rows) * each + spare
    assert ring.pool.length == window + page + rows


def test_t17_published_arithmetic() -> None:
    """8.0: what Kimi-K3's draft takes with a slot for every target token, and with windows."""
    gqa, mla, gib = 5 * 16 * 128 * 2, 5 * 576 * 2, 2**30
    assert (gqa, mla) == (20_480, 5_760)
    assert round(1_779_275 * gqa / gib, 2) == 33.94
    assert round(2_491_831 * mla / gib, 2) == 13.37
    table = {(48, 2048): (101_712, 1.94, 0.55), (48, 4096): (200_016, 3.82, 1.07),
             (64, 4096): (266_688, 5.09, 1.43), (256, 2048): (542_464, 10.35, 2.91),
             (256, 4096): (1_066_752, 20.35, 5.72)}  # fmt: skip
    for (requests, window), (slots, wide, narrow) in table.items():
        count = requests * ring_slots(window, 64, 7)
        assert count == slots
        assert abs(count * gqa / gib - wide) < 0.006
        assert abs(count * mla / gib - narrow) < 0.006


def test_a_session_allocates_that_much(shop: Workshop) -> None:
    look = Look(kinds=(SLIDING, SLIDING), window=10, rows=7)
    made = shop(look).session(3, draft={"page_size": 4}, run={"max_length": 100})
    ring, each = made.drafter.ring, 2 * 2 * 32 * 4
    assert ring.turns
    assert ring.pool.nbytes == 3 * (10 + 4 + 7) * each + 2 * 32 * 4
    whole = shop(look).session(3, draft={"window_size": 0}, run={"max_length": 100})
    assert not whole.drafter.ring.turns
    assert whole.drafter.ring.pool.length == made.pool.length > 100


# -- a ring beside a pool of everything ------------------------------------------------------------


@dataclass
class Twin:
    """One draft over two pools, told the same: requests come, are accepted, move and go."""

    model: BlockModel
    rings: tuple[Ring, Ring]
    rows: int
    width: int
    generator: torch.Generator
    taps: dict[int, list[Tensor]] = field(default_factory=dict)
    lens: list[int] = field(default_factory=list)

    def random(self, count: int) -> Tensor:
        wide = self.model.net.fc.in_features
        return torch.randn(1, count, wide, generator=self.generator)

    def admit(self, prompt: int, chunk: int) -> None:
        row, taps = len(self.lens), self.random(prompt)
        for ring in self.rings:
            window = BlockWindow(self.model, ring, 0, row)
            for begin in range(0, prompt, chunk):
                window.feed(taps[:, begin : begin + chunk], begin)
        self.lens.append(prompt)

    def leave(self, row: int) -> None:
        """The last row moves into the gap, as a session moves it."""
        last = len(self.lens) - 1
        if row != last:
            for ring in self.rings:
                ring.pool.copy_row(last, row, min(self.lens[last] + 1, ring.pool.length))
            self.lens[row] = self.lens[last]
        del self.lens[last]

    def step(self) -> tuple[Tensor, Tensor]:
        """One block and one commit of random length for each row; what both pools made of it."""
        count = len(self.lens)
        tokens = torch.randint(VOCABULARY, (count, self.rows), generator=self.generator)
        lens = torch.tensor(self.lens)
        taps = torch.cat([self.random(self.width) for _ in range(count)])
        gained = torch.randint(1, self.width + 1, (count,), generator=self.generator)
        made = []
        for ring in self.rings:
            window = BlockWindow(self.model, ring, max(self.lens) + self.width + 1)
            made.append(window.denoise(tokens, lens))
            window.inject(taps, lens, gained)
        self.lens = (lens + gained).tolist()
        return made[0], made[1]


@dataclass(frozen=True)
class Turn:
    """A draft whose every layer slides, and the ring it is given."""

    look: Look
    window: int
    page: int

    def __str__(self) -> str:
        return f"{self.look.algorithm}-{self.window}-{self.page}"


def once(kept: KVPool) -> Callable[..., None]:
    """Writing where no two numbers go to one place: on a device either of them may win (8.2)."""
    write, spare = kept.write, kept.trash(2)

    def checked(layer: int, keys: Tensor, values: Tensor, flat: Tensor) -> None:
        rows = flat[flat != spare]
        assert len(rows.unique()) == len(rows)
        write(layer, keys, values, flat)

    return checked


def sliding(**how: Any) -> Look:
    return Look(kinds=(SLIDING, SLIDING), **how)


TURNS = [
    Turn(sliding(rows=3, window=8), 8, 4),
    Turn(sliding(rows=7, window=9), 9, 1),
    Turn(sliding(rows=5, window=6, ahead=False), 6, 16),
    Turn(sliding(rows=6, window=8, layout=ZLAB, markov="", trust=False), 8, 4),
    Turn(sliding(rows=6, window=8, layout=ZLAB, markov="", trust=False,
                 config={"is_causal": False}), 8, 3),
    Turn(sliding(rows=4, window=8), 20, 4),  # wider than what the layers see
]  # fmt: skip
# The same numbers in another order: softmax sums over slots, and a ring holds fewer, turned round.
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_a_ring_is_a_pool_of_everything(
    turn: Turn, shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of more than four windows; prompts of one token, of a ring, and of several chunks."""
    look = turn.look
    own = look.ahead is False or look.layout == ZLAB
    rows = look.rows + int(own and look.algorithm == "DSPARK")
    width = rows if own else rows + 1
    made, length = shop(look), 160
    model = made.open()
    ring = Ring.make(model.pool, 4, length, turn.window, turn.page, rows)
    assert ring.turns
    assert length > 4 * ring.pool.length or turn.page > 4
    monkeypatch.setattr(ring.pool, "write", once(ring.pool))
    twin = Twin(
        model, (ring, Ring.make(model.pool, 4, length, 0, turn.page, rows)), rows, width,
        torch.Generator().manual_seed(rows),
    )  # fmt: skip
    size, longest, compared = ring.pool.length, 0, 0
    prompts = [1, size, 2, size + 1, 3 * size, size - 1, 5, 2 * size + 3, 60, 1, 12]
    waiting = [(min(p, length // 2), (8, 3, size, 64)[i % 4]) for i, p in enumerate(prompts)]
    while waiting or twin.lens:
        while waiting and len(twin.lens) < 4:
            twin.admit(*waiting.pop(0))
        turned, whole = twin.step()
        torch.testing.assert_close(turned, whole, **CLOSE)
        compared += len(turned)
        longest = max(longest, *twin.lens)
        ended = [row for row, count in enumerate(twin.lens) if count > length - 2 * width]
        if compared % 5 == 0 and len(twin.lens) > 1:  # some end early, and their rows are reused
            ended.append(0)
        for row in sorted(set(ended), reverse=True):
            twin.leave(row)
    assert compared > 60
    assert longest > 4 * turn.look.window


def test_a_ring_that_is_too_small_is_noticed(shop: Workshop) -> None:
    """The comparison above can fail: with fewer slots a block overwrites what it reads."""
    model = shop(sliding(rows=3, window=8)).open()
    ring = Ring(model.pool(1, ring_slots(8, 4, 3) - 6), turns=True, window=8, page=4)
    whole = Ring.make(model.pool, 1, 160, 0, 4, 3)
    twin = Twin(model, (ring, whole), 3, 4, torch.Generator().manual_seed(1))
    twin.admit(30, 8)
    worst = max(float((a - b).abs().max()) for a, b in (twin.step() for _ in range(12)))
    assert worst > 1e-3


def noted(made: Session) -> list[list[int]]:
    """Every guess of every step to come, as the draft made it."""
    said: list[list[int]] = []

    def note(_state: Any, guesses: Tensor) -> Tensor:
        said.extend(guesses.tolist())
        return guesses

    redraft(made, note)
    return said


WHOLE = {"window_size": 0}


@pytest.mark.parametrize(
    ("look", "pages"),
    [
        (sliding(rows=7, window=9), (1, 4)),
        (sliding(rows=4, window=8, markov="rnn", ahead=False), (4, 16)),
        (sliding(rows=6, window=8, layout=ZLAB, markov="", trust=False), (1, 4)),
    ],
    ids=["next", "own", "dflash"],
)
def test_sessions_guess_the_same_with_and_without_a_window(
    look: Look, pages: tuple[int, ...], shop: Workshop
) -> None:
    """Word for word; prompts longer and shorter than the ring, and than a chunk."""
    asked = texts(7, (1, 30, 19, 70, 8, 41, 3), (40, 12, 25))
    run = {"max_length": 120}
    truth = shop.plain(asked, **run)
    found = []
    for draft in (WHOLE, *({"page_size": page} for page in pages)):
        made = shop(look).session(3, draft=draft, run=run)
        assert made.drafter.ring.turns == (draft is not WHOLE)
        found.append(noted(made))
        hint(made, truth)
        assert tokens(made, asked) == truth
    assert all(said == found[0] for said in found[1:])


def test_a_window_on_a_draft_that_sees_all_changes_guesses_and_no_text(shop: Workshop) -> None:
    asked = texts(5, (30, 19, 45), (20, 12))
    look, truth = Look(kinds=(FULL, FULL), rows=5), shop.plain(asked)
    found = []
    for draft in ({}, {"window_size": 6, "page_size": 1}):
        made = shop(look).session(3, draft=draft)
        found.append(noted(made))
        assert tokens(made, asked) == truth
    assert found[0] != found[1]


# -- a soak ----------------------------------------------------------------------------------------


class Ledger:
    """Whose position each slot of a draft's ring holds, told from what is written where.

    Nothing of the ring's own arithmetic is used: a flat row of the pool is where a number was put.
    """

    SCRATCH = -1  # of a block

    def __init__(self, made: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ring = made.drafter.ring
        self.held: dict[tuple[int, int], int] = {}  # row, slot -> position
        self.writing: Tensor | None = None  # positions [B, q], while context is written
        self.checked, self.most = 0, 0
        pool = self.ring.pool
        self._write, self._copy = pool.write, pool.copy_row
        monkeypatch.setattr(pool, "write", self.write)
        monkeypatch.setattr(pool, "copy_row", self.copy_row)
        inject, denoise = BlockWindow._write, BlockWindow.denoise

        def injecting(window: BlockWindow, taps: Tensor, at: Tensor, *rest: Any) -> None:
            if at[0, 0] == 0:  # a prompt begins: nothing of the row's last request counts
                self.held = {k: p for k, p in self.held.items() if k[0] != window.row}
            self.writing = at
            inject(window, taps, at, *rest)
            self.writing = None

        def denoising(window: BlockWindow, block: Tensor, lens: Tensor) -> Tensor:
            self.check(block.shape[1], lens)
            return denoise(window, block, lens)

        monkeypatch.setattr(BlockWindow, "_write", injecting)
        monkeypatch.setattr(BlockWindow, "denoise", denoising)

    def write(self, layer: int, keys: Tensor, values: Tensor, flat: Tensor) -> None:
        self._write(layer, keys, values, flat)
        if layer:
            return
        rows, heads, count, _ = keys.shape
        scratch = torch.full((rows, count), self.SCRATCH)
        positions = scratch if self.writing is None else self.writing
        length, wide = self.ring.pool.length, positions[:, None].expand(-1, heads, -1)
        for at, position in zip(flat.tolist(), wide.flatten().tolist(), strict=True):
            row, head = divmod(at // length, heads)
            if at != self.ring.pool.trash(heads) and head == 0:
                self.held[row, at % length] = position

    def copy_row(self, source: int, target: int, length: int) -> None:
        self._copy(source, target, length)
        moved = {
            (target, s): p for (row, s), p in self.held.items() if row == source and s < length
        }
        self.held = {k: p for k, p in self.held.items() if k[0] != target} | moved

    def check(self, rows: int, lens: Tensor) -> None:
        """What a block is about to read is what was put there last, each position once."""
        at, visible = self.ring.view(lens, rows, self.ring.extent(0))
        for row, length in enumerate(lens.tolist()):
            start = max(length - self.ring.window, 0) // self.ring.page * self.ring.page
            seen = [s for s, known in enumerate(visible[row].tolist()) if known]
            context = {s: int(at[row, s]) for s in seen if at[row, s] < length}
            assert sorted(context.values()) == list(range(start, length))
            assert all(self.held[row, slot] == p for slot, p in context.items())
            self.checked += 1
            self.most = max(self.most, length)


def live_bytes() -> int:
    """Of all tensors that somebody still holds."""
    gc.collect()
    held = (o for o in gc.get_objects() if type(o) is Tensor and o.layout is torch.strided)
    found = [o.untyped_storage() for o in held]
    return sum({each.data_ptr(): each.nbytes() for each in found}.values())


def test_soak(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 requests of random lengths: one position a slot, no growth, and the target's own words.

    Rows end at different times, so requests move; and every row is used by many of them.
    """
    generator = torch.Generator().manual_seed(8)
    lengths = (torch.randint(1, 71, (40,), generator=generator)).tolist()
    news = (torch.randint(1, 26, (41,), generator=generator)).tolist()
    asked = texts(200, tuple(lengths), tuple(news))
    run = {"max_length": 100}
    truth = shop.plain(asked, **run)
    made = shop(sliding(rows=7, window=9)).session(8, draft={"page_size": 4}, run=run)
    assert made.drafter.ring.turns
    ledger = Ledger(made, monkeypatch)
    size, sizes, found = made.drafter.ring.pool.nbytes, [], {}
    for part in range(4):
        for request in asked[50 * part : 50 * part + 50]:
            made.submit(request)
        found |= {c.request.id: c.tokens for c in made.run()}
        sizes.append(live_bytes())
        assert made.drafter.ring.pool.nbytes == size
    assert found == truth
    assert ledger.checked > 1000
    assert ledger.most > 4 * 9
    assert sizes[3] <= sizes[1]  # by then every extent and number of rows has been seen


# -- poison ----------------------------------------------------------------------------------------

# Not NaN: what is masked gets a weight of exactly 0, and 0 * NaN is NaN. So attention over a view
# of fixed shape has to hold finite numbers everywhere, which is why pools begin as zeros. A number
# as large as this would still turn any guess round, were it read with any weight at all.
POISON = 1e4


def poison(made: Session) -> int:
    """Spoil all that is no context: of the draft's rows, of the target's; how many slots."""
    ring, count = made.drafter.ring, 0
    lens = [len(c.request.tokens) + len(c.tokens) - 1 for c in made.rows]
    window, page = made.recipe["draft.window_size"], made.recipe["draft.page_size"]
    for row in range(ring.pool.slots):
        length = lens[row] if row < len(lens) else 0
        start = max(length - window, 0) // page * page if window else 0
        keep = {p % ring.pool.length for p in range(start, length)}
        dead = [slot for slot in range(ring.pool.length) if slot not in keep]
        spoil(ring.pool, row, dead)
        spoil(made.pool, row, list(range(length, made.pool.length)))
        count += len(dead)
    for each in (ring.pool, made.pool):
        for block in each._blocks.values():
            block[:, -1] = POISON  # the spare row takes what has no place
    return count


def spoil(kept: KVPool, row: int, slots: list[int]) -> None:
    for layer in kept.shapes:
        for view in kept.read(layer, 1, kept.length, row):
            view[:, :, slots] = POISON


POISONED = {
    "dspark": (Look(), {}),
    "dspark own": (Look(rows=4, ahead=False, markov="rnn"), {}),
    "dspark ring": (sliding(rows=7, window=9), {"page_size": 4}),
    "dflash": (Look(layout=ZLAB, markov="", trust=False, rows=6), {}),
    "dflash ring": (
        sliding(rows=6, window=8, layout=ZLAB, markov="", trust=False), {"page_size": 1}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", POISONED)
def test_nothing_but_context_is_read(name: str, shop: Workshop) -> None:
    """Property (f): scratch of blocks, rejected positions, rows that ended, the past of a ring."""
    look, draft = POISONED[name]
    asked, run = texts(7, (1, 30, 19, 8, 3), (20, 12, 9)), {"max_length": 80}
    truth = shop.plain(asked, **run)
    clean = shop(look).session(3, draft=draft, run=run)
    expected = noted(clean)
    hint(clean, truth)
    assert tokens(clean, asked) == truth
    spoilt = shop(look).session(3, draft=draft, run=run)
    said = noted(spoilt)
    hint(spoilt, truth)
    for request in asked:
        spoilt.submit(request)
    found, count = {}, 0
    while spoilt.waiting or spoilt.rows:
        for act in (spoilt._admit, spoilt._decode):
            count += poison(spoilt)
            if spoilt.rows or act == spoilt._admit:
                act()
                found |= {c.request.id: c.tokens for c in spoilt.ended()}
    assert said == expected
    assert found == truth
    assert count > 500
