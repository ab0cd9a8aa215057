"""`specflow run`: decode prompts with a recipe, and report."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from specflow import prompts as prompt_files
from specflow.cli.common import CLEAN, FINDINGS, USAGE, add_format, add_overrides, read, show, tell
from specflow.recipe import Recipe, ResolvedRecipe


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("recipe", metavar="RECIPE", help="path or pack name")
    add_overrides(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompts", type=Path, metavar="FILE", help="JSONL, one {id, prompt|messages} a line"
    )
    source.add_argument("--prompt", metavar="TEXT", help="one prompt")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write completions.jsonl and report.json there"
    )
    parser.add_argument("--limit", type=_positive, metavar="N", help="run the first N prompts")
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
    recipe, resolved = read(args.recipe, args.overrides)
    tell(resolved.findings)
    if args.check_lossless and resolved.sampling.temperature > 0:
        print(
            "error: `--check-lossless` compares tokens, and at temperature "
            f"{resolved.sampling.temperature:g} they are drawn; "
            "add `sampling.temperature=0` (laws are what tests/differential/test_sample.py proves)",
            file=sys.stderr,
        )
        return USAGE
    prompts = _prompts(args, recipe, resolved)
    if prompts is None or not prompts.items:
        show(prompts.findings if prompts else (), args.format)
        return USAGE
    if args.out and not _writable(args.out):
        return USAGE
    from specflow.cli.progress import (
        Progress,
    )  # rich and torch load only now, when all else is known to be right
    from specflow.execute import Wanted, execute

    with Progress() as watch:
        outcome = execute(
            recipe, resolved, prompts, Wanted(args.out, args.baseline, args.check_lossless), watch
        )
    report = outcome.report.as_json()
    if args.out:
        _write(args.out / "report.json", report)
    if args.format == "json":
        tell(outcome.findings)
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show(outcome.findings, "text")
        watch.table(
            report, [(c.request.id, c.text) for c in outcome.completions] if args.prompt else []
        )
    failed = outcome.findings or report.get("lossless", {}).get("failed") or report["cut_short"]
    return FINDINGS if failed else CLEAN


def _prompts(
    args: argparse.Namespace, recipe: Recipe, resolved: ResolvedRecipe
) -> prompt_files.Prompts | None:
    """From the command line, or the file the recipe names."""
    if args.prompt is not None:
        return prompt_files.single(args.prompt)
    if args.prompts is not None:
        return prompt_files.read(args.prompts, args.limit)
    if resolved.run.prompts:
        place = recipe.places.get("run.prompts")
        beside = (
            Path(place.value.source.name).parent
            if place and "run.prompts" not in recipe.overridden
            else Path()
        )
        return prompt_files.read(beside / resolved.run.prompts, args.limit)
    print(
        "error: no prompts; give --prompts FILE or --prompt TEXT, "
        "or write `run.prompts` in the recipe",
        file=sys.stderr,
    )
    return None


def _writable(folder: Path) -> bool:
    """Make the folder and try to write there, before any model loads."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        print(f"error: `--out {folder}` cannot be written: {error.strerror}", file=sys.stderr)
        return False


def _write(file: Path, report: dict[str, Any]) -> None:
    """The report, whole or not at all."""
    beside = file.with_suffix(".json.new")
    beside.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(file)


def _positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("expected 1 or more")
    return number
