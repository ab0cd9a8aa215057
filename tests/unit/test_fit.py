"""SF072: what does not fit into a memory is told before anything is allocated."""

from __future__ import annotations

import re

import pytest

from specflow.diagnostics import Diagnostic, Severity, render
from specflow.fit import fits, parse_size
from specflow.load import load
from specflow.manual import manuals
from specflow.memory import footprint
from specflow.packs import find
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve


def pack(name: str, *overrides: str) -> ResolvedRecipe:
    return resolve(load(find(name), overrides))


def found(recipe: ResolvedRecipe, memory: int) -> Diagnostic:
    (finding,) = fits(recipe, memory)
    assert (finding.code, finding.name) == ("SF072", "larger-than-memory")
    return finding


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("80GB", 80 * 10**9),
        ("16384MiB", 2**34),
        ("1.5 TiB", 3 * 2**39),
        ("512kb", 512_000),
        ("100B", 100),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "80", "GiB", "-1GB", "0GB", "1e9B", "80Gib2", "9999999999TiB", "nan"]
)
def test_what_is_no_size(text: str) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize("name", ["pico/eagle3", "pico/ngram", "pico/dspark_window"])
def test_the_edge_of_what_fits(name: str) -> None:
    recipe = pack(name, "run.batch_size=3")
    total = footprint(recipe).total(3)
    assert fits(recipe, total) == []
    assert found(recipe, total - 1).severity is Severity.ERROR


def test_the_way_out_is_the_largest_batch() -> None:
    memory = 256 * 2**20
    finding = found(pack("pico/standalone", "run.batch_size=64"), memory)
    offered = re.search(r"`run\.batch_size` to (\d+)", finding.help)
    largest = int(offered[1])
    assert fits(pack("pico/standalone", f"run.batch_size={largest}"), memory) == []
    assert fits(pack("pico/standalone", f"run.batch_size={largest + 1}"), memory) != []


@pytest.mark.parametrize("name", ["pico/eagle3", "pico/dspark", "pico/nextn"])
def test_the_way_out_is_a_shorter_request(name: str) -> None:
    recipe = pack(name, "run.batch_size=2")
    taken = footprint(recipe)
    memory = taken.weights + taken.a_request * 2 // 3
    finding = found(recipe, memory)
    assert "with `run.batch_size: 1`" in finding.help
    longest = int(re.search(r"`run\.max_length` to (\d+)", finding.help)[1])
    one = "run.batch_size=1"
    assert fits(pack(name, one, f"run.max_length={longest}"), memory) == []
    assert fits(pack(name, one, f"run.max_length={longest + 1}"), memory) != []


def test_a_shorter_request_fits_a_window_too() -> None:
    """A window bounds what the draft keeps, so a longer one might; what is offered does."""
    recipe = pack("pico/dspark_window")
    taken = footprint(recipe)
    memory = taken.weights + taken.a_request // 2
    longest = int(re.search(r"to (\d+)", found(recipe, memory).help)[1])
    assert fits(pack("pico/dspark_window", f"run.max_length={longest}"), memory) == []


def test_weights_that_do_not_fit() -> None:
    finding = found(pack("pico/eagle3"), 10**6)
    assert "not even the weights" in finding.help
    assert "`run.dtype: bfloat16`" in finding.help
    narrow = found(pack("pico/eagle3", "run.dtype=bfloat16"), 10**6)
    assert "bfloat16" not in narrow.help


def test_what_is_not_known_is_a_note() -> None:
    finding = found(pack("kimi/k3_dspark"), 2**40)
    assert finding.severity is Severity.NOTE
    assert "Kimi-K3" in finding.notes[0]


def test_the_finding_points_at_what_was_written() -> None:
    shown = render([found(pack("pico/standalone", "run.batch_size=64"), 2**28)])
    assert "^^ requests at once" in shown
    assert "standalone.yaml" in shown
    assert "note: weights take 15.8 MiB in float32: target 13.3 MiB, draft 2.50 MiB" in shown
    assert "positions of a request" not in shown  # nobody wrote it: a default has no place


def test_the_example_of_the_manual() -> None:
    """The first command of SF072's manual gives the finding, the second gives none."""
    doc = next(m.doc for m in manuals() if m.code == "SF072")
    commands = re.findall(r"specflow validate (\S+) (\S+) --memory (\S+)", doc)
    given = [fits(pack(name, override), parse_size(size)) for name, override, size in commands]
    assert [len(each) for each in given] == [1, 0]
