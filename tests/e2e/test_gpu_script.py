"""`make gpu` without a GPU: every part rehearsed on a CPU, and what it says of what it saw."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks.gpu import Results
from benchmarks.gpu_device import Cuda, Trace
from benchmarks.gpu_jobs import NAMES, Found, Job, Part, run
from benchmarks.gpu_page import ONE_LAUNCH, Asked, Verdict, page, shown, summary, verdicts
from benchmarks.gpu_parts import PICO
from benchmarks.gpu_speed import LLAMA, launched, left_out
from specflow.codegen import emit
from specflow.codegen.cache import on_device
from specflow.execute import plain_of
from specflow.load import load
from specflow.lower import lower
from specflow.packs import find
from specflow.resolve import resolve
from tests.conftest import ROOT

NOWHERE = 10.0**9  # a time that no test reaches


def test_every_part_runs_without_a_gpu(tmp_path: Path) -> None:
    """So that a slip costs no time of a device; the figures mean nothing."""
    done = called("--rehearse", "--out", str(tmp_path), "--minutes", "9")
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
    assert {each["verdict"] for each in whole["shown"]} == {"not asked in a rehearsal"}
    assert not [each for each in whole["shown"] if "8B" in each["what"]]
    assert whole["said"] == f"the rehearsal found no slips (16 items ran, of {', '.join(NAMES)})"
    assert file.with_suffix(".md").read_text() in done.stdout
    assert done.stdout.startswith("# rehearsal, ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_nothing_is_begun(tmp_path: Path) -> None:
    done = called("--only", "steps", "--out", str(tmp_path / "new"))
    fact, out = done.stderr.splitlines()
    assert fact.startswith("error: no CUDA device is here")
    assert "--rehearse" in out
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_check_names_what_is_missing(tmp_path: Path) -> None:
    """All of it at once, and the way out once; what imports is not named."""
    for name in ("rich", "tokenizers"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('left out')\n")
    done = called("--check", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    versions, device, *errors = done.stdout.splitlines()
    assert f"torch {torch.__version__}" in versions
    assert device == "CUDA device: none"
    assert [each[:40] for each in errors if "left out" in each and "transf" not in each] == [
        "error: `rich` does not import: ImportErr",
        "error: `tokenizers` does not import: Imp",
    ]
    assert sum("make wheels" in each for each in errors) == 1
    assert (errors[-1], done.returncode) == ("not ready", 2)
    assert called("--check", "--rehearse").stdout.splitlines()[-1] == "ready"


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--minutes", "nan"), "argument --minutes: invalid minutes value: 'nan'"),
        (("--minutes", "0"), "argument --minutes: invalid minutes value: '0'"),
        (("--at-once", "0"), "argument --at-once: invalid processes value: '0'"),
        (("--only", "stpes"), "argument --only: invalid choice: 'stpes'"),
        (("--rehearse", "--out", "{file}"), "`{file}` takes no results: "),
    ],
)
def test_what_is_no_argument_is_one_error(
    arguments: tuple[str, ...], fact: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    done = called(*(each.format(file=file) for each in arguments))
    said, _help = done.stderr.splitlines()
    assert said.startswith("error: " + fact.format(file=file))
    assert (done.returncode, done.stdout) == (2, "")


def called(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/gpu.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)


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

    def make_guess(number: int) -> int:
        calls.append("rows")
        return number + 1

    def grow_level(number: int, *, level: int = 0) -> int:
        calls.append("level")
        return number * level

    module = ModuleType("step")
    vars(module).update(make_guess=make_guess, grow_level=grow_level, accept_chain=Compiled())
    vars(module).update(make_guess_kernel=Compiled())
    before, window, said = dict(vars(module)), Window(), []

    def step() -> None:
        number = module.make_guess(len(said))
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
    assert kept == {"make_guess": [1], "grow_level": [2, 3]}
    assert dict(vars(module)) == before
    step()
    assert calls == ["forward", "forward", "rows", "forward", "level", "level", "moved"]


@pytest.mark.parametrize("name", [LLAMA.chain, LLAMA.tree])
def test_what_a_step_launches_between_forwards_is_known_by_name(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from benchmarks.kernels import ahead, ask_step

    with ahead(90) as made:
        ask_step(made, name, find(name), 1)
    resolved = resolve(load(find(name)))
    known = launched(on_device(emit(lower(resolved), resolved).load(tmp_path)))
    assert made.asked
    assert {each.kernel.__name__ for each in made.asked.values()} <= known
    assert "attend_kernel" not in known


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
    return next(each for each in verdicts(of, Asked()) if each.what.startswith(what))


def test_nothing_is_shown_that_was_not_run() -> None:
    assert {each.verdict for each in verdicts(Found(), Asked())} == {"not reached"}


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
    assert "- steps dflash: E (a)" in list(page(wrong, 1.0, Asked()))


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


def test_a_run_of_a_part_is_judged_by_that_part() -> None:
    whole, asked = found(line("slots", "move")), Asked(("slots",))
    assert [each.verdict for each in verdicts(whole, asked)] == ["pass"]
    assert shown(whole, asked)
    assert not shown(whole, Asked())
    assert summary(whole, asked) == "all that must be shown was seen (of slots alone)"
    gone = found(line("slots", "move"), ended="exit code 1")
    assert not shown(gone, asked)
    assert summary(gone, asked).endswith("went wrong: slots (exit code 1)")


@pytest.mark.parametrize(
    ("captured", "slip"),
    [
        (line("captured", "eagle3", sync="", launches=seen()), ""),
        (line("captured", "eagle3", passed=False, error="E", where=["a"]), "captured eagle3"),
        (line("captured", "eagle3", sync="", launches=seen(singles=1)), "one graph launch a step"),
        (line("captured", "eagle3", sync="session.py:9", launches=seen()), "no host sync"),
    ],
)
def test_a_rehearsal_finds_slips_and_shows_nothing(captured: dict[str, Any], slip: str) -> None:
    asked, slow = Asked(("captured", "speed"), "cpu", rehearse=True), 0.5
    whole = found(captured, line("speed", "step", outside_share=slow))
    assert shown(whole, asked) is not bool(slip)
    assert slip in summary(whole, asked)
    assert {each.verdict for each in verdicts(whole, asked)} <= {"fail", "not asked in a rehearsal"}
    assert ("no slips" in summary(whole, asked)) is not bool(slip)


def test_no_run_is_written_over_and_a_rehearsal_is(tmp_path: Path) -> None:
    names = [Results.open(tmp_path, Asked(device="A GPU")).file.name for _ in range(2)]
    assert names[0].startswith("a-gpu-")
    assert names[1] == names[0].replace(".json", "-2.json")
    asked = Asked(device="rehearsal", rehearse=True)
    assert Results.open(tmp_path, asked) == Results.open(tmp_path, asked)


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


@pytest.mark.skipif(sys.platform != "linux", reason="a process is told of its parent by Linux")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_a_run_that_is_killed(sent: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/gpu.py", "--rehearse", "--only", "captured"]
    command += ["--out", str(tmp_path / "out")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as started:  # fmt: skip
        while not (left := list(tmp_path.glob("*/captured-0.jsonl"))):  # its parts have begun
            assert started.poll() is None
            sleep(0.1)
        begun = running(str(left[0]))
        assert begun
        started.send_signal(sent)
        _, told = started.communicate()
    assert started.returncode == (-sent if sent == signal.SIGKILL else 128 + sent)
    while running(str(left[0])):  # SIGKILL leaves the kernel to end them
        sleep(0.05)
    (file,) = (tmp_path / "out").glob("*.json")
    if sent != signal.SIGKILL:
        assert told.splitlines()[-1] == f"stopped; what was seen until then is in {file}"
        assert json.loads(file.read_text())["said"].startswith(
            "the rehearsal found slips: captured ("
        )


def running(word: str) -> list[int]:
    """Processes that are no zombies and were started with such a word."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(int(each.name))
    return found


def test_a_trace_is_counted_by_kind(tmp_path: Path) -> None:
    names = [
        ("cuda_runtime", "cudaGraphLaunch"), ("cuda_runtime", "cudaLaunchKernel"),
        ("cuda_driver", "cuLaunchKernelEx"), ("cuda_runtime", "cudaMemsetAsync"),
        ("cuda_runtime", "cudaMemcpyAsync"), ("kernel", "make_guess_kernel"),
        ("gpu_memcpy", "Memcpy DtoH"), ("cpu_op", "aten::add"),
    ]  # fmt: skip
    events = [{"ph": "X", "cat": cat, "name": name, "ts": 1, "dur": 2.5} for cat, name in names]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [*events, {"ph": "M", "name": "process_name"}]}))
    trace = Trace.read(file)
    assert (trace.graphs, trace.singles, trace.copies) == (1, 3, 1)
    assert trace.kernels == (("make_guess_kernel", 2.5),)
