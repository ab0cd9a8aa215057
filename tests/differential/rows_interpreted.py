"""Under TRITON_INTERPRET=1: every recipe's fused kernels against torch, by the same names.

A process of its own, because Triton reads that variable once, when it is imported.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import sys
import tempfile
from pathlib import Path

import torch

from specflow import kernels
from specflow.codegen import emit
from specflow.load import load
from specflow.lower import lower
from specflow.resolve import resolve

VOCABULARY = 5  # small, so that guesses and words agree often


def fill(buffer: torch.Tensor, name: str, generator: torch.Generator) -> None:
    """Random contents that a buffer of that name may hold."""
    rows = buffer.shape[0]
    if name == "parents":  # node i + 1 hangs from a node before it
        for i in range(buffer.shape[1]):
            buffer[:, i] = torch.randint(0, i + 1, (rows,), generator=generator)
    elif name == "guesses":
        buffer.copy_(torch.randint(-1, VOCABULARY, buffer.shape, generator=generator))
    else:
        buffer.copy_(torch.randint(1, VOCABULARY, buffer.shape, generator=generator))


def agreeing(
    state, width: int, generator: torch.Generator, share: float
) -> dict[str, torch.Tensor]:
    """Guesses, parents and words that agree at a share of the nodes, so that all lengths occur."""
    rows = state.bonus_token.shape[0]
    verified = torch.randint(0, VOCABULARY, (rows, width), generator=generator)
    guesses = torch.randint(0, VOCABULARY, (rows, width - 1), generator=generator)
    parents = torch.arange(width - 1).expand(rows, -1).clone()  # a chain: only so a path is W long
    if hasattr(state, "parents") and share < 1:
        fill(parents, "parents", generator)
    for row in range(rows):
        for i in range(width - 1):
            if torch.rand((), generator=generator) < share:
                guesses[row, i] = verified[row, int(parents[row, i])]
    for name, made in (("guesses", guesses), ("words_ahead", guesses), ("parents", parents)):
        if hasattr(state, name) and getattr(state, name).shape == made.shape:
            getattr(state, name).copy_(made)
    # What the rules that draw hand over: tokens, and a length of any size.
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    # What a plan lets be verified: all of it, or any part, whatever agrees.
    planned = torch.randint(1, width + 1, (rows,), generator=generator)
    planned = torch.where(torch.rand(rows, generator=generator) < share - 0.5, width, planned)
    return {
        "verified": verified,
        "guesses": guesses,
        "parents": parents,
        "gained": verified,
        "accept_len": lengths if share < 1 else torch.full_like(lengths, width),
        "drawn": verified[:, :1].contiguous(),
        "verify_len": planned if share < 1 else torch.full_like(planned, width),
    }


def several(result) -> tuple[torch.Tensor, ...]:
    """What a function returns, as a tuple."""
    if result is None:
        return ()
    return result if isinstance(result, tuple) else (result,)


def uncapped(values: dict[str, torch.Tensor]) -> torch.Tensor:
    """What would be gained without a plan, at the most: matches, or what a rule that draws says."""
    matches = kernels.accept_chain(values["guesses"], values["verified"])
    return torch.minimum(matches, values["accept_len"])


def check(recipe: str, root: Path) -> dict[str, list[int]]:
    """Compare every fused function of a recipe; the accept lengths that occurred.

    recipe  its file, and overrides after question marks
    """
    path, *overrides = recipe.split("?")
    resolved = resolve(load(Path(path), overrides))
    module = emit(lower(resolved), resolved)
    step = module.load(root)
    rows = importlib.import_module(f"{step.__name__}.rows")
    lengths: dict[str, set[int]] = {}
    fused = [
        n
        for n in vars(rows)
        if n.endswith("_rows") or ("_rows_" in n and not n.endswith("_kernel"))
    ]
    assert fused, f"{recipe} has no fused run"
    generator = torch.Generator().manual_seed(7)
    for name in fused:
        reference, kernel = getattr(step, name), getattr(rows, name)
        parameters = list(inspect.signature(reference).parameters)
        assert parameters == list(inspect.signature(kernel).parameters)
        steps = re.search(r"_(\d+)_rows", name)
        wanted = f"steps_{steps[1]}" if steps else name
        variant = next((v for v in step.WIDTHS if v in wanted), next(iter(step.WIDTHS)))
        width, capped = step.WIDTHS[variant], False
        for count in (1, 9):
            for share in (0.0, 0.3, 0.7, 0.9, 1.0):
                ours, theirs = step.State.new(count, "cpu"), step.State.new(count, "cpu")
                for f in dataclasses.fields(ours):
                    fill(getattr(ours, f.name), f.name, generator)
                # a tree that is a chain: only so a path can be W long
                values = agreeing(ours, width, generator, share)
                for f in dataclasses.fields(ours):
                    getattr(theirs, f.name).copy_(getattr(ours, f.name))
                arguments = [values[p] for p in parameters if p != "state"]
                a, b = reference(ours, *arguments), kernel(theirs, *arguments)
                for f in dataclasses.fields(ours):
                    assert torch.equal(getattr(ours, f.name), getattr(theirs, f.name)), (
                        recipe,
                        name,
                        f.name,
                    )
                for x, y in zip(*map(several, (a, b)), strict=True):
                    assert torch.equal(x, y), (recipe, name)
                lengths.setdefault(name, set()).update(ours.accept_len.tolist())
                if "verify_len" in parameters:
                    capped |= bool((ours.accept_len < uncapped(values)).any())
        assert capped == ("verify_len" in parameters), (recipe, name)
        if width > 1:  # incomplete cases must not pass
            assert {1, width} <= lengths[name], lengths[name]
            assert width == 2 or lengths[name] & set(range(2, width)), lengths[name]
    return {name: sorted(found) for name, found in lengths.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({path: check(path, Path(folder)) for path in sys.argv[1:]}))
