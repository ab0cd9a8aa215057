"""Two resolved recipes compared by meaning: axes, fields with origins, what a step costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specflow.constraints.accept import acceptance, lossy
from specflow.explain import columns, spelled
from specflow.provenance import Entry
from specflow.recipe import ResolvedRecipe
from specflow.stages import DRAFTS, VERIFIES

AXES = ("draft.signal", "draft.guess", "verify.shape", "commit.draft_state")


@dataclass(frozen=True)
class Change:
    """One difference: sign ~ changed, + added, - removed."""

    sign: str
    path: str
    before: Entry | None
    after: Entry | None


def changes(a: ResolvedRecipe, b: ResolvedRecipe) -> list[Change]:
    """Every field that differs in value, axes included, in the order of the ledgers."""
    out = []
    for path in dict.fromkeys((*a.ledger, *b.ledger)):
        before = a.ledger[path] if path in a else None
        after = b.ledger[path] if path in b else None
        if before is None or after is None:
            out.append(Change("+" if before is None else "-", path, before, after))
        elif before.value != after.value:
            out.append(Change("~", path, before, after))
    return out


def diff(a: ResolvedRecipe, b: ResolvedRecipe) -> str:
    """The comparison as text; "the same" where nothing differs."""
    found = changes(a, b)
    if not found:
        return f"{a.name} and {b.name} resolve to the same recipe\n"
    axes = [c for c in found if c.path in AXES]
    rest = [c for c in found if c.path not in AXES]
    lines = ["axes", *_axes(a, b)]
    if rest:
        lines += ["fields", *columns([_row(c) for c in rest])]
    lines += ["a step", *_step(a, b)]
    counts = [
        f"{sum(c.sign == s for c in rest)} {w}"
        for s, w in (("~", "changed"), ("+", "added"), ("-", "removed"))
    ]
    plural = "axis" if len(axes) == 1 else "axes"
    lines += ["", f"{len(axes)} {plural} changed; fields: {', '.join(counts)}"]
    return "\n".join(lines) + "\n"


def _axes(a: ResolvedRecipe, b: ResolvedRecipe) -> list[str]:
    rows = []
    for path in AXES:
        same = a[path] == b[path]
        rows.append(
            (" " if same else "~", path.split(".")[1], str(a[path]), "" if same else f"→ {b[path]}")
        )
    return columns(rows)


def _row(c: Change) -> tuple[str, ...]:
    before = spelled(c.before.value) if c.before else ""
    after = spelled(c.after.value) if c.after else ""
    if c.before and c.after:
        return (
            c.sign,
            c.path,
            before,
            f"→ {after}",
            f"{c.before.origin.value} → {c.after.origin.value}",
        )
    entry = c.before or c.after
    assert entry is not None
    return c.sign, c.path, before, after, f"{entry.origin.value} {entry.because}"


def _step(a: ResolvedRecipe, b: ResolvedRecipe) -> list[str]:
    def costs(r: ResolvedRecipe) -> Iterator[tuple[str, str]]:
        draft, verify, width = (
            DRAFTS[r.stages[0]],
            VERIFIES[r.stages[1]],
            r["verify.num_draft_tokens"],
        )
        yield "draft", draft.cost(r.draft)
        yield "verify", verify.doc.format(W=width, K=width - 1)
        yield "accept", acceptance(r)

    rows = []
    for (name, before), (_, after) in zip(costs(a), costs(b), strict=True):
        rows.append(
            (" " if before == after else "~", name, before, "" if before == after else f"→ {after}")
        )
    rows.append((" ", "output", _output(a, b), ""))
    return columns(rows)


def _output(a: ResolvedRecipe, b: ResolvedRecipe) -> str:
    """What a user gets from either side."""
    if (a.run.dtype, a.target.model) != (b.run.dtype, b.target.model):
        return "another target or dtype"
    if a.sampling != b.sampling:
        return "other settings of sampling: see the fields"
    if a.sampling.temperature == 0:
        return "the same tokens (greedy on both sides)"
    if lossy(a) or lossy(b):
        return "another law (a threshold below 1)"
    return "the same law (lossless on both sides)"


def as_json(a: ResolvedRecipe, b: ResolvedRecipe) -> list[dict[str, Any]]:
    """The differences as plain values."""

    def side(entry: Entry | None) -> dict[str, Any] | None:
        return None if entry is None else {"value": entry.value, "origin": entry.origin.value}

    return [
        {"sign": c.sign, "field": c.path, "before": side(c.before), "after": side(c.after)}
        for c in changes(a, b)
    ]
