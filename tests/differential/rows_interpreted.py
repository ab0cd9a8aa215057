"""Under TRITON_INTERPRET=1: every row op, in one kernel, against its torch reference.

A generated kernel calls them in turn on what its program holds in registers; here one calls all of
them, and writes down what each says. A process of its own, because Triton reads that variable once.
"""

# ruff: noqa: N803 - a kernel's extents have the letters of the shapes

from __future__ import annotations

import json
import sys

import torch
import triton
import triton.language as tl
from torch import Tensor

from specflow import kernels
from specflow.kernels import rows_triton
from specflow.kernels.vocab_triton import lanes_of
from tests.devices import onto
from tests.hastened import hasten
from tests.interpreter import SHAPES

accept_chain, accept_tree = rows_triton.accept_chain, rows_triton.accept_tree
cap, hold, first = rows_triton.cap, rows_triton.hold, rows_triton.first
take_path, take_last = rows_triton.take_path, rows_triton.take_last
take_previous, mask_rejected = rows_triton.take_previous, rows_triton.mask_rejected
widen, few, pair = rows_triton.widen, rows_triton.few, rows_triton.pair
window, known_window = rows_triton.window, rows_triton.known_window
chain_parents, look_up, copy_row = (
    rows_triton.chain_parents, rows_triton.look_up, rows_triton.copy_row,
)  # fmt: skip

VOCABULARY = 40
WIDE = 1030  # of a row that is copied: more than a tile, and no multiple of one


@triton.jit
def rows_kernel(
    guesses_ptr, parents_ptr, verified_ptr, bonus_ptr, most_ptr, table_ptr, wide_ptr,
    lanes_ptr, numbers_ptr, pair_ptr, copied_ptr, width,
    K: tl.constexpr, W: tl.constexpr, M: tl.constexpr, LANES: tl.constexpr, NUMBERS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    guesses = tl.load(guesses_ptr + row * K + lane, mask=lane < K, other=-1)
    parents = tl.load(parents_ptr + row * K + lane, mask=lane < K, other=-1)
    verified = tl.load(verified_ptr + row * W + lane, mask=lane < W, other=-1)
    bonus = tl.load(bonus_ptr + row)
    most = tl.load(most_ptr + row)
    chain_length = accept_chain(guesses, verified, lane, K)
    path, tree_length = accept_tree(guesses, parents, verified, lane, K)
    capped = cap(chain_length, most)
    words = take_path(verified, path, lane)
    kept = mask_rejected(verified, chain_length, lane)
    last = take_last(verified, chain_length, lane)
    before = take_previous(bonus, verified, chain_length, lane)
    held = hold(most)
    start = first(verified, lane)
    out = lanes_ptr + row * LANES * M + lane
    inside = lane < M
    tl.store(out, kept, mask=inside)
    tl.store(out + M, path, mask=inside)
    tl.store(out + 2 * M, mask_rejected(words, tree_length, lane), mask=inside)
    tl.store(out + 3 * M, widen(verified, lane, W), mask=inside)
    tl.store(out + 4 * M, few(guesses, K, lane), mask=inside)
    tl.store(out + 5 * M, window(bonus, guesses, lane), mask=inside)
    tl.store(out + 6 * M, known_window(bonus, guesses, lane), mask=inside)
    tl.store(out + 7 * M, chain_parents(guesses, lane), mask=inside)
    tl.store(out + 8 * M, look_up(guesses, table_ptr), mask=inside)
    tl.store(out + 9 * M, look_up(guesses, None), mask=inside)
    at = numbers_ptr + row * NUMBERS
    tl.store(at, chain_length)
    tl.store(at + 1, tree_length)
    tl.store(at + 2, capped)
    tl.store(at + 3, last)
    tl.store(at + 4, before)
    tl.store(at + 5, held)
    tl.store(at + 6, start)
    tl.store(pair_ptr + row * 2 + lane, pair(bonus, last, lane), mask=lane < 2)
    copy_row(copied_ptr, wide_ptr, row, width)


LANES, NUMBERS = 10, 7  # rows of lanes, and numbers, that the kernel writes down


def ours(case: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the kernel writes down."""
    rows, guesses = case["guesses"].shape
    wide, where = guesses + 3, case["guesses"].device
    lanes = torch.full((rows, LANES, wide), -9, device=where)
    numbers = torch.full((rows, NUMBERS), -9, device=where)
    pairs = torch.full((rows, 2), -9, device=where)
    copied = torch.empty_like(case["wide"])
    rows_kernel[(rows,)](
        *case.values(), lanes, numbers, pairs, copied, case["wide"].shape[1],
        K=guesses, W=guesses + 1, M=wide, LANES=LANES, NUMBERS=NUMBERS, BLOCK=lanes_of(wide),
    )  # fmt: skip
    return lanes, numbers, pairs, copied


def theirs(case: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """The same in torch: rows of the lanes they fill, numbers, the pair, the copy."""
    guesses, parents, verified = case["guesses"], case["parents"], case["verified"]
    bonus, most = case["bonus"], case["most"]
    length = kernels.accept_chain(guesses, verified)
    path, of_tree = kernels.accept_tree(guesses, parents, verified)
    last = kernels.take_last(verified, length)
    mapped = torch.where(guesses < 0, -1, case["table"][guesses.clamp(min=0)])
    lanes = [
        kernels.mask_rejected(verified, length),
        path,
        kernels.mask_rejected(kernels.take_path(verified, path), of_tree),
        kernels.widen(verified, verified.shape[1] + 2),
        SHAPES["few"](guesses, guesses.shape[1]),
        SHAPES["window"](bonus, guesses),
        SHAPES["known_window"](bonus, guesses),
        kernels.chain_parents(guesses),
        mapped,
        guesses,
    ]
    numbers = [
        length, of_tree, kernels.cap(length, most), last,
        kernels.take_previous(bonus, verified, length), SHAPES["hold"](most), verified[:, 0],
    ]  # fmt: skip
    return lanes, numbers, SHAPES["pair"](bonus, last), case["wide"]


def case_of(draw: torch.Generator, rows: int, guesses: int, agreed: float) -> dict[str, Tensor]:
    """A window whose guesses hold at a share of the places; twins, and guesses that are none."""
    verified = torch.randint(0, VOCABULARY, (rows, guesses + 1), generator=draw)
    parents = torch.stack(
        [torch.randint(0, i + 1, (rows,), generator=draw) for i in range(guesses)], 1
    )
    chain = torch.rand(rows, 1, generator=draw) < 0.5
    parents = torch.where(chain, torch.arange(guesses), parents)
    right = torch.rand(rows, guesses, generator=draw) < agreed
    other = torch.randint(-1, VOCABULARY, (rows, guesses), generator=draw)
    guesses_of = torch.where(right, verified.gather(1, parents), other)
    return {
        "guesses": guesses_of, "parents": parents, "verified": verified,
        "bonus": torch.randint(0, VOCABULARY, (rows,), generator=draw),
        "most": torch.randint(1, guesses + 2, (rows,), generator=draw),
        "table": torch.randperm(VOCABULARY, generator=draw),
        "wide": torch.randn(rows, WIDE, generator=draw).bfloat16(),
    }  # fmt: skip


def twins(case: dict[str, Tensor]) -> bool:
    """Whether two siblings have one token, and the target says it."""
    same = case["guesses"][:, :, None] == case["guesses"][:, None, :]
    kin = case["parents"][:, :, None] == case["parents"][:, None, :]
    said = case["guesses"] == case["verified"].gather(1, case["parents"])
    return bool((same & kin & said[:, None, :] & said[:, :, None]).tril(-1).any())


def check(where: str) -> set[str]:
    """Compare all cases; what they covered."""
    draw = torch.Generator().manual_seed(3)
    covered: set[str] = set()
    for rows, guesses in ((1, 1), (9, 1), (1, 7), (9, 3), (9, 7), (2, 31)):
        for agreed in (0.0, 0.6, 0.9, 1.0):
            case = case_of(draw, rows, guesses, agreed)
            lanes, numbers, pairs, copied = onto("cpu", ours(onto(where, case)))
            rows_of, numbers_of, pair_of, wide = theirs(case)
            for i, expected in enumerate(rows_of):
                assert torch.equal(lanes[:, i, : expected.shape[1]], expected), (i, rows, guesses)
            for i, expected in enumerate(numbers_of):
                assert torch.equal(numbers[:, i], expected), (i, rows, guesses)
            assert torch.equal(pairs, pair_of)
            assert torch.equal(copied, wide)
            covered.add(f"{rows} rows")
            covered |= {"none"} if (case["guesses"] < 0).any() else set()
            covered |= {"twins"} if twins(case) else set()
            for name, length in zip(("chain", "tree"), numbers_of[:2], strict=True):
                kinds = {"one": length == 1, "all": length == guesses + 1}
                kinds["some"] = (length > 1) & (length <= guesses)
                covered |= {f"{name} {kind}" for kind, found in kinds.items() if found.any()}
    return covered


def main() -> None:
    """Compare on a device, a CPU if none is named; print what was covered."""
    where = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    hasten()
    print(json.dumps(sorted(check(where))))


if __name__ == "__main__":
    main()
