"""What measuring decides without a model: which sizes, which recipe, which sum fits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from specflow.cost_fit import errors, fit_additive, nonnegative
from specflow.errors import RecipeError, UsageError
from specflow.load import loads
from specflow.measuring import (
    SAMPLES,
    budgets,
    doubling,
    shares,
    sizes_of,
    to_calibrate,
    to_profile,
    unmeasured,
)
from specflow.planning import FLAT, Additive, table_fault
from specflow.recipe import Recipe, ResolvedRecipe
from specflow.resolve import resolve
from specflow.stages.verify_ragged import planned

TABLE = Additive(
    0.003,
    (1, 2, 4, 8),
    (0.0, 0.0005, 0.001, 0.002),
    (1, 2, 4, 8, 16, 32, 64),
    (0.0, 0.0001, 0.0002, 0.0005, 0.001, 0.0022, 0.0041),
)
SIZES = shares((1, 2, 4, 8), 8)
HEAD = "{algorithm: DSPARK, model: builtin:pico-llama-dspark}"
NO_HEAD = "{algorithm: DFLASH, model: builtin:pico-llama-dflash}"


def recipe(draft: str = HEAD, **blocks: str) -> tuple[Recipe, ResolvedRecipe]:
    """A recipe as commands read it: without what measuring makes."""
    text = f"target: {{model: builtin:pico-llama}}\ndraft: {draft}\n"
    written = text + "".join(f"{block}: {said}\n" for block, said in blocks.items())
    bare = unmeasured(loads(written, "mine.yaml"))
    return bare, resolve(bare)


# -- the fit ---------------------------------------------------------------------------------------


def test_a_sum_is_found_again() -> None:
    timings = [(n, m, TABLE.seconds(n, m)) for n, m in SIZES]
    found = fit_additive(timings, TABLE.tokens)
    assert found.bias == pytest.approx(TABLE.bias)
    assert found.seconds_by_rows == pytest.approx(TABLE.seconds_by_rows)
    assert found.seconds_by_tokens == pytest.approx(TABLE.seconds_by_tokens)
    assert max(errors(found, timings)) < 1e-9


def test_noise_moves_the_sum_little_and_nothing_below_zero() -> None:
    noise = np.random.default_rng(1).normal(1, 0.05, len(SIZES))
    timings = [(n, m, TABLE.seconds(n, m) * e) for (n, m), e in zip(SIZES, noise, strict=True)]
    found = fit_additive(timings, TABLE.tokens)
    assert sum(errors(found, timings)) / len(timings) < 0.05
    for part in (found.seconds_by_rows, found.seconds_by_tokens):
        assert part[0] == 0
        assert list(part) == sorted(part)
    text = {"bias_seconds": found.bias, "bs_probes": found.rows, "alpha_seconds": [0.0] * 4}
    text |= {"m_probes": found.tokens, "theta_seconds": found.seconds_by_tokens}
    assert not table_fault(text)


def test_steps_that_get_faster_are_taken_for_noise() -> None:
    timings = [(1, 1, 2e-3), (1, 2, 1e-3), (1, 4, 1.5e-3), (2, 4, 0.5e-3)]
    found = fit_additive(timings, (1, 2, 4))
    assert found.bias > 0
    assert found.seconds_by_rows == (0.0, 0.0)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 8), st.booleans())
def test_the_least_squares_are_those_of_scipy(
    seed: int, rows: int, columns: int, positive: bool
) -> None:
    generator = np.random.default_rng(seed)
    matrix, wanted = generator.normal(size=(rows, columns)), generator.normal(size=rows)
    matrix = np.abs(matrix) if positive else matrix
    found = nonnegative(matrix, wanted)
    assert (found >= 0).all()
    assert np.linalg.norm(matrix @ found - wanted) <= nnls(matrix, wanted)[1] + 1e-9


# -- sizes -----------------------------------------------------------------------------------------


@given(st.integers(1, 256), st.integers(2, 64), st.sampled_from([1, 8, 64]))
def test_budgets_go_from_the_bonus_tokens_to_everything(rows: int, width: int, bucket: int) -> None:
    tokens = [m for _, m in budgets(rows, width, bucket)]
    assert tokens == sorted(set(tokens))
    assert rows <= tokens[0] < rows + bucket
    assert tokens[-1] == rows * width
    assert len(tokens) <= SAMPLES + 1
    assert not [m for m in tokens[:-1] if m % bucket]


@given(st.integers(1, 2000), st.integers(0, 2000))
def test_doubling(first: int, more: int) -> None:
    found = doubling(first, first + more)
    assert (found[0], found[-1]) == (first, first + more)
    assert all(b <= 2 * a for a, b in pairwise(found))


def test_which_sizes_a_recipe_means() -> None:
    width = 8
    plans = recipe(verify="{shape: ragged}", run="{batch_size: 4}")[1]
    assert sizes_of(plans, (), additive=False) == budgets(4, width, 1)
    assert sizes_of(plans, (2, 3), additive=False) == [(2, 16), (3, 24)]
    assert {n for n, _ in sizes_of(plans, (), additive=True)} == {1, 2, 4}
    for verify in ("{shape: chain}", "{shape: ragged, mode: static}"):
        everything = sizes_of(recipe(verify=verify)[1], (), additive=False)
        assert everything == [(n, n * width) for n in (1, 2, 4, 8, 16)]


# -- the recipe ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", ["{}", "{shape: chain}", "{shape: ragged, mode: static}"])
def test_whatever_a_block_recipe_verifies_it_is_timed_by_plan(verify: str) -> None:
    bare, resolved = recipe(verify=verify)
    assert not planned(resolved)
    timed = to_profile(bare, resolved, [(1, 8), (16, 128)])
    assert planned(timed)
    assert timed.facts.cost.value == FLAT
    assert (timed["verify.mode"], timed.run.batch_size) == ("compact", 16)
    assert timed.sampling.ignore_eos


def test_files_that_are_still_to_be_made_are_not_asked_for() -> None:
    verify = "{shape: ragged, cost_table: none.json, temperatures: none.json}"
    bare, resolved = recipe(verify=verify)
    assert not resolved.findings
    assert to_profile(bare, resolved, [(1, 1)])["verify.confidence"] == "head"
    heard = to_calibrate(bare, resolved)
    assert heard["verify.mode"] == "cap-accept"
    assert not heard.facts.temperatures


def test_a_draft_without_a_head_is_timed_by_averages_and_not_calibrated() -> None:
    bare, resolved = recipe(NO_HEAD)
    assert to_profile(bare, resolved, [(1, 1)])["verify.confidence"] == "average"
    with pytest.raises(UsageError, match="no confidence head"):
        to_calibrate(bare, resolved)


def test_a_draft_without_plans_is_told() -> None:
    bare, resolved = recipe("{algorithm: NGRAM}")
    for measure in (
        lambda: to_profile(bare, resolved, [(1, 1)]),
        lambda: to_calibrate(bare, resolved),
    ):
        with pytest.raises(UsageError, match="NGRAM") as told:
            measure()
        assert "DFLASH or DSPARK" in told.value.help


def test_other_findings_stay() -> None:
    with pytest.raises(RecipeError, match="SF001"):
        recipe(verify="{shape: ragged, cost_tabel: x}")
