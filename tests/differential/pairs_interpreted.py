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
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specflow import kernels
from specflow.kernels import (
    block,
    block_triton,
    coins_triton,
    sample_triton,
    take_triton,
    tree_triton,
    vocab_triton,
)
from tests.devices import onto
from tests.hastened import hasten

SLACK = 2e-6  # of numbers up to 1: some dozen roundings of 6e-8 each
VOCABULARY = 131  # no multiple of a tile
GRAIN = 64  # laws on a boundary are multiples of one part in so many

vocab_triton.TILE, vocab_triton.PROGRAMS = 32, 20  # so that small rows have parts, and few programs


@dataclass
class Pair:
    """A kernel, its reference, and the arguments they are compared on.

    compare  asserts that the results agree; returns what the case covered
    wanted   what all cases must have covered together
    rows     which argument says how many requests a case has, or has a row for each
    """

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    cases: Callable[[torch.Generator], Iterator[tuple[Any, ...]]]
    compare: Callable[..., set[str]] = field(default=lambda *_: set())
    wanted: frozenset[str] = frozenset()
    rows: int = 0


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
            near = torch.allclose(a, b, rtol=SLACK, atol=SLACK, equal_nan=True)
            assert near, (a - b).abs().max()
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
        yield odd(logits), heats[:rows]


def odd(logits: Tensor) -> Tensor:
    """Logits with rows that a broken model says: no number somewhere, or nothing possible."""
    rows = logits.clone().view(-1, VOCABULARY)
    rows[0, 40:] = float("nan")
    for row, (where, what) in enumerate(((17, "nan"), (slice(None), "-inf"), (9, "inf")), 1):
        if row < len(rows):
            rows[row, where] = float(what)
    return rows.view_as(logits)


def proposals(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    """Rows by themselves, of a block, and with a bias; coins of a wider draw."""
    heats = torch.tensor([1.0, 0.0, 0.3, 2.0, 0.5, 1e-42, 7.0, 0.9, 0.0])
    for rows in (1, 9):
        base = torch.randn(rows, 3, VOCABULARY, generator=draw) * 4
        base[torch.rand(base.shape, generator=draw) < 0.2] = float("-inf")
        coins = torch.rand(rows, 4, generator=draw)
        bias = torch.randn(rows, VOCABULARY, generator=draw)
        for _ in range(2):
            yield base[:, 1], heats[:rows], coins[:, 2]
            # The interpreter cuts bfloat16 off where torch and a device round: sums are exact.
            quarters = ((each * 4).round() / 4 for each in (base[:, 2], bias))
            few, added = (each.clamp(-7, 7).bfloat16() for each in quarters)
            yield few, heats[:rows], coins[:, 0], added
            base, coins = base.flip(1), coins.flip(1)
        yield base[:, 0].contiguous(), heats[:rows], coins[:, 1], bias
        yield base[:, 0].double(), heats[:rows], coins[:, 1], bias.double()
        yield base[:, 0], torch.zeros(rows), torch.zeros(rows), bias
        yield odd(base[:, 0]), heats[:rows].flip(0), coins[:, 3]
        yield base[:, 0], heats[:rows], torch.full((rows,), 1 - 2.0**-24)


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
        sick = law.clone()  # of a model that says no numbers: the first token, and nothing worse
        sick[:, guesses // 2] = float("nan")
        yield words, proposed, sick, coins
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


# What cases over rows of logits must have had, whatever else; a vocabulary is never whole tiles.
ROWS_OF_LOGITS = frozenset({"equal highest", "not a number", "all impossible", "infinite"})
COLD = frozenset({"cold rows beside drawn ones"})


def traits(arguments: tuple[Any, ...], at: int) -> set[str]:
    """What a case has of that: its number of requests, and of rows of logits which kinds."""
    found = {f"{rows_of(arguments, at)} rows"}
    for each in arguments:
        if not isinstance(each, Tensor) or not each.is_floating_point():
            continue
        if each.ndim == 1 and (each == 0).any() and (each > 0.1).any():
            found |= COLD
        if each.ndim > 1 and each.shape[-1] == VOCABULARY:
            known = ~each.isnan().any(-1)
            tops = each == each.amax(-1, keepdim=True)
            checks = {
                "equal highest": known & (tops.sum(-1) > 1),
                "not a number": ~known,
                "all impossible": (each == float("-inf")).all(-1),
                "infinite": (each == float("inf")).any(-1),
            }
            found |= {name for name, rows in checks.items() if rows.any()}
    return found


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
        # Of a model that says no numbers: nothing is accepted, and the first token is gained.
        yield words, parents, torch.full_like(law, float("nan")), coins, 1.0, 1.0


def walked(ours: Any, theirs: Any, *_: Any) -> set[str]:
    """Past the length a token is anything."""
    length, width = theirs[1], theirs[2].shape[1]
    known = torch.arange(width) < length[:, None]
    agree((*ours[:2], ours[2] * known), (*theirs[:2], theirs[2] * known))
    return of_lengths(length, width)


def same(ours: Any, theirs: Any, *_: Any) -> set[str]:
    agree(ours, theirs)
    return set()


def alike(ours: Any, theirs: Any, *_: Any) -> set[str]:
    """Bit for bit: a coin is drawn, not summed."""
    assert torch.equal(ours, theirs)
    return set()


def logits(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for shape in ((1,), (9,), (9, 3)):
        yield (torch.randn(*shape, VOCABULARY, generator=draw),)
        yield (torch.randint(0, 3, (*shape, VOCABULARY), generator=draw).float(),)  # many equal
        yield (torch.randn(*shape, VOCABULARY, generator=draw).bfloat16(),)
        yield (odd(torch.randn(*shape, VOCABULARY, generator=draw)),)
    some = torch.full((9, VOCABULARY), float("nan"))
    some[:, 0] = torch.arange(9.0)
    some[5, 3], some[6, 100:] = float("-inf"), 0.0
    yield (some,)
    yield (torch.where(torch.arange(VOCABULARY) % 2 == 0, -0.0, 0.0).expand(9, -1),)


# --- trees


def apart(draw: torch.Generator, *shape: int) -> Tensor:
    """Logits no two of which are equal in a row: which of equals torch takes is nowhere said."""
    places = torch.rand(*shape, VOCABULARY, generator=draw).argsort(-1)
    return places * 0.06 + torch.randn(*shape, 1, generator=draw)


def rows_of_logits(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for shape, count in (((1,), 1), ((9,), 3), ((9, 2), 8), ((1, 3), 16)):
        logits = apart(draw, *shape)
        yield logits, count
        yield logits.masked_fill(logits < 6, float("-inf")), min(count, 3)
        yield logits[..., :5], 8  # fewer tokens than are asked for
    nothing = apart(draw, 9)
    nothing[0], nothing[1], nothing[2, 5] = float("nan"), float("-inf"), float("inf")
    nothing[3, 50] = float("nan")
    yield nothing, 4
    yield torch.randint(0, 3, (9, VOCABULARY), generator=draw).float(), 5


def chosen(ours: Any, theirs: Any, logits: Tensor, count: int) -> set[str]:
    """Of equal tokens the smallest ids, which torch leaves open."""
    agree(ours[1], theirs[1])
    words, chances = ours[0], theirs[1]
    alone = (logits[..., None] == logits[..., None, :]).sum(-1).gather(-1, theirs[0]) == 1
    alone = alone & (chances > 0)
    assert torch.equal(words[alone], theirs[0][alone])
    by_id = logits.double().nan_to_num(0.0, 1e9, -1e9)
    stable = by_id.sort(dim=-1, descending=True, stable=True).indices[..., : words.shape[-1]]
    known = ~logits.isnan().any(-1)
    assert torch.equal(words[known], stable[known])
    return {"equal" if not alone.all() else "apart", "few" if words.shape[-1] < count else "all"}


def levels(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, branches in ((1, 1), (9, 3), (1, 8), (2, 5)):
        logits = apart(draw, rows, branches)
        scores = torch.rand(rows, branches, generator=draw)
        table = torch.randperm(VOCABULARY, generator=draw)
        hidden = torch.randn(rows, branches, 37, generator=draw).bfloat16()
        sees = torch.rand(rows, branches, 2 * branches, generator=draw) < 0.5
        yield scores, logits
        yield scores, logits, None, hidden
        yield scores, logits, None, None, sees, 1
        yield scores, logits, table, hidden, sees, 1
        yield scores, logits, table, hidden.float(), sees, 2  # the last level: none is run below
        # Branches that say the same with the same score, and one of no chance.
        scores[:, 1:] = 0.5
        scores[:, :1] = 0.0
        yield scores, logits[:, :1].expand(-1, branches, -1), table, hidden, sees, 1


def seeds(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, branches, levels in ((1, 1, 1), (9, 3, 3), (1, 8, 2), (2, 5, 6)):
        yield torch.randint(0, 9, (rows, branches), generator=draw), levels


def candidates(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    """Levels of a tree that grew, with scores of few values, so that orders stand on ties."""
    for rows, branches, count, positions in (
        (1, 2, 3, 6),
        (9, 3, 3, 8),
        (1, 4, 1, 4),
        (2, 3, 5, 33),
    ):
        for values in (2, 4, 1000):
            score = torch.randint(1, values + 1, (rows, branches), generator=draw) / values
            word = torch.randint(0, 99, (rows, branches), generator=draw)
            scores, words, kept = [score], [word], [kernels.ranks(word)]
            for _ in range(count - 1):
                shape = (rows, branches, branches)
                chances = torch.randint(0, values + 1, shape, generator=draw) / values
                score, best, offered = kernels.grow_tree(score, chances)
                said = torch.randint(0, 99, shape, generator=draw)
                scores.append(offered)
                words.append(said.flatten(1))
                kept.append(best)
            yield scores, words, kept, positions


def candidates_and_bonus(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for arguments in candidates(draw):
        yield *arguments, torch.randint(0, 99, arguments[2][0].shape[:1], generator=draw)


def parents(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, guesses in ((1, 1), (9, 7), (1, 12), (2, 63)):
        drawn = [torch.randint(0, i + 1, (rows,), generator=draw) for i in range(guesses)]
        yield (torch.stack(drawn, 1),)
        yield (kernels.chain_parents(drawn[0].new_zeros(rows, guesses)),)
        yield (torch.zeros(rows, guesses, dtype=torch.int64),)


def states(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, width, count in ((1, 4, 4), (9, 5, 3), (2, 1, 6)):
        hidden = torch.randn(rows, width, 37, generator=draw)
        asked = torch.randint(-1, width, (rows, count), generator=draw)
        yield hidden, asked
        yield hidden.bfloat16(), asked
        yield hidden.transpose(1, 2).contiguous().transpose(1, 2), asked.t().contiguous().t()


def last_states(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, width in ((1, 4), (9, 5)):
        hidden = torch.randn(rows, width, 37, generator=draw)
        yield hidden, torch.randint(1, width + 1, (rows,), generator=draw)


def tokens(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, branches in ((1, 1), (9, 3), (2, 16)):
        yield (torch.randint(0, 9, (rows, branches), generator=draw),)


# --- blocks and windows


def bonus_tokens(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, count in ((1, 8), (9, 5), (9, 1)):
        yield torch.randint(0, 99, (rows,), generator=draw), 77, count


def trusts(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, count in ((1, 7), (9, 3), (9, 1)):
        heats = tuple((torch.rand(count, generator=draw) * 2).tolist())
        trust = torch.randn(rows, count, generator=draw) * 3
        yield trust, heats
        yield trust.bfloat16(), heats
        yield trust, (0.0, *heats[1:])


def chances(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, count in ((1, 7), (9, 3), (9, 1), (40, 15)):
        for equal in (False, True):
            each = torch.rand(rows, count, generator=draw)
            survival = (each * 3).ceil().div(4).cumprod(1) if equal else each.cumprod(1)
            survival[rows // 2, count // 2 :] = 0.0  # left out, whatever the budget
            for budget in (rows, rows + rows * count // 2, rows + 1, rows * (count + 2)):
                yield survival, budget


def allocated(ours: Any, theirs: Any, survival: Tensor, _: int) -> set[str]:
    agree(ours, theirs)
    return of_lengths(theirs, survival.shape[1] + 1)


def packs(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, width in ((1, 8), (9, 4), (300, 5)):
        lengths = torch.randint(1, width + 1, (rows,), generator=draw)
        for budget in (int(lengths.sum()), int(lengths.sum()) + 3, rows * width + 4):
            yield lengths, budget, width


def packed_rows(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    """What packed positions say: few of them, all of them, and room that nobody takes."""
    for rows, width in ((1, 8), (9, 4), (9, 1), (80, 5)):
        lengths = torch.randint(1, width + 1, (rows,), generator=draw)
        for budget in (int(lengths.sum()), int(lengths.sum()) + 3, rows * width):
            packed = kernels.pack(lengths, budget, width)
            for wide in (1, 37, VOCABULARY):
                said = torch.randn(packed.shape[0], wide, generator=draw)
                yield said, packed, rows, width
        yield said.bfloat16(), packed, rows, width
        yield torch.ones_like(packed, dtype=torch.bool)[:, None], packed, rows, width


def ragged(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, width in ((1, 4), (9, 3)):
        logits = torch.randn(rows, width, VOCABULARY, generator=draw)
        logits[:, :, 0] = float("nan")
        lengths = torch.randint(1, width + 1, (rows,), generator=draw)
        yield logits[:, :, 1:], lengths
        yield logits[:, :, 1:].bfloat16(), lengths


def windows(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, width, count in ((1, 6, 3), (9, 9, 4), (9, 2, 2)):
        start = torch.randint(0, width - count + 1, (rows,), generator=draw)
        yield torch.randint(0, 99, (rows, width), generator=draw), start, count
        yield torch.randn(rows, width, 37, generator=draw).bfloat16(), start, count
        yield torch.randn(rows, 37, width, generator=draw).transpose(1, 2), start, count


def turns(draw: torch.Generator) -> Iterator[tuple[Any, ...]]:
    for rows, width in ((1, 6), (9, 5), (9, 1)):
        ids = torch.randint(0, 99, (rows, width), generator=draw)
        known = torch.randint(1, width + 1, (rows,), generator=draw)
        yield ids, known, torch.randint(0, 99, (rows,), generator=draw)


PAIRS: dict[str, Pair] = {
    "ranks": Pair(tree_triton.ranks, kernels.ranks, tokens, same),
    "mask_block": Pair(block_triton.mask_block, kernels.mask_block, bonus_tokens, same),
    "survivals": Pair(block_triton.survivals, kernels.survivals, trusts, same),
    "allocate": Pair(block_triton.allocate, kernels.allocate, chances, allocated, LENGTHS),
    "pack": Pair(block_triton.pack, kernels.pack, packs, same),
    "unpack": Pair(block_triton.unpack, block.unpack, packed_rows, same, rows=2),
    "blank": Pair(block_triton.blank, kernels.blank, ragged, same),
    "slide": Pair(take_triton.slide, kernels.slide, windows, same),
    "rotate": Pair(take_triton.rotate, kernels.rotate, turns, same),
    "likeliest": Pair(
        tree_triton.likeliest,
        kernels.likeliest,
        rows_of_logits,
        chosen,
        frozenset({"equal", "apart", "few", "all"}) | ROWS_OF_LOGITS,
    ),
    "grow_level": Pair(tree_triton.grow_level, kernels.grow_level, levels, same),
    "plant": Pair(tree_triton.plant, kernels.plant, seeds, same),
    "select_tree": Pair(tree_triton.select_tree, kernels.select_tree, candidates, same),
    "choose_tree": Pair(tree_triton.choose_tree, kernels.choose_tree, candidates_and_bonus, same),
    "tree_arrays": Pair(tree_triton.tree_arrays, kernels.tree_arrays, parents, same),
    "take_rows": Pair(tree_triton.take_rows, kernels.take_rows, states, same),
    "take_row": Pair(tree_triton.take_row, kernels.take_row, last_states, same),
    "best_token": Pair(vocab_triton.best_token, kernels.best_token, logits, same, ROWS_OF_LOGITS),
    "verify_coins": Pair(coins_triton.verify_coins, kernels.verify_coins, coins, alike),
    "draft_coins": Pair(coins_triton.draft_coins, kernels.draft_coins, coins, alike),
    "law_of": Pair(sample_triton.law_of, kernels.law_of, laws, same, ROWS_OF_LOGITS | COLD),
    "pick": Pair(sample_triton.pick, kernels.pick, picks, same),
    "propose": Pair(sample_triton.propose, kernels.propose, proposals, same, ROWS_OF_LOGITS | COLD),
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


def rows_of(arguments: tuple[Any, ...], at: int = 0) -> int:
    """How many requests a case has."""
    first = arguments[at]
    if isinstance(first, int):
        return first
    return int((first[0] if isinstance(first, list) else first).shape[0])


def check(name: str, where: str = "cpu") -> int:
    """Compare a pair on all its cases; how many there were.

    where  what the kernel runs on; its reference is on a CPU
    """
    pair = PAIRS[name]
    assert inspect.signature(pair.ours) == inspect.signature(pair.theirs), name
    covered: set[str] = set()
    count = 0
    for arguments in pair.cases(torch.Generator().manual_seed(5)):
        ours = onto("cpu", pair.ours(*onto(where, arguments)))
        theirs = pair.theirs(*arguments)
        try:
            covered |= pair.compare(ours, theirs, *arguments)
        except AssertionError as error:
            raise AssertionError(f"{name}, case {count}: {error}") from error
        covered |= traits(arguments, pair.rows)
        count += 1
    missing = (pair.wanted | {"1 rows", "9 rows"}) - covered
    assert not missing, f"{name} is incomplete: no case of {sorted(missing)}"
    for held in vocab_triton.ARRIVALS._held.values():
        assert not held.any(), f"{name} leaves a count"
    return count


def main() -> None:
    """Check the pairs named on the command line, or all; what is wrong with one is its result."""
    torch.set_num_threads(1)
    hasten()
    found: dict[str, int | str] = {}
    for name in sys.argv[1:] or PAIRS:
        try:
            found[name] = check(name)
        except Exception:  # noqa: BLE001 - the others are asked all the same
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
