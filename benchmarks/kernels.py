"""Every kernel of every recipe, compiled ahead of time as it is launched; no GPU is needed.

    python benchmarks/kernels.py [RECIPE ...] [--arch 90 100] [--rows 1 8] [-o FILE]

The steps of recipes are run with models that say nothing, on a driver that launches nothing: what a
kernel is given, its types, alignments and compile-time numbers, is what a device would be given. A
table says registers and stack a thread, shared memory a program, and seconds of CPU to compile. All
recipes take some minutes, ten on a slow core; one recipe takes seconds. Exit code 0: no kernel
spills, or takes long to compile; 1: one does; 2: arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
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
SLOWEST = 10.0  # seconds of CPU: what takes longer to compile is a fault
ARCHS = (90, 100)
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


@dataclass(frozen=True)
class Asked:
    """A kernel as it would be launched, and what launches it."""

    kernel: JITFunction
    given: tuple[Any, ...]
    named: dict[str, Any]
    by: str
    arch: int

    def compile(self) -> tuple[str, Compiled]:
        """What a device would need: a key of its code, and the figures."""
        began = cpu_seconds()
        with driven(self.arch):
            made = self.kernel.run(*self.given, grid=(1,), warmup=True, **self.named)
        took = cpu_seconds() - began
        used = resources(made.asm["cubin"])
        return made.hash, Compiled(
            self.kernel.__name__, self.by, self.arch, made.metadata.num_warps, used["REG"],
            used["STACK"], used["LOCAL"], made.metadata.shared, round(took, 2),
        )  # fmt: skip


class Ahead:
    """Kernels as they are launched: those of one text and one kind of arguments once."""

    def __init__(self, arch: int) -> None:
        self.arch, self.by = arch, ""
        self.asked: dict[Any, Asked] = {}

    def launch(self, kernel: JITFunction, *given: Any, **named: Any) -> None:
        """Note what would run."""
        text = kernel.src.partition(":")[2]  # without its name, which the step chose
        key = (text, *map(kind_of, given), *sorted(named.items()))
        self.asked.setdefault(key, Asked(kernel, given, named, self.by, self.arch))


def cpu_seconds() -> float:
    """Of this process and those it waited for: on a shared machine the clock counts others too."""
    return sum(os.times()[:4])


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
def driven(arch: int) -> Iterator[None]:
    """Triton compiles for a target."""
    before = driver._active  # noqa: SLF001 - asked for by its name it would look for a GPU
    driver.set_active(Nowhere(arch))
    try:
        yield
    finally:
        driver._active = before  # noqa: SLF001 - as above


@contextmanager
def ahead(arch: int) -> Iterator[Ahead]:
    """Whatever is launched meanwhile for a target is noted, and not launched."""
    made, launcher = Ahead(arch), KernelInterface.__getitem__

    def launch(kernel: JITFunction, _grid: Any) -> Callable[..., None]:
        return lambda *given, **named: made.launch(kernel, *given, **named)

    KernelInterface.__getitem__ = launch
    try:
        with driven(arch):
            yield made
    finally:
        KernelInterface.__getitem__ = launcher


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


def ask_step(made: Ahead, recipe: str, path: Path, rows: int, *overrides: str) -> None:
    """Run every variant of a recipe for so many rows."""
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


def ask_pools(made: Ahead, rows: int) -> None:
    """What models launch beside the step: at the shape of Llama 3 8B, in bfloat16."""
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


def ask_all(recipes: Sequence[str], archs: Sequence[int], rows: Sequence[int]) -> list[Asked]:
    """All kernels of recipes, and of what lies beside their steps; nothing is compiled yet.

    Many packs have the same step: after the first turn only those that brought a kernel are asked.
    """
    found: list[Asked] = []
    asked = list(recipes)
    for arch in archs:
        with ahead(arch) as made:
            for count in rows:
                for recipe in asked:
                    ask_step(made, recipe, find(recipe), count)
                ask_pools(made, count)
                brought = {each.by.split()[0] for each in (*found, *made.asked.values())}
                asked = [recipe for recipe in asked if recipe in brought]
            found += made.asked.values()
    return found


def compile_all(asked: Sequence[Asked], say: Callable[[str], None] = str) -> list[Compiled]:
    """Compile each, and say so; what is the same code for the same target is kept once."""
    found: dict[tuple[int, str], Compiled] = {}
    total = str(len(asked))
    say(f"{'':{len(total) * 2 + 4}}  {HEADS}")
    for number, each in enumerate(asked, 1):
        key, made = each.compile()
        kept = found.setdefault((each.arch, key), made)
        again = "" if kept is made else ", again"
        say(f"{number:>{len(total)}} of {total}  {line(kept)}{again}")
    return list(found.values())


HEADS = "arch  warps  registers  stack  shared  seconds  kernel (first launched by)"


def line(each: Compiled) -> str:
    """A kernel, in the columns of `HEADS`."""
    return (
        f"{each.arch:>4}  {each.warps:>5}  {each.registers:>9}  {each.stack:>5}  "
        f"{each.shared:>6}  {each.seconds:>7.2f}  {each.name} ({each.by})"
    )


def arguments() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipes", nargs="*", help="all that ship, if none is named")
    parser.add_argument(
        "--arch", nargs="+", type=int, choices=ARCHS, default=list(ARCHS), help="90: H100, H200"
    )
    parser.add_argument("--rows", nargs="+", type=rows, default=[1, 8], help="requests of a batch")
    parser.add_argument("-o", "--out", type=Path, help="the table as JSON")
    return parser


def rows(text: str) -> int:
    """Of a batch."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main() -> int:
    """Print the table, each line as it is made; 1 where a kernel spills, or is slow to compile."""
    parser = arguments()
    args = parser.parse_args()
    try:
        if args.out:
            args.out.open("a").close()  # before the minutes that it takes
    except OSError as error:
        parser.error(f"`{args.out}` takes no table: {error.strerror}")

    def say(text: str) -> None:
        print(text, flush=True)

    with tempfile.TemporaryDirectory() as fresh:
        # Nothing is remembered: each is compiled, and its time is its own.
        os.environ["TRITON_CACHE_DIR"] = fresh  # noqa: TID251 - Triton has no other way
        recipes = args.recipes or list(names())
        say(f"triton {triton.__version__}; what do the steps of {len(recipes)} recipes launch?")
        try:
            asked = ask_all(recipes, args.arch, args.rows)
        except (RecipeError, UsageError) as error:
            parser.error(str(error))
        found = compile_all(asked, say)
    if args.out:
        text = {"triton": triton.__version__, "kernels": [asdict(each) for each in found]}
        args.out.write_text(json.dumps(text, indent=1) + "\n")
    spilled = [e for e in found if e.stack > MOST_STACK or e.local]
    slow = [e for e in found if e.seconds > SLOWEST]
    took = sum(each.seconds for each in found)
    say(
        f"{len(found)} kernels in {took:.0f} s of CPU, the slowest "
        f"{max(e.seconds for e in found):.1f} s; {len(spilled)} spill, "
        f"{len(slow)} take more than {SLOWEST:.0f} s of CPU"
    )
    for each in (*spilled, *(e for e in slow if e not in spilled)):
        say(f"too {'slow' if each in slow else 'large'}: {line(each)}")
    return 1 if spilled or slow else 0


if __name__ == "__main__":
    sys.exit(main())
