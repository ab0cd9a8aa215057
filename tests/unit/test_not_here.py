"""Models that are neither here nor recorded: recipes are translated without them, and not run."""

from __future__ import annotations

import itertools
import re

import pytest

from specflow.cli import main
from specflow.facts import read, unread
from specflow.load import loads
from specflow.packs import find
from specflow.provenance import Origin
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.stages import DRAFTS
from specflow.tables import ALIASES, ENGINES

TARGET, DRAFT = "org/absent-target", "org/absent-draft"
TEXT = "target: {{model: " + TARGET + "}}\ndraft: {{algorithm: {}, model: " + DRAFT + "}}\n"


def of(text: str) -> ResolvedRecipe:
    return resolve(loads(text), unread(read))


@pytest.fixture
def recipe(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "recipe.yaml").write_text(text)
        return str(tmp_path / "recipe.yaml")

    return write


def ran(capsys, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("command", ["run", "compile", "validate"])
def test_what_runs_needs_its_models(command: str, recipe, capsys) -> None:
    code, out, err = ran(capsys, command, recipe(TEXT.format("EAGLE3")))
    assert code == 1
    assert f"error[SF061]: `{TARGET}` is not here, and nothing is recorded of it" in out + err
    assert "SF075" not in out + err


# What each engine is told of a block draft whose size only its checkpoint says.
EXPECTED = {
    ("sglang", "EAGLE3"): "--speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4",
    ("sglang", "DFLASH"): f"--speculative-draft-model-path {DRAFT}\n",
    ("sglang", "DSPARK"): f"--speculative-draft-model-path {DRAFT}\n",
    ("vllm", "EAGLE3"): '"num_speculative_tokens": 3',
    ("vllm", "DFLASH"): '"num_speculative_tokens": 15',
    ("trtllm", "DFLASH"): "max_draft_len: 15",
    ("llamacpp", "DFLASH"): "--spec-draft-n-max 15",
    ("vllm", "MTP"): '"method": "mtp"',
    ("trtllm", "MTP"): "decoding_type: MTP",
    ("llamacpp", "MTP"): "--spec-type draft-mtp",
}


@pytest.mark.parametrize(("engine", "algorithm"), EXPECTED, ids="-".join)
def test_flags_are_translated_without_models(engine, algorithm, recipe, capsys) -> None:
    path = recipe(TEXT.format(algorithm))
    code, out, err = ran(capsys, "export", path, "--engine", engine)
    assert code == 0
    assert EXPECTED[engine, algorithm] in out
    assert err.count("warning[SF075]") == 2
    assert "SF117" not in err
    assert ("`draft.block_size`" in err) == (algorithm in ("DFLASH", "DSPARK"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", [n for n in (*DRAFTS.names(), *ALIASES) if n != "NONE"])
def test_no_command_stumbles_over_what_is_not_known(algorithm, engine, recipe, capsys) -> None:
    """With a draft named and without, every algorithm ends in flags or in findings."""
    for text in (TEXT.format(algorithm), f"target: {{model: {TARGET}}}\ndraft: {algorithm}\n"):
        path = recipe(text.replace(f"draft: {algorithm}", f"draft: {{algorithm: {algorithm}}}"))
        for words in (("export", path), ("explain", path), ("validate", path)):
            code, out, err = ran(capsys, *words, "--engine", engine)
            assert code in (0, 1)
            assert "SF090" not in out + err
            assert "SF061" not in out + err


def test_a_size_that_is_written_goes_across(recipe, capsys) -> None:
    for field, algorithm, flag in (
        ("draft.block_size=8", "DFLASH", "--speculative-dflash-block-size 8"),
        ("verify.num_draft_tokens=8", "DFLASH", "--speculative-dflash-block-size 8"),
        ("draft.block_size=5", "DSPARK", "--speculative-dspark-block-size 5"),
        ("verify.num_draft_tokens=6", "DSPARK", "--speculative-dspark-block-size 5"),
    ):
        path = recipe(TEXT.format(algorithm))
        code, out, _ = ran(capsys, "export", path, field, "--engine", "sglang")
        assert (code, flag in out) == (0, True), field


def test_what_a_model_would_say_is_assumed_and_named() -> None:
    found = of(TEXT.format("DFLASH"))
    assumed = {p for p in found.ledger if found.ledger[p].origin is Origin.ASSUMED}
    own = {"mask_token", "taps", "predicts", "window_size", "block_size"}
    assert assumed == {f"draft.{name}" for name in own} | {"verify.num_draft_tokens"}
    told = [d for d in found.findings if d.code == "SF075"]
    assert [d.primary.span.text for d in told] == [TARGET, DRAFT]
    assert all(f"`draft.{name}`" in told[1].notes[0] for name in own)


def test_no_rule_speaks_of_a_value_that_nobody_said() -> None:
    """16 positions are assumed; 20 that are written may be right, and of a size written are not."""
    wide = TEXT.format("DFLASH") + "verify: {num_draft_tokens: 20}\n"
    assert {d.code for d in of(wide).findings} == {"SF075"}
    sized = wide.replace("DFLASH,", "DFLASH, block_size: 16, predicts: own,")
    with pytest.raises(Exception, match="SF013"):
        of(sized)


def test_only_the_model_that_is_not_here_is_told() -> None:
    text = TEXT.format("EAGLE3").replace(TARGET, "meta-llama/Llama-3.1-8B-Instruct")
    found = of(text)
    assert [d.primary.span.text for d in found.findings if d.code == "SF075"] == [DRAFT]
    assert found.ledger["draft.taps"].origin is Origin.ASSUMED


def test_a_warning_of_it_can_be_silenced() -> None:
    assert of(TEXT.format("EAGLE3") + "allow: {SF075: they are on the server}\n").findings == ()


def test_names_that_can_only_be_here_are_errors() -> None:
    for name in ("builtin:pico-lama", '""'):
        with pytest.raises(Exception, match=r"SF0(61|02|10)"):
            of(f"target: {{model: {name}}}\ndraft: {{algorithm: NGRAM}}\n")


def test_command_lines_are_compared_without_their_models(capsys) -> None:
    line = f"sglang:--model-path {TARGET} --speculative-algorithm EAGLE3 "
    line += f"--speculative-draft-model-path {DRAFT} --speculative-num-steps {{}} "
    line += "--speculative-eagle-topk 1 --speculative-num-draft-tokens {}"
    code, out, err = ran(capsys, "diff", line.format(3, 4), line.format(5, 6))
    assert code == 1
    assert "draft.num_steps" in out
    assert "warning[SF075]" in err
    code, out, err = ran(capsys, "diff", line.format(3, 4), line.format(3, 4), "--graph")
    assert (code, "SF061" in out + err) == (1, True)  # a graph is of sizes that are known


def test_a_facts_file_stands_for_the_models(recipe, tmp_path, capsys) -> None:
    facts = str(tmp_path / "facts.yaml")
    assert main(["validate", str(find("pico/eagle3")), "--write-facts", facts]) == 0
    text = (tmp_path / "facts.yaml").read_text()
    text = re.sub(r"builtin:pico-llama-eagle3", DRAFT, text)
    (tmp_path / "facts.yaml").write_text(text.replace("builtin:pico-llama", TARGET))
    capsys.readouterr()
    path = recipe(TEXT.format("EAGLE3"))
    ways = (("export", path, "--engine", "sglang"), ("explain", path), ("diff", path, path))
    for words, given in itertools.product(ways, ((), ("--facts", facts))):
        code, out, err = ran(capsys, *words, *given)
        assert (code, "SF075" in err) == (0, not given), words
        if words[0] == "explain":
            assert ("assumed" in out) != bool(given)
