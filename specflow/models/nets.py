"""A draft network from its `Net` description: what it computes, as a module and over a pool.

B  rows      q  tokens a row      W  verified positions      T  branches of a level
H  hidden width of the target      D  of the draft      V  draft vocabulary      L  positions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from specflow.formats import TAPS, Net
from specflow.kernels import take_row
from specflow.models.adapters import Adapter
from specflow.models.attention import Frame
from specflow.models.blocks import WideBlock, llama_block, llama_config, target_config
from specflow.models.inference import inference
from specflow.models.lm import Probe
from specflow.models.timing import now, spent
from specflow.pools import KVPool, LayerShape


@dataclass(frozen=True)
class Sizes:
    """What a draft network's checkpoint says of its sizes.

    reads   width of the target's hidden state or taps, as its projection reads it
    width   of the state it carries from step to step
    vocab   rows of its own head, 0 without one
    steps   layers of its own, one a draft step
    """

    reads: int
    width: int
    vocab: int = 0
    steps: int = 1
    embedding: bool = False
    mapped: bool = False
    fc_bias: bool = False
    residual_normed: bool = False


class DraftStep(nn.Module):
    """One projection and one layer."""

    embed_norm: Any
    hidden_norm: Any
    block: Any
    norm: Any

    def __init__(self, net: Net, sizes: Sizes, make: Callable[[int], nn.Module], index: int,
                 norm: Callable[[int], nn.Module]) -> None:  # fmt: skip
        super().__init__()
        wide = net.block == "wide"
        self.embed_norm = norm(sizes.width) if net.entry_norms else None
        self.hidden_norm = norm(sizes.reads) if net.entry_norms else None
        inputs = sizes.reads if wide else sizes.reads + sizes.width
        self.fc = nn.Linear(inputs, sizes.width, bias=sizes.fc_bias)
        self.block = make(index)
        self.norm = norm(sizes.width) if net.final_norm else None


class DraftNet(nn.Module):
    """Tokens and hidden states to the next hidden states; the same module trains and drafts.

    A row pairs the token after a position with the hidden state at it (serial.md §6.1b).
    """

    steps: Any  # a ModuleList of DraftStep

    def __init__(
        self, net: Net, sizes: Sizes, target: Adapter, said: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.net, self.sizes = net, sizes
        self._target = (target,)  # in a tuple: the target's weights are not ours to save
        if net.block == "target":
            config = target_config(target.config, sizes.steps)
            layer, own_norm = type(target.decoder.layers[-1]), type(target.decoder.norm)
            made = [layer(config, i) for i in range(sizes.steps)]
            self._rotary = (target.decoder.rotary_emb,)
        else:
            config = llama_config(said or {})
            own_norm = LlamaRMSNorm
            made = [
                WideBlock(config, i, residual_normed=sizes.residual_normed)
                if net.block == "wide"
                else llama_block(config, i, input_norm=net.input_norm)
                for i in range(sizes.steps)
            ]
            self._rotary = (LlamaRotaryEmbedding(config),)
        self.layer_types = list(getattr(config, "layer_types", None) or [])

        def norm(width: int) -> nn.Module:
            made_norm: nn.Module = own_norm(width, eps=config.rms_norm_eps)
            return made_norm

        self.steps = nn.ModuleList(
            DraftStep(net, sizes, made.__getitem__, i, norm) for i in range(sizes.steps)
        )
        rows = target.vocab_size
        self.embed_tokens = nn.Embedding(rows, sizes.width) if sizes.embedding else None
        self.lm_head = nn.Linear(sizes.width, sizes.vocab, bias=False) if sizes.vocab else None
        # Offsets, as published: target id = draft id + d2t[draft id].
        self.d2t = nn.Buffer(torch.zeros(sizes.vocab, dtype=torch.int64)) if sizes.mapped else None

    @property
    def layers(self) -> list[Any]:
        """The decoder layers, as `adapters` knows them."""
        return [step.block for step in self.steps]

    @property
    def target(self) -> Adapter:
        """Whose embedding and head it uses."""
        return self._target[0]

    def enter(self, hidden: Tensor) -> Tensor:
        """What the target shows [B, q, H], as the network's own hidden state where they differ."""
        return self.steps[0].fc(hidden) if self.net.reads == TAPS else hidden

    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, step: Any, index: int = 0
    ) -> Tensor:
        """The state carried on [B, q, D] after tokens [B, q] and hidden states [B, q, D]."""
        part = self.steps[index]
        embedded = self._embed(tokens, positions)
        turn = self._turn(embedded, positions, index)
        if self.net.block == "wide":
            out: Tensor = part.block(embedded, hidden, turn, step)
        else:
            if part.embed_norm is not None:
                embedded, hidden = part.embed_norm(embedded), part.hidden_norm(hidden)
            pair = (hidden, embedded) if self.net.hidden_first else (embedded, hidden)
            out = part.block(
                part.fc(torch.cat(pair, dim=-1)), position_embeddings=turn, attention_mask=None,
                position_ids=positions, cache=step, use_cache=True, step=step,
            )  # fmt: skip
        return part.norm(out) if self.net.carries == "normed" else out

    def score(self, hidden: Tensor, index: int = 0) -> Tensor:
        """Logits [..., V] of carried states [..., D]."""
        norm = self.steps[index].norm
        if self.net.carries == "raw" and norm is not None:
            hidden = norm(hidden)
        return self.target.score(hidden) if self.lm_head is None else self.lm_head(hidden)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        table = self.embed_tokens
        embedded: Tensor = (self.target.decoder.embed_tokens if table is None else table)(tokens)
        if self.net.zero_first:
            embedded = embedded.masked_fill((positions == 0)[..., None], 0)
        return embedded

    def _turn(self, embedded: Tensor, positions: Tensor, index: int) -> Any:
        if self.layer_types and self.net.block == "target" and self._turns_by_type():
            return self._rotary[0](embedded, positions, self.layer_types[index])
        return self._rotary[0](embedded, positions)

    def _turns_by_type(self) -> bool:
        given = getattr(self.target.config, "rope_parameters", None) or {}
        return "rope_type" not in given and any(isinstance(v, dict) for v in given.values())


def ids_table(d2t: Tensor | None) -> Tensor | None:
    """The target's id [V] of each of a draft's, from its offsets; None where they are the same."""
    return None if d2t is None else d2t + torch.arange(d2t.shape[0], device=d2t.device)


def as_target_ids(tokens: Tensor, table: Tensor | None) -> Tensor:
    """Draft ids as ids of the target's vocabulary."""
    return tokens if table is None else F.embedding(tokens, table[:, None])[..., 0]


def as_target_law(law: Tensor, table: Tensor | None, size: int) -> Tensor:
    """A law over a draft's vocabulary [..., V] as one over the target's, of so many tokens."""
    if table is None:
        return law
    return law.new_zeros(*law.shape[:-1], size).index_copy_(-1, table, law)


class DraftModel:
    """A draft network ready to run: its weights, and what each of its layers keeps a position."""

    def __init__(self, net: DraftNet, dtype: torch.dtype, device: torch.device) -> None:
        self.net, self.dtype, self.device = net, dtype, device
        self.forwards, self.forward_seconds = 0, 0.0
        self.to_target = ids_table(net.d2t)
        self.shapes = self._probe()

    def pool(self, rows: int, length: int) -> KVPool:
        """An empty pool of the draft's own, the same slots as the target's."""
        return KVPool(rows, length, self.shapes, device=self.device, dtype=self.dtype)

    def window(self, pool: KVPool, extent: int, *, row: int = 0) -> DraftWindow:
        """The network over the first `extent` positions of a pool; `feed` fills row `row`."""
        return DraftWindow(self, Frame(pool, extent, self.dtype, row, self.net.target.backend))

    @inference
    def _probe(self) -> dict[int, LayerShape]:
        recorder = Probe(self.device)
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        hidden = torch.zeros(1, 1, self.net.sizes.width, device=self.device, dtype=self.dtype)
        for index in range(self.net.sizes.steps):
            self.net(zero, hidden, zero, recorder, index)
        return recorder.shapes


class DraftWindow:
    """A draft network over its pool: what the generated step calls."""

    def __init__(self, model: DraftModel, frame: Frame) -> None:
        self.model, self.frame = model, frame

    @inference
    def decode_hidden(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, V] and state [B, D] after one token a row [B], its state [B, D] beside it."""
        at, step = self.frame.chain(1, positions)
        carried = self._run(tokens[:, None], hidden[:, None], at, step)[:, 0]
        return self._score(carried), carried

    @inference
    def grow_hidden(
        self, tokens: Tensor, hidden: Tensor, seq_lens: Tensor, sees: Tensor, level: int
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, T, V] and states [B, T, D] of the branches of a level (`Frame.level`)."""
        at, step = self.frame.level(tokens.shape[1], seq_lens, sees, level)
        carried = self._run(tokens, hidden, at, step)
        return self._score(carried), carried

    @inference
    def extend_hidden(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, accept_len: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, V] and state [B, D] where the draft stands after what was verified (§4.5).

        tokens      [B, W]     the tokens gained; those past accept_len are overwritten later
        hidden      [B, W, H]  what the target showed at the position before each
        starts      [B]        where the verified window begins
        """
        at, step = self.frame.chain(tokens.shape[1], starts)
        carried = take_row(self._run(tokens, self.model.net.enter(hidden), at, step), accept_len)
        return self._score(carried), carried

    @inference
    def extend_layer(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, rows: Tensor, layer: int
    ) -> Tensor:
        """Logits [B, V] of draft layer `layer` at row rows - 1 of a window (§6.4)."""
        at, step = self.frame.chain(tokens.shape[1], starts)
        carried = take_row(self._run(tokens, hidden, at, step, layer), rows)
        return self._score(carried, layer)

    @inference
    def feed(
        self, tokens: Tensor, hidden: Tensor, start: int, layer: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Logits [1, V] and state [1, D] after a part of a prompt: tokens [P], hidden [1, P, H]."""
        at, step = self.frame.prefill(tokens.shape[0], start)
        carried = self._run(tokens[None], self.model.net.enter(hidden), at, step, layer)[:, -1]
        return self._score(carried, layer), carried

    @property
    def to_target(self) -> Tensor | None:
        """The target's id [V] of each of the draft's; None where they are the same."""
        return self.model.to_target

    def target_ids(self, tokens: Tensor) -> Tensor:
        """Draft ids as ids of the target's vocabulary."""
        return as_target_ids(tokens, self.model.to_target)

    def target_law(self, law: Tensor) -> Tensor:
        """A law over the draft's vocabulary [B, V] as one over the target's."""
        return as_target_law(law, self.model.to_target, self.model.net.target.vocab_size)

    def _run(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, step: Any, layer: int = 0
    ) -> Tensor:
        began = now()
        carried: Tensor = self.model.net(tokens, hidden, positions, step, layer)
        spent(self.model, began, forwards=1)
        return carried

    def _score(self, carried: Tensor, layer: int = 0) -> Tensor:
        began = now()
        logits = self.model.net.score(carried, layer)
        spent(self.model, began)
        return logits
