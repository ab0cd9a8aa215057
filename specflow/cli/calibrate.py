"""`specflow calibrate`: fit the temperatures by which a draft's confidence head says the truth."""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path

from specflow import prompts as prompt_files
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
from specflow.cli.files import add_out, count, keep, prepare_file, read_by, stand_somewhere
from specflow.load import load
from specflow.measuring import to_calibrate, unmeasured
from specflow.packs import find, with_stand_in
from specflow.resolve import resolve
from specflow.temperatures import temperatures_text


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = (
        "The recipe decodes the prompts with every guess verified; what its accept rule and its "
        "sampling accept is what the head is held against. Name other prompts than those that the "
        "plan will be judged on. The files that `verify.cost_table` and `verify.temperatures` name "
        "are not read."
    )
    parser.add_argument("recipe", metavar="RECIPE", help="path or pack name")
    add_overrides(parser)
    add_stand_in(parser)
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        required=True,
        help="JSONL, one {id, prompt|messages} a line",
    )
    parser.add_argument("--limit", type=count, metavar="N", help="run the first N prompts")
    add_out(parser, "the temperatures (JSON, which SGLang reads too)")
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decode, fit, print, write; 1 where a prompt was at fault or it was stopped."""
    gc.enable()
    stand_somewhere()
    recipe = load(find(args.recipe), args.overrides)
    recipe = unmeasured(with_stand_in(recipe) if args.stand_in else recipe)
    resolved = resolve(recipe)
    tell(resolved.findings)
    heard = to_calibrate(recipe, resolved)
    prompts = prompt_files.read(args.prompts, args.limit)
    if not prompts.items:
        show(prompts.findings, args.format)
        return USAGE
    out = None
    if args.out is not None:
        out = prepare_file(args.out, read_by(recipe, args.prompts), overwrite=args.overwrite)
    # rich and torch load only now, when all else is known to be right
    from specflow.calibrate import as_json, calibrate, table
    from specflow.cli.progress import Progress

    with Progress() as watch:
        found = calibrate(heard, prompts, watch)
    unwritten = CLEAN
    if found.fit is not None and out is not None:
        steps = len(found.heard.accepted)
        unwritten = keep(out, temperatures_text(found.fit, str(args.prompts), steps))
    if args.format == "json":
        tell(found.findings)
        print(json.dumps(as_json(heard, found), indent=2, ensure_ascii=False))
    else:
        show(found.findings, args.format)
        print("\n".join(table(heard, found)))
    return FINDINGS if found.findings or found.stopped else unwritten
