"""Does a function stay capturable: no host sync, no shape that depends on data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FORBIDDEN = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::equal",
        "aten::lift_fresh",
        "aten::masked_scatter",
        "aten::masked_select",
        "aten::nonzero",
        "aten::nonzero_numpy",
        "aten::repeat_interleave.Tensor",
        "aten::unique_consecutive",
        "aten::unique_dim",
        "aten::_unique2",
    }
)
INDEXING = frozenset(
    {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
)


class HostSyncError(AssertionError):
    """An operation that a CUDA graph cannot hold."""


class CaptureSafe(TorchDispatchMode):
    """Raise `HostSyncError` on an operation that waits for the device, or shapes by data."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        if name in FORBIDDEN or func.name() in FORBIDDEN:
            raise HostSyncError(f"`{func}` cannot be captured")
        if name in INDEXING and any(_boolean(index) for index in args[1] if index is not None):
            raise HostSyncError(f"`{func}` with a boolean index cannot be captured")
        with self:  # in inference mode an op arrives whole: what it is made of has to be seen too
            made = func.decompose(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if made is NotImplemented else made


def _boolean(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)
