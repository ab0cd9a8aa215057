"""The planner: vectors T6, T9 and T15 of parallel.md, its tables, and who keeps which history."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import accumulate, product
from operator import mul
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specflow.planning import (
    EPSILON,
    FLAT,
    HELD,
    KEPT,
    MISSED,
    Additive,
    Averages,
    Planner,
    Points,
    budget,
    parse_table,
    read_table,
    table_fault,
    table_text,
    throughputs,
)

CONFIDENCES = [[0.9, 0.8, 0.5, 0.5], [0.6, 0.5, 0.9, 0.1], [0.99, 0.98, 0.97, 0.2]]
SURVIVALS = [list(accumulate(row, mul)) for row in CONFIDENCES]
JAGGED = Points((1, 4, 8, 12, 16), (100, 96, 84, 70, 50), 16)
SUM = Additive(0.008, (1, 4, 16), (0, 0.001, 0.003), (1, 8, 16, 32), (0, 0.001, 0.006, 0.02))
POINTS = {
    "sample_batch_tokens": [1, 4, 8],
    "sample_steps_per_sec": [100.0, 96.5, 84],
    "max_batch_tokens": 16,
}
ADDITIVE = {
    "bias_seconds": 0.008,
    "bs_probes": [1, 4],
    "alpha_seconds": [0, 0.001],
    "m_probes": [1, 8],
    "theta_seconds": [0, 0.001],
}

# -- T6: what a budget is --------------------------------------------------------------------------

T6 = """300 383.04 476.1792 566.524224 652.924224 631.788696 682.188696 712.428696 737.628696
633.590580 646.765896 659.365896 661.255896"""


def test_the_budget_is_the_best_throughput_of_all() -> None:
    each = throughputs(SURVIVALS, JAGGED)
    assert each == pytest.approx([float(x) for x in T6.split()], abs=1e-6)
    assert budget(SURVIVALS, JAGGED) == 8
    falls = next(k for k in range(1, len(each)) if each[k] < each[k - 1])
    assert falls - 1 == 4  # where the paper's early stop ends


def test_a_flat_table_verifies_everything() -> None:
    assert budget(SURVIVALS, FLAT) == 12


def test_an_additive_table() -> None:
    assert SUM.seconds(3, 3) == pytest.approx(0.008952, abs=5e-7)
    assert SUM.seconds(3, 9) == pytest.approx(0.010292, abs=5e-7)
    assert budget(SURVIVALS, SUM) == 6
    assert max(throughputs(SURVIVALS, SUM)) == pytest.approx(789.1136, abs=1e-4)


def test_an_additive_table_is_level_beyond_its_ends() -> None:
    assert SUM.seconds(0, 0) == SUM.seconds(1, 1) == 0.008
    assert SUM.seconds(99, 99) == SUM.seconds(16, 32) == pytest.approx(0.031)
    assert SUM.seconds(4, 16) == pytest.approx(0.015)  # on a sample, that sample
    one = Additive(0.5, (4,), (0.25,), (8,), (0.125,))
    assert [one.seconds(n, m) for n, m in ((1, 1), (4, 8), (9, 9))] == [0.875] * 3


@pytest.mark.parametrize(("tokens", "at"), [(3, 0), (4, 0), (7, 0), (8, 1), (100, 1)], ids=str)
def test_points_are_probed_from_below(tokens: int, at: int) -> None:
    table = Points((4, 8), (50.0, 20.0), 8)
    assert table.seconds(1, tokens) == table.seconds(7, tokens) == 1 / (50.0, 20.0)[at]


def test_equal_throughputs_take_the_fewest_guesses() -> None:
    halved = Points((1, 2), (1.0, 0.5), 2)
    assert throughputs([[1.0]], halved) == [1.0, 1.0]
    assert budget([[1.0]], halved) == 0


def test_a_guess_that_cannot_survive_is_no_candidate() -> None:
    rising = Points((1, 2, 3), (1, 2, 4), 3)  # a measured table may say so
    assert budget([[EPSILON, EPSILON / 2]], rising) == 1
    assert budget([[0.0, math.nan]], rising) == 0
    assert throughputs([], FLAT) == [0.0]


eighths = st.integers(0, 8).map(lambda n: n / 8)
rows = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.lists(eighths, min_size=width, max_size=width).map(lambda r: sorted(r, reverse=True)),
        min_size=1,
        max_size=4,
    )
)
# Powers of two, so that ties are ties in floats as well.
speeds = st.lists(st.integers(-3, 3).map(lambda n: 2.0**n), min_size=16, max_size=16)


@given(rows, speeds)
def test_the_budget_is_that_of_all_prefixes(survivals: list[list[float]], sps: list[float]) -> None:
    table = Points(tuple(range(1, 17)), tuple(sps), 16)
    best: dict[int, float] = {}
    for lengths in product(*(range(len(row) + 1) for row in survivals)):
        taken = [s for row, n in zip(survivals, lengths, strict=True) for s in row[:n]]
        if all(s >= EPSILON for s in taken):
            gained = (len(survivals) + sum(taken)) * sps[len(survivals) + len(taken) - 1]
            best[len(taken)] = max(best.get(len(taken), 0.0), gained)
    assert throughputs(survivals, table) == [best[k] for k in sorted(best)]
    assert budget(survivals, table) == min(k for k in best if best[k] == max(best.values()))


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [POINTS, ADDITIVE], ids=["points", "additive"])
def test_a_table_is_written_as_it_is_read(said: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text(table_text(parse_table(said)))
    assert json.loads(file.read_text()) == said
    assert read_table(file) == (parse_table(said), None)


def test_what_the_parts_of_a_file_mean() -> None:
    assert parse_table(POINTS) == Points((1, 4, 8), (100.0, 96.5, 84), 16)
    assert parse_table(ADDITIVE) == Additive(0.008, (1, 4), (0, 0.001), (1, 8), (0, 0.001))
    assert json.loads(table_text(FLAT))["sample_steps_per_sec"] == [1.0]
    assert not table_fault(json.loads(table_text(FLAT)))


TOKENS, STEPS = "sample_batch_tokens", "sample_steps_per_sec"
WITHOUT = object()
FAULTS = [
    (POINTS, {TOKENS: WITHOUT}, "`sample_batch_tokens` is missing"),
    (POINTS, {STEPS: WITHOUT}, "`sample_steps_per_sec` is missing"),
    (POINTS, {"max_batch_tokens": WITHOUT}, "`max_batch_tokens` is missing"),
    (POINTS, {TOKENS: 4}, "`sample_batch_tokens` is no list"),
    (POINTS, {STEPS: "100"}, "`sample_steps_per_sec` is no list"),
    (POINTS, {TOKENS: []}, "`sample_batch_tokens` is empty"),
    (
        POINTS,
        {STEPS: [100, 96]},
        "`sample_batch_tokens` has 3 entries and `sample_steps_per_sec` has 2",
    ),
    (POINTS, {TOKENS: [1, "4", 8]}, "entry 2 of `sample_batch_tokens` is no number"),
    (POINTS, {STEPS: [True, 1, 1]}, "entry 1 of `sample_steps_per_sec` is no number"),
    (POINTS, {STEPS: [1, math.nan, 1]}, "entry 2 of `sample_steps_per_sec` is no finite number"),
    (POINTS, {STEPS: [1, 1, math.inf]}, "entry 3 of `sample_steps_per_sec` is no finite number"),
    (POINTS, {TOKENS: [1, 4, 10**400]}, "entry 3 of `sample_batch_tokens` is no finite number"),
    (POINTS, {TOKENS: [1, 8, 8]}, "`sample_batch_tokens` must increase, and entry 3 is 8, after 8"),
    (POINTS, {TOKENS: [4, 1, 8]}, "`sample_batch_tokens` must increase, and entry 2 is 1, after 4"),
    (POINTS, {TOKENS: [-1, 4, 8]}, "entry 1 of `sample_batch_tokens` is -1, and must be 0 or more"),
    (POINTS, {STEPS: [1, 0, 1]}, "entry 2 of `sample_steps_per_sec` is 0, and must be above 0"),
    (
        POINTS,
        {"max_batch_tokens": 7},
        "`max_batch_tokens` is 7, less than the last sample of 8 tokens",
    ),
    (POINTS, {"max_batch_tokens": None}, "`max_batch_tokens` is no number"),
    (ADDITIVE, {"bias_seconds": 0}, "`bias_seconds` is 0, and must be above 0"),
    (ADDITIVE, {"bias_seconds": False}, "`bias_seconds` is no number"),
    (ADDITIVE, {"alpha_seconds": WITHOUT}, "`alpha_seconds` is missing"),
    (ADDITIVE, {"alpha_seconds": [0]}, "`bs_probes` has 2 entries and `alpha_seconds` has 1"),
    (ADDITIVE, {"bs_probes": [4, 4]}, "`bs_probes` must increase, and entry 2 is 4, after 4"),
    (
        ADDITIVE,
        {"theta_seconds": [0, -0.5]},
        "entry 2 of `theta_seconds` is -0.5, and must be 0 or more",
    ),
    (ADDITIVE, {"m_probes": [8, 1]}, "`m_probes` must increase, and entry 2 is 1, after 8"),
    (ADDITIVE, {"m_probes": []}, "`m_probes` is empty"),
]


@pytest.mark.parametrize(
    ("said", "change", "sentence"), FAULTS, ids=lambda x: x[:60] if isinstance(x, str) else ""
)
def test_a_fault_has_its_sentence(
    said: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    changed = {key: value for key, value in (said | change).items() if value is not WITHOUT}
    assert table_fault(changed) == sentence


def test_what_is_no_fault() -> None:
    assert not table_fault(POINTS)
    assert not table_fault(ADDITIVE)
    assert not table_fault(POINTS | {STEPS: [1, 5, 3]})  # measured tables are jagged
    assert not table_fault(POINTS | {"max_batch_tokens": 8})
    assert [table_fault(said) for said in (None, [POINTS], "x")] == ["it is not a JSON object"] * 3


def test_a_file_without_a_table_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    table, problem = read_table(file)
    assert table == FLAT
    assert problem is not None
    assert (problem.kind, problem.message) == ("missing", f"there is no file `{file}`")
    file.write_text(json.dumps(POINTS | {TOKENS: [8, 4, 1]}))
    table, problem = read_table(file)
    assert table == FLAT
    assert problem is not None
    assert problem.kind == "unreadable"
    assert problem.message.startswith(f"`{file}` cannot be used: `sample_batch_tokens` must inc")


texts = st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from([*POINTS, *ADDITIVE]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*POINTS, *ADDITIVE]), inner, max_size=5)
    ),
).map(lambda said: json.dumps(said).encode())


@given(texts)
def test_foreign_text_is_a_table_or_a_problem(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    file = tmp_path_factory.mktemp("table") / "table.json"
    file.write_bytes(text)
    table, problem = read_table(file)
    assert (problem is None) == (not table_fault(_json_or_none(text)))
    assert table.seconds(3, 9) > 0


def _json_or_none(text: bytes) -> object:
    try:
        return json.loads(text.decode())
    except ValueError:
        return None


# -- T15: which step a decision goes by ------------------------------------------------------------

STEEP = Points(tuple(range(1, 33)), tuple(1 / n for n in range(1, 33)), 32)  # a token costs a token
SURE, DOOMED = [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]
# Tells survivals apart by budget: verifying a guess costs half a token.
CHEAP = Points(tuple(range(1, 33)), tuple(2 / (n + 1) for n in range(1, 33)), 32)


def likely(guesses: int) -> list[float]:
    """Survivals for which so many guesses of one row are worth verifying under CHEAP."""
    return [1.0] * guesses + [0.0] * (3 - guesses)


def test_a_decision_goes_by_the_step_that_lies_a_lag_before() -> None:
    planner, seen = Planner(CHEAP, width=3), []
    planner.admit(0)
    for step in range(8):
        seen.append(planner.tokens(1) - 1)
        planner.publish([likely((2, 0, 1, 0)[step % 4])])
    assert seen == [3, 3, 2, 0, 1, 0, 2, 0]  # two steps without history verify everything


@pytest.mark.parametrize("lag", [1, 3])
def test_other_lags(lag: int) -> None:
    planner, seen = Planner(CHEAP, width=3, lag=lag), []
    planner.admit(0)
    for step in range(6):
        seen.append(planner.tokens(1) - 1)
        planner.publish([likely((2, 0, 1)[step % 3])])
    assert seen == ([3] * lag + [2, 0, 1, 2, 0, 1])[:6]


def test_a_row_that_is_taken_over_has_no_history_until_its_own_arrives() -> None:
    planner, seen = Planner(CHEAP, width=3), []
    planner.admit(0)
    for step in range(9):
        if step == 5:
            planner.release(0)
            planner.admit(0)
        seen.append(planner.tokens(1) - 1)
        planner.publish([DOOMED])
    assert seen == [3, 3, 0, 0, 0, 3, 3, 0, 0]  # stale at 5 and 6: sure to survive


def test_a_new_row_beside_an_old_one_counts_as_sure() -> None:
    planner = Planner(CHEAP, width=3, lag=1)
    planner.admit(0)
    planner.publish([DOOMED])
    planner.admit(1)
    assert planner.tokens(1) == 1
    assert planner.tokens(2) == 2 + 3


def test_a_history_follows_its_request() -> None:
    planner = Planner(CHEAP, width=3, lag=1)
    for row in range(3):
        planner.admit(row)
    planner.publish([SURE, DOOMED, likely(1)])
    assert planner.tokens(3) == 3 + 4
    planner.move(2, 0)  # as a session does: the last row fills the gap, then is let go
    planner.release(2)
    assert planner.tokens(1) == 1 + 1
    assert planner.tokens(2) == 2 + 1
    planner.admit(2)
    assert planner.tokens(3) == 3 + 1 + 3
    planner.publish([DOOMED, DOOMED, DOOMED])
    assert planner.tokens(3) == 3


def test_padding_has_no_history() -> None:
    planner = Planner(CHEAP, width=3, lag=1)
    planner.admit(0)
    planner.publish([DOOMED, SURE, SURE, SURE])
    assert planner.tokens(1) == 1
    planner.admit(1)
    planner.publish([DOOMED])  # and a row that said nothing is not taken for a doomed one
    assert planner.tokens(2) == 2 + 3


@pytest.mark.parametrize(
    ("guesses", "bucket", "tokens"),
    [(0, 1, 2), (1, 1, 3), (3, 1, 5), (0, 4, 4), (1, 4, 4), (3, 4, 8), (3, 6, 6), (0, 99, 8)],
    ids=str,
)
def test_positions_come_in_buckets(guesses: int, bucket: int, tokens: int) -> None:
    planner = Planner(CHEAP, width=3, lag=1, bucket=bucket)
    planner.admit(0)
    planner.admit(1)
    assert planner.tokens(2) == 8
    planner.publish([likely(guesses), DOOMED])
    assert planner.tokens(2) == tokens


def test_nothing_is_worth_its_price_or_everything_is() -> None:
    for table, tokens in ((STEEP, 2), (FLAT, 8)):
        planner = Planner(table, width=3, lag=1)
        planner.publish([SURE, DOOMED])
        assert planner.tokens(2) == tokens


def test_asking_changes_nothing() -> None:
    planner = Planner(CHEAP, width=3, lag=1)
    planner.admit(0)
    planner.publish([likely(1)])
    assert [planner.tokens(1) for _ in range(3)] == [2, 2, 2]
    assert planner.tokens(0) == 0


def test_what_is_published_is_kept_as_it_was() -> None:
    planner, said = Planner(CHEAP, width=3, lag=1), [likely(2)]
    planner.admit(0)
    planner.publish(said)
    said[0][:] = DOOMED
    assert planner.tokens(1) == 3


@pytest.mark.parametrize("wrong", [{"width": 0}, {"lag": 0}, {"bucket": 0}], ids=str)
def test_a_planner_without_lag_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        Planner(FLAT, **{"width": 3, "lag": 1, "bucket": 1} | wrong)


# -- T9: the lag keeps the law ---------------------------------------------------------------------

TARGET, DRAFT = {"A": 0.7, "B": 0.3}, {"A": 0.5, "B": 0.5}
PRICED = Points((1, 2, 3), (1, 0.5, 0.45), 3)
HOPE = {"A": [0.8, 0.8 * 0.9], "B": [0.8, 0.0]}  # survivals, by what the first guess is


def first_token_law(verified: Callable[[str], int]) -> dict[str, float]:
    """The exact law of a step's first token, where so many guesses are verified for a first guess.

    Where none is, the token is drawn anew from the target; else the guess is accepted or mended.
    """
    law = dict.fromkeys(TARGET, 0.0)
    short = {token: max(TARGET[token] - DRAFT[token], 0.0) for token in TARGET}
    for guess, chance in DRAFT.items():
        kept = min(1.0, TARGET[guess] / chance) if verified(guess) else 0.0
        mended = short if verified(guess) else TARGET
        law[guess] += chance * kept
        for token, share in mended.items():
            law[token] += chance * (1 - kept) * share / sum(mended.values())
    return law


def test_a_budget_of_the_present_bends_the_law() -> None:
    assert throughputs([HOPE["A"]], PRICED) == pytest.approx([1, 0.9, 1.134])
    assert throughputs([HOPE["B"]], PRICED) == pytest.approx([1, 0.9])  # 0 is no candidate
    law = first_token_law(lambda guess: budget([HOPE[guess]], PRICED))
    assert law == pytest.approx({"A": 0.85, "B": 0.15}, abs=1e-15)


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("past", product("AB", repeat=2), ids="".join)
def test_a_budget_of_the_past_keeps_the_law(lag: int, past: tuple[str, ...]) -> None:
    def verified(guess: str) -> int:
        planner = Planner(PRICED, width=2, lag=lag)
        planner.admit(0)
        for before in past:
            planner.publish([HOPE[before]])
        tokens = planner.tokens(1)
        planner.publish([HOPE[guess]])
        return tokens - 1

    assert verified("A") == verified("B") == (2 if past[-lag] == "A" else 0)
    assert first_token_law(verified) == pytest.approx(TARGET, abs=1e-15)


def test_the_harness_sees_a_planner_that_is_told_too_early() -> None:
    def verified(guess: str) -> int:
        planner = Planner(PRICED, width=2, lag=1)
        planner.admit(0)
        planner.publish([HOPE[guess]])
        return planner.tokens(1) - 1

    assert first_token_law(verified) == pytest.approx({"A": 0.85, "B": 0.15}, abs=1e-15)


# -- averages --------------------------------------------------------------------------------------

NEW = HELD / (HELD + MISSED)


def test_a_new_request_is_taken_for_a_good_one() -> None:
    averages = Averages(3)
    averages.admit(0)
    assert averages.survivals(2) == [pytest.approx([NEW, NEW**2, NEW**3])] * 2
    assert NEW > 0.95


def test_a_step_counts_up_to_its_first_wrong_guess() -> None:
    averages = Averages(3)
    averages.admit(0)
    averages.observe(0, accepted=1, judged=3)
    right, wrong = (HELD + 1) / (HELD + MISSED + 1), HELD / (HELD + MISSED + 1)
    assert averages.survivals(1)[0] == pytest.approx([right, right * wrong, right * wrong * NEW])


def test_what_is_not_verified_says_nothing() -> None:
    averages = Averages(3)
    averages.admit(0)
    averages.observe(0, accepted=1, judged=1)
    right = (HELD + 1) / (HELD + MISSED + 1)
    assert averages.survivals(1)[0] == pytest.approx([right, right * NEW, right * NEW**2])


def test_averages_come_close_to_what_happens() -> None:
    averages = Averages(2)
    averages.admit(0)
    for step in range(400):
        averages.observe(0, accepted=(0, 2, 1, 2)[step % 4], judged=2)
    first, second = averages.survivals(1)[0]
    assert first == pytest.approx(0.75, abs=0.03)
    assert second == pytest.approx(0.5, abs=0.03)


def test_a_request_that_is_not_verified_is_tried_again() -> None:
    averages = Averages(1)
    averages.admit(0)
    for _ in range(50):
        averages.observe(0, accepted=0, judged=1)
    low = averages.survivals(1)[0][0]
    assert low < 0.06
    for _ in range(400):
        averages.observe(0, accepted=0, judged=0)
    assert averages.survivals(1)[0][0] > 0.9
    assert KEPT**400 < 0.001


def test_averages_follow_their_request() -> None:
    averages = Averages(1)
    averages.admit(0)
    averages.admit(1)
    averages.observe(1, accepted=0, judged=1)
    fresh, missed = (row[0] for row in averages.survivals(2))
    assert missed < fresh
    averages.move(1, 0)
    averages.release(1)
    assert averages.survivals(2) == [[missed], [fresh]]
    averages.release(0)
    averages.admit(0)
    assert averages.survivals(1) == [[fresh]]
