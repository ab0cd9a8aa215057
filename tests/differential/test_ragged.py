"""Ragged verify: how much of each chain is verified, what is packed, and what the target then says.

Vectors T5, T7, T8 and T10 of parallel.md. T8's padded lengths and capture layouts describe an
engine that hands leftover positions to requests. Here a padded position belongs to nobody: it is
written to a trash row and read by no one, so there is no such layout to test.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specflow.kernels import (
    accept_chain,
    allocate,
    blank,
    cap,
    mask_block,
    mask_rejected,
    pack,
    survivals,
)
from specflow.models import linear
from specflow.models.families import KimiK2Config, KimiK2ForCausalLM
from specflow.models.lm import LanguageModel, Window
from specflow.planning import EPSILON
from specflow.pools import KVPool
from tests.capture_safety import CaptureSafe
from tests.differential import tiny_models
from tests.differential.tiny_models import SHAPES, VOCABULARY, build

torch.set_num_threads(1)


def lengths_of(survival: list[list[float]], guesses: int) -> list[int]:
    """What `allocate` says where the batch may verify so many guesses."""
    return allocate(torch.tensor(survival), len(survival) + guesses).tolist()


def products(trust: list[list[float]]) -> list[list[float]]:
    return torch.tensor(trust).cumprod(1).tolist()


# -- T5, T7, T8, T10 -------------------------------------------------------------------------------


def test_survivals_are_products_of_chances() -> None:
    """T5."""
    logits = torch.tensor([[-1.328472, 1.250341, -0.137885, -0.088965]])
    found = survivals(logits, (1.0,) * 4)
    assert found[0].tolist() == pytest.approx([0.209412, 0.162788, 0.075792, 0.036211], abs=1e-6)
    # Temperatures divide the logits, before anything is multiplied.
    heat = (2.0, 0.5, 1.0, 4.0)
    again = survivals(logits * torch.tensor(heat), heat)
    torch.testing.assert_close(again, found, atol=1e-6, rtol=0)
    assert found.dtype == survivals(logits.bfloat16(), heat).dtype == torch.float32


def test_survivals_of_extreme_logits() -> None:
    said = survivals(torch.tensor([[1e4, -1e4, 1e4], [200.0, 200.0, 200.0]]), (0.1, 0.1, 0.1))
    assert said.tolist() == [[1, 0, 0], [1, 1, 1]]


T6 = products([[0.9, 0.8, 0.5, 0.5], [0.6, 0.5, 0.9, 0.1], [0.99, 0.98, 0.97, 0.2]])


@pytest.mark.parametrize(
    ("guesses", "lengths"),
    [
        (0, [1, 1, 1]),
        (1, [1, 1, 2]),
        (3, [1, 1, 4]),
        (5, [3, 1, 4]),
        (7, [4, 2, 4]),
        (9, [4, 4, 4]),
        (12, [5, 5, 5]),
        (99, [5, 5, 5]),
    ],
)
def test_the_likeliest_guesses_are_verified(guesses: int, lengths: list[int]) -> None:
    """T7."""
    assert lengths_of(T6, guesses) == lengths


EVEN = products([[1, 1, 0.5], [1, 1, 0.5], [1, 0.5, 1]])


@pytest.mark.parametrize(
    ("guesses", "lengths"),
    enumerate(
        [[1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2], [3, 2, 2], [3, 3, 2], [3, 3, 3], [4, 3, 3],
         [4, 4, 3], [4, 4, 4]]
    ),
)  # fmt: skip
def test_of_equals_the_earlier_position_then_the_earlier_row(
    guesses: int, lengths: list[int]
) -> None:
    """T7."""
    assert lengths_of(EVEN, guesses) == lengths


def test_what_cannot_survive_is_left_out() -> None:
    """T7: the budget that is left goes to nobody."""
    assert lengths_of(products([[0, 1, 1], [0.5, 0, 1]]), 4) == [1, 2]
    assert lengths_of([[0.0] * 3] * 2, 6) == [1, 1]
    assert lengths_of([[EPSILON, EPSILON / 2], [EPSILON * 0.99, 0.0]], 4) == [2, 1]
    # What is no number is no chance; other rows lose nothing but the room it stood for.
    assert lengths_of([[float("nan")] * 2, [0.5, 0.25]], 4) == [1, 3]
    assert lengths_of([[float("nan")] * 2, [0.5, 0.25]], 0) == [1, 1]


def test_packed_positions() -> None:
    """T8: three requests at 10, 4 and 7, blocks of three guesses, room for twelve."""
    lengths, starts, nowhere = torch.tensor([3, 1, 4]), torch.tensor([10, 4, 7]), 12
    packed = pack(lengths, 12, 4)
    assert packed.tolist() == [0, 1, 2, 4, 8, 9, 10, 11, *[nowhere] * 4]
    at = (starts[:, None] + torch.arange(4)).flatten()
    real = packed[packed < nowhere]
    assert at[real].tolist() == [10, 11, 12, 4, 7, 8, 9, 10]
    # Where each request begins in the packed row, and how much KV it then reads.
    of_row = torch.bincount(real // 4, minlength=3)
    assert [0, *of_row.cumsum(0).tolist()] == [0, 3, 4, 8]
    assert (starts + of_row).tolist() == [13, 5, 11]
    assert pack(lengths, 8, 4).tolist() == packed[:8].tolist()
    assert pack(torch.tensor([1, 1]), 2, 1).tolist() == [0, 1]


@given(
    st.integers(1, 6).flatmap(
        lambda width: st.tuples(
            st.just(width), st.lists(st.integers(1, width), min_size=1, max_size=7)
        )
    ),
    st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
def test_packing_keeps_the_order(shape: tuple[int, list[int]], spare: int) -> None:
    width, lengths = shape
    known = [row * width + i for row, n in enumerate(lengths) for i in range(n)]
    nowhere = width * len(lengths)
    room = min(len(known) + spare, nowhere)
    wanted = known + [nowhere] * (room - len(known))
    assert pack(torch.tensor(lengths), room, width).tolist() == wanted


@pytest.mark.parametrize(
    ("words", "verified", "accepted", "out"),
    [
        ([7, 8, 2, 1], 4, 2, [7, 8, 2]),
        ([7, 8, 2, 1], 2, 1, [7, 8]),
        ([7, 8, 2, 1], 1, 0, [7]),
        ([7, 8, 9, 1], 4, 3, [7, 8, 9, 1]),
        ([6, 8, 9, 1], 4, 0, [6]),
        ([7, 8, 2, 1], 3, 2, [7, 8, 2]),  # the guess that was wrong is the last one judged
    ],
)
def test_greedy_accept_of_what_was_verified(
    words: list[int], verified: int, accepted: int, out: list[int]
) -> None:
    """T10: a bonus token 5 and the guesses 7, 8, 9."""
    said = torch.tensor([words])
    length = cap(accept_chain(torch.tensor([[7, 8, 9]]), said), torch.tensor([verified]))
    assert length.tolist() == [accepted + 1]
    assert mask_rejected(said, length)[0].tolist() == out + [-1] * (4 - len(out))


def test_a_guess_of_token_0_does_not_match_what_was_not_verified() -> None:
    """Trap 29: rows that were not verified say 0."""
    guesses = torch.tensor([[4, 0, 0], [0, 0, 0]])
    words = torch.tensor([[4, 0, 0, 0], [3, 0, 0, 0]])  # of each row one position was verified
    length = cap(accept_chain(guesses, words), torch.tensor([1, 1]))
    assert length.tolist() == [1, 1]
    assert mask_rejected(words, length)[:, 0].tolist() == [4, 3]


def test_what_was_not_verified_is_blank() -> None:
    """What a step that runs all positions judges by is what a packed one has."""
    logits = torch.arange(12.0).view(2, 3, 2) + 1
    logits[1, 2] = float("nan")
    left = blank(logits, torch.tensor([3, 2]))
    assert torch.equal(left[0], logits[0])
    assert torch.equal(left[1, :2], logits[1, :2])
    assert left[1, 2].tolist() == [0, 0]


def test_a_block_begins_with_the_bonus_token() -> None:
    assert mask_block(torch.tensor([5, 2]), 9, 3).tolist() == [[5, 9, 9], [2, 9, 9]]
    assert mask_block(torch.tensor([5]), 9, 1).tolist() == [[5]]


# -- the allocation is the best there is -----------------------------------------------------------

eighths = st.integers(0, 8).map(lambda n: n / 8)
tables = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.lists(eighths, min_size=width, max_size=width).map(lambda r: sorted(r, reverse=True)),
        min_size=1,
        max_size=4,
    )
)


@given(tables, st.integers(0, 12))
@settings(max_examples=300, deadline=None)
def test_no_other_prefixes_are_likelier(survival: list[list[float]], guesses: int) -> None:
    """Against all choices of a prefix a row; of those as good, the fewest and the earliest."""
    found = lengths_of(survival, guesses)
    width = len(survival[0])
    assert all(1 <= n <= width + 1 for n in found)
    assert sum(found) - len(found) <= guesses

    def worth(counts: tuple[int, ...]) -> float:
        return sum(sum(row[:n]) for row, n in zip(survival, counts, strict=True))

    choices = itertools.product(range(width + 1), repeat=len(survival))
    fitting = [c for c in choices if sum(c) <= guesses]
    best = max(map(worth, fitting))
    taken = tuple(n - 1 for n in found)
    assert worth(taken) == best  # eighths are exact in floats
    assert all(s > 0 for row, n in zip(survival, taken, strict=True) for s in row[:n])
    # Of equals the earlier position goes first, then the earlier row: one order settles all ties.
    order = sorted(
        (-survival[row][i], i, row) for row in range(len(survival)) for i in range(width)
    )
    chosen = [(row, i) for s, i, row in order[:guesses] if -s >= EPSILON]
    assert taken == tuple(sum(r == row for r, _ in chosen) for row in range(len(survival)))


@given(tables, st.integers(0, 12))
@settings(max_examples=100, deadline=None)
def test_more_room_never_takes_a_position_away(survival: list[list[float]], guesses: int) -> None:
    less, more = (lengths_of(survival, n) for n in (guesses, guesses + 1))
    assert all(a <= b for a, b in zip(less, more, strict=True))


def test_allocation_and_packing_can_be_captured() -> None:
    survival = torch.rand(9, 7).cumprod(1)
    with CaptureSafe():
        lengths = allocate(survival, 40)
        packed = pack(lengths, 40, 8)
        cap(lengths, lengths)
    assert packed.shape == (40,)


# -- packed forwards -------------------------------------------------------------------------------

WIDTH, LENGTH, EXTENT = 5, 48, 40
PREFIXES = (6, 1, 23, 12, 9, 17, 2, 30, 8)  # around the sliding windows of 2 and 8
ARCHITECTURES = (*SHAPES, "kimi", "llama unpacked")
TAPS = (0, 2, 4)


@dataclass
class Rig:
    """A model over two pools that hold the same texts: one is read whole, one packed."""

    model: LanguageModel
    dense: KVPool
    ragged: KVPool
    starts: Tensor

    def window(self, pool: KVPool) -> Window:
        return self.model.window(pool, EXTENT)


def small_kimi() -> torch.nn.Module:
    """A Kimi K2: one group of experts, which a DeepSeek-V3 has several of."""
    torch.manual_seed(0)
    shape = tiny_models.BASE | tiny_models.MLA | {"n_group": 1, "topk_group": 1}
    model = KimiK2ForCausalLM(KimiK2Config(**shape)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.1)
    return model


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> LanguageModel:
    name, *unpacked = request.param.split()
    stock = small_kimi() if name == "kimi" else build(name)
    with pytest.MonkeyPatch.context() as patch:
        if not unpacked:
            patch.setattr(linear, "SMALLEST", 0)  # these matrices are far too small to be packed
        return LanguageModel.wrap(copy.deepcopy(stock))


def rig(model: LanguageModel, rows: int, seed: int = 1) -> Rig:
    """Both pools filled by the same prefills."""
    generator = torch.Generator().manual_seed(seed)
    pools = [model.pool(rows, LENGTH) for _ in range(2)]
    for row in range(rows):
        text = torch.randint(VOCABULARY, (PREFIXES[row],), generator=generator)
        for pool in pools:
            model.window(pool, EXTENT, row=row).prefill(text)
    return Rig(model, *pools, torch.tensor(PREFIXES[:rows]))


def draws(rows: int, seed: int) -> list[list[int]]:
    """Lengths of several steps: drawn, all the least, one row alone, all but one whole."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(1, WIDTH + 1, (3, rows), generator=generator).tolist()
    alone = [WIDTH if row == rows // 2 else 1 for row in range(rows)]
    whole = [WIDTH] * rows
    return [*drawn, [1] * rows, alone, whole, [*whole[:-1], 1]]


def close(found: Tensor, expected: Tensor) -> None:
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, atol=2e-5 * scale, rtol=1e-4)


def kept(pool: KVPool, row: int, begin: int, end: int) -> list[Tensor]:
    """Keys and values of some positions of a row, layer by layer."""
    return [t[:, :, begin:end] for n in pool.shapes for t in pool.read(n, 1, end, row)]


@pytest.mark.parametrize(("rows", "spare"), [(1, 9), (4, 3), (9, 0)])
def test_packed_positions_say_what_all_of_them_say(
    model: LanguageModel, rows: int, spare: int
) -> None:
    """Step after step on the KV that the packed forwards themselves wrote."""
    made = rig(model, rows)
    dense, ragged = made.window(made.dense), made.window(made.ragged)
    generator = torch.Generator().manual_seed(rows)
    for lengths in draws(rows, 5):
        tokens = torch.randint(VOCABULARY, (rows, WIDTH), generator=generator)
        room = min(sum(lengths) + spare, rows * WIDTH)
        packed = pack(torch.tensor(lengths), room, WIDTH)
        logits, taps = dense.verify_taps(tokens, made.starts, TAPS)
        before = [kept(made.ragged, row, 0, LENGTH) for row in range(rows)]
        before = [[t.clone() for t in each] for each in before]
        few, seen = ragged.verify_packed_taps(tokens, made.starts, packed, TAPS)
        assert few.shape == logits.shape
        assert seen.shape == taps.shape
        whole = room == rows * WIDTH  # room for all of them: all are computed
        for row, n in enumerate(lengths):
            close(few[row, :n], logits[row, :n])
            close(seen[row, :n], taps[row, :n])
            begin = int(made.starts[row])
            for ours, theirs in zip(
                kept(made.ragged, row, 0, begin + n),
                kept(made.dense, row, 0, begin + n),
                strict=True,
            ):
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
            assert not few[row, n:].any()
            assert not seen[row, n:].any()
            if whole:
                continue
            for now, then in zip(
                kept(made.ragged, row, begin + n, LENGTH),
                [t[:, :, begin + n :] for t in before[row]],
                strict=True,
            ):
                assert torch.equal(now, then)  # what is not verified is not written
        # Some of it is accepted: the next step reads KV that was written packed.
        gained = [1 + int(torch.randint(n, (), generator=generator)) for n in lengths]
        made.starts = made.starts + torch.tensor(gained) * (made.starts + 2 * WIDTH < EXTENT)


def test_a_packed_step_can_be_captured(model: LanguageModel) -> None:
    made = rig(model, 4)
    tokens = torch.randint(VOCABULARY, (4, WIDTH))
    window = made.window(made.ragged)
    for lengths in ([1, 4, 2, 5], [3, 3, 1, 1]):
        packed = pack(torch.tensor(lengths), 14, WIDTH)
        window.verify_packed_taps(tokens, made.starts, packed, TAPS)
        with CaptureSafe():
            window.verify_packed_taps(tokens, made.starts, packed, TAPS)


def test_what_is_nowhere_touches_nothing(model: LanguageModel) -> None:
    """Poison: a NaN where padding is written must not reach anybody."""
    made = rig(model, 3)
    window = made.window(made.ragged)
    tokens = torch.randint(VOCABULARY, (3, WIDTH), generator=torch.Generator().manual_seed(2))
    packed = pack(torch.tensor([2, 1, 3]), 11, WIDTH)
    first, _ = window.verify_packed_taps(tokens, made.starts, packed, TAPS)
    for table in (made.ragged._keys, made.ragged._values):
        for rows in table.values():
            rows[-1] = float("nan")
    again, taps = window.verify_packed_taps(tokens, made.starts, packed, TAPS)
    assert torch.equal(first, again)
    assert torch.isfinite(taps).all()


def test_positions_that_run_past_the_pool_are_nowhere(model: LanguageModel) -> None:
    """The last step of a long text: guesses beyond the last slot are written to the trash."""
    pools = [model.pool(2, 12) for _ in range(2)]
    for pool in pools:
        for row in range(2):
            model.window(pool, 12, row=row).prefill(torch.arange(3, 13))
    starts, tokens = torch.tensor([10, 5]), torch.arange(10).view(2, 5)
    packed = pack(torch.tensor([4, 3]), 8, WIDTH)
    few, _ = model.window(pools[0], 12).verify_packed_taps(tokens, starts, packed, TAPS)
    whole, _ = model.window(pools[1], 12).verify_taps(tokens, starts, TAPS)
    close(few[0, :2], whole[0, :2])
    close(few[1, :3], whole[1, :3])
