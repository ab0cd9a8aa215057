"""Steps as a device runs them: equal to torch under the interpreter."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from specflow.graph.ops import OPS
from specflow.load import load
from specflow.lower import lower
from specflow.resolve import resolve
from tests.conftest import RECIPES, ROOT
from tests.differential.test_attention_kernels import interpreted

pytest.importorskip("triton")

# No recipe that ships draws under a plan: there the length that is capped comes from outside.
DRAWN = "sampling.temperature=0.8"
# Packs run the steps of pico recipes on other models: one of each kind is interpreted, the slowest
# of them in the slow set.
SLOW = {"ngram", "ngram_sampled", "eagle3_adaptive", "eagle3_tree", "dspark_block"}
PICO = [p for p in RECIPES if p.parent.name == "pico"]
QUICK = [p for p in PICO if p.stem not in SLOW]
UNDER_A_PLAN = [p for p in PICO if p.stem in {"dspark_planned", "dspark_capped"}]


Lengths = dict[str, list[int]]


@pytest.fixture(scope="module")
def found() -> dict[str, Lengths | str]:
    """The default recipes compared on a few cases, in one process: importing takes its time."""
    drawn = [f"{p}?{DRAWN}" for p in UNDER_A_PLAN]
    said: dict[str, Lengths | str] = interpreted(
        "device_interpreted.py", "few", *map(str, QUICK), *drawn
    )
    return said


def lengths_of(path: Path, found: dict[str, Lengths | str]) -> Lengths:
    """The accept lengths of a recipe's variants, of cases that are whole.

    Cases in which no step gained one token, some, and all of them would prove too little.
    """
    lengths = found[str(path)]
    assert isinstance(lengths, dict), lengths
    for variant in lower(resolve(load(path))).variants:
        seen, width = lengths[variant.name], variant.width
        assert 1 in seen or width == 1, (variant.name, seen)
        assert width <= 2 or set(seen) & set(range(2, width)), (variant.name, seen)
    return lengths


@pytest.mark.parametrize("path", QUICK, ids=lambda p: p.stem)
def test_a_step_on_a_device_is_the_step_in_torch(
    path: Path, found: dict[str, Lengths | str]
) -> None:
    lengths_of(path, found)


@pytest.mark.slow
@pytest.mark.parametrize("path", PICO, ids=lambda p: p.stem)
def test_a_step_on_a_device_is_the_step_in_torch_on_all_cases(path: Path) -> None:
    lengths_of(path, interpreted("device_interpreted.py", "all", str(path)))


@pytest.mark.parametrize("path", UNDER_A_PLAN, ids=lambda p: p.stem)
def test_a_drawn_step_under_a_plan_is_the_step_in_torch(
    path: Path, found: dict[str, Lengths | str]
) -> None:
    assert isinstance(found[f"{path}?{DRAWN}"], dict), found[f"{path}?{DRAWN}"]


def test_accept_lengths_of_every_size_were_seen(found: dict[str, Lengths | str]) -> None:
    """A chain's whole width, and the least: where all guesses are right, and where none is."""
    path = next(p for p in QUICK if p.stem == "eagle3")
    assert lengths_of(path, found)["chain"] == [1, 2, 3, 4]


def test_no_kernel_stores_what_a_warp_may_still_load() -> None:
    """The interpreter cannot show it: warps of a program run apart until a barrier."""
    updates = 0
    for file in sorted((ROOT / "tests/golden").glob("*/*/device.py")):
        for kernel in file.read_text().split("@triton.jit")[1:]:
            body = kernel.partition("\n\n\n")[0]
            loaded = {m[1]: m.end() for m in re.finditer(r"tl\.load\((\w+_ptr)", body)}
            stored = {m[1]: m.start() for m in re.finditer(r"tl\.store\((\w+_ptr)", body)}
            for pointer in loaded.keys() & stored.keys():
                between = body[loaded[pointer] : stored[pointer]]
                assert "tl.debug_barrier()" in between, (file.parent, pointer)
                updates += 1
    assert updates > 50


def test_what_torch_does_on_a_device_is_counted_whole() -> None:
    """An op that is torch's own there takes at least as many launches as its row says."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from specflow import kernels
    from specflow.models.nets import as_target_law

    class Counted(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            views = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
            self.count += not views
            return result

    law, each, table = torch.rand(2, 3, 7), torch.ones(2), torch.arange(7)
    few = each.long()
    called = {
        "filter_law": lambda: kernels.filter_law(law, few, each, each),
        "target_law": lambda: as_target_law(law, table, 9),
    }
    for name, call in called.items():
        with Counted() as counted:
            call()
        assert OPS[name].launches == counted.count, name
    assert {kind for kind, spec in OPS.items() if spec.launches > 1} == set(called)


@pytest.mark.parametrize("kind", sorted(k for k, s in OPS.items() if "(" in s.row))
def test_an_op_with_a_row_form_has_its_function(kind: str) -> None:
    from specflow.kernels import rows_triton

    call = OPS[kind].row
    if call[0] not in "({":
        assert hasattr(rows_triton, call.partition("(")[0]), call


def test_what_a_device_calls_has_the_signature_of_its_reference() -> None:
    from specflow import kernels
    from specflow.kernels import device

    for name in device.__all__:
        reference, other = getattr(kernels, name), getattr(device, name)
        assert inspect.signature(reference) == inspect.signature(other), name
