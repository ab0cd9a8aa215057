"""The fit table: what is said of each side, and which rule speaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specflow.cli import main
from specflow.errors import RecipeError
from specflow.load import load, loads
from specflow.packs import find, names
from specflow.pairing import OK, UNTOLD, Row, fit, table
from specflow.resolve import facts_of, resolve
from tests.checkpoint_files import shelf


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    shelf(folder)
    return folder


@pytest.fixture(autouse=True)
def beside_models(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)


def rows(text: str) -> dict[str, Row]:
    recipe = loads(text)
    try:
        findings = resolve(recipe).findings
    except RecipeError as error:
        findings = error.diagnostics
    return {row.what: row for row in fit(facts_of(recipe), findings)}


def of(
    draft: str, algorithm: str = "EAGLE3", target: str = "llama", more: str = ""
) -> dict[str, Row]:
    text = f"target: {{model: tiny-{target}}}\n"
    return rows(f"{text}draft: {{algorithm: {algorithm}, model: tiny-{draft}}}\n{more}")


def test_a_draft_that_fits() -> None:
    found = of("eagle3")
    assert {row.verdict for row in found.values()} <= {OK, UNTOLD}
    assert found["kind"].draft == "an EAGLE3 draft (LlamaForCausalLM)"
    assert (found["hidden size"].target, found["hidden size"].draft) == ("8", "8")
    assert found["taps"].draft == "3, its config names none"
    assert found["embedding"].draft == "the target's"
    assert found["head"].draft == "its own, 5 rows"
    assert found["map"].draft == "`d2t` of 5: each id once, with `t2d`"
    assert found["stored as"].draft == "F32, I64, BOOL"
    assert found["context"].verdict == UNTOLD


@pytest.mark.parametrize(
    ("draft", "what", "verdict", "code", "said"),
    [
        ("eagle", "kind", "error", "SF060", "an EAGLE or EAGLE-2 draft"),
        ("eagle3-no-head", "head", "warning", "SF022", "the target's"),
        ("eagle3-lost-head", "head", "error", "SF066", "5 words are declared"),
        ("eagle3-wrong-map", "map", "error", "SF026", "maps draft id 4 to 24"),
        ("eagle3-empty-map", "map", "warning", "SF070", "each id once"),
        ("eagle3-packed", "stored as", "error", "SF067", "config.json does not say so"),
        ("eagle3-quantised", "stored as", "warning", "SF073", "quantised (gptq)"),
        ("eagle3-no-map", "head", "error", "SF026", "5 rows"),
    ],
)
def test_a_row_where_a_rule_speaks(
    draft: str, what: str, verdict: str, code: str, said: str
) -> None:
    row = of(draft)[what]
    assert (row.verdict, row.codes) == (verdict, (code,))
    assert said in row.draft


def test_tokenizers_are_compared_word_by_word() -> None:
    row = of("swapped", "STANDALONE")["vocabulary"]
    assert (row.verdict, row.codes) == ("error", ("SF024",))
    assert row.draft == "20 tokens, 1 ids differ (0: `t0` / `other`)"
    assert of("llama", "STANDALONE", "full")["vocabulary"].draft == "20 tokens, the same"


def test_contexts_and_positions() -> None:
    short = of("eagle3-short", more="run: {max_length: 64}")["context"]
    assert (short.verdict, short.codes) == ("warning", ("SF068",))
    assert short.draft == "16"
    stretched = of("eagle3-unscaled", target="yarn")["positions"]
    assert stretched.verdict == "warning"
    assert (stretched.target, stretched.draft) == (
        "theta 10000, yarn x4 from 512",
        "theta 10000, not scaled",
    )


def test_layers_that_the_target_brings() -> None:
    found = rows("target: {model: tiny-one-of-two-mtp}\ndraft: {algorithm: NEXTN}")
    assert (found["mtp layers"].target, found["mtp layers"].draft) == ("2 declared", "1 present")
    assert found["mtp layers"].codes == ("SF019",)
    lost = rows("target: {model: tiny-without-mtp}\ndraft: {algorithm: NEXTN}")
    assert lost["mtp layers"].draft == "0 present"
    assert (lost["mtp layers"].verdict, lost["mtp layers"].codes) == ("error", ("SF064",))


def test_a_block() -> None:
    row = of("dspark", "DSPARK")["block"]
    assert row.draft == "3 at once, sees the whole text, mask token 19, a confidence head"


def test_nothing_is_said_where_no_network_drafts() -> None:
    assert rows("target: {model: tiny-llama}\ndraft: {algorithm: NGRAM}") == {}


@pytest.mark.parametrize("name", names())
def test_every_recipe_that_ships_fits(name: str) -> None:
    recipe = load(find(name))
    found = fit(facts_of(recipe), resolve(recipe).findings)
    assert [row for row in found if row.codes] == []
    assert (len(table(found).splitlines()) == len(found) + 1) or not found


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "pico/eagle3"]) == 0
    assert "`d2t` of 1216: each id once" in capsys.readouterr().out
    assert main(["validate", "pico/eagle3", "--no-fit"]) == 0
    assert capsys.readouterr().out == "1 recipe, no findings\n"
    assert main(["validate", "pico/eagle3", "pico/nextn"]) == 0
    assert capsys.readouterr().out == "2 recipes, no findings\n"
    assert main(["validate", "pico/eagle3", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["validate", "pico/eagle3", "pico/nextn", "--fit", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["findings"] == []
    assert [row["what"] for row in said["fit"]["pico/nextn"]][:2] == ["kind", "hidden size"]


def test_the_table_stands_beside_findings_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("target: {model: tiny-llama}\ndraft: {algorithm: EAGLE3, model: tiny-eagle}\n")
    assert main(["validate", str(file)]) == 1
    assert "error (SF060)" in capsys.readouterr().out
    file.write_text("target: [")
    assert main(["validate", str(file)]) == 2  # nothing is known of its models


def test_what_is_recorded_of_how_weights_are_stored() -> None:
    recipe = load(find("llama/llama3_1_eagle3_chain"))
    stored = {row.what: row for row in fit(facts_of(recipe), ())}["stored as"]
    assert (stored.target, stored.draft) == ("BF16, as recorded", "FP16, as recorded")
    assert stored.verdict == OK
    unknown = {row.what: row for row in fit(facts_of(load(find("kimi/k2_eagle3"))), ())}
    assert unknown["stored as"].verdict == UNTOLD


def test_a_target_without_a_draft_in_it_is_no_draft() -> None:
    found = rows("target: {model: tiny-llama}\ndraft: {algorithm: NEXTN, model: tiny-llama}\n")
    assert found["kind"].draft.startswith("no draft that is known")
    assert "embedding" not in found
