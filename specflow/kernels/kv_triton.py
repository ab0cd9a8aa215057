"""What is written into slots: accepted nodes moved, and new tokens, in one launch each.

Of nodes a program has one head of one row of one tensor, and copies them in order: a node never
lies before where it goes, so none is overwritten before it has been copied (serial.md §4.4). Of
tokens a program has one head of one token, and finds its slot by itself.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels.vocab_triton import dense


@triton.jit
def move_kernel(
    slots, path, seq_lens, tensor_stride, slot_stride, head_stride, position_stride, length,
    D: tl.constexpr, E: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The accepted nodes of one head of one row of one tensor."""
    row = tl.program_id(1).to(tl.int64)
    lanes = tl.arange(0, WIDE)
    base = slots + tl.program_id(0).to(tl.int64) * tensor_stride + row * slot_stride
    base += tl.program_id(2).to(tl.int64) * head_stride
    start = tl.load(seq_lens + row)
    for depth in range(D):
        node = tl.load(path + row * D + depth)
        source, target = start + node, start + depth
        # A lane reads and writes one column: what it copied last is not what it copies next.
        if (node > depth) & (source < length) & (target < length):
            read = tl.load(base + source * position_stride + lanes, mask=lanes < E)
            tl.store(base + target * position_stride + lanes, read, mask=lanes < E)


def move_accepted(slots: Tensor, path: Tensor, seq_lens: Tensor) -> None:
    """As `specflow.kernels.kv.move_accepted`."""
    tensors, _, heads, length, width = slots.shape
    if path.shape[1] < 2:
        return  # the root stays where it is
    move_kernel[tensors, path.shape[0], heads](
        slots, path.contiguous(), seq_lens.contiguous(), *slots.stride()[:4], length,
        D=path.shape[1], E=width, WIDE=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip


@triton.jit
def write_kernel(
    keys, values, kept_keys, kept_values, slots, packed, count, tokens, length,
    key_row, key_head, key_token, value_row, value_head, value_token,
    keys_slot, keys_head, keys_position, values_slot, values_head, values_position,
    E: tl.constexpr, WIDE: tl.constexpr, V: tl.constexpr, WIDE_V: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """One head of one token."""
    each = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    at = tl.load(packed + each) if PACKED else each
    place = tl.load(slots + at, mask=at < tokens, other=-1)
    if (place >= 0) & (place < length):
        slot = at // count
        row = 0 if PACKED else slot
        token = each if PACKED else at % count
        lanes = tl.arange(0, WIDE)
        said = keys + row * key_row + head * key_head + token * key_token + lanes
        into = kept_keys + slot * keys_slot + head * keys_head + place * keys_position + lanes
        key = tl.load(said, mask=lanes < E)
        tl.store(into, key.to(kept_keys.dtype.element_ty), mask=lanes < E)
        lanes = tl.arange(0, WIDE_V)
        said = values + row * value_row + head * value_head + token * value_token + lanes
        into = kept_values + slot * values_slot + head * values_head + lanes
        value = tl.load(said, mask=lanes < V)
        into += place * values_position
        tl.store(into, value.to(kept_values.dtype.element_ty), mask=lanes < V)


def write_rows(
    keys: Tensor,
    values: Tensor,
    kept: tuple[Tensor, Tensor],
    slots: Tensor,
    packed: Tensor | None = None,
) -> None:
    """As `specflow.kernels.kv.write_rows`."""
    keys, values, slots = dense(keys), dense(values), slots.contiguous()
    tokens = slots.numel()
    each = tokens if packed is None else packed.shape[0]
    width, value_width = keys.shape[3], values.shape[3]
    write_kernel[each, keys.shape[1]](
        keys, values, *kept, slots, slots if packed is None else packed, slots.shape[1], tokens,
        kept[0].shape[2],
        *keys.stride()[:3], *values.stride()[:3], *kept[0].stride()[:3], *kept[1].stride()[:3],
        E=width, WIDE=triton.next_power_of_2(width),
        V=value_width, WIDE_V=triton.next_power_of_2(value_width),
        PACKED=packed is not None, num_warps=1,
    )  # fmt: skip
