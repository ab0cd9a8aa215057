"""Steps as a device runs them: equal to torch under the interpreter, compiled ahead of time."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specflow.codegen import emit
from specflow.codegen.cache import on_device
from specflow.codegen.device import PARTS, TILE, device_steps
from specflow.graph.ops import OPS
from specflow.load import load
from specflow.lower import lower
from specflow.resolve import resolve
from tests.conftest import RECIPES
from tests.differential.test_attention_kernels import interpreted

pytest.importorskip("triton")

# No recipe that ships draws under a plan: there the length that is capped comes from outside.
DRAWN = "sampling.temperature=0.8"
CASES = [
    *((path, ()) for path in RECIPES),
    *((p, (DRAWN,)) for p in RECIPES if p.stem in {"dspark_planned", "dspark_capped"}),
]
# Packs run the steps of pico recipes on other models: one of each kind is interpreted, the slowest
# of them in the slow set.
SLOW = {"ngram", "ngram_sampled", "eagle3_adaptive", "eagle3_tree", "dspark_block"}
PICO = [p for p in RECIPES if p.parent.name == "pico"]
QUICK = [p for p in PICO if p.stem not in SLOW]
UNDER_A_PLAN = [p for p in PICO if p.stem in {"dspark_planned", "dspark_capped"}]
TYPES = {"int64": "*i64", "int32": "*i32", "float": "*fp32", "bool": "*i1"}


Lengths = dict[str, list[int]]


@pytest.fixture(scope="module")
def found() -> dict[str, Lengths | str]:
    """The default recipes compared on a few cases, in one process: importing takes its time."""
    drawn = [f"{p}?{DRAWN}" for p in UNDER_A_PLAN]
    said: dict[str, Lengths | str] = interpreted(
        "device_interpreted.py", "few", *map(str, QUICK), *drawn
    )
    return said


def lengths_of(path: Path, found: dict[str, Lengths | str]) -> Lengths:
    """The accept lengths of a recipe's variants, of cases that are whole.

    Cases in which no step gained one token, some, and all of them would prove too little.
    """
    lengths = found[str(path)]
    assert isinstance(lengths, dict), lengths
    for variant in lower(resolve(load(path))).variants:
        seen, width = lengths[variant.name], variant.width
        assert 1 in seen or width == 1, (variant.name, seen)
        assert width <= 2 or set(seen) & set(range(2, width)), (variant.name, seen)
    return lengths


@pytest.mark.parametrize("path", QUICK, ids=lambda p: p.stem)
def test_a_step_on_a_device_is_the_step_in_torch(
    path: Path, found: dict[str, Lengths | str]
) -> None:
    lengths_of(path, found)


@pytest.mark.slow
@pytest.mark.parametrize("path", PICO, ids=lambda p: p.stem)
def test_a_step_on_a_device_is_the_step_in_torch_on_all_cases(path: Path) -> None:
    lengths_of(path, interpreted("device_interpreted.py", "all", str(path)))


@pytest.mark.parametrize("path", UNDER_A_PLAN, ids=lambda p: p.stem)
def test_a_drawn_step_under_a_plan_is_the_step_in_torch(
    path: Path, found: dict[str, Lengths | str]
) -> None:
    assert isinstance(found[f"{path}?{DRAWN}"], dict), found[f"{path}?{DRAWN}"]


def test_accept_lengths_of_every_size_were_seen(found: dict[str, Lengths | str]) -> None:
    """A chain's whole width, and the least: where all guesses are right, and where none is."""
    path = next(p for p in QUICK if p.stem == "eagle3")
    assert lengths_of(path, found)["chain"] == [1, 2, 3, 4]


@dataclass(frozen=True)
class Source:
    """A kernel to compile; many recipes have the same."""

    text: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]


def sources(root: Path) -> dict[Source, Any]:
    """Every kernel of every recipe, the same ones once."""
    found: dict[Source, Any] = {}
    for path, overrides in CASES:
        resolved = resolve(load(path, overrides))
        graph = lower(resolved)
        device = on_device(emit(graph, resolved).load(root))
        made = [kernel for step in device_steps(graph) for kernel in step.kernels]
        assert made, path
        for kernel in made:
            function = getattr(device, f"{kernel.name}_kernel")
            numbers = {e: int(size) for e, size in kernel.extents}
            numbers |= {"BLOCK": int(kernel.block), "PARTS": PARTS, "TILE": TILE}
            constants = {p: numbers[p] for p in function.arg_names if p in numbers}
            types = {a.name: TYPES[a.dtype] for a in kernel.loads}
            types |= {a.name: TYPES[a.dtype] for a, _ in kernel.stores}
            for to, source in kernel.copies:
                types |= {to.name: "*fp32", source.name: "*fp32"}
            if kernel.best is not None:
                types |= dict.fromkeys(kernel.best.read, "*bf16")
                types |= {"best": "*fp32", "arrivals": "*i32"}
            signature = {
                p: "constexpr" if p in constants else types.get(p.removesuffix("_ptr"), "*i64")
                for p in function.arg_names
            }
            signature |= {p: "i32" for p in signature if p == "V" or p.endswith(("_wide", "_rows"))}
            text = inspect.getsource(function.fn).partition(":")[2]  # without its name
            key = Source(text, tuple(signature.items()), tuple(constants.items()))
            found.setdefault(key, function)
    return found


@pytest.mark.parametrize("arch", [90, 100])
def test_kernels_compile_without_a_gpu(arch: int, tmp_path: Path) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    found = sources(tmp_path)
    assert len(found) > 20
    for key, function in found.items():
        source = ASTSource(
            fn=function,
            signature=dict(key.signature),
            constexprs={(function.arg_names.index(k),): v for k, v in key.constants},
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32))
        assert f".target sm_{arch}" in compiled.asm["ptx"]
        assert ".local" not in compiled.asm["ptx"], key.text  # registers only: nothing spills


@pytest.mark.parametrize("kind", sorted(k for k, s in OPS.items() if "(" in s.row))
def test_an_op_with_a_row_form_has_its_function(kind: str) -> None:
    from specflow.kernels import rows_triton

    call = OPS[kind].row
    if call[0] not in "({":
        assert hasattr(rows_triton, call.partition("(")[0]), call


def test_what_a_device_calls_has_the_signature_of_its_reference() -> None:
    from specflow import kernels
    from specflow.kernels import device

    for name in device.__all__:
        reference, other = getattr(kernels, name), getattr(device, name)
        assert inspect.signature(reference) == inspect.signature(other), name
