"""The schema of recipes: what validates by it loads, what names, types or ranges break does not."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from specflow.cli import main
from specflow.load import loads
from specflow.manual import manuals
from specflow.recipe import Fields, RunFields, SamplingFields, TargetFields
from specflow.resolve import TOP
from specflow.schema import default_of, properties, schema
from specflow.stages import COMMITS, DRAFTS, VERIFIES
from specflow.tables import ALIASES
from tests.conftest import RECIPES, ROOT

SCHEMA = schema()
# What a schema can tell: unknown names, types, missing fields, tables, ranges, axes.
TOLD = ("SF001", "SF002", "SF003", "SF006", "SF010", "SF039")
BLOCKS: dict[str, type[Fields]] = {
    "target": TargetFields,
    "sampling": SamplingFields,
    "run": RunFields,
    **{f"draft.{name}": DRAFTS[name].fields for name in DRAFTS.names()},
    **{f"verify.{name}": VERIFIES[name].fields for name in VERIFIES.names()},
    **{f"commit.{name}": COMMITS[name].fields for name in COMMITS.names()},
}
FIELDS = [(block, name) for block, fields in BLOCKS.items() for name in fields.model_fields]
# A number with nothing after its point is an integer to JSON and none to a recipe, so none is here.
VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 3, 63, 64, 65, 256, 257, 1000, 2**24, 2**31, 2**31 + 1, 2**62, 2**63),
    *(0.5, -0.5, 1.5, 100.5, True, False, "", "x", "greedy", "cpu", "float32", "recency"),
    *([], [0], [1, 2], [1, 10], [1, 2, 3], [-1], ["x"], [""], list(range(17))),
    *({}, {"1": [1, 3]}, {"0": [1]}, {"8": []}, {"x": [1]}, {"1": [64]}, [[1, [1]]]),
)


def faults(recipe: Any) -> list[str]:
    return [e.message for e in Draft202012Validator(SCHEMA).iter_errors(recipe)]


def examples(code: str) -> list[str]:
    doc = next(m.doc for m in manuals() if m.code == code)
    return re.findall(r"```yaml\n(.*?)```", doc, re.S)


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    references = set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(SCHEMA)))
    assert references == set(SCHEMA["$defs"])


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_recipes_that_ship_validate(path) -> None:
    assert faults(yaml.safe_load(path.read_text())) == []


@pytest.mark.parametrize("code", TOLD)
def test_manuals_agree(code: str) -> None:
    failing, passing = examples(code)
    assert faults(yaml.safe_load(failing))
    assert faults(yaml.safe_load(passing)) == []


def test_pages_of_findings_agree() -> None:
    """Every finding that a schema can tell is told, and what has no finding at all has no fault."""
    page = "".join(p.read_text() for p in sorted((ROOT / "tests/diagnostics").glob("*.md")))
    seen = {"fails": 0, "passes": 0}
    for text, said in re.findall(r"```yaml\n(.*?)```\n+```text\n(.*?)```", page, re.S):
        codes = re.findall(r"^(?:error|warning)\[(SF\d+)\]", said, re.M)
        if codes and set(codes) <= {"SF001", "SF006", "SF010"}:
            assert faults(yaml.safe_load(text)), text
            seen["fails"] += 1
        elif not set(codes) & {*TOLD, "SF000", "SF004", "SF005", "SF008", "SF009"}:
            assert faults(yaml.safe_load(text)) == [], text
            seen["passes"] += 1
    assert min(seen.values()) > 5, seen


def test_every_field_of_every_stage_is_there() -> None:
    assert set(SCHEMA["properties"]) == set(TOP)
    for block, fields in BLOCKS.items():
        made = SCHEMA["$defs"][block]["properties"]
        for name, info in fields.model_fields.items():
            assert made[name]["description"].startswith(info.description)
            default, decided = default_of(fields, name)
            assert info.is_required() or "default" in made[name] or decided, (block, name)
            if default is not None:
                assert made[name]["default"] == json.loads(json.dumps(default))
        offered = SCHEMA["$defs"][block.partition(".")[0]]["properties"]
        assert set(offered) >= set(fields.model_fields)


def test_every_algorithm_is_offered() -> None:
    offered = SCHEMA["$defs"]["draft"]["properties"]["algorithm"]["anyOf"][0]["enum"]
    assert set(offered) == {*DRAFTS.names(), *ALIASES}
    assert len(offered) == len(set(offered))
    for name in offered:
        recipe = {"target": {"model": "m"}, "draft": {"algorithm": name, "model": "d"}}
        loud = {**recipe, "draft": {**recipe["draft"], "no_such_field": 1}}
        assert faults(loud), name


@pytest.mark.parametrize(("block", "name"), FIELDS, ids=[f"{b}.{n}" for b, n in FIELDS])
def test_a_field_takes_what_the_recipe_takes(block: str, name: str) -> None:
    fields = BLOCKS[block]
    validator = Draft202012Validator({**properties(fields)[name], "$defs": SCHEMA["$defs"]})
    for value in VALUES:
        try:
            fields.model_validate({name: value})
            told = False
        except ValidationError as error:
            told = any(each["loc"][0] == name for each in error.errors())
        assert validator.is_valid(value) is not told, (value, "the recipe refuses it:", told)
    assert validator.is_valid("${draft.other}")


def test_what_is_not_written_may_be_extended() -> None:
    assert faults({"extends": "base.yaml", "draft": {"topk": 2}}) == []
    assert faults({"extends": "base.yaml", "verify": {"mode": "compact"}}) == []
    assert faults({"extends": "base.yaml", "draft": {"topc": 2}})
    assert faults({"draft": {"algorithm": "NGRAM"}})
    assert faults({"target": {"model": "m"}})
    assert faults({"target": {"model": "m"}, "draft": {"signal": "history"}}) == []


def test_fields_of_another_shape_have_no_place() -> None:
    for name in ("EAGLE", "NEXTN", "STANDALONE", "NGRAM"):
        recipe = {"target": {"model": "m"}, "draft": {"algorithm": name}}
        if name != "NGRAM":
            recipe["draft"]["model"] = "d"
        assert faults({**recipe, "verify": {"num_draft_tokens": 4}}) == []
        assert faults({**recipe, "verify": {"mode": "compact"}}), name
        assert faults({**recipe, "verify": {"shape": "ragged"}}), name
        assert faults({**recipe, "commit": {"draft_state": "inject"}}), name
        assert faults({**recipe, "verify": {"mode": "compact"}, "extends": "b.yaml"}) == []


def test_references_stand_for_any_value() -> None:
    target = {"model": "${oc.env:MODELS,models}/m"}
    draft = {"algorithm": "NGRAM", "min_match": "${run.batch_size}", "breadth": ["${a.b}", 10]}
    assert faults({"target": target, "draft": draft}) == []
    assert faults({"target": target, "draft": {**draft, "min_match": r"\${x}"}})


def test_the_header_is_held_as_the_loader_holds_it() -> None:
    rest = {"target": {"model": "m"}, "draft": {"algorithm": "NONE"}}
    for header in ({"recipe": "a/b"}, {"allow": {"SF074": "why"}}, {"allow": ["SF074"]}):
        loads(json.dumps({**header, **rest}))
        assert faults({**header, **rest}) == []
    for header in ({"recipe": "a b"}, {"recipe": 1}, {"allow": "SF074"}, {"extends": "${x}"}):
        assert faults({**header, **rest}), header


def test_engines_take_flags_by_name() -> None:
    rest = {"target": {"model": "m"}, "draft": {"algorithm": "NONE"}}
    assert faults({**rest, "engine": {"sglang": {"mem_fraction_static": 0.8}}}) == []
    assert faults({**rest, "engine": {"sglang": 1}})
    assert faults({**rest, "engine": {"sglnag": {}}})


def test_the_command_prints_and_writes(capsys, tmp_path) -> None:
    assert main(["schema"]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "recipe.schema.json"
    assert main(["schema", "-o", str(file)]) == 0
    assert file.read_text() == printed
    assert json.loads(printed) == json.loads(json.dumps(SCHEMA))
    assert not re.findall(r"\b(NaN|Infinity)\b", printed)  # JSON has no word for either
