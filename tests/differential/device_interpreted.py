"""Under TRITON_INTERPRET=1: the step of a device against the step in torch, recipe by recipe.

A process of its own, because Triton reads that variable once, when it is imported. Without it the
same cases run on a GPU (`where`).
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path

import torch

from specflow.capture import buffers
from specflow.codegen import emit
from specflow.codegen.cache import on_device
from specflow.kernels import vocab_triton
from specflow.load import load
from specflow.lower import lower
from specflow.resolve import resolve
from tests.devices import Elsewhere, onto
from tests.hastened import hasten
from tests.words import VOCABULARY, Words, drawn

# Rows, and the share of guesses that the target agrees with: what the default tests draw, and all.
FEW = ((9, 0.5), (1, 1.0), (9, 0.9))
ALL = tuple((rows, share) for share in (0.0, 0.5, 0.8, 1.0) for rows in (1, 9))
SLACK = 2e-6  # a device takes the sums of a softmax in another order: some dozen roundings

vocab_triton.TILE, vocab_triton.PROGRAMS = 64, 16  # rows in parts, and few programs


class Agreeing(Words):
    """A model whose words repeat the guesses it is asked about, some of the time."""

    def __init__(self, vocabulary: int, width: int, seed: int, share: float) -> None:
        super().__init__(vocabulary, width)
        self.seed, self.share = seed, share

    def _say(self, known: torch.Tensor) -> torch.Tensor:
        """Beside the likeliest no two are equal, and what is known decides by how much.

        Which of equals are the likeliest few is nowhere said, so no test may ask.
        """
        ids = torch.arange(self.vocabulary)
        places = ids * 37 % self.vocabulary / self.vocabulary  # no two alike: 37 divides none
        heights = 0.2 + (known.long() % 23)[..., None] / 50
        return super()._say(known) + heights * places

    def _bend(self, tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """What is asked about next is said, at a share of the positions."""
        generator = torch.Generator().manual_seed(self.seed)
        width = min(logits.shape[1], tokens.shape[1]) - 1
        logits = logits.roll(3, -1)  # a draft of the same words is wrong, unless it agrees
        if width < 1:
            return logits
        says = torch.rand(logits.shape[0], width, generator=generator) < self.share
        ahead = self._say(tokens[:, 1 : width + 1])
        bent = torch.where(says[:, :, None], ahead, logits[:, :width])
        return torch.cat([bent, logits[:, width:]], dim=1)

    def decode(self, tokens: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
        return Words.verify(self, tokens, lens)[:, -1]

    def verify(self, tokens: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
        return self._bend(tokens, super().verify(tokens, lens))

    def verify_tree(self, tokens, lens, depths, sees) -> torch.Tensor:
        return self._bend(tokens, super().verify_tree(tokens, lens, depths, sees))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], moved: Words, also: Words) -> None:
    """States alike: integers equal, laws and chances within the slack; and the models' moves."""
    for name, tensor in a.items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, b[name], rtol=SLACK, atol=SLACK), name
        else:
            assert torch.equal(tensor, b[name]), name
    for ours, theirs in zip(moved.moves, also.moves, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


def legal(state: dict[str, torch.Tensor], seed: int) -> None:
    """Laws that are laws, and settings within their bounds."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in state.items():
        if name == "temperature":
            tensor.div_(4)  # 0 is among them
        elif name in {"top_p", "min_p"}:
            tensor.copy_(torch.rand(tensor.shape, generator=generator))
        elif name == "first_law":
            tensor.copy_(torch.rand(tensor.shape, generator=generator).softmax(-1))


def check(
    recipe: str,
    root: Path,
    where: str = "cpu",
    cases: tuple[tuple[int, float], ...] = ALL,
) -> dict[str, list[int]]:
    """Compare every variant of a recipe; the accept lengths that occurred.

    recipe  its file, and overrides after question marks
    where   what the step of a device runs on; that of torch is on a CPU
    """
    path, *overrides = recipe.split("?")
    resolved = resolve(load(Path(path), overrides))
    graph = lower(resolved)
    step = emit(graph, resolved).load(root)
    device = on_device(step)
    device.PARTS, device.TILE = 4, 64  # fewer programs: the interpreter runs them one by one
    numbers = {c.name: c.value for c in graph.constants}
    vocabulary = min(int(numbers.get("VOCAB_SIZE", VOCABULARY)), 131)
    width = min(int(numbers.get("HIDDEN_SIZE", 4)), 8)
    step.VOCAB_SIZE, step.HIDDEN_SIZE = vocabulary, width  # small states: the laws are the same
    lengths: dict[str, set[int]] = {v: set() for v in step.WIDTHS}
    for variant in step.WIDTHS:
        for seed, (rows, share) in enumerate(cases):
            given = {}
            if hasattr(step, "HOST_PLAN"):
                given["budget"] = rows + seed % (rows * (step.NUM_DRAFT_TOKENS - 1) + 1)
            ours, theirs = step.State.new(rows, "cpu"), device.Device.new(rows, where)
            drawn(buffers(ours), seed)
            legal(buffers(ours), seed)
            for name, tensor in buffers(ours).items():
                getattr(theirs, name).copy_(tensor)
            models = [Agreeing(vocabulary, width, seed, share) for _ in range(2)]
            step.VARIANTS[variant](models[0], models[0], ours, *given.values())
            there = Elsewhere(models[1], where)
            device.VARIANTS[variant](there, there, theirs, *given.values())
            same(buffers(ours), onto("cpu", buffers(theirs)), *models)
            assert not getattr(theirs, "arrivals", torch.zeros(1)).any()
            lengths[variant].update(ours.accept_len.tolist())
    return {name: sorted(found) for name, found in lengths.items()}


def main() -> None:
    """Check the recipes named on the command line after `few` or `all`; print the lengths.

    What is wrong with a recipe is its result, so that the others are checked all the same.
    """
    torch.set_num_threads(1)
    hasten()
    cases = {"few": FEW, "all": ALL}[sys.argv[1]]
    found: dict[str, dict[str, list[int]] | str] = {}
    with tempfile.TemporaryDirectory() as root:
        for name in sys.argv[2:]:
            try:
                found[name] = check(name, Path(root), cases=cases)
            except Exception:  # noqa: BLE001 - told as a result
                found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
