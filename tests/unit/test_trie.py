"""The trie gives the published trees, and says what it does at the edges."""

from __future__ import annotations

import pytest

from specflow.models.trie import PADDING, Node, Proposal, Trie

COUNTING = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
REPDIGITS = [1, 2, 3, 44, 55, 66, 77, 88, 99, 100]
REPEATS = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 6]


def trie_of(*texts: list[int], **options) -> Trie:
    trie = Trie(**options)
    for text in texts:
        trie.insert(text)
    return trie


def counts_under(trie: Trie, *tokens: int) -> dict[int, int]:
    node: Node | None = trie.root
    for token in tokens:
        assert node is not None
        node = node.child(token)
    assert node is not None
    return {child.token: child.count for child in node.newest_first()}


def leaf_paths(proposal: Proposal) -> set[tuple[int, ...]]:
    rows = range(proposal.size)
    inner = set(proposal.parents[: proposal.size])

    def path(row: int) -> tuple[int, ...]:
        return () if row < 0 else (*path(proposal.parents[row]), proposal.tokens[row])

    return {path(row) for row in rows if row not in inner}


# TV-10 of the specification; padded rows are 0 there and PADDING here.
@pytest.mark.parametrize(
    ("query", "tokens", "parents", "size", "matched"),
    [
        ([1, 2, 3], [3, 44, 4, 55, 5, 66, 6, 77], [-1, 0, 0, 1, 2, 3, 4, 5], 8, 3),
        ([3, 44], [44, 55, 66, 77, 88, 99, 100, -1], [-1, 0, 1, 2, 3, 4, 5, 0], 7, 2),
        ([3, 6, 999], [999, *[-1] * 7], [-1, *[0] * 7], 1, 0),
        ([5, 6], [6, 7, 8, 9, 10, -1, -1, -1], [-1, 0, 1, 2, 3, 0, 0, 0], 5, 2),
    ],
)
def test_published_trees(query, tokens, parents, size, matched) -> None:
    trie = trie_of(COUNTING, REPDIGITS, depth=12, breadth=(1, 8))
    assert trie.propose(query, 8) == Proposal(tokens, parents, size, matched)


def test_published_paths() -> None:
    trie = trie_of(COUNTING, REPDIGITS, depth=12, breadth=(1, 8))
    assert leaf_paths(trie.propose([1, 2, 3], 8)) == {(3, 44, 55, 66, 77), (3, 4, 5, 6)}
    assert leaf_paths(trie.propose([9, 9], 8)) == {(9, 10)}
    assert leaf_paths(trie.propose([3, 6, 999], 8)) == {(999,)}


def test_published_tree_and_counts_of_a_repeating_window() -> None:
    trie = trie_of(REPEATS, breadth=(1, 10))
    assert counts_under(trie, 1, 2) == {3: 2, 6: 1}
    assert list(counts_under(trie, 1, 2)) == [6, 3]
    proposal = trie.propose([7, 1, 2], 8)
    assert proposal == Proposal([2, 6, 3, 5, 4, 1, 1, 2], [-1, 0, 0, 2, 2, 3, 4, 5], 8, 2)
    assert leaf_paths(proposal) == {(2, 6), (2, 3, 5, 1, 2), (2, 3, 4, 1)}


def test_insert_counts_a_window_again_and_append_only_what_is_new() -> None:
    trie = trie_of(REPEATS, REPEATS)
    assert counts_under(trie, 1, 2) == {3: 4, 6: 2}
    trie = trie_of(REPEATS)
    trie.append([*REPEATS, 3], 1)
    assert counts_under(trie, 1, 2) == {3: 2, 6: 1}
    assert counts_under(trie, 2, 6) == {3: 1}
    assert counts_under(trie)[3] == 3


def test_append_reaches_back_one_string_only() -> None:
    trie = Trie(depth=3)
    trie.append([7, 8, 1, 2, 3], 1)
    assert set(counts_under(trie)) == {1, 2, 3}
    assert counts_under(trie, 1, 2) == {3: 1}


@pytest.mark.parametrize("new", [-1, 0])
def test_append_of_nothing_reads_nothing(new: int) -> None:
    trie = Trie()
    trie.append([1, 2, 3], new)
    assert len(trie) == 0


def test_append_takes_a_short_history_whole() -> None:
    trie = Trie()
    trie.append([1, 2, 3], 9)
    assert len(trie) == 6


def test_match_wants_a_continuation() -> None:
    trie = trie_of([1, 2, 3])
    assert [(length, node.token) for length, node in trie.match([1, 2])] == [(2, 2), (1, 2)]
    assert trie.match([2, 3]) == []  # known, but the text ended there
    assert trie.match([]) == []
    assert Trie().match([1]) == []


def test_match_looks_at_the_last_tokens_only() -> None:
    trie = trie_of([1, 2, 3, 4], depth=3)
    assert [length for length, _ in trie.match([1, 2, 3])] == [2, 1]
    assert [length for length, _ in trie.match([9, 9, 9, 2, 3])] == [2, 1]


def test_one_token_query() -> None:
    assert trie_of([1, 2, 3]).propose([1], 4) == Proposal([1, 2, 3, PADDING], [-1, 0, 1, 0], 3, 1)
    assert Trie().propose([1], 2) == Proposal([1, PADDING], [-1, 0], 1, 0)


def test_width_one_is_the_bonus_alone() -> None:
    assert trie_of([1, 2, 3]).propose([1, 2], 1) == Proposal([2], [-1], 1, 2)


def test_a_tree_needs_a_bonus_and_a_row() -> None:
    with pytest.raises(ValueError, match="bonus token"):
        Trie().propose([], 4)
    with pytest.raises(ValueError, match="a row for it"):
        Trie().propose([1], 0)


@pytest.mark.parametrize(
    "options", [{"depth": 0}, {"breadth": (0, 3)}, {"breadth": (4, 3)}, {"depth": 5, "capacity": 4}]
)
def test_a_trie_that_holds_nothing_is_refused(options) -> None:
    with pytest.raises(ValueError, match="cannot"):
        Trie(**options)


def test_breadth_narrows_with_length_in_whole_numbers() -> None:
    assert Trie(depth=18, breadth=(1, 10)).breadths[:4] == (10, 9, 8, 8)
    assert Trie(depth=31, breadth=(1, 10)).breadths[20] == 4  # 10 float steps of 0.3 make 3.99…
    assert Trie(depth=1, breadth=(2, 3)).breadths == (2,)


def test_a_longer_match_spreads_less() -> None:
    trie = trie_of([1, 2], [1, 3], [1, 4], [1, 5], depth=5, breadth=(1, 4))
    assert trie.breadths == (4, 3, 2, 1, 1)
    assert trie.propose([1], 8).tokens[:5] == [1, 5, 4, 3, PADDING]
    trie = trie_of([1, 2, 6], [1, 2, 7], [1, 2, 8], depth=5, breadth=(1, 4))
    assert trie.propose([1], 8).tokens[:5] == [1, 2, 8, 7, PADDING]


def test_breadth_one_is_a_chain() -> None:
    proposal = trie_of(REPEATS, breadth=(1, 1)).propose([2], 5)
    assert proposal == Proposal([2, 6, PADDING, PADDING, PADDING], [-1, 0, 0, 0, 0], 2, 1)
    proposal = trie_of(REPEATS, breadth=(1, 1)).propose([4], 5)
    assert proposal == Proposal([4, 1, 2, 3, 5], [-1, 0, 1, 2, 3], 5, 1)


def test_a_shorter_match_fills_what_a_longer_one_left() -> None:
    trie = trie_of([5, 2, 8], [1, 2, 3])
    assert trie.propose([1, 2], 4) == Proposal([2, 3, 8, PADDING], [-1, 0, 0, 0], 3, 2)


def test_frequency_puts_the_commonest_first() -> None:
    texts = [[1, 2], [1, 2], [1, 2], [1, 3], [1, 3], [1, 4]]
    trie = trie_of(*texts, order="frequency")
    assert trie.propose([1], 4).tokens == [1, 2, 3, 4]
    assert trie_of(*texts).propose([1], 4).tokens == [1, 4, 3, 2]


def test_frequency_breaks_ties_by_recency() -> None:
    trie = trie_of([1, 2], [1, 3], [1, 2], [1, 3], order="frequency")
    assert trie.propose([1], 3).tokens == [1, 3, 2]


def test_frequency_weighs_whole_strings() -> None:
    # 2 has 3 of 5, shared by 5 and 6: 0.3 each, although each is half of what followed 2.
    trie = trie_of([1, 2, 5], [1, 2, 6], [1, 2], [1, 3], [1, 3], order="frequency")
    assert trie.propose([1], 3).tokens == [1, 2, 3]
    assert trie.propose([1], 4) == Proposal([1, 2, 3, 6], [-1, 0, 0, 1], 4, 1)


def test_frequency_shares_out_among_the_children_it_keeps() -> None:
    # With two children kept, 2 takes 2/4 and not 2/5, and 4 is never proposed.
    texts = [[1, 4], [1, 3], [1, 3], [1, 2], [1, 2]]
    trie = trie_of(*texts, breadth=(1, 2), order="frequency")
    assert trie.propose([1], 4) == Proposal([1, 2, 3, PADDING], [-1, 0, 0, 0], 3, 1)


def test_the_oldest_string_is_evicted() -> None:
    trie = trie_of([1, 2], [3, 4], depth=2, capacity=6)
    trie.insert([5, 6])
    assert set(counts_under(trie)) == {3, 4, 5, 6}
    assert trie.propose([1], 2).size == 1


def test_append_restores_what_was_evicted_under_it() -> None:
    trie = Trie(depth=3, capacity=3)
    trie.insert([1, 2])
    trie.insert([8, 9])
    trie.append([1, 2, 3], 1)
    assert len(trie) <= 3
    trie.append([1, 2], 1)
    assert counts_under(trie, 1) == {2: 1}


def test_clear_forgets() -> None:
    trie = trie_of(REPEATS)
    trie.clear()
    assert len(trie) == 0
    assert trie.propose([1, 2], 3).size == 1
