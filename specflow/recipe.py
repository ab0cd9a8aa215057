"""A recipe before and after it is resolved, and the fields every recipe has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict

from specflow.diagnostics import Diagnostic
from specflow.facts import Facts
from specflow.provenance import Ledger
from specflow.spans import Place, Source

BLOCKS = ("target", "draft", "verify", "commit", "sampling", "run", "engine")
STAND_IN = "stand_in"  # key of the small model that `--stand-in` takes instead of `model`

# A YAML list becomes a tuple, so that a resolved recipe is frozen to the bottom; its items stay
# strict.
Pair = Annotated[tuple[int, int], Strict(strict=False)]


def _pairs(value: Any) -> Any:
    """A mapping as pairs, so that it is frozen; keys of a recipe are text."""
    if not isinstance(value, Mapping):
        return value
    return [(int(key) if str(key).isdecimal() else key, each) for key, each in value.items()]


def _distinct(slots: tuple[tuple[int, Any], ...]) -> tuple[tuple[int, Any], ...]:
    """No batch size has two slots: one of them would be ignored."""
    sizes = [size for size, _ in slots]
    if len(set(sizes)) < len(sizes):
        raise ValueError("expected each batch size once")
    return slots


Counts = Annotated[
    tuple[Annotated[int, Strict(), Ge(0), Le(63)], ...], Strict(strict=False), MinLen(1)
]
Slot = Annotated[tuple[Annotated[int, Strict(), Ge(1)], Counts], Strict(strict=False)]
# Batch size -> numbers of steps; a mapping in YAML, pairs from there on.
Slots = Annotated[
    tuple[Slot, ...],
    Strict(strict=False),
    MinLen(1),
    BeforeValidator(_pairs),
    AfterValidator(_distinct),
]
Layers = Annotated[
    tuple[Annotated[int, Strict(), Ge(0)], ...], Strict(strict=False), MinLen(1), MaxLen(16)
]
Words = Annotated[tuple[Annotated[str, MinLen(1)], ...], Strict(strict=False)]


@dataclass(frozen=True)
class Recipe:
    """What a user wrote; nothing decided.

    written     nested plain values, after `extends`, overrides and interpolation
    places      dotted path -> spans of key and value
    overridden  dotted paths that an override set
    allow       rule codes silenced in the file (warnings only)
    """

    name: str
    written: Mapping[str, Any]
    places: Mapping[str, Place]
    overridden: frozenset[str]
    allow: frozenset[str]
    sources: tuple[Source, ...]
    path: Path | None

    def file(self, path: str, name: str) -> Path:
        """A file that a field names: beside whoever wrote it, or from where a command is run."""
        place = self.places.get(path)
        if place is None or path in self.overridden:
            return Path(name)
        return Path(place.value.source.name).parent / name


class Fields(BaseModel):
    """What a block of a recipe may say: typed, frozen, nothing unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


def field(
    doc: str,
    *,
    default: Any = ...,
    derive: str = "",
    table: str = "",
    unsaid: str = "",
    **limits: Any,
) -> Any:
    """A recipe field: its manual, and the one home of its default.

    default  a constant
    derive   the formula, in words; the stage computes it
    table    a table of `specflow.tables`, looked up by the target's architecture
    unsaid   a word that says as much as none
    limits   pydantic's own: ge, le, gt, lt, min_length
    """
    extra = {"derive": derive, "table": table, "unsaid": unsaid}
    if derive or table:
        default = None  # never seen: resolve fills the field before it is read
    return Field(default, description=doc, json_schema_extra=dict(extra), **limits)


def home(fields: type[Fields], name: str) -> dict[str, str]:
    """Where a field's default lives: {"derive": ..., "table": ...}, both empty for a constant.

    And `unsaid`, the word that asks for it as if nothing were written.
    """
    extra = fields.model_fields[name].json_schema_extra
    return (
        {k: str(v) for k, v in extra.items()}
        if isinstance(extra, dict)
        else {"derive": "", "table": "", "unsaid": ""}
    )


def says_nothing(fields: type[Fields], name: str, value: Any) -> bool:
    """Whether what is written for a field is the word that says as much as none."""
    return value != "" and name in fields.model_fields and value == home(fields, name)["unsaid"]


class TargetFields(Fields):
    """The big model whose output is kept."""

    model: str = field(
        "Folder of a checkpoint (safetensors), a GGUF file, or builtin:NAME.", min_length=1
    )


class AcceptFields(Fields):
    """What every verify shape may say about acceptance."""

    accept: Literal["greedy", "target_only", "rejection", "block"] = field(
        "How guesses are accepted: greedy (temperature 0), target_only (any guesses), rejection or "
        "block (by the law they were drawn from).",
        derive="by temperature, and by whether guesses have a law",
    )
    threshold_single: float = field(
        "target_only: a guess at least this likely is accepted outright; below 1 it is lossy.",
        default=1.0,
        gt=0,
        le=1,
    )
    threshold_acc: float = field(
        "target_only: divides the running chance of siblings; below 1 it is lossy.",
        default=1.0,
        gt=0,
        le=1,
    )


class SamplingFields(Fields):
    """What a completion is drawn from, how long it is and what ends it."""

    temperature: float = field("0 takes the likeliest token.", default=0.0, ge=0, le=100)
    top_k: int = field("Likeliest tokens to keep; 0 keeps all.", default=0, ge=0, le=2**31)
    top_p: float = field("Likeliest mass to keep; 1 keeps all.", default=1.0, gt=0, le=1)
    min_p: float = field(
        "Least share of the likeliest token's chance to keep; 0 keeps all.", default=0.0, ge=0, le=1
    )
    seed: int = field("Makes each request's coins, with its id.", default=0, ge=0, lt=2**63)

    max_new_tokens: int = field("Tokens a completion may have.", default=128, ge=1, le=2**31)
    ignore_eos: bool = field("Go on past the end-of-text token.", default=False)
    stop: Words = field("Strings that end a completion; they are not part of it.", default=())

    @property
    def cuts(self) -> bool:
        """Whether the law is cut to its likeliest tokens."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


class RunFields(Fields):
    """Where and how the step runs."""

    device: Literal["cpu", "cuda"] = field("Device of models and state.", default="cpu")
    dtype: Literal["float32", "bfloat16", "float16"] = field(
        "Type of weights and KV.",
        derive="on cuda as the weights are stored, if in bfloat16 or float16; else float32",
    )
    batch_size: int = field("Requests decoded at once.", default=1, ge=1, le=256)
    max_length: int = field(
        "KV positions a request may fill.", derive="min(target's context, 2048)", ge=2, le=2**24
    )
    prefill_chunk: int = field(
        "Prompt tokens a prefill forward takes.", default=512, ge=1, le=2**24
    )
    prompts: str = field(
        "Prompts (JSONL) to run where none are given, relative to the recipe.", default=""
    )
    attention: Literal["sdpa", "triton", "flashinfer"] = field(
        "Who computes attention: sdpa (torch), triton (a kernel of specflow), flashinfer.",
        derive="triton on cuda, sdpa on a CPU and where inductor compiles",
    )
    graph: Literal["on", "off"] = field(
        "Capture each step as a CUDA graph, or launch its kernels one by one; `auto` is what the "
        "device allows.",
        derive="on on cuda, off on a CPU",
        unsaid="auto",
    )
    compile: Literal["none", "inductor"] = field(
        "Compile each step whole: inductor makes kernels of its own of the torch spelling, and a "
        "graph captures those.",
        default="none",
    )
    load_format: Literal["auto", "dummy"] = field(
        "Where weights are from: auto reads the checkpoint; dummy makes random ones of the sizes "
        "that config.json says, to measure speed without a checkpoint.",
        default="auto",
    )
    threads: int = field(
        "CPU threads of a forward; 0 leaves torch's own choice.", default=0, ge=0, le=256
    )


@dataclass(frozen=True)
class Axes:
    """A point of the four axes: what a guess rests on, how, what is verified, how drafts go on."""

    signal: str
    guess: str
    shape: str
    draft_state: str


@dataclass(frozen=True)
class ResolvedRecipe:
    """Nothing left to decide: every field has a value, and the ledger says why.

    stages    table rows in force: draft, verify, commit
    facts     what the checkpoints say of themselves
    engine    flags for other engines, by engine and by their own names; no step depends on them
    findings  warnings that do not stop it
    """

    name: str
    axes: Axes
    stages: tuple[str, str, str]
    target: TargetFields
    draft: Fields
    verify: Fields
    commit: Fields
    sampling: SamplingFields
    run: RunFields
    ledger: Ledger
    facts: Facts
    engine: Mapping[str, Mapping[str, Any]] = dataclass_field(default_factory=dict)
    findings: tuple[Diagnostic, ...] = ()
    useless_allow: tuple[str, ...] = ()

    def __getitem__(self, path: str) -> Any:
        return self.ledger[path].value

    def __contains__(self, path: object) -> bool:
        return path in self.ledger

    def stands_in(self, block: str) -> bool:
        """Whether the model of a block is the small one that `--stand-in` put there."""
        path = f"{block}.model"
        place = self.ledger[path].place if path in self.ledger else None
        return place is not None and place.key is not None and place.key.text == STAND_IN

    @property
    def fingerprint(self) -> str:
        """Eight hex digits of every value a step depends on; the same recipe has the same twice."""
        stepped = {block: values for block, values in dump(self).items() if block != "engine"}
        del stepped["run"]["load_format"]  # a step is the same whatever its models hold
        return hashlib.sha256(json.dumps(stepped, sort_keys=True).encode()).hexdigest()[:8]


def dump(recipe: ResolvedRecipe) -> dict[str, Any]:
    """The resolved recipe as plain nested values; loading it again resolves to the same."""
    out: dict[str, Any] = {"recipe": recipe.name}
    for path in recipe.ledger:
        block, _, key = path.partition(".")
        if block == "engine":
            continue  # its keys are nested, as they were written
        value = recipe[path]
        out.setdefault(block, {})[key] = list(value) if isinstance(value, tuple) else value
    if recipe.engine:
        out["engine"] = {name: dict(flags) for name, flags in recipe.engine.items()}
    return out
