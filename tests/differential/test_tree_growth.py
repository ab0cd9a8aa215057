"""Tree growth and selection: the vectors of serial.md §10, and a slow tree in plain Python."""

from __future__ import annotations

import random

import pytest
import torch

from specflow.kernels import (
    branch,
    follow,
    grow_tree,
    likeliest,
    ranks,
    roots,
    select_tree,
    tree_arrays,
)

STEPS = ([[0.6, 0.3]], [[[0.55, 0.35], [0.9, 0.05]]], [[[0.8, 0.1], [0.7, 0.2]]])
WORDS = ([[11, 12]], [[[21, 22], [23, 24]]], [[[31, 32], [33, 34]]])


def grown(chances: list, words: list, positions: int) -> tuple[list, list, list]:
    """Guesses, parents and the branches kept, level by level, as the generated step grows them."""
    scores, tokens = torch.tensor(chances[0]), torch.tensor(words[0])
    kept = ranks(tokens)
    offered, said, branches = [scores], [tokens], [kept]
    for level in range(1, len(chances)):
        scores, kept, offer = grow_tree(scores, torch.tensor(chances[level]))
        tokens, _, spoken = follow(torch.tensor(words[level]), kept)
        offered.append(offer)
        said.append(spoken)
        branches.append(kept)
    guesses, parents = select_tree(offered, said, branches, positions)
    return guesses.tolist(), parents.tolist(), [each.tolist() for each in branches]


@pytest.mark.parametrize(
    ("positions", "guesses", "parents", "depths", "packed"),
    [
        (6, [11, 12, 21, 23, 31], [0, 0, 1, 2, 3], [0, 1, 1, 2, 2, 3], [1, 3, 5, 11, 21, 43]),
        (
            8,
            [11, 12, 21, 22, 23, 31, 33],
            [0, 0, 1, 1, 2, 3, 5],
            [0, 1, 1, 2, 2, 2, 3, 3],
            [1, 3, 5, 11, 19, 37, 75, 165],
        ),
    ],
)
def test_the_vector_of_the_spec(
    positions: int, guesses: list, parents: list, depths: list, packed: list
) -> None:
    """TV-1: candidates, survivors, the selected tree, its depths and its masks."""
    found, hung, branches = grown(list(STEPS), list(WORDS), positions)
    assert (found, hung) == ([guesses], [parents])
    assert branches[1] == [[0, 2]]
    deep, sees = tree_arrays(torch.tensor(hung))
    assert deep.tolist() == [depths]
    rows = [sum(int(bit) << j for j, bit in enumerate(row)) for row in sees[0].tolist()]
    assert rows == packed


def test_one_level_hangs_from_the_root() -> None:
    """TV-2: K = 4, S = 1, N = 5."""
    found, hung, _ = grown([[[0.4, 0.3, 0.2, 0.1]]], [[[7, 8, 9, 10]]], 5)
    assert (found, hung) == ([[7, 8, 9, 10]], [[0, 0, 0, 0]])


@pytest.mark.parametrize("seed", range(40))
def test_a_plain_tree_agrees(seed: int) -> None:
    """Random levels with ties and zeros: candidates, order and parents of a list-based tree."""
    draw = random.Random(seed)
    width, levels = draw.randint(1, 4), draw.randint(1, 4)

    def row() -> list[float]:
        return sorted((draw.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(width)), reverse=True)

    chances: list = [[row()]] + [[[row() for _ in range(width)]] for _ in range(levels - 1)]
    words: list = [[[draw.randint(0, 99) for _ in range(width)]]]
    words += [
        [[[draw.randint(0, 99) for _ in range(width)] for _ in range(width)]]
        for _ in range(levels - 1)
    ]
    nodes = [(chances[0][0][r], words[0][0][r], -1) for r in range(width)]
    survivors, begin = list(range(width)), width
    for level in range(1, levels):
        for lane, parent in enumerate(survivors):
            for rank in range(width):
                chance = nodes[parent][0] * chances[level][0][lane][rank]
                nodes.append((chance, words[level][0][lane][rank], parent))
        new = range(begin, len(nodes))
        survivors = sorted(new, key=lambda i: (-nodes[i][0], i))[:width]
        begin = len(nodes)
    positions = draw.randint(2, len(nodes) + 1)
    order = sorted(range(len(nodes)), key=lambda i: (-nodes[i][0], i))
    chosen = sorted(order[: positions - 1])
    assert all(nodes[i][2] in {-1, *chosen} for i in chosen)
    found, hung, _ = grown(chances, words, positions)
    assert found == [[nodes[i][1] for i in chosen]]
    assert hung == [[0 if nodes[i][2] < 0 else chosen.index(nodes[i][2]) + 1 for i in chosen]]


def test_branches_see_their_ancestors_and_themselves() -> None:
    """Lanes that change parents keep exactly the line they come from."""
    sees = roots(torch.zeros(1, 2, dtype=torch.int64), 4)
    assert sees.int().tolist() == [[[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]]
    sees = branch(sees, torch.tensor([[1, 1]]), 1)
    assert sees.int().tolist() == [[[0, 1, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0]]]
    sees = branch(sees, torch.tensor([[1, 0]]), 2)
    assert sees.int().tolist() == [[[0, 1, 0, 1, 1, 0], [0, 1, 1, 0, 0, 1]]]
    assert branch(sees, torch.tensor([[0, 1]]), 3).int().tolist() == sees.int().tolist()


def test_what_is_no_number_has_no_chance() -> None:
    """A draft that says NaN offers tokens without a chance, and never more than 1."""
    logits = torch.tensor([[float("nan")] * 4, [1e30, 0.0, 0.0, 0.0]])
    _, chances = likeliest(logits, 2)
    assert chances.tolist() == [[0.0, 0.0], [1.0, 0.0]]
