"""Loading."""

from __future__ import annotations
from pathlib import Path


def load_weights(folder: Path, *, device: str, dtype: str):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=getattr(torch, dtype),
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
    ).to(device)
