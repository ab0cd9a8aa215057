"""CUDA graphs of steps on a CPU: nothing is left behind, nobody waits, nobody writes elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.capture import EagerStep, GraphStep, Key, Reads
from specflow.errors import RuntimeFault
from specflow.models.lookup import Lookup
from specflow.session import Session
from tests.differential.graph_sessions import (
    KINDS,
    Called,
    asked,
    kept,
    owned,
    pools,
    room,
    session,
    step_of,
)
from tests.fake_cuda import FakeCuda, WaitError, fake_cuda
from tests.toys import tokens

__all__ = ["room"]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, room: None) -> FakeCuda:  # noqa: ARG001 - a fixture
    """A device, and pools with room for late steps."""
    return fake_cuda(monkeypatch)


def graphs(cuda: FakeCuda, name: str, batch: int, *overrides: str) -> Session:
    """A session whose step is captured, lazily."""
    return owned(cuda, session(name, batch, GraphStep, *overrides))


@pytest.mark.parametrize("name", KINDS)
def test_a_graph_says_what_the_step_says(name: str, cuda: FakeCuda) -> None:
    """Through buckets that are not full, late memory, rows that end, move and are taken again."""
    eager = session(name, 3)
    wanted = tokens(eager, asked(eager, 7, 11))
    made = graphs(cuda, name, 3)
    with cuda:
        assert tokens(made, asked(made, 7, 11)) == wanted
    step = step_of(made)
    reads = Reads.NEXT if name in ("ngram", "eagle3_adaptive") else Reads.LATE
    assert step.reads is reads
    assert cuda.calls.count("capture") == len(step._bound)
    assert {key.rows for key in step._bound} <= {1, 2, 3}
    assert not made.rows
    assert made.pending is None


@pytest.mark.parametrize("name", KINDS)
def test_a_capture_in_mid_run_leaves_no_mark(name: str, cuda: FakeCuda) -> None:
    """State, keys and values, of live rows too: bit for bit what they are where none is made."""
    captured = graphs(cuda, name, 3)
    called = owned(cuda, session(name, 3, Called))
    for made in (captured, called):
        for request in asked(made, 5, 9):
            made.submit(request)
    steps = late = 0
    with cuda:
        while captured.rows or captured.waiting:
            before = len(step_of(captured)._bound)
            captured.step()
            called.step()
            steps += 1
            late += steps > 1 and len(step_of(captured)._bound) > before
            with cuda.apart():
                ours, theirs = kept(captured), kept(called)
                assert all(torch.equal(ours[each], theirs[each]) for each in theirs), steps
    assert not called.rows
    assert late > 0  # something was captured with other rows alive


def of_the_target(made: Session) -> set[str]:
    """The blocks of its pool, by name."""
    return {f"pool.{i}" for i, _ in enumerate(made.pool.blocks())}


@pytest.mark.parametrize("name", KINDS)
def test_rows_that_nobody_has_write_where_nobody_reads(name: str, cuda: FakeCuda) -> None:
    """A batch of 3 in a bucket of 4, of 5 slots: the fifth, and what was committed, stay as is."""
    made = owned(cuda, session(name, 5, Called))
    for request in asked(made, 3, 40):
        made.submit(request)
    with cuda:
        for _ in range(3):
            made.step()
        step = step_of(made)
        if made.pending is not None:
            made._read()
        planned = made.planner is not None
        lengths = step.state.seq_lens.tolist()
        for pool in pools(made):
            for block in pool.blocks():
                block[:, 4:] = 3.0
        before = {each: tensor.clone() for each, tensor in kept(made).items()}
        for variant, width in step.widths.items():
            budget = 3 * width if planned else 0
            with cuda.apart():
                step.launch(3, variant, 400, budget)
            assert step.bucket(3, budget) == (3 if planned else 4)
            assert planned or 1 < step.state.seq_lens[3] <= 1 + width
            as_they_were(made, before, lengths, width)
            for each, tensor in kept(made).items():
                tensor.copy_(before[each])


def as_they_were(made: Session, before: dict[str, Tensor], lengths: list[int], width: int) -> None:
    """The fifth slot of everything, and what was committed of three rows."""
    for each, after in kept(made).items():
        if each.startswith("state."):
            assert torch.equal(after[4:], before[each][4:]), each
            continue
        assert torch.equal(after[:, 4:], before[each][:, 4:]), each
        if after.shape[3] < made.pool.length:
            continue  # a ring: its oldest position makes room
        # A draft may be behind, and writes its last ones when it catches up.
        behind = 0 if each in of_the_target(made) else width
        for row, length in enumerate(lengths[:3]):
            whole = (slice(None), row, slice(None), slice(0, length - behind))
            assert torch.equal(after[whole], before[each][whole]), (each, row)


@pytest.mark.parametrize("name", KINDS)
def test_nobody_waits_between_two_replays(name: str, cuda: FakeCuda) -> None:
    """Rows end and move while it is watched; new ones come, which waits for their first token."""
    made = graphs(cuda, name, 4)
    with cuda:
        for request in asked(made, 9, 6):
            made.submit(request)
        admit = made._admit

        def admitted() -> None:
            with cuda.apart():
                admit()

        made._admit = admitted  # type: ignore[method-assign]
        made.step()
        before = len(cuda.calls)
        with cuda.watch():
            done = [each for _ in range(200) if made.rows for each in made.step()]
    assert len(done) >= 8
    seen = Counter(cuda.calls[before:])
    planned, looks_up = made.planner is not None, name == "ngram"
    # Each step: one replay, its results fetched; what a host phase fills is sent.
    sent = {"ngram": 2, "dflash_planned": 1}.get(name, 0)
    fetched = 2 + planned + (name == "dspark_planned")
    assert seen["fetch"] == fetched * seen["replay"]
    assert seen["send"] == sent * seen["replay"]
    # Between replays are views, moves of rows, and the beginnings of rows that nobody has.
    known = {"__getitem__", "__setitem__", "copy_", "fill_", "clone", "unflatten", "zero_"}
    known |= {"shape", "dtype", "__get__", "size", "__len__"}
    assert set(cuda.asked) <= known, cuda.asked
    assert looks_up or cuda.asked["copy_"] >= fetched


def test_the_next_batch_writes_where_the_step_nobody_read_wrote(cuda: FakeCuda) -> None:
    """A batch ends with a step under way; the ring goes on where it was, and nothing is on its way.

    Admissions are apart: that they wait for the device is their own affair.
    """
    eager = session("dflash_planned", 3)
    made = graphs(cuda, "dflash_planned", 3)
    wanted = [tokens(eager, asked(eager, 3, 6)) for _ in range(2)]
    with cuda:
        assert [tokens(made, asked(made, 3, 6)) for _ in range(2)] == wanted
        assert step_of(made).reads is Reads.LATE
        assert not cuda._leaving
        assert not cuda._landing


WAITING: dict[str, Any] = {
    "item": lambda t: t[0].item(),
    "list": lambda t: t.tolist(),
    "bool": lambda t: bool(t[0] > 0),
    "int": lambda t: int(t[0]),
    "numpy": lambda t: t.numpy(),
    "host": lambda t: t.cpu(),
    "nonzero": lambda t: t.nonzero(),
    "mask": lambda t: t[t > 0],
    "from numbers": lambda t: t.new_tensor([1, 2]),
    "from the host": lambda t: t.copy_(torch.zeros(3)),
    "to the host": lambda t: torch.zeros(3).copy_(t),
    "a part": lambda t: t.__setitem__(0, torch.zeros(())),
    "the whole device": lambda _: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_seen(name: str, cuda: FakeCuda) -> None:
    tensor = torch.zeros(3)
    cuda.own([tensor])
    cuda.pinned((3,), dtype=torch.float32)
    with cuda, cuda.watch(), pytest.raises(WaitError):
        WAITING[name](tensor)


def test_pinned_memory_is_late(cuda: FakeCuda) -> None:
    device, host = torch.ones(3), cuda.pinned((3,), dtype=torch.float32)
    cuda.own([device])
    done = torch.cuda.Event()
    with cuda, cuda.watch():
        host.copy_(device, non_blocking=True)
        done.record()
        assert host.tolist() == [-77.0] * 3
        device.fill_(5)
        done.synchronize()
        assert host.tolist() == [1.0] * 3
        device.copy_(host, non_blocking=True)
        with pytest.raises(AssertionError, match="written while"):
            host.copy_(torch.zeros(3))


# -- the order of things ---------------------------------------------------------------------------


def spied(cuda: FakeCuda, made: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the host's own work down between the calls."""
    decode = made.decode

    def decoded(ids: list[int]) -> str:
        cuda.calls.append("decode")
        return decode(ids)

    made.decode = decoded
    for kind in ("insert", "propose_tree"):
        own = getattr(Lookup, kind)

        def noted(self: Lookup, *args: Any, kind: str = kind, own: Any = own) -> Any:
            cuda.calls.append(kind)
            return own(self, *args)

        monkeypatch.setattr(Lookup, kind, noted)


def test_a_look_up_is_the_host_s_only_work_before_a_launch(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of what ended are made behind the launch, while the device is at the next step."""
    made = graphs(cuda, "ngram", 2)
    spied(cuda, made, monkeypatch)
    with cuda:
        for request in asked(made, 4, 6):
            made.submit(request)
        made.step()
        texts = 0
        while made.rows:
            begun = len(cuda.calls)
            ended = made.step()
            calls = [c for c in cuda.calls[begun:] if c not in ("wait", "capture")]
            assert calls[:2] == ["synchronize", "synchronize"]
            assert calls.count("insert") == 1
            if "replay" in calls:
                at = calls.index("replay")
                between = [c for c in calls[:at] if c != "synchronize"]
                assert between == ["insert", "propose_tree", "send", "send"]
                assert set(calls[at:]) <= {"replay", "fetch", "record", "decode"}
                texts += "decode" in calls[at:]
            assert calls.count("decode") == len(ended)
    assert texts > 0


def test_a_late_step_is_read_behind_the_next_launch(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = graphs(cuda, "eagle3", 2)
    spied(cuda, made, monkeypatch)
    with cuda:
        for request in asked(made, 2, 12):
            made.submit(request)
        made.step()
        assert "synchronize" not in cuda.calls
        while made.rows:
            begun = len(cuda.calls)
            made.step()
            calls = [c for c in cuda.calls[begun:] if c not in ("wait", "capture")]
            first = calls.index("synchronize")
            assert calls[:first] == ["replay", "fetch", "fetch", "record"]
            assert set(calls[first:]) <= {"synchronize", "decode"}


@pytest.mark.parametrize("name", ["ngram", "ngram_chain"])
def test_the_trie_holds_what_it_holds_without_a_graph(name: str, cuda: FakeCuda) -> None:
    """When a look-up asks it, and at the end: stop strings cut what goes in."""

    def trie(made: Session) -> list[tuple[int, ...]]:
        drafter: Any = made.drafter
        found: list[tuple[int, ...]] = []

        def walk(node: Any, path: tuple[int, ...]) -> None:
            for child in node.newest_first():
                found.append((*path, child.token, child.count))
                walk(child, (*path, child.token))

        walk(drafter.trie.root, ())
        return found

    stop = "sampling.stop=['return','self']"
    eager, made = session(name, 2, None, stop), graphs(cuda, name, 2, stop)
    logs: list[list[list[int]]] = [[], []]
    for each, log in ((eager, logs[0]), (made, logs[1])):
        drafter: Any = each.drafter
        drafter._propose = lambda own=drafter._propose, log=log, d=drafter: (
            log.append([list(h) for h in d.histories]) or own()
        )
    wanted = tokens(eager, asked(eager, 6, 14))
    with cuda:
        assert tokens(made, asked(made, 6, 14)) == wanted
    assert logs[0] == logs[1]
    assert trie(made) == trie(eager)


def test_a_plan_goes_by_the_same_steps_read_late(cuda: FakeCuda, tmp_path: Path) -> None:
    """As long as the same rows are alive, budgets are those of steps that are read at once."""
    budgets: list[list[int]] = []
    speeds = [1 / (1 + 0.08 * tokens) for tokens in range(1, 49)]
    table = {"sample_batch_tokens": list(range(1, 49)), "sample_steps_per_sec": speeds}
    (tmp_path / "dear.json").write_text(json.dumps(table | {"max_batch_tokens": 48}))
    dear = f"verify.cost_table={tmp_path / 'dear.json'}"
    eager = session("dspark_planned", 3, None, dear)
    made = graphs(cuda, "dspark_planned", 3, dear)
    for each in (eager, made):
        budgets.append([])
        each.captured.plan = lambda rows, own=each.captured.plan, log=budgets[-1]: (  # type: ignore[method-assign]
            log.append(own(rows)) or log[-1]
        )
        for request in asked(each, 3, 40):
            each.submit(request)
    while not eager.step():
        continue
    with cuda:
        while not made.step():
            continue
    at_once, late = budgets
    assert late == [*at_once, late[-1]]  # and the one that was under way
    assert len(set(at_once)) > 2


# -- what is captured, and what is not -------------------------------------------------------------


def test_a_session_captures_its_keys_at_once_the_largest_first(cuda: FakeCuda) -> None:
    made = graphs(cuda, "ngram", 5)
    with cuda:
        step_of(made).prepare(40)
    bound = list(step_of(made)._bound)
    assert [(k.rows, k.variant) for k in bound] == [
        (rows, variant) for variant in ("tree", "narrow", "single") for rows in (5, 4, 2, 1)
    ]
    assert all(not tensor.any() for name, tensor in kept(made).items() if "state" in name)


def test_a_plan_captures_every_budget_of_a_full_batch(cuda: FakeCuda) -> None:
    made = graphs(cuda, "dspark_planned", 3, "verify.token_bucket=4")
    with cuda:
        step_of(made).prepare(40)
    found = [(k.rows, k.budget) for k in step_of(made)._bound]
    assert found == [(3, budget) for budget in (24, 20, 16, 12, 8, 4)]


def test_one_extent_does_where_rows_are_read_by_length(cuda: FakeCuda) -> None:
    fixed = owned(cuda, session("plain", 2, GraphStep))
    read = owned(cuda, session("plain", 2, GraphStep, by_length=True))
    with cuda:
        for made in (fixed, read):
            assert tokens(made, asked(made, 2, 90))
    assert {k.extent for k in step_of(fixed)._bound} == {64, 128, 256}
    assert {k.extent for k in step_of(read)._bound} == {read.pool.length}


def test_a_batch_above_all_buckets_is_told(cuda: FakeCuda) -> None:
    made = graphs(cuda, "plain", 3)
    with pytest.raises(RuntimeFault, match=r"a batch of 4 rows is more than the 3 .*batch_size"):
        step_of(made).launch(4, "chain", 40)


def full(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, when: Any) -> None:
    """Memory runs out where `when` says so of a number of calls before a capture."""
    calls = 0

    def before() -> None:
        nonlocal calls
        calls += 1
        if when(calls):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")

    cuda.before_call = before
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 80 * 2**30))


def test_out_of_memory_at_capture_says_what_lowers_it(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = graphs(cuda, "plain", 2)
    full(cuda, monkeypatch, lambda _: True)
    with cuda, pytest.raises(RuntimeFault) as caught:
        step_of(made).prepare(40)
    assert str(caught.value) == (
        "a captured step of 2 rows and 64 positions does not fit: 2.50 GiB were asked for where "
        "1.00 GiB of 80.00 GiB are free; lower `run.batch_size` or `run.max_length`"
    )


def test_a_capture_that_broke_off_is_out_of_memory_all_the_same(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending a capture that memory broke off raises another error in the place of that one."""
    made = graphs(cuda, "plain", 2)
    end = type(torch.cuda.graph(torch.cuda.CUDAGraph())).__exit__  # type: ignore[call-arg]

    def ending(self: Any, kind: Any, *rest: Any) -> None:
        end(self, kind, *rest)
        if kind is not None:
            raise RuntimeError("CUDA error: operation failed due to a previous error")

    monkeypatch.setattr(torch.cuda.graph, "__exit__", ending)
    bind = EagerStep.bind

    def bound(self: EagerStep, key: Key) -> Any:
        called = bind(self, key)

        def call() -> None:
            if cuda.capturing is not None:
                raise torch.cuda.OutOfMemoryError("Tried to allocate 4.00 GiB.")
            called()

        return call

    monkeypatch.setattr(EagerStep, "bind", bound)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**29, 2**36))
    with cuda, pytest.raises(RuntimeFault, match=r"4\.00 GiB were asked for where 0\.50 GiB"):
        step_of(made).prepare(40)


def test_where_there_is_no_room_a_batch_runs_in_the_next_larger_capture(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = session("eagle3", 4)
    wanted = tokens(eager, asked(eager, 6, 8))
    made = owned(cuda, session("eagle3", 4, GraphStep, by_length=True))
    with cuda:
        step = step_of(made)
        step.ready(step.key(4, "chain", 40))
        full(cuda, monkeypatch, lambda _: True)
        assert tokens(made, asked(made, 6, 8)) == wanted
        assert [k.rows for k in step._bound] == [4]
        assert {k.rows for k in step._larger} == {1, 2}


def test_a_plan_s_batch_is_never_filled_up(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    made = owned(cuda, session("dspark_planned", 4, GraphStep, by_length=True))
    with cuda:
        step = step_of(made)
        step.ready(step.key(4, "ragged", 40, 16))
        full(cuda, monkeypatch, lambda _: True)
        with pytest.raises(RuntimeFault, match="of 3 rows"):
            step.launch(3, "ragged", 40, 16)


def test_nothing_is_half_written_where_a_capture_fails_in_mid_run(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What had ended is in the file, each line whole, and in what the run says."""
    from specflow.execute import Completions, decode

    made = graphs(cuda, "eagle3", 2)
    full(cuda, monkeypatch, lambda calls: calls > 2)

    class Quiet:
        def progress(self, *_: Any) -> None:
            return None

    short = [replace(r, tokens=r.tokens[:9], max_new_tokens=7) for r in asked(made, 5, 7)]
    long = replace(asked(made, 1, 30)[0], id="long")
    with cuda, Completions(tmp_path) as sink:
        done = decode(made, [*short, long], Quiet(), sink)  # type: ignore[arg-type]
    assert "does not fit: 2.50 GiB were asked for" in done.stopped
    lines = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [c.request.id for c in done.completions]
    assert 0 < len(lines) < 6
    assert all(line["text"] and line["finish_reason"] for line in lines)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        RuntimeError("Triton Error [CUDA]: invalid argument"),
    ],
    ids=["runtime", "accelerator", "triton"],
)
@pytest.mark.parametrize("place", ["replay", "synchronize"])
def test_a_device_that_gives_up_ends_the_run_and_keeps_what_had_ended(
    error: Exception, place: str, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specflow.execute import decode

    made = graphs(cuda, "eagle3", 2)
    count = 0

    def failing(own: Any) -> Any:
        def call(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count > 12:
                raise error
            return own(*args)

        return call

    if place == "replay":
        from tests.fake_cuda import Graph

        monkeypatch.setattr(Graph, "replay", failing(Graph.replay))
    else:
        for slot in step_of(made)._ring:
            slot.done.synchronize = failing(slot.done.synchronize)

    class Quiet:
        def progress(self, *_: Any) -> None:
            return None

    with cuda:
        done = decode(made, asked(made, 5, 12), Quiet(), None)  # type: ignore[arg-type]
    assert done.stopped.startswith("the device gave up in the middle of the run: ")
    assert str(error)[:30] in done.stopped
    assert 0 < len(done.completions) < 5
    assert all(c.text and c.finish for c in done.completions)


def test_what_is_no_device_s_fault_is_no_fault() -> None:
    from specflow.faults import device_faults

    with pytest.raises(RuntimeError, match="shape"), device_faults("here"):
        raise RuntimeError("shape '[2, 3]' is invalid")


def test_an_interrupt_between_two_steps_keeps_what_had_ended(cuda: FakeCuda) -> None:
    from specflow.execute import decode

    made = graphs(cuda, "ngram", 2)

    class Impatient:
        def progress(self, done: int, *_: Any) -> None:
            if done:
                raise KeyboardInterrupt

    with cuda:
        run = decode(made, asked(made, 5, 8), Impatient(), None)  # type: ignore[arg-type]
    assert run.stopped.startswith("Ctrl-C")
    assert len(run.completions) >= 1
    assert made.pending is not None  # a step was under way: nobody reads it


def test_a_step_that_is_one_launch_has_one_phase(cuda: FakeCuda) -> None:
    from specflow.execute import decode
    from specflow.report import _shares

    class Quiet:
        def progress(self, *_: Any) -> None:
            return None

    made = graphs(cuda, "eagle3", 2)
    with cuda:
        done = decode(made, asked(made, 3, 8), Quiet(), None)  # type: ignore[arg-type]
    assert set(done.timed.phases) == {"prefill", "step"}
    assert done.timed.forward is None
    assert 0 < done.timed.phases["step"] < done.timed.total
    seconds = {"prefill": 1.0, "step": 7.0, "other": 2.0, "total": 10.0}
    rows = _shares({"seconds": seconds, "forward_seconds": None})
    assert rows == [("time", "prefill 10% step 70% other 20%", "of the total")]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("eagle3", "eager"),
        pytest.param("eagle3", "inductor", marks=pytest.mark.slow),
        pytest.param("ngram", "inductor", marks=pytest.mark.slow),
    ],
)
def test_what_is_compiled_is_captured(
    name: str, backend: str, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run.compile: inductor` on a device: compiled while it is warmed up, then captured."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    eager = session(name, 2)
    wanted = tokens(eager, asked(eager, 3, 8))
    made = owned(cuda, session(name, 2, GraphStep, inductor=True, by_length=True))
    assert step_of(made).runs is step_of(made).module
    with cuda:
        assert tokens(made, asked(made, 3, 8)) == wanted
    assert cuda.calls.count("capture") == len(step_of(made)._bound)
