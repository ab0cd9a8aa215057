"""A checkpoint larger than memory is judged by its headers: what `validate` reads, counted."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

MB, GB = 1_000_000, 1_000_000_000
SHARDS, LAYERS, WIDTH, VOCAB = 60, 60, 6144, 131_072
COUNTED = """
import sys
from specflow.cli import main
code = main(sys.argv[1:])
print(code, open("/proc/self/io").read().split()[1], file=sys.stderr)
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="needs a kernel that counts what a process reads"
)


def shapes_of(layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer, of about a gigabyte in bfloat16."""
    inner = 4 * WIDTH
    block = f"model.layers.{layer}."
    return {
        **{f"{block}self_attn.{n}_proj.weight": (WIDTH, WIDTH) for n in "qkvo"},
        **{f"{block}mlp.{n}_proj.weight": (inner, WIDTH) for n in ("gate", "up")},
        f"{block}mlp.down_proj.weight": (WIDTH, inner),
        **{f"{block}{n}_layernorm.weight": (WIDTH,) for n in ("input", "post_attention")},
        # As many small ones as a mixture of experts has.
        **{f"{block}mlp.experts.{i}.gate_proj.weight": (64, 64) for i in range(100)},
    }


def write_sparse(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """A whole safetensors file whose weights are a hole; its size."""
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(text)) + text)
        opened.truncate(8 + len(text) + at)
    return file.stat().st_size


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 60 GB in 60 shards, with an index, and a tokenizer of 128k tokens."""
    folder = tmp_path_factory.mktemp("large")
    index, size = {}, 0
    for at in range(SHARDS):
        shapes = shapes_of(at)
        if at == 0:
            shapes |= {
                "model.embed_tokens.weight": (VOCAB, WIDTH),
                "lm_head.weight": (VOCAB, WIDTH),
                "model.norm.weight": (WIDTH,),
            }
        name = f"model-{at + 1:05}-of-{SHARDS:05}.safetensors"
        size += write_sparse(folder / name, shapes)
        index |= dict.fromkeys(shapes, name)
    if sum(file.stat().st_blocks for file in folder.iterdir()) * 512 > GB:
        pytest.skip("this file system keeps no holes")
    assert size > 60 * GB
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": index})
    )
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": VOCAB,
                "hidden_size": WIDTH,
                "intermediate_size": 4 * WIDTH,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": 48,
                "num_key_value_heads": 48,
                "max_position_embeddings": 8192,
            }
        )
    )
    vocab = {f"word{i}": i for i in range(VOCAB)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab, "merges": []}}))
    long_ago = (1e9, 1e9)  # what was written this moment is read each time
    for file in folder.iterdir():
        os.utime(file, long_ago)
    return folder


def read_by(*words: str) -> int:
    """Bytes that a process reads to validate a recipe that it finds nothing wrong with."""
    run = subprocess.run(
        [sys.executable, "-c", COUNTED, "validate", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    code, count = run.stderr.split()
    assert code == "0", run.stdout
    return int(count)


def recipe(folder: Path, name: str, model: Path | str, *, draft: bool = False) -> str:
    file = folder / f"{name}.yaml"
    also = f"{{algorithm: STANDALONE, model: '{model}'}}" if draft else "{algorithm: NGRAM}"
    file.write_text(f"target: {{model: '{model}'}}\ndraft: {also}\n")
    return str(file)


def test_sixty_gigabytes_are_judged_by_ten_megabytes(large: Path, tmp_path: Path) -> None:
    small = read_by(recipe(tmp_path, "small", "builtin:pico-llama"))  # the package, and little else
    assert read_by(recipe(tmp_path, "large", large)) - small < 10 * MB
    assert read_by(recipe(tmp_path, "both", large, draft=True)) - small < 10 * MB


def test_many_recipes_read_a_checkpoint_once(large: Path, tmp_path: Path) -> None:
    many = [recipe(tmp_path, f"many{at}", large, draft=at % 2 == 0) for at in range(20)]
    once, often = read_by(many[0]), read_by(*many)
    assert often - once < MB  # twenty recipes of a few lines
