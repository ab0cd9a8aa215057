"""A block draft at run time: its KV, full or a window of it, and what a session tells it.

B  rows      Q  rows of a block      W  verified positions      C  slots of a request
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specflow.kernels.attention import Sight
from specflow.kernels.inject import Landing
from specflow.models.attention import Injector, Step, Views, views_of
from specflow.models.beginning import First
from specflow.models.block_nets import BlockNet
from specflow.models.inference import inference
from specflow.models.nets import as_target_ids, as_target_law, ids_table
from specflow.models.timing import now, spent
from specflow.pools import KVPool, LayerShape, Ring, view_start
from specflow.recipe import ResolvedRecipe
from specflow.stages.blocks import block_rows


class BlockStep(Step):
    """A block over its pool: in layers that see all, its rows see one another both ways.

    causal  whether rows see only what lies behind them: in those layers, and in sliding ones
    """

    def __init__(self, causal: tuple[bool, bool], **rest: Any) -> None:
        super().__init__(**rest)
        self.causal = causal

    def seen(self, window: int | None) -> Tensor:
        """Whether a row reads a slot [B, q, S]."""
        away = self.query_positions[:, :, None] - self.key_positions[:, None, :]
        return self.visible & self._near(away, window)

    def _through(self, sight: Sight, window: int | None) -> Sight:
        rows = self.query_positions - sight.lengths[:, None]  # 0, 1, ..
        return replace(sight, sees=self._near(rows[:, :, None] - rows[:, None, :], window))

    def _near(self, away: Tensor, window: int | None) -> Tensor:
        """Whether a row reads what lies so far behind it; below 0 ahead of it."""
        near = away >= 0 if self.causal[window is not None] else torch.ones_like(away).bool()
        return near if window is None else near & (away.abs() < window)


class BlockModel:
    """A block draft ready to run: its weights, and what its layers keep a position."""

    def __init__(
        self, net: BlockNet, causal: tuple[bool, bool], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.net, self.causal, self.dtype, self.device = net, causal, dtype, device
        self.forwards, self.forward_seconds = 0, 0.0
        self.to_target = ids_table(net.d2t)
        shapes = {}
        for index, layer in enumerate(net.layers):
            attention = layer.self_attn
            heads = attention.k_proj.out_features // attention.head_dim
            shapes[index] = LayerShape(heads, attention.head_dim, attention.head_dim)
        self.shapes = shapes

    def pool(self, rows: int, length: int) -> KVPool:
        """An empty pool of the draft's own."""
        return KVPool(rows, length, self.shapes, device=self.device, dtype=self.dtype)


class BlockWindow:
    """A block draft over its pool: what the generated step calls."""

    def __init__(self, model: BlockModel, ring: Ring, extent: int, row: int = 0) -> None:
        self.model, self.ring, self.row = model, ring, row
        self.extent = ring.extent(extent)
        self._views: Views = {}

    @inference
    def denoise(self, tokens: Tensor, seq_lens: Tensor) -> Tensor:
        """Hidden states [B, Q, M] of blocks [B, Q]; their keys are scratch, never context (1b)."""
        began = now()
        positions = seq_lens[:, None] + self.ring.offsets(tokens.shape[1])
        step = BlockStep(
            self.model.causal,
            pool=self.ring.pool,
            slots=self.ring.slots(positions),
            query_positions=positions,
            extent=self.extent,
            looks=lambda: self._looks(seq_lens, tokens.shape[1]),
            dtype=self.model.dtype,
            views=views_of(self._views, tokens.shape[0]),
            backend=self.model.net.target.backend,
            sight=self._sight(seq_lens, positions),
        )
        hidden: Tensor = self.model.net(tokens, positions, step)
        spent(self.model, began, forwards=1)
        return hidden

    def _looks(self, seq_lens: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Every row of a block reads what `Ring.view` says."""
        keys, visible = self.ring.view(seq_lens, rows, self.extent)
        return visible[:, None].expand(-1, rows, -1), keys

    def _sight(self, seq_lens: Tensor, positions: Tensor) -> Sight:
        """What `Ring.view` says, by lengths."""
        ring = self.ring
        first = view_start(seq_lens, ring.window, ring.page) if ring.window else None
        return Sight(seq_lens, positions, None, first, positions[:, -1] if ring.turns else None)

    @inference
    def score(self, hidden: Tensor) -> Tensor:
        """Logits [B, K, V] of the rows that guess."""
        began = now()
        logits = self.model.net.score(hidden)
        spent(self.model, began)
        return logits

    @inference
    def markov(self, last: Tensor, hidden: Tensor) -> Tensor:
        """The bias [B, V] of the token before, [B], on a row [B, M] (2c)."""
        bias: Tensor = self._head(last, hidden)[0]
        return bias

    @inference
    def markov_memory(self, last: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """As `markov`, of a head that remembers [B, R]."""
        bias, kept = self._head(last, hidden, memory)
        return bias, kept

    def no_memory(self, last: Tensor) -> Tensor:
        """A memory of nothing [B, R]."""
        weight = self._head.w1.weight
        nothing: Tensor = weight.new_zeros(last.shape[0], weight.shape[1])
        return nothing

    @property
    def _head(self) -> Any:
        """The Markov head, in a step of a draft that has one."""
        return self.model.net.markov

    @inference
    def trust(self, hidden: Tensor, bonus: Tensor, guesses: Tensor) -> Tensor:
        """Logits [B, K] of the confidence head; a guess is judged by what was known before it."""
        last = torch.cat([bonus[:, None], guesses[:, :-1]], dim=1)
        return self.model.net.trust(hidden, last)

    @inference
    def inject(self, taps: Tensor, starts: Tensor, accept_len: Tensor) -> None:
        """Write the first accept_len of a window's positions: taps [B, W, n * H] at starts [B]."""
        began = now()
        offsets = self.ring.offsets(taps.shape[1])
        positions = starts[:, None] + offsets
        injector = self.model.net.target.backend.injector
        if injector is not None:
            self._inject(injector, taps, positions, accept_len)
        else:
            kept = offsets < accept_len[:, None]
            self._write(taps, positions, self.ring.slots(positions).masked_fill(~kept, -1), 0)
        spent(self.model, began)

    def _inject(
        self, injector: Injector, taps: Tensor, positions: Tensor, accept_len: Tensor
    ) -> None:
        """The same by a kernel, which norms and turns what it writes."""
        net, pool = self.model.net, self.ring.pool
        landing = Landing(positions[:, 0], accept_len, self.ring.turns)
        rows = taps.shape[0]
        for layer, (keys, values, turning) in enumerate(
            net.projected(net.context(taps), positions)
        ):
            injector(keys, values, turning, pool.read(layer, rows, pool.length), landing)

    @inference
    def feed(self, taps: Tensor, start: int) -> None:
        """Write a part of a prompt: taps [1, P, n * H] from `start` on.

        Of a part that is longer than the ring only the end: an older position shares its slot.
        """
        count = taps.shape[1]
        skipped = max(count - self.ring.pool.length, 0) if self.ring.turns else 0
        at = torch.arange(start + skipped, start + count, device=taps.device)[None]
        self._write(taps[:, skipped:], at, self.ring.slots(at), self.row)

    def _write(self, taps: Tensor, positions: Tensor, slots: Tensor, first: int) -> None:
        net, pool = self.model.net, self.ring.pool
        flat: dict[int, Tensor] = {}
        for layer, (keys, values) in enumerate(net.keys_values(net.context(taps), positions)):
            heads = keys.shape[1]
            if heads not in flat:
                flat[heads] = pool.flat_rows(slots, heads, first)
            pool.write(layer, keys, values, flat[heads])

    @property
    def to_target(self) -> Tensor | None:
        """The target's id [V] of each of the draft's; None where they are the same."""
        return self.model.to_target

    def target_ids(self, tokens: Tensor) -> Tensor:
        """Draft ids as ids of the target's vocabulary."""
        return as_target_ids(tokens, self.model.to_target)

    def target_law(self, law: Tensor) -> Tensor:
        """A law over the draft's vocabulary [..., V] as one over the target's."""
        return as_target_law(law, self.model.to_target, self.model.net.target.vocab_size)


class BlockDrafter:
    """A draft of whole blocks: of a prompt it is shown all taps, and begins with nothing else."""

    shows: str = "taps"

    def __init__(self, model: BlockModel, recipe: ResolvedRecipe, rows: int, length: int) -> None:
        self.model = model
        self.guesses = recipe["verify.num_draft_tokens"] - 1
        self.taps: tuple[int, ...] = recipe["draft.taps"]
        window, page = recipe["draft.window_size"], recipe["draft.page_size"]
        self.ring = Ring.make(model.pool, rows, length, window, page, block_rows(recipe))

    def bind(self, extent: int) -> BlockWindow:
        """The draft over as much of its pool as the target's first `extent` positions need."""
        return BlockWindow(self.model, self.ring, extent)

    def read(self, row: int, _tokens: list[int], begin: int, shown: Tensor) -> None:
        """A part of a prompt is injected whole."""
        BlockWindow(self.model, self.ring, 0, row).feed(shown, begin)

    def admit(
        self, row: int, tokens: list[int], begin: int, shown: Tensor, _first: First
    ) -> dict[str, Tensor | int]:
        """The last part too; the first token has no hidden state yet (trap 4)."""
        self.read(row, tokens, begin, shown)
        return {}

    def move(self, source: int, target: int, length: int) -> None:
        """Copy what is kept of a row."""
        self.ring.pool.copy_row(source, target, min(length, self.ring.pool.length))

    def release(self, row: int) -> None:
        """What a row kept is unseen from here on: the next request's positions decide."""

    def drafted(self, rows: int) -> list[int]:
        """A whole block, always."""
        return [self.guesses] * rows

    def models(self) -> tuple[BlockModel, ...]:
        """The draft."""
        return (self.model,)
