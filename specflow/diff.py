"""Two resolved recipes compared by meaning: axes, fields with origins, what a step costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specflow.columns import columns
from specflow.constraints.accept import acceptance, lossy
from specflow.cost import StepCost, step_cost
from specflow.explain import spelled
from specflow.memory import size
from specflow.provenance import Entry, Origin
from specflow.recipe import ResolvedRecipe
from specflow.stages import DRAFTS, VERIFIES

AXES = ("draft.signal", "draft.guess", "verify.shape", "commit.draft_state")
BY_HAND = (Origin.USER, Origin.OVERRIDE)
NOT_WRITTEN = "not written"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Change:
    """One difference: sign ~ changed, + added, - removed."""

    sign: str
    path: str
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True)
class Said:
    """A field, or a flag, that is written differently, and means the same."""

    path: str
    before: str
    after: str
    means: str


@dataclass(frozen=True)
class Ran:
    """What an engine was asked to run, and what it runs: flags and variables by name."""

    asked: Mapping[str, Any]
    env: Mapping[str, str]
    runs: Mapping[str, Any]


@dataclass(frozen=True)
class Sides:
    """What an engine makes of either recipe."""

    title: str
    flags: tuple[tuple[str, Any, Any], ...]
    asked: tuple[Said, ...]


@dataclass(frozen=True)
class Comparison:
    """Two recipes side by side.

    changes  fields that differ in value
    textual  fields that are written differently and have the same value
    sides    an engine's flags, where one is asked for: what differs there is what counts
    """

    a: ResolvedRecipe
    b: ResolvedRecipe
    changes: tuple[Change, ...]
    textual: tuple[Said, ...]
    sides: Sides | None = None
    costs: tuple[StepCost, StepCost] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", (step_cost(self.a), step_cost(self.b)))

    @property
    def differs(self) -> bool:
        """Whether anything effective is different."""
        return bool(self.sides.flags if self.sides is not None else self.changes)


def compared(a: ResolvedRecipe, b: ResolvedRecipe, sides: Sides | None = None) -> Comparison:
    """Two recipes side by side."""
    return Comparison(a, b, tuple(changes(a, b)), tuple(textual(a, b)), sides)


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


def textual(a: ResolvedRecipe, b: ResolvedRecipe) -> Iterator[Said]:
    """Every field that has one value on both sides, and was not written alike."""
    for path in a.ledger:
        if path not in b or a[path] != b[path]:
            continue
        before, after = _written(a, path), _written(b, path)
        if before != after:
            yield Said(path, before, after, spelled(a[path]))


def _written(recipe: ResolvedRecipe, path: str) -> str:
    """What somebody wrote for a field, which an alias may have replaced."""
    wrote = [e for e in recipe.ledger.history(path) if e.origin in BY_HAND]
    return spelled(wrote[0].value) if wrote else NOT_WRITTEN


def at_engine(title: str, a: Ran, b: Ran) -> Sides:
    """What an engine runs of either side, and what was asked differently and runs alike."""
    flags, asked = [], []
    for name in dict.fromkeys((*a.runs, *b.runs)):
        values = (a.runs.get(name), b.runs.get(name))
        wanted = [spelled(r.asked[name]) if name in r.asked else NOT_WRITTEN for r in (a, b)]
        if values[0] != values[1]:
            flags.append((name, *values))
        elif wanted[0] != wanted[1]:
            asked.append(Said(name, wanted[0], wanted[1], spelled(values[0])))
    for name in dict.fromkeys((*a.env, *b.env)):
        variables = (a.env.get(name), b.env.get(name))
        if variables[0] != variables[1]:
            flags.append((name, *variables))
    return Sides(title, tuple(flags), tuple(asked))


def diff(both: Comparison) -> str:
    """The comparison as text."""
    a, b = both.a, both.b
    if not both.differs and not both.changes:
        lines = [f"{a.name} and {b.name} resolve to the same recipe"]
        return "\n".join([*lines, *_apart(both)]) + "\n"
    axes = [c for c in both.changes if c.path in AXES]
    rest = [c for c in both.changes if c.path not in AXES]
    lines = ["axes", *_axes(a, b)]
    if rest:
        lines += ["fields", *columns([_row(c) for c in rest])]
    lines += ["a step", *_pairs(_words(a), _words(b)), *_pairs(*map(_figures, both.costs))]
    lines += [*columns([(" ", "output", output(a, b))])]
    lines += [*_engine(both.sides), *_apart(both), "", _total(both, axes, rest)]
    return "\n".join(lines) + "\n"


def _total(both: Comparison, axes: Sequence[Change], rest: Sequence[Change]) -> str:
    counts = [
        f"{sum(c.sign == s for c in rest)} {w}"
        for s, w in (("~", "changed"), ("+", "added"), ("-", "removed"))
    ]
    plural = "axis" if len(axes) == 1 else "axes"
    said = f"{len(axes)} {plural} changed; fields: {', '.join(counts)}"
    if both.sides is not None:
        many = len(both.sides.flags)
        said += f"; {both.sides.title} runs {many or 'no'} flag{'' if many == 1 else 's'} otherwise"
    return said


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


def _words(r: ResolvedRecipe) -> dict[str, str]:
    """What a step does, in the words of its stages."""
    width = r["verify.num_draft_tokens"]
    return {
        "draft": DRAFTS[r.stages[0]].cost(r.draft),
        "verify": VERIFIES[r.stages[1]].doc.format(W=width, K=width - 1),
        "accept": acceptance(r),
    }


def _figures(cost: StepCost) -> dict[str, str]:
    """What a step takes, in numbers; where a size is not known, it is said so."""

    def amount(count: int | None) -> str:
        return UNKNOWN if count is None else size(count)

    least, most = cost.verified_positions
    return {
        "draft forwards": str(cost.draft_forwards),
        "verified positions": str(most) if least == most else f"{least} to {most}",
        "launches": str(cost.launches),
        "bytes read": f"{amount(cost.step_bytes)} (batch {cost.batch}, {cost.context} tokens in)",
        "weights": amount(cost.weight_bytes),
        "KV of a token": amount(cost.kv_bytes_a_token),
        "memory": amount(cost.memory_bytes),
    }


def _pairs(before: dict[str, str], after: dict[str, str]) -> list[str]:
    rows = []
    for name, was in before.items():
        same = was == after[name]
        rows.append((" " if same else "~", name, was, "" if same else f"→ {after[name]}"))
    return columns(rows)


def output(a: ResolvedRecipe, b: ResolvedRecipe) -> str:
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


def _engine(sides: Sides | None) -> list[str]:
    """The flags that an engine runs otherwise."""
    if sides is None:
        return []
    if not sides.flags:
        return [sides.title, "  runs the same of both"]
    rows = [
        ("~", name, spelled(before), f"→ {spelled(after)}") for name, before, after in sides.flags
    ]
    return [sides.title, *columns(rows)]


def _apart(both: Comparison) -> list[str]:
    """What is written otherwise and is the same."""
    said = (*both.textual, *(both.sides.asked if both.sides is not None else ()))
    if not said:
        return []
    rows = [(" ", s.path, s.before, f"| {s.after}", f"both {s.means}") for s in said]
    return ["in the text alone", *columns(rows)]


def as_json(both: Comparison) -> dict[str, Any]:
    """The comparison as plain values."""

    def side(entry: Entry | None) -> dict[str, Any] | None:
        return None if entry is None else {"value": entry.value, "origin": entry.origin.value}

    def told(c: Change) -> dict[str, Any]:
        return {"sign": c.sign, "field": c.path, "before": side(c.before), "after": side(c.after)}

    a, b = both.a, both.b
    shown: dict[str, Any] = {
        "differs": both.differs,
        "axes": [told(c) for c in both.changes if c.path in AXES],
        "fields": [told(c) for c in both.changes if c.path not in AXES],
        "step": {
            name: {"before": before, "after": after}
            for (name, before), after in zip(
                (_words(a) | _numbers(both.costs[0])).items(),
                (_words(b) | _numbers(both.costs[1])).values(),
                strict=True,
            )
        },
        "output": output(a, b),
        "textual": [vars(said) for said in both.textual],
    }
    if both.sides is not None:
        shown["engine"] = {
            "title": both.sides.title,
            "flags": [
                {"flag": name, "before": before, "after": after}
                for name, before, after in both.sides.flags
            ],
            "textual": [vars(said) for said in both.sides.asked],
        }
    return shown


def _numbers(cost: StepCost) -> dict[str, Any]:
    names = ("draft_forwards", "verified_positions", "launches", "weight_bytes", "kv_bytes_a_token")
    return {name: getattr(cost, name) for name in (*names, "step_bytes", "memory_bytes")}
