"""The same cases on another device: what is given goes there, and what is said comes back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

MOST_COPIED = 2**26  # numbers of a storage; of a larger one only what the tensor sees goes along


def onto(where: str, value: Any) -> Any:
    """A value with all its tensors on a device, laid out as they were; as it is where they are."""
    if isinstance(value, Tensor):
        return value if value.device.type == where else laid(where, value)
    if isinstance(value, tuple | list):
        return type(value)(onto(where, each) for each in value)
    if isinstance(value, dict):
        return {key: onto(where, each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: onto(where, getattr(value, f.name)) for f in fields(value)}
        )
    return value


def laid(where: str, tensor: Tensor) -> Tensor:
    """A copy whose strides and offset are those of the original: `to` alone would pack a view."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    as_it_was = (tensor.shape, tensor.stride(), tensor.storage_offset())
    if count > MOST_COPIED:
        return (
            torch.empty(count, dtype=tensor.dtype, device=where)
            .as_strided(*as_it_was)
            .copy_(tensor)
        )
    return tensor.as_strided((count,), (1,), 0).to(where).as_strided(*as_it_was)


class Elsewhere:
    """A model of a CPU as a device calls it: it reads there, and answers here."""

    def __init__(self, model: Any, where: str) -> None:
        self._model, self._where = model, where

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if not callable(found):
            return onto(self._where, found)
        return lambda *given: onto(self._where, found(*onto("cpu", given)))
