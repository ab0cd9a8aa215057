"""Whether speculative output is the target's: token by token, and where it is not, why.

A difference has one of three classes. `near-tie`: the two best logits are closer than the dtype's
noise. `width-dependent`: scoring the same prefix in one forward, with no draft involved, prefers
another token than scoring it token by token. `algorithm`: neither explains it, so the step is
wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from specflow.models.drafters import prefill
from specflow.models.lm import LanguageModel

# Logits of one prefix scored at two widths differ by rounding alone: about 5e-5 in float32 and 0.5
# in bfloat16 on a 135M Llama (measured against float64). A gap below a few times that may fall
# either way.
NOISE = {"float64": 1e-9, "float32": 2e-4, "float16": 0.06, "bfloat16": 0.75}
UNKNOWN = "unknown"  # the class of a difference between tokens alone
WIDTH = 8  # positions of the window that rescores the end of a prefix


@dataclass(frozen=True)
class Difference:
    """The first place where two completions part.

    token, plain  what was said with and without speculation; -1 where one had ended
    gap           plain decoding's best logit less its second; None where no logits are at hand
    kind          near-tie, width-dependent or algorithm; unknown without logits
    """

    id: str
    index: int
    token: int
    plain: int
    gap: float | None = None
    kind: str = UNKNOWN


def compare(spoken: Sequence[int], plain: Sequence[int]) -> int:
    """The first index where two completions differ, or -1."""
    for i, (a, b) in enumerate(zip(spoken, plain, strict=False)):
        if a != b:
            return i
    return -1 if len(spoken) == len(plain) else min(len(spoken), len(plain))


def parted(id_: str, spoken: Sequence[int], plain: Sequence[int]) -> Difference | None:
    """The first difference by tokens alone, or None where there is none."""
    index = compare(spoken, plain)
    if index < 0:
        return None
    said, wanted = (tokens[index] if index < len(tokens) else -1 for tokens in (spoken, plain))
    return Difference(id_, index, said, wanted)


def explain(
    id_: str, prompt: list[int], spoken: Sequence[int], plain: Sequence[int], target: LanguageModel
) -> Difference | None:
    """The first difference with its class, or None where there is none."""
    found = parted(id_, spoken, plain)
    if found is None:
        return None
    narrow, wide = _rescore(prompt, list(plain[: found.index]), target)
    top = narrow.float().topk(2).values
    gap = float(top[0] - top[1])
    if found.token < 0 or found.plain < 0:
        kind = "algorithm"
    elif gap <= NOISE[str(target.dtype).removeprefix("torch.")]:
        kind = "near-tie"
    elif any(int(w.argmax()) != int(narrow.argmax()) for w in wide):
        kind = "width-dependent"
    else:
        kind = "algorithm"
    return replace(found, gap=gap, kind=kind)


def _rescore(
    prompt: list[int], generated: list[int], target: LanguageModel
) -> tuple[Tensor, list[Tensor]]:
    """Logits [V] after prompt and generated: token by token, in one forward, in a last window."""
    tokens = prompt + generated
    pool = target.pool(1, len(tokens) + WIDTH)
    logits = prefill(target, pool, 0, prompt, len(prompt))
    window = target.window(pool, pool.length)
    ids, length = pool.positions.new_tensor(tokens), pool.positions.new_tensor([len(prompt)])
    for i in range(len(prompt), len(tokens)):
        logits = window.decode(ids[i : i + 1][None], length + (i - len(prompt)))
    narrow = logits[0]
    whole = prefill(target, pool, 0, tokens, len(tokens))[0]
    start = max(1, len(tokens) - WIDTH)
    prefill(target, pool, 0, tokens[:start], start)
    at_end = (
        window.verify(ids[start:][None], length.fill_(start))[0, -1]
        if start < len(tokens)
        else whole
    )
    return narrow, [whole, at_end]


def verdict(differences: Sequence[Difference], compared: int, drawn: int = 0) -> dict[str, Any]:
    """The report's word on it: identical, or how many differ and why; `drawn` were left out."""
    bad = [d for d in differences if d.kind == "algorithm"]
    known = all(d.kind != UNKNOWN for d in differences)
    partly = "but for rounding" if known else "not told apart"
    word = "yes" if not differences else ("no" if bad else partly)
    said = f"{word}: {compared - len(differences)} of {compared} completions identical"
    return {
        "verdict": said + (f", {drawn} drawn and not compared" if drawn else ""),
        "compared": compared,
        "identical": compared - len(differences),
        "failed": bool(bad),
        "differences": [asdict(d) for d in differences],
    }
