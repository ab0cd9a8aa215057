"""What editors know of recipes: a JSON Schema, made of the tables and the fields of every stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BeforeValidator

from specflow.diagnostics import Severity
from specflow.manual import manuals
from specflow.recipe import STAND_IN, Fields, RunFields, SamplingFields, TargetFields, home
from specflow.stages import COMMITS, DRAFTS, VERIFIES
from specflow.stages.base import DraftStage
from specflow.tables import ALIASES, ENGINES, TABLES

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

# `${...}` stands for any value: where it leads is known only once the recipe is read.
_REFERENCE = {"$ref": "#/$defs/reference"}
_MODEL_STAND_IN = "The small model that `--stand-in` uses instead: builtin:NAME."
# Of pydantic and of `recipe.field`; no editor's.
_OWN_WORDS = ("title", "derive", "table", "unsaid")


def schema() -> Schema:
    """The schema of recipe files: names, types, ranges, and which fields go with which stage."""
    return {
        "$schema": DIALECT,
        "title": "specflow recipe",
        "type": "object",
        "additionalProperties": False,
        "properties": _top(),
        "allOf": [_whole(), *(_goes_with(*each) for each in _drafts())],
        "$defs": _definitions(),
    }


def properties(fields: type[Fields]) -> dict[str, Schema]:
    """Each field of a block: its type, bounds and manual, and its default or where that is from."""
    made = fields.model_json_schema()["properties"]
    return {name: _property(fields, name, said) for name, said in made.items()}


def default_of(fields: type[Fields], name: str) -> tuple[Any, str]:
    """A field's constant default, or None and how it is decided; both empty where it has to be."""
    lives = home(fields, name)
    if lives["derive"]:
        return None, f"derived: {lives['derive']}"
    if lives["table"]:
        common = TABLES[lives["table"]]["*"].get(name)
        return None, f"table {lives['table']}" + (f": {_shown(common)}" if common else "")
    info = fields.model_fields[name]
    return (None, "") if info.is_required() else (info.default, "")


def _shown(value: Any) -> str:
    """A default of a table as a recipe would have it: pairs are a mapping."""
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return "{" + ", ".join(f"{key}: {list(each)}" for key, each in value) + "}"
    return str(value)


# -- the blocks ------------------------------------------------------------------------------------


def _top() -> dict[str, Schema]:
    """What may stand at the top of a file."""
    blocks: dict[str, Schema] = {
        "target": {"$ref": "#/$defs/target"},
        "draft": {"$ref": "#/$defs/draft"},
        "verify": {"$ref": "#/$defs/verify"},
        "commit": {"$ref": "#/$defs/commit"},
        "sampling": {"$ref": "#/$defs/sampling"},
        "run": {"$ref": "#/$defs/run"},
        "engine": {"$ref": "#/$defs/engine"},
    }
    return {
        "recipe": {
            "type": "string",
            "pattern": r"^[\w./-]{1,60}$",
            "description": "The recipe's name; left out, it is the file's.",
        },
        "extends": {
            "type": "string",
            "minLength": 1,
            "not": _REFERENCE,
            "description": "A recipe that this one is laid over, relative to this file.",
        },
        "allow": _allow(),
        **blocks,
    }


def _allow() -> Schema:
    """Warnings to silence, each with a reason."""
    silent = {m.code: m.name for m in manuals() if m.severity == Severity.WARNING.value}
    codes: Schema = {"anyOf": [{"enum": list(silent)}, {"pattern": r"^SF\d{3}$"}]}
    return {
        "description": "Warnings to silence: a mapping of codes to reasons, or a list of codes.",
        "anyOf": [
            {
                "type": "object",
                "properties": {code: {"description": name} for code, name in silent.items()},
                "propertyNames": {"pattern": r"^SF\d{3}$"},
            },
            {"type": "array", "items": {"type": "string", **codes}},
            {"type": "null"},
        ],
    }


def _definitions() -> dict[str, Schema]:
    """Every block, and every row of a table that decides which fields a block has."""
    drafts = {name: DRAFTS[name] for name in DRAFTS.names()}
    rows = {f"draft.{name}": _draft(stage) for name, stage in drafts.items()}
    shapes = {f"verify.{name}": VERIFIES[name].fields for name in VERIFIES.names()}
    states = {f"commit.{name}": COMMITS[name].fields for name in COMMITS.names()}
    axis = {name: [getattr(s.axes, name) for s in drafts.values()] for name in ("signal", "guess")}
    own = {STAND_IN: _name(_MODEL_STAND_IN)}
    return {
        "reference": {
            "type": "string",
            "pattern": r"(^|[^\\])\$\{",
            "description": "Another field's value, `${block.field}`, or `${oc.env:NAME,default}`.",
        },
        "target": _block(TargetFields, own),
        "draft": _choice(
            "draft",
            "Whatever guesses.",
            {
                "algorithm": _either(
                    {
                        "enum": [*DRAFTS.names(), *(a for a in ALIASES if a not in DRAFTS)],
                        "description": "Who guesses: a row of the table of drafts, or an alias.",
                    }
                ),
                "signal": _one_of(axis["signal"], "What the guess is based on."),
                "guess": _one_of(axis["guess"], "How it guesses."),
                **own,
            },
            "algorithm",
            {name: _meant(name) for name in (*DRAFTS.names(), *ALIASES)},
            [s.fields for s in drafts.values()],
        ),
        "verify": _choice(
            "verify",
            "What the target judges, and how.",
            {"shape": _one_of(VERIFIES.names(), "What is verified.")},
            "shape",
            {name: (name,) for name in VERIFIES.names()},
            list(shapes.values()),
        ),
        "commit": _choice(
            "commit",
            "What stays once guesses are judged.",
            {"draft_state": _one_of(COMMITS.names(), "How draft state goes on.")},
            "draft_state",
            {name: (name,) for name in COMMITS.names()},
            list(states.values()),
        ),
        "sampling": _block(SamplingFields),
        "run": _block(RunFields),
        "engine": {
            "type": ["object", "null"],
            "description": "Flags for other engines, under their own names; no step depends on "
            "them.",
            "properties": {name: {"type": ["object"]} for name in ENGINES},
            "additionalProperties": False,
        },
        **rows,
        **{name: _block(each, _axis_of(name)) for name, each in (shapes | states).items()},
    }


def _draft(stage: DraftStage) -> Schema:
    """The block of one draft: its own fields, and the two axes that are its row's."""
    own = {
        "algorithm": True,
        "signal": _one_of([stage.axes.signal], "What the guess is based on."),
        "guess": _one_of([stage.axes.guess], "How it guesses."),
        STAND_IN: _name(_MODEL_STAND_IN),
    }
    return {"description": stage.doc, **_block(stage.fields, own)}


def _axis_of(row: str) -> dict[str, Any]:
    """The key that chose a row: `verify.tree` was chosen by `shape`."""
    return {{"verify": "shape", "commit": "draft_state"}[row.partition(".")[0]]: True}


def _meant(written: str) -> tuple[str, ...]:
    """The rows that a written algorithm may mean, beside one draft network or another."""
    meant = [alias.means for alias in ALIASES.get(written, ())]
    return tuple(dict.fromkeys([*meant, *([written] if written in DRAFTS else [])]))


def _drafts() -> Iterator[tuple[list[str], list[DraftStage]]]:
    """Names that mean the same drafts, and those drafts."""
    meant = {name: _meant(name) for name in dict.fromkeys((*DRAFTS.names(), *ALIASES))}
    for rows in dict.fromkeys(meant.values()):
        yield [name for name, means in meant.items() if means == rows], [DRAFTS[r] for r in rows]


def _block(fields: type[Fields], own: Mapping[str, Any] | None = None) -> Schema:
    """A block of fields, with the keys that are no fields of its stage; it may be empty."""
    return {
        "type": ["object", "null"],
        "properties": {**(own or {}), **properties(fields)},
        "additionalProperties": False,
    }


def _choice(
    block: str,
    doc: str,
    own: Mapping[str, Schema],
    by: str,
    rows: Mapping[str, tuple[str, ...]],
    every: Iterable[type[Fields]],
) -> Schema:
    """A block whose fields depend on one of its keys; without that key, all rows' fields may stand.

    An editor offers what `properties` holds, so every field of every row is there; the branch that
    applies refuses those of other rows.
    """
    names = dict.fromkeys(name for fields in every for name in fields.model_fields)
    branches: list[Schema] = []
    for meant in dict.fromkeys(rows.values()):
        written = [name for name, means in rows.items() if means == meant]
        refs = [{"$ref": f"#/$defs/{block}.{name}"} for name in meant]
        then: Schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
        said: Schema = {"properties": {by: {"enum": written}}, "required": [by]}
        branches.append({"if": said, "then": then})
    unsaid: Schema = {"not": {"required": [by]}}
    branches.append({"if": unsaid, "then": {"properties": _shared(names, every)}})
    return {
        "type": ["object", "null"],
        "description": doc,
        "properties": {**own, **dict.fromkeys(names, True)},
        "additionalProperties": False,
        "allOf": branches,
    }


def _shared(names: Iterable[str], every: Iterable[type[Fields]]) -> dict[str, Schema]:
    """Each field as any row has it."""
    made = [properties(fields) for fields in every]
    out: dict[str, Schema] = {}
    for name in names:
        ways: list[Schema] = []
        for each in made:
            if name in each and each[name] not in ways:
                ways.append(each[name])
        out[name] = ways[0] if len(ways) == 1 else {"anyOf": ways}
    return out


# -- what holds between blocks ---------------------------------------------------------------------


def _whole() -> Schema:
    """What has to be written, and what may not be, unless a recipe that is extended says more."""
    named = [{"required": [key]} for key in ("algorithm", "signal", "guess")]
    return {
        "if": {"not": {"required": ["extends"]}},
        "then": {
            "required": ["target", "draft"],
            "properties": {
                "target": {"type": "object", "required": _needed(TargetFields)},
                "draft": {"type": "object", "anyOf": named},
            },
            "allOf": [rule for names, stages in _drafts() for rule in _unsaid(names, stages)],
        },
    }


def _needed(fields: type[Fields]) -> list[str]:
    """Fields that no default stands for."""
    return [name for name, info in fields.model_fields.items() if info.is_required()]


def _unsaid(names: list[str], stages: list[DraftStage]) -> Iterator[Schema]:
    """Fields without a default; and where no shape is written, the fields of the row's own one.

    A tree is what `topk` above 1 makes of a draft that can feed one.
    """
    said = _by_algorithm(names)
    needed = [field for field in _needed(stages[0].fields) if len(stages) == 1]
    if needed:
        yield {"if": said, "then": {"properties": {"draft": {"required": needed}}}}
    trees = any("tree" in stage.shapes for stage in stages)
    few: Schema = {"properties": {"topk": {"type": "integer", "maximum": 1}}} if trees else {}
    many: Schema = {"properties": {"topk": {"type": "integer", "minimum": 2}}, "required": ["topk"]}
    ways = [(few, shape) for shape in dict.fromkeys(stage.axes.shape for stage in stages)]
    unsaid: Schema = {"properties": {"verify": {"not": {"required": ["shape"]}}}}
    for branches, shape in ways + ([(many, "tree")] if trees else []):
        draft: Schema = {"properties": {"draft": branches}}
        then = {"properties": {"verify": {"$ref": f"#/$defs/verify.{shape}"}}}
        yield {"if": {"allOf": [said, unsaid, draft]}, "then": then}


def _goes_with(names: list[str], stages: list[DraftStage]) -> Schema:
    """The shapes that a draft can feed, and the ways its state goes on."""
    shapes = dict.fromkeys(shape for stage in stages for shape in stage.shapes)
    states = dict.fromkeys(s for stage in stages for each in stage.shapes.values() for s in each)
    return {
        "if": _by_algorithm(names),
        "then": {
            "properties": {
                "verify": {"properties": {"shape": _either({"enum": list(shapes)})}},
                "commit": {"properties": {"draft_state": _either({"enum": list(states)})}},
            }
        },
    }


def _by_algorithm(written: list[str]) -> Schema:
    """Whether the draft's algorithm is written, and is one of these."""
    draft = {
        "type": "object",
        "properties": {"algorithm": {"enum": written}},
        "required": ["algorithm"],
    }
    return {"properties": {"draft": draft}, "required": ["draft"]}


# -- values ----------------------------------------------------------------------------------------


def _property(fields: type[Fields], name: str, said: Mapping[str, Any]) -> Schema:
    """A field as an editor shows it."""
    default, decided = default_of(fields, name)
    plain = {k: v for k, v in said.items() if k not in (*_OWN_WORDS, "default", "description")}
    unsaid = home(fields, name)["unsaid"]
    if unsaid:
        plain["enum"] = [unsaid, *plain["enum"]]
    if any(isinstance(each, BeforeValidator) for each in fields.model_fields[name].metadata):
        plain = {"anyOf": [_as_mapping(plain), plain]}
    doc = said.get("description", "") + (f" Default: {decided}." if decided else "")
    made = {**_either(_items(plain)), "description": doc}
    if default is not None:
        made["default"] = list(default) if isinstance(default, tuple) else default
    return made


def _items(said: Mapping[str, Any]) -> Schema:
    """A list whose items too may be references."""
    if "items" in said and "prefixItems" not in said:
        return {**said, "items": _either(said["items"])}
    if "prefixItems" in said:
        return {**said, "prefixItems": [_either(each) for each in said["prefixItems"]]}
    return dict(said)


def _as_mapping(pairs: Mapping[str, Any]) -> Schema:
    """Pairs as they are written: a mapping of numbers, whose keys are text to a schema."""
    key, value = pairs["items"]["prefixItems"]
    least = key.get("minimum", 0)
    names = {"pattern": r"^[1-9]\d*$" if least else r"^\d+$"}
    return {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": _either(_items(value)),
        "minProperties": pairs.get("minItems", 0),
    }


def _either(said: Schema) -> Schema:
    """A value, or a reference to one."""
    doc = {k: v for k, v in said.items() if k == "description"}
    plain = {k: v for k, v in said.items() if k != "description"}
    return {"anyOf": [plain, _REFERENCE], **doc}


def _name(doc: str) -> Schema:
    return {"type": "string", "minLength": 1, "description": doc}


def _one_of(values: Iterable[str], doc: str) -> Schema:
    return _either({"enum": list(dict.fromkeys(values)), "description": doc})
