"""Tiny checkpoints: headers with the shapes that matter, zeros behind them, a config.json."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Shapes = Mapping[str, Any]  # a shape, or the dtype and values of a small table

HIDDEN, VOCAB, LAYERS = 8, 20, 4
WIDTHS = {"F32": 4, "BF16": 2, "I64": 8, "I32": 4, "BOOL": 1, "F8_E4M3": 1}
CODES = {"I64": "q", "I32": "i", "BOOL": "?", "F32": "f"}


def write(folder: Path, shapes: Shapes, **config: object) -> Path:
    """A checkpoint with tensors of these shapes."""
    folder.mkdir(exist_ok=True)
    header: dict[str, Any] = {}
    data = bytearray()
    for name, said in shapes.items():
        dtype, shape, content = "F32", said, b""
        if said and isinstance(said[0], str):
            dtype, values = said
            shape = (len(values),)
            content = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        content = content or bytes(math.prod(shape) * WIDTHS[dtype])
        spans = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": spans}
        data += content
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_tokenizer(folder: Path, count: int = VOCAB, first: str = "t0") -> Path:
    """A tokenizer.json of so many tokens: t0, t1, and so on."""
    vocab = {first if i == 0 else f"t{i}": i for i in range(count)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    return folder


def block(prefix: str, into: int = HIDDEN, width: int = HIDDEN, keys: int | None = None) -> Shapes:
    """A decoder layer, but for what tells it from others; its keys are half as wide unless said."""
    keys = width // 2 if keys is None else keys
    return {
        f"{prefix}self_attn.q_proj.weight": (width, into),
        f"{prefix}self_attn.k_proj.weight": (keys, into),
        f"{prefix}self_attn.v_proj.weight": (keys, into),
        f"{prefix}self_attn.o_proj.weight": (width, width),
        f"{prefix}mlp.gate_proj.weight": (2 * width, width),
        f"{prefix}mlp.up_proj.weight": (2 * width, width),
        f"{prefix}mlp.down_proj.weight": (width, 2 * width),
        f"{prefix}post_attention_layernorm.weight": (width,),
    }


LM: Shapes = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    "lm_head.weight": (VOCAB, HIDDEN),
    **{n: s for i in range(LAYERS) for n, s in block(f"model.layers.{i}.").items()},
}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HIDDEN // 2,
}
D2T = [0, 1, 1, 2, 10]  # target ids 0, 2, 3, 5, 14
T2D = [i in (0, 2, 3, 5, 14) for i in range(VOCAB)]
FIRST = [i < 5 for i in range(VOCAB)]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
EAGLE: Shapes = {"fc.weight": (HIDDEN, 2 * HIDDEN), "fc.bias": (HIDDEN,), **block("layers.0.")}
EAGLE3: Shapes = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "midlayer.hidden_norm.weight": (HIDDEN,),
    "midlayer.input_layernorm.weight": (HIDDEN,),
    **block("midlayer.", 2 * HIDDEN),
    "norm.weight": (HIDDEN,),
    "lm_head.weight": (len(D2T), HIDDEN),
    "d2t": ("I64", D2T),
    "t2d": ("BOOL", T2D),
}
MTP: Shapes = {
    f"model.layers.{LAYERS}.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
    f"model.layers.{LAYERS}.enorm.weight": (HIDDEN,),
}
MTP_LAYERS: Shapes = {
    f"model.mtp.layers.{i}.eh_proj.weight": (HIDDEN, 2 * HIDDEN) for i in range(3)
}
ASSISTANT: Shapes = {
    "pre_projection.weight": (4, 2 * HIDDEN),
    "post_projection.weight": (HIDDEN, 4),
    "model.embed_tokens.weight": (VOCAB, 4),
}
ONE = CONFIG | {"num_hidden_layers": 1}
RANK = 3
DFLASH: Shapes = {
    "fc.weight": (HIDDEN, 2 * HIDDEN),
    "hidden_norm.weight": (HIDDEN,),
    **block("layers.0."),
    "layers.0.input_layernorm.weight": (HIDDEN,),
    "layers.0.self_attn.q_norm.weight": (HIDDEN // 2,),
    "layers.0.self_attn.k_norm.weight": (HIDDEN // 2,),
    "norm.weight": (HIDDEN,),
}
DSPARK: Shapes = {
    **DFLASH,
    "markov_head.markov_w1.weight": (VOCAB, RANK),
    "markov_head.markov_w2.weight": (VOCAB, RANK),
    "confidence_head.proj.weight": (1, HIDDEN + RANK),
}
DFLASH_CONFIG = ONE | {
    "architectures": ["DFlashDraftModel"],
    "block_size": 4,  # 3 guesses
    "dflash_config": {"mask_token_id": VOCAB - 1, "target_layer_ids": [0, 2]},
}
DSPARK_CONFIG = ONE | {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 3,
    "mask_token_id": VOCAB - 1,
    "target_layer_ids": [0, 2],
    "markov_rank": RANK,
}


# The files beside a planned verify that pages name: costs of a step, and temperatures of a head.
COSTS = {
    "sample_batch_tokens": [1, 8, 16],
    "sample_steps_per_sec": [90, 80, 60],
    "max_batch_tokens": 16,
}
MEASURED: dict[str, Any] = {
    "costs": COSTS,
    "costs-falling": COSTS | {"sample_batch_tokens": [8, 4, 16]},
    "costs-short": COSTS | {"sample_steps_per_sec": [90, 80]},
    "costs-of-nothing": COSTS | {"sample_steps_per_sec": [90, 80, 0]},
    "heat": {"temperatures": [1.0, 1.1, 1.2]},
    "heat-5": {"temperatures": [1.0, 1.1, 1.2, 1.3, 1.4]},
    "heat-0": {"temperatures": [1.0, 0, 1.2]},
}


def shelf(folder: Path) -> None:
    """The checkpoints that the pages of tests/diagnostics name as tiny-NAME, and files beside."""
    qwen = {"model_type": "qwen3_next", "full_attention_interval": 4}
    small = {n: s for n, s in EAGLE3.items() if n not in ("d2t", "t2d")}
    headless: Shapes = {
        n: s for n, s in EAGLE3.items() if n not in ("lm_head.weight", "d2t", "t2d")
    }
    packed: Shapes = {
        ("midlayer.mlp.up_proj.qweight" if n.endswith("up_proj.weight") else n): s
        for n, s in EAGLE3.items()
    } | {
        "midlayer.mlp.up_proj.qweight": ("I32", [0] * 16),
        "midlayer.mlp.up_proj.scales": (2 * HIDDEN,),
    }
    wrong = {**EAGLE3, "d2t": ("I64", [0, 1, 1, 2, 20])}
    kinds = ["full_attention"] * LAYERS
    models: dict[str, tuple[Shapes, dict[str, Any]]] = {
        "llama": (LM, CONFIG),
        "full": (LM, CONFIG | {"layer_types": kinds}),
        "without-mtp": (LM, CONFIG | {"num_nextn_predict_layers": 1}),
        "qwen3-next": (LM, CONFIG | qwen),
        "kimi": (LM, CONFIG | {"layer_types": ["linear_attention"] * 3 + kinds[3:]}),
        "eagle": (EAGLE, ONE),
        "eagle3": (EAGLE3, ONE),
        "eagle3-no-map": (small, ONE),
        "eagle3-wrong-map": (wrong, ONE),
        "eagle3-absolute-map": ({**EAGLE3, "d2t": ("I64", [0, 4, 9, 13, 17])}, ONE),
        "eagle3-empty-map": ({**EAGLE3, "d2t": ("I64", [0] * 5), "t2d": ("BOOL", FIRST)}, ONE),
        "eagle3-no-head": (headless, ONE),
        "eagle3-lost-head": (headless, ONE | {"draft_vocab_size": 5}),
        "eagle3-packed": (packed, ONE),
        "eagle3-quantised": (packed, ONE | {"quantization_config": {"quant_method": "gptq"}}),
        "eagle3-short": (EAGLE3, ONE | {"max_position_embeddings": 16}),
        "eagle3-unscaled": (EAGLE3, ONE | {"rope_theta": 10000.0}),
        "yarn": (LM, CONFIG | {"rope_theta": 10000.0, "rope_scaling": YARN}),
        "one-of-two-mtp": ({**LM, **MTP}, CONFIG | {"num_nextn_predict_layers": 2}),
        "wide": (EAGLE | {"fc.weight": (HIDDEN, HIDDEN + 12)}, ONE),
        "assistant": (ASSISTANT, ONE | {"layer_types": ["sliding_attention", "full_attention"]}),
        "dflash": (DFLASH, DFLASH_CONFIG),
        "dspark": (DSPARK, DSPARK_CONFIG),
        "dspark-next-to-own": (
            DSPARK,
            DSPARK_CONFIG | {"sample_from_anchor": True, "dspark_bonus_anchor": True},
        ),
        "dspark-pickle": (DSPARK, DSPARK_CONFIG),
        "dspark-no-mask": (DSPARK, DSPARK_CONFIG | {"mask_token_id": None}),
        "dspark-far-mask": (DSPARK, DSPARK_CONFIG | {"mask_token_id": VOCAB}),
        "dspark-far-taps": (DSPARK, DSPARK_CONFIG | {"target_layer_ids": [0, LAYERS]}),
        "dspark-one-tap": (DSPARK, DSPARK_CONFIG | {"target_layer_ids": [0]}),
        "dspark-untold-taps": (DSPARK, DSPARK_CONFIG | {"target_layer_ids": None}),
        "dflash-2": (DFLASH | {"layers.0.attention_conv.weight": (HIDDEN, 1)}, DFLASH_CONFIG),
        "wide-dspark": (DSPARK | {"fc.weight": (HIDDEN, 2 * HIDDEN + 4)}, DSPARK_CONFIG),
        "unknown": ({"fc.weight": (HIDDEN, 2 * HIDDEN)}, ONE),
        "swapped": (LM, CONFIG),
        "larger-words": (LM, CONFIG),
        "pickle": (LM, CONFIG),
    }
    for name, (shapes, config) in models.items():
        made = write(folder / f"tiny-{name}", shapes, **config)
        if "lm_head.weight" in shapes and "fc.weight" not in shapes:
            write_tokenizer(made)
    write_tokenizer(folder / "tiny-swapped", first="other")
    write_tokenizer(folder / "tiny-larger-words", VOCAB + 5)
    (folder / "tiny-dspark-pickle" / "mask_embedding.pt").write_bytes(b"")
    weights = folder / "tiny-pickle" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    for name, said in MEASURED.items():
        (folder / f"{name}.json").write_text(json.dumps(said))
