"""Draft networks as data: how each format is told from the names of its tensors."""

from __future__ import annotations

import re

import pytest

from specflow import formats
from specflow.facts import CAUSAL_LM
from specflow.formats import FORMATS, Format, named, rename, steps_of, stray_step, would_be
from specflow.tables import MADE_FOR

LAYERS = 4
BLOCK = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "post_attention_layernorm.weight",
)


def block(prefix: str, *more: str) -> list[str]:
    return [prefix + name for name in (*BLOCK, *more)]


TARGET = [
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
    *(n for i in range(LAYERS) for n in block(f"model.layers.{i}.", "input_layernorm.weight")),
]
WIDE = ("input_layernorm.weight", "hidden_norm.weight")
EAGLE = ["embed_tokens.weight", "fc.weight", "fc.bias", *block("layers.0.")]
EAGLE3 = ["fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", *block("midlayer.", *WIDE)]
SPECULATORS = [*EAGLE3[:5], "embed_tokens.weight", *block("layers.0.", *WIDE)]
ENTRY = ("enorm.weight", "hnorm.weight", "eh_proj.weight", "input_layernorm.weight")
COPIES = ("embed_tokens.weight", "shared_head.head.weight", "shared_head.norm.weight")
NEXTN = block("model.layers.4.", *ENTRY, *COPIES)
MIMO_ENTRY = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
MIMO = block("mtp_layers.0.", *(f"{n}.weight" for n in (*MIMO_ENTRY, "input_layernorm")))
QWEN = [
    "mtp.fc.weight",
    "mtp.norm.weight",
    "mtp.pre_fc_norm_embedding.weight",
    "mtp.pre_fc_norm_hidden.weight",
    *block("mtp.layers.0.", "input_layernorm.weight"),
]
V2 = [
    n
    for i in range(3)
    for n in block(
        f"model.mtp.layers.{i}.", *ENTRY, "final_layernorm.weight", "pre_mlp_layernorm.weight"
    )
    if "post_attention" not in n
]
ASSISTANT = [
    "pre_projection.weight",
    "post_projection.weight",
    "model.embed_tokens.weight",
    "model.norm.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "masked_embedding.token_ordering",
]
BACKBONE = [
    "fc.weight",
    "hidden_norm.weight",
    "norm.weight",
    *(
        name
        for i in range(2)
        for name in block(
            f"layers.{i}.",
            "input_layernorm.weight",
            "self_attn.q_norm.weight",
            "self_attn.k_norm.weight",
        )
    ),
]
CORRECTED = [
    *BACKBONE,
    "markov_head.markov_w1.weight",
    "markov_head.markov_w2.weight",
    "markov_head.gate_proj.weight",
    "markov_head.gate_proj.bias",
    "markov_head.joint_proj.weight",
    "markov_head.joint_proj.bias",
    "confidence_head.proj.weight",
    "confidence_head.proj.bias",
    "d2t",
    "t2d",
    "embed_tokens.weight",
    "lm_head.weight",
]
OWN = {
    "dspark": CORRECTED,
    "dflash": BACKBONE,
    "eagle": EAGLE,
    "eagle3": EAGLE3,
    "eagle3_speculators": SPECULATORS,
    "mtp_speculators": MIMO,
    "assistant": ASSISTANT,
}
BUNDLED = {
    "mtp": NEXTN,
    "mtp_mimo": [f"model.{n}" for n in MIMO],
    "mtp_qwen3_next": QWEN,
    "mtp_layers": V2,
}


OF_A_BLOCK = (
    r"(fc|hidden_norm|norm)\.weight|layers\.\d\..+"
    r"|markov\.(w1|w2)\.weight|(markov\.(gate|joint)|confidence)\.(weight|bias)"
)


def found(names: list[str], *, bundled: bool) -> str:
    form = formats.recognise(names, LAYERS, bundled=bundled)
    return form.name if form else ""


def test_every_format_has_its_example() -> None:
    assert {f.name for f in formats.FORMATS} == OWN.keys() | BUNDLED.keys()
    assert {f.name for f in formats.FORMATS if f.bundled} == BUNDLED.keys()
    assert MADE_FOR.keys() == {f.name for f in formats.FORMATS} | {CAUSAL_LM}


@pytest.mark.parametrize("name", OWN)
def test_a_draft_of_its_own(name: str) -> None:
    assert found(OWN[name], bundled=False) == name
    assert found(OWN[name], bundled=True) == ""


@pytest.mark.parametrize("name", ["dspark", "dflash", "eagle", "eagle3", "eagle3_speculators"])
def test_a_draft_saved_under_model(name: str) -> None:
    assert found([f"model.{n}" for n in OWN[name]], bundled=False) == name


@pytest.mark.parametrize("name", BUNDLED)
def test_a_draft_inside_its_target(name: str) -> None:
    assert found(TARGET + BUNDLED[name], bundled=True) == name
    assert found(TARGET, bundled=True) == ""


def test_a_language_model_is_no_draft_network() -> None:
    assert found(TARGET, bundled=False) == ""
    assert found(TARGET + NEXTN, bundled=False) == ""


@pytest.mark.parametrize("name", OWN | BUNDLED)
def test_a_format_names_every_weight_once(name: str) -> None:
    """No tensor is left over, and none takes the place of another."""
    form = formats.named(name)
    names = (OWN | BUNDLED)[name]
    assert formats.leftovers(names, form, LAYERS) == []
    ours = formats.rename(names, form, LAYERS)
    copies = [f"model.layers.4.{copy}" for copy in COPIES[:2]] if name == "mtp" else []
    assert sorted([*ours.values(), *copies]) == sorted(names)
    if name != "assistant":
        known = r"embed_tokens\.weight|lm_head\.weight|d2t|t2d"
        if formats.named(name).net.block == formats.CONTEXT:
            assert all(re.fullmatch(f"{known}|{OF_A_BLOCK}", each) for each in ours)
            return
        step = r"steps\.\d\.((embed_norm|hidden_norm|fc|norm)\.(weight|bias)|block\..+)"
        assert all(re.fullmatch(f"{known}|{step}", each) for each in ours)


def test_a_draft_that_lies_under_model_is_named_the_same() -> None:
    form = formats.named("eagle3")
    bare = formats.rename(EAGLE3, form, LAYERS)
    under = formats.rename([f"model.{n}" for n in EAGLE3], form, LAYERS)
    assert {ours: f"model.{theirs}" for ours, theirs in bare.items()} == under


def test_a_tensor_that_a_format_does_not_know() -> None:
    assert formats.leftovers([*EAGLE3, "fc2.weight"], formats.named("eagle3"), LAYERS) == [
        "fc2.weight"
    ]


def test_a_layer_for_each_step() -> None:
    ours = formats.rename(V2, formats.named("mtp_layers"), LAYERS)
    assert formats.steps_of(ours) == 3
    assert ours["steps.2.block.post_attention_layernorm.weight"].endswith(
        "pre_mlp_layernorm.weight"
    )
    assert formats.steps_of([]) == 0


@pytest.mark.parametrize("name", ["dspark", "dflash"])
def test_other_names_of_a_block_draft(name: str) -> None:
    """An encoder, a head inside a head, all of it under `model.`: the same tensors."""
    form = formats.named(name)
    bare = formats.rename(OWN[name], form, LAYERS)
    for change in (
        lambda n: {"fc.weight": "encoder.fc.weight"}.get(n, n),
        lambda n: {"hidden_norm.weight": "encoder.output_norm_enc.weight"}.get(n, n),
        lambda n: f"logit_head.{n}" if "_head." in n and n != "lm_head.weight" else n,
        lambda n: f"model.{n}",
    ):
        names = [change(n) for n in OWN[name]]
        assert found(names, bundled=False) == name
        assert formats.leftovers(names, form, LAYERS) == []
        said = {ours: change(theirs) for ours, theirs in bare.items()}
        assert formats.rename(names, form, LAYERS) == said


@pytest.mark.parametrize("lacking", ["fc.weight", "hidden_norm.weight"])
def test_what_is_no_block_draft(lacking: str) -> None:
    for name in ("dspark", "dflash"):
        names = [n for n in OWN[name] if n != lacking]
        assert found(names, bundled=False) not in {"dspark", "dflash"}


def test_a_markov_head_tells_a_dspark_from_a_dflash() -> None:
    names = [n for n in CORRECTED if "markov" not in n]
    assert found(names, bundled=False) == "dflash"
    assert found([*BACKBONE, "confidence_head.proj.weight"], bundled=False) == "dflash"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("layers.0.attention_conv.base_kernel", "a DFlash-2 draft"),
        ("layers.3.mlp_conv.kernel_projection.weight", "a DFlash-2 draft"),
        ("candidate_selector.predecessor_codebook", "a DFlash-2 draft"),
        ("prefix_gru.weight_ih_l0", "a DOMINO draft"),
        ("lilicorr.token_proj.weight", "a LiLiCorr draft"),
    ],
)
def test_a_block_draft_of_another_kind_is_told(name: str, said: str) -> None:
    assert formats.block_variant([*BACKBONE, name]) == said
    assert formats.block_variant(CORRECTED) == ""


IDS = formats.TAP_KEY


@pytest.mark.parametrize(
    ("config", "layers", "kind", "taps"),
    [
        ({}, 32, "", ()),
        ({"eagle_config": None}, 32, "", ()),
        ({"eagle_config": {"use_aux_hidden_state": True}}, 32, "", ()),
        ({IDS: [2, 16, 29]}, 32, "", (2, 16, 29)),
        ({"eagle_config": {IDS: [1, 15, 28]}}, 32, "", (2, 16, 29)),
        ({"eagle_config": {IDS: [1, 15, 28]}}, 0, "", (2, 16, 29)),
        ({"eagle_config": {IDS: [1, 17, 33]}}, 36, "gpt_oss", (2, 18, 34)),
        ({"eagle_config": {IDS: [2, 18, 36]}}, 36, "gpt_oss", (2, 18, 36)),
        ({"eagle_config": {IDS: [1, 22, 43]}}, 47, "glm4_moe_lite", (2, 23, 44)),
        ({"eagle_config": {IDS: [2, 23, 44]}}, 47, "glm4_moe_lite", (2, 23, 44)),
    ],
)
def test_taps_are_named_by_the_layer_they_enter(
    config: dict[str, object], layers: int, kind: str, taps: tuple[int, ...]
) -> None:
    assert formats.tap_ids(config, layers, kind) == taps


@pytest.mark.parametrize("said", [5, "2", [-1], [True], [1.0], {"a": 1}])
def test_taps_that_are_no_layers(said: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        formats.tap_ids({IDS: said}, 32)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_place_is_called_as_the_format_does(form: Format) -> None:
    """Whatever a format has a name for, its plainest name leads back to the place."""
    places = {
        "lm_head.weight", "norm.weight", "fc.weight", "markov.w2.weight", "markov.gate.bias",
        "layers.3.mlp.up_proj.weight", "steps.0.fc.weight", "steps.0.embed_norm.weight",
        "steps.2.norm.weight", "steps.0.block.self_attn.q_proj.weight", "nonsense",
    }  # fmt: skip
    names = {place: would_be(place, form, 4) for place in places}
    assert any(names.values())
    for place, name in names.items():
        assert not name or rename((name,), form, 4) == {place: name}


def test_plain_names() -> None:
    assert would_be("markov.gate.bias", named("dspark"), 0) == "markov_head.gate_proj.bias"
    assert would_be("steps.0.embed_norm.weight", named("mtp"), 4) == "model.layers.4.enorm.weight"
    assert would_be("steps.0.block.a", named("eagle"), 0) == "layers.0.a"
    assert would_be("nonsense", named("eagle"), 0) == ""


def test_a_stray_step_is_none_of_those_that_follow_one_another() -> None:
    names = ["steps.0.fc.weight", "steps.1.fc.weight", "steps.7.fc.weight", "norm.weight"]
    assert steps_of(names) == 2
    assert stray_step(names) == 7
    assert stray_step(names[:2]) is None
    assert steps_of(names[2:]) == 0
