"""Sampling laws by enumeration: coins are cut into cells on which a rule is constant."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specflow.kernels.block import survivals
from specflow.kernels.coins import draw_coins, philox
from specflow.kernels.sample import (
    accept_block,
    accept_rejection,
    accept_sampled,
    filter_law,
    law_of,
    pick,
)

# serial.md TV-5: nodes 1 (token 1), 2 (token 2), 3 (token 3, under 1).
GUESSES, PARENTS = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 0, 1]])
LAW = torch.tensor(
    [[[0.1, 0.4, 0.3, 0.2], [0.05, 0.05, 0.1, 0.8], [0.25] * 4, [0.7, 0.1, 0.1, 0.1]]],
    dtype=torch.float64,
)


@pytest.mark.parametrize(
    ("coins", "last", "single", "acc", "path", "emitted"),
    [
        ((0.35, 0.75), 0.5, 1.0, 1.0, [0, 1, 3], [1, 3, 0]),
        ((0.55, 0.75), 0.5, 1.0, 1.0, [0, 2], [2, 2]),
        ((0.90, 0.0), 0.5, 1.0, 1.0, [0], [3]),
        ((0.75, 0.95), 0.5, 1.0, 0.5, [0, 1, 3], [1, 3, 0]),
        ((0.90, 0.95), 0.5, 0.35, 1.0, [0, 1, 3], [1, 3, 0]),
        ((0.35, 0.85), 0.4, 1.0, 1.0, [0, 1], [1, 1]),
    ],
)
def test_tree_vectors(coins, last, single, acc, path, emitted) -> None:
    drawn = torch.tensor([[coins[0], coins[1], 0.5, 0.5, last]], dtype=torch.float64)
    found, length, gained = accept_sampled(GUESSES, PARENTS, LAW, drawn, single, acc)
    assert found[0].tolist() == path + [-1] * (4 - len(path))
    assert gained[0, : int(length)].tolist() == emitted


def enumerate_law(
    rule: Callable[[Tensor], tuple[Tensor, Tensor]], cuts: list[list[float]], emitted: int
) -> dict[tuple[int, ...], float]:
    """The law of the first tokens a rule gains: coin i is cut at cuts[i], one midpoint a cell."""
    edges = [sorted({0.0, 1.0, *(c for c in cut if 0 < c < 1)}) for cut in cuts]
    cells = [list(itertools.pairwise(e)) for e in edges]
    points, weights = [], []
    for cell in itertools.product(*cells):
        points.append([(a + b) / 2 for a, b in cell])
        weights.append(torch.tensor([b - a for a, b in cell], dtype=torch.float64).prod())
    length, gained = rule(torch.tensor(points, dtype=torch.float64))
    law: dict[tuple[int, ...], float] = {}
    for weight, n, tokens in zip(weights, length.tolist(), gained.tolist(), strict=True):
        key = tuple(tokens[: min(n, emitted)])
        law[key] = law.get(key, 0.0) + float(weight)
    return law


def expand(x: Tensor, rows: int) -> Tensor:
    return x.expand(rows, *x.shape[1:])


def boundaries(rows: Tensor) -> list[float]:
    """Where the running sums of any of the weights, as shares of their total, may cut a coin."""
    return sorted({float(v) for r in rows if r.sum() > 0 for v in (r / r.sum()).cumsum(-1)})


def tree_law(
    guesses, parents, law, single: float, acc: float, emitted: int
) -> dict[tuple[int, ...], float]:
    """The law of a tree's first tokens under the target-only rule."""
    width = law.shape[1]
    cuts: list[list[float]] = []
    finals: list[Tensor] = []
    for node in range(width):
        children = [
            int(g)
            for g, p in zip(guesses[0], parents[0], strict=True)
            if int(p) == node and int(g) >= 0
        ]
        running = (
            torch.cumsum(law[0, node, children], 0) if children else torch.zeros(0, dtype=law.dtype)
        )
        cuts.append([float(r) / acc for r in running])
        rest = law[0, node].clone()
        rest[children] = 0
        finals += [rest, law[0, node]]
    cuts.append(boundaries(torch.stack(finals)))

    def rule(coins: Tensor) -> tuple[Tensor, Tensor]:
        rows = coins.shape[0]
        _, length, gained = accept_sampled(
            expand(guesses, rows), expand(parents, rows), expand(law, rows), coins, single, acc
        )
        return length, gained

    return enumerate_law(rule, cuts, emitted)


def first(law: dict[tuple[int, ...], float], vocab: int) -> list[float]:
    return [sum(w for key, w in law.items() if key[0] == t) for t in range(vocab)]


@pytest.mark.parametrize(
    ("guesses", "single", "acc", "wanted"),
    [
        ([[1, 2, 3]], 1.0, 1.0, [0.1, 0.4, 0.3, 0.2]),
        ([[1, 2, 3]], 1.0, 0.5, [0, 0.8, 0.2, 0]),
        ([[1, 2, 3]], 0.35, 1.0, [0, 1, 0, 0]),
        (
            [[1, 1, 3]],
            1.0,
            1.0,
            [1 / 30, 0.8, 0.1, 1 / 15],
        ),  # duplicate siblings are biased, as the spec computes
        ([[1, -1, 3]], 1.0, 1.0, [0.1, 0.4, 0.3, 0.2]),  # a padded node changes nothing
    ],
)
def test_first_token_laws(guesses, single, acc, wanted) -> None:
    law = tree_law(torch.tensor(guesses), PARENTS, LAW, single, acc, 1)
    assert first(law, 4) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_trees_are_lossless_in_two_tokens(seed: int) -> None:
    """Where two tokens come out the joint law is the target's; a shorter run is its marginal."""
    generator = torch.Generator().manual_seed(seed)
    vocab, width = 5, 6
    parents = torch.tensor(
        [[int(torch.randint(0, i + 1, (), generator=generator)) for i in range(width - 1)]]
    )
    taken: dict[int, set[int]] = {}
    guesses = []
    for p in parents[0].tolist():  # siblings are distinct
        free = [t for t in range(vocab) if t not in taken.setdefault(p, set())]
        token = free[int(torch.randint(0, len(free), (), generator=generator))]
        taken[p].add(token)
        guesses.append(token)
    law = torch.rand(1, width, vocab, generator=generator, dtype=torch.float64)
    law[law < 0.2] = 0  # some tokens are impossible
    law[..., 0] += 0.1
    law = law / law.sum(-1, keepdim=True)
    found = tree_law(torch.tensor([guesses]), parents, law, 1.0, 1.0, 2)
    assert first(found, vocab) == pytest.approx(law[0, 0].tolist(), abs=1e-9)
    for node, (p, token) in enumerate(zip(parents[0].tolist(), guesses, strict=True), 1):
        if p != 0:
            continue
        reached = sum(w for key, w in found.items() if len(key) == 2 and key[0] == token)
        wanted = float(law[0, 0, token])
        assert reached == pytest.approx(
            wanted, abs=1e-9
        )  # an accepted child always yields one more token
        for t in range(vocab):
            pair = found.get((token, t), 0.0)
            assert pair == pytest.approx(wanted * float(law[0, node, t]), abs=1e-9)


P7 = torch.tensor([[[0.2, 0.5, 0.3], [0.3, 0.4, 0.3], [0.6, 0.2, 0.2]]], dtype=torch.float64)
Q7 = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("rule", "coins", "emitted"),
    [
        (accept_rejection, (0.5, 0.5), [1]),
        (accept_rejection, (0.3, 0.6), [0, 1, 0]),
        (accept_rejection, (0.3, 0.7), [0, 0]),
        (accept_block, (0.3, 0.6), [1]),
        (accept_block, (0.02, 0.6), [0, 0]),
        (accept_block, (0.9, 0.2), [0, 1, 0]),
    ],
)
def test_chain_vectors(rule, coins, emitted) -> None:
    """serial.md TV-7."""
    drawn = torch.tensor([[*coins, 0.5, 0.5]], dtype=torch.float64)
    length, gained = rule(torch.tensor([[0, 1]]), Q7, P7, drawn)
    assert gained[0, : int(length)].tolist() == emitted


@pytest.mark.parametrize("rule", [accept_rejection, accept_block])
@pytest.mark.parametrize("seed", range(4))
def test_chains_are_lossless(rule, seed: int) -> None:
    """Over all guesses drawn from q: the joint law of the first two tokens, marginals where one
    was emitted.

    Laws depend on what was said: P and Q of a second position are a function of the first token.
    """
    generator = torch.Generator().manual_seed(seed)
    vocab, count = 3, 2

    def laws(*shape: int) -> Tensor:
        made = torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.02
        return made / made.sum(-1, keepdim=True)

    p0, q0 = laws(vocab), laws(vocab)
    p1, q1 = laws(vocab, vocab), laws(vocab, vocab)  # by first token
    p2 = laws(vocab, vocab, vocab)
    joint: dict[tuple[int, ...], float] = {}
    for x, y in itertools.product(range(vocab), repeat=count):
        chance = float(q0[x] * q1[x, y])
        law = torch.stack([p0, p1[x], p2[x, y]])[None]
        proposed = torch.stack([q0, q1[x]])[None]
        guesses = torch.tensor([[x, y]])
        found = enumerate_law(
            lambda c, g=guesses, q=proposed, p=law: rule(
                expand(g, len(c)), expand(q, len(c)), expand(p, len(c)), c
            ),
            chain_cuts(x, y, p0, p1, p2, q0, q1),
            2,
        )
        for key, weight in found.items():
            joint[key] = joint.get(key, 0.0) + chance * weight
    one = [sum(w for k, w in joint.items() if k[0] == t) for t in range(vocab)]
    assert one == pytest.approx(p0.tolist(), abs=1e-9)
    for t in range(
        vocab
    ):  # after a one-token run the next token is drawn anew from the target's law
        short = joint.get((t,), 0.0)
        for u in range(vocab):
            pair = joint.get((t, u), 0.0) + short * float(p1[t, u])
            assert pair == pytest.approx(float(p0[t] * p1[t, u]), abs=1e-9)


def chain_cuts(x: int, y: int, p0, p1, p2, q0, q1) -> list[list[float]]:
    """Where either chain rule changes with a coin."""
    r1 = min(float(p0[x] / q0[x]), 1.0)
    r2 = min(r1 * float(p1[x, y] / q1[x, y]), 1.0)
    mass = float((r1 * p1[x] - q1[x]).clamp(min=0).sum())
    h1 = 1.0 if r1 >= 1 else mass / (mass + 1 - r1)
    rows = [
        p0,
        p1[x],
        p2[x, y],
        (p0 - q0).clamp(min=0),
        (p1[x] - q1[x]).clamp(min=0),
        (r1 * p1[x] - q1[x]).clamp(min=0),
    ]
    return [
        [float(p0[x] / q0[x]), h1],
        [float(p1[x, y] / q1[x, y]), r2],
        [],
        boundaries(torch.stack(rows)),
    ]


def test_equal_laws_keep_every_guess() -> None:
    coins = torch.rand(200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q = expand(Q7, 200)
    law = torch.cat([q, q[:, :1]], 1)
    guesses = torch.tensor([[0, 1]]).expand(200, 2)
    for rule in (accept_rejection, accept_block):
        length, _ = rule(guesses, q, law, coins)
        assert (length == 3).all()


def test_block_is_never_shorter_on_average() -> None:
    coins = torch.rand(20_000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    picks = [
        pick(
            expand(Q7[:, i], 20_000),
            torch.rand(20_000, generator=torch.Generator().manual_seed(2 + i)),
        )
        for i in range(2)
    ]
    guesses = torch.stack(picks, 1)
    means = [
        rule(guesses, expand(Q7, 20_000), expand(P7, 20_000), coins)[0].double().mean()
        for rule in (accept_rejection, accept_block)
    ]
    assert means[1] >= means[0] - 0.01  # 0.01 is four standard errors of the difference


def test_laws() -> None:
    logits = torch.tensor([[[1.0, 3.0, 2.0, 0.0]], [[1.0, 3.0, 2.0, 0.0]]], dtype=torch.float64)
    law = law_of(logits, torch.tensor([0.0, 2.0]))
    assert law[0, 0].tolist() == [0, 1, 0, 0]
    assert law[1, 0].tolist() == pytest.approx((logits[1, 0] / 2).softmax(-1).tolist())
    plain = law_of(logits, torch.tensor([1.0, 1.0]))
    zero, one = torch.tensor([0, 0]), torch.tensor([1.0, 1.0])
    kept = filter_law(plain, torch.tensor([2, 0]), one, torch.tensor([0.0, 0.0]))
    two = plain[0, 0, 1] + plain[0, 0, 2]
    assert kept[0, 0].tolist() == pytest.approx(
        [0, float(plain[0, 0, 1] / two), float(plain[0, 0, 2] / two), 0]
    )
    assert torch.allclose(kept[1], plain[1], atol=1e-12)
    nucleus = filter_law(plain, zero, torch.tensor([0.6, 0.7]), torch.tensor([0.0, 0.0]))
    assert (nucleus[0, 0] > 0).tolist() == [False, True, False, False]  # 0.64 crosses 0.6 alone
    assert (nucleus[1, 0] > 0).tolist() == [False, True, True, False]
    least = filter_law(plain, zero, one, torch.tensor([0.3, 0.0]))
    assert (least[0, 0] > 0).tolist() == [False, True, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("heat", [1e-46, 1e-45, 1e-40, 2.0**-126, 1e-30, 1e-6])
def test_a_law_near_temperature_0_is_greedy(heat: float, dtype: torch.dtype) -> None:
    """Each logit over such a temperature is past float32; all that counts is which is highest."""
    logits = torch.tensor([[[-5.0, 9.0, -torch.inf, 1.0], [5e8, -7.0, 3.0, 4e8]]], dtype=dtype)
    law = law_of(logits, torch.tensor([heat], dtype=torch.float32))
    assert law.tolist() == [[[0, 1, 0, 0], [1, 0, 0, 0]]]


@pytest.mark.parametrize("heat", [100.0, 1e30, 3e38])
def test_a_law_at_a_large_temperature_is_level(heat: float) -> None:
    law = law_of(torch.tensor([[[-0.5, 0.5]]]), torch.tensor([heat]))
    assert law.flatten().tolist() == pytest.approx([0.5, 0.5], abs=0.5 / heat)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 1e-46, 0.0), (0, 1e-40, 0.0), (1, 1.0, 0.0), (0, 1.0, 1.0), (2**31, 1e-46, 1.0)],
)
def test_cuts_to_the_bone_keep_the_likeliest(top_k: int, top_p: float, min_p: float) -> None:
    law = torch.tensor([[[0.25, 0.125, 0.5, 0.125]]])
    kept = filter_law(law, torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))
    assert kept.flatten().tolist() == [0, 0, 1, 0]


def test_confidences_at_the_least_temperature_are_certain() -> None:
    """A file of temperatures may hold what float32 has no number for."""
    found = survivals(torch.tensor([[3.0, 0.0, -2.0]]), (1e-300, 1e-46, 1e-45))
    assert found.tolist() == [[1.0, 0.5, 0.0]]


def test_a_pick_is_never_of_weight_zero() -> None:
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    top = torch.tensor([1 - 2.0**-24])
    assert pick(weights, torch.tensor([0.0])).tolist() == [1]
    assert pick(weights, top).tolist() == [3]
    assert pick(torch.tensor([[0.0, 0.0, 1e-38]]), top).tolist() == [2]


def test_philox_known_answers() -> None:
    """The vectors published with the generator (Random123, kat_vectors, philox4x32-10)."""

    def word(value: int) -> Tensor:
        return torch.tensor([value])

    zero, ones = word(0), word(0xFFFFFFFF)
    assert int(philox((zero, zero), (zero,) * 4)) == 0x6627E8D5
    assert int(philox((ones, ones), (ones,) * 4)) == 0x408F276D
    pi = (word(0x243F6A88), word(0x85A308D3), word(0x13198A2E), word(0x03707344))
    assert int(philox((word(0xA4093822), word(0x299F31D0)), pi)) == 0xD16CFE09


def test_coins_do_not_depend_on_the_batch() -> None:
    seeds, positions = torch.tensor([5, -7, 2**62]), torch.tensor([10, 11, 12])
    together = draw_coins(seeds, positions, 6, 0)
    for i in range(3):
        assert torch.equal(draw_coins(seeds[i : i + 1], positions[i : i + 1], 6, 0)[0], together[i])
    assert not torch.equal(draw_coins(seeds, positions, 6, 1), together)
    many = draw_coins(torch.arange(1000), torch.zeros(1000, dtype=torch.int64), 64, 0)
    assert 0 <= float(many.min()) <= float(many.max()) < 1
    assert abs(float(many.mean()) - 0.5) < 0.005  # 64,000 coins: four standard errors
