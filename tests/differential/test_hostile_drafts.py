"""A draft whose weights mean harm is refused by name, and before it takes any memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specflow import facts
from specflow.errors import RuntimeFault
from specflow.formats import named
from specflow.models.lm import LanguageModel
from specflow.models.loading import load_weights
from specflow.models.weights import load_block, load_draft
from tests.differential.tiny_models import build

Weights = dict[str, Tensor]
EAGLE, EAGLE3, DSPARK = "pico-llama-eagle", "pico-llama-eagle3", "pico-llama-dspark"


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    return LanguageModel.load(facts.builtins()["pico-llama"], device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def half() -> LanguageModel:
    return LanguageModel.load(facts.builtins()["pico-llama"], device="cpu", dtype="float16")


def copied(name: str, folder: Path, change: Callable[[Weights], object], **config: Any) -> Path:
    """A shipped draft with other weights and another config."""
    made = Path(shutil.copytree(facts.builtins()[name], folder / "draft"))
    weights = {n: t.float() if t.is_floating_point() else t
               for n, t in load_file(made / "model.safetensors").items()}  # fmt: skip
    change(weights)
    save_file(weights, made / "model.safetensors")
    said = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(said | config))
    return made


def opened(made: Path, whole: LanguageModel) -> Any:
    """Load it whatever its headers tell: nothing that is told there is relied on."""
    target, draft = facts.read("builtin:pico-llama"), facts.read_folder(made)
    net = replace(facts.describe_draft(target, draft), problem=None)
    form, said = named(net.format), dict(draft.config)
    if net.format == "dspark":
        return load_block(draft.weights, form, said, net, whole.adapter)
    return load_draft(draft.weights, form, said, whole.adapter)


def scale(name: str, factor: float) -> Callable[[Weights], object]:
    return lambda weights: weights[name][:1].fill_(factor)


@pytest.mark.parametrize(
    ("draft", "name"),
    [(EAGLE, "fc.weight"), (EAGLE3, "norm.weight"), (DSPARK, "markov_head.markov_w2.weight")],
)
def test_a_weight_that_half_precision_cannot_hold(
    draft: str, name: str, target: LanguageModel, half: LanguageModel, tmp_path: Path
) -> None:
    made = copied(draft, tmp_path, scale(name, 1e5))
    opened(made, target)
    with pytest.raises(RuntimeFault, match=f"`{name}` of .* is not finite in float16"):
        opened(made, half)


def test_a_buffer_that_is_not_finite(tmp_path: Path) -> None:
    build("gemma4").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(n for n in weights if n.endswith("layer_scalar"))
    weights[name].fill_(float("nan"))
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(RuntimeFault, match=r"`.*layer_scalar` of .* is not finite"):
        load_weights(tmp_path, device="cpu", dtype="float32")


@pytest.mark.parametrize("draft", [EAGLE, EAGLE3, DSPARK])
@pytest.mark.parametrize(
    ("size", "said"),
    [
        ({"intermediate_size": 2**34}, "mlp"),  # 16 TB for each of three weights
        ({"head_dim": 2**30}, "self_attn"),
        ({"num_attention_heads": 256, "num_key_value_heads": 256, "head_dim": 2**26}, "self_attn"),
    ],
)
def test_nothing_is_built_that_nothing_fits(
    draft: str, size: dict[str, int], said: str, target: LanguageModel, tmp_path: Path
) -> None:
    """The sizes of a config are those of memory, unless its tensors are compared before."""

    def without(weights: Weights) -> None:
        for name in [n for n in weights if said in n and "k_norm" not in n and "q_proj" not in n]:
            del weights[name]

    made = copied(draft, tmp_path, without, **size)
    with pytest.raises(RuntimeFault, match=r"does not fit: (missing weights|weights of another)"):
        opened(made, target)


def test_two_tensors_for_one_place(target: LanguageModel, tmp_path: Path) -> None:
    made = copied(EAGLE, tmp_path, lambda w: w.update({"model.fc.weight": w["fc.weight"] * 2}))
    draft = facts.read_folder(made)
    with pytest.raises(RuntimeFault, match=r"for one place, `fc\.weight`, `model\.fc\.weight`"):
        load_draft(draft.weights, named("eagle"), dict(draft.config), target.adapter)


def test_what_is_missing_is_called_as_it_is_published(
    target: LanguageModel, tmp_path: Path
) -> None:
    rank, width = 32, 256
    gate = {"markov_head.gate_proj.weight": torch.zeros(rank, rank + width)}
    made = copied(DSPARK, tmp_path, lambda w: w.update(gate))
    with pytest.raises(RuntimeFault, match=r"missing weights, `markov_head\.gate_proj\.bias`"):
        opened(made, target)


def test_what_a_library_warns_of_is_told_by_findings(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """A size of 0 is refused by its weights; nothing else is said beside it."""
    folder = Path(shutil.copytree(facts.builtins()["pico-deepseek"], tmp_path / "target"))
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"q_lora_rank": 0}))
    with pytest.raises(RuntimeFault, match="weights of another shape"):
        load_weights(folder, device="cpu", dtype="float32")
    assert list(recwarn) == []
