"""The trie agrees with a slow one: a dict of strings, and a list of them from new to old."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.models.trie import PADDING, Node, Proposal, Trie

Text = tuple[int, ...]

texts = st.lists(st.integers(0, 3), max_size=30)
pieces = st.lists(st.integers(0, 3), min_size=1, max_size=10)
queries = st.lists(st.integers(0, 3), min_size=1, max_size=8)
depths = st.integers(1, 6)
breadths = st.tuples(st.integers(1, 3), st.integers(0, 3)).map(lambda b: (b[0], b[0] + b[1]))
shapes = st.tuples(breadths, st.integers(1, 12))
orders: st.SearchStrategy[Literal["recency", "frequency"]] = st.sampled_from(
    ["recency", "frequency"]
)


class SlowTrie:
    """Strings to counts, to the time of their last reading; the recency list is a Python list."""

    def __init__(self, depth: int, breadth: tuple[int, int], capacity: int = 10**6) -> None:
        self.depth, self.breadth, self.capacity = depth, breadth, capacity
        self.counts: dict[Text, int] = {}
        self.times: dict[Text, int] = {}
        self.ring: list[Text] = [()]
        self.clock = 0

    def append(self, history: list[int], new: int) -> None:
        for start in range(max(0, len(history) - new - self.depth + 1), len(history)):
            path = tuple(history[start : start + self.depth])
            while len(self.counts) + len(path) > self.capacity:
                self.evict()
            for stop in range(1, len(path) + 1):
                if start + stop > len(history) - new or path[:stop] not in self.counts:
                    self.read(path[:stop])

    def read(self, string: Text) -> None:
        self.clock += 1
        self.counts[string] = self.counts.get(string, 0) + 1
        self.times[string] = self.clock
        if string in self.ring:
            self.ring.remove(string)
        self.ring.insert(self.ring.index(string[:-1]) + 1, string)

    def evict(self) -> None:
        string = self.ring.pop()
        assert not self.children(string)
        del self.counts[string], self.times[string]

    def children(self, string: Text) -> list[Text]:
        """Newest first."""
        found = [s for s in self.counts if len(s) == len(string) + 1 and s[:-1] == string]
        return sorted(found, key=lambda s: -self.times[s])

    def anchors(self, query: list[int]) -> list[Text]:
        suffixes = [tuple(query[-size:]) for size in range(min(len(query), self.depth), 0, -1)]
        return [s for s in suffixes if s in self.counts and self.children(s)]

    def propose(self, query: list[int], width: int, order: str) -> list[Text]:
        """Every proposed string behind the bonus, in the order it was chosen."""
        chosen: list[Text] = [()]
        for anchor in self.anchors(query):
            walk = self.by_recency(anchor) if order == "recency" else self.by_score(anchor)
            for string in walk:
                if len(chosen) < width and string not in chosen:
                    chosen.append(string)
        return chosen

    def by_recency(self, anchor: Text) -> list[Text]:
        narrow, wide = self.breadth
        scale = Fraction(wide - narrow, max(1, self.depth - 1))
        queue = [((), (self.depth - 1 - len(anchor)) * scale + narrow)]
        for string, breadth in queue:
            first = self.children(anchor + string)[: max(1, int(breadth))]
            queue.extend((child[len(anchor) :], breadth - scale) for child in first)
        return [string for string, _ in queue[1:]]

    def by_score(self, anchor: Text) -> list[Text]:
        walk: list[Text] = []
        ready: list[tuple[float, Text]] = []
        string, score = anchor, 1.0
        while True:
            common = sorted(self.children(string), key=lambda s: -self.counts[s])[: self.breadth[1]]
            total = sum(self.counts[s] for s in common)
            ready += [(score * self.counts[s] / total, s) for s in common]
            if not ready:
                return walk
            best = max(ready, key=lambda item: item[0])  # the first of equals
            ready.remove(best)
            score, string = best
            walk.append(string[len(anchor) :])


def string_of(node: Node) -> Text:
    return () if node.parent is node else (*string_of(node.parent), node.token)


def state(trie: Trie) -> list[tuple[Text, int, list[int]]]:
    """Strings from new to old, each with its count and its children from new to old."""
    found, node = [], trie.root
    while True:
        children = [child.token for child in node.newest_first()]
        found.append((string_of(node), node.count, children))
        assert node.older.newer is node
        node = node.older
        if node is trie.root:
            return found


def slow_state(slow: SlowTrie) -> list[tuple[Text, int, list[int]]]:
    return [
        (string, slow.counts.get(string, 1), [child[-1] for child in slow.children(string)])
        for string in slow.ring
    ]


def check_tree(proposal: Proposal, query: list[int], width: int) -> list[Text]:
    """The laws of every proposal; returns the strings of its rows."""
    tokens, parents, size = proposal.tokens, proposal.parents, proposal.size
    assert len(tokens) == len(parents) == width
    assert 1 <= size <= width
    assert (tokens[0], parents[0]) == (query[-1], -1)
    assert tokens[size:] == [PADDING] * (width - size)
    assert parents[size:] == [0] * (width - size)
    assert all(token >= 0 for token in tokens[:size])
    assert all(0 <= parents[row] < row for row in range(1, size))
    assert parents[1:size] == sorted(parents[1:size])  # breadth first
    strings: list[Text] = [()]
    for row in range(1, size):
        strings.append((*strings[parents[row]], tokens[row]))
    assert len(set(strings)) == size  # so siblings differ
    return strings


def breadth_first(chosen: list[Text]) -> list[Text]:
    """The chosen strings by level, siblings as they came."""
    rows: list[Text] = [()]
    for row in rows:
        rows.extend(s for s in chosen if s and s[:-1] == row)
    return rows


@given(st.lists(texts, max_size=3), queries, depths, shapes, orders)
def test_match_and_propose_are_the_slow_ones(written, query, depth, shape, order) -> None:
    breadth, width = shape
    trie, slow = Trie(depth, breadth, order=order), SlowTrie(depth, breadth)
    for text in written:
        trie.insert(text)
        slow.append(text, len(text))
    assert state(trie) == slow_state(slow)
    matches = trie.match(query)
    assert [string_of(node) for _, node in matches] == slow.anchors(query)
    assert [length for length, _ in matches] == [len(s) for s in slow.anchors(query)]
    proposal = trie.propose(query, width)
    assert proposal.matched == (matches[0][0] if matches else 0)
    assert check_tree(proposal, query, width) == breadth_first(slow.propose(query, width, order))


@given(texts, st.lists(st.integers(1, 30)), depths)
def test_append_in_pieces_is_insert_of_the_whole(text, cuts, depth) -> None:
    """Counts, siblings and ring are those of one `insert`, however the text is cut."""
    whole, parts = Trie(depth), Trie(depth)
    whole.insert(text)
    stops = [*sorted({cut for cut in cuts if cut < len(text)}), len(text)]
    for start, stop in zip([0, *stops], stops, strict=False):
        parts.append(text[:stop], stop - start)
    assert state(parts) == state(whole)


@given(texts, depths)
def test_append_needs_one_string_of_history_only(text, depth) -> None:
    long, short = Trie(depth), Trie(depth)
    for stop in range(1, len(text) + 1):
        long.append(text[:stop], 1)
        short.append(text[max(0, stop - depth) : stop], 1)
    assert state(long) == state(short)


@given(st.lists(st.tuples(pieces, st.integers(1, 5)), max_size=8), depths, st.integers(6, 20))
def test_eviction_takes_the_oldest_leaf(written, depth, capacity) -> None:
    """Two texts grow in turns, so that one finds its beginnings evicted by the other."""
    trie, slow = Trie(depth, capacity=capacity), SlowTrie(depth, (1, 10), capacity)
    histories: list[list[int]] = [[], []]
    for turn, (text, new) in enumerate(written):
        history = histories[turn % 2]
        history.extend(text)
        trie.append(history, min(new, len(text)))
        slow.append(history, min(new, len(text)))
        assert state(trie) == slow_state(slow)
        assert len(trie) == len(slow.counts) <= capacity
        assert [string_of(node) for _, node in trie.match(history)] == slow.anchors(history)
        check_ring(trie)


def check_ring(trie: Trie) -> None:
    """Every node is in the ring once, behind its parent, and reachable from it."""
    strings = [string for string, _, _ in state(trie)]
    assert len(strings) == len(set(strings)) == len(trie) + 1
    for place, string in enumerate(strings):
        assert not string or strings.index(string[:-1]) < place
    reached = [(*string, token) for string, _, tokens in state(trie) for token in tokens]
    assert sorted(reached) == sorted(strings[1:])


@given(texts, queries, orders)
def test_breadth_one_is_a_chain_per_anchor(text, query, order) -> None:
    trie = Trie(breadth=(1, 1), order=order)
    trie.insert(text)
    rows = check_tree(trie.propose(query, 40), query, 40)
    children = [sum(1 for row in rows if row and row[:-1] == string) for string in rows]
    assert sum(1 for count in children if count > 1) <= max(0, len(trie.match(query)) - 1)
    if len(trie.match(query)) == 1:
        assert max(children) <= 1


@given(texts, queries, st.integers(1, 12), orders)
def test_asking_twice_changes_nothing(text, query, width, order) -> None:
    trie, twin = Trie(order=order), Trie(order=order)
    trie.insert(text)
    twin.insert(text)
    before = state(trie)
    assert trie.propose(query, width) == trie.propose(query, width) == twin.propose(query, width)
    assert state(trie) == before


@given(texts, queries, st.integers(2, 12), orders)
def test_a_wider_tree_keeps_the_narrower_one(text, query, width, order) -> None:
    trie = Trie(order=order)
    trie.insert(text)
    narrow = check_tree(trie.propose(query, width - 1), query, width - 1)
    wide = check_tree(trie.propose(query, width), query, width)
    assert set(narrow) <= set(wide)


@settings(max_examples=20)
@given(texts)
def test_counts_are_occurrences(text) -> None:
    trie = Trie(depth=4)
    for stop in range(1, len(text) + 1):
        trie.append(text[:stop], 1)
    for string, count, _ in state(trie)[1:]:
        size = len(string)
        starts = range(len(text) - size + 1)
        assert count == sum(1 for start in starts if tuple(text[start : start + size]) == string)
