"""`specflow profile`: time a step by the tokens it verifies, for the plan that weighs them.

Which sizes are timed, unless `--batch` says it: where the recipe verifies by plan, its own batch
over all budgets from `batch` to `batch * (guesses + 1)` tokens, since that is what its plan asks
about; else batches of 1, 2, 4, 8 and 16 that verify everything. With `--additive`: batches of 1, 2,
4, .. up to the recipe's own, each over five shares of its guesses.
"""

from __future__ import annotations

import argparse
import gc
import json

from specflow.cli.common import (
    CLEAN,
    FINDINGS,
    USAGE,
    add_format,
    add_overrides,
    add_stand_in,
    show,
    tell,
)
from specflow.cli.files import (
    add_out,
    count,
    keep,
    prepare_file,
    prompts_of,
    read_by,
    stand_somewhere,
)
from specflow.load import load
from specflow.measuring import sizes_of, to_profile, unmeasured
from specflow.packs import find, with_stand_in
from specflow.planning import table_text
from specflow.resolve import resolve


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = (
        "Without --batch: the recipe's own batch over all its budgets, where it verifies by plan; "
        "else batches of 1, 2, 4, 8 and 16 that verify everything. With --additive: batches of 1, "
        "2, 4, .. up to the recipe's own, each over five shares of its guesses. The files that "
        "`verify.cost_table` and `verify.temperatures` name are not read. tokens: positions "
        "verified in a step, and a second."
    )
    parser.add_argument("recipe", metavar="RECIPE", help="path or pack name")
    add_overrides(parser)
    add_stand_in(parser)
    parser.add_argument(
        "--batch",
        type=_batches,
        metavar="N,N,..",
        help="batch sizes; each verifies everything, or with --additive parts of it as well",
    )
    parser.add_argument(
        "--additive",
        action="store_true",
        help="fit seconds as a constant, a part by rows and a part by tokens: a table for batches "
        "of every size",
    )
    parser.add_argument("--steps", type=count, default=32, metavar="N", help="default: 32")
    parser.add_argument(
        "--warmup", type=_warmup, default=8, metavar="N", help="steps that do not count; default: 8"
    )
    add_out(parser, "the cost table (JSON, which SGLang reads too)")
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Time, print, write; 1 where it was stopped before it had a table."""
    gc.enable()
    stand_somewhere()
    recipe = load(find(args.recipe), args.overrides)
    recipe = unmeasured(with_stand_in(recipe) if args.stand_in else recipe)
    resolved = resolve(recipe)
    tell(resolved.findings)
    out = None
    if args.out is not None:
        out = prepare_file(args.out, read_by(recipe), overwrite=args.overwrite)
    prompts = prompts_of(recipe, resolved)
    if prompts is not None and not prompts.items:
        show(prompts.findings, args.format)
        return USAGE
    sizes = sizes_of(resolved, args.batch or (), additive=args.additive)
    timed = to_profile(recipe, resolved, sizes)
    # rich and torch load only now, when all else is known to be right
    from specflow.cli.progress import Progress
    from specflow.profile import Wanted, as_json, profile, table

    with Progress() as watch:
        wanted = Wanted(sizes, args.steps, args.warmup, args.additive)
        found = profile(timed, prompts, wanted, watch)
    unwritten = CLEAN
    if found.table is not None and out is not None:
        unwritten = keep(out, table_text(found.table))
    if args.format == "json":
        tell(found.findings)
        print(json.dumps(as_json(timed, found), indent=2, ensure_ascii=False))
    else:
        show(found.findings, args.format)
        print("\n".join(table(timed, found)))
    return FINDINGS if found.findings or found.stopped else unwritten


def _batches(text: str) -> tuple[int, ...]:
    """Batch sizes, ascending."""
    return tuple(sorted({count(part) for part in text.split(",")}))


def _warmup(text: str) -> int:
    """A number of at least 0."""
    return 0 if text == "0" else count(text)
