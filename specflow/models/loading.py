"""Where the weights a recipe names are, whether they are whole, and whether they fit the model."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from specflow.errors import RuntimeFault

BUILTIN = "builtin:pico-"
EMBEDDED = Path(__file__).parent / "pico"
DTYPES = ("float32", "bfloat16", "float16", "float64")
GGUF_NEEDS = ("gguf", "accelerate")
HEADER_LIMIT = 100 << 20  # bytes; the format's own limit


def open_model(path: str) -> Path:
    """The folder of safetensors behind a path, a `builtin:` name or a `.gguf` file."""
    if path.startswith("builtin:"):
        return _open_builtin(path)
    found = Path(path).expanduser()
    if found.suffix == ".gguf":
        return convert_gguf(found)
    if not found.is_dir():
        reason = "is a file" if found.exists() else "does not exist"
        raise RuntimeFault(f"`{path}` {reason}: name a folder with safetensors, or a `.gguf` file")
    weight_files(found)
    return found


def builtin_models() -> dict[str, Path]:
    """The embedded checkpoints by name."""
    return {
        BUILTIN + config.parent.name: config.parent
        for config in sorted(EMBEDDED.glob("*/config.json"))
    }


def _open_builtin(name: str) -> Path:
    models = builtin_models()
    if name not in models:
        near = get_close_matches(name, models, n=1) or sorted(models)
        raise RuntimeFault(
            f"no embedded model is called `{name}`: there is `{'`, `'.join(near) or 'none'}`"
        )
    weight_files(models[name])
    return models[name]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a folder, each checked to be whole."""
    if not (folder / "config.json").is_file():
        raise RuntimeFault(
            f"`{folder}` has no `config.json`: name the folder that `save_pretrained` wrote"
        )
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
    else:
        names = ["model.safetensors"] if (folder / "model.safetensors").is_file() else []
    if not names:
        pickled = next(folder.glob("*.bin"), None) or next(folder.glob("*.pt*"), None)
        reason = f"only `{pickled.name}`, a pickle that could run code" if pickled else "no weights"
        raise RuntimeFault(f"`{folder}` holds {reason}: save the model as safetensors")
    files = [folder / name for name in names]
    for file in files:
        _check_whole(file)
    return files


def _check_whole(file: Path) -> None:
    """Stop at a file shorter or longer than its own header says."""
    if not file.is_file():
        raise RuntimeFault(
            f"`{file}` is missing though the index names it: download the model again"
        )
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        broken = not 2 <= length <= min(HEADER_LIMIT, size - 8)
        try:
            header = {} if broken else json.loads(stream.read(length))
            ends = [
                entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, IndexError):
            broken = True
    if broken:
        raise RuntimeFault(
            f"`{file}` is not a safetensors file, or cut off in its header: download it again"
        )
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise RuntimeFault(
            f"`{file}` has {size} bytes where its header says {expected}: download it again"
        )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RuntimeFault(f"`{file}` is not JSON ({error}): download it again") from None
    if not isinstance(content, dict):
        raise RuntimeFault(f"`{file}` is not a JSON object: download it again")
    return content


def load_weights(folder: Path, *, device: str, dtype: str) -> Any:
    """The `PreTrainedModel` of a folder: no weight missing, left over or of another shape."""
    import torch
    from transformers import AutoModelForCausalLM

    weight_files(folder)
    _read_json(folder / "config.json")
    if dtype not in DTYPES:
        raise RuntimeFault(f"`{dtype}` is not a dtype of a model: use one of {', '.join(DTYPES)}")
    with _quiet():
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        except Exception as error:
            raise RuntimeFault(f"`{folder}` does not load: {_one_line(error)}") from error
    for kind, names in _misfits(report):
        raise RuntimeFault(
            f"`{folder}` does not fit its `config.json`: {kind} {names}; download the model again"
        )
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise RuntimeFault(f"cannot put `{folder}` on `{device}`: {_one_line(error)}") from error


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
            f"reading `{file.name}` needs `{'` and `'.join(absent)}`: pip install 'specflow[gguf]'"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed: a run killed midway leaves nothing that looks finished.
    aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        _write_converted(file, aside)
        if not folder.is_dir():  # another run may have been first
            aside.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _fingerprint(file: Path) -> str:
    stat = file.stat()
    identity = f"{stat.st_size} {stat.st_mtime_ns} {file.resolve()}"
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def _write_converted(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": file.name, "local_files_only": True}
    with _quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
            model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **source)
        except Exception as error:
            raise RuntimeFault(f"`{file}` cannot be read as GGUF: {_one_line(error)}") from error
        # The library refuses to save what it calls quantised, although every weight is expanded.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    weight_files(folder)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


class _quiet:  # noqa: N801 - reads as a word at its use
    """Keep the library's progress bars and load report away from the terminal."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._level = logging.get_verbosity()
        self._bars = logging.is_progress_bar_enabled()
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self._level)
        if self._bars:
            logging.enable_progress_bar()
