"""Reductions over the vocabulary."""

from __future__ import annotations

from torch import Tensor


def best_token(logits: Tensor) -> Tensor:
    """The likeliest token; of equals the smallest id.

    logits   [..., V]
    returns  [...]
    """
    return logits.argmax(dim=-1)
