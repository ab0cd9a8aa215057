"""What a draft network is, told from names, shapes and config, and what is told of a broken one."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from specflow.facts import DraftFacts, Facts, ModelFacts, builtins, describe_draft, read
from specflow.formats import TAP_KEY
from tests import checkpoint_files
from tests.checkpoint_files import (
    CONFIG,
    D2T,
    EAGLE,
    EAGLE3,
    HIDDEN,
    LAYERS,
    LM,
    ONE,
    T2D,
    VOCAB,
    Shapes,
)


def write(folder: Path, shapes: Shapes, **config: object) -> ModelFacts:
    """A checkpoint with tensors of these shapes, as facts."""
    return read(str(checkpoint_files.write(folder, shapes, **config)))


@pytest.fixture
def target(tmp_path: Path) -> ModelFacts:
    facts = write(tmp_path / "target", LM, **CONFIG)
    assert facts.problem is None
    return facts


def told(target: ModelFacts, tmp_path: Path, shapes: Shapes, **config: object) -> DraftFacts:
    draft = write(tmp_path / "draft", shapes, **(config or ONE))
    assert draft.problem is None
    return describe_draft(target, draft)


def fault(target: ModelFacts, tmp_path: Path, shapes: Shapes, **config: object) -> str:
    """What is wrong with a draft; its folder is not part of it."""
    problem = told(target, tmp_path, shapes, **config).problem
    assert problem is not None
    assert problem.help
    return problem.message.replace(str(tmp_path / "draft"), "draft")


def test_a_model_of_headers(target: ModelFacts) -> None:
    assert (target.hidden_size, target.layers, target.model_type) == (HIDDEN, LAYERS, "llama")
    assert target.shapes["model.embed_tokens.weight"] == (VOCAB, HIDDEN)
    assert target.shapes.keys() == LM.keys()
    assert target.config == target.text == CONFIG
    assert (target.mtp_layers, target.layer_types, target.no_float) == (0, (), None)


def test_a_config_with_a_part_about_text(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    inner = {"vocab_size": 9, "hidden_size": 5, "num_hidden_layers": 2, "layer_types": kinds}
    facts = write(tmp_path / "a", LM, model_type="gemma4", text_config=inner, num_mtp_layers=2)
    assert (facts.vocab_size, facts.hidden_size, facts.layers, facts.mtp_layers) == (9, 5, 2, 2)
    assert facts.layer_types == tuple(kinds)
    assert facts.model_type == "gemma4"
    assert facts.text == inner
    assert facts.config["text_config"] == inner


@pytest.mark.parametrize(
    "key", ["num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"]
)
def test_layers_for_drafting_are_declared(tmp_path: Path, key: str) -> None:
    assert write(tmp_path / "a", LM, **CONFIG, **{key: 3}).mtp_layers == 3
    assert write(tmp_path / "b", LM, **CONFIG, **{key: None}).mtp_layers == 0


def test_a_table_of_ids_is_no_weight(tmp_path: Path) -> None:
    tables = {
        "d2t": ("I64", D2T),
        "model.t2d": ("BOOL", T2D),
        "masked_embedding.token_ordering": ("I64", list(range(VOCAB))),
    }
    assert write(tmp_path / "a", LM | tables, **CONFIG).no_float is None
    odd = {"experts.scales": ("I32", [1, 2])}
    assert write(tmp_path / "b", LM | odd, **CONFIG).no_float == ("experts.scales", "I32")


def test_a_table_is_as_long_as_its_shape_says(tmp_path: Path) -> None:
    facts = write(tmp_path / "a", {"d2t": ("I64", D2T)}, **CONFIG)
    file = tmp_path / "a" / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"shape": [5]', b'"shape": [9]'))
    assert facts.problem is None
    assert read(facts.model).problem is not None


def test_eagle(target: ModelFacts, tmp_path: Path) -> None:
    net = told(target, tmp_path, EAGLE | {"embed_tokens.weight": (VOCAB, HIDDEN)})
    assert net == DraftFacts(
        "eagle",
        hidden_size=HIDDEN,
        reads_width=HIDDEN,
        embed_rows=VOCAB,
        has_embedding=True,
        fc_bias=True,
    )


def test_eagle_of_a_wider_target(target: ModelFacts, tmp_path: Path) -> None:
    """Its own embedding tells its width; without one the target's is embedded."""
    shapes = EAGLE | {"fc.weight": (HIDDEN, HIDDEN + 12)}
    assert told(target, tmp_path, shapes).reads_width == 12
    shapes |= {"embed_tokens.weight": (VOCAB, 6)}
    assert told(target, tmp_path, shapes).reads_width == 14


def test_eagle3(target: ModelFacts, tmp_path: Path) -> None:
    net = told(target, tmp_path, EAGLE3, **ONE, eagle_config={TAP_KEY: [0, 1, 2]})
    assert net == DraftFacts(
        "eagle3",
        hidden_size=HIDDEN,
        reads_width=3 * HIDDEN,
        taps=(1, 2, 3),
        tap_count=3,
        vocab_size=5,
        has_map=True,
        map_size=5,
    )


def test_eagle3_under_model_and_without_a_head(target: ModelFacts, tmp_path: Path) -> None:
    left_out = ("d2t", "t2d", "lm_head.weight")
    net = told(target, tmp_path, {f"model.{n}": s for n, s in EAGLE3.items() if n not in left_out})
    assert (net.format, net.vocab_size, net.has_map, net.problem) == ("eagle3", 0, False, None)


def test_eagle3_of_speculators(target: ModelFacts, tmp_path: Path) -> None:
    shapes = {n.replace("midlayer", "layers.0"): s for n, s in EAGLE3.items()}
    config = {TAP_KEY: [1, 2, 3], "norm_before_residual": True, "transformer_layer_config": ONE}
    net = told(target, tmp_path, shapes, **config)
    assert (net.format, net.taps, net.problem) == ("eagle3_speculators", (1, 2, 3), None)
    assert net.norm_before_residual
    assert not net.norm_output
    draft = read(str(tmp_path / "draft"))
    assert (draft.vocab_size, draft.hidden_size, draft.layers) == (VOCAB, HIDDEN, 1)


@pytest.mark.parametrize(
    ("format_name", "steps", "shapes"),
    [
        (
            "mtp",
            1,
            {
                "model.layers.4.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
                "model.layers.4.enorm.weight": (HIDDEN,),
                "model.layers.4.embed_tokens.weight": (VOCAB, HIDDEN),
                "model.layers.4.shared_head.head.weight": (VOCAB, HIDDEN),
            },
        ),
        ("mtp_mimo", 1, {"model.mtp_layers.0.input_proj.weight": (HIDDEN, 2 * HIDDEN)}),
        (
            "mtp_qwen3_next",
            1,
            {
                "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
                "mtp.pre_fc_norm_hidden.weight": (HIDDEN,),
            },
        ),
        (
            "mtp_layers",
            3,
            {f"model.mtp.layers.{i}.eh_proj.weight": (HIDDEN, 2 * HIDDEN) for i in range(3)},
        ),
    ],
)
def test_a_draft_that_the_target_brings_along(
    tmp_path: Path, format_name: str, steps: int, shapes: Shapes
) -> None:
    target = write(tmp_path / "both", LM | shapes, **CONFIG)
    expected = DraftFacts(
        format_name, bundled=True, hidden_size=HIDDEN, reads_width=HIDDEN, steps=steps
    )
    assert describe_draft(target, None) == expected
    assert describe_draft(target, read(target.model)) == expected
    assert Facts({"target": target}).net == expected
    other = write(tmp_path / "other", LM, **CONFIG)
    assert describe_draft(other, target).format == "causal_lm"


def test_mtp_of_speculators(target: ModelFacts, tmp_path: Path) -> None:
    net = told(target, tmp_path, {"mtp_layers.0.input_proj.weight": (HIDDEN, 2 * HIDDEN)})
    assert net == DraftFacts("mtp_speculators", hidden_size=HIDDEN, reads_width=HIDDEN)


def test_an_assistant(target: ModelFacts, tmp_path: Path) -> None:
    shapes = {
        "pre_projection.weight": (4, 2 * HIDDEN),
        "post_projection.weight": (HIDDEN, 4),
        "model.embed_tokens.weight": (VOCAB, 4),
        "masked_embedding.token_ordering": ("I64", list(range(VOCAB))),
    }
    net = told(target, tmp_path, shapes)
    assert net == DraftFacts(
        "assistant",
        hidden_size=HIDDEN,
        reads_width=HIDDEN,
        vocab_size=VOCAB,
        embed_rows=VOCAB,
        has_embedding=True,
        ordered_embeddings=True,
    )


def test_a_whole_language_model(target: ModelFacts, tmp_path: Path) -> None:
    net = told(target, tmp_path, LM, **CONFIG)
    assert (net.format, net.hidden_size, net.vocab_size) == ("causal_lm", HIDDEN, VOCAB)
    assert describe_draft(target, target).format == "causal_lm"
    pico = read("builtin:pico-llama-s")
    assert describe_draft(read("builtin:pico-llama"), pico).hidden_size == 128
    gguf = ModelFacts("a.gguf", vocab_size=2, tokens={"a": 0, "b": 1})
    assert describe_draft(target, gguf).format == "causal_lm"


@pytest.mark.parametrize(
    "shapes",
    [
        {"fc.weight": (HIDDEN, 2 * HIDDEN)},
        {**LM, "model.layers.0.eh_proj.weight": (HIDDEN, 2 * HIDDEN)},
        {n: s for n, s in LM.items() if "layers.2" not in n},
        {n: s for n, s in LM.items() if "embed" not in n and "lm_head" not in n},
        {"a": (2, 2)},
    ],
)
def test_what_is_neither_a_draft_nor_a_model(
    target: ModelFacts, tmp_path: Path, shapes: Shapes
) -> None:
    assert told(target, tmp_path, shapes, **CONFIG) == DraftFacts()


def test_a_lone_layer_is_no_model(target: ModelFacts, tmp_path: Path) -> None:
    """A layer that is fed from aside, in names of no known format."""
    shapes = {
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        "embed_tokens.weight": (VOCAB, HIDDEN),
        "layers.0.self_attn.qkv_proj.weight": (3 * HIDDEN, HIDDEN),
    }
    assert told(target, tmp_path, shapes) == DraftFacts()


def test_no_draft(target: ModelFacts) -> None:
    assert describe_draft(target, None) == DraftFacts()
    assert Facts({"target": target}).net == DraftFacts()
    assert Facts().net == DraftFacts()
    assert Facts({"target": target, "draft": read("builtin:none")}).net == DraftFacts()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"d2t": ("I64", [0, 1, 1, 2, 20])}, "`d2t` maps draft id 4 to 24, and the target's ids"),
        ({"d2t": ("I64", [-1, 1, 1, 2, 10])}, "`d2t` maps draft id 0 to -1"),
        ({"d2t": ("I64", [0, 1, 0, 2, 10])}, "`d2t` maps draft ids 1 and 2 both to 2"),
        ({"d2t": ("I64", D2T[:4])}, "`d2t` of `draft` has 4 ids, its head 5 rows"),
        ({"d2t": ("F32", D2T)}, "`d2t` of `draft` is stored as F32"),
        ({"t2d": ("BOOL", T2D[:-1])}, "`t2d` of `draft` has 19 ids, the target 20"),
        ({"t2d": ("BOOL", [True, *T2D[1:]][::-1])}, "a draft id means target id 0"),
        ({"t2d": ("BOOL", [True, True, *T2D[2:]])}, "`t2d` marks target id 1, and no offset"),
        ({"lm_head.weight": (6, HIDDEN)}, "`d2t` of `draft` has 5 ids, its head 6 rows"),
        ({"lm_head.weight": None}, "`draft` has `d2t` and no head of its own"),
        ({"d2t": None}, "`draft` has a head of 5 rows and no `d2t` to the 20 ids of the target"),
        ({"fc.weight": (HIDDEN,)}, "the projection of `draft` is no matrix"),
    ],
)
def test_a_draft_that_does_not_hold_together(
    target: ModelFacts, tmp_path: Path, changes: Shapes, said: str
) -> None:
    shapes = {name: shape for name, shape in (EAGLE3 | changes).items() if shape is not None}
    assert fault(target, tmp_path, shapes).startswith(said)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({TAP_KEY: "all"}, f"`{TAP_KEY}` of `draft` names no layers"),
        ({TAP_KEY: [1, 2]}, "`draft` has weights for 3 taps, and names 2"),
        ({TAP_KEY: [1, 2, 5]}, "`draft` reads what enters layers 1, 2, 5 of a target that has 4"),
    ],
)
def test_taps_that_do_not_fit(
    target: ModelFacts, tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    assert fault(target, tmp_path, EAGLE3, **ONE, **config).startswith(said)


@pytest.mark.parametrize("dtype", ["I64", "I32"])
def test_a_map_may_be_of_either_width(target: ModelFacts, tmp_path: Path, dtype: str) -> None:
    assert told(target, tmp_path, EAGLE3 | {"d2t": (dtype, D2T)}).problem is None


def test_a_map_of_a_large_vocabulary_is_read_quickly(tmp_path: Path) -> None:
    rows, vocab = 32_000, 128_256
    target = write(tmp_path / "target", LM, **(CONFIG | {"vocab_size": vocab}))
    covered = [i % 4 == 0 and i < 4 * rows for i in range(vocab)]
    shapes = EAGLE3 | {
        "lm_head.weight": (rows, HIDDEN),
        "d2t": ("I64", [3 * i for i in range(rows)]),
        "t2d": ("BOOL", covered),
    }
    draft = write(tmp_path / "draft", shapes, **ONE)

    def spent() -> float:
        began = perf_counter()
        assert describe_draft(target, draft).problem is None
        return perf_counter() - began

    assert min(spent() for _ in range(5)) < 0.1


BUNDLED = {"pico-deepseek": "mtp", "pico-glm": "mtp", "pico-mimo": "mtp_layers"}
PAIRS = {
    "pico-llama-s": ("pico-llama", "causal_lm"),
    "pico-llama-eagle": ("pico-llama", "eagle"),
    "pico-llama-eagle3": ("pico-llama", "eagle3"),
    "pico-deepseek-eagle3": ("pico-deepseek", "eagle3"),
    "pico-qwen3-eagle3": ("pico-qwen3", "eagle3"),
    "pico-gemma4-assistant": ("pico-gemma4", "assistant"),
}


@pytest.mark.parametrize("name", sorted(builtins()))
def test_an_embedded_model_brings_what_it_should(name: str) -> None:
    found = describe_draft(read(f"builtin:{name}"), None)
    expected = BUNDLED.get(name, "")
    assert (found.format, found.bundled) == (expected, bool(expected))
    if name in PAIRS:
        target, form = PAIRS[name]
        draft = describe_draft(read(f"builtin:{target}"), read(f"builtin:{name}"))
        assert (draft.format, draft.problem) == (form, None)
