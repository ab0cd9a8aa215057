"""What `explain --cost` is asked with: a machine, an accept length, a context."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specflow.columns import columns
from specflow.errors import UsageError
from specflow.foreign_files import read_text
from specflow.machines import MACHINES, Machine
from specflow.recipe import ResolvedRecipe
from specflow.roofline import as_json, estimate, rows

KEY = "accept_length"  # of a run report, docs/report.md
LARGEST_REPORT = 64_000_000
COST_OPTIONS = ("gpu", "accept_length", "context")  # of no use without `--cost`
HEADER = ("number", "value", "formula")


def add_cost(parser: argparse.ArgumentParser) -> None:
    """`--cost` and what belongs to it."""
    parser.add_argument(
        "--cost", action="store_true", help="bytes, FLOPs, memory and what speculation can gain"
    )
    parser.add_argument(
        "--gpu", choices=tuple(MACHINES), help="the machine; default: by run.device, cpu or h200"
    )
    parser.add_argument(
        "--accept-length", metavar="X|REPORT", help="tokens a step gains, or a run's report.json"
    )
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens into every request; default: half the most"
    )


def cost(args: argparse.Namespace, resolved: ResolvedRecipe) -> str:
    """The estimate of a recipe, as text or JSON."""
    context, most = args.context, resolved.run.max_length
    if context is not None and not 0 <= context <= most:
        raise UsageError(
            f"`--context {context}` is no place in a request of {most} positions",
            f"0 to {most}; `run.max_length=N` allows longer requests",
        )
    found = estimate(resolved, _machine(args.gpu, resolved), context=context)
    gained = None
    if args.accept_length is not None:
        gained = _accept_length(args.accept_length, found.cost.verified_positions[1])
    if args.format == "json":
        return json.dumps(as_json(found, gained), indent=2, ensure_ascii=False) + "\n"
    table = [(row.name, row.shown, row.formula) for row in rows(found, gained)]
    lead = (
        f"{resolved.name}: what a step costs, an estimate by roofline (weights and KV alone; "
        "launches and the host are left out)"
    )
    return "\n".join([lead, "", *columns([HEADER, *table])]) + "\n"


def _machine(name: str | None, resolved: ResolvedRecipe) -> Machine:
    """The machine that is named, or one of the device that the recipe runs on."""
    return MACHINES[name or ("cpu" if resolved.run.device == "cpu" else "h200")]


def _accept_length(said: str, most: int) -> float:
    """An accept length as it is written, or as a run measured it."""
    try:
        length = float(said)
    except ValueError:
        length = _measured(Path(said))
    if not 1 <= length <= most:
        raise UsageError(
            f"`--accept-length {said}` says {length:g}, and a step gains 1 to {most} tokens",
            f"write a number from 1 to {most}, or a run's report.json of this recipe",
        )
    return length


def _measured(file: Path) -> float:
    """The accept length in a run report."""
    way_out = "write a number, or the report.json that `specflow run --out` wrote"
    try:
        said = json.loads(read_text(file, LARGEST_REPORT))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"`--accept-length {file}` is neither a number nor a report", way_out
        ) from (error)
    length = said.get(KEY) if isinstance(said, dict) else None
    if isinstance(length, bool) or not isinstance(length, int | float):
        raise UsageError(f"`{file}` holds no `{KEY}`", way_out)
    return float(length)
