"""The greedy accept and the arrays of a tree, against the spec's vectors and a walk of paths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specflow.kernels import (
    accept_chain,
    accept_tree,
    mask_rejected,
    take_last,
    take_path,
    take_previous,
    tree_arrays,
    widen,
)

# serial.md TV-1, N = 6 and N = 8: parents of nodes 1.., depths, packed rows of the mask.
TREES = [
    ([0, 0, 1, 2, 3], [0, 1, 1, 2, 2, 3], [1, 3, 5, 11, 21, 43]),
    ([0, 0, 1, 1, 2, 3, 5], [0, 1, 1, 2, 2, 2, 3, 3], [1, 3, 5, 11, 19, 37, 75, 165]),
    ([0, 1, 2, 3], [0, 1, 2, 3, 4], [1, 3, 7, 15, 31]),  # TV-2: a chain
    ([0, 0, 0, 0], [0, 1, 1, 1, 1], [1, 3, 5, 9, 17]),  # TV-2: all children of the root
]


@pytest.mark.parametrize(("parents", "depths", "packed"), TREES)
def test_tree_arrays(parents: list[int], depths: list[int], packed: list[int]) -> None:
    found, sees = tree_arrays(torch.tensor([parents]))
    assert found[0].tolist() == depths
    bits = 1 << torch.arange(sees.shape[-1])
    assert (sees[0] * bits).sum(-1).tolist() == packed


# serial.md TV-4 on TV-1 (N = 6): node tokens 11, 12, 21, 23, 31.
WALKS = [
    ({0: 12, 2: 23, 4: 99}, [0, 2, 4], [12, 23, 99]),
    ({0: 11, 1: 21, 3: 31, 5: 50}, [0, 1, 3, 5], [11, 21, 31, 50]),
    ({0: 77}, [0], [77]),
    ({0: 12, 2: 21}, [0, 2], [12, 21]),  # node 3 says 21 too, and is no child of node 2
]


@pytest.mark.parametrize(("said", "nodes", "emitted"), WALKS)
def test_greedy_walk(said: dict[int, int], nodes: list[int], emitted: list[int]) -> None:
    guesses, parents = torch.tensor([[11, 12, 21, 23, 31]]), torch.tensor([[0, 0, 1, 2, 3]])
    verified = torch.tensor([[said.get(i, 500 + i) for i in range(6)]])
    path, length = accept_tree(guesses, parents, verified)
    assert path[0].tolist() == nodes + [-1] * (6 - len(nodes))
    assert length.tolist() == [len(nodes)]
    kept = mask_rejected(take_path(verified, path), length)
    assert kept[0].tolist() == emitted + [-1] * (6 - len(emitted))


def walk(guesses: list[int], parents: list[int], verified: list[int]) -> list[int]:
    """The walk as serial.md §3.1 tells it: the first child in order that is the node's word."""
    path = [0]
    while True:
        children = [i + 1 for i, p in enumerate(parents) if p == path[-1]]
        fits = [c for c in children if guesses[c - 1] >= 0 and guesses[c - 1] == verified[path[-1]]]
        if not fits:
            return path
        path.append(fits[0])


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Guesses, parents, words over a small vocabulary; siblings repeat, guesses are missing."""
    width = draw(st.integers(2, 16))
    parents = [draw(st.integers(0, i)) for i in range(width - 1)]
    words = st.integers(0, 2)
    guesses = draw(st.lists(st.integers(-1, 2), min_size=width - 1, max_size=width - 1))
    return guesses, parents, draw(st.lists(words, min_size=width, max_size=width))


@given(trees())
@settings(max_examples=300, deadline=None)
def test_accept_tree_is_the_walk(tree: tuple[list[int], list[int], list[int]]) -> None:
    path, length = accept_tree(*(torch.tensor([x]) for x in tree))
    expected = walk(*tree)
    assert path[0, : len(expected)].tolist() == expected
    assert (path[0, len(expected) :] == -1).all()
    assert int(length) == len(expected)


def rows(values: list[list[int]]) -> Tensor:
    return torch.tensor(values)


def test_chain_and_what_is_taken() -> None:
    guesses = rows([[5, 6, 7], [5, 6, 7], [5, 6, 7], [-1, 6, 7]])
    verified = rows([[5, 6, 7, 8], [5, 9, 7, 8], [9, 6, 7, 8], [5, 6, 7, 8]])
    length = accept_chain(guesses, verified)
    assert length.tolist() == [4, 2, 1, 1]
    assert mask_rejected(verified, length).tolist() == [
        [5, 6, 7, 8],
        [5, 9, -1, -1],
        [9, -1, -1, -1],
        [5, -1, -1, -1],
    ]
    assert take_last(verified, length).tolist() == [8, 9, 9, 5]
    assert take_previous(torch.tensor([1, 2, 3, 4]), verified, length).tolist() == [7, 5, 3, 4]
    assert accept_chain(guesses[:, :0], verified[:, :1]).tolist() == [1, 1, 1, 1]
    assert widen(verified[:, :1], 3).tolist()[0] == [5, -1, -1]


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
    st.lists(st.integers(0, 1), min_size=9, max_size=9),
)
def test_a_longer_matching_prefix_never_gains_less(guesses: list[int], verified: list[int]) -> None:
    shown = verified[: len(guesses) + 1]
    length = int(accept_chain(torch.tensor([guesses]), torch.tensor([shown])))
    assert 1 <= length <= len(guesses) + 1
    better = shown[:length] + guesses[length:]  # mend the first guess that failed
    again = int(accept_chain(torch.tensor([better[: len(guesses)]]), torch.tensor([shown])))
    assert again >= length
