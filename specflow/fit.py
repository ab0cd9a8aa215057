"""Whether a recipe fits into a memory, told as a finding before anything is allocated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from specflow.deployed import Deployment, share
from specflow.diagnostics import Diagnostic, Label, Severity
from specflow.memory import Footprint, footprint, positions, size, sizes_apart
from specflow.recipe import ResolvedRecipe
from specflow.rules import place_of

CODE, NAME = "SF072", "larger-than-memory"
MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B", re.IGNORECASE)
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
LARGEST = 2**60
# What a recipe is judged for, in words.
ASSUMED = {
    "batch_size": "a batch of",
    "max_length": "a length of",
    "dtype": "a dtype of",
    "device": "a device of",
}

FIT_RULES = {
    CODE: (
        NAME,
        """A recipe's weights, KV and logits fit into the memory that `validate --memory` names.

## Why
KV is allocated at once, for the longest request a recipe allows and for as many as its batch holds;
what does not fit is known before any weight is read. For specflow's own engine weights and KV are
counted in `run.dtype` on one machine, KV over `run.max_length` and what a step touches beyond, a
draft's as much of it as its window keeps. With `--engine` one GPU's share is estimated: weights as
they are stored, and layers, experts and KV heads divided as that engine's flags say.

## Example
```sh
specflow validate pico/standalone run.batch_size=64 --memory 256MiB
```

Use instead:
```sh
specflow validate pico/standalone run.batch_size=32 --memory 256MiB
```

## Fix
Lower `run.batch_size` to what the finding says fits, or `run.max_length`; where the weights alone
do not fit, an engine on more GPUs, a narrower `run.dtype`, a smaller model or more memory is left.
""",
    ),
}


@dataclass(frozen=True)
class Fit:
    """A memory, and what a recipe takes of it: on one machine, or on one GPU of an engine's.

    batch  requests that are decoded on it at once
    by     how an engine lays the model out; None for specflow's own
    """

    recipe: ResolvedRecipe
    limit: int
    taken: Footprint
    batch: int
    by: Deployment | None = None

    @property
    def total(self) -> int | None:
        """What is taken; None where it is not known."""
        return self.taken.total(self.batch)

    @property
    def largest(self) -> int:
        """The most requests that `run.batch_size` may say."""
        many = self.by.groups if self.by is not None and self.by.spread else 1
        return (self.taken.largest_batch(self.limit) or 0) * many


def parse_size(text: str) -> int | None:
    """Bytes of a size like `80GiB`, `80GB` or `16384MiB`; None where it is none."""
    match = MEMORY.fullmatch(text.strip())
    if match is None:
        return None
    base = 1024 if match[3] else 1000
    count = float(match[1]) * base ** POWERS[match[2].upper()]
    return int(count) if 1 <= count <= LARGEST else None


def judged(recipe: ResolvedRecipe, memory: int, by: Deployment | None = None) -> Fit:
    """A recipe held against so many bytes of one machine, or of each GPU of an engine."""
    batch = recipe.run.batch_size
    if by is None:
        return Fit(recipe, memory, footprint(recipe), batch)
    return Fit(recipe, memory, share(recipe, by), by.requests(batch), by)


def fits(recipe: ResolvedRecipe, memory: int, by: Deployment | None = None) -> list[Diagnostic]:
    """What is wrong with running a recipe in so many bytes; nothing where it fits.

    What is not known of its models is a note: it can then not be told.
    """
    return findings(judged(recipe, memory, by))


def findings(found: Fit) -> list[Diagnostic]:
    """The same of a recipe that is held against a memory already."""
    if found.total is None:
        message = f"whether it fits into {size(found.limit)} cannot be told"
        return [Diagnostic(CODE, NAME, Severity.NOTE, message, notes=found.taken.unknown)]
    return [] if found.total <= found.limit else [_too_large(found, found.total)]


def told(found: Fit) -> list[str]:
    """What a recipe that fits takes, leaves and was taken to be."""
    total = found.total
    if total is None or total > found.limit:
        return []
    left = f"{size(found.limit - total)} are left"
    largest = f"the largest `run.batch_size` is {found.largest}"
    taken = f"fits: {_taker(found)} {size(total)} of {size(found.limit)}; {left}, {largest}"
    return [taken, *_notes(found)]


def as_json(found: Fit) -> dict[str, Any]:
    """The same as plain values, whether or not it fits."""
    taken, run, by = found.taken, found.recipe.run, found.by
    return {
        "memory": found.limit,
        "total": found.total,
        "fits": None if found.total is None else found.total <= found.limit,
        "largest_batch": None if found.total is None else found.largest,
        "weights": taken.weights,
        "weights_as_stored": taken.weights if by is not None else taken.stored,
        "kv_a_request": taken.kv_a_request,
        "kv_a_request_windows_alone": taken.windowed,
        "gpus": 1 if by is None else by.gpus,
        "assumed": {name: getattr(run, name) for name in ASSUMED},
    }


def _taker(found: Fit) -> str:
    """Who takes the memory, as the start of a sentence."""
    requests = f"{found.batch} request{'s' if found.batch > 1 else ''}"
    if found.by is None or found.by.gpus == 1:
        return f"{requests} and the weights take"
    return f"on each of {found.by.gpus} GPUs {requests} and a part of the weights take"


def _too_large(found: Fit, total: int) -> Diagnostic:
    limit, more = sizes_apart(found.limit, total)
    return Diagnostic(
        CODE,
        NAME,
        Severity.ERROR,
        f"{_taker(found)} {more}, more than {limit}",
        labels=_labels(found.recipe),
        notes=tuple(_notes(found)),
        help=_way_out(found),
    )


def _notes(found: Fit) -> Iterator[str]:
    """What the memory is taken by, and what was assumed."""
    recipe, taken, by = found.recipe, found.taken, found.by
    whole, target = taken.weights or 0, taken.target_weights or 0
    weights = f"target {size(target)}, draft {size(whole - target)}" if whole > target else "target"
    share_of = f", of which the draft {size(taken.draft_kv)}" if taken.draft_kv else ""
    kept = f"KV of {positions(recipe)} positions {size(taken.kv_a_request or 0)}{share_of}"
    yield f"weights take {size(whole)}{_kept_as(found)}: {weights}"
    yield f"a request takes {size(taken.a_request or 0)}: {kept}; logits {size(taken.logits)}"
    if by is None and taken.stored is not None and taken.stored != whole:
        yield f"as they are stored the weights are {size(taken.stored)}; `--engine` goes by that"
    if by is None and taken.windowed is not None and taken.windowed < (taken.kv_a_request or 0):
        engine = f"an engine that keeps windows alone takes {size(taken.windowed)}"
        yield f"specflow's own pool keeps the KV of all positions; {engine}"
    if by is not None and by.windows and (taken.whole or 0) > (taken.kv_a_request or 0):
        whole_kv = size(taken.whole or 0)
        yield f"KV is counted as if windows alone were kept; of all positions it is {whole_kv}"
    if by is not None:
        yield f"an estimate of {_layout(by)}"
    told_of = ", ".join(
        f"{words} {recipe[f'run.{name}']} (`run.{name}`, {_origin(recipe, name)})"
        for name, words in ASSUMED.items()
        if by is None or name != "dtype"
    )
    yield f"judged for {told_of}" + (f", KV of {by.kv_width} bytes a number" if by else "")


def _kept_as(found: Fit) -> str:
    """What weights are counted in."""
    by = found.by
    if by is None:
        return f" in {found.recipe.run.dtype}"
    return f" in {by.dtype}, where they are not quantised" if by.dtype else " as they are stored"


def _layout(by: Deployment) -> str:
    """How an engine cuts a model, in words."""
    if by.gpus == 1:
        return f"one GPU of {by.engine}" + (f"; `{by.flag}` takes more" if by.flag else "")
    parts = [f"layers over {by.tensor} (`{by.flag}`)"]
    parts += [f"in {by.pipeline} parts"] if by.pipeline > 1 else []
    parts += [f"experts over {by.experts}"] if by.experts > by.tensor else []
    parts += [f"attention in {by.groups} groups"] if by.groups > 1 else []
    return f"one GPU's share at {by.engine}: {', '.join(parts)}"


def _origin(recipe: ResolvedRecipe, name: str) -> str:
    entry = recipe.ledger[f"run.{name}"]
    return str(entry.origin.value)


def _labels(recipe: ResolvedRecipe) -> tuple[Label, ...]:
    """What decides how much is taken, where somebody wrote it."""
    told = {
        "run.batch_size": "requests at once",
        "run.max_length": "positions of a request",
        "target.model": "its weights",
    }
    places = [(place_of(path, recipe), text) for path, text in told.items()]
    written = [(place, text) for place, text in places if place is not None]
    return tuple(Label(p.value, text, i == 0) for i, (p, text) in enumerate(written))


def _way_out(found: Fit) -> str:
    """The largest batch; else the longest request; else less weight on each machine."""
    largest = found.largest
    if largest:
        return f"lower `run.batch_size` to {largest}, or lower `run.max_length`{_or_wider(found)}"
    longest = _longest(found)
    if longest >= 2:
        one = ", with `run.batch_size: 1`" if found.recipe.run.batch_size > 1 else ""
        return f"lower `run.max_length` to {longest}{one}{_or_wider(found)}"
    wider = _wider(found)
    offers = [f"`{wider}`"] if wider else []
    if found.by is None:
        offers += ["`run.dtype: bfloat16`"] if found.recipe.run.dtype == "float32" else []
        offers += ["`--engine` for one that takes several GPUs"]
    said = ", ".join([*offers, "a smaller model, more memory"])
    return f"not even the weights leave room for a request: {said}"


def _or_wider(found: Fit) -> str:
    wider = _wider(found)
    return f", or write `{wider}`" if wider else ""


def _wider(found: Fit) -> str:
    """The fewest GPUs to a layer that it fits on, as a field; empty where none are known to do."""
    by = found.by
    if by is None or not by.flag:
        return ""
    for times in (2, 4, 8, 16, 32):
        groups = by.groups * times if by.groups == by.tensor > 1 else by.groups
        more = replace(
            by,
            tensor=by.tensor * times,
            groups=groups,
            experts=by.experts * times,
            draft=by.draft * times if by.draft == by.tensor else by.draft,
        )
        total = judged(found.recipe, found.limit, more).total
        if total is not None and total <= found.limit:
            return f"{by.flag}: {more.tensor}"
    return ""


def _longest(found: Fit) -> int:
    """The most positions of a single request that fit, below 2 for none."""
    recipe = found.recipe
    room = found.limit - (found.taken.weights or 0) - found.taken.logits
    beyond = positions(recipe) - recipe.run.max_length
    a_token = found.taken.kv_a_token or 0
    # A window keeps no more than this, and maybe less: the bound is on the safe side.
    return min(room // a_token - beyond, recipe.run.max_length) if a_token and room > 0 else 0
