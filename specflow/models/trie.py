"""Which tokens followed this text before, as a tree of guesses rooted at the bonus token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import Literal

PADDING = -1  # equals no target token, so a padded row is never accepted


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tree of `width` rows, breadth first, siblings best first.

    tokens   [width]  tokens[0] is the bonus; PADDING behind the tree (forward 0 in its place)
    parents  [width]  parents[0] = -1; a padded row hangs on the root
    size              rows that are guesses, root included
    matched           length of the longest suffix that was continued before, 0 without one
    """

    tokens: list[int]
    parents: list[int]
    size: int
    matched: int


class Node:
    """One string of tokens and how often it was read.

    An only child stands in `children` itself: nearly all nodes have one, and a dict would
    quadruple their memory. A dict keeps its newest child last.
    """

    __slots__ = ("children", "count", "newer", "older", "parent", "token")

    def __init__(self, token: int, parent: Node | None = None) -> None:
        """Read once; a root is its own parent."""
        self.token = token
        self.parent = self if parent is None else parent
        self.children: Node | dict[int, Node] | None = None
        self.count = 1
        self.newer = self  # neighbours in the ring of the whole trie
        self.older = self

    def child(self, token: int) -> Node | None:
        """The node of this string and `token`, if it was read."""
        children = self.children
        if children is None:
            return None
        if isinstance(children, Node):
            return children if children.token == token else None
        return children.get(token)

    def newest_first(self) -> Iterable[Node]:
        """The children, the one read last in front."""
        children = self.children
        if children is None:
            return ()
        return (children,) if isinstance(children, Node) else reversed(children.values())

    def renew(self) -> None:
        """Become the parent's newest child, and its follower in the ring.

        A node only ever moves forward, to the place behind its parent: parents stay in front
        of their children, so the ring's last node is a leaf.
        """
        parent, follower = self.parent, self.parent.older
        if follower is not self:
            self.newer.older, self.older.newer = self.older, self.newer
            self.newer, self.older = parent, follower
            parent.older = follower.newer = self
        siblings = parent.children
        if siblings is None:
            parent.children = self
        elif isinstance(siblings, dict):
            siblings.pop(self.token, None)
            siblings[self.token] = self
        elif siblings is not self:
            parent.children = {siblings.token: siblings, self.token: self}

    def detach(self) -> None:
        """Leave the parent and the ring."""
        self.newer.older, self.older.newer = self.older, self.newer
        siblings = self.parent.children
        if not isinstance(siblings, dict):
            self.parent.children = None
            return
        del siblings[self.token]
        if len(siblings) == 1:
            (self.parent.children,) = siblings.values()


class Trie:
    """The strings of up to `depth` tokens that were read, at most `capacity` nodes of them.

    Nodes are counted without the root. All requests of a session share one trie; tenants that
    must not see each other's text each get their own. A token is never negative.

    order "recency"    the newest children first, `breadth[1]` of them after a short match and
                       fewer with every token, down to `breadth[0]`
    order "frequency"  the likeliest strings first, each node's `breadth[1]` commonest children
    """

    def __init__(
        self,
        depth: int = 18,
        breadth: tuple[int, int] = (1, 10),
        capacity: int = 10_000_000,
        order: Literal["recency", "frequency"] = "recency",
    ) -> None:
        """Empty; refuses a breadth that shrinks to nothing and a capacity below one string."""
        narrow, wide = breadth
        if depth < 1 or not 1 <= narrow <= wide:
            raise ValueError(f"a trie of depth {depth} cannot spread over {narrow} to {wide}")
        if capacity < depth:
            raise ValueError(f"{capacity} nodes cannot hold one string of {depth}")
        self.depth = depth
        self.capacity = capacity
        self.order = order
        # By length of string: whole numbers, where a float step would round some of them down.
        self.breadths = tuple(
            narrow + (wide - narrow) * (depth - 1 - length) // max(1, depth - 1)
            for length in range(depth)
        )
        self.clear()

    def __len__(self) -> int:
        """The nodes, without the root."""
        return self._size

    def clear(self) -> None:
        """Forget everything."""
        self._size = 0
        # The ring starts at the root: `root.older` was read last, `root.newer` is evicted next.
        self.root = Node(PADDING)

    def insert(self, window: Sequence[int]) -> None:
        """Read `window` as a text of its own: each of its strings counts once more."""
        self.append(window, len(window))

    def append(self, history: Sequence[int], new: int) -> None:
        """Read the last `new` tokens of `history`, the rest of which was read before.

        Only the strings that end in a new token are counted and become the newest, so a text
        read in pieces leaves the trie that `insert` of the whole text leaves: counts, siblings
        and ring. That holds while nothing is evicted and no other text comes in between. A
        string whose beginning is missing (evicted, or a prompt never read) gets it back, with
        count 1.
        """
        new = min(new, len(history))
        if new <= 0:
            return
        text = history[max(0, len(history) - new - self.depth + 1) :]
        fresh = len(text) - new
        for start in range(len(text)):
            self._read(text[start : start + self.depth], max(0, fresh - start))

    def match(self, query: Sequence[int]) -> list[tuple[int, Node]]:
        """The suffixes of `query` that were continued before, longest first, with their length."""
        return list(self._anchors(query))

    def propose(self, query: Sequence[int], width: int) -> Proposal:
        """What may follow `query`, which ends with the bonus token: longer matches choose first."""
        if not query or width < 1:
            raise ValueError("a tree needs a bonus token at the end of `query`, and a row for it")
        tree, matched = _Tree(query[-1], width), 0
        for length, anchor in self._anchors(query):
            matched = matched or length
            if tree.full:
                break
            if self.order == "recency":
                self._spread(tree, anchor, length)
            else:
                self._rank(tree, anchor)
        return tree.flatten(matched)

    def _read(self, path: Sequence[int], known: int) -> None:
        """Walk `path` from the root; count and renew all but its first `known` nodes."""
        # All room is made first: later, the oldest node could be one of this path.
        while self._size + len(path) > self.capacity:
            self.root.newer.detach()
            self._size -= 1
        node = self.root
        for length, token in enumerate(path):
            child = node.child(token)
            if child is None:
                child = Node(token, node)
                child.renew()
                self._size += 1
            elif length >= known:
                child.count += 1
                child.renew()
            node = child

    def _anchors(self, query: Sequence[int]) -> Iterator[tuple[int, Node]]:
        tail = query[-self.depth :]
        for start in range(len(tail)):
            node: Node | None = self.root
            for token in tail[start:]:
                node = node.child(token) if node is not None else None
                if node is None:
                    break
            if node is not None and node.children is not None:
                yield len(tail) - start, node

    def _spread(self, tree: _Tree, anchor: Node, length: int) -> None:
        level = [(0, anchor)]
        for breadth in self.breadths[length:]:
            below: list[tuple[int, Node]] = []
            for row, node in level:
                for child in islice(node.newest_first(), breadth):
                    if tree.full:
                        return
                    below.append((tree.grow(row, child.token), child))
            level = below

    def _rank(self, tree: _Tree, anchor: Node) -> None:
        heap: list[tuple[float, int, int, Node]] = []
        row, node, score, pushed = 0, anchor, 1.0, 0
        while not tree.full:
            # The sort is stable: the newer of two equally common children goes first.
            common = sorted(node.newest_first(), key=attrgetter("count"), reverse=True)
            del common[self.breadths[0] :]
            total = sum(child.count for child in common)
            for child in common:
                heappush(heap, (-score * child.count / total, pushed, row, child))
                pushed += 1
            if not heap:
                return
            loss, _, row, node = heappop(heap)
            score = -loss
            row = tree.grow(row, node.token)


class _Tree:
    """A proposal while it grows: rows in the order they came, each with its children by token."""

    def __init__(self, bonus: int, width: int) -> None:
        self.width = width
        self.tokens = [bonus]
        self.children: list[dict[int, int]] = [{}]

    @property
    def full(self) -> bool:
        return len(self.tokens) >= self.width

    def grow(self, row: int, token: int) -> int:
        """The child of `row` with this token, new unless an earlier anchor brought it."""
        children = self.children[row]
        if token not in children:
            children[token] = len(self.tokens)
            self.tokens.append(token)
            self.children.append({})
        return children[token]

    def flatten(self, matched: int) -> Proposal:
        """The rows breadth first, padded to the width."""
        rows, parents = [0], [-1]
        for place, row in enumerate(rows):  # grows under the loop
            rows.extend(self.children[row].values())
            parents.extend([place] * len(self.children[row]))
        size = len(rows)
        spare = self.width - size
        tokens = [self.tokens[row] for row in rows]
        return Proposal(tokens + [PADDING] * spare, parents + [0] * spare, size, matched)
