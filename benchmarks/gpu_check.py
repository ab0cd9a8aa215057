"""Whether a machine has what gpu.py needs, before anything is started on it.

    python -m benchmarks.gpu_check [--rehearse] [--device-first]

Prints a line of JSON: versions, the CUDA device, and problems, each with a way out. A process of
its own, so that gpu.py holds no device, and goes on where an import ends the process.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from benchmarks.gpu_jobs import ROOT
from benchmarks.gpu_page import versions

SECONDS = 180  # to import all, from a slow disk
PACKAGES = (
    *("torch", "numpy", "triton", "yaml", "omegaconf", "platformdirs", "pydantic", "jinja2"),
    *("rich", "safetensors", "tokenizers", "transformers"),
)
CASES = ("attention", "device", "pairs", "rows", "slots")
OWN = (
    *("benchmarks.gpu_parts", "benchmarks.gpu_sessions", "benchmarks.gpu_speed"),
    *("specflow.models.dummy", "transformers.models.llama.modeling_llama"),
    *(f"tests.differential.{each}_interpreted" for each in CASES),
)
TOLD = ("torch", "triton", "numpy", "transformers", "pydantic", "omegaconf", "flashinfer-python")
WHEELS = (
    "`make wheels` elsewhere, then here `python -m pip install --no-index --no-deps --target site "
    "out/wheels/*.whl`, and `PYTHONPATH=site` before each command"
)


@dataclass(frozen=True)
class Problem:
    """Why nothing can be run, and the way out."""

    fact: str
    out: str


@dataclass(frozen=True)
class Machine:
    """What was found: the device's name, or nothing, and what is in the way."""

    versions: dict[str, str]
    device: str
    about: str
    problems: tuple[Problem, ...]

    def lines(self) -> Iterator[str]:
        """As it is printed."""
        yield ", ".join(f"{name} {which}" for name, which in self.versions.items())
        yield f"CUDA device: {self.device or 'none'}{self.about and f', {self.about}'}"
        yield from self.errors()

    def errors(self) -> Iterator[str]:
        """What is in the way; a way out of several once."""
        for out in dict.fromkeys(each.out for each in self.problems):
            yield from (f"error: {each.fact}" for each in self.problems if each.out == out)
            yield f"  help: {out}"


def look(*, rehearse: bool, device_first: bool) -> Machine:
    """What a process of its own finds."""
    command = [sys.executable, "-m", "benchmarks.gpu_check"]
    command += ["--rehearse"] if rehearse else []
    command += ["--device-first"] if device_first else []
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        said = json.loads(done.stdout.splitlines()[-1])
        problems = tuple(Problem(**each) for each in said.pop("problems"))
        return Machine(**said, problems=problems)
    except subprocess.TimeoutExpired:
        fact = f"the imports took more than {SECONDS} s"
    except (ValueError, IndexError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        fact = f"the check ended with exit code {done.returncode}: {last}"
    out = f"`{' '.join(command[1:])}` in the checkout says more"
    return Machine(versions(TOLD), "", "", (Problem(fact, out.replace("`-m", "`python -m")),))


def seen(*, rehearse: bool, device_first: bool) -> Machine:
    """Of this process. `device_first`: no more is imported where there is no device."""
    device = about = ""
    found = list(importing(("torch",)))
    if not found and not rehearse:
        device, about, more = cuda()
        found += more
    if not (found and device_first):
        found += importing(PACKAGES[1:])
        imported = not any(each.out == WHEELS for each in found)
        found += [*importing(OWN, first=True), *compiler()] if imported else []
    return Machine(versions(TOLD), device, about, tuple(found))


def importing(names: tuple[str, ...], *, first: bool = False) -> Iterator[Problem]:
    """Those that do not import; the first one alone, where others need it."""
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - what a foreign package raises at import is open
            said = " ".join(str(error).split())[:300]
            yield Problem(f"`{name}` does not import: {type(error).__name__}: {said}", WHEELS)
            if first:
                return


def cuda() -> tuple[str, str, list[Problem]]:
    """The device's name and kind, once it has added two numbers up."""
    import torch

    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else f"; torch {torch.__version__} is built without CUDA"
        rehearse = "`python benchmarks/gpu.py --rehearse` runs every part on a CPU"
        return "", "", [Problem(f"no CUDA device is here{built}", rehearse)]
    name = torch.cuda.get_device_name(0)
    about: Any = torch.cuda.get_device_properties(0)
    told = f"sm_{about.major}{about.minor}, {about.total_memory / 2**30:.0f} GiB"
    try:
        added = int(torch.ones(2, device="cuda").sum())
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        return name, told, [Problem(f"`{name}` runs nothing: {said}", "a torch built for it")]
    return name, told, [] if added == 2 else [Problem(f"`{name}`: 1 + 1 = {added}", "another one")]


def compiler() -> Iterator[Problem]:
    """Triton builds what launches a kernel with a C compiler and Python's headers."""
    told = os.environ.get("CC")  # noqa: TID251 - Triton's own way to name it
    which = told or shutil.which("gcc") or shutil.which("clang")
    if not which:
        yield Problem("no C compiler is here, and Triton needs one", "install gcc, or set `CC`")
        return
    # As Triton: Debian's own scheme names a folder that holds no headers.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    headers = sysconfig.get_paths(scheme=scheme)["include"]
    try:
        done = subprocess.run(
            [*shlex.split(which), "-I", headers, "-fsyntax-only", "-x", "c", "-"],
            input="#include <Python.h>\n", capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = (done.stderr.splitlines() or [""])[0] if done.returncode else ""
    except OSError as error:
        said = str(error)
    if said:
        yield Problem(f"`{which}` compiles nothing for Triton: {said}", "Python's headers, or `CC`")


def main() -> int:
    """Print what this process sees."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rehearse", action="store_true", help="without a device")
    parser.add_argument("--device-first", action="store_true", help="no more where none is here")
    args = parser.parse_args()
    machine = seen(rehearse=args.rehearse, device_first=args.device_first)
    print(json.dumps(asdict(machine)))
    return 2 if machine.problems else 0


if __name__ == "__main__":
    sys.exit(main())
