"""Whatever the text, the loader gives a recipe or findings that can be shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specflow.diagnostics import render
from specflow.errors import RecipeError
from specflow.load import load, loads

# Pieces that mean something to YAML, to OmegaConf or to the loader, so that drawn text gets far.
PIECES = (
    *("a", "b", "draft", "recipe", "extends", "allow", "a.yaml", "1", "1e5", "0x1f", "yes", "null"),
    *(": ", ":", "- ", "\n", "\n  ", "\n    ", " ", "\t", "\r\n", "#", ", ", "[", "]", "{", "}"),
    *("${a}", "${.b}", "${..a}", "${oc.env:HOME}", "${x:1}", "${", "}", "\\", "\\${a}", "$"),
    *(
        "'",
        '"',
        "|",
        ">",
        "|2-",
        "&a ",
        "*a",
        "!!str ",
        "!",
        "<<: ",
        "? ",
        "---",
        "...",
        "%YAML 1.2",
    ),
    *("???", "~", "=", ".", "\ufeff", "\x85", "\u2028", "\x00", "é", "名", "\ud800", '"\\ud800"'),
)
texts = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
overrides = st.lists(
    st.one_of(
        texts, st.builds("{}={}".format, st.sampled_from(["a", "a.b", "c", "recipe"]), texts)
    ),
    max_size=3,
)


def show(error: RecipeError) -> None:
    assert error.diagnostics
    for form in ("text", "json", "github"):
        render(error.diagnostics, form).encode()


@settings(max_examples=400, deadline=None)
@given(text=texts, overrides=overrides)
def test_any_text_is_a_recipe_or_findings(text: str, overrides: list[str]) -> None:
    try:
        recipe = loads(text, "a.yaml", overrides)
    except RecipeError as error:
        show(error)
        return
    for place in recipe.places.values():
        assert 0 <= place.value.start <= place.value.end <= len(place.value.source.text)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.one_of(st.binary(), texts.map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_are_a_recipe_or_findings(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    try:
        load(path)
    except RecipeError as error:
        show(error)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(allow_nan=False)
)


@settings(max_examples=100, deadline=None)
@given(scalars)
def test_what_json_writes_is_read_back(value: float | None) -> None:
    import json

    text = json.dumps(value).replace("Infinity", ".inf")
    read = loads(f"a: {text}\n").written["a"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "a: " * 50_000, "\\" * 900_000 + "x", "${a" * 300_000]
)
def test_long_texts_end_soon(text: str) -> None:
    with pytest.raises(RecipeError):
        loads(text, "a.yaml")
