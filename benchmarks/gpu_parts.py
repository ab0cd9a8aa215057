"""The parts of gpu.py: whether a GPU says what a CPU says, and what a step costs there.

    python -m benchmarks.gpu_parts PART ... [--shard I/N] [--rehearse] --out FILE

Each item of a part leaves a line of JSON as it ends; what a file holds already is not done again,
so that a process whose CUDA context an error has broken is simply started once more.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.gpu_device import Device, open_device
from benchmarks.gpu_jobs import BROKEN, ROOT, read

Item = tuple[str, Callable[[], dict[str, Any]]]  # a name, and what it found; it raises where wrong
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
PICO = sorted((ROOT / "recipes" / "pico").glob("*.yaml"))


class DiffersError(AssertionError):
    """Two ways that should say the same do not."""


# --- kernels -------------------------------------------------------------------------------------


def pairs(device: Device) -> Iterator[Item]:
    """Every kernel of its own, and all row ops in one, on the cases of their references."""
    from tests.differential import pairs_interpreted as cases
    from tests.differential import rows_interpreted as row_ops

    yield "row ops", lambda: {"covered": sorted(row_ops.check(device.kind))}

    for name in cases.PAIRS:
        yield name, lambda name=name: {"cases": cases.check(name, device.kind)}

    def at_size(name: str) -> dict[str, Any]:
        """With the vocabulary of a large model, and tiles as they are launched."""
        from specflow.kernels import vocab_triton

        small = (cases.VOCABULARY, vocab_triton.TILE, vocab_triton.PROGRAMS)
        cases.VOCABULARY, vocab_triton.TILE, vocab_triton.PROGRAMS = 128_255, 1024, 264
        try:
            return {"cases": cases.check(name, device.kind)}
        finally:
            cases.VOCABULARY, vocab_triton.TILE, vocab_triton.PROGRAMS = small

    # Of laws there is no such case: so many numbers are added up in another order.
    yield "best_token of 128255", lambda: at_size("best_token")


def attention(device: Device) -> Iterator[Item]:
    """The attention kernel: trees, windows, rings, pages, latents, sinks, types."""
    from tests.differential import attention_interpreted as cases

    def compare(case: cases.Case, seed: int) -> dict[str, Any]:
        share = cases.compare(case, seed, device.kind)
        if not share <= 1:
            raise DiffersError(f"off by {share:.2f} times what its type allows")
        return {"share": round(share, 4)}

    for seed, case in enumerate(cases.CASES):
        yield case.name, lambda case=case, seed=seed: compare(case, seed)


def slots(device: Device) -> Iterator[Item]:
    """What moves and writes keys and values."""
    from tests.differential import slots_interpreted as cases

    for case in cases.MOVES:
        yield f"move {case}", lambda case=case: {"moved": cases.moves(*case, device.kind)}
    for case in cases.WRITES:
        yield f"write {case}", lambda case=case: {"left": cases.written(*case, device.kind)}
    for case in cases.INJECTIONS:
        yield (
            f"inject {case}",
            lambda case=case: {"lengths": sorted(set(cases.injected(*case, device.kind)))},
        )


def steps(device: Device) -> Iterator[Item]:
    """Every generated step: the one of a device against the one in torch."""
    from tests.differential import device_interpreted as cases

    def check(recipe: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return {"accept_len": cases.check(recipe, Path(folder), device.kind)}

    for path in PICO:
        yield path.stem, lambda path=path: check(str(path))
        if path.stem in {"dspark_planned", "dspark_capped"}:
            drawn = f"{path}?sampling.temperature=0.8"
            yield f"{path.stem} drawn", lambda drawn=drawn: check(drawn)


# --- captured = eager ----------------------------------------------------------------------------

BATCHES = (1, 3, 8)  # a full bucket, one that is not, and all that a batch passes as it shrinks
NEW = 24  # tokens of the first request, and more of each next one, so that they end one by one


def captured(device: Device) -> Iterator[Item]:
    """Every small recipe on its trained models, as graphs and as calls, token for token."""
    from benchmarks.gpu_sessions import compare

    for path in PICO:
        yield path.stem, lambda path=path: compare(device, path, BATCHES, NEW)


def speed(device: Device) -> Iterator[Item]:
    """What a step costs at the shape of a large model."""
    from benchmarks.gpu_speed import measurements

    yield from measurements(device)


PARTS: dict[str, Callable[[Device], Iterator[Item]]] = {
    "pairs": pairs,
    "attention": attention,
    "slots": slots,
    "steps": steps,
    "captured": captured,
    "speed": speed,
}
# One that covers the lines of a part; the interpreter has the rest in the tests.
REHEARSED = {
    "pairs": ("rotate", "best_token"),
    "attention": ("count=1", "chain"),
    "slots": ("move (3, 5, 1, 4, torch.float32)", "inject (0, 1, 16, torch.float32, True)"),
    "steps": ("plain",),
    "captured": ("eagle3", "ngram"),
}


def main() -> int:
    """Do the items of parts, each as far as it goes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    end_with_parent()
    device = open_device(rehearse=args.rehearse)
    torch.set_num_threads(1)
    which, of = map(int, args.shard.split("/"))
    for part in args.parts:
        items = list(PARTS[part](device))
        if args.rehearse and part in REHEARSED:
            items = [item for item in items if item[0] in REHEARSED[part]]
        if not all_done(device, part, items[which::of], args.out):
            return BROKEN
    return 0


def all_done(device: Device, part: str, items: list[Item], out: Path) -> bool:
    """Whether each item has left its line; not where the device is gone."""
    done = {line.get("item") for line in read(out) if line["part"] == part}
    leave(out, {"part": part, "expects": [name for name, _ in items]})
    for name, find in items:
        if name in done:
            continue
        line = tried(part, name, find)
        leave(out, line)
        if not line["passed"] and not device.alive():
            return False
        device.forget()
    return True


def end_with_parent() -> None:
    """Whatever ends the process that started this one, even SIGKILL, ends this one too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tried(part: str, name: str, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What an item found, or how it failed."""
    began = perf_counter()
    line: dict[str, Any] = {"part": part, "item": name, "passed": True}
    try:
        line |= find()
    except Exception as error:  # noqa: BLE001 - one failure must not stop the others
        frames = traceback.extract_tb(error.__traceback__)
        said = " ".join(str(error).split())[:600]
        line |= {
            "passed": False,
            "error": f"{type(error).__name__}: {said}",
            "where": [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[-6:]],
        }
    return line | {"seconds": round(perf_counter() - began, 2)}


def leave(file: Path, line: dict[str, Any]) -> None:
    """Add a line that a killed process has left whole."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
