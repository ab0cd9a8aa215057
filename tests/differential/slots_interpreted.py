"""Under TRITON_INTERPRET=1: what writes into slots, against its reference.

A process of its own, because Triton reads that variable once, when it is imported.
"""

from __future__ import annotations

import json
import tempfile

import torch

from specflow.kernels import inject, inject_triton, kv, kv_triton
from specflow.kernels.inject import Landing, Turning
from tests.devices import onto
from tests.hastened import hasten

SLOTS, HEADS, LENGTH = 9, 2, 24


def ascending(rows: int, depth: int, nodes: int, generator: torch.Generator) -> torch.Tensor:
    """Accepted paths, each from the root on: the longest first, then of any length."""
    path = torch.full((rows, depth), -1)
    path[:, 0] = 0
    for row in range(rows):
        longest = min(depth, nodes) - 1
        count = int(torch.randint(0, longest + 1, (), generator=generator)) if row else longest
        chosen = torch.randperm(nodes - 1, generator=generator)[:count].sort().values + 1
        path[row, 1 : 1 + count] = chosen
    return path


MOVES = [
    (seed, *sizes, dtype)
    for seed, sizes in enumerate([(1, 4, 8), (9, 4, 8), (9, 8, 9), (5, 1, 4)])
    for dtype in (torch.float32, torch.bfloat16)
]
INJECTIONS = [
    (seed, *sizes, dtype, turns)
    for seed, sizes in enumerate([(1, 16), (9, 16), (9, 24), (4, 128)])
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    for turns in (False, True)
]


def moves(
    seed: int, rows: int, depth: int, nodes: int, dtype: torch.dtype, where: str = "cpu"
) -> int:
    """How many nodes moved; both ways leave the same."""
    generator = torch.Generator().manual_seed(seed)
    ours = torch.randn(3, SLOTS, HEADS, LENGTH, 20, generator=generator).to(dtype)
    before, theirs = ours.clone(), ours.clone()
    path = ascending(rows, depth, nodes, generator)
    seq_lens = torch.randint(0, LENGTH, (rows,), generator=generator)
    seq_lens[0] = 0
    kv.move_accepted(ours, path, seq_lens)
    moved = onto(where, theirs)
    kv_triton.move_accepted(moved, *onto(where, (path, seq_lens)))
    theirs = onto("cpu", moved)
    assert torch.equal(ours, theirs), (seed, rows, depth)
    assert torch.equal(ours[:, rows:], before[:, rows:])
    return int((ours != before).any(-1).any(0).any(1).sum())


def path_lengths(seed: int, rows: int, depth: int, nodes: int) -> list[int]:
    """How many nodes the paths of such a case have."""
    generator = torch.Generator().manual_seed(seed)
    torch.randn(3, SLOTS, HEADS, LENGTH, 20, generator=generator)
    return [int(n) for n in (ascending(rows, depth, nodes, generator) >= 0).sum(1)]


def injected(
    seed: int, rows: int, width: int, dtype: torch.dtype, turns: bool, where: str = "cpu"
) -> list[int]:
    """The accept lengths that occurred; both ways leave the same."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    count = 6
    merged = noise(rows, count, 2 * HEADS, width)  # keys and values as one product leaves them
    keys, values = merged[:, :, :HEADS], merged[:, :, HEADS:]
    angle = torch.rand(rows, count, width // 2, generator=generator).repeat(1, 1, 2) * 6.28
    turning = Turning(noise(width), 1e-6, angle.cos().to(dtype), angle.sin().to(dtype))
    kept = [noise(SLOTS, HEADS, LENGTH, width) for _ in range(2)]
    theirs = [each.clone() for each in kept]
    lengths = torch.randint(0, count + 1, (rows,), generator=generator)
    starts = torch.randint(0, 4 * LENGTH if turns else LENGTH, (rows,), generator=generator)
    landing = Landing(starts, lengths, turns)
    inject.inject_rows(keys, values, turning, (kept[0], kept[1]), landing)
    written = onto(where, (theirs[0], theirs[1]))
    inject_triton.inject_rows(*onto(where, (keys, values, turning)), written, onto(where, landing))
    theirs = onto("cpu", written)
    # One rounding of each of five factors, of values around 1 that reach 10.
    slack = {torch.float32: 3e-6, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}[dtype]
    assert (kept[0].float() - theirs[0].float()).abs().max() <= slack, (seed, rows, width, dtype)
    assert torch.equal(kept[1], theirs[1])
    return lengths.tolist()


WRITES = [
    (seed, rows, count, packed, dtype)
    for seed, (rows, count) in enumerate([(1, 1), (9, 5), (9, 3)])
    for packed in (False, True)
    for dtype in (torch.float32, torch.bfloat16)
]


def written(
    seed: int, rows: int, count: int, packed: bool, dtype: torch.dtype, where: str = "cpu"
) -> int:
    """How many tokens have no place; both ways leave the same. Values are wider than keys."""
    draw = torch.Generator().manual_seed(seed)
    slots = torch.randint(0, LENGTH - count, (rows, 1), generator=draw) + torch.arange(count)
    slots[rows // 2, count // 2 :] = LENGTH  # past the end
    slots[rows // 3, 0] = -1  # refused
    which = None
    if packed:
        kept = torch.rand(slots.numel(), generator=draw) < 0.6
        nowhere = torch.full((2,), slots.numel())
        which = torch.cat([kept.nonzero()[:, 0], nowhere])
    batch, tokens = (rows, count) if which is None else (1, which.shape[0])
    # As a projection leaves them: heads beside one another, tokens before heads.
    keys = torch.randn(batch, tokens, HEADS, 20, generator=draw).to(dtype).transpose(1, 2)
    values = torch.randn(batch, tokens, HEADS, 33, generator=draw).to(dtype).transpose(1, 2)
    ours = [
        torch.randn(SLOTS, HEADS, LENGTH, width, generator=draw).to(dtype) for width in (20, 33)
    ]
    theirs = onto(where, tuple(each.clone() for each in ours))
    kv.write_rows(keys, values, (ours[0], ours[1]), slots, which)
    kv_triton.write_rows(*onto(where, (keys, values)), theirs, *onto(where, (slots, which)))
    assert all(torch.equal(a, b) for a, b in zip(ours, onto("cpu", theirs), strict=True)), seed
    return int(((slots < 0) | (slots >= LENGTH)).sum())


def far() -> int:
    """Elements of slots whose offsets pass 32 bits; both kernels reach the last head of them.

    The slots are a file of nothing: what nobody writes takes no room.
    """
    heads, length, width, count = 20, 1 << 20, 128, 3
    draw = torch.Generator().manual_seed(1)
    keys, values = torch.randn(2, 1, count, heads, width, generator=draw).bfloat16()
    flat = torch.ones(1, count, width).bfloat16()
    turning = Turning(torch.ones(width).bfloat16(), 1e-6, flat, torch.zeros_like(flat))
    start = length - count - 1
    with tempfile.NamedTemporaryFile() as file:
        size = 2 * heads * length * width
        whole = torch.from_file(file.name, shared=True, size=size, dtype=torch.bfloat16)
        kept = whole.view(2, 1, heads, length, width)
        landing = Landing(torch.tensor([start]), torch.tensor([count]), turns=False)
        inject_triton.inject_rows(keys, values, turning, (kept[0], kept[1]), landing)
        assert torch.equal(kept[1, 0, :, start : start + count], values[0].transpose(0, 1))
        kv_triton.move_accepted(kept, torch.tensor([[0, 2, -1]]), torch.tensor([start]))
        assert torch.equal(kept[1, 0, :, start + 1], values[0, 2])
    return size


def main() -> None:
    """Every shape; what occurred."""
    hasten()
    moved = [moves(*case) for case in MOVES]
    lengths = {length for case in INJECTIONS for length in injected(*case)}
    paths = {
        n for seed, rows, depth, nodes, _ in MOVES for n in path_lengths(seed, rows, depth, nodes)
    }
    print(
        json.dumps(
            {
                "moved": moved,
                "paths": sorted(paths),
                "accept_len": sorted(lengths),
                "written": [written(*case) for case in WRITES],
                "far": far(),
            }
        )
    )


if __name__ == "__main__":
    main()
