"""Every way that experts are asked says what the library's loop says, and which a graph holds."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    PreTrainedModel,
)

from specflow.models import experts
from specflow.models.experts import way_of
from specflow.models.lm import LanguageModel
from tests.capture_safety import CaptureSafe
from tests.differential.tiny_models import BASE, GEMMA4, SLIDING, VOCABULARY, build

MOE = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32}
OSS = {
    **SLIDING, "num_local_experts": 8, "num_experts_per_tok": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip


def random_model(model: PreTrainedModel) -> PreTrainedModel:
    """All weights drawn; the library leaves those of experts as they lay in memory."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.1)
    return model.eval()


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    **{
        name: (lambda name=name: build(name))
        for name in ("qwen3_moe", "deepseek_v3", "glm4_moe", "mimo_v2")
    },
    "gemma4_moe": lambda: random_model(
        Gemma4ForCausalLM(Gemma4TextConfig(**copy.deepcopy({**BASE, **GEMMA4, **MOE})))
    ),
    # Biases, matrices the other way round, a gate of its own, and sinks.
    "gpt_oss": lambda: random_model(
        GptOssForCausalLM(GptOssConfig(**copy.deepcopy({**BASE, **OSS})))
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_says_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of five over our pool; each way is called, and all but the grouped are captured."""
    model = FAMILIES[family]()
    tokens = torch.randint(VOCABULARY, (1, 11), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(tokens, use_cache=False).logits[0, 6:]
    lm = LanguageModel.wrap(model)
    lens, depths = torch.tensor([6]), torch.arange(5)[None]
    sees = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    for way in ("grouped", "batched", "dense"):
        called = counted(monkeypatch, way)
        window = lm.window(lm.pool(1, 32), 32)
        window.prefill(tokens[0, :6])
        given = (tokens[:, 6:], lens, depths, sees)
        if way == "grouped":
            logits = window.verify_tree(*given)
        else:
            with CaptureSafe():
                logits = window.verify_tree(*given)
        # Logits are some units; sums of a few hundred products in another order.
        torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)
        assert len(called) >= 2, way


def counted(monkeypatch: pytest.MonkeyPatch, way: str) -> list[int]:
    """One way for all tokens, and how many tokens each call has."""
    calls: list[int] = []
    chosen = experts.WAYS[way]

    def watched(module: object, hidden: Tensor, *routing: Tensor) -> Tensor:
        calls.append(len(hidden))
        said: Tensor = chosen(module, hidden, *routing)
        return said

    monkeypatch.setitem(experts.WAYS, way, watched)
    monkeypatch.setattr(experts, "way_of", lambda *_: way)
    return calls


@pytest.mark.parametrize(
    ("tokens", "dtype", "major", "way"),
    [
        (1, torch.float32, None, "grouped"),
        (900, torch.bfloat16, None, "grouped"),
        (4, torch.float64, None, "batched"),
        (4, torch.bfloat16, 9, "grouped"),
        (900, torch.bfloat16, 10, "grouped"),
        # What torch has no kernel for, and would ask the host for.
        (4, torch.float32, 9, "batched"),
        (64, torch.float32, 9, "dense"),
        (64, torch.float16, 10, "dense"),
        (4, torch.bfloat16, 8, "batched"),
        (64, torch.bfloat16, 12, "dense"),
    ],
)
def test_a_device_without_a_kernel_of_groups_is_not_asked_for_one(
    tokens: int, dtype: torch.dtype, major: int | None, way: str
) -> None:
    assert way_of(tokens, dtype, major) == way
