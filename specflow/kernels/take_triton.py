"""What a request takes from a window on a device: the rows `take.py` slides and turns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow.kernels import vocab_triton
from specflow.kernels.vocab_triton import dense, lanes_of

# Triton reads these annotations as strings; constexpr ones are compile-time numbers.


@triton.jit
def slide_kernel(rows, start, out, row_stride, step, H, COUNT: tl.constexpr, TILE: tl.constexpr):
    """One tile of one row."""
    line = tl.program_id(0).to(tl.int64)
    wide = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row = line // COUNT
    index = tl.load(start + row) + line % COUNT
    held = tl.load(rows + row * row_stride + index * step + wide, mask=wide < H)
    tl.store(out + line * H + wide, held, mask=wide < H)


def slide(rows: Tensor, start: Tensor, count: int) -> Tensor:
    """`count` rows from `start` on, [B, count] or [B, count, H]."""
    requests = rows.shape[0]
    wide = rows.shape[2] if rows.ndim == 3 else 1
    rows = dense(rows)
    out = rows.new_empty(requests, count, *rows.shape[2:])
    tile = min(vocab_triton.TILE, lanes_of(wide))
    slide_kernel[requests * count, triton.cdiv(wide, tile)](
        rows, start, out, rows.stride(0), rows.stride(1), wide, COUNT=count, TILE=tile
    )
    return out


@triton.jit
def rotate_kernel(ids, rows, word, out, M: tl.constexpr, BLOCK: tl.constexpr):
    """The tokens of one request."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    turned = tl.load(ids + row * M + (lane + 1) % M, mask=lane < M, other=0)
    turned = tl.where(lane == tl.load(rows + row) - 1, tl.load(word + row), turned)
    tl.store(out + row * M + lane, turned, mask=lane < M)


def rotate(ids: Tensor, rows: Tensor, word: Tensor) -> Tensor:
    """Tokens [B, M] one place further on: shifted left, `word` after the last that is known."""
    ids = ids.contiguous()
    out = torch.empty_like(ids)
    requests, width = ids.shape
    rotate_kernel[(requests,)](ids, rows, word, out, M=width, BLOCK=lanes_of(width))
    return out
