"""The files of commands: prompts, and results that are there whole or not at all."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

from specflow import prompts as prompt_files
from specflow.errors import RuntimeFault, UsageError
from specflow.recipe import Recipe, ResolvedRecipe


def add_out(parser: argparse.ArgumentParser, what: str) -> None:
    """`-o FILE`, and `--overwrite`."""
    parser.add_argument(
        "-o", "--out", metavar="FILE", help=f"write {what} there; without it nothing is written"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE where it exists")


def count(text: str) -> int:
    """A number of at least 1, as an argument."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is no number of at least 1")
    return int(text)


def prompts_of(
    recipe: Recipe, resolved: ResolvedRecipe, limit: int | None = None
) -> prompt_files.Prompts | None:
    """The prompts of the file that a recipe names, if it names one."""
    if not resolved.run.prompts:
        return None
    return prompt_files.read(recipe.file("run.prompts", resolved.run.prompts), limit)


def prepare_file(name: str, *, overwrite: bool) -> Path:
    """Where a result will go; tried before any model loads, and an older one is kept."""
    file = Path(name)
    if not name or (file.exists() and not file.is_file()):
        raise UsageError(f"`-o {name}` is no file", "name a file; it is made")
    if file.exists() and not overwrite:
        offer = "name another file, or add --overwrite"
        raise UsageError(f"`-o {name}` exists", offer)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        reason = f"`-o {name}` cannot be written: {error.strerror}"
        raise UsageError(reason, "name a file in a folder that can be written") from error
    return file


def write_whole(file: Path, text: str) -> None:
    """A file whole, or as it was before; RuntimeFault where the disk does not take it."""
    beside = file.with_name(f"{file.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        raise RuntimeFault(f"`{file}` cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
