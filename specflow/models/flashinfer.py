"""flashinfer's paged prefill over our pool: every slot is a page, and a step's mask is packed bits.

Written against the signatures of flashinfer 0.7.4, which the tests have on record; this code has
not run on a device.

A wrapper is planned once a shape, by its first and uncaptured call: planning waits for the device.
The plan lets every query read the whole extent, so it holds for all steps of the shape; the mask
says what a step reads, and is written into the wrapper's own buffer as a part of the step. Prompts
are read by torch's attention.

    B  rows      q  tokens a row      S  extent      H  query heads      K  key-value heads
    E  head width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from specflow.backends import EXTRA
from specflow.errors import RuntimeFault
from specflow.models.attention import SDPA, Injector, Step
from specflow.pools import KVPool

WORKSPACE = 128 * 2**20  # bytes, as its manual advises
LAYOUT = "HND"  # heads before positions, as our pool has them
OTHERWISE = "write `run.attention: triton`"


@dataclass(frozen=True)
class Planned:
    """A wrapper ready to run, and the buffer it reads its mask from."""

    wrapper: Any
    mask: Tensor


class FlashInfer:
    """The backend of that name."""

    def __init__(self) -> None:
        try:
            import flashinfer
        except ImportError as error:
            raise RuntimeFault(
                f"`run.attention: flashinfer` needs the package flashinfer-python ({error}); "
                f"install {EXTRA}, or {OTHERWISE}"
            ) from error
        self._make = flashinfer.BatchPrefillWithPagedKVCacheWrapper
        self._planned: dict[tuple[Any, ...], Planned] = {}
        self._workspaces: dict[torch.device, Tensor] = {}

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
        """What queries [B, H, q, E] read of keys and values [B, K, S, E]."""
        if sinks is not None:
            raise RuntimeFault(f"flashinfer knows no attention sinks here: {OTHERWISE}")
        if step.prompt:  # of any shape: a plan for each would never be used again
            return SDPA.mix(query, key, value, step, scaling, window, softcap, sinks)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        shape = (query.shape, key.shape, value.shape[-1], query.dtype, query.device)
        at = (*shape, window, scale, softcap)
        planned = self._planned.get(at)
        if planned is None:
            planned = self._planned[at] = self._plan(query, key, value, scale, softcap)
        if at not in step.memo:  # layers of a kind share a mask
            step.memo.add(at)
            planned.mask.copy_(packed_bits(step.seen(window)))
        rows, heads, count, width = query.shape
        flat = query.transpose(1, 2).reshape(rows * count, heads, width)
        read: Tensor = planned.wrapper.run(flat, (key, value))
        return read.view(rows, count, heads, -1).transpose(1, 2)

    injector: Injector | None = None
    move = staticmethod(KVPool.move)

    def mix_latent(self, *_: Any) -> Tensor:
        """Not known here; a rule says so before a run."""
        raise RuntimeFault(f"flashinfer does not read latents here: {OTHERWISE}")

    def _plan(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float | None
    ) -> Planned:
        rows, heads, count, width = query.shape
        extent, device = key.shape[2], query.device
        if device not in self._workspaces:
            self._workspaces[device] = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
        each = torch.arange(rows + 1, dtype=torch.int32, device=device)
        asked = each * count
        last = torch.full((rows,), extent, dtype=torch.int32, device=device)
        mask = torch.zeros(
            rows * -(-count * extent // 8), dtype=torch.uint8, device=device
        )  # each row's bits begin at a byte
        wrapper = self._make(
            self._workspaces[device],
            LAYOUT,
            use_cuda_graph=True,
            qo_indptr_buf=asked.clone(),
            paged_kv_indptr_buf=each.clone(),
            paged_kv_indices_buf=each[:-1].clone(),
            paged_kv_last_page_len_buf=last.clone(),
            custom_mask_buf=mask,
            mask_indptr_buf=torch.zeros_like(each),
            backend="fa2",  # the one that reads a mask of one's own
        )
        wrapper.plan(
            asked,
            each,
            each[:-1],
            last,
            heads,
            key.shape[1],
            width,
            extent,
            head_dim_vo=value.shape[-1],
            custom_mask=torch.ones(rows * count * extent, dtype=torch.bool, device=device),
            sm_scale=scale,
            logits_soft_cap=softcap,
            q_data_type=query.dtype,
            kv_data_type=key.dtype,
        )
        return Planned(wrapper, mask)


def packed_bits(seen: Tensor) -> Tensor:
    """A mask [B, q, S] as bytes, the first position in the lowest bit; rows begin at a byte."""
    flat = seen.flatten(1)
    flat = F.pad(flat, (0, -flat.shape[1] % 8)).view(-1, 8).to(torch.uint8)
    places = 1 << torch.arange(8, dtype=torch.uint8, device=seen.device)
    return (flat * places).sum(1, dtype=torch.uint8)
