"""`make gpu` without a GPU: every part rehearsed on a CPU, and what it says of what it saw."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep
from types import ModuleType
from typing import Any

import pytest

from benchmarks.gpu import ONE_LAUNCH, Found, Job, Part, Verdict, page, run, verdicts
from benchmarks.gpu_device import Cuda, Trace
from benchmarks.gpu_parts import PICO
from benchmarks.gpu_speed import LLAMA, left_out
from specflow.codegen import emit
from specflow.execute import plain_of
from specflow.load import load
from specflow.lower import lower
from specflow.packs import find
from specflow.resolve import resolve
from tests.conftest import ROOT

NOWHERE = 10.0**9  # a time that no test reaches


def test_every_part_runs_without_a_gpu(tmp_path: Path) -> None:
    """So that a slip costs no time of a device; the figures mean nothing."""
    command = [sys.executable, "benchmarks/gpu.py", "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--minutes", "9", "--at-once", "2"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (file,) = tmp_path.glob("rehearsal-*.json")
    whole = json.loads(file.read_text())
    assert {part: {line["passed"] for line in lines} for part, lines in whole["parts"].items()} == {
        part: {True} for part in ("slots", "pairs", "attention", "steps", "captured", "speed")
    }
    measured = {line["item"]: line for line in whole["parts"]["speed"]}
    assert measured["step"]["launches"]["graphs"] == measured["step"]["launches"]["steps"]
    assert {n: round(each["session_accept_length"], 9) for n, each in
            measured["accept"]["by_accept_length"].items()} == {
        "1": 1.0, "2": 2.0, "3": 3.0, "4": 4.0,
    }  # fmt: skip
    said = {each["what"].partition(":")[0]: each["verdict"] for each in whole["shown"]}
    assert said["one graph launch a step, none beside it"] == "not reached"  # one recipe of ten
    assert file.with_suffix(".md").read_text() in done.stdout


def test_what_a_gpu_is_asked_resolves_without_one(tmp_path: Path) -> None:
    asked = [(path, list(Cuda.overrides)) for path in PICO]
    asked += [(find(n), [*Cuda.overrides, *LLAMA.overrides]) for n in (LLAMA.chain, LLAMA.tree)]
    for path, overrides in asked:
        recipe = load(path, [*overrides, "run.batch_size=3", "sampling.ignore_eos=true"])
        resolved = resolve(recipe)
        assert (resolved.run.device, resolved.run.graph) == ("cuda", "on")
        assert emit(lower(resolved), resolved).load(tmp_path).WIDTHS
        resolve(plain_of(recipe))


def test_what_lies_between_two_forwards_is_left_out() -> None:
    """A step's own functions are put back, its forwards run, and what was said is said again."""
    calls: list[str] = []

    class Window:
        def move_accepted(self) -> None:
            calls.append("moved")

    class Compiled:
        """What kernels call is no function of Python, and has to stay as it is."""

    def rows_1(number: int) -> int:
        calls.append("rows")
        return number + 1

    def grow_level(number: int, *, level: int = 0) -> int:
        calls.append("level")
        return number * level

    module = ModuleType("step")
    vars(module).update(rows_1=rows_1, grow_level=grow_level, accept_chain=Compiled())
    before, window, said = dict(vars(module)), Window(), []

    def step() -> None:
        number = module.rows_1(len(said))
        calls.append("forward")
        said.append((number, module.grow_level(number, level=2), module.grow_level(3, level=1)))
        window.move_accepted()

    with left_out(module, window, step) as kept:
        assert module.accept_chain is before["accept_chain"]
        calls.clear()
        step()
        step()
    assert calls == ["forward", "forward"]
    assert said == [(1, 2, 3)] * 3
    assert kept == {"rows_1": [1], "grow_level": [2, 3]}
    assert dict(vars(module)) == before
    step()
    assert calls == ["forward", "forward", "rows", "forward", "level", "level", "moved"]


# --- verdicts ------------------------------------------------------------------------------------


def line(part: str, item: str, **more: Any) -> dict[str, Any]:
    return {"part": part, "item": item, "passed": True} | more


def seen(graphs: int = 4, singles: int = 0, replays: int = 4) -> dict[str, Any]:
    return {"steps": 4, "graphs": graphs, "singles": singles, "replays": replays}


def found(*lines: dict[str, Any], ended: str = "done") -> Found:
    made = Found()
    for each in lines:
        made.items.setdefault(each["part"], {})[each["item"]] = each
        made.expected.setdefault(each["part"], set()).add(each["item"])
        made.ended[each["part"]] = [ended]
    return made


def said(what: str, of: Found) -> Verdict:
    return next(each for each in verdicts(of) if each.what.startswith(what))


def test_nothing_is_shown_that_was_not_run() -> None:
    assert {each.verdict for each in verdicts(Found())} == {"not reached"}


def test_a_part_that_was_killed_shows_nothing() -> None:
    whole = found(line("pairs", "pick"))
    assert said("kernels", whole).verdict == "pass"
    assert said("kernels", found(line("pairs", "pick"), ended="out of time")).verdict == (
        "not reached"
    )
    whole.expected["pairs"].add("ranks")
    assert said("kernels", whole) == Verdict("kernels = their references", "not reached", "1 of 2")


def test_what_fails_is_named() -> None:
    wrong = found(line("steps", "dflash", passed=False, error="E", where=["a"]), line("steps", "x"))
    assert said("steps", wrong).said == "1 of 2; not dflash"
    assert "- steps dflash: E (a)" in list(page(wrong, 1.0))


@pytest.mark.parametrize(
    ("launches", "verdict"),
    [
        (seen(), "pass"),
        (seen(graphs=8), "fail"),
        (seen(singles=1), "fail"),
        (seen(replays=3), "fail"),
        (seen(graphs=0), "not reached"),  # the profiler saw nothing of the device
        ({"error": "the profiler failed"}, "not reached"),
    ],
)
def test_one_launch_is_a_graph_and_nothing_beside_it(
    launches: dict[str, Any], verdict: str
) -> None:
    lines = [line("captured", name, sync="", launches=seen()) for name in ONE_LAUNCH[1:]]
    lines.append(line("captured", ONE_LAUNCH[0], sync="", launches=launches))
    assert said("one graph", found(*lines)).verdict == verdict
    assert said("no host sync", found(*lines)).verdict == "pass"


def test_who_waited_is_named() -> None:
    waited = found(line("captured", "eagle3", sync="called a synchronizing op at session.py:9"))
    assert said("no host sync", waited).verdict == "fail"
    assert said("no host sync", waited).said.endswith("session.py:9")


@pytest.mark.parametrize(("share", "verdict"), [(0.049, "pass"), (0.051, "fail"), (-0.2, "fail")])
def test_time_outside_the_forwards_has_a_bound(share: float, verdict: str) -> None:
    assert said("at most 5%", found(line("speed", "step", outside_share=share))).verdict == verdict


# --- processes -----------------------------------------------------------------------------------

LEAVES = "import sys, pathlib; file = pathlib.Path({file!r}); had = file.exists()\n"
ITEM = '{"part": "pairs", "item": "first", "passed": true}'


def job(tmp_path: Path, script: str, seconds: int = 600) -> Job:
    file = tmp_path / "pairs-0.jsonl"
    text = LEAVES.format(file=str(file)) + script
    return Job(Part("pairs", 1, seconds), 0, [sys.executable, "-c", text], file)


def test_a_process_without_its_device_is_started_once_more(tmp_path: Path) -> None:
    """It leaves a line, and then asks for another process, which has nothing left to do."""
    made = job(tmp_path, f"file.open('a').write({ITEM!r} + chr(10)); sys.exit(0 if had else 75)")
    run([made], NOWHERE, 1)
    assert (made.ended, made.restarts, len(made.lines())) == ("done", 1, 2)


def test_a_process_that_never_ends_is_killed_and_leaves_what_it_has(tmp_path: Path) -> None:
    script = f"file.write_text({ITEM!r} + chr(10) + '{{\"cut'); import time; time.sleep(600)"
    made = job(tmp_path, script, seconds=0)
    made.start()
    while not made.lines():
        sleep(0.05)
    made.look(NOWHERE)
    assert made.ended == "out of time"
    assert made.running is not None
    assert made.running.poll() == -signal.SIGKILL
    assert [each["item"] for each in made.lines()] == ["first"]
    assert said("kernels", Found.gather([made])).verdict == "not reached"


def test_a_process_that_fails_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    jobs = [job(tmp_path, "sys.exit(3)"), job(tmp_path / "other", f"file.write_text({ITEM!r})")]
    run(jobs, NOWHERE, 1)
    assert [each.ended for each in jobs] == ["exit code 3", "done"]


def test_a_trace_is_counted_by_kind(tmp_path: Path) -> None:
    names = [
        ("cuda_runtime", "cudaGraphLaunch"), ("cuda_runtime", "cudaLaunchKernel"),
        ("cuda_driver", "cuLaunchKernelEx"), ("cuda_runtime", "cudaMemsetAsync"),
        ("cuda_runtime", "cudaMemcpyAsync"), ("kernel", "rows_1_kernel"),
        ("gpu_memcpy", "Memcpy DtoH"), ("cpu_op", "aten::add"),
    ]  # fmt: skip
    events = [{"ph": "X", "cat": cat, "name": name, "ts": 1, "dur": 2.5} for cat, name in names]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [*events, {"ph": "M", "name": "process_name"}]}))
    trace = Trace.read(file)
    assert (trace.graphs, trace.singles, trace.copies) == (1, 3, 1)
    assert trace.kernels == (("rows_1_kernel", 2.5),)
