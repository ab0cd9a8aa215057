"""The fused row kernels: equal to torch under the interpreter, and compiled ahead of time."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specflow.codegen import emit
from specflow.codegen.rows import extents, row_function
from specflow.graph import Fused
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


def test_kernels_equal_their_reference() -> None:
    script = Path(__file__).parent / "rows_interpreted.py"
    asked = ["?".join([str(path), *overrides]) for path, overrides in CASES]
    done = subprocess.run(
        [sys.executable, str(script), *asked],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found) == len(CASES)
    assert any("commit_rows" in names for names in found.values())


@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize(("path", "overrides"), CASES, ids=lambda part: getattr(part, "stem", ""))
def test_kernels_compile_without_a_gpu(
    path: Path, overrides: tuple[str, ...], arch: int, tmp_path: Path
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    resolved = resolve(load(path, overrides))
    graph = lower(resolved)
    step = emit(graph, resolved).load(tmp_path)
    rows = importlib.import_module(f"{step.__name__}.rows")
    fused = [n.name for p in graph.phases for n in p.nodes if isinstance(n, Fused)]
    assert fused
    for name in fused:
        kernel = getattr(rows, f"{name}_kernel")
        width = step.NUM_DRAFT_TOKENS
        numbers = extents(graph) | {"BLOCK": max(2, 1 << (width - 1).bit_length())}
        constants = {p: numbers[p] for p in kernel.arg_names if p in numbers}
        signature = {p: "constexpr" if p in constants else "*i64" for p in kernel.arg_names}
        source = ASTSource(
            fn=kernel,
            signature=signature,
            constexprs={(kernel.arg_names.index(k),): v for k, v in constants.items()},
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32))
        assert f".target sm_{arch}" in compiled.asm["ptx"]
        assert ".local" not in compiled.asm["ptx"]  # registers only: nothing spills


def test_every_row_op_has_a_row_function_and_a_reference() -> None:
    from specflow import kernels
    from specflow.kernels import rows_triton

    rows = {row_function(kind) for kind, spec in OPS.items() if spec.domain == "rows"}
    functions = {n for n, f in vars(rows_triton).items() if hasattr(f, "fn")}
    assert rows == functions
    for spec in OPS.values():
        if spec.kernel:
            assert inspect.getdoc(getattr(kernels, spec.kernel))
