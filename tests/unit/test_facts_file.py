"""Facts in a file: the same findings as from the checkpoints, where no checkpoint is."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.cli import main
from specflow.diagnostics import render
from specflow.errors import RecipeError, UsageError
from specflow.facts import ModelFacts, read
from specflow.facts_file import facts_of, read_facts, reader, text_of
from specflow.load import load, loads
from specflow.packs import find
from specflow.pairing import fit
from specflow.recipe import Recipe
from specflow.resolve import Reader, resolve
from specflow.resolve import facts_of as facts_in
from tests.checkpoint_files import shelf

PAIRS = [
    ("llama", "EAGLE3", "eagle3"),
    ("llama", "EAGLE", "eagle3"),
    ("llama", "EAGLE3", "eagle3-no-map"),
    ("llama", "EAGLE3", "eagle3-wrong-map"),
    ("llama", "EAGLE3", "eagle3-absolute-map"),
    ("llama", "EAGLE3", "eagle3-empty-map"),
    ("llama", "EAGLE3", "eagle3-no-head"),
    ("llama", "EAGLE3", "eagle3-packed"),
    ("llama", "EAGLE3", "eagle3-quantised"),
    ("yarn", "EAGLE3", "eagle3-unscaled"),
    ("llama", "EAGLE", "wide"),
    ("llama", "STANDALONE", "swapped"),
    ("llama", "STANDALONE", "larger-words"),
    ("llama", "DSPARK", "dspark-pickle"),
    ("llama", "DSPARK", "dspark-no-mask"),
    ("llama", "DFLASH", "dflash-2"),
    ("kimi", "EAGLE", "eagle"),
    ("full", "NEXTN", "assistant"),
]
PACKS = ("pico/eagle3", "pico/standalone", "pico/dspark", "pico/nextn", "pico/dspark_window")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    shelf(folder)
    return folder


def said(recipe: Recipe, look: Reader) -> tuple[str, object]:
    """Findings as a person reads them, and the fit table."""
    try:
        findings = resolve(recipe, look).findings
    except RecipeError as error:
        findings = error.diagnostics
    return render(findings), fit(facts_in(recipe, look), findings)


def refuse(model: str) -> ModelFacts:
    raise AssertionError(f"{model} is looked for")


@pytest.mark.parametrize(("target", "algorithm", "draft"), PAIRS, ids=lambda p: p)
def test_the_same_findings(
    target: str,
    algorithm: str,
    draft: str,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = f"target: {{model: tiny-{target}}}\n"
    recipe = loads(f"{text}draft: {{algorithm: {algorithm}, model: tiny-{draft}}}\n")
    monkeypatch.chdir(models)
    there = said(recipe, read)
    told = {f"tiny-{name}": facts_of(read(f"tiny-{name}")) for name in (target, draft)}
    (tmp_path / "facts.yaml").write_text(text_of({n: f for n, f in told.items() if f}))
    monkeypatch.chdir(tmp_path)  # none of the models is here
    monkeypatch.setattr("specflow.facts_file.read", refuse)
    assert said(recipe, reader(read_facts(tmp_path / "facts.yaml"))) == there


@pytest.mark.parametrize("name", PACKS)
def test_the_command_writes_what_it_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "facts.yaml"
    assert main(["validate", name, "--write-facts", str(file)]) == 0
    recipe = load(find(name))
    there = said(recipe, read)
    monkeypatch.setattr("specflow.facts_file.read", refuse)
    assert said(recipe, reader(read_facts(file))) == there
    assert main(["validate", name, "--facts", str(file), "--strict"]) == 0


def test_a_draft_that_lies_in_its_target(models: Path, tmp_path: Path) -> None:
    """`target/dspark` is a model of its own in the file, and lies in the target's folder again."""
    told = {"t": facts_of(read(str(models / "tiny-llama")))}
    told["t/dspark"] = facts_of(read(str(models / "tiny-dspark")))
    (tmp_path / "f.yaml").write_text(text_of({n: f for n, f in told.items() if f}))
    look = reader(read_facts(tmp_path / "f.yaml"))
    resolved = resolve(loads("target: {model: t}\ndraft: {algorithm: DSPARK}"), look)
    assert resolved["draft.model"] == "t/dspark"


def test_a_model_that_the_file_lacks_is_looked_for(tmp_path: Path) -> None:
    file = tmp_path / "facts.yaml"
    file.write_text("facts: 1\nmodels: {}\n")
    assert main(["validate", "pico/eagle3", "--facts", str(file)]) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "not YAML"),
        ("[]", "no facts file"),
        ("facts: 2\nmodels: {}", "no facts file of version 1"),
        ("facts: 1\nmodels: {a: 3}", "no facts of `a`"),
        ("facts: 1\nmodels: {a: {confg: {}}}", "unknown key `confg`"),
        ("facts: 1\nmodels: {a: {config: {}, tensors: {x: 3}}}", "not whole"),
        ("facts: 1\nmodels: {a: {config: {}, tensors: {x: [F32, [q]]}}}", "not whole"),
        ("facts: 1\nmodels: {a: {config: {}, tensors: {d2t: [I64, [2]]}, values: {d2t: [1]}}}",
         "1 values"),
    ],
)  # fmt: skip
def test_what_is_no_facts_file(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "facts.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=reason):
        resolve(loads("target: {model: a}\ndraft: {algorithm: NGRAM}"), reader(read_facts(file)))


def test_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "pico/eagle3", "--facts", "nowhere.yaml"]) == 2
    assert "cannot be read" in capsys.readouterr().err
