"""`specflow validate` as engineers use it in a shell and in CI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specflow.cli import main
from specflow.packs import names

ALLOWED = "allow: {SF074: this machine is slow either way}\n"
HALF = "target: {model: builtin:pico-llama}\ndraft: {algorithm: NGRAM}\nrun: {dtype: bfloat16}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(HALF)
    return file


def test_strict_counts_warnings_that_are_not_allowed(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(recipe)]) == 0
    assert "1 recipe, 1 warning" in capsys.readouterr().out
    assert main(["validate", str(recipe), "--strict"]) == 1
    recipe.write_text(HALF + ALLOWED)
    assert main(["validate", str(recipe), "--strict"]) == 0
    assert "no findings" in capsys.readouterr().out.splitlines()[-1]


def test_strict_counts_an_allow_that_silences_nothing(recipe: Path) -> None:
    recipe.write_text(HALF.replace("bfloat16", "float32") + ALLOWED.replace("SF074", "SF012"))
    assert main(["validate", str(recipe)]) == 0
    assert main(["validate", str(recipe), "--strict"]) == 1


def test_a_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "pico/standalone", "--memory", "80GiB"]) == 0
    assert main(["validate", "pico/standalone", "--memory", "10MiB", "--no-fit"]) == 1
    assert "SF072" in capsys.readouterr().out
    assert main(["validate", "pico/standalone", "--memory", "much"]) == 2
    assert "80GiB" in capsys.readouterr().err


def test_one_object_for_machines(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(recipe), "pico/eagle3", "--fit", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["code"] for each in said["findings"]] == ["SF074"]
    assert list(said["fit"]) == ["pico/eagle3"]


def test_a_typo_of_algorithm_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        "target: {model: builtin:pico-llama}\n"
        "draft: {algoritm: EAGLE3, model: builtin:pico-llama-eagle3, num_step: 2}\n"
        "verify: {num_draft_token: 3}\ncommit: {state: extend}\nrun: {batch_sise: 2}\n"
    )
    assert main(["validate", str(file), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    said = [(each["code"], each["help"]) for each in found]
    assert said[0][0] == "SF003"
    names = said[0][1].partition("one of ")[2].split(", ")
    assert {"NGRAM", "NEXTN", "MTP"} <= set(names)
    assert len(names) == len(set(names))
    meant = ("algorithm", "num_steps", "num_draft_tokens", "draft_state", "batch_size")
    for (code, offer), name in zip(said[1:], meant, strict=True):
        assert code == "SF001"
        assert offer == f"did you mean `{name}`?"
    assert main(["validate", str(file), "--fix"]) == 0
    assert "draft: {algorithm: EAGLE3, model: builtin:pico-llama-eagle3, num_steps: 2}" in (
        file.read_text()
    )
    assert "5 fixed" in capsys.readouterr().out


def test_an_unknown_algorithm_hides_no_unknown_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("target: {model: builtin:pico-llama}\ndraft: {algorithm: HARE, num_step: 2}\n")
    assert main(["validate", str(file)]) == 1
    said = capsys.readouterr().out
    assert "SF006" in said
    assert "NEXTN, MTP" in said
    assert "did you mean `num_steps`?" in said


def test_facts_of_nothing_are_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.yaml"
    assert main(["validate", "llama/llama3_1_eagle3_chain", "--write-facts", str(file)]) == 1
    said = capsys.readouterr().err
    assert "recorded in the package" in said
    assert "wrote nothing" in said
    assert not file.exists()
    assert main(["validate", "pico/eagle3", "--write-facts", str(file)]) == 0
    assert file.exists()


def test_facts_make_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "not" / "there" / "f.yaml"
    assert main(["validate", "pico/eagle3", "--write-facts", str(file)]) == 2
    assert "in no folder that exists" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_deep_look_at_no_weights_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    recorded = "llama/llama3_1_eagle3_chain"
    assert main(["validate", recorded, "--deep", "--strict", "--no-fit", "--format", "json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["code"], one["severity"]) == ("SF029", "note")
    assert "looked through no weights of `yuhuili/EAGLE3-LLaMA3.1-Instruct-8B`" in one["message"]
    assert one["line"]
    for here in ("pico/eagle3", "pico/ngram"):  # the weights are here; or there are none
        assert main(["validate", here, "--deep", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == []


def test_a_pack_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pack = [name for name in names() if name.startswith("glm/")]
    assert main(["validate", "glm"]) == 0
    assert f"{len(pack)} recipe" in capsys.readouterr().out
    assert main(["validate", "gl"]) == 2
    assert main(["explain", "glm"]) == 2
    said = capsys.readouterr().out
    assert "`glm` is a folder of recipes" in said
    assert pack[0] in said


@pytest.mark.parametrize("command", ["explain", "compile", "run"])
def test_only_what_is_required_is_said_to_be(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command])
    assert capsys.readouterr().err.endswith("arguments are required: RECIPE\n")


def test_a_field_of_one_side(capsys: pytest.CaptureFixture[str]) -> None:
    same = ["diff", "pico/ngram", "pico/ngram"]
    assert main([*same, "draft.min_match=3"]) == 0
    assert main([*same, "--b", "draft.min_match=3"]) == 1
    assert "draft.min_match  2  → 3" in capsys.readouterr().out
    both = ["--a", "draft.min_match=3", "--b", "draft.min_match=3", "--b", "run.batch_size=2"]
    assert main([*same, *both]) == 1
    assert "draft.min_match" not in capsys.readouterr().out
    assert main([*same, "--b", "draft.min_match"]) == 2
