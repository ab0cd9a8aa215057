"""What guesses, at run time: the table of drafters that a step graph names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from specflow.models import loading
from specflow.models.lm import LanguageModel, Window
from specflow.models.lookup import Lookup
from specflow.models.trie import Trie
from specflow.pools import KVPool
from specflow.recipe import ResolvedRecipe


class Drafter(Protocol):
    """What a session tells a drafter as requests come, move and go."""

    def bind(self, extent: int) -> object:
        """What a captured step of that extent calls its drafter."""

    def admit(self, row: int, tokens: list[int], bonus: int) -> None:
        """Begin a request in a row: prompt tokens, and the first token the target said."""

    def move(self, source: int, target: int, length: int) -> None:
        """A request of so many committed tokens changes its row."""

    def release(self, row: int) -> None:
        """The last row has ended."""

    def drafted(self, rows: int) -> list[int]:
        """How many guesses the last draft made for each row."""

    def lms(self) -> tuple[LanguageModel, ...]:
        """The language models it runs, for the clock."""


class NoDrafter:
    """Plain decoding."""

    def bind(self, _extent: int) -> object:
        """Nothing to call."""
        return None

    def admit(self, row: int, tokens: list[int], bonus: int) -> None:
        """Nothing to keep."""

    def move(self, source: int, target: int, length: int) -> None:
        """Nothing to move."""

    def release(self, row: int) -> None:
        """Nothing to drop."""

    def drafted(self, rows: int) -> list[int]:
        """No guesses."""
        return [0] * rows

    def lms(self) -> tuple[LanguageModel, ...]:
        """None."""
        return ()


class LookupDrafter(Lookup):
    """A trie on the host."""

    def bind(self, _extent: int) -> object:
        """The look-up itself: it knows no extent."""
        return self

    def drafted(self, _rows: int) -> list[int]:
        """As many as the trie offered."""
        return self.sizes

    def lms(self) -> tuple[LanguageModel, ...]:
        """None."""
        return ()


class LanguageModelDrafter:
    """A small language model with a KV of its own: row p of it is token p (serial.md §6.6)."""

    def __init__(self, model: LanguageModel, pool: KVPool, guesses: int, chunk: int) -> None:
        self.model, self.pool, self.guesses, self.chunk = model, pool, guesses, chunk

    def bind(self, extent: int) -> Window:
        """The model over the first `extent` positions of its pool."""
        return self.model.window(self.pool, extent)

    def admit(self, row: int, tokens: list[int], _bonus: int) -> None:
        """Prefill the draft with the prompt."""
        prefill(self.model, self.pool, row, tokens, self.chunk)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the KV of a row."""
        self.pool.copy_row(source, target, length)

    def release(self, row: int) -> None:
        """The KV of a row that ended is overwritten by the next request."""

    def drafted(self, rows: int) -> list[int]:
        """One guess a step, always."""
        return [self.guesses] * rows

    def lms(self) -> tuple[LanguageModel, ...]:
        """The draft."""
        return (self.model,)


def prefill(model: LanguageModel, pool: KVPool, row: int, tokens: list[int], chunk: int) -> Tensor:
    """Write the KV of a prompt into a row, chunk by chunk; logits [1, V] after its last token."""
    window = model.window(pool, pool.length, row=row)
    ids = pool.positions.new_tensor(tokens)
    logits = ids
    for start in range(0, len(tokens), chunk):
        logits, _, _ = window.prefill(ids[start : start + chunk], start)
    return logits


Make = Callable[[ResolvedRecipe, int], Drafter]


def _no_drafter(_recipe: ResolvedRecipe, _length: int) -> Drafter:
    return NoDrafter()


def _lookup(recipe: ResolvedRecipe, _length: int) -> Drafter:
    trie = Trie(
        depth=recipe["draft.max_trie_depth"],
        breadth=recipe["draft.breadth"],
        capacity=recipe["draft.capacity"],
        order=recipe["draft.order"],
    )
    return LookupDrafter(
        trie, recipe["verify.num_draft_tokens"], insert_prompt=recipe["draft.insert_prompt"]
    )


def _causal_lm(recipe: ResolvedRecipe, length: int) -> Drafter:
    folder: Path = loading.open_model(recipe["draft.model"])
    model = LanguageModel.load(folder, device=recipe.run.device, dtype=recipe.run.dtype)
    pool = model.pool(recipe.run.batch_size, length)
    return LanguageModelDrafter(
        model, pool, recipe["verify.num_draft_tokens"] - 1, recipe.run.prefill_chunk
    )


DRAFTERS: dict[str, Make] = {
    "none": _no_drafter,
    "lookup": _lookup,
    "causal_lm": _causal_lm,
}
