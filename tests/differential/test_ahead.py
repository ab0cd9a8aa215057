"""Every kernel of every recipe compiles ahead of time, as it is launched, without spills.

What `make kernels` prints: types, alignments and compile-time numbers are those that a device would
be given. Whatever a recipe that ships does not reach is compiled in test_kernel_pairs.py.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from triton.runtime.jit import JITFunction

from benchmarks.kernels import MOST_STACK, Compiled, ahead, ask_all, ask_step, compile_all
from specflow.kernels import (
    attention_triton,
    block_triton,
    coins_triton,
    inject_triton,
    kv_triton,
    sample_triton,
    take_triton,
    tree_triton,
    vocab_triton,
)
from specflow.packs import find, names

MODULES = (
    attention_triton, block_triton, coins_triton, inject_triton, kv_triton, sample_triton,
    take_triton, tree_triton, vocab_triton,
)  # fmt: skip
ARCHS = (90, 100)


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    return compile_all(ask_all(names(), ARCHS, [1]))


@pytest.mark.parametrize("arch", ARCHS)
def test_no_kernel_of_a_recipe_spills(arch: int, compiled: list[Compiled]) -> None:
    mine = [each for each in compiled if each.arch == arch]
    assert len(mine) > 100
    assert not [each for each in mine if each.stack > MOST_STACK or each.local]
    assert all(each.shared <= 227 * 1024 for each in mine)  # of a block of an H100 or a B200


def test_every_kernel_that_ships_is_launched_by_a_recipe(compiled: list[Compiled]) -> None:
    launched = {each.name for each in compiled}
    shipped = {
        name
        for module in MODULES
        for name, made in vars(module).items()
        if isinstance(made, JITFunction) and name.endswith("_kernel")
    }
    assert shipped <= launched


def test_a_step_compiles_few_kernels() -> None:
    """What a first run waits for: those of its own, and those that its tree calls."""
    for recipe, most in (("pico/eagle3", 4), ("pico/eagle3_tree", 8)):
        with ahead(90) as made:
            ask_step(made, recipe, find(recipe), 1)
        assert len(made.asked) <= most, [a.kernel.__name__ for a in made.asked.values()]
