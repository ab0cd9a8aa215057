"""What a device says when it gives up, as a fault with a way out and never a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specflow.errors import RuntimeFault

LOWER = "lower `run.batch_size` or `run.max_length`"
NAME_ONE = "name another one with `CXX`, or remove `run.compile`"
HEADERS = f"see that g++ and the headers of Python and torch are there, or {NAME_ONE}"
MOST_SAID = 200  # characters of what an error says
_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ [KMGT]?i?B)")
_BROKEN = re.compile(r"(\S+\.so): ([^:\n]+)")
# What CUDA, its libraries and Triton's launches begin their complaints with.
_COMPLAINTS = ("CUDA", "cuda", "CUBLAS", "cuDNN", "Triton Error")


@contextmanager
def device_faults(doing: str) -> Iterator[None]:
    """One boundary round what runs on a device: its errors are RuntimeFaults; others pass."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeFault) or not (of_device(error) or of_compiler(error)):
            raise
        if out_of_memory(error):
            said = f"out of memory {doing}: {asked_and_free(error)}; {LOWER}"
        elif of_compiler(error):
            said = compiler_said(error)
        else:
            said = f"the device gave up {doing}: {one_line(error)}; run it again"
            said += ", and with `run.graph=off` if it gives up again, which says where"
        raise RuntimeFault(said) from error


@contextmanager
def compile_faults() -> Iterator[None]:
    """One boundary round what compiles a step; memory, and what is no compiler's, pass."""
    try:
        yield
    except Exception as error:
        if out_of_memory(error) or not (isinstance(error, OSError) or of_compiler(error)):
            raise
        raise RuntimeFault(compiler_said(error)) from error


def of_compiler(error: BaseException) -> bool:
    """Whether tracing or compiling failed, and not what was compiled."""
    return type(error).__module__ in {"torch._inductor.exc", "torch._dynamo.exc"}


def compiler_said(error: BaseException) -> str:
    """What a compile failed for, and the way out."""
    for each in chain(error):
        kind = type(each).__name__
        broken = _BROKEN.search(str(each)) if isinstance(each, ImportError | OSError) else None
        if broken is not None:
            why = f"`{broken[1]}` of inductor's cache is broken ({broken[2]})"
            return f"{why}, as a run leaves it that was killed; delete it, and run again"
        if isinstance(each, OSError):
            where = f" `{each.filename}`" if each.filename else ""
            why = f"inductor cannot use its cache{where}: {each.strerror or one_line(each)}"
            return f"{why}; set `TORCHINDUCTOR_CACHE_DIR` to a folder that can be written"
        if kind == "InvalidCxxCompiler":
            return f"inductor found no C++ compiler that works; install g++, or {NAME_ONE}"
        if kind == "CppCompileError":
            lines = (line for line in str(each).splitlines() if "error: " in line)
            why = next(lines, "it says nothing").strip()[:MOST_SAID]
            return f"the C++ compiler did not compile a step: {_in_one(why)}; {HEADERS}"
    said = one_line(next((e for e in chain(error) if not of_compiler(e)), error))
    return f"a step was not compiled: {_in_one(said)}; write `run.compile: none`"


def of_device(error: BaseException) -> bool:
    """Whether an error is a device's, and not of the program."""
    if out_of_memory(error) or isinstance(error, torch.AcceleratorError):
        return True
    if type(error).__module__.partition(".")[0] == "triton":
        return True
    return isinstance(error, RuntimeError) and any(each in str(error) for each in _COMPLAINTS)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is of memory; a capture that breaks off may hide it behind another."""
    return any(isinstance(each, torch.OutOfMemoryError) for each in chain(error))


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it was raised for, the nearest first."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = getattr(seen, "inner_exception", None) or seen.__cause__ or seen.__context__


def asked_and_free(error: BaseException) -> str:
    """How much was asked for, and how much was free."""
    told = [found for each in chain(error) for found in _ASKED.findall(str(each))]
    asked = f"{told[0]} were asked for" if told else "more was asked for than there is"
    room = free_memory()
    if room is None:
        return asked
    free, whole = (f"{each / 2**30:.2f} GiB" for each in room)
    return f"{asked} where {free} of {whole} are free"


def free_memory() -> tuple[int, int] | None:
    """Bytes that are free on the device, and all it has; None where it does not say."""
    try:
        free, whole = torch.cuda.mem_get_info()
    except (RuntimeError, AssertionError):  # there is none, or it has given up
        return None
    return free, whole


def one_line(error: BaseException) -> str:
    """What an error says, the beginning of it."""
    said = " ".join(str(error).split())
    return said[:MOST_SAID] or type(error).__name__


def _in_one(said: str) -> str:
    """Without what would end a message and begin its way out."""
    return said.replace("; ", ", ")
