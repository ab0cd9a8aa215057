"""Whether a draft and its target fit, told before any weight loads: every draft with every name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specflow.constraints.drafts import RECURRENT, RECURRENT_FAMILIES
from specflow.diagnostics import Diagnostic, Drop, Put, Severity, render
from specflow.errors import RecipeError
from specflow.facts import read
from specflow.formats import TAP_KEY
from specflow.load import loads
from specflow.manual import manuals
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.stages import DRAFTS
from specflow.tables import ALIASES, MADE_FOR
from tests.checkpoint_files import (
    ASSISTANT,
    CONFIG,
    DFLASH,
    DFLASH_CONFIG,
    DSPARK,
    DSPARK_CONFIG,
    EAGLE,
    EAGLE3,
    HIDDEN,
    LAYERS,
    LM,
    MTP,
    MTP_LAYERS,
    ONE,
    VOCAB,
    Shapes,
    write,
    write_tokenizer,
)
from tests.unit.test_published import PAIRS

OWN_EMBEDDING = {"embed_tokens.weight": (VOCAB, HIDDEN)}
QWEN_MTP = {
    "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
    "mtp.pre_fc_norm_hidden.weight": (HIDDEN,),
}
# Every format in a folder of its own, or inside the target's.
DRAFT_FOLDERS: dict[str, Shapes] = {
    "eagle": EAGLE,
    "eagle3": EAGLE3,
    "eagle3_speculators": {n.replace("midlayer", "layers.0"): s for n, s in EAGLE3.items()},
    "mtp_speculators": {"mtp_layers.0.input_proj.weight": (HIDDEN, 2 * HIDDEN)},
    "assistant": ASSISTANT,
    "dflash": DFLASH,
    "dspark": DSPARK,
    "causal_lm": LM,
}
CONFIGS = {"causal_lm": CONFIG, "dflash": DFLASH_CONFIG, "dspark": DSPARK_CONFIG}
INSIDE: dict[str, Shapes] = {
    "mtp": MTP,
    "mtp_mimo": {"model.mtp_layers.0.input_proj.weight": (HIDDEN, 2 * HIDDEN)},
    "mtp_qwen3_next": QWEN_MTP,
    "mtp_layers": MTP_LAYERS,
}
NETWORKS = [n for n in DRAFTS.names() if DRAFTS[n].formats]


def target(folder: Path, extra: Shapes | None = None, **config: object) -> Path:
    return write_tokenizer(write(folder / "target", {**LM, **(extra or {})}, **(CONFIG | config)))


def draft(folder: Path, form: str, extra: Shapes | None = None, **config: object) -> Path:
    shapes = {**DRAFT_FOLDERS[form], **(extra or {})}
    return write(folder / "draft", shapes, **(CONFIGS.get(form, ONE) | config))


def judged(text: str) -> tuple[ResolvedRecipe | None, list[Diagnostic]]:
    try:
        resolved = resolve(loads(text))
    except RecipeError as error:
        return None, list(error.diagnostics)
    return resolved, list(resolved.findings)


def found(
    algorithm: str, model: Path | str, drafts: Path | str | None = None, more: str = ""
) -> list[Diagnostic]:
    named = f", model: '{drafts}'" if drafts else ""
    text = f"target: {{model: '{model}'}}\ndraft: {{algorithm: {algorithm}{named}{more}}}"
    return judged(text)[1]


def codes(*args: object, **more: str) -> list[str]:
    return [each.code for each in found(*args, **more)]  # type: ignore[arg-type]


# -- which algorithm runs which draft --------------------------------------------------------------


@pytest.mark.parametrize("algorithm", NETWORKS)
@pytest.mark.parametrize("form", DRAFT_FOLDERS)
def test_a_draft_in_a_folder_of_its_own(tmp_path: Path, form: str, algorithm: str) -> None:
    ours, theirs = target(tmp_path), draft(tmp_path, form)
    findings = found(algorithm, ours, theirs)
    runs = form in DRAFTS[algorithm].formats
    runs |= any(a.draft == form for a in ALIASES.get(algorithm, ()))
    assert [f.code for f in findings] == ([] if runs else ["SF060"])
    if runs:
        return
    offer = MADE_FOR[form]
    assert findings[0].fix == Put("draft.algorithm", offer, safe=form != "causal_lm")
    assert f"write `algorithm: {offer}`" in (findings[0].help or "")
    assert found(offer, ours, theirs) == []  # the way out is one


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("algorithm", NETWORKS)
@pytest.mark.parametrize("form", INSIDE)
def test_a_draft_inside_the_target(tmp_path: Path, form: str, algorithm: str, named: bool) -> None:
    ours = target(tmp_path, INSIDE[form])
    findings = found(algorithm, ours, ours if named else None)
    if not named and "model" not in DRAFTS[algorithm].derive:
        assert [f.code for f in findings] == ["SF003"]
    elif form in DRAFTS[algorithm].formats or "causal_lm" in DRAFTS[algorithm].formats:
        assert findings == []  # the target, a whole model, may draft for itself
    else:
        assert [f.code for f in findings] == ["SF060"]
        assert f"it holds {'one' if form == 'mtp_layers' else ''}" in findings[0].message
        assert found(MADE_FOR[form], ours) == []


@pytest.mark.parametrize("algorithm", NETWORKS)
def test_the_target_named_as_its_own_draft(tmp_path: Path, algorithm: str) -> None:
    ours = target(tmp_path)
    findings = found(algorithm, ours, ours)
    if algorithm == "STANDALONE":
        assert findings == []
        return
    assert [f.code for f in findings] == ["SF060"]
    assert "is the target itself, and holds no draft" in findings[0].message
    assert findings[0].fix is None
    again = found(algorithm, ours, f"{ours.parent}/./{ours.name}")  # the same, in other words
    assert [f.code for f in again] == ["SF060"]


def test_a_target_that_is_its_own_draft_and_does_not_exist(tmp_path: Path) -> None:
    for algorithm in NETWORKS:
        assert set(codes(algorithm, tmp_path / "none", tmp_path / "none")) == {"SF061"}
        assert "SF061" in codes(algorithm, tmp_path / "none", draft(tmp_path, "eagle"))
        assert codes(algorithm, target(tmp_path), tmp_path / "none") == ["SF061"]


@pytest.mark.parametrize("algorithm", NETWORKS)
def test_a_draft_that_nobody_knows(tmp_path: Path, algorithm: str) -> None:
    unknown = write(tmp_path / "draft", {"fc.weight": (HIDDEN, 2 * HIDDEN)}, **ONE)
    (finding,) = found(algorithm, target(tmp_path), unknown)
    assert finding.code == "SF060"
    assert "neither a draft network" in finding.message


def test_a_model_whose_config_has_words_of_its_own(tmp_path: Path) -> None:
    """Whether it is whole cannot be told, so it is not said to be broken."""
    shapes = {"wte.weight": (VOCAB, HIDDEN), "h.0.attn.weight": (HIDDEN, HIDDEN)}
    gpt = write(tmp_path / "draft", shapes, model_type="gpt2", n_embd=HIDDEN, n_layer=1)
    assert codes("STANDALONE", target(tmp_path), gpt) == []
    assert codes("EAGLE", target(tmp_path), gpt) == ["SF060"]


def test_an_alias_is_called_as_it_was_written(tmp_path: Path) -> None:
    (finding,) = found("NEXTN", target(tmp_path), draft(tmp_path, "eagle3"))
    assert finding.message.startswith("NEXTN (EAGLE) does not run")


@pytest.mark.parametrize("name", ["NEXTN", "MTP", "EAGLE"])
def test_an_assistant_decides_what_a_name_means(tmp_path: Path, name: str) -> None:
    theirs = draft(tmp_path, "assistant")
    text = f"target: {{model: '{target(tmp_path)}'}}\ndraft: {{algorithm: {name}, model: {theirs}}}"
    resolved, findings = judged(text)
    assert findings == []
    assert resolved is not None
    assert resolved["draft.algorithm"] == "FROZEN_KV_MTP"


# -- widths, vocabularies, maps --------------------------------------------------------------------


NARROW = 4
NARROW_EMBEDDING = {"embed_tokens.weight": (VOCAB, NARROW)}
NARROW_CONFIG = {"hidden_size": NARROW, "intermediate_size": 2 * NARROW, "head_dim": NARROW // 2}


def narrow(form: str) -> Shapes:
    """The tensors of a draft of half the target's width, whose `fc` reads the target's."""
    into = {"fc.weight": DRAFT_FOLDERS[form]["fc.weight"][1], "lm_head.weight": NARROW}
    return {
        name: (rows_of(name, shape[0]), into.get(name, shape[1] // 2)) if len(shape) == 2 else half
        for name, shape in DRAFT_FOLDERS[form].items()
        if not isinstance(shape[0], str)
        for half in [tuple(n // 2 for n in shape)]
    }


def rows_of(name: str, rows: int) -> int:
    """A head has a row for each token, whatever the width."""
    return rows if name == "lm_head.weight" else rows // 2


@pytest.mark.parametrize(
    ("algorithm", "form", "changes", "said"),
    [
        ("EAGLE", "eagle", {"fc.weight": (HIDDEN, HIDDEN + 12)}, "reads states 12 wide"),
        ("EAGLE", "eagle", narrow("eagle"), "hands on states 4 wide, and borrows"),
        (
            "EAGLE",
            "eagle",
            {
                **narrow("eagle"),
                "fc.weight": (NARROW, HIDDEN + NARROW),
                "lm_head.weight": (VOCAB, NARROW),
                **NARROW_EMBEDDING,
            },
            "hands on states 4 wide, and goes on from the states of a target 8 wide",
        ),
        ("EAGLE3", "eagle3", {"fc.weight": (HIDDEN, 20)}, "reads rows of 20, which is no whole"),
        (
            "EAGLE3",
            "eagle3",
            narrow("eagle3"),
            "hands on states 4 wide, and borrows the embedding of a target 8 wide",
        ),
        (
            "FROZEN_KV_MTP",
            "assistant",
            {"post_projection.weight": (12, 4)},
            "reads states 12 wide, and the target's are 8",
        ),
        ("DSPARK", "dspark", {"fc.weight": (HIDDEN, 20)}, "reads rows of 20, which is no whole"),
        (
            "DFLASH",
            "dflash",
            narrow("dflash") | OWN_EMBEDDING,  # a copy of the target's, not read
            "hands on states 4 wide, and borrows the embedding of a target 8 wide",
        ),
    ],
)
def test_a_draft_of_another_width(
    tmp_path: Path, algorithm: str, form: str, changes: Shapes, said: str
) -> None:
    config = NARROW_CONFIG if "4 wide" in said else {}
    (finding,) = found(algorithm, target(tmp_path), draft(tmp_path, form, changes, **config))
    assert finding.code == "SF025"
    assert said in finding.message


def test_a_draft_with_everything_of_its_own_may_be_narrower(tmp_path: Path) -> None:
    theirs = draft(tmp_path, "eagle3", narrow("eagle3") | NARROW_EMBEDDING, **NARROW_CONFIG)
    assert codes("EAGLE3", target(tmp_path), theirs) == []


def test_a_target_that_says_no_width_is_not_judged(tmp_path: Path) -> None:
    ours = target(tmp_path, hidden_size=None)
    assert "SF025" not in codes("EAGLE3", ours, draft(tmp_path, "eagle3"))


@pytest.mark.parametrize("rows", [VOCAB - 1, VOCAB + 1])
def test_an_embedding_of_another_vocabulary(tmp_path: Path, rows: int) -> None:
    theirs = draft(tmp_path, "eagle", {"embed_tokens.weight": (rows, HIDDEN)})
    assert codes("EAGLE", target(tmp_path), theirs) == ["SF027"]
    assert codes("EAGLE", target(tmp_path), draft(tmp_path, "eagle", OWN_EMBEDDING)) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"d2t": ("I64", [0, 1, 1, 2, 20])}, "SF026"),
        ({"t2d": ("BOOL", [True] * VOCAB)}, "SF026"),
        ({"lm_head.weight": (6, HIDDEN)}, "SF026"),
        ({"d2t": ("F32", [0, 1, 1, 2, 10])}, "SF063"),
        ({"fc.weight": (HIDDEN,)}, "SF063"),
    ],
)
def test_a_draft_that_does_not_hold_together(tmp_path: Path, changes: Shapes, code: str) -> None:
    theirs = draft(tmp_path, "eagle3", changes)
    (finding,) = found("EAGLE3", target(tmp_path), theirs)
    assert finding.code == code
    assert finding.help
    assert finding.labels


def test_an_assistant_of_another_vocabulary(tmp_path: Path) -> None:
    theirs = draft(tmp_path, "assistant", {"model.embed_tokens.weight": (VOCAB + 3, 4)})
    assert codes("NEXTN", target(tmp_path), theirs) == ["SF026"]  # once, by its cause


def test_a_broken_draft_inside_the_target_is_told_of_the_target(tmp_path: Path) -> None:
    ours = target(tmp_path, {**MTP, f"model.layers.{LAYERS}.eh_proj.weight": (HIDDEN,)})
    (finding,) = found("NEXTN", ours, ours)
    assert finding.code == "SF063"
    assert codes("NGRAM", ours) == []  # nobody asked for it


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (["full_attention"], ["sliding_attention"], ["SF028"]),
        (["full_attention", "sliding_attention"], ["sliding_attention"], []),
        (None, ["sliding_attention"], []),
        (["full_attention"], None, []),
    ],
)
def test_an_assistant_reads_layers_of_its_kind(
    tmp_path: Path, ours: list[str] | None, theirs: list[str] | None, expected: list[str]
) -> None:
    small = draft(tmp_path, "assistant", layer_types=theirs)
    assert codes("NEXTN", target(tmp_path, layer_types=ours), small) == expected


# -- tokenizers ------------------------------------------------------------------------------------


def test_a_draft_needs_no_tokenizer(tmp_path: Path) -> None:
    for form in DRAFT_FOLDERS:
        theirs = draft(tmp_path, form)
        assert not (theirs / "tokenizer.json").exists()
        assert codes(MADE_FOR[form], target(tmp_path), theirs) == []


def test_a_draft_with_a_tokenizer_speaks_as_its_target(tmp_path: Path) -> None:
    theirs = draft(tmp_path, "eagle")
    write_tokenizer(theirs)
    assert codes("EAGLE", target(tmp_path), theirs) == []
    write_tokenizer(theirs, first="other")
    assert codes("EAGLE", target(tmp_path), theirs) == ["SF024"]


def test_a_network_is_not_held_to_its_own_vocab_size(tmp_path: Path) -> None:
    """Its tokenizer is never read; the config may give the size of its small head."""
    theirs = write_tokenizer(draft(tmp_path, "eagle3", vocab_size=5))
    assert codes("EAGLE3", target(tmp_path), theirs) == []
    small = write_tokenizer(draft(tmp_path, "causal_lm"), VOCAB + 1)
    assert "SF020" in codes("STANDALONE", target(tmp_path), small)


def test_a_bundled_draft_has_the_words_of_its_target(tmp_path: Path) -> None:
    ours = target(tmp_path, MTP)
    assert codes("NEXTN", ours) == codes("NEXTN", ours, ours) == []


# -- shapes and taps -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "verify", "expected"),
    [
        ("", "", []),
        (", topk: 4", "", []),
        (", topk: 4", "shape: tree", []),
        (", topk: 4", "shape: chain", ["SF011"]),
        (", topk: 4", "shape: chain, num_draft_tokens: 2", ["SF011"]),
        ("", "shape: tree", ["SF030"]),
        (", topk: 1", "shape: tree, num_draft_tokens: 9", ["SF030"]),
        (", topk: 2, num_steps: 3", "num_draft_tokens: 11", []),
        (", topk: 2, num_steps: 3", "num_draft_tokens: 12", ["SF014"]),
        (", topk: 2, num_steps: 1", "num_draft_tokens: 3", []),
        (", topk: 2, num_steps: 1", "num_draft_tokens: 4", ["SF014"]),
        (", topk: 2, num_steps: 3", "num_draft_tokens: 2", []),
        ("", "num_draft_tokens: 12", ["SF012"]),
        (", topk: 4", "accept: rejection", ["SF032"]),
        (", topk: 4", "accept: block", ["SF032"]),
    ],
)
@pytest.mark.parametrize("form", ["eagle", "eagle3", "assistant", "causal_lm"])
def test_shapes(tmp_path: Path, form: str, more: str, verify: str, expected: list[str]) -> None:
    text = f"""
target: {{model: '{target(tmp_path)}'}}
draft: {{algorithm: {MADE_FOR[form]}, model: '{draft(tmp_path, form)}'{more}}}
verify: {{{verify}}}
sampling: {{temperature: 0.8}}
"""
    assert [f.code for f in judged(text)[1]] == expected


def test_an_alternative_of_a_wide_tree_is_right(tmp_path: Path) -> None:
    text = f"""
target: {{model: '{target(tmp_path)}'}}
draft: {{algorithm: EAGLE, model: '{draft(tmp_path, "eagle")}', topk: 3, num_steps: 2}}
verify: {{num_draft_tokens: 30}}
"""
    (finding,) = judged(text)[1]
    others = ("raise `draft.num_steps`", "raise `draft.topk`")
    assert finding.fix == Put("verify.num_draft_tokens", 13, safe=False, otherwise=others)
    assert judged(text.replace("30", "13"))[1] == []


def test_a_layer_for_each_step_has_no_branches(tmp_path: Path) -> None:
    ours = target(tmp_path, MTP_LAYERS)
    (finding,) = found("MULTI_LAYER_EAGLE", ours, more=", topk: 2")
    assert (finding.code, finding.fix) == ("SF011", Drop("draft.topk"))
    assert codes("MULTI_LAYER_EAGLE", ours, more=", num_steps: 3") == []
    assert codes("MULTI_LAYER_EAGLE", ours, more=", num_steps: 4") == ["SF015"]
    single = target(tmp_path, MTP)  # one cause, one finding
    assert codes("MULTI_LAYER_EAGLE", single, more=", num_steps: 4") == ["SF060"]


@pytest.mark.parametrize(
    ("config", "more", "expected"),
    [
        ({}, "", []),
        ({}, ", taps: [1, 2, 3]", []),
        ({}, ", taps: [0, 2, 4]", []),
        ({}, ", taps: [1, 2]", ["SF023"]),
        ({}, ", taps: [1, 2, 3, 4]", ["SF023"]),
        ({}, ", taps: [1, 2, 5]", ["SF021"]),
        ({}, ", taps: [5]", ["SF021", "SF023"]),
        ({TAP_KEY: [1, 2, 4]}, "", []),
        ({TAP_KEY: [1, 2, 4]}, ", taps: [1, 2]", ["SF023"]),
        ({TAP_KEY: [1, 2, 5]}, "", ["SF026"]),
        ({TAP_KEY: [1, 2]}, "", ["SF026"]),
    ],
)
def test_taps(tmp_path: Path, config: dict[str, object], more: str, expected: list[str]) -> None:
    findings = found("EAGLE3", target(tmp_path), draft(tmp_path, "eagle3", **config), more)
    assert [f.code for f in findings] == expected
    for each in findings:
        assert (each.fix == Drop("draft.taps")) == (config == {TAP_KEY: [1, 2, 4]})


# -- blocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "more", "expected"),
    [
        ({}, "", []),  # its ids [0, 2] are outputs: what enters layers 1 and 3
        ({}, ", taps: [0, 4]", []),
        ({}, ", taps: [0, 5]", ["SF021"]),
        ({}, ", taps: [1]", ["SF023"]),
        ({"target_layer_ids": [-1, LAYERS - 1]}, "", []),
        ({"target_layer_ids": [0, LAYERS]}, "", ["SF026"]),
        ({"target_layer_ids": [0]}, "", ["SF026"]),
        ({"target_layer_ids": [-2, 0]}, "", ["SF063"]),
        ({"target_layer_ids": "all"}, "", ["SF063"]),
        ({"target_layer_ids": None}, "", []),  # the published formula
    ],
)
def test_taps_of_a_block(
    tmp_path: Path, config: dict[str, object], more: str, expected: list[str]
) -> None:
    theirs = draft(tmp_path, "dspark", **config)
    assert codes("DSPARK", target(tmp_path), theirs, more) == expected


@pytest.mark.parametrize(
    ("said", "more", "expected"),
    [
        (0, "", []),
        (VOCAB - 1, "", []),
        (VOCAB, "", ["SF062"]),
        (VOCAB, ", mask_token: 3", []),
        (None, "", ["SF062"]),
        (None, ", mask_token: 0", []),
        (None, ", mask_token: -1", ["SF062"]),
        (3, f", mask_token: {VOCAB}", ["SF062"]),
        (True, "", ["SF062"]),
        ("3", "", ["SF062"]),
    ],
)
@pytest.mark.parametrize("form", ["dspark", "dflash"])
def test_a_mask_is_a_row_of_the_embedding(
    tmp_path: Path, form: str, said: object, more: str, expected: list[str]
) -> None:
    config = {"mask_token_id": said, "dflash_config": {"target_layer_ids": [0, 2]}}
    theirs = draft(tmp_path, form, **config)
    assert codes(MADE_FOR[form], target(tmp_path), theirs, more) == expected


@pytest.mark.parametrize(
    ("form", "more", "expected"),
    [
        ("dspark", ", window_size: 3", []),  # as many as its block has rows
        ("dspark", ", window_size: 2", ["SF043"]),
        ("dspark", ", window_size: 0", []),
        ("dspark", ", predicts: own, window_size: 3", ["SF043", "SF058"]),  # a row more
        ("dflash", ", window_size: 3", ["SF043"]),
        ("dflash", ", window_size: 4", []),
        ("dflash", ", block_size: 1", ["SF013"]),
        ("dflash", ", block_size: 1, predicts: next", ["SF058"]),
        ("dspark", ", block_size: 1, predicts: own", ["SF058"]),
        ("dspark", ", block_size: 0", ["SF010"]),
        ("dspark", ", block_size: 64", ["SF010"]),
        ("dspark", ", block_size: 63", ["SF057"]),
    ],
)
def test_sizes_of_a_block(tmp_path: Path, form: str, more: str, expected: list[str]) -> None:
    theirs = draft(tmp_path, form)
    assert codes(MADE_FOR[form], target(tmp_path), theirs, more) == expected


@pytest.mark.parametrize(
    ("form", "verify", "expected"),
    [
        ("dspark", "", ["SF050"]),
        ("dflash", "", ["SF038", "SF050"]),
        ("dflash", "confidence: average", ["SF050"]),
        ("dflash", "mode: cap-accept", ["SF038", "SF050"]),
        ("dflash", "mode: static", []),
        ("dspark", "mode: static, lag_steps: 2", ["SF055"]),
        ("dspark", "cost_table: none.json", ["SF052"]),
        ("dspark", "temperatures: none.json", ["SF050", "SF051"]),
    ],
)
def test_plans(tmp_path: Path, form: str, verify: str, expected: list[str]) -> None:
    text = f"""
target: {{model: '{target(tmp_path)}'}}
draft: {{algorithm: {MADE_FOR[form]}, model: '{draft(tmp_path, form)}'}}
verify: {{shape: ragged{", " + verify if verify else ""}}}
"""
    assert [f.code for f in judged(text)[1]] == expected


def test_taps_of_a_draft_that_reads_none(tmp_path: Path) -> None:
    (finding,) = found("EAGLE", target(tmp_path), draft(tmp_path, "eagle"), ", taps: [1]")
    assert finding.code == "SF001"
    assert "one of EAGLE3" in finding.message


# -- targets that cannot take guesses back ---------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(RECURRENT))
def test_a_layer_that_keeps_a_state(tmp_path: Path, kind: str) -> None:
    ours = target(tmp_path, layer_types=[kind] * (LAYERS - 1) + ["full_attention"])
    for algorithm in ("NGRAM", "STANDALONE"):
        theirs = draft(tmp_path, "causal_lm") if algorithm == "STANDALONE" else None
        assert codes(algorithm, ours, theirs) == ["SF044"]
    assert codes("NONE", ours) == []
    assert codes("STANDALONE", target(tmp_path), ours) == []


@pytest.mark.parametrize("family", RECURRENT_FAMILIES)
def test_a_family_whose_config_may_list_nothing(tmp_path: Path, family: str) -> None:
    for said in (family, f"{family}_text"):
        assert codes("NGRAM", target(tmp_path, model_type=said)) == ["SF044"]
    inner = CONFIG | {"model_type": f"{family}_text"}
    assert codes("NGRAM", target(tmp_path, model_type="other", text_config=inner)) == ["SF044"]
    kinds = ["full_attention"] * LAYERS  # what config.json lists counts
    assert codes("NGRAM", target(tmp_path, model_type=family, layer_types=kinds)) == []


@pytest.mark.parametrize(
    "kind", ["full_attention", "sliding_attention", "chunked_attention", "deepseek_sparse"]
)
def test_attention_keeps_no_state(tmp_path: Path, kind: str) -> None:
    assert codes("NGRAM", target(tmp_path, layer_types=[kind] * LAYERS)) == []


def test_a_draft_model_that_keeps_a_state(tmp_path: Path) -> None:
    theirs = draft(tmp_path, "causal_lm", model_type="qwen3_5")
    assert codes("STANDALONE", target(tmp_path), theirs) == ["SF045"]


def test_the_mtp_layer_of_such_a_target(tmp_path: Path) -> None:
    ours = target(tmp_path, QWEN_MTP, model_type="qwen3_next", full_attention_interval=4)
    assert codes("NEXTN", ours) == ["SF044"]


# -- models of the Hub -----------------------------------------------------------------------------

ENGINE_ONLY = ("moonshotai/Kimi-K3", "deepseek-ai/DeepSeek-V4")


def said_first(names: str) -> list[str]:
    """What is said of a recorded target whatever drafts for it."""
    return ["SF046"] if names.startswith(ENGINE_ONLY) else []


@pytest.mark.parametrize("names", PAIRS)
def test_recorded_pairs_fit(names: str) -> None:
    ours, *theirs = names.split()
    assert codes(MADE_FOR[PAIRS[names]], ours, *theirs) == said_first(names)


@pytest.mark.parametrize("names", PAIRS)
def test_recorded_pairs_under_other_names(names: str) -> None:
    ours, *theirs = names.split()
    for algorithm in NETWORKS:
        if PAIRS[names] in DRAFTS[algorithm].formats:
            continue
        if not theirs and "model" not in DRAFTS[algorithm].derive:
            continue
        meant = PAIRS[names] == "assistant" and algorithm in ALIASES
        wrong = [] if meant else ["SF060"]
        assert codes(algorithm, ours, *theirs) == said_first(names) + wrong


def test_a_recorded_target_that_an_engine_runs() -> None:
    for algorithm in ("NGRAM", "NONE"):
        (finding,) = found(algorithm, "moonshotai/Kimi-K3")
        assert (finding.code, finding.severity) == ("SF046", Severity.WARNING)
        assert finding.labels[0].text == "69 of 93 layers keep a state"
    assert codes("NGRAM", "moonshotai/Kimi-K2-Instruct") == []
    text = "target: {model: deepseek-ai/DeepSeek-V4-Flash-0731}\ndraft: {algorithm: DSPARK}\n"
    assert [f.code for f in judged(text)[1]] == ["SF046"]
    assert judged(text + "allow: {SF046: an engine runs it}")[1] == []


def test_such_a_target_that_is_here(tmp_path: Path) -> None:
    """Of a folder its layers are told, and what it cannot do is an error."""
    kept = ["linear_attention"] * (LAYERS - 1) + ["full_attention"]
    assert codes("NGRAM", target(tmp_path, layer_types=kept)) == ["SF044"]
    assert codes("NGRAM", target(tmp_path, model_type="kimi_k3")) == ["SF044"]


def test_recorded_drafts_beside_other_targets() -> None:
    """Never silently taken: something tells them apart."""
    pairs = [names.split() for names in PAIRS if " " in names]
    for ours, _ in pairs:
        widths = read(ours).hidden_size, read(ours).vocab_size
        for other, theirs in pairs:
            if (read(other).hidden_size, read(other).vocab_size) != widths:
                form = MADE_FOR[next(f for n, f in PAIRS.items() if n.endswith(f" {theirs}"))]
                said = set(codes(form, ours, theirs))
                # A draft with neither embedding nor a full head tells the width alone.
                told = read(other).hidden_size != widths[0] or "speculator" in theirs
                assert bool(said & {"SF025", "SF026", "SF027"}) >= told, (ours, theirs)


# -- how it is told --------------------------------------------------------------------------------


def test_findings_for_machines(tmp_path: Path) -> None:
    theirs = draft(tmp_path, "eagle3")
    text = f"target: {{model: '{target(tmp_path)}'}}\ndraft: {{algorithm: EAGLE, model: {theirs}}}"
    (said,) = json.loads(render(judged(text)[1], "json"))
    assert (said["code"], said["line"]) == ("SF060", 2)
    fix = {"action": "put", "path": "draft.algorithm", "value": "EAGLE3", "safe": True}
    fix["otherwise"] = []
    assert said["fix"] == fix
    assert judged(text.replace("EAGLE,", "EAGLE3,"))[1] == []


def test_axes_without_a_name(tmp_path: Path) -> None:
    """`signal` and `guess` name the row; the finding stands at the draft then."""
    theirs = draft(tmp_path, "eagle")
    axes = "signal: taps, guess: autoregressive"
    text = f"target: {{model: '{target(tmp_path)}'}}\ndraft: {{{axes}, model: {theirs}}}"
    (finding,) = judged(text)[1]
    assert finding.code == "SF060"
    assert finding.labels
    assert any("draft.algorithm = EAGLE3" in note for note in finding.notes)


def test_codes_are_unique() -> None:
    known = [m.code for m in manuals()]
    assert sorted(set(known)) == known
    names = [m.name for m in manuals()]
    assert len(set(names)) == len(names)
