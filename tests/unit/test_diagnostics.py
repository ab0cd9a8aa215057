"""The text of findings: the two samples of the house, the odd cases, json and github."""

from __future__ import annotations

import json

import pytest

from specflow.diagnostics import (
    Diagnostic,
    Drop,
    Label,
    Put,
    Severity,
    closest,
    render,
    summary,
)
from specflow.spans import Source, Span

RECIPE = """\
# EAGLE3 chain
target:
  model: t
draft:
  algorithm: EAGLE3
  model: d
  num_steps: 3
  topk: 1
verify:
  num_draft_tokens: 8
"""


def span(source: Source, text: str, after: str = "") -> Span:
    start = source.text.index(text, source.text.index(after) + len(after))
    return Span(source, start, start + len(text))


def finding(*labels: Label, **more: object) -> Diagnostic:
    return Diagnostic("SF012", "chain-width-mismatch", Severity.ERROR, "no", tuple(labels), **more)


def chain(source: Source) -> Diagnostic:
    return Diagnostic(
        "SF012",
        "chain-width-mismatch",
        Severity.ERROR,
        "a chain of 3 steps verifies 4 positions, not 8",
        (
            Label(span(source, "8", "tokens: "), "expected 4", primary=True),
            Label(span(source, "3", "steps: "), "3 guesses + 1 bonus token = 4 positions"),
            Label(span(source, "1", "topk: "), "topk = 1 makes the draft a chain"),
        ),
        help="remove `verify.num_draft_tokens`; it is derived from `draft.num_steps`",
        fix=Drop("verify.num_draft_tokens"),
    )


def test_labels_of_one_source_are_shown_in_line_order() -> None:
    assert render([chain(Source("eagle3_chain.yaml", RECIPE))], "text") == (
        "error[SF012]: a chain of 3 steps verifies 4 positions, not 8\n"
        "  --> eagle3_chain.yaml:10:21\n"
        "   |\n"
        " 7 |   num_steps: 3\n"
        "   |              - 3 guesses + 1 bonus token = 4 positions\n"
        " 8 |   topk: 1\n"
        "   |         - topk = 1 makes the draft a chain\n"
        " 9 | verify:\n"
        "10 |   num_draft_tokens: 8\n"
        "   |                     ^ expected 4\n"
        "   |\n"
        "   = help: remove `verify.num_draft_tokens`; it is derived from `draft.num_steps`\n"
        "   = rule: specflow rule SF012"
    )


def test_other_sources_follow_the_primary_one() -> None:
    line = Source("<command line>", "draft.num_steps=5 verify.num_draft_tokens=4")
    recipe = Source("eagle3_chain.yaml", RECIPE)
    shown = render(
        [
            finding(
                Label(span(recipe, "1", "topk: "), "topk = 1 makes the draft a chain"),
                Label(span(line, "5"), "6 positions"),
                Label(span(line, "4"), "expected 6", primary=True),
                notes=("first line\nsecond line",),
            )
        ],
        "text",
    )
    assert shown == (
        "error[SF012]: no\n"
        " --> <command line>:1:43\n"
        "  |\n"
        "1 | draft.num_steps=5 verify.num_draft_tokens=4\n"
        "  |                 - 6 positions\n"
        "  |                                           ^ expected 6\n"
        "  |\n"
        " ::: eagle3_chain.yaml:8:9\n"
        "  |\n"
        "8 |   topk: 1\n"
        "  |         - topk = 1 makes the draft a chain\n"
        "  |\n"
        "  = note: first line\n"
        "          second line\n"
        "  = rule: specflow rule SF012"
    )


def test_a_wider_gap_is_three_dots() -> None:
    source = Source("a.yaml", RECIPE)
    shown = render([finding(Label(span(source, "t", "model: ")), Label(span(source, "8")))], "text")
    assert shown.splitlines()[3:8] == [
        " 3 |   model: t",
        "   |          -",
        "...",
        "10 |   num_draft_tokens: 8",
        "   |                     -",
    ]


def test_without_a_span_there_is_no_excerpt() -> None:
    assert render([finding(help="look", notes=("why",))], "text") == (
        "error[SF012]: no\n = note: why\n = help: look\n = rule: specflow rule SF012"
    )


@pytest.mark.parametrize(
    ("text", "start", "end", "line", "marks"),
    [
        ("名前: 値段 # x", 4, 6, "名前: 値段 # x", "      ^^^^"),
        ("a:\tbc", 3, 5, "a:    bc", "      ^^"),
        ("a: b", 4, 4, "a: b", "    ^"),
        ("a: b\r\n", 99, 120, "", "^"),
        ("a: |\n  one\n  two\n", 3, 16, "a: |", "   ^"),
        ("a: 'one\r\n  two'", 3, 15, "a: 'one", "   ^^^^"),
        ("", 0, 0, "", "^"),
        ("a: \x1b[31mred", 3, 11, "a: ␛[31mred", "   ^^^^^^^^"),
        ("a: e\u0301x", 3, 5, "a: e\u0301x", "   ^"),
        ("a: \u202eabc", 3, 4, "a: \ufffdabc", "   ^"),
        ("a: \ud800", 3, 4, "a: ?", "   ^"),
        ("a: b", -5, -1, "a: b", "^^^^"),
    ],
)
def test_odd_text_keeps_its_markers_below(
    text: str, start: int, end: int, line: str, marks: str
) -> None:
    label = Label(Span(Source("a.yaml", text), start, end), primary=True)
    shown = render([finding(label)], "text").splitlines()
    assert shown[3].partition("|")[2].removeprefix(" ") == line
    assert shown[4].partition("|")[2].removeprefix(" ") == marks


def test_a_long_line_is_cut_round_its_label() -> None:
    source = Source("a.yaml", "x" * 5000 + "!" + "y" * 5000)
    shown = render([finding(Label(Span(source, 5000, 5001), "here", primary=True))], "text")
    _, _, _, line, marks, *_ = shown.splitlines()
    assert len(line) <= 170
    assert line[marks.index("^")] == "!"
    assert render([finding(Label(Span(source, 0, 9999)))], "text").count("-") < 170


def test_colour_is_only_paint() -> None:
    import re

    found = [chain(Source("a.yaml", RECIPE))]
    painted = render(found, "text", color=True)
    assert "\x1b[1;31merror[SF012]" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == render(found, "text")


def test_json_is_a_list_of_objects() -> None:
    source = Source("a.yaml", RECIPE)
    first, second = json.loads(render([chain(source), finding(fix=Put("a.b", 1))], "json"))
    assert {key: first[key] for key in ("code", "file", "line", "column", "end_line")} == {
        "code": "SF012",
        "file": "a.yaml",
        "line": 10,
        "column": 21,
        "end_line": 10,
    }
    assert first["end_column"] == 22
    assert first["fix"] == {
        "action": "drop",
        "path": "verify.num_draft_tokens",
        "safe": True,
        "otherwise": [],
    }
    assert len(first["labels"]) == 3
    assert (second["file"], second["line"]) == (None, None)
    assert second["fix"] == {
        "action": "put",
        "path": "a.b",
        "value": 1,
        "safe": True,
        "otherwise": [],
    }
    assert json.loads(render([], "json")) == []


def test_github_escapes_what_would_end_the_command() -> None:
    source = Source("a,b:c.yaml", RECIPE)
    label = Label(span(source, "8"), primary=True)
    found = Diagnostic("SF012", "width", Severity.NOTE, "100%\r\nsure: a, b", (label,))
    assert render([found], "github") == (
        "::notice file=a%2Cb%3Ac.yaml,line=10,endLine=10,col=21,endColumn=22,title=SF012 width"
        "::100%25%0D%0Asure: a, b"
    )
    assert render([finding()], "github") == "::error title=SF012 chain-width-mismatch::no"


def runner_reads(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner takes it apart: at `::`, a blank, commas and `=`."""
    before, _, data = line.removeprefix("::").partition("::")
    command, _, listed = before.partition(" ")
    pairs = (each.split("=", 1) for each in listed.split(",") if each)
    plain = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}

    def read(text: str, escapes: int) -> str:
        for escape in [*list(plain)[:escapes], "%25"]:
            text = text.replace(escape, plain[escape])
        return text

    return command, {key: read(value, 4) for key, value in pairs}, read(data, 2)


@pytest.mark.parametrize(
    "name", ["a b.yaml", "100%.yaml", "%2C.yaml", "x=y.yaml", "a::b.yaml", "a\nb.yaml", "é/ü.yaml"]
)
@pytest.mark.parametrize(
    "message", ["a::error::b", "%0A is no line break", "one\ntwo", "`a`, b: c"]
)
def test_github_reads_back_odd_names_and_messages(name: str, message: str) -> None:
    found = Diagnostic(
        "SF012",
        "width",
        Severity.WARNING,
        message,
        (Label(span(Source(name, RECIPE), "8"), primary=True),),
        help="50%, or: less",
    )
    written = render([found, found], "github").split("\n")
    assert len(written) == 2
    command, properties, data = runner_reads(written[1])
    assert command == "warning"
    assert properties["file"] == name
    assert properties["title"] == "SF012 width"
    assert data == f"{message}\nhelp: 50%, or: less"


def test_github_marks_columns_on_one_line_only() -> None:
    source = Source("a.yaml", RECIPE)
    start = RECIPE.index("target:")
    two = Label(Span(source, start, RECIPE.index("draft:")), primary=True)
    (line,) = render([Diagnostic("SF1", "x", Severity.ERROR, "m", (two,))], "github").split("\n")
    _, properties, _ = runner_reads(line)
    assert properties == {"file": "a.yaml", "line": "2", "endLine": "4", "title": "SF1 x"}


def test_github_names_no_file_for_an_override() -> None:
    source = Source("<command line>", "draft.topk=0")
    found = Diagnostic("SF1", "x", Severity.ERROR, "m", (Label(Span(source, 11, 12)),))
    assert render([found], "github") == "::error title=SF1 x::m"


def test_summary_counts() -> None:
    warning = Diagnostic("SF050", "x", Severity.WARNING, "w")
    assert summary(1, [finding()]) == "1 recipe, 1 error"
    assert summary(3, []) == "3 recipes, no findings"
    assert summary(2, [warning, finding(), warning]) == "2 recipes, 1 error, 2 warnings"


def test_closest_offers_neighbours() -> None:
    assert closest("num_step", ["topk", "num_steps", "model"]) == ["num_steps"]
    assert closest("zzz", ["topk"]) == []
