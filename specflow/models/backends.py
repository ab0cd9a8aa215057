"""Who computes attention: torch, a Triton kernel, or flashinfer; `run.attention` names it.

B  rows      q  tokens a row      S  extent      H  query heads      K  key-value heads
E  head width      R  width of a latent
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specflow.backends import EXTRA
from specflow.errors import RuntimeFault
from specflow.kernels.attention import Latent, Scoring
from specflow.kernels.block import unpack as unpack_rows
from specflow.models.attention import (
    SDPA,
    Backend,
    Injector,
    Step,
    Writer,
    nothing_planned,
)
from specflow.models.flashinfer import FlashInfer
from specflow.pools import KVPool

Kernel = Callable[..., Tensor]
Mover = Callable[[Tensor, Tensor, Tensor], None]
Unpacker = Callable[[Tensor, Tensor, int, int], Tensor]


@dataclass
class Triton:
    """The kernel of `specflow.kernels.attention_triton`: any tree, by lengths instead of a mask.

    Each of its parts may be another with the same signature; the kernels' references are such.
    """

    kernel: Kernel
    mover: Mover
    injector: Injector | None
    writer: Writer | None = None
    unpack: Unpacker = unpack_rows

    @classmethod
    def open(cls) -> Triton:
        """All of it by kernels."""
        try:
            from specflow.kernels import attention_triton, block_triton, inject_triton, kv_triton
        except ImportError as error:
            raise RuntimeFault(
                f"`run.attention: triton` needs the package triton ({error}); "
                f"install {EXTRA}, or write `run.attention: sdpa`"
            ) from error
        return cls(
            attention_triton.attend_new,
            kv_triton.move_accepted,
            inject_triton.inject_rows,
            kv_triton.write_rows,
            block_triton.unpack,
        )

    launching = staticmethod(nothing_planned)

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
        """What the queries read [B, H, q, E]."""
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scoring = Scoring(scale, window, softcap, sinks)
        return self.kernel(query, key, value, step.sight(window), scoring)

    def move(self, pool: KVPool, path: Tensor, seq_lens: Tensor) -> None:
        """One launch for all tensors of a shape."""
        for slots in pool.blocks():
            self.mover(slots, path, seq_lens)

    def mix_latent(
        self,
        query: Tensor,
        latent: Tensor,
        rotated: Tensor,
        step: Step,
        scaling: float | None,
        weights: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Every head reads the one latent, as the key and as the value."""
        key_up, value_up = weights
        plain, turned = query.split([key_up.shape[1], rotated.shape[-1]], dim=-1)
        folded = torch.matmul(plain, key_up)  # [B, H, q, R]
        scoring = Scoring(query.shape[-1] ** -0.5 if scaling is None else scaling)
        read = self.kernel(
            folded, latent, latent, step.sight(None), scoring, Latent(turned, rotated)
        )
        return torch.matmul(read, value_up.transpose(1, 2))


BACKENDS: dict[str, Callable[[], Any]] = {
    "sdpa": lambda: SDPA,
    "triton": Triton.open,
    "flashinfer": FlashInfer,
}


def open_backend(name: str) -> Backend:
    """The backend that `run.attention` names."""
    backend: Backend = BACKENDS[name]()
    return backend
