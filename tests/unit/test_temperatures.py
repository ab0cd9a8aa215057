"""Temperatures: vector T13 of parallel.md, and the file they are kept in."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specflow.temperatures import (
    GRID,
    MEANT,
    Fit,
    ece,
    fit_temperatures,
    read_temperatures,
    temperatures_fault,
    temperatures_text,
)

LOGITS = [[3, 2], [2, 1], [1, 3], [0, 2], [4, 0], [-1, 1], [2, 2], [1, -1]]
ACCEPTED = [2, 1, 0, 0, 1, 0, 2, 1]


def near(*values: float) -> object:
    return pytest.approx(values, abs=6e-8)


def test_the_grid_is_level_on_a_log_scale() -> None:
    assert (len(GRID), GRID[0], GRID[20], GRID[-1]) == (41, 0.1, 1.0, 10.0)


def test_the_default_grid() -> None:
    fit = fit_temperatures(LOGITS, ACCEPTED)
    assert fit.temperatures == near(0.5623413, 5.0118723)
    assert fit.ece_before == near(0.1918596, 0.3812629)
    assert fit.ece_after == near(0.1770732, 0.1909320)


def test_a_coarse_grid() -> None:
    fit = fit_temperatures(LOGITS, ACCEPTED, grid=(0.5, 1, 2, 4), bins=5)
    assert fit.temperatures == (0.5, 2.0)
    assert fit.ece_before == near(0.1918596, 0.3252138)
    assert fit.ece_after == near(0.1677521, 0.2563298)


def test_the_calibration_error() -> None:
    assert ece([0.1, 0.15, 0.9, 0.95], [0, 1, 1, 1], bins=10) == pytest.approx(0.225)
    assert ece([0.0, 1.0], [0, 1]) == pytest.approx(1e-8)  # never quite sure
    assert ece([], []) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1), st.integers(1, 20))
def test_the_calibration_error_is_that_of_its_definition(
    pairs: list[tuple[float, bool]], bins: int
) -> None:
    chances, labels = [p for p, _ in pairs], [label for _, label in pairs]
    expected = 0.0
    for at in range(bins):
        inside = [(p, y) for p, y in pairs if min(int(min(p, 1 - 1e-8) * bins), bins - 1) == at]
        if inside:
            mean, rate = (math.fsum(column) / len(inside) for column in zip(*inside, strict=True))
            expected += len(inside) / len(pairs) * abs(mean - rate)
    assert ece(chances, labels, bins) == pytest.approx(expected, abs=1e-6)


def test_the_first_of_equals_wins() -> None:
    # A logit of 0 is one half at every temperature.
    assert fit_temperatures([[0.0]] * 4, [1, 0, 1, 0]).temperatures == (GRID[0],)
    assert fit_temperatures([[0.0]] * 4, [1, 0, 1, 0], grid=(3, 2)).temperatures == (3,)


def test_huge_logits_do_not_overflow() -> None:
    fit = fit_temperatures([[1e6, -1e6], [-1e6, 1e6]], [1, 0])
    assert fit.ece_after == near(0, 0)


def test_a_fit_finds_the_temperature_that_made_the_data() -> None:
    logits, accepted = [], []
    for step in range(2000):
        logit = (step % 41 - 20) / 4
        logits.append([logit])
        # The golden ratio's multiples are spread as evenly as coins are on the average.
        accepted.append(int((step * 0.6180339887498949) % 1 < 1 / (1 + math.exp(-logit / 2.0))))
    fit = fit_temperatures(logits, accepted)
    assert fit.temperatures[0] == pytest.approx(2.0, rel=0.15)
    assert fit.ece_after[0] < 0.02
    assert fit.ece_before[0] > 0.05


def test_nothing_can_be_fitted_to_nothing() -> None:
    with pytest.raises(ValueError, match="no logits"):
        fit_temperatures([], [])
    with pytest.raises(ValueError, match="zip"):
        fit_temperatures([[1.0], [1.0, 2.0]], [0, 0])


# -- the file --------------------------------------------------------------------------------------

FIT = Fit((0.5, 2.0), (0.2, 0.3), (0.1, 0.2))


def test_temperatures_are_written_as_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "sts.json"
    file.write_text(temperatures_text(FIT, "chat", 512))
    assert json.loads(file.read_text()) == {
        "temperatures": [0.5, 2.0],
        "dataset": "chat",
        "num_samples": 512,
        "ece_before": [0.2, 0.3],
        "ece_after": [0.1, 0.2],
        "note": MEANT,
    }
    assert read_temperatures(file, 2) == ((0.5, 2.0), None)


def test_temperatures_of_another_width_are_a_misfit(tmp_path: Path) -> None:
    file = tmp_path / "sts.json"
    file.write_text(temperatures_text(FIT, "chat", 512))
    found, problem = read_temperatures(file, 3)
    assert found == (1.0, 1.0, 1.0)
    assert problem is not None
    assert problem.kind == "misfit"
    assert problem.message == f"`{file}` holds 2 temperatures, and the draft makes 3 guesses"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ([1.0], "it is not a JSON object"),
        ({}, "`temperatures` is missing"),
        ({"temperatures": 1.0}, "`temperatures` is no list"),
        ({"temperatures": []}, "`temperatures` is empty"),
        ({"temperatures": [1, "1"]}, "entry 2 of `temperatures` is no number"),
        ({"temperatures": [True]}, "entry 1 of `temperatures` is no number"),
        ({"temperatures": [math.nan]}, "entry 1 of `temperatures` is no finite number"),
        ({"temperatures": [1, 0]}, "entry 2 of `temperatures` is 0, and must be above 0"),
        ({"temperatures": [-2.5]}, "entry 1 of `temperatures` is -2.5, and must be above 0"),
        ({"temperatures": [1, 2.5]}, ""),
    ],
    ids=lambda x: str(x)[:50],
)
def test_a_fault_has_its_sentence(said: object, sentence: str, tmp_path: Path) -> None:
    assert temperatures_fault(said) == sentence
    file = tmp_path / "sts.json"
    file.write_text(json.dumps(said))
    found, problem = read_temperatures(file, 2)
    assert (found == (1, 2.5)) == (not sentence)
    assert (problem is None) == (not sentence)
    if problem is not None:
        assert problem.kind == "unreadable"
        assert problem.message == f"`{file}` cannot be used: {sentence}"


def test_other_files_are_problems(tmp_path: Path) -> None:
    assert read_temperatures(tmp_path / "none.json", 1)[1] is not None
    assert read_temperatures(tmp_path, 1)[1] is not None
    file = tmp_path / "sts.json"
    for text in (b"", b"\xff\xfe", b"[" * 10000, b"{"):
        file.write_bytes(text)
        found, problem = read_temperatures(file, 1)
        assert found == (1.0,)
        assert problem is not None
