"""llama.cpp as a row of the table of engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.engines import command_line, show
from specflow.engines.base import NOTHING, Beside, Engine, Export, Import, Word, listed
from specflow.engines.flags import Flags
from specflow.engines.llamacpp import rules
from specflow.engines.llamacpp.builds import BUILDS, TITLE
from specflow.engines.llamacpp.exports import NAME, to_args
from specflow.engines.llamacpp.imports import from_args
from specflow.engines.llamacpp.rules import effective
from specflow.engines.outcome import Effective, Refused
from specflow.recipe import ResolvedRecipe

SERVER = "llama-server"


def _flags(version: str) -> Flags:
    return BUILDS[version].flags


def _export(recipe: ResolvedRecipe, version: str, platform: str) -> Export:  # noqa: ARG001
    return to_args(recipe, BUILDS[version])


def _effective(
    recipe: ResolvedRecipe, export: Export, version: str, platform: str
) -> Effective | Refused:
    return effective(recipe, export, BUILDS[version], platform)


# Short forms of a switch that turn it off.
_OFF = {
    "-nkvo": "--no-kv-offload",
    "-nr": "--no-repack",
    "-nocb": "--no-cont-batching",
    "-no-kvu": "--no-kv-unified",
    "-ndio": "--no-direct-io",
    "-no-ag": "--no-agent",
}


def _read(text: str, version: str) -> tuple[dict[str, Any], dict[str, str]]:
    flags = _flags(version)
    found = command_line.line(flags, text)
    known = {short: long for short, long in _OFF.items() if _has(flags, long)}
    args = command_line.arguments(flags, found.words, lambda option: known.get(option, option))
    return args, dict(found.env)


def _has(flags: Flags, option: str) -> bool:
    """Whether a build has a switch that `--no-` turns off."""
    return option.removeprefix("--no-").replace("-", "_") in flags


def _typed(args: Mapping[Any, Any], version: str) -> dict[str, Any]:
    return command_line.typed(_flags(version), args)


def _load(
    args: Mapping[str, Any],
    env: Mapping[str, str],
    version: str,
    beside: Beside = NOTHING,  # noqa: ARG001 - a build has one default for every model
) -> Import:
    return from_args(args, env, BUILDS[version])


def _rows() -> Mapping[str, str]:
    return listed(rules.__doc__)


ENGINE = Engine(
    name=NAME,
    title=TITLE,
    versions=tuple(BUILDS),
    platforms=("cuda", "cpu", "metal", "vulkan"),
    flags=_flags,
    side=("parallel", "ctx_size", "temp"),
    export=_export,
    effective=_effective,
    read=_read,
    typed=_typed,
    load=_load,
    formats={
        "args": lambda export, version: show.as_args(_flags(version), export),
        "sh": lambda export, version: show.as_script(SERVER, _flags(version), export),
        "json": lambda export, version: show.as_mapping(export),  # noqa: ARG005
    },
    words={
        "target.model": Word("--model", "a GGUF file"),
        "draft.algorithm": Word("--spec-type", "EAGLE on MTP layers alone; NGRAM another look-up"),
        "draft.model": Word("--spec-draft-model", "before b9102 --model-draft"),
        "draft.num_steps": Word("--spec-draft-n-max", "guesses; before b9102 --draft-max"),
        "draft.topk": Word("", "chains alone"),
        "draft.block_size": Word("--spec-draft-n-max", "guesses, the bonus token not among them"),
        "verify.num_draft_tokens": Word("--spec-draft-n-max", "guesses, one less than positions"),
        "verify.shape": Word("", "chains alone"),
        "verify.accept": Word("", "what is drawn from the target is compared, as target_only"),
        "draft.adaptive_slots": Word("", "one number of guesses for every batch size"),
        "draft.window_size": Word("", "of the GGUF file"),
        "run.batch_size": Word("--parallel", "slots"),
        "run.max_length": Word("--ctx-size", "positions of all slots together"),
    },
    rows=_rows,
)
