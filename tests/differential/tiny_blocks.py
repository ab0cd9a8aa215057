"""Tiny random block drafts on disk in the formats they are published in, and what they compute.

`Plain` is the CPU reference of parallel.md: float64, one request at a time, a loop over the rows
and heads of a block, dense softmax over what each of them sees, nothing padded and nothing kept in
a pool. It reads the published tensors by their published names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specflow import facts
from specflow.capture import capture
from specflow.codegen import emit
from specflow.facts import DraftFacts
from specflow.formats import named
from specflow.lower import lower
from specflow.memory import positions
from specflow.models.block_draft import BlockModel
from specflow.models.drafters import DRAFTERS
from specflow.models.lm import LanguageModel
from specflow.models.ragged import BatchPlanner
from specflow.models.weights import load_block
from specflow.session import Request, Session
from tests.differential.tiny_drafts import (
    SMALL,
    VOCABULARY,
    WIDTH,
    Pair,
    llama_target,
    near_one,
    noise,
    passing,
    recipe,
    write,
)
from tests.toys import session, tokens

FULL, SLIDING = "full_attention", "sliding_attention"
MASK = 2  # a word that prompts never hold
DEEPSPEC, ZLAB, SPECFORGE, SPECULATORS = "deepspec", "zlab", "specforge", "speculators"


# -- the reference ---------------------------------------------------------------------------------


def causal_of(said: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether full layers, and sliding ones, look back only (1a, 1b)."""
    inner = said.get("dflash_config") or {}
    forced = inner.get("is_causal", said.get("is_causal"))
    if forced is not None:
        return forced, forced
    return False, not said.get("sliding_window_non_causal", False)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean() + eps) * weight


def turned(x: Tensor, position: int, theta: float) -> Tensor:
    """RoPE of one head at one position, the halves rotated against each other."""
    half = len(x) // 2
    angle = position * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    low, high = x[:half], x[half:]
    return torch.cat(
        [low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()]
    )


Kept = list[tuple[Tensor, Tensor]]  # of a layer: keys and values [kv heads, E] of each position


@dataclass
class Plain:
    """A block draft as parallel.md says it, out of its published tensors.

    tensors   float64, by published names
    said      its config, the layers' part and the block's flattened into one
    table     the target's embedding, unless the draft brings its own
    head      the target's head, unless the draft brings its own
    causal    whether rows of a block see only what lies behind: in full layers, in sliding ones
    """

    tensors: Mapping[str, Tensor]
    said: Mapping[str, Any]
    table: Tensor
    head: Tensor
    causal: tuple[bool, bool] = (False, True)
    scale: float = 1.0
    multiplier: float = 1.0
    softcap: float = 0.0

    def weight(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def layers(self) -> int:
        return int(self.said["num_hidden_layers"])

    @property
    def eps(self) -> float:
        return float(self.said["rms_norm_eps"])

    def windows(self) -> list[int]:
        kinds = self.said.get("layer_types") or [FULL] * self.layers
        return [self.said["sliding_window"] if kind == SLIDING else 0 for kind in kinds]

    def context(self, taps: Tensor) -> Tensor:
        """c of one position, from its taps side by side [n * H]."""
        return normed(self.weight("fc.weight") @ taps, self.weight("hidden_norm.weight"), self.eps)

    def heads(self, layer: int, name: str, x: Tensor) -> Tensor:
        """A projection of one row as heads [H, E]."""
        at = f"layers.{layer}.self_attn.{name}_proj."
        out = self.weight(at + "weight") @ x
        if at + "bias" in self.tensors:
            out = out + self.weight(at + "bias")
        return out.view(-1, int(self.said["head_dim"]))

    def turned_heads(self, layer: int, name: str, x: Tensor, position: int) -> Tensor:
        """Heads of queries or keys, normed and turned."""
        weight = self.weight(f"layers.{layer}.self_attn.{name}_norm.weight")
        theta = float(self.said["rope_theta"])
        heads = [normed(h, weight, self.eps) for h in self.heads(layer, name, x)]
        return torch.stack([turned(h, position, theta) for h in heads])

    def key_value(self, layer: int, x: Tensor, position: int) -> tuple[Tensor, Tensor]:
        return self.turned_heads(layer, "k", x, position), self.heads(layer, "v", x)

    def injected(self, taps: Tensor) -> list[Kept]:
        """Of each layer, keys and values of all positions of a text, from its taps [P, n * H]."""
        states = [self.context(row) for row in taps]
        return [
            [self.key_value(layer, c, p) for p, c in enumerate(states)]
            for layer in range(self.layers)
        ]

    def sees(self, layer: int, query: int, key: int) -> bool:
        """Whether a row of the block sees a row of the block, or a position of the context."""
        window = self.windows()[layer]
        if self.causal[bool(window)] and key > query:
            return False
        return not window or abs(query - key) < window

    def block(self, ids: list[int], start: int, kept: list[Kept], first: int = 0) -> Tensor:
        """Hidden states [Q, M] of a block at `start` over the context from `first` on."""
        rows = [self.table[i] * self.scale for i in ids]
        for layer in range(self.layers):
            at = f"layers.{layer}."
            entry = [normed(x, self.weight(at + "input_layernorm.weight"), self.eps) for x in rows]
            own = [self.key_value(layer, u, start + j) for j, u in enumerate(entry)]
            everything = [*kept[layer][:start], *own]
            for j, u in enumerate(entry):
                rows[j] = rows[j] + self.attended(layer, u, start + j, everything, first)
            for j, x in enumerate(rows):
                z = normed(x, self.weight(at + "post_attention_layernorm.weight"), self.eps)
                gate, up = (self.weight(f"{at}mlp.{n}_proj.weight") @ z for n in ("gate", "up"))
                fed = gate * torch.sigmoid(gate) * up
                rows[j] = x + self.weight(at + "mlp.down_proj.weight") @ fed
        return torch.stack([normed(x, self.weight("norm.weight"), self.eps) for x in rows])

    def attended(self, layer: int, u: Tensor, at: int, everything: Kept, first: int) -> Tensor:
        queries = self.turned_heads(layer, "q", u, at)
        group = len(queries) // len(everything[0][0])
        read = []
        for head, query in enumerate(queries):
            seen = [
                (k[head // group], v[head // group])
                for p, (k, v) in enumerate(everything)
                if p >= first and self.sees(layer, at, p)
            ]
            scores = [float(query @ k) / math.sqrt(len(query)) for k, _ in seen]
            most = max(scores)
            shares = [math.exp(score - most) for score in scores]
            total = sum(shares)
            mixed = torch.zeros_like(query)
            for share, (_, v) in zip(shares, seen, strict=True):
                mixed = mixed + share / total * v
            read.append(mixed)
        out = self.weight(f"layers.{layer}.self_attn.o_proj.weight") @ torch.cat(read)
        bias = self.tensors.get(f"layers.{layer}.self_attn.o_proj.bias")
        return out if bias is None else out + bias

    def score(self, hidden: Tensor) -> Tensor:
        """Logits [.., V] of hidden states [.., M]."""
        logits = hidden @ self.head.T * self.multiplier
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits

    def bias(self, last: int, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What the token before adds to the logits of a row, and the next memory (2c)."""
        w1, w2 = (self.weight(f"markov_head.markov_w{i}.weight") for i in (1, 2))
        e, sigma = w1[last], torch.sigmoid

        def joined(name: str, *parts: Tensor) -> Tensor:
            at = f"markov_head.{name}_proj."
            return self.weight(at + "weight") @ torch.cat(parts) + self.weight(at + "bias")

        if "markov_head.gate_proj.weight" in self.tensors:
            return w2 @ (sigma(joined("gate", hidden, e)) * e), memory
        if "markov_head.joint_proj.weight" in self.tensors:
            z = joined("joint", memory, e, hidden)
            rank = len(e)
            keep, new, out = z[:rank], z[rank : 2 * rank], z[2 * rank :]
            return w2 @ torch.tanh(out), sigma(keep) * memory + (1 - sigma(keep)) * torch.tanh(new)
        return w2 @ e, memory

    def trust(self, hidden: Tensor, last: int) -> float:
        """The logit of the confidence head (2d)."""
        weight = self.weight("confidence_head.proj.weight")[0]
        known = hidden
        if len(weight) > len(hidden):
            known = torch.cat([hidden, self.weight("markov_head.markov_w1.weight")[last]])
        bias = self.tensors.get("confidence_head.proj.bias", torch.zeros(1))
        return float(weight @ known + bias[0])

    def said_of(self, hidden: Tensor, bonus: int, guesses: list[int]) -> tuple[Tensor, Tensor]:
        """Logits [K, V] of guesses that rows [K, M] made, and of the confidence in each [K].

        What a guess is told of those before it is what `guesses` says, so a tie decides nothing.
        """
        base = self.score(hidden)
        before, made, sure = [bonus, *guesses[:-1]], [], []
        memory = torch.zeros(0)
        if "markov_head.markov_w1.weight" in self.tensors:
            memory = base.new_zeros(self.weight("markov_head.markov_w1.weight").shape[1])
        for row, last in enumerate(before):
            logits = base[row]
            if len(memory):
                bias, memory = self.bias(last, hidden[row], memory)
                logits = logits + bias
            made.append(logits)
            if "confidence_head.proj.weight" in self.tensors:
                sure.append(self.trust(hidden[row], last))
        return torch.stack(made), torch.tensor(sure, dtype=torch.float64)

    def words(self) -> list[int]:
        """What the ids of its own head mean to the target."""
        if "d2t" not in self.tensors:
            return list(range(len(self.head)))
        return [i + int(offset) for i, offset in enumerate(self.tensors["d2t"])]


# -- what is written -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What a tiny draft looks like.

    layout      whose config it has
    rows        its block_size
    kinds       of its layers
    window      of the sliding ones
    markov      its Markov head, or none
    ahead       said in its config, or left to what marks it
    covered     ids that a reduced head knows; empty for the target's own head
    names       before every tensor's name
    config      more of the config, at its top
    """

    layout: str = DEEPSPEC
    rows: int = 7
    kinds: tuple[str, ...] = (FULL, FULL)
    window: int = 8
    markov: str = "vanilla"
    rank: int = VOCABULARY
    trust: bool = True
    ahead: bool | None = None
    covered: tuple[int, ...] = ()
    taps: tuple[int, ...] = (0, 1, 2)
    names: str = ""
    bias: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        return "DSPARK" if self.markov else "DFLASH"

    def layers(self) -> dict[str, Any]:
        """The part of its config about its layers."""
        return SMALL | {
            "model_type": "qwen3", "num_hidden_layers": len(self.kinds), "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "hidden_act": "silu", "attention_bias": self.bias, "layer_types": list(self.kinds),
            "sliding_window": self.window if SLIDING in self.kinds else None,
        }  # fmt: skip

    def said(self) -> dict[str, Any]:
        """Its config.json, as that publisher writes it."""
        flags = {} if self.ahead is None else {"sample_from_anchor": self.ahead}
        block = {"block_size": self.rows, "mask_token_id": MASK}
        outputs = {"target_layer_ids": list(self.taps)}
        head = {"markov_rank": self.rank if self.markov else 0, "markov_head_type": self.markov}
        config = dict(self.config)
        if self.layout == ZLAB:
            inner = {"dflash_config": {**outputs, "mask_token_id": MASK, **flags}}
            names = {"architectures": ["DFlashDraftModel"], "block_size": self.rows}
            return self.layers() | names | inner | config
        if self.layout == SPECFORGE:
            inner = {**block, **outputs, **head, **flags, "projector_type": "dspark"}
            names = {"architectures": ["DSparkDraftModel"]}
            return self.layers() | names | {"dflash_config": inner} | config
        if self.layout == SPECULATORS:
            kind = "dspark" if self.markov else "dflash"
            ids = {"aux_hidden_state_layer_ids": [i + 1 for i in self.taps]}
            names = {"speculators_model_type": kind, "transformer_layer_config": self.layers()}
            return names | block | ids | (head if self.markov else {}) | flags | config
        names = {"architectures": ["Qwen3DSparkModel"], "num_anchors": 512}
        return self.layers() | names | block | outputs | head | flags | config


def grouped(weight: Tensor, kv: int, heads: int) -> Tensor:
    """Rows of key-value heads repeated for the query heads that read them."""
    width = weight.shape[0] // kv
    shape = (kv, heads // kv, width, weight.shape[-1])
    return weight.view(kv, 1, width, -1).expand(shape).reshape(heads * width, -1)


@torch.no_grad()
def block_tensors(look: Look, target: LanguageModel, seed: int = 6) -> dict[str, Tensor]:
    """Weights by the names they are published under.

    A Markov head knows roughly what the target says after each token; attention passes on what the
    context says, and the target's own head reads it. So guesses are right some of the time.
    """
    torch.manual_seed(seed)
    said = look.layers()
    heads, kv, width = 4, 2, said["head_dim"]
    inner, count = said["intermediate_size"], len(look.taps)
    tensors = {
        "fc.weight": passing(WIDTH, count * WIDTH, gain=1.0, at=0),
        "hidden_norm.weight": near_one(WIDTH),
        "norm.weight": near_one(WIDTH),
    }
    for i in range(len(look.kinds)):
        at = f"layers.{i}."
        turn = torch.linalg.qr(noise(kv * width, WIDTH)).Q
        back = grouped(turn, kv, heads).T * kv / heads
        made = {
            "input_layernorm.weight": near_one(WIDTH),
            "post_attention_layernorm.weight": near_one(WIDTH),
            "self_attn.q_proj.weight": noise(heads * width, WIDTH, scale=0.4),
            "self_attn.k_proj.weight": noise(kv * width, WIDTH, scale=0.4),
            "self_attn.v_proj.weight": turn + noise(kv * width, WIDTH, scale=0.02),
            "self_attn.o_proj.weight": 4 * back + noise(WIDTH, heads * width, scale=0.02),
            "self_attn.q_norm.weight": 2 * near_one(width),
            "self_attn.k_norm.weight": 2 * near_one(width),
            "mlp.gate_proj.weight": noise(inner, WIDTH),
            "mlp.up_proj.weight": noise(inner, WIDTH),
            "mlp.down_proj.weight": noise(WIDTH, inner),
        }
        if look.bias:
            sizes = {"q": heads * width, "k": kv * width, "v": kv * width, "o": WIDTH}
            made |= {f"self_attn.{n}_proj.bias": noise(size) for n, size in sizes.items()}
        tensors |= {at + name: tensor for name, tensor in made.items()}
    rows = len(look.covered) or VOCABULARY
    ids = list(look.covered) or list(range(VOCABULARY))
    if look.covered:
        head = target.adapter.head.weight.detach()[ids]
        tensors["lm_head.weight"] = head + noise(*head.shape, scale=0.02)
        tensors["d2t"] = torch.tensor(ids) - torch.arange(rows)
    if look.markov:
        tensors |= markov_tensors(look, follows(target)[:, ids])
    if look.trust:
        trust = WIDTH + (look.rank if look.markov else 0)
        tensors["confidence_head.proj.weight"] = noise(1, trust, scale=0.3)
        tensors["confidence_head.proj.bias"] = noise(1)
    return {look.names + name: tensor for name, tensor in tensors.items()}


def follows(target: LanguageModel) -> Tensor:
    """Logits [V, V] of the target after each token alone."""
    made = []
    for token in range(target.vocab_size):
        window = target.window(target.pool(1, 1), 1)
        made.append(window.prefill(torch.tensor([token]))[0][0])
    return torch.stack(made).float()


def markov_tensors(look: Look, said: Tensor) -> dict[str, Tensor]:
    """A Markov head that adds about what the target says after the token before [V, rows]."""
    words, rank = said.shape[0], look.rank
    at = "markov_head."
    first = torch.eye(words, rank) + noise(words, rank, scale=0.05)
    tensors = {f"{at}markov_w1.weight": first, f"{at}markov_w2.weight": noise(said.shape[1], rank)}
    tensors[f"{at}markov_w2.weight"][:, : min(rank, words)] += 2 * said.T[:, :rank]
    if look.markov == "gated":
        tensors |= {f"{at}gate_proj.weight": noise(rank, WIDTH + rank, scale=0.3),
                    f"{at}gate_proj.bias": 1 + noise(rank)}  # fmt: skip
    if look.markov == "rnn":
        joint = noise(3 * rank, 2 * rank + WIDTH)
        joint[2 * rank :, rank : 2 * rank] += 3 * torch.eye(rank)  # the output is of the embedding
        tensors |= {f"{at}joint_proj.weight": joint, f"{at}joint_proj.bias": noise(3 * rank)}
    return tensors


def open_block(target: LanguageModel, home: Path, folder: Path) -> BlockModel:
    """As a drafter opens it: facts of both, then the weights."""
    draft = facts.read_folder(folder)
    net = facts.describe_draft(facts.read_folder(home), draft)
    assert net.problem is None
    return load_block(draft.weights, named(net.format), dict(draft.config), net, target.adapter)


@dataclass(frozen=True)
class Made:
    """A tiny pair on disk, and its target in memory."""

    look: Look
    pair: Pair
    target: LanguageModel

    @property
    def net(self) -> DraftFacts:
        draft = facts.read_folder(self.pair.home)
        return facts.describe_draft(facts.read_folder(self.pair.target), draft)

    def open(self) -> BlockModel:
        return open_block(self.target, self.pair.target, self.pair.home)

    def plain(self) -> Plain:
        """The reference, from the files."""
        own = {n.removeprefix(self.look.names): t.double() for n, t in self.pair.tensors().items()}
        stock = self.pair.stock
        head = own.get("lm_head.weight", stock.get_output_embeddings().weight.detach().double())
        table = stock.get_input_embeddings().weight.detach().double()
        return Plain(own, self.look.layers(), table, head, causal_of(self.look.said()))

    def session(self, batch: int = 1, **blocks: Any) -> Session:
        """A session over a step module of its own, planned where the recipe plans."""
        resolved = recipe(self.pair, batch, **blocks)
        graph = lower(resolved)
        module = emit(graph, resolved).load(self.pair.target.parent / "steps")
        pool = self.target.pool(batch, positions(resolved))
        drafter = DRAFTERS[graph.drafter](resolved, self.target, pool)
        planner = BatchPlanner.of(resolved)
        step = capture(module, self.target, pool, drafter, planner)
        return Session(resolved, step, self.target, pool, drafter, str, frozenset(), planner)


class Workshop:
    """Tiny block drafts beside one tiny target, each written once."""

    def __init__(self, root: Path) -> None:
        torch.set_num_threads(1)
        self.root = root
        stock, self.home = llama_target(root)
        self.stock = stock
        self.target = LanguageModel.load(self.home, device="cpu", dtype="float32")
        self._made: dict[str, Made] = {}
        self._plain: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def __call__(self, look: Look) -> Made:
        name = f"draft-{len(self._made)}"
        known = self._made.get(repr(look))
        if known is None:
            folder = write(self.root / name, block_tensors(look, self.target), look.said())
            pair = Pair(look.algorithm, self.home, folder, self.stock, 3)
            known = self._made[repr(look)] = Made(look, pair, self.target)
        return known

    def plain(self, asked: list[Request], **run: int) -> dict[str, list[int]]:
        """What plain decoding makes of requests."""
        new = [r for r in asked if (tuple(r.tokens), r.max_new_tokens) not in self._plain]
        if new:
            pair = Pair("NONE", self.home, None, self.stock, 3)
            blocks: dict[str, Any] = {"draft": {"algorithm": "NONE"}, "run": run}
            made = session(recipe(pair, 8, **blocks), self.target, self.root / "steps")
            found = tokens(made, new)
            self._plain |= {(tuple(r.tokens), r.max_new_tokens): found[r.id] for r in new}
        return {r.id: self._plain[tuple(r.tokens), r.max_new_tokens] for r in asked}


Drafted = Callable[[Any, Tensor], Tensor]  # what a step knows, and its guesses -> guesses instead


def redraft(made: Session, change: Drafted) -> None:
    """Put other guesses in the place of a draft's own, in every step of a session."""
    module = made.captured.module
    own = module.draft

    def draft(drafter: Any, state: Any) -> Any:
        given = own(drafter, state)
        if isinstance(given, tuple):
            return change(state, given[0]), *given[1:]
        return change(state, given)

    module.draft = draft


def hint(made: Session, truth: Mapping[str, list[int]]) -> None:
    """Let exactly so many first guesses of a row be right: 0, all, 1, all but one, and so on."""
    asked = itertools.count()

    def change(_state: Any, guesses: Tensor) -> Tensor:
        guesses, most = guesses.clone(), guesses.shape[1]
        for row, completion in enumerate(made.rows):
            turn = next(asked) % (most + 1)
            count = most - turn // 2 if turn % 2 else turn // 2
            rest = truth[completion.request.id][len(completion.tokens) :][: count + 1]
            if len(rest) > count:
                rest[count] = (rest[count] + 1) % VOCABULARY
            guesses[row, : len(rest)] = torch.tensor(rest, dtype=guesses.dtype)[:most]
        return guesses

    redraft(made, change)


def texts(
    count: int, lengths: tuple[int, ...], news: tuple[int, ...], seed: int = 3
) -> list[Request]:
    """Requests with prompts and completions of these lengths by turns; no prompt holds MASK."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        ids = torch.randint(3, VOCABULARY, (lengths[i % len(lengths)],), generator=generator)
        made.append(Request(str(i), ids.tolist(), news[i % len(news)]))
    return made
