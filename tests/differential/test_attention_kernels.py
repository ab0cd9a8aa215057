"""The attention kernel: equal to torch under the interpreter, and compiled ahead of time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.kernels.attention import Scoring, Sight, attend_new, visible
from tests.conftest import ROOT

pytest.importorskip("triton")


def interpreted(script: str, *arguments: str) -> Any:
    """What a script says under Triton's interpreter."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / script), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_kernel_equals_its_reference() -> None:
    found = interpreted("attention_interpreted.py")
    assert len(found) >= 50
    told = ("window", "softcap", "sinks", "page", "ring", "kept", "turned", "frozen")
    for asked in (*told, "short", "far"):
        assert any(f"{asked}=" in name for name in found), f"no case has {asked}"
    wrong = {name: share for name, share in found.items() if not share <= 1}
    assert not wrong


def test_the_reference_is_softmax_by_hand() -> None:
    """One query, one head: e^0, e^1, e^2 and a sink of e^1."""
    keys = torch.tensor([0.0, 1.0, 2.0, 9.0]).view(1, 1, 4, 1)
    values = torch.tensor([1.0, 10.0, 100.0, 1e6]).view(1, 1, 4, 1)
    sight = Sight(torch.tensor([2]), torch.tensor([[2]]))
    read = attend_new(torch.ones(1, 1, 1, 1), keys, values, sight, Scoring(1.0))
    e = torch.tensor(1.0).exp()
    assert torch.allclose(read, (1 + 10 * e + 100 * e**2) / (1 + e + e**2))
    sinks = torch.ones(1)
    read = attend_new(torch.ones(1, 1, 1, 1), keys, values, sight, Scoring(1.0, sinks=sinks))
    assert torch.allclose(read, (1 + 10 * e + 100 * e**2) / (1 + 2 * e + e**2))
    read = attend_new(torch.ones(1, 1, 1, 1), keys, values, sight, Scoring(1.0, window=2))
    assert torch.allclose(read, (10 * e + 100 * e**2) / (e + e**2))
    read = attend_new(torch.ones(1, 1, 1, 1), keys, values, sight, Scoring(1.0, softcap=1.0))
    bound = [torch.tensor(float(x)).tanh().exp() for x in range(3)]
    assert torch.allclose(
        read, (bound[0] + 10 * bound[1] + 100 * bound[2]) / sum(bound, torch.zeros(()))
    )


def test_a_query_that_sees_nothing_reads_nothing() -> None:
    nothing = torch.zeros(1, 1, 0, dtype=torch.bool)
    sight = Sight(torch.tensor([0]), torch.tensor([[0]]), nothing)
    full = torch.full((1, 1, 4, 2), 7.0)
    assert not attend_new(torch.ones(1, 1, 1, 2), full, full, sight, Scoring(1.0)).any()


def test_what_is_visible_in_a_ring() -> None:
    """Six slots, seven positions committed, two new: positions 3 to 8 lie in slots 3 4 5 0 1 2."""
    sight = Sight(
        torch.tensor([7]), torch.tensor([[7, 8]]), torch.tensor([[[True, False], [True, True]]]),
        first=torch.tensor([4]), last=torch.tensor([8]),
    )  # fmt: skip
    expected = [[1, 1, 0, 0, 1, 1], [1, 1, 1, 0, 1, 1]]
    assert visible(sight, 6)[0].int().tolist() == expected


@dataclass(frozen=True)
class Shape:
    """What a launch is specialised to: widths of key, value and rotated part, tokens, groups."""

    width: int
    deep: int
    turned: int
    count: int
    group: int
    heads: int
    dtype: str = "bf16"
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """All of it."""
        sizes = (self.width, self.deep, self.turned, self.count, self.group, self.heads)
        return "-".join([*map(str, sizes), self.dtype, *self.flags])

    @property
    def rare(self) -> bool:
        """Whether it differs from another only by what it is told of."""
        return bool(self.flags) or self.dtype != "bf16"


# Each tile of queries that `plan` chooses, for trees; prompts as chains; what else costs registers.
SHAPES = [
    Shape(64, 64, 0, 8, 4, 8),
    Shape(128, 128, 0, 1, 4, 8),
    Shape(128, 128, 0, 8, 4, 8),
    Shape(128, 128, 0, 64, 8, 8),
    Shape(256, 256, 0, 8, 2, 4),
    Shape(512, 512, 0, 8, 8, 2),  # the layers of Gemma 4 that see all
    Shape(512, 512, 64, 8, 128, 1),  # latents of DeepSeek
    Shape(128, 128, 0, 512, 4, 8, flags=("CHAIN",)),  # a part of a prompt
    Shape(256, 256, 0, 512, 2, 4, flags=("CHAIN",)),
    Shape(512, 512, 64, 512, 128, 1, flags=("CHAIN",)),
    Shape(128, 128, 0, 8, 4, 8, flags=("PAGED",)),
    Shape(64, 64, 0, 8, 8, 8, flags=("WINDOW", "SINKS")),
    Shape(256, 256, 0, 64, 2, 4, flags=("WINDOW", "SOFTCAP")),
    Shape(128, 128, 0, 8, 4, 8, "fp32"),
]
MOST_STACK = 16  # bytes a thread: an aligned slot or two of the calling convention, not a spill
LEAST_SHARED = 99 * 1024  # what a block may have on the smaller GPUs of Ampere, Ada and Blackwell
POINTERS = {
    "lengths": "i64", "positions": "i64", "sees": "u8", "first": "i64", "last": "i64",
    "pages": "i64", "partial": "fp32", "tops": "fp32", "masses": "fp32", "counts": "i32",
}  # fmt: skip
OF_MODEL = ("query", "keys", "values", "query_turned", "keys_turned", "out", "sinks")
ALIGNED = re.compile(r"(key|value|query|turned|shared)_(row|head|token|slot)")


COMPILED = [
    pytest.param(arch, shape, marks=[pytest.mark.slow] if arch != 90 and shape.rare else [])
    for arch in (90, 100)
    for shape in SHAPES
]


@pytest.mark.parametrize(
    ("arch", "shape"), COMPILED, ids=lambda v: v.name if isinstance(v, Shape) else f"sm{v}"
)
def test_the_kernel_compiles_without_spills(arch: int, shape: Shape, tmp_path: Path) -> None:
    compiled = compile_for(arch, shape)
    assert f".target sm_{arch}" in compiled.asm["ptx"]
    used = resources(compiled.asm["cubin"], tmp_path)
    print(f"sm_{arch} {shape.name}: {used}, {compiled.metadata.shared} bytes shared")
    assert used["REG"] <= 255
    assert used["STACK"] <= MOST_STACK
    assert used["LOCAL"] == 0
    assert compiled.metadata.shared <= LEAST_SHARED


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """Registers, and bytes of stack and local memory a thread: what does not fit is put there."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    (folder / "kernel.cubin").write_bytes(cubin)
    said = subprocess.run(
        [tool, "-res-usage", str(folder / "kernel.cubin")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return {name: int(count) for name, count in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}


def compile_for(arch: int, shape: Shape) -> Any:
    """The kernel for one row, as it is launched."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from specflow.kernels.attention_triton import attend_kernel, plan

    widths = (shape.width, shape.deep, shape.turned)
    wide = [max(16, triton.next_power_of_2(each)) for each in widths]
    widest = max(wide[0] + (wide[2] if shape.turned else 0), wide[1])
    size, chain = 4 if shape.dtype == "fp32" else 2, "CHAIN" in shape.flags
    lines, latent = shape.count * shape.group, shape.turned > 0
    cut = plan(shape.heads, lines, widest, 4096, size, chain=chain, latent=latent)
    constants: dict[str, Any] = {
        "G": shape.group, "HEADS": shape.heads, "E": shape.width, "V": shape.deep,
        "T": shape.turned, "WIDE_E": wide[0], "WIDE_V": wide[1], "WIDE_T": wide[2], "M": cut.M,
        "TILE": cut.tile, "SPLIT": cut.parts > 1, "LATENT": shape.turned > 0,
        "PRECISION": "ieee" if size == 4 else "tf32",
    }  # fmt: skip
    flags = ("CHAIN", "KEPT", "TURNS", "PAGED", "WINDOW", "SOFTCAP", "SINKS", "WIDEN")
    constants |= {flag: flag in shape.flags for flag in flags}
    names = attend_kernel.arg_names
    types = POINTERS | dict.fromkeys(OF_MODEL, shape.dtype)
    floats = ("scale", "softcap")
    signature = {
        n: "constexpr" if n in constants
        else f"*{types[n]}" if n in types
        else "fp32" if n in floats else "i32"
        for n in names
    }  # fmt: skip
    aligned = [n for n in names if n in types or ALIGNED.fullmatch(n)]
    source = ASTSource(
        fn=attend_kernel,
        signature=signature,
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    options = {"num_warps": cut.warps, "num_stages": cut.stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
