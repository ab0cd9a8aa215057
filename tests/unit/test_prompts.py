"""A prompts file, line by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specflow.prompts import read, single


def lines(tmp_path: Path, *said: object) -> Path:
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(s if isinstance(s, str) else json.dumps(s) for s in said))
    return file


def test_ids_default_to_line_numbers(tmp_path: Path) -> None:
    found = read(lines(tmp_path, {"prompt": "a"}, "", {"prompt": "b"}))
    assert [p.id for p in found.items] == ["1", "3"]
    assert not found.findings


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", "SF101"),
        ("[1]", "SF101"),
        ("[" * 100_000, "SF101"),
        ({}, "SF102"),
        ({"prompt": 1}, "SF102"),
        ({"prompt": "a", "messages": []}, "SF102"),
        ({"messages": []}, "SF102"),
        ({"messages": [{"role": "user"}]}, "SF102"),
        ({"promt": "a"}, "SF102"),
        ({"prompt": "a", "max_new_tokens": 0}, "SF102"),
        ({"prompt": "a", "max_new_tokens": True}, "SF102"),
        ({"prompt": "a", "id": [1]}, "SF102"),
        ({"prompt": ""}, "SF104"),
        ({"prompt": "\n"}, "SF104"),
        ({"id": "good", "prompt": "twice"}, "SF105"),
    ],
)
def test_a_line_at_fault_is_told_and_the_others_stay(
    tmp_path: Path, line: object, code: str
) -> None:
    found = read(
        lines(tmp_path, {"id": "good", "prompt": "x"}, line, {"id": "last", "prompt": "y"})
    )
    assert [f.code for f in found.findings] == [code]
    assert "line 2" in found.findings[0].message
    assert [p.id for p in found.items] == ["good", "last"]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_files_without_prompts(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(content)
    assert [f.code for f in read(file).findings] == ["SF100"]
    assert [f.code for f in read(tmp_path / "none").findings] == ["SF100"]
    assert [f.code for f in read(tmp_path).findings] == ["SF100"]


def test_a_line_has_settings_of_its_own(tmp_path: Path) -> None:
    found = read(lines(tmp_path, {"prompt": "a", "temperature": 1, "top_p": 0.5, "seed": 3}))
    assert dict(found.items[0].settings) == {"temperature": 1, "top_p": 0.5, "seed": 3}


@pytest.mark.parametrize(
    "odd",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 2},
        {"min_p": "a"},
        {"top_k": 1.5},
        {"seed": True},
    ],
)
def test_settings_out_of_range(tmp_path: Path, odd: dict[str, object]) -> None:
    found = read(lines(tmp_path, {"prompt": "a"} | odd))
    assert [f.code for f in found.findings] == ["SF102"]


def test_limit_counts_prompts(tmp_path: Path) -> None:
    assert len(read(lines(tmp_path, {"prompt": "a"}, {"prompt": "b"}), limit=1).items) == 1


def test_a_prompt_on_the_command_line() -> None:
    assert single("hello").items[0].text == "hello"
    assert single(" ").findings[0].code == "SF104"
