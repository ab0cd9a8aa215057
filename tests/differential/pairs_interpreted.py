"""Under TRITON_INTERPRET=1: every kernel of its own against its torch reference, over drawn cases.

A process of its own, because Triton reads that variable once, when it is imported. Integers must be
equal; so must what they decide. Sums of a row are taken in another order than in torch, so laws and
chances may differ by the rounding of a few additions, which `SLACK` allows; cases whose decisions
stand on a boundary are made of multiples of 1/64, whose sums are exact in any order.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specflow import kernels
from specflow.kernels import coins_triton, sample_triton, vocab_triton

SLACK = 2e-6  # of numbers up to 1: some dozen roundings of 6e-8 each
VOCABULARY = 131  # no multiple of a tile
GRAIN = 64  # laws on a boundary are multiples of one part in so many

vocab_triton.TILE, vocab_triton.PROGRAMS = 32, 20  # so that small rows have parts, and few programs


@dataclass
class Pair:
    """A kernel, its reference, and the arguments they are compared on.

    compare  asserts that the results agree; returns what the case covered
    wanted   what all cases must have covered together
    """

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    cases: Callable[[torch.Generator], Iterator[tuple[Any, ...]]]
    compare: Callable[..., set[str]] = field(default=lambda *_: set())
    wanted: frozenset[str] = frozenset()


def several(result: Any) -> tuple[Any, ...]:
    """What a function returns, as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def agree(ours: Any, theirs: Any) -> None:
    """Integers equal, other numbers within the slack, of one shape and kind."""
    for a, b in zip(several(ours), several(theirs), strict=True):
        if b is None:
            assert a is None
            continue
        assert a.shape == b.shape
        assert a.dtype == b.dtype, (a.dtype, b.dtype)
        if b.dtype.is_floating_point:
            assert torch.allclose(a, b, rtol=SLACK, atol=SLACK), (a - b).abs().max()
        else:
            assert torch.equal(a, b), (a, b)


# --- coins


def coins(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    edges = [0, 1, -1, 2**63 - 1, -(2**63), 12345678901234, -7, 2**32, 2**32 - 1]
    for rows, count in ((1, 2), (9, 1), (9, 9), (1, 65)):
        seeds = torch.tensor(edges[:rows])
        yield seeds, torch.randint(0, 2**40, (rows,), generator=draw), count
        yield seeds, torch.tensor(edges[::-1][:rows]), count


# --- laws and draws


def grained(draw: torch.Generator, *shape: int) -> Tensor:
    """Laws of a few tokens, in multiples of a grain: most tokens have none."""
    rows = int(torch.tensor(shape).prod())
    tokens = torch.randint(0, 12, (rows, GRAIN), generator=draw) * 11  # of every part of a row
    law = torch.zeros(rows, VOCABULARY).scatter_add_(1, tokens, torch.ones(rows, GRAIN))
    return (law / GRAIN).view(*shape, VOCABULARY)


def edge_coins(draw: torch.Generator, *shape: int) -> Tensor:
    """Coins that fall where a running sum of a grained law may stand, 0 among them."""
    drawn = torch.randint(0, GRAIN, shape, generator=draw)
    return torch.where(torch.rand(shape, generator=draw) < 0.2, 0, drawn) / GRAIN


def smooth(draw: torch.Generator, *shape: int) -> Tensor:
    """Laws of random logits, some tokens of which cannot be."""
    logits = torch.randn(*shape, VOCABULARY, generator=draw) * 3
    cannot = torch.rand(logits.shape, generator=draw) < 0.1
    return logits.masked_fill(cannot, float("-inf")).softmax(-1)


def laws(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    heats = torch.tensor([0.0, 1.0, 0.3, 2.0, 1e-30, 2.0**-126, 1e-42, 7.0, 0.5])
    for rows, shape in ((1, ()), (9, ()), (1, (3,)), (9, (2,))):
        logits = torch.randn(rows, *shape, VOCABULARY, generator=draw) * 4
        logits[torch.rand(logits.shape, generator=draw) < 0.2] = float("-inf")
        for few in (heats[:rows], heats.flip(0)[:rows]):
            yield logits, few
        yield logits.bfloat16(), heats[:rows]  # many are equal: the smallest id is the likeliest
        yield logits.double(), heats[:rows]


def picks(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for shape in ((1,), (9,), (9, 2)):
        for _ in range(2):
            yield grained(draw, *shape), edge_coins(draw, *shape)
            yield smooth(draw, *shape), torch.rand(shape, generator=draw)
        yield grained(draw, *shape).double(), edge_coins(draw, *shape)
    coins = torch.rand(9, 5, generator=draw)
    yield grained(draw, 9), coins[:, 2]
    yield grained(draw, 9, 3)[:, 1], coins[:, 4]
    yield smooth(draw, 9) * 1e-3, torch.full((9,), 1 - 2.0**-24)  # beyond all but the last


def drafted(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    """Chains whose guesses were drawn from laws near the target's, exactly or at a distance."""
    for rows, guesses in ((1, 5), (9, 1), (9, 3)):
        for make, toss in ((grained, edge_coins), (smooth, None)):
            for near in (0.4, 1.0):
                law = make(draw, rows, guesses + 1)
                other = make(draw, rows, guesses)
                mix = torch.rand(rows, guesses, 1, generator=draw) < near
                proposed = torch.where(mix, law[:, :-1], other)
                toss_of = torch.rand(rows, guesses, generator=draw)
                words = kernels.pick(proposed, toss_of)
                coins = (
                    toss(draw, rows, guesses + 2)
                    if toss
                    else torch.rand(rows, guesses + 2, generator=draw)
                )
                yield words, proposed, law, coins
        broken = proposed.clone()  # numbers that are no probabilities: never kept
        yield words, broken.scatter_(2, words[:, :, None], float("nan")), law, coins
        law = grained(draw, rows, guesses + 1)  # refused though equal: nothing is left
        words = kernels.pick(law[:, :-1], torch.rand(rows, guesses, generator=draw))
        yield words, law[:, :-1].clone(), law, torch.full((rows, guesses + 2), 1 - 2.0**-24)
        # Coins of a wider step: a narrow one reads the first of them.
        yield words, law[:, :-1].double(), law.double(), edge_coins(draw, rows, guesses + 5)


def of_lengths(lengths: Tensor, width: int) -> set[str]:
    """Which accept lengths a case had, of windows that have a middle."""
    if width < 3:
        return set()
    found = {"one"} if (lengths == 1).any() else set()
    found |= {"all"} if (lengths == width).any() else set()
    return found | ({"some"} if ((lengths > 1) & (lengths < width)).any() else set())


LENGTHS = frozenset({"one", "some", "all"})


def judged(ours: Any, theirs: Any, *_: Any) -> set[str]:
    agree(ours, theirs)
    return of_lengths(theirs[0], theirs[1].shape[1])


def trees(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    """Trees of likely tokens, twins and nodes that are no guess among them."""
    for rows, guesses in ((1, 7), (9, 1), (9, 4)):
        for make, toss in ((grained, edge_coins), (smooth, None)):
            for chain in (False, True):
                law = make(draw, rows, guesses + 1)
                parents = torch.stack(
                    [
                        torch.full((rows,), i)
                        if chain
                        else torch.randint(0, i + 1, (rows,), generator=draw)
                        for i in range(guesses)
                    ],
                    1,
                )
                of_parent = law.gather(1, parents[:, :, None].expand(-1, -1, VOCABULARY))
                words = of_parent.argmax(-1)
                other = kernels.pick(of_parent, torch.rand(rows, guesses, generator=draw))
                which = torch.rand(rows, guesses, generator=draw)
                words = torch.where(which < 0.5, words, other)
                words = torch.where(which > 0.95, -1, words)
                shape = (rows, guesses + 2)
                coins = toss(draw, *shape) if toss else torch.rand(shape, generator=draw) ** 2
                for single, acc in ((1.0, 1.0), (0.25, 0.5)):
                    yield words, parents, law, coins, single, acc
                if chain:
                    yield words, parents, law.double(), coins.repeat(1, 2), 0.02, 1.0


def walked(ours: Any, theirs: Any, *_: Any) -> set[str]:
    """Past the length a token is anything."""
    length, width = theirs[1], theirs[2].shape[1]
    known = torch.arange(width) < length[:, None]
    agree((*ours[:2], ours[2] * known), (*theirs[:2], theirs[2] * known))
    return of_lengths(length, width)


def same(ours: Any, theirs: Any, *_: Any) -> set[str]:
    agree(ours, theirs)
    return set()


def logits(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for shape in ((1,), (9,), (9, 3)):
        yield (torch.randn(*shape, VOCABULARY, generator=draw),)
        yield (torch.randint(0, 3, (*shape, VOCABULARY), generator=draw).float(),)  # many equal
        yield (torch.randn(*shape, VOCABULARY, generator=draw).bfloat16(),)


PAIRS: dict[str, Pair] = {
    "best_token": Pair(vocab_triton.best_token, kernels.best_token, logits, same),
    "verify_coins": Pair(coins_triton.verify_coins, kernels.verify_coins, coins, same),
    "draft_coins": Pair(coins_triton.draft_coins, kernels.draft_coins, coins, same),
    "law_of": Pair(sample_triton.law_of, kernels.law_of, laws, same),
    "pick": Pair(sample_triton.pick, kernels.pick, picks, same),
    "accept_rejection": Pair(
        sample_triton.accept_rejection, kernels.accept_rejection, drafted, judged, LENGTHS
    ),
    "accept_block": Pair(
        sample_triton.accept_block, kernels.accept_block, drafted, judged, LENGTHS
    ),
    "accept_sampled": Pair(
        sample_triton.accept_sampled, kernels.accept_sampled, trees, walked, LENGTHS
    ),
}


def rows_of(arguments: tuple[Any, ...]) -> int:
    """How many requests a case has."""
    first = arguments[0]
    return int((first[0] if isinstance(first, list) else first).shape[0])


def check(name: str) -> int:
    """Compare a pair on all its cases; how many there were."""
    pair = PAIRS[name]
    assert inspect.signature(pair.ours) == inspect.signature(pair.theirs), name
    covered: set[str] = set()
    count = 0
    for arguments in pair.cases(torch.Generator().manual_seed(5)):
        ours, theirs = pair.ours(*arguments), pair.theirs(*arguments)
        try:
            covered |= pair.compare(ours, theirs, *arguments)
        except AssertionError as error:
            raise AssertionError(f"{name}, case {count}: {error}") from error
        covered.add(f"{rows_of(arguments)} rows")
        count += 1
    missing = (pair.wanted | {"1 rows", "9 rows"}) - covered
    assert not missing, f"{name} is incomplete: no case of {sorted(missing)}"
    for held in vocab_triton.ARRIVALS._held.values():
        assert not held.any(), f"{name} leaves a count"
    return count


def main() -> None:
    """Check the pairs named on the command line, or all."""
    torch.set_num_threads(1)
    print(json.dumps({name: check(name) for name in sys.argv[1:] or PAIRS}))


if __name__ == "__main__":
    main()
