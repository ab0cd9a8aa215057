"""Steps as a device runs them: equal to torch under the interpreter, compiled ahead of time."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
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
from tests.conftest import RECIPES, ROOT

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
TYPES = {"int64": "*i64", "int32": "*i32", "float": "*fp32", "bool": "*i1"}


def interpreted(asked: list[str]) -> dict[str, dict[str, list[int]]]:
    """Every variant of recipes, under the interpreter, in a process of its own."""
    script = Path(__file__).parent / "device_interpreted.py"
    done = subprocess.run(
        [sys.executable, str(script), *asked],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, list[int]]] = json.loads(done.stdout)
    assert list(found) == asked
    return found


def whole(lengths: dict[str, list[int]], widths: dict[str, int]) -> None:
    """Cases in which no step gained one token, some, and all of them would prove too little."""
    for variant, width in widths.items():
        assert 1 in lengths[variant] or width == 1, (variant, lengths[variant])
        assert width <= 2 or set(lengths[variant]) & set(range(2, width)), (variant, lengths)


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.slow) if p.stem in SLOW else p for p in PICO],
    ids=lambda p: p.stem,
)
def test_a_step_on_a_device_is_the_step_in_torch(path: Path) -> None:
    widths = {v.name: v.width for v in lower(resolve(load(path))).variants}
    found = interpreted([str(path)])
    whole(found[str(path)], widths)


@pytest.mark.parametrize("name", ["dspark_planned", "dspark_capped"])
def test_a_drawn_step_under_a_plan_is_the_step_in_torch(name: str) -> None:
    path = next(p for p in PICO if p.stem == name)
    interpreted([f"{path}?{DRAWN}"])


def test_accept_lengths_of_every_size_were_seen() -> None:
    """A chain's whole width, and the least: where all guesses are right, and where none is."""
    path = next(p for p in PICO if p.stem == "eagle3")
    assert interpreted([str(path)])[str(path)]["chain"] == [1, 2, 3, 4]


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
