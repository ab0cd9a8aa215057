"""Does a function stay capturable: no host sync, no shape by data, no draw of torch's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SYNCS = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::equal",
        "aten::is_nonzero",
        "aten::item",
        "aten::lift_fresh",  # a tensor of host numbers: a copy to the device
    }
)
SHAPED_BY_DATA = frozenset(
    {
        "aten::_unique",
        "aten::_unique2",
        "aten::bincount",
        "aten::masked_scatter",
        "aten::masked_select",
        "aten::nonzero",
        "aten::nonzero_numpy",
        "aten::repeat_interleave.Tensor",
        "aten::unique_consecutive",
        "aten::unique_dim",
    }
)
# A request's coins are made of its seed and its position; a generator's would be replayed as well,
# but by the order of launches.
DRAWS = frozenset(
    {
        "aten::bernoulli",
        "aten::bernoulli_",
        "aten::exponential_",
        "aten::multinomial",
        "aten::normal_",
        "aten::rand",
        "aten::rand_like",
        "aten::randint",
        "aten::randn",
        "aten::randperm",
        "aten::uniform_",
    }
)
MOVES = frozenset({"aten::resize_", "aten::set_"})  # of what lies at a fixed address
FORBIDDEN = SYNCS | SHAPED_BY_DATA | DRAWS | MOVES
INDEXING = frozenset(
    {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
)


class HostSyncError(AssertionError):
    """An operation that a CUDA graph cannot hold."""


class CaptureSafe(TorchDispatchMode):
    """Raise `HostSyncError` on an operation that waits for the device, or shapes by data.

    done  every operation that ran, with the shapes it left: the same whatever the data is
    """

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, tuple[tuple[int, ...], ...]]] = []

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
        if made is not NotImplemented:
            return made
        made = func(*args, **(kwargs or {}))
        shapes = tuple(tuple(t.shape) for t in tree_leaves(made) if isinstance(t, Tensor))
        self.done.append((func.name(), shapes))
        return made


def _boolean(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)
