"""What a block draft's config says, in the words of each publisher; and that no words break it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow import block_config
from specflow.block_config import BlockFacts, default_taps, describe, find, guesses_ahead, tap_ids
from specflow.facts import DraftFacts, describe_draft, read, text_of
from specflow.formats import GATED, RNN, VANILLA
from tests.checkpoint_files import (
    CONFIG,
    HIDDEN,
    LAYERS,
    LM,
    VOCAB,
    Shapes,
    block,
    write,
    write_tokenizer,
)

Config = dict[str, Any]
NESTED = ("dflash_config", "dspark_config")
WRONG: list[Any] = [None, "7", 1.5, True, -1, [], [1], {}, {"a": 1}]


# -- T1: taps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "count", "outputs"),
    [
        (36, 5, [1, 9, 17, 25, 33]),
        (40, 5, [1, 10, 19, 28, 37]),
        (28, 5, [1, 7, 13, 19, 25]),
        (28, 1, [14]),
        (61, 5, [1, 15, 30, 44, 58]),
        (64, 5, [1, 16, 31, 46, 61]),
        (93, 5, [1, 23, 46, 68, 90]),
        (48, 5, [1, 12, 23, 34, 45]),
        (24, 3, [1, 11, 21]),
        (32, 4, [1, 10, 20, 29]),
        (36, 8, [1, 6, 10, 15, 19, 24, 28, 33]),
        (11, 3, [1, 4, 8]),  # 4.5 and 2.5: halves go to the even number
        (7, 3, [1, 2, 4]),
    ],
)
def test_t1_taps_where_a_config_names_none(layers: int, count: int, outputs: list[int]) -> None:
    """Published ids name a layer by what it puts out; a tap here is what enters the next one."""
    assert default_taps(layers, count) == tuple(i + 1 for i in outputs)


OUTPUTS, ENTERED = "target_layer_ids", "aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("config", "taps"),
    [
        ({}, ()),
        ({OUTPUTS: None}, ()),
        ({OUTPUTS: []}, ()),
        ({OUTPUTS: [1, 9, 33]}, (2, 10, 34)),
        ({OUTPUTS: [33, 1]}, (34, 2)),  # in the order of the projection's columns
        ({OUTPUTS: [-1, 3]}, (0, 4)),  # what the embedding puts out
        ({"dflash_config": {OUTPUTS: [1]}}, (2,)),
        ({"dspark_config": {OUTPUTS: [1]}}, (2,)),
        ({"dflash_config": {OUTPUTS: [1]}, OUTPUTS: [5]}, (2,)),
        ({"dspark_target_layer_ids": [40, 41, 42]}, (41, 42, 43)),
        ({ENTERED: [24, 48]}, (24, 48)),  # speculators count as we do
        ({ENTERED: [0]}, (0,)),
        ({OUTPUTS: [1], ENTERED: [24]}, (2,)),
        ({"text_config": {OUTPUTS: [7]}}, (8,)),
    ],
)
def test_taps(config: Config, taps: tuple[int, ...]) -> None:
    assert tap_ids(config) == taps


@pytest.mark.parametrize("key", [OUTPUTS, ENTERED])
@pytest.mark.parametrize("said", [7, "1", True, 1.5, {}, [1, "2"], [True], [1.0], [None], [-2]])
def test_taps_that_name_no_layers(key: str, said: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        tap_ids({key: said})


def test_speculators_never_enter_below_the_first_layer() -> None:
    with pytest.raises(ValueError, match=r"."):
        tap_ids({ENTERED: [-1]})


# -- where a field may be --------------------------------------------------------------------------

PLACES: list[tuple[str, Config]] = [
    ("top", {"block_size": 5}),
    ("speculators", {"transformer_layer_config": {"block_size": 5}}),
    ("text", {"text_config": {"block_size": 5}}),
    ("dflash", {"dflash_config": {"block_size": 5}}),
    ("dspark", {"dspark_config": {"block_size": 5}}),
    ("prefixed", {"dspark_block_size": 5}),
]


@pytest.mark.parametrize("place", range(len(PLACES)))
def test_a_field_is_looked_up_everywhere(place: int) -> None:
    """Prefixed before nested, nested before the text's own, and the top last."""
    assert find(PLACES[place][1], "block_size") == 5
    for _, general in PLACES[:place]:
        inner = {k: v | {"block_size": 9} if isinstance(v, dict) else 9 for k, v in general.items()}
        assert find(inner | PLACES[place][1], "block_size") == 5
    assert find(PLACES[place][1], "another") is None


@pytest.mark.parametrize("place", [config for _, config in PLACES], ids=[n for n, _ in PLACES])
def test_the_size_of_a_block(place: Config) -> None:
    assert describe(place, text_of(place), {}, {}).size == 5


@pytest.mark.parametrize("said", WRONG)
def test_a_size_that_is_no_number_is_unsaid(said: object) -> None:
    assert describe({"block_size": said}, {}, {}, {}).size == 0
    assert describe({"dflash_config": said}, {}, {}, {}) == BlockFacts()
    assert describe({"text_config": said, "dspark_config": said}, {}, {}, {}) == BlockFacts()


# -- the mask --------------------------------------------------------------------------------------

WORDS = {"<|MASK|>": 17, "<mask>": 4}


@pytest.mark.parametrize(
    ("config", "token"),
    [
        ({}, 17),  # the name that z-lab's code falls back to
        ({"mask_token_id": 0}, 0),
        ({"mask_token_id": 151669}, 151669),
        ({"dflash_config": {"mask_token_id": 8}}, 8),
        ({"dspark_config": {"mask_token_id": 8}}, 8),
        ({"dflash_config": {"mask_token_id": 8}, "mask_token_id": 3}, 8),
        ({"dspark_noise_token_id": 128799}, 128799),
        ({"dspark_config": {"noise_token_id": 6}}, 6),
        ({"text_config": {"mask_token_id": 8}}, 8),
        ({"mask_token": "<mask>"}, 4),
        ({"dflash_config": {"mask_token": "<|MASK|>"}}, 17),
        ({"mask_token": "<mask>", "mask_token_id": 9}, 9),
        ({"mask_token": "<none>"}, -1),
        *(({"mask_token_id": said}, -1 if said is not None else 17) for said in WRONG),
        *(({"mask_token_id": said, "mask_token": "<mask>"}, 4) for said in WRONG),
        *(({"mask_token": said}, -1 if said is not None else 17) for said in WRONG),
    ],
)
def test_the_mask(config: Config, token: int) -> None:
    assert describe(config, {}, {}, WORDS).mask_token == token


# -- which token a row guesses ---------------------------------------------------------------------

SAYS = [
    ("sample_from_anchor", True),
    ("query_zero_predicts_next", True),
    ("shift_label", True),
    ("dspark_bonus_anchor", False),
]
MARKS: list[tuple[Config, bool]] = [
    ({}, False),
    ({}, True),
    ({"architectures": ["Qwen3DSparkModel"], "markov_rank": 0}, False),
    ({"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 1}}, False),
    ({"speculators_model_type": "dspark"}, True),
    ({"speculators_model_type": "dflash"}, False),
    ({"dflash_config": {"projector_type": "dspark"}}, True),
]


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(("key", "sense"), SAYS)
@pytest.mark.parametrize("mark", range(len(MARKS)))
def test_a_key_that_says_it_decides(key: str, sense: bool, value: bool, mark: int) -> None:
    """Nemotron's is a DSpark by its class and its Markov head, and says that its rows do not."""
    config, markov = MARKS[mark]
    ahead = value == sense
    assert guesses_ahead(config | {key: value}, markov=markov) == ahead
    for part in NESTED:
        inner = {part: {**config.get(part, {}), key: value}}
        assert guesses_ahead(config | inner, markov=markov) == ahead


@pytest.mark.parametrize("one", range(len(SAYS)))
@pytest.mark.parametrize("other", range(len(SAYS)))
@pytest.mark.parametrize("part", ["", *NESTED])
def test_keys_that_contradict_one_another(one: int, other: int, part: str) -> None:
    (first, ahead), (second, sense) = SAYS[one], SAYS[other]
    if first == second:
        return
    for agrees in (True, False):
        said = {second: sense == agrees}
        config = {first: ahead} | ({part: said} if part else said)
        if agrees:
            assert guesses_ahead(config, markov=False)
        else:
            with pytest.raises(ValueError, match=r"."):
                guesses_ahead(config, markov=False)


@pytest.mark.parametrize("said", [None, "true", 1, 0, [], {}, [True]])
@pytest.mark.parametrize("key", [key for key, _ in SAYS])
def test_a_key_that_says_neither_is_unsaid(key: str, said: object) -> None:
    assert guesses_ahead({key: said}, markov=True)
    assert not guesses_ahead({key: said}, markov=False)


@pytest.mark.parametrize(
    ("config", "markov", "ahead"),
    [
        ({}, False, False),
        ({}, True, True),
        # DeepSpec: next positions, with a Markov head and without
        ({"architectures": ["Qwen3DSparkModel"], "markov_rank": 256}, True, True),
        (
            {"architectures": ["Qwen3DSparkModel"], "markov_rank": 0, "num_anchors": 512},
            False,
            True,
        ),
        ({"architectures": ["Gemma4DSparkModel"], "markov_rank": 0}, False, True),
        ({"architectures": ["K3DSparkModel"]}, False, True),
        # SpecForge
        ({"architectures": ["DSparkDraftModel"]}, False, True),
        ({"architectures": ["X"], "dflash_config": {"projector_type": "dspark"}}, False, True),
        ({"dflash_config": {"projector_type": "domino"}}, False, False),
        ({"dflash_config": {"markov_rank": 256}}, False, True),
        ({"dspark_markov_rank": 256}, False, True),
        # z-lab
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {}}, False, False),
        ({"architectures": ["DFlash2DraftModel"]}, False, False),
        # speculators, whatever the class is called
        ({"speculators_model_type": "dspark"}, False, True),
        ({"speculators_model_type": "dflash"}, True, False),
        ({"speculators_model_type": "dflash", "architectures": ["DSparkSpeculator"]}, False, False),
        ({"speculators_model_type": "eagle3"}, False, False),
        # foreign text
        ({"speculators_model_type": ["dspark"]}, False, False),
        ({"speculators_model_type": {"a": 1}}, True, True),
        ({"architectures": "Qwen3DSparkModel"}, False, False),
        ({"architectures": [None, 5]}, False, False),
        ({"architectures": {"DSpark": 1}}, False, False),
        ({"projector_type": ["dspark"]}, False, False),
        ({"markov_rank": "256"}, False, False),
        ({"markov_rank": True}, False, False),
    ],
)
def test_marks_of_a_draft_that_guesses_ahead(config: Config, markov: bool, ahead: bool) -> None:
    assert guesses_ahead(config, markov=markov) is ahead


def test_the_nearer_of_two_places_counts() -> None:
    config = {"dflash_config": {"sample_from_anchor": False}, "sample_from_anchor": True}
    assert not guesses_ahead(config, markov=True)


# -- the Markov and confidence heads ---------------------------------------------------------------

W1, W2 = {"markov.w1.weight": (VOCAB, 6)}, {"markov.w2.weight": (VOCAB, 6)}
GATE, JOINT = {"markov.gate.weight": (6, 14)}, {"markov.joint.weight": (18, 20)}


@pytest.mark.parametrize(
    ("shapes", "said", "kind"),
    [
        ({}, "rnn", ""),
        (W1 | W2, None, VANILLA),
        (W1 | W2, "vanilla", VANILLA),
        (W1 | W2, "transformer", VANILLA),
        (W1 | W2, ["rnn"], VANILLA),
        (W1 | W2, "gated", GATED),  # whose weights are then missing, and said to be
        (W1 | W2 | GATE, "gated", GATED),
        (W1 | W2 | GATE, "vanilla", GATED),  # a wrong word would go unnoticed
        (W1 | W2 | JOINT, "rnn", RNN),
        (W1 | W2 | JOINT, "gated", RNN),
    ],
)
def test_the_kind_of_markov_head(shapes: Shapes, said: object, kind: str) -> None:
    for config in ({"markov_head_type": said}, {"dspark_markov_head_type": said}):
        found = describe(config, {}, shapes, {})
        assert (found.markov, found.rank) == (kind, 6 if shapes else 0)
        assert not found.confidence


def test_a_confidence_head_is_told_from_its_weight() -> None:
    assert describe({}, {}, {"confidence.weight": (1, 14)}, {}).confidence
    assert not describe({"enable_confidence_head": True}, {}, {}, {}).confidence


# -- windows ---------------------------------------------------------------------------------------

F, S = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("text", "windows", "window"),
    [
        ({}, (0, 0), 0),
        ({"sliding_window": 128}, (0, 0), 0),
        ({"layer_types": [F, F], "sliding_window": 128}, (0, 0), 0),
        ({"layer_types": [S, S], "sliding_window": 128}, (128, 128), 128),
        ({"layer_types": [S, F], "sliding_window": 128}, (128, 0), 0),
        ({"layer_types": [S, S]}, (0, 0), 0),
        ({"layer_types": [S], "sliding_window": 128}, (0, 0), 0),
        ({"layer_types": S, "sliding_window": 128}, (0, 0), 0),
        ({"layer_types": {S: 1}, "sliding_window": 128}, (0, 0), 0),
        ({"layer_types": [S, 5], "sliding_window": 128}, (128, 0), 0),
        *(({"layer_types": [S, S], "sliding_window": said}, (0, 0), 0) for said in WRONG),
    ],
)
def test_windows(text: Config, windows: tuple[int, ...], window: int) -> None:
    found = describe({}, text | {"num_hidden_layers": 2}, {}, {})
    assert (found.windows, found.window) == (windows, window)


def test_a_draft_of_no_known_layers_has_no_window() -> None:
    assert describe({}, {}, {}, {}).window == 0
    assert BlockFacts(windows=(64, 128)).window == 128
    assert BlockFacts(windows=(64, 0)).window == 0


@pytest.mark.parametrize(
    ("config", "causal"),
    [
        ({}, (False, True)),
        ({"is_causal": True}, (True, True)),
        ({"is_causal": False}, (False, False)),
        ({"dflash_config": {"is_causal": False}}, (False, False)),
        ({"sliding_window_non_causal": True}, (False, False)),
        ({"sliding_window_non_causal": False}, (False, True)),
        ({"sliding_window_non_causal": "yes"}, (False, True)),
        ({"is_causal": True, "sliding_window_non_causal": True}, (True, True)),
        *(({"is_causal": said}, (False, True)) for said in WRONG if said is not True),
    ],
)
def test_directions(config: Config, causal: tuple[bool, bool]) -> None:
    assert describe(config, {}, {}, {}).causal == causal


def test_what_the_draft_keeps_of_a_position() -> None:
    shapes = {
        f"layers.{i}.self_attn.{name}_proj.weight": (8 * 128, 4096)
        for i in range(5)
        for name in ("k", "v")
    }
    assert describe({}, {"num_hidden_layers": 5}, shapes, {}).kv_width * 2 == 20_480  # bf16 (8.0)
    assert describe({}, {"num_hidden_layers": 3}, shapes, {}).kv_width == 3 * 2048
    assert describe({}, {"num_hidden_layers": "5"}, shapes, {}).kv_width == 0


@pytest.mark.parametrize("key", ["dspark_num_hidden_layers", "dflash_config"])
def test_layers_are_those_of_the_text(key: str) -> None:
    """A number elsewhere is not what the network is built from, however large it is."""
    most = 10**12
    config = {"num_hidden_layers": 2, "layer_types": [S, S], "sliding_window": 8}
    config[key] = {"num_hidden_layers": most, "sliding_window": 9} if key in NESTED else most
    began = perf_counter()
    assert describe(config, text_of(config), {}, {}).windows == (8, 8)
    assert perf_counter() - began < 1


# -- any text at all -------------------------------------------------------------------------------

KEYS = [
    "block_size", "mask_token_id", "noise_token_id", "mask_token", OUTPUTS, ENTERED,
    "speculators_model_type", "architectures", "markov_rank", "projector_type", "markov_head_type",
    "is_causal", "sliding_window_non_causal", "sliding_window", "layer_types", "num_hidden_layers",
    "text_config", "transformer_layer_config", *NESTED, *(key for key, _ in SAYS),
]  # fmt: skip
words = st.sampled_from([*KEYS, *(f"dspark_{key}" for key in KEYS)])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 4096) | st.floats() | st.text(max_size=4)
    | st.sampled_from(["dspark", "dflash", S, F, "rnn", "gated", "Qwen3DSparkModel"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(words, values, max_size=8), st.booleans())
def test_no_text_breaks_it(config: Config, markov: bool) -> None:
    shapes: dict[str, tuple[int, ...]] = {**W1, **W2} if markov else {}
    with contextlib.suppress(ValueError):  # what rows guess is contradicted
        found = describe(config, text_of(config), shapes, WORDS)
        assert found.size >= 0
        assert found.mask_token >= -1
        assert type(found.ahead) is bool
        assert all(type(window) is int and window >= 0 for window in found.windows)
    with contextlib.suppress(ValueError):
        assert all(type(tap) is int and tap >= 0 for tap in tap_ids(config))
    for key in KEYS:
        assert block_config.whole(config, key) >= 0


# -- out of a folder -------------------------------------------------------------------------------

KV = 4
DFLASH: Shapes = {
    "fc.weight": (HIDDEN, 2 * HIDDEN),
    "hidden_norm.weight": (HIDDEN,),
    "norm.weight": (HIDDEN,),
    **block("layers.0."),
    "layers.0.input_layernorm.weight": (HIDDEN,),
    "layers.0.self_attn.q_norm.weight": (KV,),
    "layers.0.self_attn.k_norm.weight": (KV,),
}
DSPARK: Shapes = {
    **DFLASH,
    "markov_head.markov_w1.weight": (VOCAB, 6),
    "markov_head.markov_w2.weight": (VOCAB, 6),
    "confidence_head.proj.weight": (1, HIDDEN + 6),
    "confidence_head.proj.bias": (1,),
}
COPIES: Shapes = {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
LAYER = {
    "hidden_size": HIDDEN, "vocab_size": VOCAB, "num_hidden_layers": 1, "layer_types": [S],
    "sliding_window": 16, "intermediate_size": 2 * HIDDEN, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": KV,
}  # fmt: skip
FLAT = {
    "architectures": ["Qwen3DSparkModel"], "block_size": 7, "mask_token_id": 19,
    "target_layer_ids": [0, 2], "markov_head_type": "vanilla",
}  # fmt: skip


def told(folder: Path, shapes: Shapes, config: Config) -> DraftFacts:
    target = read(str(write_tokenizer(write(folder / "target", LM, **CONFIG))))
    return describe_draft(target, read(str(write(folder / "draft", shapes, **config))))


def test_dspark_of_deepspec(tmp_path: Path) -> None:
    """Copies of the target's embedding and head are none of its own."""
    assert told(tmp_path, {**DSPARK, **COPIES}, LAYER | FLAT) == DraftFacts(
        "dspark",
        hidden_size=HIDDEN,
        reads_width=2 * HIDDEN,
        taps=(1, 3),
        tap_count=2,
        block=BlockFacts(
            size=7,
            mask_token=19,
            ahead=True,
            markov=VANILLA,
            rank=6,
            confidence=True,
            windows=(16,),
            kv_width=2 * KV,
        ),
    )


def test_dflash_of_z_lab(tmp_path: Path) -> None:
    inner = {"block_size": 16, "mask_token": "t5", "target_layer_ids": [0, 2]}
    names = {"architectures": ["DFlashDraftModel"], "dflash_config": inner}
    net = told(tmp_path, DFLASH, LAYER | names)
    assert (net.format, net.taps, net.problem) == ("dflash", (1, 3), None)
    assert net.block == BlockFacts(size=16, mask_token=5, windows=(16,), kv_width=2 * KV)


def test_dflash_of_speculators(tmp_path: Path) -> None:
    reduced = {"lm_head.weight": (2, HIDDEN), "d2t": ("I64", [0, 4])}
    config = {
        "speculators_model_type": "dflash", "transformer_layer_config": LAYER, "block_size": 8,
        "mask_token_id": 4, ENTERED: [1, 3],
    }  # fmt: skip
    net = told(tmp_path, {**DFLASH, **reduced}, config)
    assert (net.format, net.taps, net.problem) == ("dflash", (1, 3), None)
    assert (net.vocab_size, net.map_size, net.has_map) == (2, 2, True)
    assert net.block == BlockFacts(size=8, mask_token=4, windows=(16,), kv_width=2 * KV)


@pytest.mark.parametrize("own", [True, False])
def test_a_draft_with_its_own_embedding_says_so(tmp_path: Path, own: bool) -> None:
    flags = {"has_own_embed": own, "has_own_lm_head": own}
    net = told(tmp_path, {**DSPARK, **COPIES}, LAYER | FLAT | flags)
    assert (net.has_embedding, net.vocab_size) == (own, VOCAB if own else 0)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"sample_from_anchor": True, "shift_label": False},
            "config.json of `draft` says both that rows guess ahead and that not",
        ),
        ({"target_layer_ids": "all"}, "`target_layer_ids` of `draft` names no layers"),
        ({"target_layer_ids": [0, 1, 2]}, "`draft` has weights for 2 taps, and names 3"),
        (
            {"target_layer_ids": [0, LAYERS]},
            "`draft` reads what enters layers 1, 5 of a target that has 4",
        ),
    ],
)
def test_a_config_that_does_not_hold_together(tmp_path: Path, config: Config, said: str) -> None:
    net = told(tmp_path, DSPARK, LAYER | FLAT | config)
    assert net.problem is not None
    assert net.problem.message.replace(str(tmp_path / "draft"), "draft").startswith(said)


def test_a_dflash_of_another_kind_is_refused(tmp_path: Path) -> None:
    more = {"layers.0.attention_conv.base_kernel": (2, 3, HIDDEN)}
    net = told(tmp_path, {**DFLASH, **more}, LAYER | FLAT)
    assert net.problem is not None
    assert "is a DFlash-2 draft" in net.problem.message


@pytest.mark.parametrize("kind", [["dspark"], {"a": 1}, 5])
def test_a_config_of_wrong_types_is_still_read(tmp_path: Path, kind: object) -> None:
    config: Config = FLAT | {"speculators_model_type": kind, "block_size": "7", "is_causal": 1}
    net = told(tmp_path, DSPARK, LAYER | config)
    assert net.problem is None
    assert (net.block.size, net.block.ahead) == (0, True)
