"""What weights give away: a head as it was drawn, zeros, numbers that are none."""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path
from typing import Any

import pytest

from specflow.cli import main
from specflow.deep import BUDGET, PLACES, STRETCH, look, numbers, oddity, sample, unseen
from specflow.facts import builtins, read
from specflow.facts_file import facts_of, reader
from specflow.headers import Tensor
from specflow.load import load, loads
from specflow.packs import find, names
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from tests.checkpoint_files import CONFIG, EAGLE3, HIDDEN, LM, ONE, VOCAB, write, write_tokenizer

DTYPES = {"F32": 4, "BF16": 2, "F16": 2}


def normal(count: int, spread: float, seed: int = 0) -> list[float]:
    made = random.Random(seed)
    return [made.gauss(0, spread) for _ in range(count)]


def stored(values: list[float], dtype: str) -> bytes:
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    wide = array("f", values).tobytes()
    return (
        wide
        if dtype == "F32"
        else bytes(b for i in range(0, len(wide), 4) for b in wide[i + 2 : i + 4])
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [4096, 65_536])
@pytest.mark.parametrize("seed", range(5))
def test_a_matrix_as_it_is_drawn(dtype: str, count: int, seed: int) -> None:
    raw = stored(normal(count, 0.02, seed), dtype)
    assert "normal law" in oddity(raw, dtype, 0.02)
    assert oddity(raw, dtype) == ""  # nobody says that it is to look trained
    assert oddity(raw, dtype, 0.04) == ""
    made = random.Random(seed)
    flat = stored([made.uniform(-0.05, 0.05) for _ in range(count)], dtype)
    if count > 4096:  # of fewer numbers the tails are within 0.03 of 1.8 by chance only
        assert "uniform law" in oddity(flat, dtype, 0.02)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heavier_tails_or_another_spread_are_training(dtype: str) -> None:
    made = random.Random(1)
    heavy = [made.gauss(0, made.choice((0.01, 0.0264))) for _ in range(65_536)]  # spread 0.02
    assert oddity(stored(heavy, dtype), dtype, 0.02) == ""
    assert oddity(stored(normal(65_536, 0.023), dtype), dtype, 0.02) == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_and_what_is_no_number(dtype: str) -> None:
    assert oddity(bytes(4096), dtype) == "all zeros"
    assert oddity(bytes(4096), dtype, matrix=False) == ""
    for wrong in (float("nan"), float("inf")):
        raw = stored([*normal(100, 1.0), wrong], dtype)
        assert oddity(raw, dtype) == "numbers that are not finite"


@pytest.mark.parametrize("dtype", DTYPES)
def test_floats_out_of_their_bytes(dtype: str) -> None:
    exact = [0.0, 1.0, -2.5, 0.15625]
    assert list(numbers(stored(exact, dtype), dtype)) == exact


def test_a_sample_is_spread_over_a_large_tensor(tmp_path: Path) -> None:
    size = 40 * STRETCH
    (tmp_path / "w").write_bytes(bytes(size // 2) + b"\1" * (size // 2))
    raw = sample(Tensor(tmp_path / "w", "BF16", (size // 2,), 0, size))
    assert len(raw) == STRETCH * PLACES
    assert raw.count(1) == raw.count(0)
    assert 100 * len(raw) <= BUDGET  # a hundred matrices are looked through


def folder(path: Path, head: bytes, **config: Any) -> Path:
    """A draft whose head holds these bytes, in the types of its own header."""
    words = 512
    shapes = {n: s for n, s in EAGLE3.items() if n not in ("d2t", "t2d")}
    made = write(path, shapes | {"lm_head.weight": (words, HIDDEN)}, **ONE | config)
    file = made / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    body = bytearray(b"\x3f" * (len(raw) - 8 - length))  # no tensor is zeros
    begin, end = header["lm_head.weight"]["data_offsets"]
    assert len(head) == end - begin
    body[begin:end] = head
    file.write_bytes(raw[: 8 + length] + bytes(body))
    return made


def target(path: Path) -> Path:
    shapes = LM | dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (512, HIDDEN))
    return write_tokenizer(write(path, shapes, **CONFIG | {"vocab_size": 512}))


def judged(tmp_path: Path, head: bytes, **config: Any) -> ResolvedRecipe:
    draft = folder(tmp_path / "draft", head, **config)
    text = f"target: {{model: '{target(tmp_path / 'target')}'}}\n"
    text += f"draft: {{algorithm: EAGLE3, model: '{draft}'}}\n"
    (tmp_path / "r.yaml").write_text(text)
    return resolve(loads(text), look=look)


def test_a_draft_whose_head_was_never_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = judged(tmp_path, stored(normal(512 * HIDDEN, 0.02), "F32")).findings
    assert one.code == "SF029"
    assert "`lm_head.weight`" in one.message
    recipe = str(tmp_path / "r.yaml")
    assert main(["validate", recipe, "--strict"]) == 0  # headers alone do not tell
    assert main(["validate", recipe, "--deep"]) == 0
    assert "warning (SF029)" in capsys.readouterr().out
    assert main(["validate", recipe, "--deep", "--strict"]) == 1
    allowed = (tmp_path / "r.yaml").read_text() + "allow: {SF029: not yet trained}\n"
    (tmp_path / "r.yaml").write_text(allowed)
    assert main(["validate", recipe, "--deep", "--strict"]) == 0


def test_the_spread_that_a_config_says(tmp_path: Path) -> None:
    head = stored(normal(512 * HIDDEN, 0.006), "F32")
    assert judged(tmp_path, head).findings == ()
    (one,) = judged(tmp_path, head, initializer_range=0.006).findings
    assert "spread 0.0060" in one.message


def test_a_head_of_zeros(tmp_path: Path) -> None:
    (one,) = judged(tmp_path, bytes(512 * HIDDEN * 4)).findings
    assert one.message.endswith("is all zeros")


@pytest.mark.parametrize("name", [n for n in names() if n.startswith("pico/")])
def test_the_drafts_that_ship_were_trained(name: str) -> None:
    assert resolve(load(find(name)), look=look).findings == ()


def test_there_are_drafts_that_ship() -> None:
    assert len(builtins()) > 10
    assert VOCAB < 512  # the head here is of a size that its law can be told by


def test_a_facts_file_has_no_weights() -> None:
    assert main(["validate", "pico/eagle3", "--deep", "--facts", "f.yaml"]) == 2


def test_a_folder_of_headers_alone_is_not_looked_through() -> None:
    """What is made of a header has holes for weights, and no zeros that somebody saved."""
    recipe = load(find("pico/eagle3"))
    told = {n: facts_of(read(n)) for n in ("builtin:pico-llama", "builtin:pico-llama-eagle3")}
    resolved = resolve(recipe, reader({n: f for n, f in told.items() if f}), look)
    assert resolved.findings == ()
    assert unseen(resolved.facts) == "only its headers were read"
    assert unseen(resolve(recipe).facts) == ""
