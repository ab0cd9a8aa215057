"""The head of a GGUF file: what it says, and that a broken one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from specflow.facts import read
from specflow.gguf_header import read_header
from tests.gguf_files import TOKENS, made


def test_what_a_header_says(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(made())
    header = read_header(file)
    assert (header.architecture, header.context, header.tokens) == ("llama", 77, tuple(TOKENS))
    assert header.needed == len(made())
    facts = read(str(file))
    assert facts.problem is None
    assert (facts.vocab_size, facts.max_positions, facts.tokenizer_size) == (3, 77, 3)


@pytest.mark.parametrize("keep", [0, 3, 8, 30, 60, 150, -1])
def test_a_file_cut_short_is_a_problem(keep: int, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(made()[:keep])
    problem = read(str(file)).problem
    assert problem is not None
    assert problem.kind == "unreadable"


@pytest.mark.parametrize("at", range(4, 150, 3))
def test_a_flipped_byte_never_raises(at: int, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    content = bytearray(made())
    content[at] ^= 0xFF
    file.write_bytes(content)
    read(str(file))  # facts or a problem, never an exception


def test_two_files_with_other_tokens_do_not_speak_alike(tmp_path: Path) -> None:
    for name, content in (("a", made()), ("b", made().replace(b"b", b"c"))):
        (tmp_path / f"{name}.gguf").write_bytes(content)
    a, b = (read(str(tmp_path / f"{name}.gguf")) for name in "ab")
    assert a.speaks_like(read(str(tmp_path / "a.gguf")))
    assert not a.speaks_like(b)
