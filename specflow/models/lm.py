"""What a causal language model says next: weights over our own pool, without state of their own.

B  rows      W  nodes a row      V  vocabulary      S  extent
P  prompt tokens      D  nodes of a path
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from specflow.errors import RuntimeFault
from specflow.facts import token_ids
from specflow.kernels import take_row
from specflow.models.adapters import INSTEAD, Adapter, adapt, architecture_of
from specflow.models.attention import SDPA, Backend, Frame
from specflow.models.inference import inference
from specflow.models.loading import load_weights
from specflow.models.timing import now
from specflow.pools import KVPool, LayerShape


class LanguageModel:
    """A causal model of the library: weights, sizes, and how long its forwards took.

    `entered` and `left` are the clock at the begin and the end of the last forward, head included.
    """

    def __init__(self, adapter: Adapter, stop_ids: frozenset[int]) -> None:
        self.adapter = adapter
        self.stop_ids = stop_ids
        self.vocab_size = adapter.vocab_size
        self.max_positions = adapter.max_positions
        self.layers = adapter.layers
        self.device, self.dtype = adapter.device, adapter.dtype
        self.forward_seconds, self.forwards = 0.0, 0
        self.entered = self.left = 0.0
        self.shapes = probe(self)

    @classmethod
    def load(
        cls, folder: Path, *, device: str, dtype: str, backend: Backend = SDPA
    ) -> LanguageModel:
        """The model of a safetensors folder, every weight accounted for."""
        return cls.wrap(load_weights(folder, device=device, dtype=dtype), backend)

    @classmethod
    def wrap(cls, model: PreTrainedModel, backend: Backend = SDPA) -> LanguageModel:
        """A model in memory; its attention is ours from here on."""
        if architecture_of(model).proven:
            return cls(adapt(model, backend), find_stop_ids(model))
        expected = stock_trial(model.eval())
        wrapped = cls(adapt(model, backend), find_stop_ids(model))
        hold_against(wrapped, expected)
        return wrapped

    def pool(self, rows: int, length: int) -> KVPool:
        """An empty pool for `rows` rows of `length` positions, allocated at once."""
        return KVPool(rows, length, self.shapes, device=self.device, dtype=self.dtype)

    def window(self, pool: KVPool, extent: int, *, row: int = 0) -> Window:
        """The model over the first `extent` positions of a pool; `prefill` fills row `row`."""
        return Window(self, pool, extent, row)

    def forward(
        self, tokens: Tensor, positions: Tensor, step: Any, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """Hidden states [B, q, H] of tokens [B, q] for the head, and taps [B, q, n * H]."""
        if not torch.compiler.is_compiling():
            self.entered = now()
            self.forwards += 1
        hidden, tapped = self.adapter.run(tokens, positions, step, taps)
        self._left()
        return hidden, tapped

    def score(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H]: the end of a forward."""
        logits = self.adapter.score(hidden)
        self._left()
        return logits

    def _left(self) -> None:
        """Count the time since the forward was entered, once; a traced one leaves no mark."""
        if torch.compiler.is_compiling():
            return
        at = now()
        self.forward_seconds += at - max(self.entered, self.left)
        self.left = at


class Window:
    """One model over one pool and a fixed extent: shapes depend on (B, W, S) only."""

    def __init__(self, model: LanguageModel, pool: KVPool, extent: int, row: int = 0) -> None:
        self.model, self.pool = model, pool
        self.frame = Frame(pool, extent, model.dtype, row, model.adapter.backend)

    @inference
    def verify(self, tokens: Tensor, seq_lens: Tensor) -> Tensor:
        """Logits [B, W, V] of a chain: token i at position and slot seq_lens + i."""
        return self.model.score(self._chain(tokens, seq_lens)[0])

    @inference
    def verify_hidden(self, tokens: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
        """As `verify`, and the hidden states [B, W, H] that the head reads."""
        hidden, _ = self._chain(tokens, seq_lens)
        return self.model.score(hidden), hidden

    @inference
    def verify_taps(
        self, tokens: Tensor, seq_lens: Tensor, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """As `verify`, and what enters the tapped layers, side by side [B, W, n * H]."""
        hidden, tapped = self._chain(tokens, seq_lens, taps)
        return self.model.score(hidden), tapped

    @inference
    def verify_packed_taps(
        self, tokens: Tensor, seq_lens: Tensor, packed: Tensor, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """As `verify_taps` of the positions packed [G] alone; the others' logits and taps are 0.

        packed  indices into the B * W positions, ascending; B * W is nowhere
        """
        rows, width = tokens.shape
        unpack = self.model.adapter.backend.unpack
        if packed.shape[0] == tokens.numel():  # room for all of them, of which some may be nowhere
            logits, tapped = self.verify_taps(tokens, seq_lens, taps)
            asked = torch.ones_like(packed, dtype=torch.bool)[:, None]
            known = unpack(asked, packed, rows, width)
            return torch.where(known, logits, 0), torch.where(known, tapped, 0)
        positions, step = self.frame.packed(width, seq_lens, packed)
        few = F.pad(tokens.flatten(), (0, 1)).index_select(0, packed)[None]
        hidden, tapped = self.model.forward(few, positions, step, taps)
        logits = self.model.score(hidden)
        return unpack(logits[0], packed, rows, width), unpack(tapped[0], packed, rows, width)

    @inference
    def decode(self, tokens: Tensor, seq_lens: Tensor) -> Tensor:
        """Logits [B, V] after tokens [B, q] that follow one another as in `verify`."""
        return self.model.score(self._chain(tokens, seq_lens)[0][:, -1])

    @inference
    def extend(self, tokens: Tensor, seq_lens: Tensor, accept_len: Tensor) -> Tensor:
        """Logits [B, V] after the first accept_len of tokens [B, W]; all are written."""
        return self.model.score(take_row(self._chain(tokens, seq_lens)[0], accept_len))

    @inference
    def verify_tree(self, tokens: Tensor, seq_lens: Tensor, depths: Tensor, sees: Tensor) -> Tensor:
        """Logits [B, W, V] of a tree: node i in slot seq_lens + i, at position seq_lens + depth.

        tokens    [B, W]     node 0 is the root
        seq_lens  [B]        committed positions, seen by every node
        depths    [B, W]     0 at the root
        sees      [B, W, W]  bool, [b, i, j]: node i sees node j; itself included
        """
        return self.model.score(self._tree(tokens, seq_lens, depths, sees)[0])

    @inference
    def verify_tree_hidden(
        self, tokens: Tensor, seq_lens: Tensor, depths: Tensor, sees: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `verify_tree`, and the hidden states [B, W, H] that the head reads."""
        hidden, _ = self._tree(tokens, seq_lens, depths, sees)
        return self.model.score(hidden), hidden

    @inference
    def verify_tree_taps(
        self,
        tokens: Tensor,
        seq_lens: Tensor,
        depths: Tensor,
        sees: Tensor,
        taps: tuple[int, ...],
    ) -> tuple[Tensor, Tensor]:
        """As `verify_tree`, and what enters the tapped layers, side by side [B, W, n * H]."""
        hidden, tapped = self._tree(tokens, seq_lens, depths, sees, taps)
        return self.model.score(hidden), tapped

    @inference
    def grow(self, tokens: Tensor, seq_lens: Tensor, sees: Tensor, level: int) -> Tensor:
        """Logits [B, T, V] of the branches of a level, one node each (`Frame.level`)."""
        positions, step = self.frame.level(tokens.shape[1], seq_lens, sees, level)
        return self.model.score(self.model.forward(tokens, positions, step)[0])

    @inference
    def prefill(
        self, tokens: Tensor, start: int = 0, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [1, V], hidden states [1, P, H] and taps [1, P, n * H] of one row's tokens [P].

        They are written from position `start` on; the logits are those after the last one.
        """
        tokens = tokens.reshape(1, -1)
        positions, step = self.frame.prefill(tokens.shape[1], start)
        hidden, tapped = self.model.forward(tokens, positions, step, taps)
        return self.model.score(hidden[:, -1]), hidden, tapped

    @inference
    def move_accepted(self, path: Tensor, seq_lens: Tensor) -> None:
        """Make the accepted nodes path [B, D], padded with -1, the positions after seq_lens [B]."""
        self.model.adapter.backend.move(self.pool, path, seq_lens)

    def _chain(
        self, tokens: Tensor, seq_lens: Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        positions, step = self.frame.chain(tokens.shape[1], seq_lens)
        return self.model.forward(tokens, positions, step, taps)

    def _tree(
        self,
        tokens: Tensor,
        seq_lens: Tensor,
        depths: Tensor,
        sees: Tensor,
        taps: tuple[int, ...] = (),
    ) -> tuple[Tensor, Tensor]:
        positions, step = self.frame.tree(seq_lens, depths, sees)
        return self.model.forward(tokens, positions, step, taps)


class Probe:
    """Stands in for the first step: learns what each layer keeps, and how far it sees."""

    backend = SDPA

    def __init__(self, device: torch.device) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.windows: list[int | None] = []
        self._nothing = torch.zeros(1, 1, 1, 1, device=device)

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Note what a layer would write."""
        self.shapes[layer] = LayerShape(keys.shape[1], keys.shape[-1], values.shape[-1])
        return keys, values

    def mask(self, window: int | None, _groups: int) -> Tensor:
        """Note how far a layer sees."""
        self.windows.append(window)
        return self._nothing


@inference
def probe(model: LanguageModel) -> dict[int, LayerShape]:
    """What each layer keeps a position, from a forward of one token; no layer may bypass us."""
    recorder = Probe(model.device)
    zero = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    try:
        model.score(model.forward(zero, zero, recorder)[0])
    except AttributeError as error:
        raise RuntimeFault(
            f"a layer keeps more than keys and values ({error}); {INSTEAD}"
        ) from error
    model.forward_seconds, model.forwards = 0.0, 0
    if len(recorder.windows) != model.layers:
        raise RuntimeFault(
            f"{len(recorder.windows)} of {model.layers} layers take our attention; {INSTEAD}"
        )
    sliding = sum(window is not None for window in recorder.windows)
    if sliding != model.adapter.sliding:
        raise RuntimeFault(
            f"{sliding} of {model.adapter.sliding} layers see a sliding window; {INSTEAD}"
        )
    return recorder.shapes


# A trial for what no test has proven: six tokens, then a tree whose path goes on with four more.
PREFIX, PATH, PARENTS = 6, (0, 2, 3, 5), (-1, 0, 0, 2, 3, 3)


@inference
def stock_trial(model: PreTrainedModel) -> Tensor:
    """Logits [4, V] of the trial's path by the library alone."""
    tokens = torch.arange(1, PREFIX + len(PATH) + 1, device=model.device)[None]
    logits: Tensor = model(tokens, use_cache=False).logits[0, PREFIX:]
    return logits


def hold_against(model: LanguageModel, expected: Tensor) -> None:
    """Stop unless a tree over our pool says what the library said."""
    tokens = torch.arange(1, PREFIX + len(PATH) + 1, device=model.device)
    tree = tokens.new_zeros(1, len(PARENTS))
    tree[0, list(PATH)] = tokens[PREFIX:]
    sees = torch.eye(len(PARENTS), dtype=torch.bool, device=model.device)
    for node, parent in enumerate(PARENTS[1:], start=1):
        sees[node] |= sees[parent]
    window = model.window(model.pool(1, 16), 16)
    window.prefill(tokens[:PREFIX])
    seq_lens = tokens.new_tensor([PREFIX])
    logits = window.verify_tree(tree, seq_lens, sees.sum(-1)[None] - 1, sees[None])[0, list(PATH)]
    model.forward_seconds, model.forwards = 0.0, 0
    slack = 0.05 if model.dtype in {torch.bfloat16, torch.float16} else 1e-3
    if not (logits - expected).abs().max() <= slack * expected.abs().max():
        raise RuntimeFault(
            f"a tree over our pool says something else than the model alone; {INSTEAD}"
        )


def find_stop_ids(model: PreTrainedModel) -> frozenset[int]:
    """The tokens that end a text, from the generation config or else the model's own."""
    for config in (model.generation_config, model.config.get_text_config()):
        said = getattr(config, "eos_token_id", None)
        if said is None:
            continue
        ids = token_ids(said)
        if ids is None:
            raise RuntimeFault("`eos_token_id` of the model is no token id; name another model")
        return ids
    return frozenset()
