"""Who computes attention: torch, a Triton kernel, or flashinfer; `run.attention` names it.

B  rows      q  tokens a row      S  extent      H  query heads      K  key-value heads
E  head width      R  width of a latent
"""

from __future__ import annotations

from collections.abc import Callable
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


class Triton:
    """The kernel of `specflow.kernels.attention_triton`: any tree, by lengths instead of a mask.

    kernel, mover, injector, writer, unpack  others with the signatures of the kernels; their
    references are such. Where the first three are given, torch does what is not
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        mover: Mover | None = None,
        injector: Injector | None = None,
        writer: Writer | None = None,
        unpack: Unpacker = unpack_rows,
    ) -> None:
        if kernel is None or mover is None or injector is None:
            try:
                from specflow.kernels import (
                    attention_triton,
                    block_triton,
                    inject_triton,
                    kv_triton,
                )
            except ImportError as error:
                raise RuntimeFault(
                    f"`run.attention: triton` needs the package triton ({error}); "
                    f"install {EXTRA}, or write `run.attention: sdpa`"
                ) from error
            kernel = kernel or attention_triton.attend_new
            mover = mover or kv_triton.move_accepted
            injector = injector or inject_triton.inject_rows
            writer = writer or kv_triton.write_rows
            unpack = block_triton.unpack if unpack is unpack_rows else unpack
        self._kernel, self._mover = kernel, mover
        self.injector: Injector | None = injector
        self.writer: Writer | None = writer
        self.unpack = unpack

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
        return self._kernel(query, key, value, step.sight(window), scoring)

    def move(self, pool: KVPool, path: Tensor, seq_lens: Tensor) -> None:
        """One launch for all tensors of a shape."""
        for slots in pool.blocks():
            self._mover(slots, path, seq_lens)

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
        read = self._kernel(
            folded, latent, latent, step.sight(None), scoring, Latent(turned, rotated)
        )
        return torch.matmul(read, value_up.transpose(1, 2))


BACKENDS: dict[str, Callable[[], Any]] = {
    "sdpa": lambda: SDPA,
    "triton": Triton,
    "flashinfer": FlashInfer,
}


def open_backend(name: str) -> Backend:
    """The backend that `run.attention` names."""
    backend: Backend = BACKENDS[name]()
    return backend
