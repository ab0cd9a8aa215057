"""Train the embedded block drafts: `python -m specflow.models.pico.block_drafts llama-dspark`.

The recipe is the one of parallel.md Part 6: blocks begin at sampled anchors of a text, each sees
the target's hidden states before its anchor and itself, and learns the target's own laws.

    B  sequences      T  tokens of each, less the last      A  anchors of each
    q  rows of a block      K  guesses of it      V  vocabulary      n  tapped layers
    H  hidden width
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from specflow.formats import VANILLA
from specflow.models.adapters import Adapter
from specflow.models.block_nets import BlockNet, BlockSizes
from specflow.models.pico.corpus import prepare
from specflow.models.pico.drafts import (
    LLAMA,
    WEIGHTS,
    Shown,
    initialise,
    note,
    open_target,
    published_as,
    show,
    write,
)
from specflow.models.pico.train import CORPUS_TOKENS, FULL, HERE, SEED, SLIDING, Plan, run

ANCHORS = 32  # blocks of a sequence
FADE = 4.0  # positions over which a guess counts e times less (Part 6)
CROSS_ENTROPY, DISTANCE, TRUST = 0.1, 0.9, 1.0  # weights of the three losses (Part 6)
MASK = 2
DIALECT: dict[str, tuple[tuple[str, str], ...]] = {
    "dspark": (
        (r"markov\.w1", "markov_head.markov_w1"),
        (r"markov\.w2", "markov_head.markov_w2"),
        (r"markov\.gate", "markov_head.gate_proj"),
        (r"markov\.joint", "markov_head.joint_proj"),
        (r"confidence", "confidence_head.proj"),
    ),
    "dflash": (),
}


@dataclass(frozen=True)
class BlockLesson:
    """How one block draft is made; of its plan, `teacher` is the target and `family` the format.

    ahead   a row guesses the next position's token; else its own position's
    folder  where it is written, where that is not its name
    """

    plan: Plan
    sizes: BlockSizes
    guesses: int
    taps: tuple[int, ...]
    ahead: bool
    folder: str = ""

    @property
    def rows(self) -> int:
        """Rows of a block: one more where the first row guesses nothing."""
        return self.guesses + (not self.ahead)


def lesson(
    target: str,
    form: str,
    taps: tuple[int, ...],
    tokens: int,
    *,
    rank: int = 0,
    window: int = 0,
    folder: str = "",
    ahead: bool | None = None,
    **shape: Any,
) -> BlockLesson:
    """A row of `LESSONS`, and its config.json in the words of the format."""
    config: dict[str, Any] = {**LLAMA, **shape}
    count, width = int(config["num_hidden_layers"]), int(config["hidden_size"])
    guesses = 7
    config |= {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": config.get("head_dim", 64),
        "layer_types": [SLIDING if window else FULL] * count,
    }
    if window:
        config["sliding_window"] = window
    outputs = [tap - 1 for tap in taps]  # published ids name layers by what they put out
    ahead = form == "dspark" if ahead is None else ahead
    if ahead:  # in the words of DeepSpec, whose DFlash is a DSpark without heads
        config |= {
            "architectures": ["Qwen3DSparkModel"],
            "block_size": guesses,
            "target_layer_ids": outputs,
            "mask_token_id": MASK,
            "markov_rank": rank,
            "markov_head_type": VANILLA,
            "enable_confidence_head": rank > 0,
            "confidence_head_with_markov": rank > 0,
        }
        trust = width + rank if rank else 0
        sizes = BlockSizes(len(taps), markov=VANILLA if rank else "", rank=rank, trust=trust)
    else:
        config |= {
            "architectures": ["DFlashDraftModel"],
            "dflash_config": {
                "block_size": guesses + 1,
                "mask_token_id": MASK,
                "target_layer_ids": outputs,
            },
        }
        sizes = BlockSizes(len(taps))
    plan = Plan(tokens, 2048, 0.02, target, form, config, length=256, long=0.0)
    return BlockLesson(plan, sizes, guesses, taps, ahead, folder)


_LLAMA: dict[str, Any] = {"num_hidden_layers": 2, "intermediate_size": 512}
_KIMI: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "head_dim": 48,
}
_QWEN3: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 448,
    "num_hidden_layers": 1,
    "head_dim": 40,
}
LESSONS = {
    "llama-dspark": lesson("llama", "dspark", (1, 2, 3), 5_000_000, rank=32, **_LLAMA),
    "llama-dflash": lesson("llama", "dflash", (1, 2, 3), 5_000_000, **_LLAMA),
    "kimi-dspark": lesson("kimi", "dspark", (1, 2), 3_000_000, rank=32, window=64, **_KIMI),
    "qwen3-dspark": lesson("qwen3", "dspark", (1, 2, 3), 1_200_000, rank=32, **_QWEN3),
    "qwen3-dflash": lesson("qwen3", "dflash", (1, 2, 3), 1_200_000, **_QWEN3),
    "qwen3-dflash-next": lesson("qwen3", "dflash", (1, 2, 3), 1_200_000, ahead=True, **_QWEN3),
    "deepseek-dspark": lesson(
        "deepseek",
        "dspark",
        (1, 2),
        1_200_000,
        rank=32,
        folder="deepseek/dspark",
        **(_KIMI | {"num_hidden_layers": 1}),
    ),
}


class Blocks:
    """The keys of a sequence's blocks beside its context; it stands for a `Step`.

    kept     of each layer, keys and values [B, kv heads, T, E] of the context
    anchors  [B, A]  where the blocks begin
    """

    def __init__(
        self, kept: list[tuple[Tensor, Tensor]], anchors: Tensor, rows: int, dtype: torch.dtype
    ) -> None:
        self.kept, self.dtype = kept, dtype
        at = (anchors[:, :, None] + torch.arange(rows)).flatten(1)  # [B, A * q]
        block = torch.arange(anchors.shape[1]).repeat_interleave(rows)
        length = kept[0][0].shape[2]
        before = torch.arange(length) < anchors.repeat_interleave(rows, dim=1)[:, :, None]
        own = (block[:, None] == block).expand(anchors.shape[0], -1, -1)
        self.visible = torch.cat([before, own], dim=2)  # [B, A * q, T + A * q]
        keys = torch.cat([torch.arange(length).expand(anchors.shape[0], -1), at], dim=1)
        self.away = at[:, :, None] - keys[:, None]
        self._masks: dict[int | None, Tensor] = {}

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """The context's keys and values before the blocks' own."""
        before, known = self.kept[layer]
        return torch.cat([before, keys], dim=2), torch.cat([known, values], dim=2)

    def mask(self, window: int | None, groups: int) -> Tensor:
        """The additive mask; full layers see all of a block, sliding ones what lies behind."""
        if window not in self._masks:
            visible = self.visible
            if window is not None:
                visible = visible & (self.away >= 0) & (self.away < window)
            mask = torch.zeros(visible.shape, dtype=self.dtype)
            lowest = torch.finfo(self.dtype).min
            self._masks[window] = mask.masked_fill_(~visible, lowest)[:, None]
        mask = self._masks[window]
        return mask if groups == 1 else mask.repeat(1, 1, groups, 1)


def draw_anchors(rows: int, length: int, guesses: int, count: int, seed: int) -> Tensor:
    """Where blocks begin [B, A]: no position twice, at least one before it, labels after it."""
    generator = torch.Generator().manual_seed(seed)
    last = length - guesses  # the last guess of a block is judged at this many positions
    drawn = [torch.randperm(last - 1, generator=generator)[:count] + 1 for _ in range(rows)]
    return torch.stack(drawn).sort(dim=1).values


@dataclass(frozen=True)
class Guessed:
    """What a net says of blocks.

    logits  [B, A, K, V]
    trust   [B, A, K]     logits of the confidence head, where there is one
    """

    logits: Tensor
    trust: Tensor | None


def guess_blocks(
    net: BlockNet, lesson: BlockLesson, tokens: Tensor, taps: Tensor, anchors: Tensor
) -> Guessed:
    """All blocks at once, each guess told what the text really says before it.

    tokens  [B, T + 1]     taps  [B, T + 1, n * H]
    """
    length = tokens.shape[1] - 1
    positions = torch.arange(length).expand(tokens.shape[0], -1)
    kept = net.keys_values(net.context(taps[:, :length]), positions)
    rows, count = lesson.rows, lesson.guesses
    words = torch.full((*anchors.shape, rows), MASK)
    words[:, :, 0] = tokens.gather(1, anchors)
    at = anchors[:, :, None] + torch.arange(rows)
    step = Blocks(kept, anchors, rows, net.target.dtype)
    hidden = net(words.flatten(1), at.flatten(1), step).view(*words.shape, -1)
    hidden = hidden[:, :, rows - count :]
    logits = net.score(hidden)
    known = (anchors[:, :, None] + torch.arange(count)).flatten(1)
    last = tokens.gather(1, known).view(*anchors.shape, count)
    if net.markov is not None:
        memory, biases = None, []
        for k in range(count):
            bias, memory = net.markov(last[:, :, k], hidden[:, :, k], memory)
            biases.append(bias)
        logits = logits + torch.stack(biases, dim=2)
    trust = None if net.confidence is None else net.trust(hidden, last)
    return Guessed(logits.float(), trust)


def laws_of(shown: Shown, anchors: Tensor, guesses: int) -> Tensor:
    """The target's laws [B, A, K, V] of the tokens after each anchor."""
    at = (anchors[:, :, None] + torch.arange(guesses)).flatten(1)
    logits = shown.logits.gather(1, at[:, :, None].expand(-1, -1, shown.logits.shape[-1]))
    return logits.softmax(-1).view(*anchors.shape, guesses, -1)


def loss_of(net: BlockNet, lesson: BlockLesson, batch: Tensor) -> Tensor:
    """Cross entropy, distance of laws and trust, nearer guesses counting more (Part 6)."""
    seed = int(batch.sum())  # so that a resumed run draws the same
    length = batch.shape[1] - 1
    anchors = draw_anchors(batch.shape[0], length, lesson.guesses, ANCHORS, seed)
    with torch.autocast("cpu", torch.bfloat16):
        shown = show(net.target, batch, lesson.taps)
        guessed = guess_blocks(net, lesson, batch, shown.hidden, anchors)
    laws = laws_of(shown, anchors, lesson.guesses)
    log_chances = guessed.logits.log_softmax(-1)
    cross = -(laws * log_chances).sum(-1)  # [B, A, K]
    distance = (log_chances.exp() - laws).abs().sum(-1)
    total = CROSS_ENTROPY * cross + DISTANCE * distance
    if guessed.trust is not None:
        right = (1 - distance / 2).detach()
        trust = F.binary_cross_entropy_with_logits(guessed.trust, right, reduction="none")
        total = total + TRUST * trust
    weights = torch.exp(-torch.arange(lesson.guesses) / FADE)
    return (total * weights).mean(dim=(0, 1)).sum() / weights.sum()


def build(target: Adapter, made: BlockLesson) -> BlockNet:
    """A fresh net of a lesson; a Markov head begins by saying nothing."""
    torch.manual_seed(SEED)
    net = BlockNet(made.sizes, target, dict(made.plan.shape))
    initialise(net)
    with torch.no_grad():
        net.norm.weight.copy_(target.decoder.norm.weight)
        if net.markov is not None:
            net.markov.w2.weight.zero_()
            net.markov.w1.weight.normal_(std=1.0)
    return net


def publish(net: BlockNet, form: str) -> dict[str, Tensor]:
    """Its tensors by the names and in the type of a published checkpoint."""
    found = {}
    for name, tensor in net.state_dict().items():
        found[published_as(name, DIALECT[form])] = tensor.to(torch.bfloat16).clone().contiguous()
    return found


@torch.no_grad()
def figures_of(
    net: BlockNet, lesson: BlockLesson, test: np.ndarray, windows: int = 32
) -> dict[str, object]:
    """What each position of a block is worth on held-out text, told the text before it.

    How often its likeliest token is the target's, what the two laws share, and what the confidence
    head expects of it.
    """
    starts = np.linspace(0, test.size - 258, windows).astype(int)
    text = torch.from_numpy(np.stack([test[s : s + 257] for s in starts]).astype(np.int64))
    equal, shared, trusted = [], [], []
    for batch in text.split(8):
        anchors = draw_anchors(batch.shape[0], 256, lesson.guesses, ANCHORS, SEED)
        shown = show(net.target, batch, lesson.taps)
        guessed = guess_blocks(net, lesson, batch, shown.hidden, anchors)
        laws = laws_of(shown, anchors, lesson.guesses)
        chances = guessed.logits.softmax(-1)
        equal.append((chances.argmax(-1) == laws.argmax(-1)).float().flatten(0, 1))
        shared.append(torch.minimum(chances, laws).sum(-1).flatten(0, 1))
        if guessed.trust is not None:
            trusted.append(guessed.trust.sigmoid().flatten(0, 1))
    rows: Mapping[str, list[Tensor]] = {
        "agreement_on_text": equal,
        "shared_mass_on_text": shared,
        "trust_on_text": trusted,
    }
    return {
        name: [round(x, 4) for x in torch.cat(parts).mean(0).tolist()]
        for name, parts in rows.items()
        if parts
    }


def main() -> None:
    """Train one block draft, write it into the package, measure it on held-out files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(LESSONS))
    parser.add_argument("--work", type=Path, default=Path("build/pico"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    made = LESSONS[args.name]
    tokens, test = prepare(args.work, SEED, CORPUS_TOKENS)
    target = open_target(HERE / str(made.plan.teacher), torch.bfloat16).adapter
    net = build(target, made).train()
    spent = run(net, partial(loss_of, net, made), made.plan, tokens, args.work / args.name)
    tensors = publish(net, made.plan.family)
    folder = HERE / (made.folder or args.name)
    write(folder, tensors, made.plan.shape)
    whole = open_target(HERE / str(made.plan.teacher), torch.float32).adapter
    rounded = BlockNet(made.sizes, whole, dict(made.plan.shape)).eval()
    rounded.load_state_dict({n: t.bfloat16().float() for n, t in net.state_dict().items()})
    figures = figures_of(rounded, made, test)
    figures |= {
        "parameters": sum(p.numel() for p in net.parameters()),
        "megabytes": round((folder / WEIGHTS).stat().st_size / 1e6, 2),
        "seconds": round(spent),
        "seed": SEED,
        "anchors": ANCHORS,
        "plan": asdict(made.plan),
    }
    print(json.dumps(figures), flush=True)
    note(folder, None, figures)


if __name__ == "__main__":
    main()
