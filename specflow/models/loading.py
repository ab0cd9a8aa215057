"""Where the weights a recipe names are, whether they are whole, and whether they fit the model."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from pathlib import Path
from time import time
from typing import Any

from platformdirs import user_cache_path

from specflow import facts, formats
from specflow.constraints.drafts import undriven
from specflow.errors import RuntimeFault

DTYPES = ("float32", "bfloat16", "float16", "float64")
GGUF_NEEDS = ("gguf", "accelerate")
OTHER = "download the model again, or name another"
ABANDONED = 24 * 60 * 60  # seconds after which a conversion that did not end has no process


def open_model(path: str) -> Path:
    """The folder of safetensors behind a path, a `builtin:` name or a `.gguf` file."""
    found = _accepted(facts.read(path))
    kind, _ = undriven(found)
    if found.recorded and kind:
        raise RuntimeFault(
            f"specflow's own engine does not drive the `{kind}` layers of `{path}`; "
            "run the recipe's small models with `--stand-in`, or another engine by "
            "`specflow export RECIPE --engine sglang@0.5.23`"
        )
    if found.recorded:
        raise RuntimeFault(
            f"of `{path}` only a record is here, which can be validated and not run; "
            f"`hf download {path} --local-dir FOLDER` and name the folder, "
            "or run the recipe's small models with `--stand-in`"
        )
    return found.folder or convert_gguf(Path(path).expanduser())


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a folder, each checked to be whole."""
    return list(_accepted(facts.read_folder(folder)).weights)


def _accepted(found: facts.ModelFacts) -> facts.ModelFacts:
    if found.problem:
        raise RuntimeFault(f"{found.problem.message}; {found.problem.help}")
    return found


@contextmanager
def foreign(what: str, way_out: str = OTHER) -> Iterator[None]:
    """One boundary round a reader of foreign text: whatever it raises is a RuntimeFault."""
    try:
        yield
    except (RuntimeFault, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a Rust library is no Exception
        raise RuntimeFault(f"{what}: {one_line(error)}; {way_out}") from error


def one_line(error: BaseException) -> str:
    """The type of an exception and what it says, at most 200 characters of it."""
    said = " ".join(str(error).split())
    kind = type(error).__name__
    return f"{kind}: {said[:200]}" if said else kind


def load_weights(folder: Path, *, device: str, dtype: str) -> Any:
    """The `PreTrainedModel` of a folder: no weight missing, left over or of another shape."""
    import torch
    from transformers import AutoModelForCausalLM

    from specflow.models.families import register

    register()
    found = _accepted(facts.read_folder(folder))
    if found.no_float:
        name, stored = found.no_float
        raise RuntimeFault(
            f"`{folder}` stores `{name}` as {stored}, which specflow's own engine does not read; "
            "use float weights, or run the recipe on an engine"
        )
    if dtype not in DTYPES:
        raise RuntimeFault(f"`{dtype}` is not a dtype of a model: use one of {', '.join(DTYPES)}")
    with quiet(), foreign(f"`{folder}` does not load"):
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    drafts = formats.recognise(found.tensors, found.layers, bundled=True)
    if drafts is not None:  # the MTP layers that come along are loaded by whoever drafts with them
        left = formats.leftovers(report["unexpected_keys"], drafts, found.layers)
        report["unexpected_keys"] = left
    for kind, names in _misfits(report):
        raise RuntimeFault(f"`{folder}` does not fit its `config.json`: {kind} {names}; {OTHER}")
    for name, weight in chain(model.named_parameters(), model.named_buffers()):
        if not torch.isfinite(weight).all():
            raise RuntimeFault(
                f"`{name}` of `{folder}` holds a number that is not finite in {dtype}; {OTHER}"
            )
    with foreign(f"cannot put `{folder}` on `{device}`", "name another `run.device`"):
        return put(model, folder, device)


def put(model: Any, folder: Path, device: str) -> Any:
    """A model on a device; where it does not fit, how much it asked for."""
    import torch

    from specflow.faults import asked_and_free

    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise RuntimeFault(
            f"`{folder}` does not fit on `{device}`: {asked_and_free(error)}; "
            "write `run.dtype: bfloat16`, or name a smaller `target.model` or `draft.model`"
        ) from error


def _misfits(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    kinds = {
        "mismatched_keys": "weights of another shape,",
        "missing_keys": "missing weights,",
        "unexpected_keys": "weights nothing reads,",
        "error_msgs": "errors,",
    }
    for key, kind in kinds.items():
        names = sorted(
            str(each[0] if isinstance(each, tuple | list) else each)
            for each in report.get(key) or ()
        )
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield kind, ", ".join(f"`{name}`" for name in names[:3]) + more


def convert_gguf(file: Path) -> Path:
    """A safetensors folder of what a `.gguf` file holds, made once and kept in the cache."""
    if not file.is_file():
        raise RuntimeFault(f"`{file}` does not exist: name a `.gguf` file")
    folder = user_cache_path("specflow") / "gguf" / f"{file.stem}-{_fingerprint(file)}"
    if folder.is_dir():
        return folder
    absent = [name for name in GGUF_NEEDS if importlib.util.find_spec(name) is None]
    if absent:
        raise RuntimeFault(
            f"reading `{file.name}` needs `{'` and `'.join(absent)}`; "
            f"pip install {' '.join(absent)}"
        )
    with _writable(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        # Written aside and renamed: a run killed midway leaves nothing that looks finished.
        aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        _write_converted(file, aside)
        if not folder.is_dir():  # another run may have been first
            with _writable(folder.parent):
                aside.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _writable(cache: Path) -> AbstractContextManager[None]:
    return foreign(
        f"cannot write to `{cache}`", "free the folder, or set XDG_CACHE_HOME to another"
    )


def _sweep(cache: Path) -> None:
    """Remove what a killed conversion left, once no conversion can still be at it."""
    for left in cache.glob(".writing-*"):
        with suppress(OSError):  # another run may be sweeping too
            if left.stat().st_mtime < time() - ABANDONED:
                shutil.rmtree(left, ignore_errors=True)


def _fingerprint(file: Path) -> str:
    stat = file.stat()
    identity = f"{stat.st_size} {stat.st_mtime_ns} {file.resolve()}"
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def _write_converted(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": file.name, "local_files_only": True}
    with quiet(), foreign(f"`{file}` cannot be read as GGUF"):
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **source)
    # The library refuses to save what it calls quantised, although every weight is expanded.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with quiet(), _writable(folder.parent):
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    weight_files(folder)


class quiet:  # noqa: N801 - reads as a word at its use
    """Keep progress bars, load reports and warnings of libraries away from the terminal."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._level = logging.get_verbosity()
        self._bars = logging.is_progress_bar_enabled()
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, *_: object) -> None:
        from transformers.utils import logging

        self._warnings.__exit__(None, None, None)
        logging.set_verbosity(self._level)
        if self._bars:
            logging.enable_progress_bar()
