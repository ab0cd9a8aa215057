"""Moving accepted nodes, in one launch for all tensors of a shape.

A program has one head of one row of one tensor, and copies its nodes in order: a node never lies
before where it goes, so none is overwritten before it has been copied (serial.md §4.4).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


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
