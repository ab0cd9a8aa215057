"""Ops on tensors: the torch references, which a generated step calls on CPU."""

from specflow.kernels.accept import accept_chain, accept_tree, tree_arrays
from specflow.kernels.take import mask_rejected, take_last, take_path, take_previous, widen
from specflow.kernels.vocab import best_token

__all__ = [
    "accept_chain",
    "accept_tree",
    "best_token",
    "mask_rejected",
    "take_last",
    "take_path",
    "take_previous",
    "tree_arrays",
    "widen",
]
