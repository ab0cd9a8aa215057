"""Do trees, chains and plain steps over our pool say what the stock model says alone?"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specflow.models import linear
from specflow.models.lm import LanguageModel, Window
from specflow.pools import KVPool
from tests.capture_safety import CaptureSafe, HostSyncError
from tests.differential.tiny_models import SHAPES, VOCABULARY, build

PREFIXES = (5, 23, 12)  # around the sliding window of 8
CUTS = ((0, 2, 5), (0, 7, 8, 19, 23), (0, 12))  # uneven chunks
NODES = 7
LENGTH, EXTENT = 80, 64
ATOL = 1e-5


@dataclass
class Rig:
    """One model twice: as the library runs it, and as we drive it."""

    stock: PreTrainedModel
    lm: LanguageModel
    texts: list[list[int]]

    def start(self, extent: int = EXTENT) -> tuple[KVPool, Window]:
        pool = self.lm.pool(len(self.texts), LENGTH)
        for row, (text, cuts) in enumerate(zip(self.texts, CUTS, strict=True)):
            window = self.lm.window(pool, extent, row=row)
            for begin, end in pairwise(cuts):
                logits, _, _ = window.prefill(torch.tensor(text[begin:end]), begin)
            self.check(logits[0], text)
        return pool, self.lm.window(pool, extent)

    @torch.inference_mode()
    def expected(self, text: list[int]) -> Tensor:
        return self.stock(torch.tensor([text]), use_cache=False).logits[0]

    def check(self, logits: Tensor, text: list[int]) -> None:
        """The row after a text equals the stock model's last one."""
        assert_close(logits, self.expected(text)[-1])

    def lens(self) -> Tensor:
        return torch.tensor([len(text) for text in self.texts])


def assert_close(actual: Tensor, expected: Tensor) -> None:
    scale = max(1.0, float(expected.abs().max()))  # logits of a Gemma are in the tens
    torch.testing.assert_close(actual, expected, atol=ATOL * scale, rtol=0)
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.fixture(scope="module", params=[*SHAPES, "llama unpacked"])
def pair(request: pytest.FixtureRequest) -> tuple[PreTrainedModel, LanguageModel]:
    torch.set_num_threads(1)
    name, *unpacked = request.param.split()
    stock = build(name)
    with pytest.MonkeyPatch.context() as patch:
        if not unpacked:
            patch.setattr(linear, "SMALLEST", 0)  # these matrices are far too small to be packed
        lm = LanguageModel.wrap(copy.deepcopy(stock))
    return stock, lm


@pytest.fixture
def rig(pair: tuple[PreTrainedModel, LanguageModel]) -> Rig:
    draw = random.Random(7)
    return Rig(*pair, [[draw.randrange(VOCABULARY) for _ in range(n)] for n in PREFIXES])


def grow(draw: random.Random) -> list[int]:
    """Parents of a random tree in an order where a parent comes first; the root's is -1."""
    return [-1, *(draw.randrange(node) for node in range(1, NODES))]


def lineage(parents: list[int], node: int) -> list[int]:
    """The nodes from the root to this one."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def arrays(trees: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Depths [B, W] and ancestors [B, W, W] of trees given by parents."""
    depths = torch.zeros(len(trees), NODES, dtype=torch.int64)
    ancestors = torch.zeros(len(trees), NODES, NODES, dtype=torch.bool)
    for row, parents in enumerate(trees):
        for node in range(NODES):
            path = lineage(parents, node)
            depths[row, node] = len(path) - 1
            ancestors[row, node, path] = True
    return depths, ancestors


def padded(paths: list[list[int]]) -> Tensor:
    return torch.tensor([path + [-1] * (NODES - len(path)) for path in paths])


def one_round(
    rig: Rig, window: Window, trees: list[list[int]], leaves: list[int], draw: random.Random
) -> None:
    """Verify a tree a row, compare every node, accept the path to a leaf."""
    tokens = torch.tensor([[draw.randrange(VOCABULARY) for _ in range(NODES)] for _ in trees])
    lens = rig.lens()
    logits = window.verify_tree(tokens, lens, *arrays(trees))
    paths = []
    for row, (parents, leaf) in enumerate(zip(trees, leaves, strict=True)):
        for node in range(NODES):
            text = rig.texts[row] + tokens[row, lineage(parents, node)].tolist()
            rig.check(logits[row, node], text)
        paths.append(lineage(parents, leaf))
        rig.texts[row] += tokens[row, paths[-1]].tolist()
    window.move_accepted(padded(paths), lens)


def assert_pool_holds(rig: Rig, pool: KVPool) -> None:
    """Every row holds what a plain prefill of the same text would have written."""
    plain = rig.lm.pool(len(rig.texts), LENGTH)
    for row, text in enumerate(rig.texts):
        rig.lm.window(plain, EXTENT, row=row).prefill(torch.tensor(text))
        for layer in pool.shapes:
            for kept, fresh in zip(
                pool.read(layer, 1, len(text), row),
                plain.read(layer, 1, len(text), row),
                strict=True,
            ):
                torch.testing.assert_close(kept, fresh, atol=1e-4, rtol=1e-4)


def test_trees_over_three_rounds(rig: Rig) -> None:
    draw = random.Random(11)
    pool, window = rig.start()
    for _ in range(3):
        trees = [grow(draw) for _ in rig.texts]
        one_round(rig, window, trees, [draw.randrange(NODES) for _ in trees], draw)
    assert_pool_holds(rig, pool)


def test_accepted_path_overlaps_itself(rig: Rig) -> None:
    """Path [0, 2, 3, 5]: node 3 moves to where node 2 was, which moves to where node 1 was."""
    overlapping = [-1, 0, 0, 2, 0, 3, 1]
    pool, window = rig.start()
    for leaf in (5, 6, 5):  # 6: path [0, 1, 6]
        one_round(rig, window, [overlapping] * 3, [leaf, 5, 0], random.Random(leaf))
    assert_pool_holds(rig, pool)


@pytest.mark.parametrize("width", [1, 4])
def test_chains(rig: Rig, width: int) -> None:
    draw = random.Random(width)
    pool, window = rig.start()
    for _ in range(3):
        tokens = torch.tensor(
            [[draw.randrange(VOCABULARY) for _ in range(width)] for _ in rig.texts]
        )
        logits = window.verify(tokens, rig.lens())
        for row, text in enumerate(rig.texts):
            accepted = draw.randint(
                1, width
            )  # the rest of the chain is forgotten by not counting it
            rig.texts[row] = text + tokens[row, :accepted].tolist()
            assert_close(logits[row], rig.expected(text + tokens[row].tolist())[len(text) :])
    assert_pool_holds(rig, pool)


@pytest.mark.parametrize("tokens_a_row", [1, 3])
def test_decode(rig: Rig, tokens_a_row: int) -> None:
    draw = random.Random(3)
    pool, window = rig.start()
    for _ in range(3):
        tokens = torch.tensor(
            [[draw.randrange(VOCABULARY) for _ in range(tokens_a_row)] for _ in rig.texts]
        )
        logits = window.decode(tokens, rig.lens())
        for row, text in enumerate(rig.texts):
            rig.texts[row] = text + tokens[row].tolist()
            rig.check(logits[row], rig.texts[row])
    assert_pool_holds(rig, pool)


def test_nothing_in_a_step_waits_for_the_device(rig: Rig) -> None:
    pool, window = rig.start()
    depths, ancestors = arrays([grow(random.Random(row)) for row in range(3)])
    tokens = torch.randint(VOCABULARY, (3, NODES))
    lens = rig.lens()
    path = padded([[0, 2, 3, 5], [0], [0, 1, 6]])
    addresses = [view.data_ptr() for layer in pool.shapes for view in pool.read(layer, 3, EXTENT)]
    with CaptureSafe():
        window.verify(tokens, lens)
        window.verify_tree(tokens, lens, depths, ancestors)
        window.decode(tokens[:, :1], lens)
        window.move_accepted(path, lens)
    assert addresses == [
        view.data_ptr() for layer in pool.shapes for view in pool.read(layer, 3, EXTENT)
    ]


def test_a_row_moves_to_another_slot(rig: Rig) -> None:
    pool, _ = rig.start()
    pool.copy_row(2, 0, len(rig.texts[2]))
    rig.texts[0] = rig.texts[2]
    token = torch.tensor([[5]])
    logits = rig.lm.window(pool, EXTENT).decode(token, rig.lens()[:1])
    rig.check(logits[0], [*rig.texts[0], 5])


def test_writes_past_the_end_leave_other_rows_alone(rig: Rig) -> None:
    """A row that ended may carry any length until the host trims it."""
    _, window = rig.start()
    lens = rig.lens()
    lens[0] = LENGTH - 2
    tokens = torch.randint(VOCABULARY, (3, 4))
    logits = window.verify(tokens, lens)
    assert logits.isfinite().all()
    for row in (1, 2):
        expected = rig.expected(rig.texts[row] + tokens[row].tolist())[-4:]
        assert_close(logits[row], expected)


def test_the_clock_counts_forwards() -> None:
    lm = LanguageModel.wrap(build("llama"))
    window = lm.window(lm.pool(1, 16), 16)
    assert (lm.forwards, lm.forward_seconds) == (0, 0.0)
    window.prefill(torch.tensor([1, 2, 3]))
    window.decode(torch.tensor([[4]]), torch.tensor([3]))
    assert lm.forwards == 2
    assert 0 < lm.left - lm.entered <= lm.forward_seconds


@pytest.mark.parametrize(
    "sync",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
    ],
)
def test_the_guard_sees_a_sync(sync: object) -> None:
    x = torch.ones(3)
    with CaptureSafe(), pytest.raises(HostSyncError):
        sync(x)  # type: ignore[operator]


@pytest.mark.slow
def test_four_rows_of_a_packed_matrix_cost_about_one() -> None:
    """What `models/linear.py` claims, and why a verify of four is worth its time on a CPU."""
    torch.set_num_threads(1)
    weight = torch.randn(4096, 1024)
    packed = linear.PackedLinear(weight, None)

    def seconds(run: Callable[[Tensor], Tensor], rows: int) -> float:
        inputs, best = torch.randn(rows, 1024), float("inf")
        for _ in range(30):
            start = perf_counter()
            run(inputs)
            best = min(best, perf_counter() - start)
        return best

    assert seconds(packed.multiply, 4) < 1.3 * seconds(packed.multiply, 1)
    assert seconds(packed.multiply, 4) < seconds(lambda x: torch.nn.functional.linear(x, weight), 4)
