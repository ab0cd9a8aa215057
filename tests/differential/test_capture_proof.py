"""Every step of every recipe could be captured: proven on a CPU, on the recipe's own stand-ins.

A batch of 3 runs in its bucket of 4, so rows that nobody has are part of the proof; a planned batch
runs as it is, by the least, some, and all of its positions. Recipes whose steps and models are the
same are proven once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specflow.capture import EagerStep, Key, buffers
from specflow.cli.common import read
from specflow.codegen import emit
from specflow.execute import make_session
from specflow.lower import lower
from specflow.recipe import ResolvedRecipe
from specflow.session import Request, Session
from tests.capture_safety import CaptureSafe, HostSyncError
from tests.conftest import RECIPES, ROOT
from tests.differential.graph_sessions import pools, target

Proof = tuple[str, str, str]
ROWS, BUCKET, EXTENT = 3, 4, 64


@cache
def resolved(path: Path, *overrides: str) -> ResolvedRecipe:
    """A recipe on its stand-ins, for batches of 4."""
    words = [f"run.batch_size={BUCKET}", *overrides]
    found: ResolvedRecipe = read(str(path), words)[1]
    if not path.is_relative_to(ROOT / "recipes" / "pico"):
        found = read(str(path), words, stand_in=True)[1]
    return found


def proof(path: Path) -> Proof:
    """What a proof is of: the code of the step, and the models it calls."""
    recipe = resolved(path)
    step = ast.parse(emit(lower(recipe), recipe).source)
    for node in ast.walk(step):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    draft = recipe["draft.model"] if "draft.model" in recipe else ""  # noqa: SIM401 - no mapping
    return ast.dump(step), recipe.target.model, draft


def distinct() -> list[Path]:
    """One recipe for each proof there is to make; those of this folder's own models first."""
    found: dict[Proof, Path] = {}
    for path in sorted(RECIPES, key=lambda p: (p.parent.name != "pico", p)):
        found.setdefault(proof(path), path)
    return list(found.values())


def begun(recipe: ResolvedRecipe) -> Session:
    """Three requests of several lengths, a step further."""
    torch.set_num_threads(1)
    made = make_session(recipe, *target(recipe.target.model))
    for row in range(ROWS):
        tokens = list(range(5, 14 + 7 * row))
        made.submit(Request(str(row), tokens, 40, draws(recipe, row)))
    made.step()
    assert len(made.rows) == ROWS
    return made


def draws(recipe: ResolvedRecipe, row: int) -> object:
    """What a recipe draws from, by a seed of its own."""
    from specflow.session import Draws

    own = recipe.sampling
    return Draws(own.temperature, own.top_k, own.top_p, own.min_p, seed=row + 1)


def keys(made: Session) -> Iterator[Key]:
    """Every variant, in the bucket; of a plan the batch as it is, by several budgets."""
    for variant, width in made.captured.widths.items():
        if made.planner is None:
            yield Key(BUCKET, variant, EXTENT)
        else:
            budgets = (2 * width, ROWS, ROWS * width)
            yield from (Key(ROWS, variant, EXTENT, budget) for budget in budgets)


def addresses(made: Session) -> list[int]:
    """Where state, keys and values lie."""
    blocks = [block for pool in pools(made) for block in pool.blocks()]
    return [t.data_ptr() for t in (*buffers(made.captured.state).values(), *blocks)]


def named(path: Path) -> str:
    """A recipe as its test is called."""
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", distinct(), ids=named)
def test_a_step_could_be_captured_and_is_traced_whole(path: Path) -> None:
    """No wait, no shape by data, the same addresses; and `fullgraph` finds no break.

    Of all variants and budgets the widest is traced here, the others in the slow set.
    """
    prove(begun(resolved(path)), traced=1)


@pytest.mark.slow
@pytest.mark.parametrize("path", distinct(), ids=named)
def test_every_variant_is_traced_whole(path: Path) -> None:
    made = begun(resolved(path))
    prove(made, traced=len(list(keys(made))))


def prove(made: Session, traced: int) -> None:
    """Run every key of a session as a graph would, and trace so many."""
    step, state = made.captured, buffers(made.captured.state)
    assert isinstance(step, EagerStep)
    step.idle(ROWS, BUCKET)
    first = {name: tensor.clone() for name, tensor in state.items()}
    where = addresses(made)
    for count, key in enumerate(keys(made)):
        called, ran, said = step.bind(key), [], first
        called()  # views of the pools are made once
        put_back(state, first)
        for _ in range(2):  # a step behind another: lengths, tokens and what is accepted differ
            with CaptureSafe() as safe:
                called()
            ran.append(safe.done)
            if said is first:
                said = {name: tensor.clone() for name, tensor in state.items()}
        assert ran[0] == ran[1]
        assert len(ran[0]) > 10
        put_back(state, first)
        if count < traced:
            torch._dynamo.reset()
            with torch.no_grad():
                torch.compile(called, fullgraph=True, backend="eager")()
            same(state, said, key.rows)
            put_back(state, first)
    assert addresses(made) == where


def put_back(state: dict[str, Tensor], kept: dict[str, Tensor]) -> None:
    """State as it was."""
    for name, tensor in state.items():
        tensor.copy_(kept[name])


def same(state: dict[str, Tensor], said: dict[str, Tensor], rows: int) -> None:
    """A traced step leaves what the step leaves; its sums may be ordered otherwise."""
    for name, tensor in state.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor[:rows], said[name][:rows], atol=1e-4, rtol=1e-4)
        else:
            assert torch.equal(tensor[:rows], said[name][:rows]), name


def test_every_recipe_has_its_proof() -> None:
    proven = {proof(path) for path in distinct()}
    assert {proof(path) for path in RECIPES} == proven
    assert 35 < len(proven) <= len(RECIPES)


# -- the long ones ---------------------------------------------------------------------------------

COMPILED = ("plain", "eagle3", "standalone_tree", "dspark_planned", "frozen_kv", "ngram")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", COMPILED)
def test_a_step_is_compiled(name: str, backend: str) -> None:
    """By way of functions without effects, and by inductor: the same words."""
    made = begun(resolved(ROOT / f"recipes/pico/{name}.yaml"))
    step, state = made.captured, buffers(made.captured.state)
    assert isinstance(step, EagerStep)
    step.idle(ROWS, BUCKET)
    first = {each: tensor.clone() for each, tensor in state.items()}
    for key in keys(made):
        called = step.bind(key)
        called()
        said = {each: tensor.clone() for each, tensor in state.items()}
        put_back(state, first)
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(called, fullgraph=True, dynamic=False, backend=backend)()
        same(state, said, key.rows)
        put_back(state, first)


# -- the proof itself ------------------------------------------------------------------------------

UNSAFE = {
    "item": lambda t: t.sum().item(),
    "bool": lambda t: bool(t.any()),
    "mask": lambda t: t[t > 0],
    "nonzero": torch.nonzero,
    "numbers of the host": lambda t: t + torch.tensor([1.0, 2.0, 3.0]),
    "repeats": lambda t: t.repeat_interleave(t.long()),
    "draw": torch.rand_like,
    "multinomial": lambda t: torch.multinomial(t, 1),
    "equal": lambda t: torch.equal(t, t),
}


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("inference", [False, True])
def test_what_cannot_be_captured_is_found(name: str, inference: bool) -> None:
    tensor = torch.ones(3)
    with torch.inference_mode(inference), CaptureSafe(), pytest.raises(HostSyncError):
        UNSAFE[name](tensor)


def test_what_data_shapes_is_found_by_running_twice() -> None:
    """Where the host knows the data, no operation of its own gives it away."""
    ran = []
    for count in (2, 3):
        with CaptureSafe() as safe:
            torch.zeros(5)[:count].add(1)
        ran.append(safe.done)
    assert ran[0] != ran[1]
