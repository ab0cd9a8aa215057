"""MiMo-7B, which the library does not know: a Qwen2 whose MTP layer drafts for it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from specflow import facts, formats
from specflow.models.families import MiMoConfig, MiMoForCausalLM
from specflow.models.lm import LanguageModel
from specflow.models.weights import load_draft

torch.set_num_threads(1)
WIDTH = 32


def folder(path: Path) -> Path:
    """A random MiMo with one MTP layer, in the published naming."""
    torch.manual_seed(0)
    config = MiMoConfig(
        vocab_size=64, hidden_size=WIDTH, num_hidden_layers=2, intermediate_size=64,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        num_nextn_predict_layers=1,
    )  # fmt: skip
    model = MiMoForCausalLM(config)
    model.save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    for name, weight in model.model.layers[0].state_dict().items():
        weights[f"model.mtp_layers.0.{name}"] = torch.randn_like(weight) * 0.1
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"model.mtp_layers.0.{name}.weight"] = torch.rand(WIDTH) + 0.5
    weights["model.mtp_layers.0.input_proj.weight"] = torch.randn(WIDTH, 2 * WIDTH) * 0.1
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_its_target_and_its_mtp_layer_load(tmp_path: Path) -> None:
    target = LanguageModel.load(folder(tmp_path), device="cpu", dtype="float32")
    found = facts.read_folder(tmp_path)
    net = facts.describe_draft(found, None)
    assert (net.format, net.bundled, net.reads_width) == ("mtp_mimo", True, WIDTH)
    form = formats.named(net.format)
    draft = load_draft(found.weights, form, dict(found.config), target.adapter)
    window = draft.window(draft.pool(1, 16), 16)
    tokens, hidden = torch.tensor([5, 6, 7]), torch.randn(1, 3, WIDTH)
    logits, _ = window.feed(tokens, hidden, 0)
    assert logits.shape == (1, 64)
    # The embedding at position 0 counts for nothing there, as in training (serial.md §6.3).
    again, _ = window.feed(torch.tensor([9, 6, 7]), hidden, 0)
    assert torch.equal(logits, again)
    other, _ = window.feed(torch.tensor([5, 9, 7]), hidden, 0)
    assert not torch.equal(logits, other)
