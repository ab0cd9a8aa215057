"""Whether a recipe fits into a memory, told as a finding before anything is allocated."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specflow.diagnostics import Diagnostic, Label, Severity
from specflow.memory import Footprint, footprint, positions, size
from specflow.recipe import ResolvedRecipe
from specflow.rules import place_of

CODE, NAME = "SF072", "larger-than-memory"
MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B", re.IGNORECASE)
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
LARGEST = 2**60

FIT_RULES = {
    CODE: (
        NAME,
        """A recipe's weights, KV and logits fit into the memory that `validate --memory` names.

## Why
KV is allocated at once, for the longest request a recipe allows and for as many as its batch holds;
what does not fit is known before any weight is read. Weights and KV are counted in `run.dtype`, KV
over `run.max_length` and what a step touches beyond, a draft's as much of it as its window keeps.

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
do not fit, a narrower `run.dtype`, a smaller model or more memory is left.
""",
    ),
}


@dataclass(frozen=True)
class _Memory:
    """A memory, and what a recipe takes of it."""

    limit: int
    taken: Footprint
    batch: int


def parse_size(text: str) -> int | None:
    """Bytes of a size like `80GiB`, `80GB` or `16384MiB`; None where it is none."""
    match = MEMORY.fullmatch(text.strip())
    if match is None:
        return None
    base = 1024 if match[3] else 1000
    count = float(match[1]) * base ** POWERS[match[2].upper()]
    return int(count) if 1 <= count <= LARGEST else None


def fits(recipe: ResolvedRecipe, memory: int) -> list[Diagnostic]:
    """What is wrong with running a recipe in so many bytes; nothing where it fits.

    What is not known of its models is a note: it can then not be told.
    """
    found = _Memory(memory, footprint(recipe), recipe.run.batch_size)
    total = found.taken.total(found.batch)
    if total is None:
        message = f"whether it fits into {size(memory)} cannot be told"
        return [Diagnostic(CODE, NAME, Severity.NOTE, message, notes=found.taken.unknown)]
    return [] if total <= memory else [_too_large(recipe, found, total)]


def _too_large(recipe: ResolvedRecipe, found: _Memory, total: int) -> Diagnostic:
    taken, batch = found.taken, found.batch
    requests = f"{batch} request{'s' if batch > 1 else ''}"
    whole, target = taken.weights or 0, taken.target_weights or 0
    weights = f"target {size(target)}, draft {size(whole - target)}" if whole > target else "target"
    share = f", of which the draft {size(taken.draft_kv)}" if taken.draft_kv else ""
    kept = f"KV of {positions(recipe)} positions {size(taken.kv_a_request or 0)}{share}"
    notes = (
        f"weights take {size(whole)}: {weights}",
        f"a request takes {size(taken.a_request or 0)}: {kept}; logits {size(taken.logits)}",
    )
    return Diagnostic(
        CODE,
        NAME,
        Severity.ERROR,
        f"{requests} and the weights take {size(total)}, more than {size(found.limit)}",
        labels=_labels(recipe),
        notes=notes,
        help=_way_out(recipe, found),
    )


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


def _way_out(recipe: ResolvedRecipe, found: _Memory) -> str:
    """The largest batch; else the longest request; else less weight."""
    largest = found.taken.largest_batch(found.limit)
    if largest:
        return f"lower `run.batch_size` to {largest}, or lower `run.max_length`"
    longest = _longest(recipe, found)
    if longest >= 2:
        one = ", with `run.batch_size: 1`" if found.batch > 1 else ""
        return f"lower `run.max_length` to {longest}{one}"
    narrower = "`run.dtype: bfloat16`, " if recipe.run.dtype == "float32" else ""
    return f"not even the weights leave room for a request: {narrower}a smaller model, more memory"


def _longest(recipe: ResolvedRecipe, found: _Memory) -> int:
    """The most positions of a single request that fit, below 2 for none."""
    room = found.limit - (found.taken.weights or 0) - found.taken.logits
    beyond = positions(recipe) - recipe.run.max_length
    a_token = found.taken.kv_a_token or 0
    # A draft with a window keeps no more than this, and maybe less: the bound is on the safe side.
    return min(room // a_token - beyond, recipe.run.max_length) if a_token and room > 0 else 0
