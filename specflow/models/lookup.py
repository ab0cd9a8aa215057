"""The host draft: a trie shared by all requests, and each request's own history."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.models.trie import PADDING, Proposal, Trie


class Lookup:
    """What was said before, by row of the batch; fills the guesses of a step.

    sizes  guesses that the last proposal made for each row
    """

    def __init__(self, trie: Trie, width: int, *, insert_prompt: bool) -> None:
        self.trie = trie
        self.width = width
        self.insert_prompt = insert_prompt
        self.histories: list[list[int]] = []
        self.sizes: list[int] = []

    def begin(self, row: int, tokens: list[int], bonus: int) -> None:
        """Begin a request: its prompt and the first token the target said."""
        if row == len(self.histories):
            self.histories.append([])
        self.histories[row] = [*tokens, bonus]
        self.trie.append(self.histories[row], len(tokens) + 1 if self.insert_prompt else 1)

    def move(self, source: int, target: int, _length: int) -> None:
        """A request changes its row; the row it leaves is the last one."""
        self.histories[target] = self.histories[source]

    def release(self, row: int) -> None:
        """The last row has ended."""
        del self.histories[row:]

    def propose_tree(self, guesses: Tensor, parents: Tensor) -> int:
        """Fill guesses [B, K] and parents [B, K]; the longest match in the batch, in tokens."""
        found = self._propose()
        guesses.copy_(torch.tensor([p.tokens[1:] for p in found]))
        parents.copy_(torch.tensor([p.parents[1:] for p in found]))
        self.sizes = [p.size - 1 for p in found]
        return max(p.matched for p in found)

    def propose_chain(self, guesses: Tensor) -> int:
        """Fill guesses [B, K] with each tree's first branch; the longest match, in tokens."""
        found = self._propose()
        chains = [_first_branch(p) for p in found]
        self.sizes = [len(c) for c in chains]
        padded = [c + [PADDING] * (self.width - 1 - len(c)) for c in chains]
        guesses.copy_(torch.tensor(padded))
        return max(p.matched for p in found)

    def insert(self, gained: list[list[int]]) -> None:
        """Take in the tokens that each row gained."""
        for history, tokens in zip(self.histories, gained, strict=True):
            history.extend(tokens)
            self.trie.append(history, len(tokens))

    def _propose(self) -> list[Proposal]:
        depth = self.trie.depth
        return [self.trie.propose(history[-depth:], self.width) for history in self.histories]


def _first_branch(tree: Proposal) -> list[int]:
    """The tokens along first children: breadth first, the first node to name a parent."""
    chain: list[int] = []
    node = 0
    for i in range(1, tree.size):
        if tree.parents[i] == node:
            chain.append(tree.tokens[i])
            node = i
    return chain
