"""What one forward writes and attends to, and the attention itself.

    B  rows      q  tokens a row      S  extent
    H  query heads      K  key-value heads      G  H / K      E  head width

The library's modules hand keys and values to `Step.update` and queries to `attend`, and carry the
step to both as an ordinary keyword. The name is registered for attention only, not for masks: the
library then builds no mask of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

from specflow.errors import RuntimeFault
from specflow.kernels.attention import Sight
from specflow.kernels.block import unpack
from specflow.kernels.inject import Landing, Turning
from specflow.pools import KVPool

ATTENTION = "specflow"
# Whether a query may read a slot [B, q, S], and the RoPE position of each slot [B, S].
Looks = Callable[[], tuple[Tensor, Tensor]]
# Passed along by modules, without a meaning here; anything else would be ignored in silence.
HARMLESS = frozenset(
    {"dropout", "position_ids", "use_cache", "output_attentions", "is_causal", "cache"}
)
Views = dict[int, dict[int, tuple[Tensor, Tensor]]]  # rows -> views of each layer
MOST_FOLDED = 64  # queries a row up to which the groups of a key-value head share one pass


class Injector(Protocol):
    """What writes accepted positions of a block draft (`specflow.kernels.inject`)."""

    def __call__(
        self,
        keys: Tensor,
        values: Tensor,
        turning: Turning,
        kept: tuple[Tensor, Tensor],
        landing: Landing,
    ) -> None:
        """As `inject_rows`."""


class Writer(Protocol):
    """What writes new tokens into slots (`specflow.kernels.kv`)."""

    def __call__(
        self,
        keys: Tensor,
        values: Tensor,
        kept: tuple[Tensor, Tensor],
        slots: Tensor,
        packed: Tensor | None = None,
    ) -> None:
        """As `write_rows`."""


class Backend(Protocol):
    """How queries read the windows of a pool, and what moves in it.

    What each one can do is in `specflow.backends`.

    injector  None where torch norms, turns and writes
    writer    None where torch finds slots and writes
    """

    injector: Injector | None
    writer: Writer | None

    def mix(  # noqa: PLR0917 - what an attention is made of
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        step: Step,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """What queries [B, H, q, E] read [B, H, q, E'] of keys and values [B, K, S, E]."""

    def mix_latent(
        self,
        query: Tensor,
        latent: Tensor,
        rotated: Tensor,
        step: Step,
        scaling: float | None,
        weights: tuple[Tensor, Tensor],
    ) -> Tensor:
        """The same of latents and rotated keys (`mix_latent`)."""

    def move(self, pool: KVPool, path: Tensor, seq_lens: Tensor) -> None:
        """Make accepted nodes the positions after seq_lens (`KVPool.move`)."""

    def unpack(self, rows: Tensor, packed: Tensor, count: int, width: int, /) -> Tensor:
        """Lay packed positions out (`specflow.kernels.block.unpack`)."""

    def launching(self, rows: int, needed: int) -> AbstractContextManager[None]:
        """Around a launch of so many rows, none of which reaches beyond `needed` positions.

        What a captured step reads of the host is written here: a replay calls nothing else.
        """


def nothing_planned(_rows: int, _needed: int) -> AbstractContextManager[None]:
    """Of a backend whose launches read nothing of the host."""
    return nullcontext()


class Step:
    """One forward over a pool: which positions are written, and who sees whom.

    query_positions  [B, q]     RoPE positions of the queries
    extent           S: the slots of a row that may be read
    looks            who sees whom, slot by slot (`Looks`): made only for a backend that reads it
    sight            the same told by lengths, for a backend that reads no mask
    key_depths       [B, R]     RoPE positions of the new tokens, past the committed ones
    prompt           a part of a prompt: of any shape, and never captured
    """

    packed: Tensor | None = None  # which tokens there are, where not all

    def __init__(  # noqa: PLR0913 - what is written, who sees whom, and who computes it
        self,
        pool: KVPool,
        slots: Tensor,
        query_positions: Tensor,
        extent: int,
        looks: Looks,
        *,
        dtype: torch.dtype,
        first: int = 0,
        views: dict[int, tuple[Tensor, Tensor]] | None = None,
        backend: Backend | None = None,
        sight: Sight | None = None,
        key_depths: Tensor | None = None,
        prompt: bool = False,
    ) -> None:
        self.pool, self.slots, self.first = pool, slots, first
        self.query_positions, self.extent, self._looks = query_positions, extent, looks
        self._looked: tuple[Tensor, Tensor] | None = None
        self.backend = SDPA if backend is None else backend
        self._sight, self._key_depths, self.prompt = sight, key_depths, prompt
        self._sights: dict[int | None, Sight] = {}
        self.memo: set[Any] = set()  # what a backend has done for this step
        self.dtype = dtype
        self._views = (
            {} if views is None else views
        )  # the views outlive the step: the pool never moves
        self._flat: dict[int, Tensor] = {}
        self._masks: dict[tuple[int | None, int], Tensor] = {}

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, K, q, E] of one layer; return its whole window [B, K, S, E]."""
        if self.backend.writer is not None:
            kept = self.pool.read(layer, self.slots.shape[0], self.pool.length, self.first)
            self.backend.writer(keys, values, kept, self.slots, self.packed)
        else:
            heads = keys.shape[1]
            flat = self._flat.get(heads)
            if flat is None:
                flat = self._flat[heads] = self._find(heads)
            self.pool.write(layer, keys, values, flat)
        view = self._views.get(layer)
        if view is None:
            rows = self.query_positions.shape[0]
            view = self._views[layer] = self.pool.read(layer, rows, self.extent, self.first)
        return view

    def _find(self, heads: int) -> Tensor:
        """The flat rows of what is written."""
        return self.pool.flat_rows(self.slots, heads, self.first)

    @property
    def turns(self) -> bool:
        """Whether slots are rings."""
        return self._sight is not None and self._sight.turns

    @property
    def visible(self) -> Tensor:
        """Whether a query may read a slot [B, q, S]."""
        return self._look()[0]

    @property
    def key_positions(self) -> Tensor:
        """RoPE positions of the slots [B, S], read by sliding windows only."""
        return self._look()[1]

    def _look(self) -> tuple[Tensor, Tensor]:
        if self._looked is None:
            self._looked = self._looks()
        return self._looked

    def mask(self, window: int | None, groups: int) -> Tensor:
        """The additive mask [B, 1, groups*q, S], made once a step for each width and fold."""
        mask = self._masks.get((window, groups))
        if mask is None:
            mask = self._masks[window, groups] = self._build(window, groups)
        return mask

    def sight(self, window: int | None) -> Sight:
        """Who sees whom through a window, made once a step for each."""
        if window not in self._sights:
            if self._sight is None:
                raise RuntimeFault(
                    "this forward is known by its mask only: write `run.attention: sdpa`"
                )
            self._sights[window] = self._through(self._sight, window)
        return self._sights[window]

    def _through(self, sight: Sight, window: int | None) -> Sight:
        if window is None or sight.sees is None or self._key_depths is None:
            return sight  # of a chain the kernel knows
        depths = self.query_positions - sight.lengths[:, None]
        near = depths[:, :, None] - self._key_depths[:, None, :] < window
        return replace(sight, sees=sight.sees & near)

    def _build(self, window: int | None, groups: int) -> Tensor:
        if groups > 1:
            single = self.mask(window, 1)
            return single.expand(-1, groups, -1, -1).flatten(1, 2).unsqueeze(1)
        return self._additive(self.seen(window))

    def seen(self, window: int | None) -> Tensor:
        """Whether a query reads a slot [B, q, S] through a window."""
        if window is None:
            return self.visible
        distance = self.query_positions[:, :, None] - self.key_positions[:, None, :]
        return self.visible & (distance < window)

    def _additive(self, visible: Tensor) -> Tensor:
        # The lowest number, not -inf: a row that sees nothing must not write NaN into the pool.
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=visible.device)
        return mask.masked_fill_(~visible, torch.finfo(self.dtype).min).unsqueeze(1)


class PackedStep(Step):
    """A forward over some of the B * q positions of a batch, side by side as one row of G tokens.

    What is written and multiplied is packed; attention alone looks at the whole grid [B, q].

    packed  [G]  indices into the grid, in order; B * q is nowhere
    """

    packed: Tensor

    def __init__(self, packed: Tensor, **of_the_grid: Any) -> None:
        super().__init__(**of_the_grid)
        self.packed = packed
        self.grid = tuple(self.query_positions.shape)

    def _find(self, heads: int) -> Tensor:
        rows = self.pool.flat_rows(self.slots, heads).view(self.grid[0], heads, -1)
        by_head = rows.transpose(0, 1).reshape(heads, -1)  # [K, B * q]
        trash = by_head.new_full((heads, 1), self.pool.trash(heads))
        everywhere = torch.cat([by_head, trash], dim=1)
        return everywhere.index_select(1, self.packed).reshape(-1)

    def spread(self, query: Tensor) -> Tensor:
        """Queries [1, H, G, E] over the grid [B, H, q, E]; 0 where nothing is asked."""
        heads, width = query.shape[1], query.shape[3]
        rows, count = self.grid
        laid = query.new_zeros(heads, rows * count + 1, width)
        laid.index_copy_(1, self.packed, query[0])
        return laid[:, :-1].view(heads, rows, count, width).transpose(0, 1)

    def gather(self, mixed: Tensor) -> Tensor:
        """What the grid read [B, H, q, E], packed [1, H, G, E]."""
        flat = mixed.transpose(0, 1).flatten(1, 2)
        beyond = flat.new_zeros(flat.shape[0], 1, flat.shape[2])
        return torch.cat([flat, beyond], dim=1).index_select(1, self.packed)[None]


def views_of(kept: Views, rows: int) -> dict[int, tuple[Tensor, Tensor]]:
    """The views that steps of so many rows share: the pool never moves.

    A trace makes its own, which cost a compiled step nothing: one that filled what it was traced
    by would be traced again at its next call.
    """
    return {} if torch.compiler.is_compiling() else kept.setdefault(rows, {})


class Frame:
    """The first `extent` positions of the slots of a pool, as forwards over them see it.

    Each method returns RoPE positions [B, q] and the step that a forward carries.
    """

    def __init__(
        self,
        pool: KVPool,
        extent: int,
        dtype: torch.dtype,
        row: int = 0,
        backend: Backend | None = None,
    ) -> None:
        self.pool, self.dtype, self.row, self.backend = pool, dtype, row, backend
        self.extent = min(extent, pool.length)
        self._positions = pool.positions[: self.extent]  # [S]
        self._views: Views = {}

    def chain(self, width: int, starts: Tensor) -> tuple[Tensor, Step]:
        """Token i at position and slot starts + i, seeing all before it."""
        positions = starts[:, None] + self.pool.positions[:width]
        return positions, self._step(
            positions, positions, lambda: self._behind(positions), Sight(starts, positions)
        )

    def packed(self, width: int, starts: Tensor, packed: Tensor) -> tuple[Tensor, Step]:
        """As `chain`, of the positions packed [G] alone; RoPE positions [1, G]."""
        positions = starts[:, None] + self.pool.positions[:width]
        nowhere = positions.new_zeros(1)
        at = torch.cat([positions.flatten(), nowhere]).index_select(0, packed)
        step = PackedStep(
            packed,
            pool=self.pool,
            slots=positions,
            query_positions=positions,
            extent=self.extent,
            looks=lambda: self._behind(positions),
            dtype=self.dtype,
            views=views_of(self._views, positions.shape[0]),
            backend=self.backend,
            sight=Sight(starts, positions),
        )
        return at[None], step

    def tree(self, starts: Tensor, depths: Tensor, sees: Tensor) -> tuple[Tensor, Step]:
        """Node i in slot starts + i, at position starts + depth; it sees by sees [B, W, W]."""
        return self._region(starts, 0, depths, sees, depths)

    def level(self, width: int, starts: Tensor, sees: Tensor, level: int) -> tuple[Tensor, Step]:
        """The branches that level `level`, from 1 on, of a tree under position starts - 1 has.

        The levels lie one after the other: branch t is in slot starts + (level - 1) * width + t, at
        position starts + level - 1. So no KV moves while a tree grows, and every branch reads
        exactly the KV of its ancestors (serial.md §4.4).

        sees  [B, T, R]  bool: which of the R = (levels - 1) * T nodes a branch sees
        """
        above = level - 1
        depths = torch.full(sees.shape[:2], above, dtype=starts.dtype, device=starts.device)
        of_keys = (self.pool.positions[: sees.shape[2]] // width).expand(sees.shape[0], -1)
        return self._region(starts, above * width, depths, sees, of_keys)

    def prefill(self, count: int, start: int) -> tuple[Tensor, Step]:
        """`count` tokens of one row from position `start` on."""
        keys = self.pool.positions[None, : start + count]
        positions = keys[:, start:]
        return positions, Step(
            self.pool, positions, positions, start + count,
            lambda: (keys[:, None] <= positions[:, :, None], keys), dtype=self.dtype,
            first=self.row, backend=self.backend, sight=Sight(positions[:, 0], positions),
            prompt=True,
        )  # fmt: skip

    def frozen(self, width: int, seq_lens: Tensor) -> tuple[Tensor, Step]:
        """`width` queries a row at the last committed position; nothing is written (§6.5)."""
        at = (seq_lens - 1).clamp(min=0)[:, None].repeat(1, width)
        sight = Sight(seq_lens, at, at.new_empty(*at.shape, 0, dtype=torch.bool))  # nothing is new

        def looks() -> tuple[Tensor, Tensor]:
            seen = self._positions < seq_lens[:, None]
            return seen[:, None].expand(-1, width, -1), self._positions[None]

        return at, self._step(at, at, looks, sight)

    def _behind(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Every slot up to a query's own."""
        return self._positions <= positions[:, :, None], self._positions[None]

    def _region(
        self, starts: Tensor, first: int, depths: Tensor, sees: Tensor, key_depths: Tensor
    ) -> tuple[Tensor, Step]:
        """Queries in slots from starts + first on; they see the prefix and nodes from starts on."""
        count, width = sees.shape[2], depths.shape[1]
        positions = starts[:, None] + depths
        slots = starts[:, None] + self.pool.positions[first : first + width]

        def looks() -> tuple[Tensor, Tensor]:
            node = self._positions - starts[:, None]  # [B, S]: below 0 the prefix
            nearest = node.clamp(0, count - 1)
            seen = sees.gather(2, nearest[:, None, :].expand(-1, width, -1))
            inside = (node < count) & (node >= 0)
            keys = torch.where(node < 0, node, key_depths.gather(1, nearest))
            return (node < 0)[:, None] | (seen & inside[:, None]), starts[:, None] + keys

        return positions, self._step(
            slots, positions, looks, Sight(starts, positions, sees), key_depths
        )

    def _step(
        self,
        slots: Tensor,
        positions: Tensor,
        looks: Looks,
        sight: Sight,
        key_depths: Tensor | None = None,
    ) -> Step:
        views = views_of(self._views, slots.shape[0])
        return Step(
            self.pool, slots, positions, self.extent, looks, dtype=self.dtype, views=views,
            backend=self.backend, sight=sight, key_depths=key_depths,
        )  # fmt: skip


def attend(  # noqa: PLR0913 - the library calls it
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: Step | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Attention of queries [B, H, q, E] to a window [B, K, S, E], as [B, q, H, E]."""
    del attention_mask
    if step is None:
        raise RuntimeFault(
            f"`{type(module).__name__}` runs on its own, or its layer drops keywords: "
            "use another target model"
        )
    for name, given in extra.items():
        if given is not None and name not in HARMLESS:
            raise RuntimeFault(
                f"attention argument `{name}` is not supported: use another target model"
            )
    latent = getattr(module, "latent_weights", None)
    if latent is None:
        mixed = mix(query, key, value, step, scaling, sliding_window, softcap, s_aux)
    else:
        mixed = mix_latent(query, key, value, step, scaling, latent)
    return mixed.transpose(1, 2), None


def mix(  # noqa: PLR0917 - what an attention is made of
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Step,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """What the queries read [B, H, q, E], or packed as they came.

    sinks  [H]  a score beside the keys' own that reads nothing: it takes its share of the mass
    """
    if isinstance(step, PackedStep):
        spread = step.spread(query)
        mixed = step.backend.mix(spread, key, value, step, scaling, window, softcap, sinks)
        return step.gather(mixed)
    return step.backend.mix(query, key, value, step, scaling, window, softcap, sinks)


def _mix(  # noqa: PLR0917 - as `mix`
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Step,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Queries of one key-value head are folded into one pass."""
    rows, heads, queries, width = query.shape
    groups = heads // key.shape[1]
    plain = softcap is None and sinks is None
    if query.device.type == "cuda" and step.prompt and plain and window is None:
        return causal(query, key, value, scaling)
    if queries > MOST_FOLDED and plain and query.device.type == "cpu":
        mask = step.mask(window, 1)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, enable_gqa=groups > 1
        )
    mask = step.mask(window, groups if queries > 1 else 1)
    folded = query.reshape(rows, key.shape[1], groups * queries, width)
    if plain:
        mixed = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    else:
        scores = torch.matmul(folded, key.transpose(2, 3)) * (
            width**-0.5 if scaling is None else scaling
        )
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores + mask
        if sinks is not None:
            sink = sinks.to(scores.dtype).view(1, key.shape[1], groups, 1, 1)
            sink = sink.expand(rows, -1, -1, queries, 1).reshape(rows, key.shape[1], -1, 1)
            scores = torch.cat([scores, sink], dim=-1)
        shares = torch.softmax(scores, dim=-1)[..., : key.shape[2]]
        mixed = torch.matmul(shares.to(value.dtype), value)
    return mixed.reshape(rows, heads, queries, value.shape[-1])


def causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """What the last positions [B, H, q, E] read of all up to their own [B, K, S, E].

    A device's kernels for long prompts take no mask, or no groups: told like this they take both.
    """
    bias = causal_lower_right(query.shape[2], key.shape[2])
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, scale=scaling, enable_gqa=query.shape[1] > key.shape[1]
    )


def mix_latent(
    query: Tensor,
    latent: Tensor,
    rotated: Tensor,
    step: Step,
    scaling: float | None,
    weights: tuple[Tensor, Tensor],
) -> Tensor:
    """Latent attention over latents [B, 1, S, R] and rotated keys [B, 1, S, r], not expanded.

    weights  [H, E - r, R] and [H, V, R]  from a latent to the plain part of a key, and to a value
    """
    if isinstance(step, PackedStep):
        spread = step.spread(query)
        return step.gather(step.backend.mix_latent(spread, latent, rotated, step, scaling, weights))
    return step.backend.mix_latent(query, latent, rotated, step, scaling, weights)


def _mix_latent(
    query: Tensor,
    latent: Tensor,
    rotated: Tensor,
    step: Step,
    scaling: float | None,
    weights: tuple[Tensor, Tensor],
) -> Tensor:
    """Every head reads the one latent in one pass."""
    key_up, value_up = weights
    rows, heads, queries, width = query.shape
    plain, turned = query.split([key_up.shape[1], rotated.shape[-1]], dim=-1)
    folded = torch.matmul(plain, key_up).view(rows, 1, heads * queries, -1)
    scores = torch.matmul(folded, latent.transpose(2, 3))
    scores += torch.matmul(turned.reshape(rows, 1, heads * queries, -1), rotated.transpose(2, 3))
    scores *= width**-0.5 if scaling is None else scaling
    scores += step.mask(None, heads if queries > 1 else 1)
    read = torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype), latent)
    return torch.matmul(read.view(rows, heads, queries, -1), value_up.transpose(1, 2))


class Sdpa:
    """Torch's own attention over additive masks: on a CPU, and what the others are held against."""

    injector: Injector | None = None
    writer: Writer | None = None
    unpack = staticmethod(unpack)
    mix = staticmethod(_mix)
    mix_latent = staticmethod(_mix_latent)
    move = staticmethod(KVPool.move)
    launching = staticmethod(nothing_planned)


SDPA = Sdpa()
AttentionInterface.register(ATTENTION, attend)
