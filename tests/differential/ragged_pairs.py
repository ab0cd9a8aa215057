"""Tiny targets beside block drafts in their published formats, and recipes that plan for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specflow.capture import Results
from specflow.models.block_nets import block_config
from specflow.session import Session
from tests.differential import tiny_drafts
from tests.differential.tiny_drafts import (
    LLAMA,
    SMALL,
    VOCABULARY,
    WIDTH,
    Pair,
    loud,
    near_one,
    noise,
    passing,
    write,
    write_model,
)
from tests.differential.tiny_models import WINDOW, build
from tests.toys import session

GUESSES, RANK, MASK = 3, 16, 2
OUTPUTS = (0, 1)  # the target's layers that a draft reads, as published: by what they put out
QWEN3: dict[str, Any] = {
    **LLAMA, "model_type": "qwen3", "num_hidden_layers": 2, "attention_bias": False,
}  # fmt: skip


@torch.no_grad()
def bigrams(stock: PreTrainedModel) -> Tensor:
    """What a target says after each token on average [V, V], whatever stands before it."""
    size = stock.config.vocab_size
    text = torch.randint(0, size, (16, 64))
    logits = stock(text, use_cache=False).logits
    table = torch.zeros(size, size)
    table.index_add_(0, text.flatten(), logits.flatten(0, 1))
    counts = torch.bincount(text.flatten(), minlength=size).clamp(min=1)
    return table / counts[:, None]


def backbone(config: dict[str, Any]) -> dict[str, Tensor]:
    """Layers that pass on the text they read: a mask says the mean of what it attends to."""
    tensors = {}
    made = block_config(config)
    for index in range(config["num_hidden_layers"]):
        for name, weight in Qwen3DecoderLayer(made, index).state_dict().items():
            whole = near_one(*weight.shape) if weight.ndim == 1 else noise(*weight.shape)
            if name.endswith("v_proj.weight"):
                whole = passing(*weight.shape)
            elif name.endswith("o_proj.weight"):
                whole = passing(*weight.shape, gain=3.0)
            tensors[f"layers.{index}.{name}"] = whole
    return tensors | {
        "fc.weight": passing(WIDTH, len(OUTPUTS) * WIDTH),
        "hidden_norm.weight": near_one(WIDTH),
        "norm.weight": near_one(WIDTH),
    }


def target_of(root: Path, arch: str, size: int, gain: float) -> tuple[PreTrainedModel, Path]:
    """A target of three layers whose mask token says nothing."""
    shape = SMALL | {"num_hidden_layers": 3, "vocab_size": size}
    if arch == "deepseek_v3":
        shape |= {"moe_intermediate_size": 16}
    stock = loud(build(arch, **shape), gain)
    with torch.no_grad():
        stock.get_input_embeddings().weight[MASK] *= 1e-3
    return stock, write_model(root / "target", stock)


def block(
    root: Path, algorithm: str, arch: str = "llama", *, size: int = VOCABULARY, gain: float = 16.0,
    window: int = 0, trust: float = 0.3,
) -> Pair:  # fmt: skip
    """DFLASH as z-lab publishes it, DSPARK as DeepSpec does."""
    stock, target = target_of(root, arch, size, gain)
    torch.manual_seed(11)
    kind = "sliding_attention" if window else "full_attention"
    config: dict[str, Any] = QWEN3 | {
        "vocab_size": size, "layer_types": [kind] * QWEN3["num_hidden_layers"],
    }  # fmt: skip
    config |= {"sliding_window": window} if window else {}
    tensors = backbone(config)
    if algorithm == "DFLASH":
        inner = {"block_size": GUESSES + 1, "mask_token_id": MASK}
        config |= {
            "architectures": ["DFlashDraftModel"],
            "dflash_config": inner | {"target_layer_ids": list(OUTPUTS)},
        }
        return Pair(algorithm, target, write(root / "draft", tensors, config), stock, 3)
    rank = min(RANK, size)
    left, scale, right = torch.linalg.svd(bigrams(stock))
    split = scale[:rank].sqrt()
    tensors |= {
        "markov_head.markov_w1.weight": left[:, :rank] * split,
        "markov_head.markov_w2.weight": right[:rank].T * split,
        "confidence_head.proj.weight": noise(1, WIDTH + rank, scale=trust),
        "confidence_head.proj.bias": torch.full((1,), 1.0),
    }
    config |= {
        "architectures": ["Qwen3DSparkModel"], "block_size": GUESSES, "mask_token_id": MASK,
        "target_layer_ids": list(OUTPUTS), "markov_rank": rank, "markov_head_type": "vanilla",
        "enable_confidence_head": True, "confidence_head_with_markov": True,
    }  # fmt: skip
    return Pair(algorithm, target, write(root / "draft", tensors, config), stock, 3)


BLOCKS: dict[str, Callable[[Path], Pair]] = {
    "dflash": partial(block, algorithm="DFLASH"),
    "dspark": partial(block, algorithm="DSPARK"),
    "dspark_window": partial(block, algorithm="DSPARK", window=WINDOW),
    "dspark_latent": partial(block, algorithm="DSPARK", arch="deepseek_v3"),
    "dspark_five": partial(block, algorithm="DSPARK", size=5, gain=2.0),
    "dflash_five": partial(block, algorithm="DFLASH", size=5, gain=2.0),
}


# -- what a plan is made of ------------------------------------------------------------------------

MOST = 16 * (GUESSES + 1)  # positions of the largest batch
# Steps a second by positions. `steep`: a position costs a whole step, so only bonus tokens are
# verified. `fair`: what a guess costs is about what it may gain. `jagged`: every few positions a
# step gets slower for nothing, so budgets jump with the least change of what is expected.
# `narrow`: a step of more than 20 positions costs ten times as much, whatever is expected.
TABLES: dict[str, list[float]] = {
    "steep": [1 / m**2 for m in range(1, MOST + 1)],
    "fair": [1 / (m + 8) for m in range(1, MOST + 1)],
    "jagged": [(1.0, 0.55, 0.8)[m % 3] / (m + 8) for m in range(1, MOST + 1)],
    "narrow": [1 / (m + 100) if m <= 20 else 1e-3 for m in range(1, MOST + 1)],
    "free": [1.0 + m / 1e6 for m in range(1, MOST + 1)],
}


def table(root: Path, name: str, steps: list[float] | None = None) -> str:
    """A cost table's file."""
    speeds = TABLES[name] if steps is None else steps
    said = {
        "sample_batch_tokens": list(range(1, len(speeds) + 1)),
        "sample_steps_per_sec": speeds,
        "max_batch_tokens": len(speeds),
    }
    file = root / f"{name}.json"
    file.write_text(json.dumps(said))
    return str(file)


class Shelf(tiny_drafts.Shelf):
    """Pairs of `BLOCKS`, each written once, their targets loaded once."""

    def __getitem__(self, name: str) -> Pair:
        if name not in self._pairs:
            (self.root / name).mkdir()
            self._pairs[name] = BLOCKS[name](self.root / name)
        return self._pairs[name]

    def session(
        self, name: str, batch: int, stop_ids: frozenset[int] = frozenset(), **blocks: Any
    ) -> Session:
        """A session that drafts with a pair, everything read from disk."""
        resolved = tiny_drafts.recipe(self[name], batch, **blocks)
        return session(resolved, self.target(name), self.root / "steps", stop_ids=stop_ids)

    def planned(
        self, name: str, costs: str = "fair", *, mode: str = "compact", by: str = "", **verify: Any
    ) -> dict[str, Any]:
        """The verify block of a plan; `by` says whether the head or averages tell survivals."""
        confidence = by or ("average" if name.startswith("dflash") else "head")
        block = {"shape": "ragged", "mode": mode}
        if mode != "static":
            block |= {"cost_table": table(self.root, costs), "confidence": confidence}
        return block | verify


@dataclass
class Seen:
    """A step as a plan made it: rows of the batch, positions it might verify and did verify."""

    rows: int
    budget: int
    lengths: list[int]


def watch(made: Session) -> list[Seen]:
    """Write down each step of a session from here on."""
    log: list[Seen] = []
    plan, learn = made.captured.plan, made.captured.learn

    def planned(rows: int) -> int:
        log.append(Seen(rows, plan(rows), []))
        return log[-1].budget

    def learned(told: Results) -> None:
        log[-1].lengths = told.judged() or []
        learn(told)

    made.captured.plan, made.captured.learn = planned, learned  # type: ignore[method-assign]
    return log
