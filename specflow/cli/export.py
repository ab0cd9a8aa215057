"""`specflow export`: a recipe as the arguments of an engine."""

from __future__ import annotations

import argparse

from specflow.cli.common import CLEAN, FINDINGS, OPERAND, add_overrides, add_stand_in, read, tell
from specflow.cli.engines import add_engine, asked_engine, resolved_by
from specflow.cli.models import add_models, reader_of
from specflow.errors import UsageError

FORMATS = ("args", "sh", "json", "yaml", "python")
# What each engine has of them, its own default first; a test holds them to the engines.
FORMATS_OF = {
    "sglang": FORMATS,
    "vllm": FORMATS,
    "trtllm": ("yaml", "sh", "json", "python"),
    "llamacpp": ("args", "sh", "json"),
}


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("recipe", metavar="RECIPE", help=OPERAND)
    add_overrides(parser)
    add_engine(parser, "the engine to export to", required=True)
    add_stand_in(parser)
    add_models(parser)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="flags in a line, a script, JSON, the file of `--config`, or lines of Python; "
        + "; ".join(f"{name} has {', '.join(own)}" for name, own in FORMATS_OF.items()),
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the arguments; what they do not say goes to stderr."""
    reader = reader_of(args)
    resolved = read(args.recipe, args.overrides, stand_in=args.stand_in, reader=reader)[1]
    asked = asked_engine(args.engine)
    form = args.format or next(iter(asked.engine.formats))
    writer = asked.engine.formats.get(form)
    if writer is None:
        offer = f"it has {', '.join(asked.engine.formats)}"
        raise UsageError(f"{asked.engine.title} has no `--format {form}`", offer)
    found = resolved_by(asked, args.platform, resolved)
    tell([*resolved.findings, *found.findings, *found.remarks])
    if found.export is not None and not found.export.refused:
        print(writer(found.export, asked.version))
    return CLEAN if found.runs else FINDINGS
