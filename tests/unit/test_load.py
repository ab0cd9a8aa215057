"""Files to recipes: values, places, inheritance, overrides, and each finding of the loader."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from specflow.diagnostics import Diagnostic, render
from specflow.errors import RecipeError
from specflow.load import LOAD_RULES, load, loads


def findings(text: str, *overrides: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(RecipeError) as error:
        loads(text, "a.yaml", overrides)
    return error.value.diagnostics


def codes(text: str, *overrides: str) -> list[str]:
    return [f.code for f in findings(text, *overrides)]


def value(text: str) -> Any:
    return loads(f"a: {text}\n").written["a"]


def at(found: Diagnostic) -> str:
    assert found.primary
    return str(found.primary.span)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("-3", -3),
        ("1_000", 1000),
        ("0x10", 16),
        ("0o17", 15),
        ("0b101", 5),
        ("012", "012"),
        ("1:30", "1:30"),
        ("1:30:05.5", "1:30:05.5"),
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("1.2.3", "1.2.3"),
        ("2024-01-01", "2024-01-01"),
        ("null", None),
        ("~", None),
        ("", None),
        ("Null", None),
        ("true", True),
        ("FALSE", False),
        ("tRUE", "tRUE"),
        ("'yes'", "yes"),
        ('"1"', "1"),
        ("'~'", "~"),
        ("???", "???"),
        ("=", "="),
        ("٣", "٣"),
        ("e5", "e5"),
        ("1" * 5000, "1" * 5000),
        ("[1, a, null]", [1, "a", None]),
        ("{b: {c: 1}}", {"b": {"c": 1}}),
        ("cuda:0", "cuda:0"),
        ("|\n  one\n  two\n", "one\ntwo\n"),
    ],
)
def test_a_value_is_what_a_reader_expects(text: str, expected: Any) -> None:
    assert value(text) == expected
    assert type(value(text)) is type(expected)


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(value(".nan"))


def test_places_reach_every_value() -> None:
    recipe = loads("# top\ndraft:\n  algorithm: NGRAM  # why\n  breadth: [1, 10]\n\nrun: {x: }\n")
    seen = {path: (place.value.text, str(place.value)) for path, place in recipe.places.items()}
    assert seen == {
        "draft": ("algorithm: NGRAM  # why\n  breadth: [1, 10]", "<text>:3:3"),
        "draft.algorithm": ("NGRAM", "<text>:3:14"),
        "draft.breadth": ("[1, 10]", "<text>:4:12"),
        "draft.breadth.0": ("1", "<text>:4:13"),
        "draft.breadth.1": ("10", "<text>:4:16"),
        "run": ("{x: }", "<text>:6:6"),
        "run.x": ("", "<text>:6:9"),
    }
    key = recipe.places["draft.breadth"].key
    assert key
    assert (key.text, key.line, key.column) == ("breadth", 4, 3)
    assert recipe.places["draft.breadth.0"].key is None


def test_a_block_scalar_ends_with_its_text() -> None:
    place = loads("a: |\n  one\n\n\nb: 1\n").places["a"]
    assert place.value.text == "|\n  one"


@pytest.mark.usefixtures("folder")
def test_windows_lines_and_a_byte_order_mark() -> None:
    Path("a.yaml").write_bytes(b"\xef\xbb\xbfdraft:\r\n  topk: 2\r\n")
    recipe = load("a.yaml")
    assert recipe.written == {"draft": {"topk": 2}}
    assert str(recipe.places["draft.topk"].value) == "a.yaml:2:9"
    assert str(recipe.places["draft"].key) == "a.yaml:1:1"
    assert recipe.path == Path("a.yaml")


@pytest.mark.usefixtures("folder")
def test_the_name_comes_from_the_file_or_the_path() -> None:
    write("recipes/pico/ngram.yaml", "draft: {}\n")
    assert load("recipes/pico/ngram.yaml").name == "pico/ngram"
    write("recipes/pico/other.yaml", "recipe: mine\nextends: ngram.yaml\n")
    assert load(Path("recipes/pico/other.yaml")).name == "mine"
    assert load("recipes/pico/ngram.yaml", ["recipe=yours"]).name == "yours"
    assert loads("a: 1", "pico/x.yaml").name == "pico/x"
    assert loads("a: 1").name == "_text_"


def test_the_header_is_not_written() -> None:
    recipe = loads("recipe: r\nallow: [SF050]\ndraft: {}\n")
    assert recipe.written == {"draft": {}}
    assert recipe.allow == {"SF050"}
    assert "allow.0" in recipe.places
    assert loads("allow: {SF050: flat on purpose}\n").allow == {"SF050"}
    assert loads("allow:\n").allow == frozenset()


@pytest.mark.parametrize(
    ("text", "column"),
    [("recipe: 3", 9), ("allow: SF050", 8), ("allow: [1]", 9), ("extends: [a.yaml]", 10)],
)
def test_a_header_of_the_wrong_type(text: str, column: int) -> None:
    (found,) = findings(text)
    assert (found.code, at(found)) == ("SF002", f"a.yaml:1:{column}")


# extends


@pytest.mark.usefixtures("folder")
def test_a_leaf_keeps_the_place_it_came_from() -> None:
    write("recipes/base.yaml", "recipe: base\ndraft: {topk: 1, model: d}\nstop: [a, b]\n")
    write("recipes/mid.yaml", "extends: ./base.yaml\ndraft: {topk: 2}\n")
    write("recipes/x/top.yaml", "extends: ../mid.yaml\nstop: [c]\n")
    recipe = load("recipes/x/top.yaml")
    assert recipe.name == "x/top"
    assert recipe.written == {"draft": {"topk": 2, "model": "d"}, "stop": ["c"]}
    assert [s.name for s in recipe.sources] == [
        "recipes/x/top.yaml",
        "recipes/mid.yaml",
        "recipes/base.yaml",
    ]
    places = {path: str(place.value) for path, place in recipe.places.items()}
    assert places["draft.topk"] == "recipes/mid.yaml:2:15"
    assert places["draft.model"] == "recipes/base.yaml:2:25"
    assert places["stop.0"] == "recipes/x/top.yaml:2:8"
    assert "stop.1" not in places


@pytest.mark.usefixtures("folder")
def test_a_circle_of_files_is_printed() -> None:
    write("a.yaml", "extends: b.yaml\n")
    write("b.yaml", "extends: a.yaml\n")
    with pytest.raises(RecipeError) as error:
        load("a.yaml")
    (found,) = error.value.diagnostics
    assert (found.code, at(found)) == ("SF007", "b.yaml:1:10")
    assert "a.yaml -> b.yaml -> a.yaml" in found.message
    assert not error.value.unreadable


@pytest.mark.usefixtures("folder")
def test_a_missing_base_is_placed_and_a_bad_one_is_told_with_the_rest() -> None:
    write("a.yaml", "extends: bse.yaml\nx: yes\ny: ${nowhere}\n")
    write("base.yaml", "z: on\n")
    with pytest.raises(RecipeError) as error:
        load("a.yaml")
    assert [f.code for f in error.value.diagnostics] == ["SF009", "SF000"]
    missing = error.value.diagnostics[1]
    assert at(missing) == "a.yaml:1:10"
    assert missing.help == "did you mean `base.yaml`?"
    write("a.yaml", "extends: base.yaml\nx: yes\n")
    with pytest.raises(RecipeError) as error:
        load("a.yaml")
    assert [at(f) for f in error.value.diagnostics] == ["a.yaml:2:4", "base.yaml:1:4"]


# overrides


def test_overrides_are_a_source_like_any_other() -> None:
    text = "draft: {topk: 1, model: d}\nverify: {shape: tree}\n"
    recipe = loads(text, "a.yaml", ["draft.num_steps=5", "verify={num_draft_tokens: 4}", "s.t=[a]"])
    assert recipe.written == {
        "draft": {"topk": 1, "model": "d", "num_steps": 5},
        "verify": {"shape": "tree", "num_draft_tokens": 4},
        "s": {"t": ["a"]},
    }
    assert recipe.overridden == {
        "draft.num_steps",
        "verify.num_draft_tokens",
        "s.t",
        "s.t.0",
    }
    place = recipe.places["draft.num_steps"]
    assert str(place.value) == "<command line>:1:17"
    assert place.key
    assert place.key.text == "draft.num_steps"
    assert str(recipe.places["verify.num_draft_tokens"].value) == "<command line>:1:45"
    assert str(recipe.places["draft"].value) == "a.yaml:1:8"


def test_the_last_override_counts_and_a_tilde_takes_out() -> None:
    recipe = loads("draft: {topk: 1, model: d}\n", "a.yaml", ["draft.topk=2", "~draft.topk", "a=1"])
    assert recipe.written == {"draft": {"model": "d"}, "a": 1}
    assert recipe.overridden == {"a"}
    assert "draft.topk" not in recipe.places


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a=1e-5", 1e-5),
        ("a=null", None),
        ("a=''", ""),
        ("a=b=c", "b=c"),
        ("a=${b}", 7),
        ('a=["x","y"]', ["x", "y"]),
        ("a=builtin:pico", "builtin:pico"),
    ],
)
def test_an_override_is_read_as_yaml(override: str, expected: Any) -> None:
    assert loads("b: 7\n", "a.yaml", [override]).written["a"] == expected


@pytest.mark.parametrize(
    ("override", "code", "place"),
    [
        ("a=", "SF000", 1),
        ("a=  ", "SF000", 1),
        ("a", "SF000", 1),
        ("=1", "SF000", 1),
        ("a..b=1", "SF000", 1),
        ("a.0=1", "SF000", 1),
        ("extends=x.yaml", "SF000", 1),
        ("~nope", "SF000", 1),
        ("~", "SF000", 2),
        ("a=[1", "SF000", 5),
        ("a=no", "SF009", 3),
        ("a=&x 1", "SF008", 3),
        ("a=${nope}", "SF005", 3),
    ],
)
def test_an_override_that_sets_nothing(override: str, code: str, place: int) -> None:
    first, *rest = findings("x: 1\n", "x=2", override, "x=3")
    assert not rest
    assert (first.code, at(first)) == (code, f"<command line>:1:{place + 4}")


# interpolation


def test_references_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFLOW_TEST", "${nope}")
    text = """
a: {n: 3, m: "${.n}", up: "${..b}/x", both: "${a.n}-${b}"}
b: text
list: [1, "${list[0]}", "${.0}"]
whole: ${list}
block: ${a}
env: ${oc.env:SPECFLOW_TEST}
default: ${oc.env:SPECFLOW_NOT_SET,models}/m
literal: \\${not.a.reference}
"""
    written = loads(text).written
    assert written["a"] == {"n": 3, "m": 3, "up": "text/x", "both": "3-text"}
    assert written["list"] == [1, 1, 1]
    assert written["whole"] == [1, 1, 1]
    assert written["block"] == written["a"]
    assert written["env"] == "${nope}"
    assert written["default"] == "models/m"
    assert written["literal"] == "${not.a.reference}"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: ${b}", "a.yaml:1:4", "`b`"),
        ("topk: 1\na: x${tokp}", "a.yaml:2:5", "`tokp`"),
        ("a: ${oc.env:SPECFLOW_NOT_SET}", "a.yaml:1:4", "`SPECFLOW_NOT_SET`"),
        ("a: ${.....b}", "a.yaml:1:4", "`b`"),
        ("a: ${oc.decode:x}", "a.yaml:1:4", "`oc.decode`"),
        ("a: ${oc.env:X,${b}}", "a.yaml:1:4", "`oc.env`"),
        ("a: ${oc.create:x}", "a.yaml:1:4", "`oc.create`"),
        ("b: oc\na: ${${b}.env:X}", "a.yaml:2:4", "nothing"),
        ("a: ${", "a.yaml:1:4", "nothing"),
        ('a: "${}"', "a.yaml:1:5", "nothing"),
        ("a: ${a}", "a.yaml:1:4", "a -> a"),
        ("a: {b: '${c}'}\nc: ${a}", "a.yaml:1:8", "a.b -> c -> a -> a.b"),
    ],
)
def test_an_unresolved_interpolation(text: str, place: str, words: str) -> None:
    (found,) = findings(text)
    assert (found.code, at(found)) == ("SF005", place)
    assert words in found.message


def test_neighbours_of_a_missing_reference() -> None:
    (found,) = findings("draft: {topk: 1}\na: ${draft.tokp}\n")
    assert found.help == "did you mean `draft.topk`?"


def test_a_bomb_of_references_is_not_built() -> None:
    doubling = "\n".join(f"a{i + 1}: ${{a{i}}}${{a{i}}}" for i in range(60))
    assert codes(f"a0: xxxx\n{doubling}\n") == ["SF005"]
    nested = "\n".join(f"a{i + 1}: ['${{a{i}}}', '${{a{i}}}']" for i in range(60))
    assert codes(f"a0: x\n{nested}\n") == ["SF005"]
    chain = [f"a{i + 1}: ${{a{i}}}" for i in range(3000)]
    assert codes("\n".join(["a0: 1", *chain])) == ["SF005"]
    assert codes("\n".join(["a0: 1", *reversed(chain)])) == ["SF005"]


# text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "a.yaml:1:1"),
        ("# only a comment\n", "a.yaml:1:1"),
        ("---\n...\n", "a.yaml:2:1"),
        ("just text", "a.yaml:1:1"),
        ("- a\n", "a.yaml:1:1"),
        ("a: b: c", "a.yaml:1:5"),
        ("a:\n\tb: 1", "a.yaml:2:1"),
        ("a: [1, 2", "a.yaml:1:9"),
        ("a: 'x", "a.yaml:1:6"),
        ("a: @x", "a.yaml:1:4"),
        ("a: - x", "a.yaml:1:4"),
        ("{a: 1}}", "a.yaml:1:7"),
        ("a: !x!y 1", "a.yaml:1:4"),
        ("%FOO\na: 1", "a.yaml:2:1"),
        ("a: 1\n b: 2", "a.yaml:2:3"),
        ("a: \x07", "a.yaml:1:4"),
        ('a: "\\q"', "a.yaml:1:6"),
        ('a: "\\U99999999"', "a.yaml:1:1"),
        ("a: 1\n---\nb: 2", "a.yaml:2:1"),
        ("[a]: 1", "a.yaml:1:1"),
        ("a.b: 1", "a.yaml:1:1"),
        ("'': 1", "a.yaml:1:1"),
        ("a: " + "[" * 60, "a.yaml:1:53"),
        ("\n".join("  " * i + "a:" for i in range(60)), "a.yaml:51:101"),
    ],
)
def test_unreadable_text_has_a_place(text: str, place: str) -> None:
    with pytest.raises(RecipeError) as error:
        loads(text, "a.yaml")
    (found,) = error.value.diagnostics
    assert (found.code, at(found)) == ("SF000", place)
    assert error.value.unreadable


def test_a_bracket_says_where_it_began() -> None:
    (found,) = findings("a: [1,\n  2\nb: 3\n")
    assert [str(label.span) for label in found.labels] == ["a.yaml:3:2", "a.yaml:1:4"]


def test_duplicate_keys_show_both_places() -> None:
    (found,) = findings("a: {x: 1, x: 2}\n")
    assert [(str(label.span), label.text) for label in found.labels] == [
        ("a.yaml:1:11", "written again"),
        ("a.yaml:1:5", "first written here"),
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: &x 1", "a.yaml:1:4"),
        ("a: {<<: {b: 1}}", "a.yaml:1:5"),
        ("a: !!str 1", "a.yaml:1:4"),
        ("a: ! 1", "a.yaml:1:4"),
        ("a: !!python/object/apply:os.system ['echo']", "a.yaml:1:4"),
        ("!x a: 1", "a.yaml:1:1"),
        ("a: *x", "a.yaml:1:4"),
    ],
)
def test_sharing_and_tags_are_refused(text: str, place: str) -> None:
    (found,) = findings(text)
    assert (found.code, at(found)) == ("SF008", place)


def test_a_quoted_merge_key_is_a_name() -> None:
    assert loads("'<<': 1\n").written == {"<<": 1}


@pytest.mark.parametrize("word", ["yes", "No", "ON", "off", "y", "N"])
def test_ambiguous_booleans(word: str) -> None:
    (found,) = findings(f"a: [{word}]\n")
    assert (found.code, at(found)) == ("SF009", "a.yaml:1:5")
    assert loads(f"{word}: '{word}'\n").written == {word: word}


def test_findings_are_collected() -> None:
    text = "a: yes\na: 1\nb: ${nope}\nrecipe: 3\n"
    assert codes(text, "c=on", "d=") == ["SF009", "SF004", "SF009", "SF000", "SF002"]
    assert codes(text, "c=on") == ["SF009", "SF004", "SF009", "SF005", "SF002"]


# files


@pytest.mark.usefixtures("folder")
def test_files_that_cannot_be_read() -> None:
    write("ngram.yaml", "a: 1")
    Path("latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    Path("big.yaml").write_bytes(b"#" * 1_000_001)
    Path("folder.yaml").mkdir()
    expected = {
        "ngrm.yaml": "there is no file `ngrm.yaml`",
        "latin.yaml": "`latin.yaml` is not UTF-8: byte 0xE9 in line 2",
        "big.yaml": "`big.yaml` is larger than 1 MB",
        "folder.yaml": "`folder.yaml` is a folder",
        "no/such/folder.yaml": "there is no file `no/such/folder.yaml`",
        "a\0b.yaml": "`a\0b.yaml` cannot be read: no file has such a name",
        "x" * 5000: f"`{'x' * 5000}` cannot be read: file name too long",
    }
    for path, message in expected.items():
        with pytest.raises(RecipeError) as error:
            load(path)
        (found,) = error.value.diagnostics
        assert (found.code, found.message) == ("SF000", message)
        assert error.value.unreadable
        if path == "ngrm.yaml":
            assert found.help == "did you mean `ngram.yaml`?"


# manuals


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("code", sorted(LOAD_RULES))
def test_the_examples_of_a_manual_run(code: str) -> None:
    name, manual = LOAD_RULES[code]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", name)
    headings = re.findall(r"^(?:## \w+|Use instead:)$", manual, re.MULTILINE)
    assert headings == ["## Why", "## Example", "Use instead:", "## Fix"]
    assert max(map(len, manual.splitlines())) <= 100
    failing, passing = re.findall(r"```yaml\n(.*?)```", manual, re.DOTALL)
    write("recipe.yaml", failing)
    with pytest.raises(RecipeError) as error:
        load("recipe.yaml")
    assert {f.code for f in error.value.diagnostics} == {code}
    assert {f.name for f in error.value.diagnostics} == {name}
    assert render(error.value.diagnostics, "text")
    write("recipe.yaml", passing)
    load("recipe.yaml")
