"""Ops on tensors: the torch references, which a generated step calls on CPU."""

from specflow.kernels.accept import accept_chain, accept_tree, tree_arrays
from specflow.kernels.coins import draft_coins, verify_coins
from specflow.kernels.sample import (
    accept_block,
    accept_rejection,
    accept_sampled,
    chain_parents,
    filter_law,
    law_of,
    pick,
)
from specflow.kernels.take import mask_rejected, take_last, take_path, take_previous, widen
from specflow.kernels.vocab import best_token

__all__ = [
    "accept_block",
    "accept_chain",
    "accept_rejection",
    "accept_sampled",
    "accept_tree",
    "best_token",
    "chain_parents",
    "draft_coins",
    "filter_law",
    "law_of",
    "mask_rejected",
    "pick",
    "take_last",
    "take_path",
    "take_previous",
    "tree_arrays",
    "verify_coins",
    "widen",
]
