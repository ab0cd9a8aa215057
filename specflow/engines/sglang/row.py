"""SGLang as a row of the table of engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specflow.engines import command_line, show
from specflow.engines.base import NOTHING, Beside, Engine, Export, Import, Word
from specflow.engines.configs import draft_config, target_config
from specflow.engines.files import written
from specflow.engines.flags import Flags
from specflow.engines.outcome import Effective, Refused
from specflow.engines.sglang.exports import to_args
from specflow.engines.sglang.flags import FLAGS
from specflow.engines.sglang.imports import from_args
from specflow.engines.sglang.resolver import effective
from specflow.engines.sglang.tables import PLATFORMS
from specflow.recipe import ResolvedRecipe

SERVER = "python -m sglang.launch_server"


def _flags(version: str) -> Flags:  # noqa: ARG001 - one version is known
    return FLAGS


def _export(recipe: ResolvedRecipe, version: str, platform: str) -> Export:  # noqa: ARG001
    return to_args(recipe, platform)


def _effective(
    recipe: ResolvedRecipe,
    export: Export,
    version: str,  # noqa: ARG001
    platform: str,
) -> Effective | Refused:
    configs = (target_config(recipe), draft_config(recipe))
    with written(export) as args:
        found = effective(args, *configs, platform, export.env)
    if isinstance(found, Refused) or not export.files:
        return found
    named = {args[key]: value for key, value in export.args.items() if args[key] != value}
    values = {k: named.get(v, v) if isinstance(v, str) else v for k, v in found.values.items()}
    return replace(found, values=values)


def _read(text: str, version: str) -> tuple[dict[str, Any], dict[str, str]]:
    return command_line.read(_flags(version), text)


def _typed(args: Mapping[Any, Any], version: str) -> dict[str, Any]:
    return command_line.typed(_flags(version), args)


def _load(
    args: Mapping[str, Any],
    env: Mapping[str, str],
    version: str,  # noqa: ARG001
    beside: Beside = NOTHING,
) -> Import:
    return from_args(args, env, beside)


def _python(export: Export, version: str) -> str:  # noqa: ARG001
    """Lines that make an engine in a Python program."""
    lines = show.preamble(export)
    lines += ["import sglang", "", "engine = sglang.Engine("]
    lines += [f"    {name}={value!r}," for name, value in export.args.items()]
    lines += [")", f"params = {dict(export.requests)!r}"]
    return "\n".join(lines)


def _rows() -> Mapping[str, str]:
    from specflow.engines.sglang.rows import ROWS  # text that few commands show

    return ROWS


ENGINE = Engine(
    name="sglang",
    title="SGLang",
    versions=("0.5.23",),
    platforms=("h100", *(p for p in PLATFORMS if p != "h100")),
    flags=_flags,
    # A server decides them, a recipe says little of them.
    side=(
        *("attention_backend", "page_size", "max_running_requests", "disable_overlap_schedule"),
        *("enable_mixed_chunk", "chunked_prefill_size", "kv_cache_dtype"),
    ),
    export=_export,
    effective=_effective,
    read=_read,
    typed=_typed,
    load=_load,
    formats={
        "args": lambda export, version: show.as_args(_flags(version), export),
        "sh": lambda export, version: show.as_script(SERVER, _flags(version), export),
        "json": lambda export, version: show.as_mapping(export),  # noqa: ARG005
        "yaml": lambda export, version: show.as_config(export),  # noqa: ARG005
        "python": _python,
    },
    words={
        "target.model": Word("--model-path"),
        "draft.algorithm": Word("--speculative-algorithm", "NEXTN and MTP are EAGLE"),
        "draft.model": Word("--speculative-draft-model-path"),
        "draft.num_steps": Word("--speculative-num-steps", "draft steps, the first among them"),
        "draft.topk": Word("--speculative-eagle-topk", "branches a step"),
        "draft.block_size": Word(
            "--speculative-dflash-block-size, --speculative-dspark-block-size",
            "DFLASH: positions, the anchor among them; DSPARK: guesses",
        ),
        "verify.num_draft_tokens": Word(
            "--speculative-num-draft-tokens", "positions verified, the bonus token among them"
        ),
        "verify.shape": Word("--speculative-eagle-topk", "above 1 is a tree"),
        "verify.accept": Word(
            "--speculative-use-rejection-sampling, --speculative-use-block-verification",
            "neither: by the target alone",
        ),
        "draft.adaptive_slots": Word("--speculative-adaptive-config", "a JSON file"),
        "draft.window_size": Word("--speculative-draft-window-size"),
        "run.batch_size": Word("--max-running-requests"),
        "run.max_length": Word("--context-length"),
    },
    classes=("Engine", "ServerArgs"),
    rows=_rows,
    installs="sglang==0.5.23",
    package="sglang",
)
