"""`specflow run`: decode prompts with a recipe, and report."""

from __future__ import annotations

import argparse
import gc
from dataclasses import replace
from pathlib import Path

from specflow import prompts as prompt_files
from specflow.cli.common import (
    FINDINGS,
    OPERAND,
    USAGE,
    add_format,
    add_overrides,
    add_stand_in,
    read,
    show,
    tell,
)
from specflow.cli.files import count, prepare_folder, prompts_of, stand_somewhere
from specflow.diagnostics import Severity
from specflow.errors import RecipeError, UsageError
from specflow.recipe import Recipe, ResolvedRecipe
from specflow.report import COMPLETIONS, REPORT

UNMADE = "SF079"  # a warning, since an engine may run what cannot be made up here


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("recipe", metavar="RECIPE", help=OPERAND)
    add_overrides(parser)
    add_stand_in(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompts", type=Path, metavar="FILE", help="JSONL, one {id, prompt|messages} a line"
    )
    source.add_argument("--prompt", metavar="TEXT", help="one prompt")
    parser.add_argument(
        "--out", metavar="DIR", help="write completions.jsonl and report.json there"
    )
    parser.add_argument("--overwrite", action="store_true", help="in --out, replace an older run")
    parser.add_argument("--limit", type=count, metavar="N", help="run the first N prompts")
    parser.add_argument(
        "--baseline",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="decode plainly as well, and compare the speed",
    )
    parser.add_argument(
        "--check-lossless", action="store_true", help="compare every token with plain decoding"
    )
    parser.add_argument(
        "--engine", metavar="NAME[@VERSION]", help="run it on SGLang or vLLM, where installed"
    )
    parser.add_argument(
        "--platform", metavar="NAME", help="the machine that --engine is on: h100, b200 ..."
    )
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decode and report; 1 where a prompt was at fault or a check failed."""
    gc.enable()
    stand_somewhere()
    recipe, resolved = read(args.recipe, args.overrides, stand_in=args.stand_in)
    if args.engine is None:
        need_made(resolved)
    tell(resolved.findings)
    if args.check_lossless and resolved.sampling.temperature > 0:
        temperature = f"{resolved.sampling.temperature:g}"
        raise UsageError(
            f"`--check-lossless` compares tokens, and at temperature {temperature} they are drawn",
            "add `sampling.temperature=0`; that laws are kept is proven by the project's tests",
        )
    prompts = _prompts(args, recipe, resolved)
    if not prompts.items:
        show(prompts.findings, args.format)
        return USAGE
    out = None
    if args.out is not None:
        out = prepare_folder(args.out, (COMPLETIONS, REPORT), overwrite=args.overwrite)
    if args.engine is not None:
        from specflow.cli.elsewhere import run_elsewhere

        return run_elsewhere(args, resolved, prompts, out)
    # rich and torch load only now, when all else is known to be right
    from specflow.cli.progress import Progress
    from specflow.cli.reporting import leave
    from specflow.execute import Wanted, execute

    with Progress() as watch:
        wanted = Wanted(out, args.baseline, args.check_lossless)
        outcome = execute(recipe, resolved, prompts, wanted, watch)
        report = outcome.report.as_json() if outcome.report is not None else None
        unwritten = leave(args, out, watch, report, outcome.findings, outcome.completions)
    failed = outcome.findings or outcome.stopped or (report or {}).get("lossless", {}).get("failed")
    return FINDINGS if failed else unwritten


def need_made(resolved: ResolvedRecipe) -> None:
    """Stop where weights are to be made up here, and cannot be: what warns of that ends it."""
    unmade = [d for d in resolved.findings if d.code == UNMADE]
    if unmade:
        raise RecipeError([replace(d, severity=Severity.ERROR) for d in unmade])


def _prompts(
    args: argparse.Namespace, recipe: Recipe, resolved: ResolvedRecipe
) -> prompt_files.Prompts:
    """From the command line, or the file the recipe names."""
    if args.prompt is not None:
        return prompt_files.single(args.prompt)
    if args.prompts is not None:
        return prompt_files.read(args.prompts, args.limit)
    found = prompts_of(recipe, resolved, args.limit)
    if found is None:
        raise UsageError(
            "no prompts to run",
            "give --prompts FILE or --prompt TEXT, or write `run.prompts` in the recipe",
        )
    return found
