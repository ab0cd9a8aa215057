"""What guesses, at run time: the table of drafters that a step graph names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from specflow.models.assistant import Assistant
from specflow.models.beginning import Beginning, First
from specflow.models.block_draft import BlockDrafter
from specflow.models.dummy import pretrained
from specflow.models.lm import LanguageModel, Window
from specflow.models.lookup import Lookup
from specflow.models.net_drafters import (
    AssistantDrafter,
    HiddenDrafter,
    LayersDrafter,
    open_block,
    open_net,
)
from specflow.models.trie import Trie
from specflow.pools import KVPool
from specflow.recipe import ResolvedRecipe


class Timed(Protocol):
    """A model whose forwards are counted and timed."""

    forwards: int
    forward_seconds: float


class Drafter(Protocol):
    """What a session tells a drafter as requests come, move and go.

    shows  what the target shows it of a prompt: its hidden states, or the taps, or nothing
    taps   the layers whose input it reads, where it reads taps
    """

    shows: str
    taps: tuple[int, ...]

    def bind(self, extent: int) -> object:
        """What a captured step of that extent calls its drafter."""

    def read(self, row: int, tokens: list[int], begin: int, shown: Tensor) -> None:
        """A part of a prompt that is not its last: what was shown [1, P, H] from `begin` on."""

    def admit(
        self, row: int, tokens: list[int], begin: int, shown: Tensor, first: First
    ) -> dict[str, Tensor | int]:
        """The last part of a prompt, and the first token after it; state of the row by name."""

    def move(self, source: int, target: int, length: int) -> None:
        """A request of so many committed tokens changes its row."""

    def release(self, row: int) -> None:
        """The last row has ended."""

    def drafted(self, rows: int) -> list[int]:
        """How many guesses the last draft made for each row."""

    def models(self) -> tuple[Timed, ...]:
        """The models it runs, for the clock."""


class NoDrafter:
    """Plain decoding."""

    shows: str = ""
    taps: tuple[int, ...] = ()

    def bind(self, _extent: int) -> object:
        """Nothing to call."""
        return None

    def read(self, row: int, tokens: list[int], begin: int, shown: Tensor) -> None:
        """Nothing to keep."""

    def admit(
        self, _row: int, _tokens: list[int], _begin: int, _shown: Tensor, _first: First
    ) -> dict[str, Tensor | int]:
        """Nothing to begin with."""
        return {}

    def move(self, source: int, target: int, length: int) -> None:
        """Nothing to move."""

    def release(self, row: int) -> None:
        """Nothing to drop."""

    def drafted(self, rows: int) -> list[int]:
        """No guesses."""
        return [0] * rows

    def models(self) -> tuple[Timed, ...]:
        """None."""
        return ()


class LookupDrafter(Lookup):
    """A trie on the host."""

    shows: str = ""
    taps: tuple[int, ...] = ()

    def bind(self, _extent: int) -> object:
        """The look-up itself: it knows no extent."""
        return self

    def read(self, row: int, tokens: list[int], begin: int, shown: Tensor) -> None:
        """The prompt is taken in whole, by `admit`."""

    def admit(
        self, row: int, tokens: list[int], _begin: int, _shown: Tensor, first: First
    ) -> dict[str, Tensor | int]:
        """Put the prompt into the trie."""
        self.begin(row, tokens, first.token)
        return {}

    def drafted(self, _rows: int) -> list[int]:
        """As many as the trie offered."""
        return self.sizes

    def models(self) -> tuple[Timed, ...]:
        """None."""
        return ()


class LanguageModelDrafter:
    """A small language model with a KV of its own: row p of it is token p (serial.md §6.6)."""

    shows: str = ""
    taps: tuple[int, ...] = ()

    def __init__(
        self, model: LanguageModel, pool: KVPool, recipe: ResolvedRecipe, begin: Beginning
    ) -> None:
        self.model, self.pool, self.begin = model, pool, begin
        self.guesses = recipe["verify.num_draft_tokens"] - 1
        self.chunk = recipe.run.prefill_chunk
        self.behind = recipe.axes.draft_state == "catch_up"

    def bind(self, extent: int) -> Window:
        """The model over the first `extent` positions of its pool."""
        return self.model.window(self.pool, extent)

    def read(self, row: int, tokens: list[int], begin: int, shown: Tensor) -> None:
        """The prompt is taken in whole, by `admit`."""

    def admit(
        self, row: int, tokens: list[int], _begin: int, _shown: Tensor, first: First
    ) -> dict[str, Tensor | int]:
        """Prefill the draft with the prompt; with the first token too, unless it catches up."""
        if self.behind:
            prefill(self.model, self.pool, row, tokens, self.chunk)
            return {"previous_token": tokens[-1]}
        logits = prefill(self.model, self.pool, row, [*tokens, first.token], self.chunk)
        return self.begin(logits, first, lambda ids: ids, lambda law: law)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the KV of a row."""
        self.pool.copy_row(source, target, length)

    def release(self, row: int) -> None:
        """The KV of a row that ended is overwritten by the next request."""

    def drafted(self, rows: int) -> list[int]:
        """As many as a step verifies, always."""
        return [self.guesses] * rows

    def models(self) -> tuple[Timed, ...]:
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


Make = Callable[[ResolvedRecipe, LanguageModel, KVPool], Drafter]


def _no_drafter(_recipe: ResolvedRecipe, _target: LanguageModel, _pool: KVPool) -> Drafter:
    return NoDrafter()


def _lookup(recipe: ResolvedRecipe, _target: LanguageModel, _pool: KVPool) -> Drafter:
    trie = Trie(
        depth=recipe["draft.max_trie_depth"],
        breadth=recipe["draft.breadth"],
        capacity=recipe["draft.capacity"],
        order=recipe["draft.order"],
    )
    return LookupDrafter(
        trie, recipe["verify.num_draft_tokens"], insert_prompt=recipe["draft.insert_prompt"]
    )


def _causal_lm(recipe: ResolvedRecipe, target: LanguageModel, pool: KVPool) -> Drafter:
    model = LanguageModel.wrap(pretrained(recipe, "draft"), target.adapter.backend)
    own = model.pool(pool.slots, pool.length)
    return LanguageModelDrafter(model, own, recipe, Beginning.of(recipe))


def _hidden(recipe: ResolvedRecipe, target: LanguageModel, pool: KVPool) -> Drafter:
    model = open_net(recipe, target)
    return HiddenDrafter(model, model.pool(pool.slots, pool.length), recipe, Beginning.of(recipe))


def _layers(recipe: ResolvedRecipe, target: LanguageModel, pool: KVPool) -> Drafter:
    model = open_net(recipe, target)
    return LayersDrafter(model, model.pool(pool.slots, pool.length), recipe, Beginning.of(recipe))


def _assistant(recipe: ResolvedRecipe, target: LanguageModel, pool: KVPool) -> Drafter:
    model = Assistant(pretrained(recipe, "draft"), target.adapter, pool)
    return AssistantDrafter(model, pool, recipe["verify.num_draft_tokens"] - 1)


def _block(recipe: ResolvedRecipe, target: LanguageModel, pool: KVPool) -> Drafter:
    return BlockDrafter(open_block(recipe, target), recipe, pool.slots, pool.length)


DRAFTERS: dict[str, Make] = {
    "none": _no_drafter,
    "lookup": _lookup,
    "causal_lm": _causal_lm,
    "hidden": _hidden,
    "layers": _layers,
    "assistant": _assistant,
    "block": _block,
}
