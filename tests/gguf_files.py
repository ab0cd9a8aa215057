"""A GGUF file small enough to write by hand."""

from __future__ import annotations

import struct

TOKENS = ["<s>", "a", "b"]


def text(said: str) -> bytes:
    return struct.pack("<Q", len(said)) + said.encode()


def made(weights: int = 64) -> bytes:
    """A file with three tokens, a context of 77 and one float32 tensor of 4 x 4."""
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.context_length") + struct.pack("<II", 4, 77),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + b"".join(map(text, TOKENS)),
    ]
    tensor = text("w") + struct.pack("<IQQIQ", 2, 4, 4, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor
    return head + b"\0" * (-len(head) % 32) + b"\1" * weights
