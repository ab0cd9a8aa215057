"""`specflow compile`: generate the step module, and say what was done."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from specflow.cli.common import CLEAN, OPERAND, add_overrides, add_stand_in, read, tell
from specflow.codegen import StaleReason, StepModule, emit
from specflow.constraints import rules
from specflow.errors import RuntimeFault
from specflow.graph import Fused, Repeat, StepGraph
from specflow.graph.device import flat, fused, launches
from specflow.graph.ir import leaves
from specflow.graph.show import show
from specflow.lower import PASSES, lower


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("recipe", metavar="RECIPE", help=OPERAND)
    add_overrides(parser)
    add_stand_in(parser)
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("build"), metavar="DIR", help="default: build"
    )
    parser.add_argument(
        "--show", choices=("graph", "code", "kernels"), help="print instead of writing"
    )
    parser.add_argument("--watch", action="store_true", help="print the graph after each pass")
    parser.add_argument(
        "--force", action="store_true", help="overwrite a module that was edited by hand"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compile, then show or write."""
    began = time.perf_counter()
    resolved = read(args.recipe, args.overrides, stand_in=args.stand_in)[1]
    took = (time.perf_counter() - began) * 1000
    tell(resolved.findings)
    seen: list[StepGraph] = []

    def watch(name: str, graph: StepGraph) -> None:
        seen.append(graph)
        if args.watch:
            print(f"# after: {name}\n{show(graph)}")

    graph = lower(resolved, watch=watch)
    module = emit(graph, resolved)
    if args.show:
        texts = {"graph": show(graph), "code": module.source, "kernels": module.device}
        print(texts[args.show], end="")
        return CLEAN
    fields = sum(1 for _ in resolved.ledger)
    print(
        f"resolve   {fields} fields, {len(rules())} rules, "
        f"{len(resolved.findings) or 'no'} findings   {took:.0f} ms"
    )
    _tell_graph(seen[0], graph)
    if resolved.run.compile != "none":
        runs = f"`run.compile: {resolved.run.compile}` runs step.py"
        print(f"          {runs}, compiled whole, instead")
    return _write(module, args.out, force=args.force)


def _tell_graph(built: StepGraph, graph: StepGraph) -> None:
    ops = [sum(len(leaves(p.nodes)) for p in g.phases) for g in (built, graph)]
    loops = sum(isinstance(n, Repeat) for p in graph.phases for n in p.nodes)
    print(
        f"lower     {ops[0]} ops in {len(graph.phases)} phases, "
        f"{loops} {'loop' if loops == 1 else 'loops'}, "
        f"{len(graph.buffers)} state buffers, {len(PASSES)} passes"
    )
    for v in graph.variants:
        lines = flat(graph, v)
        runs = fused(lines)
        made = sum(isinstance(line, Fused) for line in runs)
        print(
            f"fuse      {v.name}: {launches(lines)} → {launches(runs)} launches outside the "
            f"forwards, {made} of them kernels made here"
        )
    print("          before: one an op, the least torch would launch; after: as a device runs it")


def _write(module: StepModule, out: Path, *, force: bool) -> int:
    """Write where it is stale; refuse where somebody edited the file."""
    reason = module.stale(out)
    file = module.folder(out) / "step.py"
    if reason in (StaleReason.EDITED_BY_HAND, StaleReason.NOT_OURS) and not force:
        how = "edited by hand" if reason is StaleReason.EDITED_BY_HAND else "not made by specflow"
        raise RuntimeFault(f"{file} was {how}; edit the recipe, or write over it with --force")
    if reason is not None:
        file = module.write(out)
    lines = module.source.count("\n")
    print(
        f"emit      {file}, {lines} lines   {'rebuilt: ' + reason.value if reason else 'unchanged'}"
    )
    return CLEAN
