"""A ledger as a table: every field, its value, who set it and why."""

from __future__ import annotations

from typing import Any

from specflow.columns import columns
from specflow.diagnostics import closest
from specflow.memory import draft_kv, draft_kv_text
from specflow.provenance import Entry, Ledger, Origin
from specflow.recipe import ResolvedRecipe
from specflow.stages import COMMITS, DRAFTS, VERIFIES, Table, rows_with
from specflow.tables import ENGINE_NAMES

COLUMNS = ("field", "value", "origin", "because")


def explain(recipe: ResolvedRecipe) -> str:
    """The recipe as text: axes, fields with what they replaced, how many each origin decided."""
    axes = recipe.axes
    rows = [row for path in recipe.ledger for row in history(recipe.ledger, path)]
    counts = ", ".join(f"{n} {origin}" for origin, n in recipe.ledger.counts().items())
    point = " · ".join(
        f"{axis} {getattr(axes, axis)}" for axis in ("signal", "guess", "shape", "draft_state")
    )
    more = "`--format json` for machines, `explain … draft.algorithm` for one field's history."
    lines = [recipe.name, "", point, "", *columns([COLUMNS, *rows]), "", f"{counts}. {more}"]
    lines += [*draft_kv_text(recipe), *plan_text(recipe), *recorded(recipe)]
    return "\n".join(lines) + "\n"


def plan_text(recipe: ResolvedRecipe) -> list[str]:
    """What decides how much is verified, where a recipe could plan it."""
    if recipe.axes.shape != "ragged":
        return []
    from specflow.stages.verify_ragged import STATIC, planned  # no other recipe loads it

    width = recipe["verify.num_draft_tokens"]
    if not planned(recipe):
        why = "`mode: static`" if recipe["verify.mode"] == STATIC else "no cost table"
        return [f"plan: none ({why}), so all {width} positions of every request are verified."]
    told = {"head": "the draft's confidence head", "average": "past acceptance by position"}
    lag = recipe["verify.lag_steps"]
    ago = f"{lag} step{'s' if lag > 1 else ''} ago"
    note = recipe.facts.cost.value.note
    costs = recipe["verify.cost_table"] + (f" ({note})" if note else "")
    goes = f"by {told[recipe['verify.confidence']]} {ago} and the costs in {costs}"
    return [
        f"plan: 1 to {width} positions a request; how many the batch may verify goes {goes};",
        "whose they are goes by what each guess is told now, from what stands before it.",
    ]


def recorded(recipe: ResolvedRecipe) -> list[str]:
    """A word on each model that is not here: what is known of it, and from where."""
    found = (recipe.facts[block] for block in ("target", "draft"))
    return [
        f"{facts.model} is not on this machine; its facts are recorded ({facts.recorded})."
        for facts in found
        if facts.recorded
    ]


def explain_field(recipe: ResolvedRecipe, path: str) -> str:
    """One field: what is in force, what it replaced, what the field is for."""
    block = path.split(".", maxsplit=1)[0]
    fields = getattr(recipe, block, None)
    info = type(fields).model_fields.get(path.partition(".")[2]) if fields is not None else None
    lines = columns([COLUMNS, *history(recipe.ledger, path)])
    if info is not None and info.description:
        lines += ["", info.description]
    return "\n".join(lines) + "\n"


def no_field(recipe: ResolvedRecipe, path: str) -> tuple[str, str]:
    """What a word is that is no field of a recipe, and the way out.

    It may be what an engine calls a field, the last part of one, or a field of another stage.
    """
    message = f"`{path}` is not a field of {recipe.name}"
    name = path.lstrip("-").replace("-", "_")
    last = name.rpartition(".")[2]
    theirs = next((n for n in (last, f"speculative_{last}") if n in ENGINE_NAMES), "")
    ours = [ENGINE_NAMES[theirs]] if theirs else []
    meant = [*ours, *(p for p in recipe.ledger if p.endswith(f".{last}"))]
    known = list(dict.fromkeys(p for p in meant if p in recipe))
    if known:
        called = f" (`--{theirs.replace('_', '-')}` of other engines)" if known == ours else ""
        return message, f"did you mean `{'` or `'.join(known)}`{called}?"
    holders = _holders(ours[0] if ours else name)
    if holders:
        goes = " or ".join(f"`{key}: {', '.join(rows)}`" for key, rows in holders)
        key, rows = holders[0]
        offer = f"name a recipe that has it, or write `{key}: {rows[0]}`"
        return f"{message}; it goes with {goes}", offer
    near = closest(name, recipe.ledger) or list(recipe.ledger)
    return message, f"did you mean {' or '.join(f'`{p}`' for p in near[:3])}?"


def _holders(path: str) -> list[tuple[str, list[str]]]:
    """What a recipe writes to have a field that it lacks: the key, and any of the rows."""
    block, _, name = path.rpartition(".")
    keys = {"draft": "draft.algorithm", "verify": "verify.shape", "commit": "commit.draft_state"}
    stages: dict[str, Table[Any]] = {"draft": DRAFTS, "verify": VERIFIES, "commit": COMMITS}
    found = [
        (keys[each], rows_with(table, name))
        for each, table in stages.items()
        if block in ("", each)
    ]
    return [(key, rows) for key, rows in found if rows]


def history(ledger: Ledger, path: str) -> list[tuple[str, str, str, str]]:
    """A field's rows: the entry in force, then the ones it replaced under an empty field name."""
    rows = []
    for i, entry in enumerate(ledger.history(path)):
        unused = (
            ", not used"
            if i and entry.origin in (Origin.DEFAULT, Origin.DERIVED, Origin.CHECKPOINT)
            else ""
        )
        rows.append(
            (
                path if not i else "",
                spelled(entry.value),
                entry.origin.value,
                entry.because + unused,
            )
        )
    return rows


def spelled(value: Any) -> str:
    """A value as YAML has it, long paths shortened from the left."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(spelled(v) for v in value) + "]"
    text = str(value)
    if not text:
        return '""'
    return text if len(text) <= 40 else "…" + text[-39:]


def as_json(recipe: ResolvedRecipe) -> dict[str, Any]:
    """The ledger as plain values: by field, the entry in force and the ones under it."""
    return {
        "recipe": recipe.name,
        "fingerprint": recipe.fingerprint,
        "axes": vars(recipe.axes),
        "draft_kv": _memory(recipe),
        "fields": {
            path: [_entry(e) for e in recipe.ledger.history(path)] for path in recipe.ledger
        },
    }


def _memory(recipe: ResolvedRecipe) -> dict[str, Any] | None:
    """Bytes of a block draft's keys and values, with its window and without."""
    kept = draft_kv(recipe)
    return None if kept is None else {"bytes": kept.bytes, "bytes_without_window": kept.bytes_whole}


def _entry(entry: Entry) -> dict[str, Any]:
    out = {"value": entry.value, "origin": entry.origin.value, "because": entry.because}
    if entry.place is not None:
        span = entry.place.value
        out |= {"file": span.source.name, "line": span.line, "column": span.column}
    return out
