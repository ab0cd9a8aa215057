"""What the weights of a draft give away: a head as it was drawn, tensors of zeros or of no numbers.

Only a sample is read, in stretches spread over each tensor: a draft is looked through in a second,
whatever its size, and no torch is needed.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace

from specflow import formats
from specflow.facts import CAUSAL_LM, Facts, ModelFacts
from specflow.headers import FLOATS, HOLES, Tensor

BUDGET = 64_000_000  # bytes read of all tensors together
STRETCH = 65_536  # bytes read at one place
PLACES = 8  # of a tensor, evenly spread from its beginning to its end
LEAST = 4096  # values that a shape can be told by
DRAWN_WITH = 0.02  # `initializer_range` where a config does not say it
# Training changes the spread of a matrix and makes its tails heavier. Of n numbers of a normal law
# the deviation has a standard error of 1/sqrt(2n) of itself and the kurtosis one of sqrt(24/n):
# four of them are allowed, and a little for the rounding of half precision.
ERRORS, SPREAD_MARGIN, TAILS_MARGIN = 4, 0.01, 0.03
NORMAL, UNIFORM = 3.0, 1.8  # kurtosis of what matrices are drawn from
# What a network reads the target by, and what it says words by: the last to be left as drawn.
TRAINED = re.compile(
    r".*(lm_head|shared_head\.head|fc|eh_proj|input_proj|(pre|post)_projection|markov_w[12]|"
    r"confidence_head\.proj)\.weight"
)


@dataclass(frozen=True)
class Moments:
    """What a sample of a tensor is like."""

    count: int
    mean: float
    spread: float
    kurtosis: float


def look(facts: Facts) -> Facts:
    """The facts of a recipe, with what the weights of its draft give away."""
    draft = facts[facts.holder]
    readable = draft.tensors and draft.folder and not unseen(facts)
    return replace(facts, oddities=tuple(suspects(draft, facts)) if readable else ())


def unseen(facts: Facts) -> str:
    """Why the weights of a draft were not looked through; empty where they were, or none is here.

    A model that cannot be read at all has a finding of its own.
    """
    draft = facts[facts.holder]
    if draft.problem is not None:
        return ""
    if draft.recorded:
        return "only its config and headers are recorded in the package"
    if draft.folder is None:
        return "only safetensors in a folder are looked through"
    return "only its headers were read" if (draft.folder / HOLES).exists() else ""


def suspects(draft: ModelFacts, facts: Facts) -> Iterator[tuple[str, str]]:
    """Name of a tensor, and what is odd about it; the telling ones first, within the budget."""
    drawn_with = _drawn_with(draft)
    left = BUDGET
    for name, tensor in _of_network(draft, facts):
        if tensor.dtype not in FLOATS or left <= 0:
            continue
        raw = sample(tensor)
        left -= len(raw)
        told = drawn_with if TRAINED.fullmatch(name) else 0.0
        odd = oddity(raw, tensor.dtype, told, matrix=len(tensor.shape) > 1)
        if odd:
            yield name, odd


def _of_network(draft: ModelFacts, facts: Facts) -> list[tuple[str, Tensor]]:
    """The tensors of a draft, the ones that tell most first; of a target's, the draft's alone."""
    tensors = draft.tensors
    net = facts.net
    if net.bundled and net.format != CAUSAL_LM and net.format:
        names = formats.rename(tensors, formats.named(net.format), facts["target"].layers)
        tensors = {theirs: tensors[theirs] for theirs in names.values()}
    return sorted(tensors.items(), key=lambda item: not TRAINED.fullmatch(item[0]))


def _drawn_with(draft: ModelFacts) -> float:
    said = [config.get("initializer_range") for config in (draft.text, draft.config)]
    return next((float(s) for s in said if isinstance(s, int | float) and s > 0), DRAWN_WITH)


def sample(tensor: Tensor) -> bytes:
    """Stretches of a tensor, from its beginning to its end; all of one that is small."""
    size, width = tensor.end - tensor.begin, FLOATS[tensor.dtype]
    with tensor.file.open("rb") as opened:
        if size <= STRETCH * PLACES:
            opened.seek(tensor.begin)
            return opened.read(size)
        found = bytearray()
        for i in range(PLACES):
            at = (size - STRETCH) * i // (PLACES - 1) // width * width
            opened.seek(tensor.begin + at)
            found += opened.read(STRETCH)
        return bytes(found)


def oddity(raw: bytes, dtype: str, drawn_with: float = 0.0, *, matrix: bool = True) -> str:
    """What is odd about a sample; empty for nothing.

    matrix      it may not be all zeros, as a bias may
    drawn_with  the spread that such a tensor is drawn with before it is trained; 0 where it need
                not look trained
    """
    if matrix and raw and raw.count(0) == len(raw):
        return "all zeros"
    values = numbers(raw, dtype)
    if not math.isfinite(math.fsum(values) if dtype == "F64" else sum(values)):
        return "numbers that are not finite"
    if not drawn_with or len(values) < LEAST:
        return ""
    found = moments(values)
    spread = ERRORS / math.sqrt(2 * found.count) + SPREAD_MARGIN
    tails = ERRORS * math.sqrt(24 / found.count) + TAILS_MARGIN
    normal = abs(found.kurtosis - NORMAL) < tails and abs(found.spread / drawn_with - 1) < spread
    # A uniform law is how a linear layer is made, of a spread that depends on its width; no matrix
    # that was trained has tails so light.
    uniform = abs(found.kurtosis - UNIFORM) < TAILS_MARGIN
    if (normal or uniform) and abs(found.mean) < found.spread / 10:
        law = "a normal law" if normal else "a uniform law"
        shape = f"spread {found.spread:.4f}, kurtosis {found.kurtosis:.2f}"
        return f"as drawn from {law}, not trained ({shape})"
    return ""


def numbers(raw: bytes, dtype: str) -> array[float]:
    """Floats out of their bytes."""
    if dtype == "BF16":  # the upper half of a float
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        found = array("f", bytes(wide))
    elif dtype == "F16":
        return array("f", struct.unpack(f"<{len(raw) // 2}e", raw))
    else:
        found = array("d" if dtype == "F64" else "f", raw)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def moments(values: array[float]) -> Moments:
    """Mean, deviation, and the fourth moment by the square of the second: 3 for a normal law."""
    count = len(values)
    mean = sum(values) / count
    squares = [(value - mean) ** 2 for value in values]
    second = sum(squares) / count
    fourth = sum(square * square for square in squares) / count
    return Moments(count, mean, math.sqrt(second), fourth / second**2 if second else 0.0)
