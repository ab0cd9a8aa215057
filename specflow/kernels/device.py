"""What a step on a device calls beside its own kernels: a Triton kernel where there is one.

A name has the signature and the meaning of its reference in `specflow.kernels`. `filter_law` is
torch's: it sorts whole rows, for which torch has the device's own radix sort, and only a recipe
that filters asks for it. Its launches wait for nothing on the host and have shapes that no data
decides, so a graph holds them.
"""

from specflow.kernels.block_triton import allocate, blank, mask_block, pack, survivals
from specflow.kernels.coins_triton import draft_coins, verify_coins
from specflow.kernels.sample import filter_law
from specflow.kernels.sample_triton import (
    accept_block,
    accept_rejection,
    accept_sampled,
    law_of,
    pick,
    propose,
)
from specflow.kernels.take_triton import rotate, slide
from specflow.kernels.tree_triton import (
    choose_tree,
    grow_level,
    likeliest,
    plant,
    ranks,
    select_tree,
    take_row,
    take_rows,
    tree_arrays,
)
from specflow.kernels.vocab_triton import best_token

__all__ = [
    "accept_block",
    "accept_rejection",
    "accept_sampled",
    "allocate",
    "best_token",
    "blank",
    "choose_tree",
    "draft_coins",
    "filter_law",
    "grow_level",
    "law_of",
    "likeliest",
    "mask_block",
    "pack",
    "pick",
    "plant",
    "propose",
    "ranks",
    "rotate",
    "select_tree",
    "slide",
    "survivals",
    "take_row",
    "take_rows",
    "tree_arrays",
    "verify_coins",
]
