"""The files of commands: prompts, and results that are there whole or not at all."""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from specflow import prompts as prompt_files
from specflow.cli.common import CLEAN, FINDINGS, add_overwrite, told
from specflow.errors import RuntimeFault, UsageError
from specflow.recipe import Recipe, ResolvedRecipe

_OPEN = re.compile(r"/proc/(\d+|self)(/task/\d+)?/fd")  # where descriptors have names


def read_by(recipe: Recipe, prompts: Path | None = None) -> list[Path]:
    """The files that a command on a recipe reads, as they are named."""
    said = recipe.written.get("run") or {}
    named = said.get("prompts") if isinstance(said, Mapping) else None
    own = recipe.file("run.prompts", named) if isinstance(named, str) else None
    sources = (Path(source.name) for source in recipe.sources)
    return [*sources, *(each for each in (own, prompts) if each is not None)]


def stand_somewhere() -> None:
    """Stop where the folder that a command is run in is gone: torch's libraries cannot load there.

    They end the process without a word of ours.
    """
    try:
        Path.cwd()
    except OSError as error:
        offer = "change into a folder that exists"
        raise UsageError("the folder you are in is gone", offer) from error


def add_out(
    parser: argparse.ArgumentParser, what: str, otherwise: str = "nothing is written"
) -> None:
    """`-o FILE`, and `--overwrite`."""
    parser.add_argument(
        "-o", "--out", metavar="FILE", help=f"write {what} there; without it {otherwise}"
    )
    add_overwrite(parser)


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


def prepare_file(name: str, read: Iterable[Path], *, overwrite: bool, option: str = "-o") -> Path:
    """Where a result will go, tried before any model loads; nothing is left there by that.

    A link is followed: what it names is written. Files that were `read` are never written over.
    A terminal, another device and what is open already, as /dev/stdout, take it as they are.
    """
    file, said = _real(option, name), f"`{option} {name}`"
    opened = _opened(Path(name))
    if opened is not None or file.is_char_device():
        with _writable(option, name, "name a file, or what can be written"):
            return _as_it_is(Path(name), file, opened)
    if file.exists() and not file.is_file():
        raise UsageError(f"{said} is no file", "name a file; it is made")
    if file in [Path(os.path.realpath(each)) for each in read]:
        raise UsageError(f"{said} is a file that is read", "name another file; it is made")
    if file.exists() and not overwrite:
        raise UsageError(f"{said} exists", "name another file, or add --overwrite")
    with _writable(option, name, "name a file in a folder that can be written"):
        try_folder(file.parent, file.name)
        if file.exists():
            os.close(os.open(file, os.O_WRONLY))  # one that is read-only is meant to stay
    return file


def prepare_folder(name: str, files: Sequence[str], *, overwrite: bool) -> Path:
    """The folder of a run, tried before any model loads; an older run there is kept until then."""
    folder = _real("--out", name)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"`--out {name}` is no folder", "name a folder; it is made if need be")
    kept = [file for file in files if os.path.lexists(folder / file)]
    if kept and not overwrite:
        raise UsageError(
            f"`--out {name}` holds {' and '.join(kept)} of an earlier run",
            "name another folder, or add --overwrite",
        )
    odd = [file for file in kept if not (folder / file).is_file()]
    if odd:
        raise UsageError(f"`{folder / odd[0]}` is no file", "name another folder")
    with _writable("--out", name, "name a folder that can be written"):
        try_folder(folder)
    return folder


def try_folder(folder: Path, name: str = "") -> None:
    """Make a folder, and a file in it, and take back both; OSError where that cannot be."""
    made: list[Path] = []
    try:
        for each in reversed((folder, *folder.parents)):
            if not each.is_dir():
                each.mkdir()
                made.append(each)
        with tempfile.TemporaryFile(dir=folder), contextlib.suppress(FileNotFoundError):
            (folder / name).stat()  # which is where a name that is too long is told
    finally:
        for each in reversed(made):
            with contextlib.suppress(OSError):
                each.rmdir()


def write_whole(file: Path, text: str) -> None:
    """A file whole, or as it was before; RuntimeFault where the disk does not take it.

    One that was there lends its mode and its owner. What is no regular file is written to as it is:
    in its place a file would be in the way of everyone else who writes there.
    """
    try:
        as_it_is = _handle(file)
        if as_it_is is not None:
            _pour(as_it_is, text)
            return
    except OSError as error:
        raise RuntimeFault(f"`{file}` cannot be written: {error.strerror}") from error
    beside = file.with_name(f".specflow-{secrets.token_hex(8)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("x", encoding="utf-8", errors="backslashreplace") as handle:
            handle.write(text)
        if file.exists():
            old = file.stat()
            beside.chmod(stat.S_IMODE(old.st_mode))
            with contextlib.suppress(PermissionError):
                os.chown(beside, old.st_uid, old.st_gid)
        beside.replace(file)
    except OSError as error:
        raise RuntimeFault(f"`{file}` cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _opened(file: Path) -> int | None:
    """The descriptor that a name stands for, as /dev/stdout and /dev/fd/3; None for any other."""
    with contextlib.suppress(OSError, ValueError):
        for _ in range(40):  # links, as many as a kernel follows
            folder = os.path.realpath(file.parent)
            at = _OPEN.fullmatch(folder)
            if at and at[1] in ("self", str(os.getpid())) and file.name.isdecimal():
                return int(file.name)
            if not file.is_symlink():
                break
            file = Path(folder) / file.readlink()
    return None


def _as_it_is(named: Path, file: Path, opened: int | None) -> Path:
    """What is written to as it stands; OSError where that cannot be."""
    if opened is None:
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
        return file
    if fcntl.fcntl(opened, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise PermissionError(errno.EACCES, "it is open to be read")
    return named


def _handle(file: Path) -> int | None:
    """A descriptor of what is no regular file; None for one, a folder, and what is to be made."""
    opened = _opened(file)
    if opened is not None:
        return os.dup(opened)
    try:
        mode = file.stat().st_mode
    except OSError:
        return None
    if not stat.S_ISCHR(mode) and not stat.S_ISFIFO(mode):
        return None
    # A pipe that nobody reads fails so, where it would be waited for.
    handle = os.open(file, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(handle, True)
    return handle


def _pour(handle: int, text: str) -> None:
    """All of a text into a descriptor, behind what was printed before; it is closed."""
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as out:
        sys.stdout.flush()
        sys.stderr.flush()
        out.write(text)


def keep(file: Path, text: str) -> int:
    """Write a result before it is shown, since whoever it is shown to may be gone; the exit code.

    What the disk does not take is a finding on stderr, and the result is shown all the same.
    """
    try:
        write_whole(file, text)
    except RuntimeFault as error:
        offer = "the result is shown all the same"
        return told("SF091", "run-fault", str(error), "text", FINDINGS, offer)
    print(f"wrote {file}", file=sys.stderr)
    return CLEAN


def _real(option: str, name: str) -> Path:
    """The path that a name means, links followed."""
    try:
        real = Path(os.path.realpath(name))
        real.exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        offer = "name another, in a folder that can be written"
        raise UsageError(f"`{option} {name}` cannot be written: {reason}", offer) from error
    if not name:
        raise UsageError(f"`{option}` names nothing", "name what is to be made")
    return real


@contextlib.contextmanager
def _writable(option: str, name: str, offer: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"`{option} {name}` cannot be written: {error.strerror}", offer) from error
