"""What `validate --memory` asks for, and which questions are about a GPU."""

from __future__ import annotations

import argparse

from specflow.cli.engines import Asked, Found, asked_engine, asked_platform
from specflow.engines.layouts import deployment
from specflow.engines.outcome import Effective
from specflow.errors import UsageError
from specflow.fit import Fit, judged, parse_size
from specflow.machines import MACHINES
from specflow.recipe import ResolvedRecipe

CPU = "cpu"


def memory_of(said: str) -> int:
    """A memory in bytes: a size, or that of a machine by its name."""
    size = MACHINES[said].memory if said in MACHINES else parse_size(said)
    if size is None:
        offer = f"write one like 80GiB, 80GB or 16384MiB, or a machine: {', '.join(MACHINES)}"
        raise UsageError(f"`--memory {said}` is no size", offer)
    return size


def device_of(args: argparse.Namespace) -> str:
    """The device that a question is about, where a recipe names none; empty for its own default.

    An engine runs on its platform, `--gpu` and `--memory h200` name a machine.
    """
    engine, machine = getattr(args, "engine", None), getattr(args, "gpu", None)
    if engine is not None:
        machine = asked_platform(asked_engine(engine).engine, args.platform)
    elif machine is None and getattr(args, "memory", None) in MACHINES:
        machine = args.memory
    return "" if machine in (None, CPU) else "cuda"


def held(memory: str, resolved: ResolvedRecipe) -> Fit:
    """A recipe held against the memory of one machine."""
    return judged(resolved, memory_of(memory))


def held_by(memory: str, resolved: ResolvedRecipe, asked: Asked, found: Found) -> Fit:
    """A recipe held against the memory of each GPU that an engine takes.

    found  what the engine makes of the recipe; where it does not start, its flags are as asked
    """
    flags = found.export.args if found.export is not None else {}
    values = found.outcome.values if isinstance(found.outcome, Effective) else flags
    by = deployment(asked.engine.name, asked.title, values)
    return judged(resolved, memory_of(memory), by)
