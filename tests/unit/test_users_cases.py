"""Situations that users met, as small files: what `validate` says of each before anything loads.

Each case is of one public thread; the checkpoints are made here, with the shapes that matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specflow.cli import main
from specflow.diagnostics import Diagnostic, Severity
from specflow.errors import RecipeError
from specflow.load import loads
from specflow.resolve import resolve
from tests.checkpoint_files import Shapes, block, write

VOCAB, HIDDEN, LAYERS = 256, 64, 8


def layer(prefix: str, into: int = HIDDEN) -> Shapes:
    return block(prefix, into, HIDDEN, keys=HIDDEN)


TARGET: Shapes = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    "lm_head.weight": (VOCAB, HIDDEN),
    **{n: s for i in range(LAYERS) for n, s in layer(f"model.layers.{i}.").items()},
}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 2 * HIDDEN,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}
MTP_CONFIG = CONFIG | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_nextn_predict_layers": 1,
}
MTP: Shapes = {
    f"model.layers.{LAYERS}.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
    f"model.layers.{LAYERS}.enorm.weight": (HIDDEN,),
    f"model.layers.{LAYERS}.hnorm.weight": (HIDDEN,),
    **layer(f"model.layers.{LAYERS}."),
}
HEADLESS: Shapes = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "midlayer.hidden_norm.weight": (HIDDEN,),
    "midlayer.input_layernorm.weight": (HIDDEN,),
    **layer("midlayer.", 2 * HIDDEN),
    "norm.weight": (HIDDEN,),
}
DRAFT_CONFIG = CONFIG | {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"]}


def speak(folder: Path, rotated: range = range(0)) -> Path:
    """A word-level tokenizer of w0, w1, ...; ids of a stretch moved on by one."""
    ids = {f"w{i}": i for i in range(VOCAB)}
    for i in rotated:
        ids[f"w{i}"] = rotated[(i - rotated[0] + 1) % len(rotated)]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": ids}}))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return speak(write(tmp_path / "target", TARGET, **CONFIG))


def found(text: str) -> tuple[Diagnostic, ...]:
    try:
        return resolve(loads(text)).findings
    except RecipeError as error:
        return error.diagnostics


def recipe(algorithm: str, target: Path, draft: Path | None = None, more: str = "") -> str:
    named = f", model: '{draft}'" if draft else ""
    return f"target: {{model: '{target}'}}\ndraft: {{algorithm: {algorithm}{named}{more}}}\n"


def file(folder: Path, text: str) -> str:
    (folder / "r.yaml").write_text(text)
    return str(folder / "r.yaml")


# -- D1: a verify width that an engine would change ------------------------------------------------


def chain(tmp_path: Path, target: Path, steps: int, width: int) -> str:
    draft = write(
        tmp_path / "eagle",
        {"fc.weight": (HIDDEN, 2 * HIDDEN), **layer("layers.0.")},
        **DRAFT_CONFIG,
    )
    more = f", num_steps: {steps}, topk: 1"
    text = recipe("EAGLE", target, draft, more) + f"verify: {{num_draft_tokens: {width}}}\n"
    return file(tmp_path, text)


@pytest.mark.parametrize(("steps", "width", "right"), [(2, 2, 3), (3, 8, 4)])
def test_d1_a_width_that_no_chain_has(
    steps: int, width: int, right: int, tmp_path: Path, target: Path, capsys: Any
) -> None:
    """Nothing is rewritten unasked: either number may be meant, and the first answer is offered."""
    name = chain(tmp_path, target, steps, width)
    assert main(["validate", name]) == 1
    assert f"verifies {right} positions, not {width}" in capsys.readouterr().out
    assert main(["validate", name, "--fix", "--strict"]) == 1
    assert f"or write `draft.num_steps: {width - 1}`" in capsys.readouterr().out
    assert main(["validate", name, "--fix", "--unsafe-fixes", "--strict"]) == 0
    assert "num_draft_tokens" not in Path(name).read_text()
    assert resolve(loads(Path(name).read_text()))["verify.num_draft_tokens"] == right


def test_d1_a_width_that_fits(tmp_path: Path, target: Path) -> None:
    assert main(["validate", chain(tmp_path, target, 3, 4), "--strict"]) == 0


# -- D2: no draft is named -------------------------------------------------------------------------


def test_d2_eagle3_without_a_draft(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text(json.dumps(CONFIG))
    text = recipe("EAGLE3", speak(bare))
    assert main(["validate", file(tmp_path, text)]) == 1
    assert [d.message for d in found(text)] == ["`draft.model` is not written"]


def test_d2_an_mtp_layer_that_the_target_brings(tmp_path: Path) -> None:
    target = speak(write(tmp_path / "mtp", {**TARGET, **MTP}, **MTP_CONFIG))
    resolved = resolve(loads(recipe("NEXTN", target)))
    assert resolved.findings == ()
    assert resolved["draft.model"] == str(target)
    assert "own checkpoint holds an MTP layer" in resolved.ledger["draft.model"].because


# -- D3: one size, other words ---------------------------------------------------------------------


def test_d3_a_rotated_tokenizer(tmp_path: Path, target: Path) -> None:
    draft = speak(write(tmp_path / "draft", TARGET, **CONFIG), range(10, 20))
    (one,) = found(recipe("STANDALONE", target, draft))
    assert (one.code, one.severity) == ("SF024", Severity.ERROR)
    assert "10 ids differ" in one.message
    assert one.notes[0] == "id 10 is `w10` to the target and `w19` to the draft"


def test_d3_a_copy(tmp_path: Path, target: Path) -> None:
    draft = speak(write(tmp_path / "draft", TARGET, **CONFIG))
    assert found(recipe("STANDALONE", target, draft)) == ()


def test_d3_padding_is_told_from_other_words(tmp_path: Path, target: Path) -> None:
    rows = {
        "model.embed_tokens.weight": (VOCAB + 64, HIDDEN),
        "lm_head.weight": (VOCAB + 64, HIDDEN),
    }
    draft = write(tmp_path / "draft", {**TARGET, **rows}, **CONFIG | {"vocab_size": VOCAB + 64})
    (one,) = found(recipe("STANDALONE", target, speak(draft)))
    assert one.code == "SF027"
    assert (
        "same 256 tokens: rows past them (64 of the draft, 0 of the target) are padding"
        in (one.notes[0])
    )


# -- D4: a draft without a head --------------------------------------------------------------------


def headless(folder: Path, extra: Shapes | None = None, **config: Any) -> Path:
    return write(folder / "draft", {**HEADLESS, **(extra or {})}, **DRAFT_CONFIG | config)


def test_d4a_the_targets_words(tmp_path: Path, target: Path) -> None:
    text = recipe("EAGLE3", target, headless(tmp_path, draft_vocab_size=VOCAB))
    (one,) = found(text)
    assert (one.code, one.severity) == ("SF022", Severity.WARNING)
    assert "the target's head is shared" in one.message
    assert main(["validate", file(tmp_path, text)]) == 0
    assert main(["validate", file(tmp_path, text), "--strict"]) == 1
    allowed = text + "allow: {SF022: it was trained so}\n"
    assert main(["validate", file(tmp_path, allowed), "--strict"]) == 0


@pytest.mark.parametrize("extra", [{}, {"d2t": ("I64", list(range(128)))}])
def test_d4b_words_of_its_own(extra: Shapes, tmp_path: Path, target: Path) -> None:
    (one,) = found(recipe("EAGLE3", target, headless(tmp_path, extra, draft_vocab_size=128)))
    assert (one.code, one.severity) == ("SF066", Severity.ERROR)
    assert "`lm_head.weight` of [128, 64]" in (one.help or "")
    assert "`draft_vocab_size: 256`" in (one.help or "")


def test_d4c_tied_to_its_own_embedding(tmp_path: Path, target: Path) -> None:
    extra = {"embed_tokens.weight": (VOCAB, HIDDEN)}
    draft = headless(tmp_path, extra, draft_vocab_size=VOCAB, tie_word_embeddings=True)
    assert found(recipe("EAGLE3", target, draft)) == ()


# -- D5: MTP layers that are declared --------------------------------------------------------------


def test_d5_a_layer_that_was_dropped(tmp_path: Path) -> None:
    target = speak(write(tmp_path / "mtp", TARGET, **MTP_CONFIG))
    (one,) = found(recipe("NEXTN", target))
    assert one.severity is Severity.ERROR
    assert f"layer {LAYERS} is missing" in one.message
    assert "checkpoint that kept its MTP weights" in (one.help or "")


def test_d5_it_is_there(tmp_path: Path) -> None:
    target = speak(write(tmp_path / "mtp", {**TARGET, **MTP}, **MTP_CONFIG))
    assert found(recipe("NEXTN", target)) == ()


def test_d5_none_is_declared(target: Path) -> None:
    (one,) = found(recipe("NEXTN", target))
    assert one.severity is Severity.ERROR
    assert "holds no MTP layer" in one.message


# -- D6: the sizes of a trie -----------------------------------------------------------------------


def exported(tmp_path: Path, flags: str) -> int:
    text = "target: {model: builtin:pico-llama}\ndraft: {algorithm: NGRAM}\n"
    text += "verify: {num_draft_tokens: 12}\n"
    text += f"engine: {{sglang: {{speculative_ngram_external_corpus_path: c.txt, {flags}}}}}\n"
    return main(["export", file(tmp_path, text), "--engine", "sglang@0.5.23"])


def test_d6_a_trie_too_small_for_a_match() -> None:
    """specflow's own field begins above any depth, so that no match is ever too long for it."""
    text = "target: {model: builtin:pico-llama}\ndraft: {algorithm: NGRAM, capacity: %d}"
    assert [d.code for d in found(text % 18)] == ["SF010"]
    assert found(text % 1000) == ()


def test_d6_a_budget_beyond_the_guesses(tmp_path: Path, capsys: Any) -> None:
    assert exported(tmp_path, "speculative_ngram_external_sam_budget: 12") == 1
    assert "draft tokens - 1 = 11" in capsys.readouterr().err
    assert exported(tmp_path, "speculative_ngram_external_sam_budget: 11") == 0
