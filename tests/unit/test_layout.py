"""Generated lines that are too wide are broken the way ruff breaks them."""

from __future__ import annotations

import pytest

from specflow.codegen.layout import WIDTH, narrow, page, prose

LONG = ["a_name_of_some_length", "another_name_of_some_length", "a_third_name_of_some_length"]


def test_what_fits_stays() -> None:
    line = "    " + "x" * (WIDTH - 4)
    assert narrow(line) == [line]


def test_a_comment_without_room_moves_above() -> None:
    line = f"    kept = {LONG[0]}({LONG[1]}, state)  # [B, W], what the target would have said"
    assert narrow(line) == [
        "    # [B, W], what the target would have said",
        f"    kept = {LONG[0]}({LONG[1]}, state)",
    ]


def test_a_call_opens_at_its_last_bracket() -> None:
    line = f"    state.output_tokens[0].copy_({LONG[0]}({LONG[1]}, {LONG[2]}))"
    assert narrow(line) == [
        "    state.output_tokens[0].copy_(",
        f"        {LONG[0]}({LONG[1]}, {LONG[2]})",
        "    )",
    ]


def test_items_that_do_not_fit_on_a_line_have_one_each() -> None:
    typed = ", ".join(f"{name}: Tensor" for name in LONG)
    assert narrow(f"def commit(state: State, {typed}) -> tuple[Tensor, Tensor]:") == [
        "def commit(",
        "    state: State,",
        *(f"    {name}: Tensor," for name in LONG),
        ") -> tuple[Tensor, Tensor]:",
    ]


def test_parameters_break_before_the_result_does() -> None:
    typed = f"state: State, {LONG[0]}: Tensor"
    assert narrow(f"def commit_single_rows({typed}) -> tuple[Tensor, Tensor, Tensor]:") == [
        "def commit_single_rows(",
        f"    {typed}",
        ") -> tuple[Tensor, Tensor, Tensor]:",
    ]


def test_an_import_has_a_name_a_line() -> None:
    line = f"from specflow.kernels import {', '.join(LONG)}"
    assert narrow(line) == [
        "from specflow.kernels import (",
        *(f"    {name}," for name in LONG),
        ")",
    ]


def test_a_docstring_keeps_its_first_sentence_alone() -> None:
    said = "One captured step: guesses are verified, all of them at once"
    rest = "No host sync, no data-dependent branch, nothing that a graph cannot hold."
    assert narrow(f'    """{said}. {rest}"""') == [
        f'    """{said}.',
        "",
        f"    {rest}",
        '    """',
    ]


@pytest.mark.parametrize("text", ["", "\n", "a = 1\n", '"""Said."""\n\n\nb = 2\n'])
def test_a_narrow_page_is_itself(text: str) -> None:
    assert page(text) == text


def test_prose_hangs_under_its_first_line() -> None:
    lines = prose("word " * 40, "    verify       ", " " * 17)
    assert len(lines) == 3
    assert max(map(len, lines)) <= WIDTH
    assert all(line.startswith(" " * 17 + "word") for line in lines[1:])
