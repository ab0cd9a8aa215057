"""Ops on tensors: the torch references, which a generated step calls on CPU."""

from specflow.kernels.accept import accept_chain, accept_tree, tree_arrays
from specflow.kernels.block import allocate, blank, cap, mask_block, pack, survivals
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
from specflow.kernels.take import (
    mask_rejected,
    rotate,
    slide,
    take_last,
    take_path,
    take_previous,
    widen,
)
from specflow.kernels.tree import (
    branch,
    choose_tree,
    follow,
    grow_level,
    grow_tree,
    likeliest,
    plant,
    ranks,
    roots,
    select_tree,
    take_row,
    take_rows,
)
from specflow.kernels.vocab import best_token

__all__ = [
    "accept_block",
    "accept_chain",
    "accept_rejection",
    "accept_sampled",
    "accept_tree",
    "allocate",
    "best_token",
    "blank",
    "branch",
    "cap",
    "chain_parents",
    "choose_tree",
    "draft_coins",
    "filter_law",
    "follow",
    "grow_level",
    "grow_tree",
    "law_of",
    "likeliest",
    "mask_block",
    "mask_rejected",
    "pack",
    "pick",
    "plant",
    "ranks",
    "roots",
    "rotate",
    "select_tree",
    "slide",
    "survivals",
    "take_last",
    "take_path",
    "take_previous",
    "take_row",
    "take_rows",
    "tree_arrays",
    "verify_coins",
    "widen",
]
