"""vLLM as a row of the table of engines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from specflow.engines import show
from specflow.engines.base import NOTHING, Beside, Engine, Export, Import, Word
from specflow.engines.configs import draft_config, target_config
from specflow.engines.outcome import Effective, Refused
from specflow.engines.vllm import lines
from specflow.engines.vllm.exports import to_args
from specflow.engines.vllm.given import PLATFORMS
from specflow.engines.vllm.imports import from_args
from specflow.engines.vllm.rules import RULES, effective
from specflow.engines.vllm.versions import PACKAGE, VERSIONS, flags_of, key, option
from specflow.recipe import ResolvedRecipe


def _export(recipe: ResolvedRecipe, version: str, platform: str) -> Export:  # noqa: ARG001
    return to_args(recipe, version)


def _effective(
    recipe: ResolvedRecipe, export: Export, version: str, platform: str
) -> Effective | Refused:
    configs = (target_config(recipe), draft_config(recipe))
    return effective(export.args, *configs, platform, export.env, version, export.requests)


def _load(
    args: Mapping[str, Any], env: Mapping[str, str], version: str, beside: Beside = NOTHING
) -> Import:
    return from_args(args, env, version, beside)


def _args(export: Export, version: str) -> str:
    return show.as_args(flags_of(version), export)


def _script(export: Export, version: str) -> str:
    """`vllm serve` names the model first: as a flag it is on its way out."""
    rest = {name: value for name, value in export.args.items() if name != "model"}
    command = f"vllm serve {shlex.quote(str(export.args['model']))}"
    return show.as_script(command, flags_of(version), replace(export, args=rest))


def _python(export: Export, version: str) -> str:  # noqa: ARG001 - every version has these classes
    """Lines that make an engine in a Python program; what only a server takes is a comment."""
    server = set(files(PACKAGE).joinpath("frontend.tsv").read_text(encoding="utf-8").split())
    out = show.preamble(export)
    out += ["from vllm import LLM, SamplingParams", "", "llm = LLM("]
    out += [f"    {name}={value!r}," for name, value in export.args.items() if name not in server]
    out += [f"    # of a server: {n}={v!r}" for n, v in export.args.items() if n in server]
    words = ", ".join(f"{name}={value!r}" for name, value in export.requests.items())
    out += [")", f"params = SamplingParams({words})"]
    return "\n".join(out)


def _key(name: str) -> str:
    return option(key(name))


def _rows() -> Mapping[str, str]:
    return {row: said for row, (said, _) in RULES.items()}


ENGINE = Engine(
    name="vllm",
    title="vLLM",
    versions=VERSIONS,
    platforms=tuple(PLATFORMS),
    flags=flags_of,
    # A server decides them, a recipe says little of them.
    side=("max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_cache_dtype"),
    export=_export,
    effective=_effective,
    read=lines.read,
    typed=lines.typed,
    load=_load,
    formats={
        "args": _args,
        "sh": _script,
        "json": lambda export, version: show.as_mapping(export),  # noqa: ARG005
        "yaml": lambda export, version: show.as_config(export),  # noqa: ARG005
        "python": _python,
    },
    words={
        "target.model": Word("vllm serve MODEL"),
        "draft.algorithm": Word(_key("method"), "NEXTN, MTP and FROZEN_KV_MTP are mtp"),
        "draft.model": Word(_key("model")),
        "draft.num_steps": Word(_key("num_speculative_tokens"), "guesses, without the bonus token"),
        "draft.topk": Word("", "chains alone"),
        "draft.block_size": Word(
            _key("num_speculative_tokens"), "guesses: a DFLASH block less one, a DSPARK block"
        ),
        "verify.num_draft_tokens": Word(
            _key("num_speculative_tokens"), "guesses: one less than the positions verified"
        ),
        "verify.shape": Word(_key("enable_adaptive_verification"), "ragged; there are no trees"),
        "verify.accept": Word(
            f"{_key('rejection_sample_method')}, {_key('draft_sample_method')}",
            "neither: the likeliest guess, judged by the target",
        ),
        "draft.adaptive_slots": Word(
            _key("num_speculative_tokens_per_batch_size"), "one number of guesses a range"
        ),
        "draft.window_size": Word("", "read from the draft's config"),
        "run.batch_size": Word("--max-num-seqs"),
        "run.max_length": Word("--max-model-len"),
    },
    classes=("LLM", "EngineArgs", "AsyncEngineArgs"),
    spread=lines.spread,
    rows=_rows,
    installs=f"vllm=={VERSIONS[-1]}",
    package="vllm",
)
