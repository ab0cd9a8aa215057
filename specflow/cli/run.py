"""`specflow run`: decode prompts with a recipe, and report."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

from specflow import prompts as prompt_files
from specflow.cli.common import (
    CLEAN,
    FINDINGS,
    USAGE,
    add_format,
    add_overrides,
    add_stand_in,
    read,
    show,
    tell,
)
from specflow.errors import RuntimeFault, UsageError
from specflow.recipe import Recipe, ResolvedRecipe

RUN_FILES = ("completions.jsonl", "report.json", "report.json.new")


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("recipe", metavar="RECIPE", help="path or pack name")
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
    parser.add_argument("--limit", type=_count, metavar="N", help="run the first N prompts")
    parser.add_argument(
        "--baseline",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="decode plainly as well, and compare the speed",
    )
    parser.add_argument(
        "--check-lossless", action="store_true", help="compare every token with plain decoding"
    )
    add_format(parser, "text", "json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decode and report; 1 where a prompt was at fault or a check failed."""
    gc.enable()
    recipe, resolved = read(args.recipe, args.overrides, stand_in=args.stand_in)
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
    if args.out is not None:
        _prepare(args.out, overwrite=args.overwrite)
    # rich and torch load only now, when all else is known to be right
    from specflow.cli.progress import Progress
    from specflow.execute import Wanted, execute

    out = Path(args.out) if args.out is not None else None
    with Progress() as watch:
        wanted = Wanted(out, args.baseline, args.check_lossless)
        outcome = execute(recipe, resolved, prompts, wanted, watch)
        report = outcome.report.as_json() if outcome.report is not None else None
        if report is not None and args.format == "json":
            tell(outcome.findings)
            print(json.dumps(report, indent=2, ensure_ascii=False))
        else:
            show(outcome.findings, args.format)
        if report is not None and args.format != "json":
            shown = [(c.request.id, c.text) for c in outcome.completions] if args.prompt else []
            watch.table(report, shown)
        if report is not None and out is not None:
            _write(out / "report.json", report)
    failed = outcome.findings or outcome.stopped or (report or {}).get("lossless", {}).get("failed")
    return FINDINGS if failed else CLEAN


def _prompts(
    args: argparse.Namespace, recipe: Recipe, resolved: ResolvedRecipe
) -> prompt_files.Prompts:
    """From the command line, or the file the recipe names."""
    if args.prompt is not None:
        return prompt_files.single(args.prompt)
    if args.prompts is not None:
        return prompt_files.read(args.prompts, args.limit)
    if not resolved.run.prompts:
        raise UsageError(
            "no prompts to run",
            "give --prompts FILE or --prompt TEXT, or write `run.prompts` in the recipe",
        )
    place = recipe.places.get("run.prompts")
    written = place is not None and "run.prompts" not in recipe.overridden
    beside = Path(place.value.source.name).parent if place and written else Path()
    return prompt_files.read(beside / resolved.run.prompts, args.limit)


def _prepare(name: str, *, overwrite: bool) -> None:
    """Make the folder and try to write there, before any model loads; an older run is kept."""
    folder = Path(name)
    if not name or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"`--out {name}` is no folder", "name a folder; it is made if need be")
    kept = [f for f in RUN_FILES if (folder / f).exists()]
    if kept and not overwrite:
        raise UsageError(
            f"`--out {name}` holds {' and '.join(kept)} of an earlier run",
            "name another folder, or add --overwrite",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in kept:
            (folder / file).unlink()
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"`--out {name}` cannot be written: {error.strerror}"
        raise UsageError(reason, "name a folder that can be written") from error


def _write(file: Path, report: dict[str, Any]) -> None:
    """The report, whole or not at all."""
    beside = file.with_suffix(".json.new")
    try:
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise RuntimeFault(f"`{file}` cannot be written: {error.strerror}") from error


def _count(text: str) -> int:
    """A number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is no number of at least 1")
    return int(text)
