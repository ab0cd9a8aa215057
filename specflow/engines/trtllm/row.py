"""TensorRT-LLM as a row of the table of engines."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from specflow.engines import show
from specflow.engines.base import NOTHING, Beside, Engine, Export, Import, Word, listed
from specflow.engines.flags import Flags
from specflow.engines.outcome import Effective, Refused
from specflow.engines.trtllm import lines, rules
from specflow.engines.trtllm.exports import NAME, to_args
from specflow.engines.trtllm.imports import from_args
from specflow.engines.trtllm.releases import RELEASES, SPEC, TITLE, TYPE
from specflow.engines.trtllm.rules import effective
from specflow.recipe import ResolvedRecipe

SERVER = "trtllm-serve"
# Classes of Python, by decoding type.
CLASSES = {
    "Draft_Target": "DraftTargetDecodingConfig",
    "User_Provided": "UserProvidedDecodingConfig",
    "SaveState": "SaveHiddenStatesDecodingConfig",
    "AUTO": "AutoDecodingConfig",
}


def _flags(version: str) -> Flags:
    return RELEASES[version].flags


def _export(recipe: ResolvedRecipe, version: str, platform: str) -> Export:  # noqa: ARG001
    return to_args(recipe, RELEASES[version])


def _effective(
    recipe: ResolvedRecipe,
    export: Export,
    version: str,
    platform: str,  # noqa: ARG001
) -> Effective | Refused:
    return effective(recipe, export, RELEASES[version])


def _read(text: str, version: str) -> tuple[dict[str, Any], dict[str, str]]:
    return lines.read(text, RELEASES[version])


def _typed(args: Mapping[Any, Any], version: str) -> dict[str, Any]:
    return lines.typed(args, RELEASES[version])


def _load(
    args: Mapping[str, Any], env: Mapping[str, str], version: str, beside: Beside = NOTHING
) -> Import:
    return from_args(args, env, RELEASES[version], beside)


def _made(name: str, args: dict[str, Any]) -> dict[str, Any]:
    """An object of Python as a file has it: the class of a draft is its decoding type."""
    kinds = {cls: kind for kind, cls in CLASSES.items()}
    if not name.endswith("DecodingConfig"):
        return args
    return {TYPE: kinds.get(name, name.removesuffix("DecodingConfig")), **args}


def _file(export: Export) -> str:
    """The file of `--config`: everything but the model, which the command names."""
    args = {name: value for name, value in export.args.items() if name != "model"}
    return yaml.safe_dump(args, sort_keys=False) if args else ""


def _yaml(export: Export, version: str) -> str:
    option = RELEASES[version].option
    above = [lines.served_by(SERVER, str(export.args.get("model", "MODEL")), option)]
    return "\n".join([*above, *show.variables_above(export), (_file(export) or "{}").rstrip("\n")])


def _above(text: str) -> dict[str, Any]:
    """The model, which an exported file says in a comment alone."""
    model = lines.model_above(text)
    return {"model": model} if model else {}


def _script(export: Export, version: str) -> str:
    option, file = RELEASES[version].option, _file(export)
    model = shlex.quote(str(export.args.get("model", "MODEL")))
    named = f" {option} {lines.FILE}" if file else ""
    files = {lines.FILE: file} if file else {}
    return show.script(replace(export, files=files), f"exec {SERVER} {model}{named}")


def _python(export: Export, version: str) -> str:  # noqa: ARG001 - classes are the same in all
    """Lines that make an engine in a Python program."""
    args = dict(export.args)
    spec = dict(args.pop(SPEC, {}))
    kind = str(spec.pop(TYPE, ""))
    name = CLASSES.get(kind, f"{kind}DecodingConfig")
    out = [*show.preamble(export), "from tensorrt_llm import LLM, SamplingParams"]
    out += [f"from tensorrt_llm.llmapi import {name}"] if kind else []
    out += ["", "llm = LLM("]
    out += [f"    {each}={value!r}," for each, value in args.items()]
    if kind:
        inner = ", ".join(f"{each}={value!r}" for each, value in spec.items())
        out += [f"    {SPEC}={name}({inner}),"]
    known = ", ".join(f"{each}={value!r}" for each, value in export.requests.items())
    return "\n".join([*out, ")", f"params = SamplingParams({known})"])


def _json(export: Export, version: str) -> str:  # noqa: ARG001
    """As JSON has keys: text."""
    return json.dumps(json.loads(show.as_mapping(export)), indent=2, ensure_ascii=False)


def _rows() -> Mapping[str, str]:
    return listed(rules.__doc__)


ENGINE = Engine(
    name=NAME,
    title=TITLE,
    versions=tuple(RELEASES),
    platforms=("h100", "h200", "b200", "gb200", "a100"),
    flags=_flags,
    side=("max_batch_size", "max_num_tokens", "max_seq_len", "disable_overlap_scheduler"),
    export=_export,
    effective=_effective,
    read=_read,
    typed=_typed,
    load=_load,
    formats={"yaml": _yaml, "sh": _script, "json": _json, "python": _python},
    words={
        "target.model": Word("model", "an argument of the command"),
        "draft.algorithm": Word(
            "decoding_type", "EAGLE on MTP layers alone; NGRAM another look-up"
        ),
        "draft.model": Word("speculative_model"),
        "draft.num_steps": Word("max_draft_len", "guesses; 1.2: num_nextn_predict_layers for MTP"),
        "draft.topk": Word("dynamic_tree_max_topK", "branches a step"),
        "draft.block_size": Word("max_draft_len", "guesses, the bonus token not among them"),
        "verify.num_draft_tokens": Word(
            "max_total_draft_tokens", "tokens without the root, one less than positions"
        ),
        "verify.shape": Word("use_dynamic_tree", "EAGLE3 since 1.3, MTP since 1.4"),
        "verify.accept": Word("use_rejection_sampling", "EAGLE3; else what is drawn is compared"),
        "draft.adaptive_slots": Word(
            "draft_len_schedule", "guesses by the largest batch of a range; 1.2: by the smallest"
        ),
        "draft.window_size": Word("", "of the draft's config.json"),
        "run.batch_size": Word("max_batch_size"),
        "run.max_length": Word("max_seq_len"),
    },
    classes=("LLM",),
    made=_made,
    above=_above,
    spread=lines.spread,
    rows=_rows,
    installs="tensorrt-llm",
)
