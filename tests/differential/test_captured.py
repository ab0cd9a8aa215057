"""Steps that are compiled, captured, or read late: the tokens are those of the eager step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow import capture as captures
from specflow.capture import CompiledStep, EagerStep, Key, Told, bucket_of
from specflow.execute import make_session, open_target
from specflow.load import load
from specflow.packs import find
from specflow.resolve import resolve
from specflow.session import Request, Session
from tests import toys
from tests.toys import neighbour, recipe, requests, session, target, tokens


class LateStep(EagerStep):
    """An eager step read as a graph's is: from copies, when the next step is on its way."""

    late = True

    def results(self, rows: int) -> Told:
        """Copies: the state may have gone on before they are read."""
        state = self.view(rows)
        kept = (state.accept_len.clone(), state.output_tokens.clone())
        return Told(*kept, None, lambda: None)


class Padded(LateStep):
    """A late step that runs in buckets of rows, as a graph does."""

    def launch(self, rows: int, variant: str, needed: int, budget: int = 0) -> None:
        """Rows beyond the batch begin at position 0 again."""
        bucket = bucket_of(rows, self.pool.slots)
        if bucket > rows:
            self.state.seq_lens[rows:bucket].zero_()
        super().launch(bucket, variant, needed, budget)


def with_step(made: Session, kind: type[EagerStep]) -> Session:
    """The session over a step of another kind."""
    old = made.captured
    made.captured = kind(old.module, old.target, old.pool, old.drafter, old.planner)
    return made


@pytest.mark.parametrize("kind", [LateStep, Padded])
@pytest.mark.parametrize("batch", [1, 3, 5])
@pytest.mark.parametrize("name", ["plain", "standalone", "standalone_tree", "standalone_5"])
def test_what_is_read_late_is_the_same(
    name: str, batch: int, kind: type[EagerStep], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = toys.positions
    monkeypatch.setattr(toys, "positions", lambda r: reach(r) + r["verify.num_draft_tokens"])
    resolved = recipe(name, batch)
    draft = None if name == "plain" else neighbour(0, 0.2)
    asked = requests(9, 17)
    eager = tokens(session(resolved, target(), tmp_path, draft), asked)
    late = with_step(session(resolved, target(), tmp_path, draft), kind)
    assert tokens(late, asked) == eager
    assert late.pending is None
    assert not late.rows


def test_late_reading_counts_every_accept_length(tmp_path: Path) -> None:
    resolved = recipe("standalone", 2)
    made = with_step(session(resolved, target(), tmp_path, neighbour(0, 0.2)), LateStep)
    made.pool = made.captured.pool
    for request in [Request(str(i), [5, 7, 9 + i], 12) for i in range(3)]:
        made.submit(request)
    for completion in made.run():
        assert sum(completion.accept_lens) == len(completion.tokens) - 1
        assert len(completion.drafted) == len(completion.accept_lens)


def test_buckets_are_the_next_powers_of_two() -> None:
    assert [bucket_of(n, 24) for n in (1, 2, 3, 4, 5, 8, 9, 17, 24)] == [
        1, 2, 4, 4, 8, 8, 16, 24, 24,
    ]  # fmt: skip


class Quiet:
    """Nobody looks on."""

    def say(self, _text: str) -> None:
        """Nothing."""


TRACED = (
    *("pico/plain", "pico/ngram", "pico/ngram_sampled", "pico/standalone", "pico/eagle"),
    *("pico/standalone_sampled", "pico/standalone_tree", "pico/eagle3", "pico/eagle3_tree"),
    *("pico/eagle3_adaptive", "pico/nextn", "pico/multi_layer", "pico/frozen_kv"),
    *("pico/frozen_kv_tree", "pico/dflash", "pico/dspark", "pico/dspark_sampled"),
    *("pico/dspark_planned", "pico/dspark_window", "pico/dspark_block"),
)


@pytest.mark.parametrize("name", TRACED)
def test_a_step_is_traced_whole(name: str) -> None:
    """`fullgraph` refuses a break: whatever inductor compiles, it compiles as one."""
    resolved = resolve(load(find(name)))
    made = make_session(resolved, *open_target(resolved, Quiet()))
    step = made.captured
    for variant, width in step.widths.items():
        torch._dynamo.reset()
        bound = step.bind(Key(1, variant, 128, width if made.planner is not None else 0))
        for tensor in captures.buffers(step.state).values():
            tensor.zero_()
        step.state.seq_lens.fill_(5)
        torch.compile(bound, fullgraph=True, backend="eager")()
        assert int(step.state.accept_len[0]) in range(1, width + 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["standalone", "standalone_tree"])
def test_a_compiled_step_says_the_same(name: str, tmp_path: Path) -> None:
    resolved = recipe(name, 2)
    asked = requests(4, 9)
    draft = neighbour(0, 0.2)
    eager = tokens(session(resolved, target(), tmp_path, draft), asked)
    compiled = with_step(session(resolved, target(), tmp_path, draft), CompiledStep)
    assert tokens(compiled, asked) == eager


@dataclass
class FakeCuda:
    """What a capture asks of CUDA, written down; a graph is the calls made while it is captured."""

    calls: list[str]
    warm: int = 0


def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:  # noqa: C901 - a list of fakes
    """CUDA's streams, graphs and pinned memory, as far as a capture goes, on a CPU."""
    log = FakeCuda([])

    class Stream:
        def wait_stream(self, _other: Any) -> None:
            log.calls.append("wait")

    class Event:
        def record(self) -> None:
            log.calls.append("record")

        def synchronize(self) -> None:
            log.calls.append("synchronize")

    class Graph:
        def __init__(self) -> None:
            self.captured: Any = None

        def replay(self) -> None:
            log.calls.append("replay")
            self.captured()

    class Capturing:
        def __init__(self, _graph: Graph, **_: Any) -> None:
            log.calls.append("capture")

        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            return None

    class On:
        def __init__(self, _stream: Stream) -> None:
            return None

        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            return None

    empty = torch.empty

    def unpinned(*shape: Any, **more: Any) -> Tensor:
        return empty(*shape, **{k: v for k, v in more.items() if k != "pin_memory"})

    cuda = torch.cuda
    for name, fake in {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": Capturing,
        "stream": On,
        "graph_pool_handle": lambda: (0, 0),
        "current_stream": Stream,
    }.items():
        monkeypatch.setattr(cuda, name, fake)
    monkeypatch.setattr(torch, "empty", unpinned)
    return log


def test_a_capture_leaves_no_mark_and_is_made_once_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of warm-up, capture and replay; that a graph holds what is called is CUDA's own."""
    resolved = recipe("standalone", 3)
    asked = requests(5, 11)
    draft = neighbour(0, 0.2)
    eager = tokens(session(resolved, target(), tmp_path, draft), asked)
    log = fake_cuda(monkeypatch)
    reach = toys.positions
    monkeypatch.setattr(toys, "positions", lambda r: reach(r) + r["verify.num_draft_tokens"])
    made = with_step(session(resolved, target(), tmp_path, draft), captures.GraphStep)
    step = made.captured
    assert step.late
    called = EagerStep.bind

    def bind(self: EagerStep, key: Key) -> Any:
        function = called(self, key)
        state = {n: t.clone() for n, t in captures.buffers(self.state).items()}

        def checked() -> None:
            log.warm += 1
            function()

        checked.before = state  # type: ignore[attr-defined]
        return checked

    monkeypatch.setattr(EagerStep, "bind", bind)
    graph_bind = captures.GraphStep.bind

    def replayed(self: captures.GraphStep, key: Key) -> Any:
        before = {n: t.clone() for n, t in captures.buffers(self.state).items()}
        graph_bind(self, key)
        for name, tensor in captures.buffers(self.state).items():
            assert torch.equal(tensor, before[name]), name  # warm-up and capture left no mark
        function = called(self, key)

        def replay() -> None:
            log.calls.append("replay")
            function()

        return replay

    monkeypatch.setattr(captures.GraphStep, "bind", replayed)
    assert tokens(made, asked) == eager
    assert log.calls.count("capture") == len(step._bound)
    assert log.warm == (captures.WARM_UPS + 1) * len(step._bound)
    assert log.calls.count("replay") == log.calls.count("record")
    # A launch goes before the wait for the one before it.
    firsts = [c for c in log.calls if c in ("replay", "synchronize")]
    assert firsts[:3] == ["replay", "replay", "synchronize"]


def test_out_of_memory_at_capture_says_what_lowers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specflow.errors import RuntimeFault

    resolved = recipe("standalone", 2)
    draft = neighbour(0, 0.2)
    fake_cuda(monkeypatch)

    class Full:
        def __init__(self, *_: Any, **__: Any) -> None:
            raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(torch.cuda, "graph", Full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 80 * 2**30))
    made = with_step(session(resolved, target(), tmp_path, draft), captures.GraphStep)
    with pytest.raises(
        RuntimeFault, match=r"1\.00 GiB of 80\.00 GiB are free; lower `run\.batch_size`"
    ):
        tokens(made, requests(1, 5))
