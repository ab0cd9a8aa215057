"""Every kernel of every recipe, compiled ahead of time as it is launched; no GPU is needed.

    python benchmarks/kernels.py [RECIPE ...] [--arch 90 100] [--rows 1 8] [-o FILE]

The steps of recipes are run with models that say nothing, on a driver that launches nothing: what a
kernel is given, its types, alignments and compile-time numbers, is what a device would be given. A
table says registers and stack a thread, shared memory a program, and seconds to compile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction, KernelInterface

from specflow.codegen import emit
from specflow.codegen.cache import on_device
from specflow.codegen.device import extents
from specflow.errors import RecipeError, UsageError
from specflow.graph import StepGraph, Variant
from specflow.graph.device import flat, fused
from specflow.graph.ir import Launch, Value
from specflow.graph.ops import OPS
from specflow.load import load
from specflow.lower import lower
from specflow.packs import find, names
from specflow.resolve import resolve

VOCABULARY, HIDDEN = 128256, 4096  # of Llama 3: a step's kernels are specialised to no more
MOST_STACK = 16  # bytes a thread: an aligned slot or two of the calling convention, not a spill
SLOWEST = 10.0  # seconds: what takes longer to compile is a fault
KINDS = {"int64": torch.int64, "float": torch.bfloat16, "model": torch.bfloat16, "bool": torch.bool}


@dataclass(frozen=True)
class Compiled:
    """What a kernel needs of a device, and how long it took to compile."""

    name: str
    by: str
    arch: int
    warps: int
    registers: int
    stack: int
    local: int
    shared: int
    seconds: float


class Nowhere:
    """A driver without a device: kernels are compiled for a target, and go no further."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        """A number of its own for each target: what is compiled is kept by it."""
        return self.arch

    def get_current_stream(self, _device: int) -> int:
        """None is asked for anything."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """Whom to compile for."""
        return GPUTarget("cuda", self.arch, 32)


class Ahead:
    """Kernels as they are launched: those of one text and one kind of arguments once."""

    def __init__(self, arch: int) -> None:
        self.arch, self.by = arch, ""
        self.seen: set[Any] = set()
        self.found: dict[str, Compiled] = {}

    def launch(self, kernel: JITFunction, *given: Any, **named: Any) -> None:
        """Compile what would run."""
        text = kernel.src.partition(":")[2]  # without its name, which the step chose
        key = (text, *map(kind_of, given), *sorted(named.items()))
        if key in self.seen:
            return
        began = time.perf_counter()
        made = kernel.run(*given, grid=(1,), warmup=True, **named)
        took = time.perf_counter() - began
        self.seen.add(key)
        if made.hash in self.found:
            return
        used = resources(made.asm["cubin"])
        self.found[made.hash] = Compiled(
            kernel.__name__, self.by, self.arch, made.metadata.num_warps, used["REG"],
            used["STACK"], used["LOCAL"], made.metadata.shared, round(took, 2),
        )  # fmt: skip


def kind_of(given: Any) -> Any:
    """What of an argument a kernel is specialised to."""
    if isinstance(given, Tensor):
        return given.dtype, given.data_ptr() % 16 == 0
    if isinstance(given, tuple):
        return tuple(map(kind_of, given))
    if isinstance(given, bool) or not isinstance(given, int):
        return type(given)
    return given == 1, given % 16 == 0, given.bit_length() > 31


def resources(cubin: bytes) -> dict[str, int]:
    """Registers, and bytes of stack and local memory a thread."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(count) for name, count in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}


@contextmanager
def ahead(arch: int) -> Iterator[Ahead]:
    """Whatever is launched meanwhile is compiled for a target, and not launched."""
    made, launcher = Ahead(arch), KernelInterface.__getitem__
    before = driver._active  # noqa: SLF001 - asked for by its name it would look for a GPU

    def launch(kernel: JITFunction, _grid: Any) -> Callable[..., None]:
        return lambda *given, **named: made.launch(kernel, *given, **named)

    driver.set_active(Nowhere(arch))
    KernelInterface.__getitem__ = launch
    try:
        yield made
    finally:
        KernelInterface.__getitem__ = launcher
        driver._active = before  # noqa: SLF001 - as above


class Silent:
    """A model that answers in the shapes a step expects, one answer after another."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers
        self.to_target = torch.zeros(VOCABULARY, dtype=torch.int64)

    def __getattr__(self, _name: str) -> Callable[..., Any]:
        return lambda *_given, **_named: self._answers.pop(0)


def answers(graph: StepGraph, variant: Variant, sizes: dict[str, int]) -> list[Any]:
    """What the models of a variant say, in the order they are asked."""
    found = []
    for line in fused(flat(graph, variant)):
        if isinstance(line, Launch) and OPS[line.op.kind].spelling.startswith("{model}."):
            said = [answer(value, sizes) for value in line.op.outputs]
            found.append(said[0] if len(said) == 1 else tuple(said))
    return found


def answer(value: Value, sizes: dict[str, int]) -> Tensor:
    """Memory of a value's shape; extents are sums and products of letters."""
    shape = [int(eval(str(extent), {}, sizes)) for extent in value.shape]
    return torch.empty(shape, dtype=KINDS[value.dtype])


def compile_step(made: Ahead, recipe: str, path: Path, rows: int, *overrides: str) -> None:
    """Compile what every variant of a recipe launches for so many rows."""
    resolved = resolve(load(path, overrides))
    graph = lower(resolved)
    with tempfile.TemporaryDirectory() as folder:
        step = emit(graph, resolved).load(Path(folder))
        device = on_device(step)
        step.VOCAB_SIZE, step.HIDDEN_SIZE = VOCABULARY, HIDDEN  # where the state has such rows
        block = getattr(step, "BLOCK_ROWS", 1)
        recent = getattr(step, "NUM_RECENT", 1)
        budget = rows * step.NUM_DRAFT_TOKENS // 2 + 1
        sizes = extents(graph) | {"B": rows, "V": VOCABULARY, "H": HIDDEN, "n": 3}
        sizes |= {"Q": block, "R": recent, "G": budget}
        given = [budget] if hasattr(step, "HOST_PLAN") else []
        for variant in graph.variants:
            made.by = f"{recipe} {variant.name}"
            models = Silent(answers(graph, variant, sizes))
            device.VARIANTS[variant.name](models, models, device.Device.new(rows, "cpu"), *given)


def compile_pools(made: Ahead, rows: int) -> None:
    """Compile what models launch beside the step: at the shape of Llama 3 8B, in bfloat16."""
    from specflow.kernels import attention_triton, block_triton, inject_triton, kv_triton
    from specflow.kernels.attention import Scoring, Sight
    from specflow.kernels.inject import Landing, Turning

    heads, shared, width, length, count = 32, 8, 128, 2048, 8
    number = {"dtype": torch.bfloat16}
    starts = torch.zeros(rows, dtype=torch.int64)
    made.by = "attention, slots"
    slots = torch.empty(2, rows, shared, length, width, **number)
    kv_triton.move_accepted(slots, torch.empty(rows, count, dtype=torch.int64), starts)
    new = torch.empty(2, rows, count, shared, width, **number)
    angles = torch.empty(rows, count, width, **number)
    turning = Turning(torch.empty(width, **number), 1e-6, angles, angles)
    for turns in (False, True):
        landing = Landing(starts, starts, turns)
        inject_triton.inject_rows(new[0], new[1], turning, (slots[0], slots[1]), landing)
    packed = torch.empty(rows * 5, dtype=torch.int64)
    block_triton.unpack(torch.empty(rows * 5, VOCABULARY, **number), packed, rows, count)
    positions = torch.empty(rows, count, dtype=torch.int64)
    for which in (None, packed):
        said = new if which is None else torch.empty(2, 1, rows * 5, shared, width, **number)
        keys, values = said.transpose(2, 3)
        kv_triton.write_rows(keys, values, (slots[0], slots[1]), positions, which)
    sees = torch.empty(rows, count, count, dtype=torch.bool)
    query = torch.empty(rows, heads, count, width, **number)
    for marks in (None, sees):
        sight = Sight(starts, positions, marks)
        attention_triton.attend_new(query, slots[0], slots[1], sight, Scoring(width**-0.5))


def compile_all(
    recipes: Sequence[str], archs: Sequence[int], rows: Sequence[int]
) -> list[Compiled]:
    """Compile all kernels of recipes, and of what lies beside their steps.

    Many packs have the same step: after the first turn only those that brought a kernel are asked.
    """
    found: list[Compiled] = []
    asked = list(recipes)
    for arch in archs:
        with ahead(arch) as made:
            for count in rows:
                for recipe in asked:
                    compile_step(made, recipe, find(recipe), count)
                compile_pools(made, count)
                brought = {each.by.split()[0] for each in (*found, *made.found.values())}
                asked = [recipe for recipe in asked if recipe in brought]
            found += made.found.values()
    return found


def main() -> int:
    """Print the table; 1 where a kernel spills, or takes long to compile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipes", nargs="*", help="all that ship, if none is named")
    parser.add_argument("--arch", nargs="+", type=int, default=[90, 100], help="90 is H100 or H200")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8], help="requests of a batch")
    parser.add_argument("-o", "--out", type=Path, help="the table as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as fresh:
        # Nothing is remembered: each is compiled, and its time is its own.
        os.environ["TRITON_CACHE_DIR"] = fresh  # noqa: TID251 - Triton has no other way
        try:
            found = compile_all(args.recipes or list(names()), args.arch, args.rows)
        except (RecipeError, UsageError) as error:
            parser.error(str(error))
    if args.out:
        text = {"triton": triton.__version__, "kernels": [asdict(each) for each in found]}
        args.out.write_text(json.dumps(text, indent=1) + "\n")
    print(f"triton {triton.__version__}")
    print("arch  warps  registers  stack  shared  seconds  kernel (first launched by)")
    for each in found:
        print(
            f"{each.arch:>4}  {each.warps:>5}  {each.registers:>9}  {each.stack:>5}  "
            f"{each.shared:>6}  {each.seconds:>7.2f}  {each.name} ({each.by})"
        )
    spilled = [e for e in found if e.stack > MOST_STACK or e.local]
    slow = [e for e in found if e.seconds > SLOWEST]
    took = sum(each.seconds for each in found)
    print(
        f"{len(found)} kernels in {took:.0f} s, the slowest {max(e.seconds for e in found):.1f} s; "
        f"{len(spilled)} spill, {len(slow)} take more than {SLOWEST:.0f} s"
    )
    return 1 if spilled or slow else 0


if __name__ == "__main__":
    sys.exit(main())
