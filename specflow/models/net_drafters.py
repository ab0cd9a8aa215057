"""Drafters that read what the target shows of itself: one layer, a layer a step, an assistant."""

from __future__ import annotations

import torch
from torch import Tensor

from specflow.errors import RuntimeFault
from specflow.formats import HIDDEN, TAPS, named
from specflow.models import dummy
from specflow.models.adapters import Adapter
from specflow.models.adaptive import Adaptive
from specflow.models.assistant import Assistant, AssistantWindow
from specflow.models.beginning import Beginning, First
from specflow.models.block_draft import BlockModel
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.nets import DraftModel, DraftWindow
from specflow.models.weights import load_block, load_draft
from specflow.pools import KVPool
from specflow.recipe import ResolvedRecipe


def open_net(recipe: ResolvedRecipe, target: LanguageModel) -> DraftModel:
    """The draft network a recipe names, or the one its target brings along."""
    net = recipe.facts.net
    found = recipe.facts["target" if net.bundled else "draft"]
    if found.dummy:
        return dummy.draft(found, net, target.adapter)
    open_model(recipe["draft.model"])  # says what is only recorded, and not here
    return load_draft(found.weights, named(net.format), dict(found.config), target.adapter)


def open_block(recipe: ResolvedRecipe, target: LanguageModel) -> BlockModel:
    """The block draft a recipe names, or the one its target brings along."""
    net, found = recipe.facts.net, recipe.facts["draft"]
    if found.dummy:
        model = dummy.block(found, net, target.adapter)
    else:
        open_model(recipe["draft.model"])
        form, said = named(net.format), dict(found.config)
        model = load_block(found.weights, form, said, net, target.adapter)
    fit_taps(recipe["draft.taps"], model.net.target, model.net.fc.in_features)
    return model


def fit_taps(taps: tuple[int, ...], target: Adapter, reads: int) -> None:
    """Stop where the target has no such layers, or the draft reads another number of them."""
    way_out = "name a draft that was made for this target, or write its `draft.taps`"
    if max(taps) > target.layers:
        raise RuntimeFault(
            f"tap {max(taps)} is none of the target's {target.layers} layers; {way_out}"
        )
    width = int(target.config.hidden_size)
    if len(taps) * width != reads:
        raise RuntimeFault(
            f"{len(taps)} taps of {width} are not the {reads} that the draft reads; {way_out}"
        )


class HiddenDrafter:
    """One draft layer with a KV of its own: row p pairs token p + 1 with what was shown at p."""

    def __init__(
        self, model: DraftModel, pool: KVPool, recipe: ResolvedRecipe, begin: Beginning
    ) -> None:
        self.model, self.pool, self.begin = model, pool, begin
        self.guesses = recipe["verify.num_draft_tokens"] - 1
        self.shows = model.net.net.reads
        self.taps: tuple[int, ...] = recipe["draft.taps"] if self.shows == TAPS else ()
        if self.taps:
            fit_taps(self.taps, model.net.target, model.net.sizes.reads)
        if recipe["draft.adaptive"]:  # the host phases of such a step ask for both
            adaptive = Adaptive(recipe["draft.adaptive_slots"], recipe["draft.num_steps"])
            self.steps, self.observe = adaptive.steps, adaptive.observe

    def bind(self, extent: int) -> DraftWindow:
        """The network over the first `extent` positions of its pool."""
        return self.model.window(self.pool, extent)

    def read(self, row: int, tokens: list[int], begin: int, shown: Tensor) -> None:
        """Pair each position with the next token of the prompt (serial.md §6.1e)."""
        self._feed(row, tokens[begin + 1 : begin + 1 + shown.shape[1]], begin, shown)

    def admit(
        self, row: int, tokens: list[int], begin: int, shown: Tensor, first: First
    ) -> dict[str, Tensor | int]:
        """The last row pairs the last position with the token that the target said."""
        logits, carried = self._feed(row, [*tokens[begin + 1 :], first.token], begin, shown)
        window = self.model.window(self.pool, 1)
        made = self.begin(logits, first, window.target_ids, window.target_law)
        return made | {"draft_hidden": carried[0]}

    def _feed(
        self, row: int, tokens: list[int], begin: int, shown: Tensor
    ) -> tuple[Tensor, Tensor]:
        window = self.model.window(self.pool, self.pool.length, row=row)
        return window.feed(self.pool.positions.new_tensor(tokens), shown, begin)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the KV of a row."""
        self.pool.copy_row(source, target, length)

    def release(self, row: int) -> None:
        """The KV of a row that ended is overwritten by the next request."""

    def drafted(self, rows: int) -> list[int]:
        """As many as a step verifies, always."""
        return [self.guesses] * rows

    def models(self) -> tuple[DraftModel, ...]:
        """The draft."""
        return (self.model,)


class LayersDrafter:
    """A draft layer for each step, all with a KV of their own (serial.md §6.4)."""

    shows: str = HIDDEN
    taps: tuple[int, ...] = ()

    def __init__(
        self, model: DraftModel, pool: KVPool, recipe: ResolvedRecipe, begin: Beginning
    ) -> None:
        self.model, self.pool, self.begin = model, pool, begin
        self.guesses = recipe["verify.num_draft_tokens"] - 1
        self.chunk = recipe.run.prefill_chunk
        self._read: list[Tensor] = []  # of the prompt that is being admitted

    def bind(self, extent: int) -> DraftWindow:
        """The network over the first `extent` positions of its pool."""
        return self.model.window(self.pool, extent)

    def read(self, _row: int, _tokens: list[int], begin: int, shown: Tensor) -> None:
        """Keep what was shown: a later layer reads tokens that no part but the last one knows."""
        if begin == 0:
            self._read = []
        self._read.append(shown)

    def admit(
        self, row: int, tokens: list[int], begin: int, shown: Tensor, first: First
    ) -> dict[str, Tensor | int]:
        """Each layer over the whole prompt, one token further on, and one more guess (§6.4e)."""
        beside = torch.cat([*(self._read if begin else ()), shown], dim=1)  # [1, P, H]
        self._read = []
        known, laws = [*tokens, first.token], []
        window = self.model.window(self.pool, self.pool.length, row=row)
        for layer in range(self.guesses):
            ids = self.pool.positions.new_tensor(known[layer + 1 :])  # [P]
            logits = beside
            for at in range(0, len(tokens), self.chunk):
                part = slice(at, at + self.chunk)
                logits, _ = window.feed(ids[part], beside[:, part], at, layer)
            word, law = self.begin.guess(logits, first, layer, window.target_ids, window.target_law)
            known.append(word)
            laws.append(law)
        made = self._recent(known[1 : len(tokens) + 1], beside)
        made["words_ahead"] = beside.new_tensor(known[len(tokens) + 1 :])
        drawn = [law for law in laws if law is not None]
        return made | ({"laws_ahead": torch.stack(drawn)} if drawn else {})

    def _recent(self, ids: list[int], beside: Tensor) -> dict[str, Tensor | int]:
        """The rows that the next step runs again; a short prompt has fewer, and 0 for the rest."""
        count = self.guesses - 1
        have = min(count, len(ids))
        tokens, hidden = beside.new_zeros(count), beside.new_zeros(count, beside.shape[2])
        if have:
            tokens[count - have :] = tokens.new_tensor(ids[-have:])
            hidden[count - have :] = beside[0, -have:]
        return {"recent_tokens": tokens, "recent_hidden": hidden}

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the KV of a row."""
        self.pool.copy_row(source, target, length)

    def release(self, row: int) -> None:
        """The KV of a row that ended is overwritten by the next request."""

    def drafted(self, rows: int) -> list[int]:
        """One guess a layer, always."""
        return [self.guesses] * rows

    def models(self) -> tuple[DraftModel, ...]:
        """The draft."""
        return (self.model,)


class AssistantDrafter:
    """An assistant on the target's own KV: it keeps nothing but where the target stood (§6.5)."""

    shows: str = HIDDEN
    taps: tuple[int, ...] = ()

    def __init__(self, model: Assistant, pool: KVPool, guesses: int) -> None:
        self.model, self.pool, self.guesses = model, pool, guesses

    def bind(self, extent: int) -> AssistantWindow:
        """The assistant over the first `extent` positions of the target's pool."""
        return self.model.window(self.pool, extent)

    def read(self, row: int, tokens: list[int], begin: int, shown: Tensor) -> None:
        """The target's KV is the assistant's."""

    def admit(
        self, _row: int, _tokens: list[int], _begin: int, shown: Tensor, _first: First
    ) -> dict[str, Tensor | int]:
        """Where the target stood at the prompt's last token."""
        return {"draft_hidden": shown[0, -1]}

    def move(self, source: int, target: int, length: int) -> None:
        """The target's KV is moved by the session."""

    def release(self, row: int) -> None:
        """Nothing to drop."""

    def drafted(self, rows: int) -> list[int]:
        """As many as a step verifies, always."""
        return [self.guesses] * rows

    def models(self) -> tuple[Assistant, ...]:
        """The assistant."""
        return (self.model,)
