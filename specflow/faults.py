"""What a device says when it gives up, as a fault with a way out and never a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specflow.errors import RuntimeFault

LOWER = "lower `run.batch_size` or `run.max_length`"
_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ [KMGT]?i?B)")
# What CUDA, its libraries and Triton's launches begin their complaints with.
_COMPLAINTS = ("CUDA", "cuda", "CUBLAS", "cuDNN", "Triton Error")


@contextmanager
def device_faults(doing: str) -> Iterator[None]:
    """One boundary round what runs on a device: its errors are RuntimeFaults; others pass."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeFault) or not of_device(error):
            raise
        if out_of_memory(error):
            said = f"out of memory {doing}: {asked_and_free(error)}; {LOWER}"
        else:
            said = f"the device gave up {doing}: {one_line(error)}; run it again"
            said += ", and with `run.graph=off` if it gives up again, which says where"
        raise RuntimeFault(said) from error


def of_device(error: BaseException) -> bool:
    """Whether an error is a device's, and not of the program."""
    if out_of_memory(error) or isinstance(error, torch.AcceleratorError):
        return True
    if type(error).__module__.partition(".")[0] == "triton":
        return True
    return isinstance(error, RuntimeError) and any(each in str(error) for each in _COMPLAINTS)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is of memory; a capture that breaks off may hide it behind another."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, torch.OutOfMemoryError):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def asked_and_free(error: BaseException) -> str:
    """How much was asked for, and how much was free."""
    told, seen = [], error
    while seen is not None:
        told += _ASKED.findall(str(seen))
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
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
    """What an error says, at most 200 characters of it."""
    said = " ".join(str(error).split())
    return said[:200] or type(error).__name__
