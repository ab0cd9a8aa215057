"""What a generated step asks of a target, a draft and a look-up: protocols, not base classes.

B  requests      W  verified positions      T  branches of a level      R  nodes in branches
V  vocabulary (the draft may have its own)      H  hidden width      D  of the draft
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Target(Protocol):
    """The big model over its KV, attending to a fixed number of positions."""

    def verify(self, tokens: Tensor, seq_lens: Tensor) -> Tensor:
        """Logits [B, W, V] of a chain [B, W] that begins at seq_lens [B]."""

    def verify_hidden(self, tokens: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
        """As `verify`, and the hidden states [B, W, H] that the head reads."""

    def verify_taps(
        self, tokens: Tensor, seq_lens: Tensor, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """As `verify`, and what enters the tapped layers [B, W, n * H]."""

    def verify_tree(self, tokens: Tensor, seq_lens: Tensor, depths: Tensor, sees: Tensor) -> Tensor:
        """Logits [B, W, V] of a tree: node i in slot seq_lens + i, at position seq_lens + depth."""

    def verify_tree_hidden(
        self, tokens: Tensor, seq_lens: Tensor, depths: Tensor, sees: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `verify_tree`, and the hidden states [B, W, H] that the head reads."""

    def verify_tree_taps(
        self,
        tokens: Tensor,
        seq_lens: Tensor,
        depths: Tensor,
        sees: Tensor,
        taps: tuple[int, ...],
    ) -> tuple[Tensor, Tensor]:
        """As `verify_tree`, and what enters the tapped layers [B, W, n * H]."""

    def verify_packed_taps(
        self, tokens: Tensor, seq_lens: Tensor, packed: Tensor, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """As `verify_taps` of the positions packed [G] of the B * W; 0 for the others."""

    def move_accepted(self, path: Tensor, seq_lens: Tensor) -> None:
        """Move the KV of the nodes path [B, W] (then -1) to the slots from seq_lens [B] on."""


class Draft(Protocol):
    """A draft over its own KV, or over the target's: the calls that its stage writes.

    to_target  [V], the target's id of each of the draft's; None where they are the same
    """

    @property
    def to_target(self) -> Tensor | None:
        """The target's id of each of the draft's."""

    def decode(self, tokens: Tensor, seq_lens: Tensor) -> Tensor:
        """Logits [B, V] after the last of the tokens [B, N] that begin at seq_lens [B]."""

    def decode_hidden(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, V] and state [B, D] after one token a row [B], its state [B, D] beside it."""

    def grow(self, tokens: Tensor, starts: Tensor, sees: Tensor, level: int) -> Tensor:
        """Logits [B, T, V] of the branches [B, T] of a level; they see nodes by sees [B, T, R]."""

    def grow_hidden(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, sees: Tensor, level: int
    ) -> tuple[Tensor, Tensor]:
        """As `grow`, with a state [B, T, D] beside each branch, and the next one of each."""

    def grow_frozen(
        self, tokens: Tensor, hidden: Tensor, seq_lens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `grow_hidden` on the target's KV: branches see the committed positions alone."""

    def extend(self, tokens: Tensor, starts: Tensor, accept_len: Tensor) -> Tensor:
        """Logits [B, V] after the first accept_len [B] of tokens [B, W] that begin at starts."""

    def extend_hidden(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, accept_len: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `extend`, beside what the target showed [B, W, n * H]; and the state [B, D]."""

    def extend_layer(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, rows: Tensor, layer: int
    ) -> Tensor:
        """Logits [B, V] of one draft layer after the first `rows` [B] of tokens [B, R + W]."""

    def denoise(self, tokens: Tensor, seq_lens: Tensor) -> Tensor:
        """Hidden states [B, Q, D] of a block [B, Q] that begins at seq_lens, all rows at once."""

    def score(self, hidden: Tensor) -> Tensor:
        """Logits [B, K, V] of the rows that guess [B, K, D]."""

    def markov(self, last: Tensor, hidden: Tensor) -> Tensor:
        """What the token before [B] adds to the logits [B, V] of a row [B, D]."""

    def markov_memory(self, last: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """As `markov`, with a memory [B, R] of the guesses so far, and the next one."""

    def no_memory(self, last: Tensor) -> Tensor:
        """A memory [B, R] of nothing."""

    def trust(self, hidden: Tensor, bonus: Tensor, guesses: Tensor) -> Tensor:
        """Logits [B, K] of the chance that each guess holds where those before it do."""

    def inject(self, taps: Tensor, starts: Tensor, accept_len: Tensor) -> None:
        """Write the KV of the first accept_len positions of a window [B, W, n * H] at starts."""

    def target_ids(self, tokens: Tensor) -> Tensor:
        """Draft ids as ids of the target's vocabulary."""

    def target_law(self, law: Tensor) -> Tensor:
        """A law over the draft's vocabulary as one over the target's."""


class Lookup(Protocol):
    """What was said before, on the host."""

    def propose_tree(self, guesses: Tensor, parents: Tensor) -> int:
        """Fill guesses [B, K] and parents [B, K]; the longest match in the batch, in tokens."""

    def propose_chain(self, guesses: Tensor) -> int:
        """Fill guesses [B, K] with each request's likeliest continuation."""

    def insert(self, gained: list[list[int]]) -> None:
        """Take in the tokens that each request of the batch gained."""


class Controller(Protocol):
    """What acceptance was like, on the host."""

    def steps(self, rows: int) -> int:
        """Draft steps to take for a batch of so many rows."""

    def observe(self, gained: list[list[int]]) -> None:
        """Learn from the tokens that each request of the batch gained."""


class Planner(Protocol):
    """What earlier steps expected of their guesses, on the host."""

    def plan(self, rows: int) -> int:
        """Positions that a batch of so many rows may verify, from one a row on."""

    def expect(self, survival: Tensor) -> None:
        """Fill survival [B, K] with how often each request's guesses held so far along."""

    def publish(self, trust: Tensor) -> None:
        """Keep what the confidence head said [B, K] of the step that ended."""

    def look_back(self, accept_len: Tensor, verify_len: Tensor) -> None:
        """Learn how many of the verified guesses held: both [B], bonus included."""
