"""What a generated step asks of a target, a draft and a look-up: protocols, not base classes."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Target(Protocol):
    """The big model over its KV, attending to a fixed number of positions."""

    def verify(self, tokens: Tensor, seq_lens: Tensor) -> Tensor:
        """Logits [B, W, V] of a chain [B, W] that begins at seq_lens [B]."""

    def verify_tree(self, tokens: Tensor, seq_lens: Tensor, depths: Tensor, sees: Tensor) -> Tensor:
        """Logits [B, W, V] of a tree: node i in slot seq_lens + i, at position seq_lens + depth."""

    def move_accepted(self, path: Tensor, seq_lens: Tensor) -> None:
        """Move the KV of the nodes path [B, W] (then -1) to the slots from seq_lens [B] on."""


class Draft(Protocol):
    """A small language model over its own KV."""

    def decode(self, tokens: Tensor, seq_lens: Tensor) -> Tensor:
        """Logits [B, V] after the last of the tokens [B, N] that begin at seq_lens [B]."""


class Lookup(Protocol):
    """What was said before, on the host."""

    def propose_tree(self, guesses: Tensor, parents: Tensor) -> int:
        """Fill guesses [B, K] and parents [B, K]; the longest match in the batch, in tokens."""

    def propose_chain(self, guesses: Tensor) -> int:
        """Fill guesses [B, K] with each request's likeliest continuation."""

    def insert(self, gained: list[list[int]]) -> None:
        """Take in the tokens that each request of the batch gained."""
