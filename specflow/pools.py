"""Where the keys and values of a batch live: static slots, one for each row of the batch.

    B  rows of the batch      S  positions attended to (extent)      D  nodes of a path
    H  key-value heads        E  width of one head                   N  rows of a flat layer

Row r of the batch owns slot r, so a batch of B rows is the view `[:B]` and nothing is gathered to
read it. Heads come before positions in memory, because attention reads one head along its
positions. All layers of one (H, E) share a block: moving accepted nodes is one gather and one
scatter a block, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specflow.errors import RuntimeFault
from specflow.faults import free_memory
from specflow.memory import slots_of

MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True)
class LayerShape:
    """What one layer keeps a position; latents of MLA differ in width from its rotated keys."""

    heads: int
    key_dim: int
    value_dim: int


class KVPool:
    """Keys and values of `slots` rows of `length` positions; a trash row takes what is beyond."""

    def __init__(
        self,
        slots: int,
        length: int,
        shapes: Mapping[int, LayerShape],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.slots, self.length = slots, length
        self.shapes = dict(shapes)
        self._bases: dict[
            int, Tensor
        ] = {}  # heads -> [slots, H, 1]: first flat row of each head of each slot
        self._blocks: dict[tuple[int, int], Tensor] = {}  # (heads, dim) -> [tensors, N, E]
        self._keys: dict[int, Tensor] = {}  # layer -> [N, E]
        self._values: dict[int, Tensor] = {}
        wanted = self._count(dtype)
        asked = f"keys and values of {slots} rows of {length} positions take {_gib(wanted)}"
        way_out = "lower `run.batch_size` or `run.max_length`"
        free = available(torch.device(device))
        if free is not None and wanted > free:  # zeros are promised first and killed for later
            raise RuntimeFault(f"{asked} where {_gib(free)} of memory are free; {way_out}")
        try:
            self.positions = torch.arange(length, device=device)  # [length]
            self._allocate(device, dtype)
        except (RuntimeError, MemoryError, OverflowError) as error:
            said = " ".join(str(error).split())[:200]
            raise RuntimeFault(f"{asked} and cannot be allocated ({said}); {way_out}") from error

    def _count(self, dtype: torch.dtype) -> int:
        """Bytes the pool will take; the trash rows are not worth counting."""
        widths = (each.heads * (each.key_dim + each.value_dim) for each in self.shapes.values())
        return sum(widths) * self.slots * self.length * dtype.itemsize + 8 * self.length

    def _allocate(self, device: torch.device | str, dtype: torch.dtype) -> None:
        wanted: dict[tuple[int, int], list[tuple[dict[int, Tensor], int]]] = {}
        for layer, shape in self.shapes.items():
            wanted.setdefault((shape.heads, shape.key_dim), []).append((self._keys, layer))
            wanted.setdefault((shape.heads, shape.value_dim), []).append((self._values, layer))
        for (heads, dim), owners in wanted.items():
            rows = self.slots * heads * self.length + 1  # the last one is the trash row
            # Zeros, never empty memory: a NaN in a masked position still poisons attention.
            block = torch.zeros(len(owners), rows, dim, device=device, dtype=dtype)
            self._blocks[heads, dim] = block
            for tensor, (table, layer) in zip(block, owners, strict=True):
                table[layer] = tensor
            if heads not in self._bases:
                first = torch.arange(self.slots * heads, device=device) * self.length
                self._bases[heads] = first.view(self.slots, heads, 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self._blocks.values())

    def flat_rows(self, positions: Tensor, heads: int, first: int = 0) -> Tensor:
        """Flat rows [B*H*q] of positions [B, q] of the slots from `first` on."""
        base = self._bases[heads][first : first + positions.shape[0]]
        rows = base + positions[:, None]
        trash = self.trash(heads)
        beyond = (positions >= self.length) | (positions < 0)
        return rows.masked_fill_(beyond[:, None], trash).reshape(-1)

    def trash(self, heads: int) -> int:
        """The flat row that takes what has no place."""
        return self.slots * heads * self.length

    def write(self, layer: int, keys: Tensor, values: Tensor, flat: Tensor) -> None:
        """Put keys and values [B, H, q, E] into the flat rows [B*H*q] of one layer."""
        self._keys[layer].index_copy_(0, flat, keys.reshape(-1, keys.shape[-1]))
        self._values[layer].index_copy_(0, flat, values.reshape(-1, values.shape[-1]))

    def read(self, layer: int, rows: int, extent: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, S, E] of one layer as views of the pool."""
        heads = self.shapes[layer].heads
        keys, values = (
            table[layer][:-1].view(self.slots, heads, self.length, -1)[
                first : first + rows, :, :extent
            ]
            for table in (self._keys, self._values)
        )
        return keys, values

    def blocks(self) -> list[Tensor]:
        """Every block by slots [tensors, slots, H, length, E], as views."""
        return [
            block[:, :-1].unflatten(1, (self.slots, heads, self.length))
            for (heads, _), block in self._blocks.items()
        ]

    def move(self, path: Tensor, seq_lens: Tensor) -> None:
        """Make node path[b, d], at seq_lens[b] + path[b, d], occupy position seq_lens[b] + d.

        path      [B, D]  indices of accepted nodes, ascending, padded with -1
        seq_lens  [B]     positions committed before this step
        """
        depth = self.positions[: path.shape[1]].expand_as(path)
        start = seq_lens[:, None]
        source = start + torch.where(path < 0, depth, path)  # a pad copies a position onto itself
        target = start + depth
        for (heads, _), block in self._blocks.items():
            # Gather before scattering: the source of one node may be the target of another.
            moved = block.index_select(1, self.flat_rows(source, heads))
            block.index_copy_(1, self.flat_rows(target, heads), moved)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy `length` positions of one slot to another: a batch closes the gap of a row."""
        for slots in self.blocks():
            slots[:, target, :, :length] = slots[:, source, :, :length]


def view_start(seq_lens: Tensor, window: int, page: int) -> Tensor:
    """The first position [B] that a window keeps of seq_lens [B], on a page boundary (8.1)."""
    return (seq_lens - window).clamp(min=0) // page * page


@dataclass(frozen=True)
class Ring:
    """The slots of a block draft: position p of a request in slot p, or in slot p mod C.

    A ring is the map from a position's slot in the target's pool to the draft's own: it needs no
    table, and a position is recycled the moment another takes its slot.

    turns   the pool is a ring, smaller than the text
    window  committed positions that are seen; 0 sees all
    """

    pool: KVPool
    turns: bool
    window: int
    page: int

    @classmethod
    def make(
        cls,
        pool: Callable[[int, int], KVPool],
        slots: int,
        length: int,
        window: int,
        page: int,
        rows: int,
    ) -> Ring:
        """A ring of `slots` requests, or a pool of all positions where that is no larger."""
        each = slots_of(window, page, rows, length)
        return cls(pool(slots, each), each < length, window, page)

    def offsets(self, count: int) -> Tensor:
        """0, 1, .. count - 1."""
        return self.pool.positions[:count]

    def extent(self, wanted: int) -> int:
        """Slots that a view over the target's first `wanted` positions spans."""
        return self.pool.length if self.turns else min(wanted, self.pool.length)

    def slots(self, positions: Tensor) -> Tensor:
        """Where positions lie; past the end of a pool that does not turn is nowhere."""
        return positions % self.pool.length if self.turns else positions

    def view(self, seq_lens: Tensor, rows: int, extent: int) -> tuple[Tensor, Tensor]:
        """Which position each slot holds [B, S], and whether a block at seq_lens [B] may read it.

        Positions are the text's own, whatever slot they lie in: RoPE and windows go by them.
        """
        slots = self.pool.positions[:extent]
        last = seq_lens[:, None] + rows - 1
        held = (
            last - (last - slots) % self.pool.length
            if self.turns
            else slots.expand_as(last.expand(-1, extent))
        )
        first = (
            view_start(seq_lens, self.window, self.page)
            if self.window
            else torch.zeros_like(seq_lens)
        )
        return held, (held >= first[:, None]) & (held <= last)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size < 2**80 else "more than 2**50 GiB"


def available(device: torch.device) -> int | None:
    """Bytes a process can still take, page cache included; None where the system does not say."""
    if device.type == "cuda":
        room = free_memory()
        if room is None:
            return None
        # What torch holds back of what was freed can be taken as well.
        return room[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if device.type != "cpu" or not MEMORY.is_file():
        return None
    lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines() if ":" in line)
    said = lines.get("MemAvailable", "").split()
    return int(said[0]) * 1024 if said else None
