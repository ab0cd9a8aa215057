"""Train the embedded drafts: `python -m specflow.models.pico.drafts llama-eagle --work build/pico`.

Each learns on its frozen target, unrolled as it will draft: what a pass hands on is what the next
one reads. It is written as such drafts are published, and measured as it was written.

    B  sequences      T  tokens of each, less the last      V  vocabulary of the target
    D  width of the state      P  passes
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specflow import formats
from specflow.models.adapters import Adapter
from specflow.models.assistant import Assistant, run_assistant, shared_layers
from specflow.models.attention import ATTENTION, SDPA
from specflow.models.families import register
from specflow.models.lm import LanguageModel
from specflow.models.nets import DraftNet, Sizes
from specflow.models.pico.corpus import prepare
from specflow.models.pico.train import (
    CORPUS_TOKENS,
    FULL,
    HERE,
    SEED,
    SLIDING,
    Plan,
    balance,
    run,
)
from specflow.models.weights import load_draft

FADE = 0.9  # what a pass counts of the one before it
DRAFT_VOCABULARY = 1536
WEIGHTS = "model.safetensors"
ASSISTANT = "assistant"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}


@dataclass(frozen=True)
class Lesson:
    """How one draft is made; of its plan, `teacher` is the target and `family` the format.

    kept  tokens that its head ships, of those it learned; 0 keeps them all
    """

    plan: Plan
    passes: int
    sizes: Sizes = field(default_factory=lambda: Sizes(reads=0, width=0))
    kept: int = 0


def lesson(
    target: str, form: str, passes: int, tokens: int, shape: dict[str, object], sizes: Sizes
) -> Lesson:
    """A row of `LESSONS`: the sizes of a batch are the same for all."""
    plan = Plan(tokens, 2048, 0.02, target, form, shape, length=256, long=0.0)
    return Lesson(plan, passes, sizes)


def eagle3(
    target: str, taps: tuple[int, ...], tokens: int, *, kept: int = 0, **shape: int
) -> Lesson:
    """An EAGLE3 draft with part of the vocabulary; its config names layers by what they put out."""
    # The embedding reaches the state by attention alone, so there are heads enough to carry it.
    config = LLAMA | {"num_attention_heads": 8, "num_key_value_heads": 8} | shape
    width = int(str(config["hidden_size"]))
    named = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **config,
        "draft_vocab_size": kept or DRAFT_VOCABULARY,
        "eagle_config": {
            formats.TAP_KEY: [tap - 1 for tap in taps],
            "use_aux_hidden_state": True,
        },
    }
    sizes = Sizes(reads=len(taps) * width, width=width, vocab=DRAFT_VOCABULARY, mapped=True)
    return replace(lesson(target, "eagle3", 4, tokens, named, sizes), kept=kept)


def taps_of(made: Lesson) -> tuple[int, ...]:
    """The streams a draft reads, by the layers they enter."""
    said: Any = made.plan.shape.get("eagle_config", {})
    return tuple(layer + 1 for layer in said.get(formats.TAP_KEY, ()))


LESSONS = {
    "llama-eagle": lesson(
        "llama",
        "eagle",
        4,
        1_400_000,
        {"architectures": ["LlamaForCausalLM"], **LLAMA, "bias": False},
        Sizes(reads=256, width=256),
    ),
    "llama-eagle3": eagle3("llama", (1, 2, 4), 1_400_000, kept=1216),
    "deepseek-eagle3": eagle3(
        "deepseek", (1, 2, 3), 500_000, hidden_size=192, intermediate_size=512
    ),
    "kimi-eagle3": eagle3("kimi", (1, 2, 3), 600_000, hidden_size=192, intermediate_size=512),
    "qwen3-eagle3": eagle3("qwen3", (1, 2, 4), 500_000, hidden_size=160, intermediate_size=448),
    "deepseek-mtp": lesson("deepseek", "mtp", 3, 1_200_000, {}, Sizes(reads=192, width=192)),
    "glm-mtp": lesson("glm", "mtp", 3, 500_000, {}, Sizes(reads=160, width=160)),
    "mimo-mtp": lesson("mimo", "mtp_layers", 3, 900_000, {}, Sizes(reads=192, width=192, steps=3)),
    "gemma4-assistant": lesson(
        "gemma4",
        ASSISTANT,
        4,
        900_000,
        {
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 2,
            "num_kv_shared_layers": 2,
            "layer_types": [SLIDING, FULL],
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "final_logit_softcapping": None,
        },
        Sizes(reads=192, width=192),
    ),
}

# How each format calls what is ours (the first that fits); {L} is the target's number of layers.
MTP_NAMES = (
    (r"steps\.0\.embed_norm", "model.layers.{L}.enorm"),
    (r"steps\.0\.hidden_norm", "model.layers.{L}.hnorm"),
    (r"steps\.0\.fc", "model.layers.{L}.eh_proj"),
    (r"steps\.0\.norm", "model.layers.{L}.shared_head.norm"),
    (r"steps\.0\.block", "model.layers.{L}"),
)
MIMO_NAMES = (
    (r"steps\.(\d)\.embed_norm", r"model.mtp.layers.\1.enorm"),
    (r"steps\.(\d)\.hidden_norm", r"model.mtp.layers.\1.hnorm"),
    (r"steps\.(\d)\.fc", r"model.mtp.layers.\1.eh_proj"),
    (r"steps\.(\d)\.norm", r"model.mtp.layers.\1.final_layernorm"),
    (r"steps\.(\d)\.block\.post_attention_layernorm", r"model.mtp.layers.\1.pre_mlp_layernorm"),
    (
        r"steps\.(\d)\.block\.self_attn\.sinks",
        r"model.mtp.layers.\1.self_attn.attention_sink_bias",
    ),
    (r"steps\.(\d)\.block", r"model.mtp.layers.\1"),
)
NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "eagle": ((r"steps\.0\.fc", "fc"), (r"steps\.0\.block", "layers.0")),
    "eagle3": (
        (r"steps\.0\.fc", "fc"),
        (r"steps\.0\.norm", "norm"),
        (r"steps\.0\.block", "midlayer"),
    ),
    "mtp": MTP_NAMES,
    "mtp_layers": MIMO_NAMES,
}


def open_target(folder: Path, dtype: torch.dtype) -> LanguageModel:
    """A target, whatever else lies in its folder: a draft from an earlier run, say."""
    register()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        return LanguageModel.wrap(model)


class Passes:
    """The keys of all passes over whole sequences, and who sees whom; it stands for a `Step`.

    Pass 0 is causal. A query of pass s at position p goes on from a chain that left position p - s:
    it sees pass 0 up to there, and of each later pass the one key of its own chain.
    """

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        self.length, self.dtype, self.backend = length, dtype, SDPA
        self.kept: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.count = 1  # passes that the last layer has seen
        self._masks: dict[tuple[int, int | None, int], Tensor] = {}

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep what a layer computed in this pass; all its passes, one after the other."""
        passes = self.kept.setdefault(layer, [])
        passes.append((keys, values))
        self.count = len(passes)
        every_key, every_value = zip(*passes, strict=True)
        return torch.cat(every_key, dim=2), torch.cat(every_value, dim=2)

    def mask(self, window: int | None, groups: int) -> Tensor:
        """The additive mask [1, 1, groups * T, P * T] of the pass at hand."""
        key = (self.count, window, groups)
        if key not in self._masks:
            at = torch.arange(self.length)
            away = at[:, None] - at  # [T, T]: how far a key lies behind a query
            last = self.count - 1
            seen = [away >= last] + [away == last - j for j in range(1, self.count)]
            near = away < (self.length if window is None else window)
            visible = torch.cat([each & near for each in seen], dim=1).repeat(groups, 1)
            mask = torch.zeros(visible.shape, dtype=self.dtype)
            lowest = torch.finfo(self.dtype).min
            self._masks[key] = mask.masked_fill_(~visible, lowest)[None, None]
        return self._masks[key]


@dataclass(frozen=True)
class Shown:
    """What a target shows of whole sequences.

    hidden  [B, T + 1, D]  what the draft reads: states for the head, or taps
    logits  [B, T + 1, V]
    kept    layer -> its keys and values
    """

    hidden: Tensor
    logits: Tensor
    kept: Mapping[int, tuple[Tensor, Tensor]]


# Tokens [B, T + 1] and what was shown of them -> P logits. Logits s are [B, T - s, V]: row p is
# the guess for token p + 2 + s of a chain that knows the tokens up to p + 1.
Unroll = Callable[[Tensor, Shown], list[Tensor]]


@torch.no_grad()
def show(target: Adapter, tokens: Tensor, taps: tuple[int, ...] = ()) -> Shown:
    """One forward of the target over tokens [B, T + 1]."""
    step = Passes(tokens.shape[1], target.dtype)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    hidden, tapped = target.run(tokens, positions, step, taps)
    kept = {layer: passes[0] for layer, passes in step.kept.items()}
    return Shown(tapped if taps else hidden, target.score(hidden).float(), kept)


def unroll_net(net: DraftNet, passes: int, tokens: Tensor, shown: Shown) -> list[Tensor]:
    """The passes of a network: each reads the one before it, or has a layer of its own."""
    length, own = tokens.shape[1] - 1, net.net.own_layers
    positions = torch.arange(length).expand(tokens.shape[0], -1)
    step = Passes(length, net.target.dtype)
    state = net.enter(shown.hidden[:, :length])
    found = []
    for s in range(passes):
        index, ahead = (s, 1 + s) if own else (0, 1)
        carried = net(tokens.roll(-ahead, 1)[:, :length], state, positions, step, index)
        found.append(net.score(carried[:, : length - s] if own else carried[:, s:], index))
        if not own:
            state = F.pad(carried[:, :-1], (0, 0, 1, 0))
    return found


def unroll_assistant(
    model: Any, target: Adapter, layers: Mapping[str, int], passes: int, tokens: Tensor,
    shown: Shown,
) -> list[Tensor]:  # fmt: skip
    """The passes of an assistant: every query stays where its chain left the target's text."""
    length = tokens.shape[1] - 1
    positions = torch.arange(length).expand(tokens.shape[0], -1)
    step = Passes(length, target.dtype)
    kept = {
        kind: (shown.kept[layer][0][:, :, :length], shown.kept[layer][1][:, :, :length])
        for kind, layer in layers.items()
    }
    state = shown.hidden[:, :length]
    found = []
    for s in range(passes):
        embedded = target.decoder.embed_tokens(tokens.roll(-1 - s, 1)[:, :length])
        out = run_assistant(model, torch.cat([embedded, state], dim=-1), positions, kept, step)
        found.append(model.lm_head(out[:, : length - s]))
        state = model.post_projection(out)
    return found


def loss_of(
    unroll: Unroll, target: Adapter, taps: tuple[int, ...], covered: Tensor, batch: Tensor
) -> Tensor:
    """Cross entropy with what the target says of the covered tokens, over all passes."""
    with torch.autocast("cpu", torch.bfloat16):
        shown = show(target, batch, taps)
        guesses = unroll(batch, shown)
    laws = shown.logits.softmax(-1)[..., covered]
    total, weight = torch.zeros(()), 0.0
    for s, logits in enumerate(guesses):
        law = laws[:, 1 + s :].flatten(0, 1)
        total = total + FADE**s * F.cross_entropy(logits.float().flatten(0, 1), law)
        weight += FADE**s
    return total / weight


def initialise(module: nn.Module) -> None:
    """Fresh matrices and sinks; routers are balanced as they learn."""
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
    for name, parameter in module.named_parameters():
        if name.endswith("sinks"):
            nn.init.zeros_(parameter)
    for part in module.modules():
        if hasattr(part, "e_score_correction_bias"):
            part.register_forward_hook(balance)
        config: Any = getattr(part, "config", None)
        if hasattr(part, "has_gate"):  # experts: the library's plain loop has a gradient
            config._experts_implementation = "eager"  # noqa: SLF001 - no setter outside a model


def build_net(target: Adapter, made: Lesson, covered: Tensor) -> DraftNet:
    """A fresh network of a lesson."""
    torch.manual_seed(SEED)
    net = DraftNet(formats.named(made.plan.family).net, made.sizes, target, dict(made.plan.shape))
    initialise(net)
    if net.d2t is not None:
        net.d2t.copy_(covered - torch.arange(covered.numel()))
    if net.lm_head is not None:
        begin_as_target(net, net.lm_head, target, covered)
    return net


@torch.no_grad()
def begin_as_target(net: DraftNet, own: nn.Linear, target: Adapter, covered: Tensor) -> None:
    """A head of its own begins as the target's; the taps speak of the token that is known."""
    head: Any = target.head
    own.weight.copy_(head.weight[covered])
    net.steps[0].norm.weight.copy_(target.decoder.norm.weight)


def build_assistant(target: Adapter, made: Lesson) -> PreTrainedModel:
    """A fresh Gemma 4 assistant whose heads fit the target's keys."""
    torch.manual_seed(SEED)
    text = target.config.to_dict() | made.plan.shape
    for name in ("_name_or_path", "architectures", "per_layer_config"):  # the target's own
        text.pop(name, None)
    text["global_head_dim"] = target.decoder.layers[-1].self_attn.head_dim
    config = AutoConfig.for_model(
        "gemma4_assistant",
        text_config=text,
        backbone_hidden_size=target.config.hidden_size,
        use_ordered_embeddings=False,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    model.set_attn_implementation(ATTENTION)
    return model


def published_as(name: str, table: Sequence[tuple[str, str]]) -> str:
    """What a format calls one of our tensors, by the first pattern that begins its name."""
    fits = (re.sub(p, n, name, count=1) for p, n in table if re.match(p, name))
    return next(fits, name)


def publish(net: DraftNet, form: str, covered: Tensor) -> dict[str, Tensor]:
    """Its tensors by the names and in the types of a published checkpoint."""
    layers, vocabulary = net.target.layers, net.target.vocab_size
    table = [(p, n.replace("{L}", str(layers))) for p, n in NAMES[form]]
    found: dict[str, Tensor] = {}
    for name, tensor in net.state_dict().items():
        theirs = published_as(name, table)
        single = theirs.endswith("e_score_correction_bias") or not tensor.is_floating_point()
        found |= unpack_experts(theirs, tensor if single else tensor.to(torch.bfloat16))
    if net.d2t is not None:
        found["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, covered, value=True)
    return {name: tensor.clone().contiguous() for name, tensor in found.items()}


def keep(tensors: dict[str, Tensor], covered: Tensor, kept: Tensor) -> Tensor:
    """Cut a reduced head to the tokens kept, in place; a row of it knows nothing of the others."""
    rows = torch.searchsorted(covered, kept)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][rows].clone()
    tensors["d2t"] = kept - torch.arange(kept.numel())
    tensors["t2d"] = torch.zeros_like(tensors["t2d"]).index_fill_(0, kept, value=True)
    return kept


def unpack_experts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor of all experts as one for each, the others as they are."""
    base, kind = name.rpartition(".")[::2]
    if kind == "gate_up_proj":
        halves = enumerate(tensor.chunk(2, dim=1))
        return {
            f"{base}.{expert}.{('gate', 'up')[half]}_proj.weight": weight
            for half, both in halves
            for expert, weight in enumerate(both)
        }
    if kind == "down_proj":
        return {f"{base}.{expert}.{kind}.weight": weight for expert, weight in enumerate(tensor)}
    return {name: tensor}


def write(folder: Path, tensors: dict[str, Tensor], config: Mapping[str, object]) -> None:
    """A folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def merge(folder: Path, tensors: dict[str, Tensor], form: formats.Format, layers: int) -> None:
    """Beside the target's own weights, in place of an earlier draft."""
    kept = load_file(folder / WEIGHTS)
    earlier = set(formats.rename(kept, form, layers).values())
    kept = {name: tensor for name, tensor in kept.items() if name not in earlier}
    aside = folder / "model.new"
    save_file(kept | tensors, aside, metadata={"format": "pt"})
    aside.replace(folder / WEIGHTS)


def note(folder: Path, key: str | None, figures: dict[str, object]) -> None:
    """Figures in training.json: the whole of it, or beside the target's under a key."""
    file = folder / "training.json"
    if key is not None:
        figures = json.loads(file.read_text()) | {key: figures}
    file.write_text(json.dumps(figures, indent=1) + "\n")
    for each in folder.iterdir():
        each.chmod(0o644)


@torch.inference_mode()
def continuations(target: LanguageModel, prompts: Tensor, count: int) -> Tensor:
    """Prompts [B, P] and `count` greedy tokens after each."""
    rows, length = prompts.shape
    pool = target.pool(rows, length + count)
    for row, prompt in enumerate(prompts):
        target.window(pool, length, row=row).prefill(prompt[:-1])
    window, text = target.window(pool, length + count), prompts
    for at in range(length, length + count):
        said = window.decode(text[:, -1:], torch.full((rows,), at - 1))
        text = torch.cat([text, said.argmax(-1, keepdim=True)], dim=1)
    return text


@torch.inference_mode()
def right_guesses(
    unroll: Unroll, target: Adapter, taps: tuple[int, ...], covered: Tensor, tokens: Tensor
) -> Tensor:
    """Whether each guess of each chain is the target's [B, chains, P], and those before it."""
    found = []
    for batch in tokens.split(8):
        shown = show(target, batch, taps)
        guesses = unroll(batch, shown)
        chains = guesses[-1].shape[1]
        said = shown.logits.argmax(-1)
        equal = [
            covered[logits.argmax(-1)[:, :chains]] == said[:, 1 + s : 1 + s + chains]
            for s, logits in enumerate(guesses)
        ]
        found.append(torch.stack(equal, dim=-1).cumprod(-1).bool())
    return torch.cat(found)


def agreement(right: Tensor) -> list[float]:
    """Share of right guesses of each pass, among the chains that were right so far."""
    counts = right.flatten(0, 1).sum(0).tolist()
    before = [right.shape[0] * right.shape[1], *counts[:-1]]
    return [round(c / max(b, 1), 4) for c, b in zip(counts, before, strict=True)]


def tau(right: Tensor, first: int, guesses: int) -> float:
    """Tokens a round of greedy chains of so many guesses, from row `first` of each text on."""
    gains: list[int] = []
    for row in right[..., :guesses].sum(-1)[:, first:].tolist():
        at = 0
        while at < len(row):
            gains.append(1 + row[at])
            at += 1 + row[at]
    return round(sum(gains) / len(gains), 3)


def figures_of(
    unroll: Unroll, target: LanguageModel, taps: tuple[int, ...], covered: Tensor, test: np.ndarray
) -> dict[str, object]:
    """Agreement on 32 spread windows of held-out text, and on what the target makes of them."""
    prompt, count = 96, 160
    starts = np.linspace(0, test.size - 257, 32).astype(int)
    text = torch.from_numpy(np.stack([test[s : s + 257] for s in starts]).astype(np.int64))
    written = continuations(target, text[:, :prompt], count)
    measure = partial(right_guesses, unroll, target.adapter, taps, covered)
    greedy = measure(written)
    passes = range(1, greedy.shape[-1] + 1)
    return {
        "agreement_on_text": agreement(measure(text)),
        "agreement_on_greedy": agreement(greedy[:, prompt - 1 :]),
        "greedy_tau_by_guesses": {str(n): tau(greedy, prompt - 1, n) for n in passes},
    }


def frequent(tokens: np.ndarray, count: int, size: int) -> Tensor:
    """The ids of the `count` tokens met most often, ascending."""
    met = np.bincount(tokens, minlength=size)
    return torch.from_numpy(np.sort(np.argsort(-met, kind="stable")[:count]))


def trained_net(
    name: str, made: Lesson, tokens: np.ndarray, test: np.ndarray, work: Path
) -> tuple[Path, str | None, dict[str, object]]:
    """Train a network and write it; its folder, its key in training.json, its figures."""
    form, host = formats.named(made.plan.family), HERE / str(made.plan.teacher)
    target = open_target(host, torch.bfloat16).adapter
    taps = taps_of(made)
    everything = made.sizes.vocab or target.vocab_size
    covered = frequent(tokens, everything, target.vocab_size)
    net = build_net(target, made, covered).train()
    loss = partial(loss_of, partial(unroll_net, net, made.passes), target, taps, covered)
    spent = run(net, loss, made.plan, tokens, work / name)
    tensors = publish(net, form.name, covered)
    if made.kept:
        covered = keep(tensors, covered, frequent(tokens, made.kept, target.vocab_size))
    folder = host if form.bundled else HERE / name
    if form.bundled:
        merge(folder, tensors, form, target.layers)
    else:
        write(folder, tensors, made.plan.shape)
    whole = open_target(host, torch.float32)
    shipped = load_draft((folder / WEIGHTS,), form, dict(made.plan.shape), whole.adapter)
    unroll = partial(unroll_net, shipped.net, made.passes)
    figures = figures_of(unroll, whole, taps, covered, test)
    figures |= {
        "parameters": sum(p.numel() for p in net.parameters()),
        "megabytes": round(sum(t.nbytes for t in tensors.values()) / 1e6, 2),
        "seconds": round(spent),
    }
    return folder, "draft" if form.bundled else None, figures


def trained_assistant(
    name: str, made: Lesson, tokens: np.ndarray, test: np.ndarray, work: Path
) -> tuple[Path, str | None, dict[str, object]]:
    """Train an assistant and write it; its folder, no key, its figures."""
    host, folder = HERE / str(made.plan.teacher), HERE / name
    lm = open_target(host, torch.bfloat16)
    target, covered = lm.adapter, torch.arange(lm.vocab_size)
    layers = shared_layers(target, lm.pool(1, 1))
    model = build_assistant(target, made).train()
    loss = partial(
        loss_of, partial(unroll_assistant, model, target, layers, made.passes), target, (), covered
    )
    spent = run(model, loss, made.plan, tokens, work / name)
    model.to(torch.bfloat16).save_pretrained(folder)
    whole = open_target(host, torch.float32)
    shipped = Assistant.load(folder, whole.adapter, whole.pool(1, 1), device="cpu", dtype="float32")
    unroll = partial(unroll_assistant, shipped.model, whole.adapter, layers, made.passes)
    figures = figures_of(unroll, whole, (), covered, test)
    figures |= {
        "parameters": sum(p.numel() for p in model.parameters()),
        "megabytes": round((folder / WEIGHTS).stat().st_size / 1e6, 2),
        "seconds": round(spent),
    }
    return folder, None, figures


def main() -> None:
    """Train one draft, write it into the package, measure it on held-out files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(LESSONS))
    parser.add_argument("--work", type=Path, default=Path("build/pico"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    made = LESSONS[args.name]
    tokens, test = prepare(args.work, SEED, CORPUS_TOKENS)
    train = trained_assistant if made.plan.family == ASSISTANT else trained_net
    folder, key, figures = train(args.name, made, tokens, test, args.work)
    figures |= {"seed": SEED, "passes": made.passes, "plan": asdict(made.plan)}
    print(json.dumps(figures), flush=True)
    note(folder, key, figures)


if __name__ == "__main__":
    main()
