"""Models without weights, and states without a past: what a step is tried on."""

from __future__ import annotations

import torch
from torch import Tensor

VOCABULARY = 7


class Words:
    """A model that answers by a table of all it is given, and writes down its moves.

    It is target and draft alike. What it shows is as wide as the draft's state, which every answer
    depends on.
    """

    def __init__(self, vocabulary: int = VOCABULARY, width: int = 4) -> None:
        self.vocabulary, self.width = vocabulary, width
        self.moves: list[tuple[Tensor, Tensor]] = []

    def _say(self, known: Tensor) -> Tensor:
        known = known.long() % self.vocabulary
        return torch.nn.functional.one_hot(known, self.vocabulary).float()

    def _show(self, tokens: Tensor) -> Tensor:
        return (tokens[..., None] % 5 + torch.arange(self.width)).float()

    def verify(self, tokens: Tensor, lens: Tensor) -> Tensor:
        position = lens[:, None] + torch.arange(tokens.shape[1])
        return self._say(tokens * 3 + position)

    def verify_hidden(self, tokens: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        return self.verify(tokens, lens), self._show(tokens)

    def verify_taps(
        self, tokens: Tensor, lens: Tensor, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        return self.verify(tokens, lens), self._show(tokens) + sum(taps)

    def verify_tree(self, tokens: Tensor, lens: Tensor, depths: Tensor, sees: Tensor) -> Tensor:
        return self._say(tokens * 3 + lens[:, None] + depths + sees.sum(-1))

    def verify_tree_hidden(
        self, tokens: Tensor, lens: Tensor, depths: Tensor, sees: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.verify_tree(tokens, lens, depths, sees), self._show(tokens)

    def verify_tree_taps(
        self, tokens: Tensor, lens: Tensor, depths: Tensor, sees: Tensor, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        return self.verify_tree(tokens, lens, depths, sees), self._show(tokens) + sum(taps)

    def decode(self, tokens: Tensor, lens: Tensor) -> Tensor:
        return self.verify(tokens, lens)[:, -1]

    def decode_hidden(self, tokens: Tensor, hidden: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return self._say(tokens * 3 + at + hidden.sum(-1)), hidden % 5 + tokens[:, None] % 3

    def grow(self, tokens: Tensor, starts: Tensor, sees: Tensor, level: int) -> Tensor:
        return self._say(tokens * 3 + starts[:, None] + sees.sum(-1) + level)

    def grow_hidden(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, sees: Tensor, level: int
    ) -> tuple[Tensor, Tensor]:
        known = tokens * 3 + starts[:, None] + sees.sum(-1) + level + hidden.sum(-1)
        return self._say(known), hidden % 5 + tokens[..., None] % 3

    def grow_frozen(self, tokens: Tensor, hidden: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        known = tokens * 3 + lens[:, None] + hidden.sum(-1)
        return self._say(known), hidden % 5 + tokens[..., None] % 3

    def extend(self, tokens: Tensor, starts: Tensor, accept_len: Tensor) -> Tensor:
        known = tokens.gather(1, accept_len[:, None] - 1)[:, 0]
        return self._say(known * 3 + starts)

    def extend_hidden(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, accept_len: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = accept_len[:, None, None].expand(-1, 1, hidden.shape[2]) - 1
        beside = hidden.gather(1, rows)[:, 0, : self.width]
        logits = self.extend(tokens, starts, accept_len)
        return logits.roll(int(beside.sum()) % 3, -1), beside % 5

    def extend_layer(
        self, tokens: Tensor, hidden: Tensor, starts: Tensor, rows: Tensor, layer: int
    ) -> Tensor:
        known = tokens.gather(1, rows[:, None] - 1)[:, 0] + hidden.sum((1, 2)).long()
        return self._say(known * 3 + starts + layer)

    def verify_packed_taps(
        self, tokens: Tensor, lens: Tensor, packed: Tensor, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        known = torch.zeros(tokens.numel() + 1).index_fill_(0, packed, 1)[:-1]
        asked = known.view(*tokens.shape, 1)
        logits, shown = self.verify_taps(tokens, lens, taps)
        return logits * asked, shown * asked + packed.shape[0]

    def denoise(self, block: Tensor, lens: Tensor) -> Tensor:
        at = lens[:, None, None] + torch.arange(block.shape[1])[:, None]
        return (self._show(block) + self._show(block.sum(1, keepdim=True)) + at) % 7

    def score(self, hidden: Tensor) -> Tensor:
        return self._say(hidden.sum(-1))

    def markov(self, last: Tensor, hidden: Tensor) -> Tensor:
        return self._say(last * 3 + hidden.sum(-1)) * 2

    def markov_memory(self, last: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.markov(last + memory.sum(-1).long(), hidden), memory % 5 + last[:, None] % 3

    def no_memory(self, last: Tensor) -> Tensor:
        return torch.zeros(last.shape[0], 3)

    def trust(self, hidden: Tensor, bonus: Tensor, guesses: Tensor) -> Tensor:
        last = torch.cat([bonus[:, None], guesses[:, :-1]], 1)
        return (hidden[:, : guesses.shape[1]].sum(-1) + last) % 5 - 1.5

    def inject(self, taps: Tensor, starts: Tensor, accept_len: Tensor) -> None:
        kept = torch.arange(taps.shape[1]) < accept_len[:, None]
        self.moves.append((taps * kept[:, :, None], starts.clone()))

    def target_ids(self, tokens: Tensor) -> Tensor:
        return (tokens + 1) % self.vocabulary

    @property
    def to_target(self) -> Tensor:
        return self.target_ids(torch.arange(self.vocabulary))

    def target_law(self, law: Tensor) -> Tensor:
        return law.roll(1, -1)

    def move_accepted(self, path: Tensor, starts: Tensor) -> None:
        self.moves.append((path.clone(), starts.clone()))


def drawn(state: dict[str, Tensor], seed: int) -> None:
    """Random state that a step may find."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in state.items():
        if name == "parents":
            for i in range(tensor.shape[1]):
                tensor[:, i] = torch.randint(0, i + 1, tensor[:, i].shape, generator=generator)
        elif name == "survival":
            tensor.copy_(torch.rand(tensor.shape, generator=generator).cumprod(1))
        else:
            low = -1 if name == "guesses" else 0
            tensor.copy_(torch.randint(low, VOCABULARY, tensor.shape, generator=generator))
