"""Kernels of their own: equal to torch under the interpreter, and compiled ahead of time."""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from specflow.kernels import (
    block_triton,
    device,
    sample_triton,
    tree_triton,
)
from specflow.kernels.tree_triton import warps_of
from specflow.kernels.vocab_triton import lanes_of
from tests.differential.test_ahead import MODULES
from tests.differential.test_attention_kernels import MOST_STACK, interpreted, resources

OF_TORCH = {"filter_law"}  # it sorts whole rows
OF_MODELS = {"unpack"}  # called by a forward, not by a step
PAIRS = sorted((set(device.__all__) | OF_MODELS) - OF_TORCH)


@pytest.fixture(scope="module")
def compared() -> dict[str, int | str]:
    """The cases that each kernel agreed on, or what was wrong with it: one process for all."""
    found: dict[str, int | str] = interpreted("pairs_interpreted.py", *PAIRS)
    return found


@pytest.mark.parametrize("name", PAIRS)
def test_a_kernel_is_its_reference(name: str, compared: dict[str, int | str]) -> None:
    """The script finds where a case differs, and where cases left out what they should cover."""
    found = compared[name]
    assert isinstance(found, int), found
    assert found > 1


def test_a_row_op_is_its_reference() -> None:
    """What a generated kernel calls on its registers, all of it in one kernel."""
    lengths = {
        f"{kind} {length}" for kind in ("chain", "tree") for length in ("one", "some", "all")
    }
    covered = interpreted("rows_interpreted.py")
    assert set(covered) >= lengths | {"1 rows", "9 rows", "none", "twins"}


def test_every_row_op_was_called() -> None:
    from specflow.kernels import rows_triton

    tree = ast.parse((Path(__file__).parent / "rows_interpreted.py").read_text())
    (kernel,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "rows_kernel")
    called = {
        n.func.id
        for n in ast.walk(kernel)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    ops = {name for name, made in vars(rows_triton).items() if isinstance(made, JITFunction)}
    assert called == ops


def test_every_kernel_has_a_reference_and_cases() -> None:
    """A launcher has the signature of the function of its name in torch, and a script of cases."""
    scripts = {
        name: (Path(__file__).parent / f"{name}_interpreted.py").read_text()
        for name in ("slots", "attention")
    }
    found = 0
    for module in MODULES:
        reference = importlib.import_module(module.__name__.removesuffix("_triton"))
        for name, made in vars(module).items():
            ours = inspect.isfunction(made) and made.__module__ == module.__name__
            if not ours or name.startswith("_") or not hasattr(reference, name):
                continue
            found += 1
            theirs = getattr(reference, name)
            given = list(inspect.signature(theirs).parameters)
            assert list(inspect.signature(made).parameters)[: len(given)] == given, name
            called = (f"{module.__name__.rpartition('.')[2]}.{name}(", f"{name}(")
            assert name in PAIRS or any(c in text for text in scripts.values() for c in called), (
                name
            )
    assert found > 25


def test_what_has_a_kernel_is_not_torchs() -> None:
    for name in set(PAIRS) - OF_MODELS:
        assert getattr(device, name).__module__.endswith("_triton"), name


@dataclass(frozen=True)
class Built:
    """A kernel as it is launched: its compile-time numbers; types other than the usual ones."""

    kernel: Any
    constants: dict[str, Any]
    types: dict[str, Any] = field(default_factory=dict)
    warps: int = 4

    @property
    def name(self) -> str:
        numbers = {
            k: v for k, v in self.constants.items() if k in {"K", "T", "C", "Q", "TILE", "BIASED"}
        }
        return f"{self.kernel.__name__}-" + "-".join(f"{k}{v}" for k, v in numbers.items())


FLOATS = {
    "coins", "temperature", "law", "weights", "coin", "masses", "best", "proposed", "chances",
    "tops", "scores", "scores_out", "offered_out", "survival",
}  # fmt: skip
OF_MODEL = {"logits", "bias", "grown", "hidden", "hidden_out", "trust"}
BYTES = {"sees", "sees_out"}
COUNTS = {"behind", "counts", "places"}
NUMBERS = {
    "V", "H", "N", "EACH", "own", "mask", "most", "size", "step", "row_stride",
    "weights_row", "coin_row", "logits_row", "bias_row", "coins_row", "hidden_row",
    "hidden_token", "rows_row",
}  # fmt: skip
PARTED = {"TILE": 2048, "PARTS": 32}


def windowed(guesses: int) -> dict[str, int]:
    return {"K": guesses, "BLOCK": lanes_of(guesses + 1), **PARTED}


def branched(branches: int, tile: int) -> dict[str, int]:
    return {"T": branches, "WIDE": lanes_of(branches), "TILE": tile, "PARTS": 32}


def level(branches: int, tile: int) -> Built:
    flags = dict.fromkeys(("MAPPED", "HIDDEN", "SEES"), True)
    nodes = {"R": 7 * branches, "NODES": lanes_of(7 * branches), "STRIP": 2048}
    return Built(
        tree_triton.level_kernel, branched(branches, tile) | nodes | flags, warps=warps_of(tile)
    )


def choice(levels: int, branches: int, guesses: int) -> Built:
    count = branches + (levels - 1) * branches**2
    sizes = {"LEVELS": levels, "T": branches, "K": guesses, "C": count, "WHOLE": True}
    sizes |= {"CANDIDATES": lanes_of(count), "BLOCK": lanes_of(guesses + 1)}
    lists = {"scores": ("*fp32",) * levels, "words": ("*i64",) * levels, "kept": ("*i64",) * levels}
    return Built(tree_triton.choose_kernel, sizes, lists)


# Larger than what a recipe that ships asks for; those are compiled in test_ahead.py.
BUILT = [
    *(
        Built(kernel, windowed(63), {"single": "fp32", "acc": "fp32"})
        for kernel in (
            sample_triton.sampled_kernel,
            sample_triton.rejection_kernel,
            sample_triton.block_kernel,
        )
    ),
    Built(tree_triton.likeliest_kernel, branched(16, 8192), warps=warps_of(8192)),
    level(16, 8192),
    Built(tree_triton.arrays_kernel, {"K": 63, "BLOCK": 64}),
    choice(8, 10, 63),
    Built(block_triton.allocate_kernel, {"K": 31, "BLOCK": 32, "SEEN": 256, "LEAST": 1e-9}),
    Built(block_triton.survivals_kernel, {"K": 31}, {"heats": ("fp32",) * 31}),
]


def type_of(name: str, built: Built) -> Any:
    """The type an argument is launched with."""
    if name in built.constants:
        return "constexpr"
    if name in built.types:
        return built.types[name]
    if name in NUMBERS or (
        name == "rows" and built.kernel.__name__ in {"allocate_kernel", "pack_kernel"}
    ):
        return "i32"
    kinds = ((FLOATS, "*fp32"), (OF_MODEL, "*bf16"), (BYTES, "*u8"), (COUNTS, "*i32"))
    return next((kind for names, kind in kinds if name in names), "*i64")


@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize("built", BUILT, ids=lambda b: b.name)
def test_a_kernel_compiles_without_spills(built: Built, arch: int, tmp_path: Path) -> None:
    names = built.kernel.arg_names
    source = ASTSource(
        fn=built.kernel,
        signature={name: type_of(name, built) for name in names},
        constexprs={(names.index(n),): value for n, value in built.constants.items()},
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", arch, 32), options={"num_warps": built.warps}
    )
    assert f".target sm_{arch}" in compiled.asm["ptx"]
    used = resources(compiled.asm["cubin"], tmp_path)
    print(f"sm_{arch} {built.name}: {used}")
    assert used["REG"] <= 255
    assert used["STACK"] <= MOST_STACK
    assert used["LOCAL"] == 0
