"""A device that is not there, has not what is needed, or not the room: told, with a way out."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.exc import CppCompileError

from specflow import execute
from specflow.capture import CompiledStep, EagerStep, GraphStep, capture
from specflow.cli import main
from specflow.errors import RuntimeFault
from specflow.faults import device_faults, out_of_memory
from specflow.models.loading import put
from specflow.pools import KVPool, LayerShape
from tests.differential.graph_sessions import session
from tests.fake_cuda import fake_cuda

ASKED = ["run", "pico/plain", "--prompt", "x = 1", "run.device=cuda"]


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever loads weights is stopped."""

    def loaded(*_: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(execute, "pretrained", loaded)


@pytest.mark.usefixtures("nothing_loads")
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ASKED) == 1
    said = capsys.readouterr().err
    assert "`run.device: cuda` is asked for and this machine has no CUDA device" in said
    assert "help: write `run.device: cpu`" in said


@pytest.mark.usefixtures("nothing_loads")
def test_a_backend_that_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main([*ASKED, "run.attention=flashinfer", "run.dtype=bfloat16"]) == 1
    said = capsys.readouterr().err
    assert "warning[SF078]" in said
    assert "error[SF091]: `run.attention: flashinfer` needs the package flashinfer-python" in said
    assert "install specflow[gpu], or write `run.attention: triton`" in said


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 80 GiB with one left."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 3 * 2**29)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2**30)


def test_a_pool_that_does_not_fit_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch keeps of what was freed counts as free."""
    full(monkeypatch)
    shapes = {0: LayerShape(8, 128, 128)}
    with pytest.raises(RuntimeFault) as caught:
        KVPool(64, 32768, shapes, device="cuda", dtype=torch.bfloat16)
    assert str(caught.value) == (
        "keys and values of 64 rows of 32768 positions take 8.0 GiB where 1.5 GiB of memory are "
        "free; lower `run.batch_size` or `run.max_length`"
    )


class Heavy:
    """A model that no card holds."""

    def to(self, _device: str) -> None:
        """As torch says it."""
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0")


def test_a_model_that_does_not_fit_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch)
    with pytest.raises(RuntimeFault) as caught:
        put(Heavy(), Path("llama"), "cuda")
    assert str(caught.value) == (
        "`llama` does not fit on `cuda`: 16.00 GiB were asked for where 1.00 GiB of 80.00 GiB are "
        "free; write `run.dtype: bfloat16`, or name a smaller `target.model` or `draft.model`"
    )


def test_memory_that_runs_out_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    full(monkeypatch)
    with pytest.raises(RuntimeFault) as caught, device_faults("in the middle of the run"):
        Heavy().to("cuda")
    assert str(caught.value) == (
        "out of memory in the middle of the run: 16.00 GiB were asked for where 1.00 GiB of 80.00 "
        "GiB are free; lower `run.batch_size` or `run.max_length`"
    )


def test_a_card_that_says_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "mem_get_info", dead)
    with pytest.raises(RuntimeFault, match=r"16\.00 GiB were asked for; lower"), device_faults(""):
        Heavy().to("cuda")


def test_memory_is_told_apart_from_what_hides_it() -> None:
    with pytest.raises(RuntimeError) as caught:  # noqa: PT012 - one error behind another
        try:
            Heavy().to("cuda")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error")
    assert out_of_memory(caught.value)
    assert not out_of_memory(RuntimeError("CUDA error: no kernel image is available"))


def test_a_comparison_that_finds_no_room_costs_no_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Plain decoding has a session of its own beside the first: what was measured is kept."""
    make, made = execute.make_session, 0

    def second(*args: Any) -> Any:
        nonlocal made
        made += 1
        if made > 1:
            raise RuntimeFault("keys and values take 8.0 GiB where 1.5 GiB of memory are free")
        return make(*args)

    monkeypatch.setattr(execute, "make_session", second)
    words = ["run", "pico/ngram", "--prompt", "x = 1", "--out", str(tmp_path), "--overwrite"]
    assert main([*words, "sampling.max_new_tokens=4"]) == 1
    assert "8.0 GiB where 1.5 GiB of memory are free" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["totals"]["completion_tokens"] == 4
    assert len((tmp_path / "completions.jsonl").read_text().splitlines()) == 1


def test_graph_and_compile_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """`off` calls, `inductor` compiles, `on` captures, and both capture what is compiled."""
    old: Any = session("plain", 2).captured
    parts = (old.module, old.target, old.pool, old.drafter)
    fake_cuda(monkeypatch)
    found = {
        (graph, compiled): capture(*parts, graph=graph, compiled=compiled)
        for graph in (False, True)
        for compiled in (False, True)
    }
    kinds = {each: type(step) for each, step in found.items()}
    assert kinds == {
        (False, False): EagerStep,
        (False, True): CompiledStep,
        (True, False): GraphStep,
        (True, True): GraphStep,
    }
    captured: Any = found[True, True]
    assert captured.inductor
    assert captured.spelled
    assert not found[True, False].inductor  # type: ignore[attr-defined]


# -- what compiles ---------------------------------------------------------------------------------


def compiling(**environment: str) -> str:
    """What a run says that compiles, in an environment of its own."""
    asked = ["run", "pico/plain", "--prompt", "x = 1", "run.compile=inductor"]
    done = subprocess.run(
        [sys.executable, "-m", "specflow", *asked],
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in {1, 2}, done.stderr
    return done.stderr


def test_a_compiler_that_does_not_work(tmp_path: Path) -> None:
    said = compiling(CXX="/bin/false", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert "error[SF091]: inductor found no C++ compiler that works" in said
    assert "help: install g++, or name another one with `CXX`, or remove `run.compile`" in said


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = compiling(TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert "error[SF091]: the system refused `" in said
    assert "help: set `TORCHINDUCTOR_CACHE_DIR` to a folder that can be written" in said


LACKS = "a.cpp:1:10: fatal error: Python.h: No such file or directory; stopped"
FAILED: dict[str, tuple[Exception, str]] = {
    "no header": (
        CppCompileError(["g++", "a.cpp"], f"In file included\n{LACKS}"),
        "a step: a.cpp:1:10: fatal error: Python.h: No such file or directory, stopped; see that",
    ),
    "full disk": (
        OSError(errno.ENOSPC, "No space left on device", "/cache/x"),
        "cannot use its cache `/cache/x`: No space left on device; set `TORCHINDUCTOR_CACHE_DIR`",
    ),
    "half written": (
        ImportError("/cache/s6/c.main.so: file too short"),
        "`/cache/s6/c.main.so` of inductor's cache is broken (file too short), as a run leaves it",
    ),
    "anything": (ValueError("no such layout; sorry"), "no such layout, sorry; write `run.compile"),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_compile_that_fails_offers_a_way_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the backend raises: the tracer wraps it, and a run says it in one line."""
    error, said = FAILED[name]

    def fails(_graph: object, _inputs: object) -> None:
        raise error

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fails))
    made = session("plain", 1, CompiledStep)
    with pytest.raises(RuntimeFault) as caught:
        made.captured.prepare(40)
    assert said in str(caught.value)
    assert str(caught.value).count("; ") == 1


def test_memory_that_ends_while_a_step_compiles_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_graph: object, _inputs: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")

    full(monkeypatch)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fails))
    made = session("plain", 1, CompiledStep)
    out = pytest.raises(RuntimeFault, match=r"out of memory here: 2\.50 GiB were asked for")
    with out, device_faults("here"):
        made.captured.prepare(40)
