"""What writes into slots: equal to torch under the interpreter, and to the pool."""

from __future__ import annotations

import pytest
import torch

from specflow.kernels import kv
from specflow.kernels.inject import Landing, Turning, inject_rows
from specflow.pools import KVPool, LayerShape
from tests.differential.test_attention_kernels import interpreted

pytest.importorskip("triton")


def test_the_kernels_equal_their_references() -> None:
    found = interpreted("slots_interpreted.py")
    assert sum(found["moved"]) > 50
    assert {1, 2, 4, 8} <= set(found["paths"])  # the root alone, some nodes, all of 4 and of 8
    assert found["accept_len"] == list(range(7))
    assert sum(found["written"]) > 9
    assert found["far"] > 2**32


def test_the_reference_moves_what_the_pool_moves() -> None:
    """Of what lies within the slots: the pool reads its trash row past their end."""
    torch.manual_seed(0)
    pool = KVPool(4, 16, {0: LayerShape(2, 8, 8), 1: LayerShape(2, 8, 8)})
    for slots in pool.blocks():
        slots.copy_(torch.randn_like(slots))
    ours = [slots.clone() for slots in pool.blocks()]
    path = torch.tensor([[0, 2, 3, -1], [0, 1, 4, 5], [0, -1, -1, -1]])
    seq_lens = torch.tensor([0, 10, 5])
    pool.move(path, seq_lens)
    for slots in ours:
        kv.move_accepted(slots, path, seq_lens)
    assert all(torch.equal(a, b) for a, b in zip(ours, pool.blocks(), strict=True))


def test_the_reference_injects_what_the_draft_injects() -> None:
    """The library's own norm and rotation, and the pool's own write, of a ring that has turned."""
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

    torch.manual_seed(0)
    rows, count, heads, width = 3, 5, 2, 8
    pool = KVPool(rows, 8, {0: LayerShape(heads, width, width)})
    keys, values = torch.randn(2, rows, count, heads, width)
    norm = Qwen3RMSNorm(width, eps=1e-6)
    torch.nn.init.normal_(norm.weight)
    angle = torch.rand(rows, count, width // 2).repeat(1, 1, 2)
    landing = Landing(torch.tensor([0, 6, 21]), torch.tensor([5, 3, 0]), turns=True)
    ours = [each.clone() for each in pool.read(0, rows, 8)]
    turning = Turning(norm.weight.detach(), 1e-6, angle.cos(), angle.sin())
    inject_rows(keys, values, turning, (ours[0], ours[1]), landing)
    normed = norm(keys).detach().transpose(1, 2)
    turned, _ = apply_rotary_pos_emb(normed, normed, angle.cos(), angle.sin())
    offsets = torch.arange(count)
    slots = (landing.starts[:, None] + offsets) % 8
    slots = slots.masked_fill(offsets >= landing.accept_len[:, None], -1)
    pool.write(0, turned, values.transpose(1, 2), pool.flat_rows(slots, heads))
    for mine, its in zip(ours, pool.read(0, rows, 8), strict=True):
        torch.testing.assert_close(mine, its)
