"""Requests in, tokens out: admission, the loop, stopping, and keeping the batch compact.

The order of a step goes by when its results are read (`specflow.captured.Reads`): at once; before
the next launch, where a host phase needs them; or behind it. What ended is told at the end of a
step, so that its text is made, and its line written, while the device is at the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from specflow.capture import CapturedStep, Reads, Results, buffers
from specflow.errors import RuntimeFault
from specflow.kernels import filter_law, law_of, pick, verify_coins
from specflow.memory import reach
from specflow.models.beginning import First, row
from specflow.models.drafters import Drafter
from specflow.models.lm import LanguageModel
from specflow.models.ragged import BatchPlanner
from specflow.pools import KVPool
from specflow.recipe import ResolvedRecipe


@dataclass(frozen=True)
class Draws:
    """What one request's tokens are drawn from; `seed` is its own, whatever the batch."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """A prompt, how long its completion may be, and what it is drawn from."""

    id: str
    tokens: list[int]
    max_new_tokens: int
    draws: Draws = Draws()


@dataclass(eq=False)
class Completion:
    """What a request has become so far.

    finish        stop, length, or empty while it runs
    accept_lens   tokens gained a verify, bonus included, cut where the completion ends
    drafted       guesses verified a verify
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    accept_lens: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)


@dataclass
class Clock:
    """Seconds by phase: draft up to the target's forward, verify during it, commit after it.

    steps  how many there were; a prefill is none
    """

    draft: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    prefill: float = 0.0
    steps: int = 0


@dataclass
class _Pending:
    """A step that was launched: its results to be, the requests of its rows, guesses of each."""

    told: Results
    rows: list[Completion]
    drafted: list[int]


class Session:
    """A batch of requests over one captured step: row i of the batch is slot i of the KV."""

    def __init__(  # noqa: PLR0917 - what a session is made of
        self,
        recipe: ResolvedRecipe,
        step: CapturedStep,
        target: LanguageModel,
        pool: KVPool,
        drafter: Drafter,
        decode: Callable[[list[int]], str],
        stop_ids: frozenset[int],
        planner: BatchPlanner | None = None,
    ) -> None:
        self.recipe, self.captured, self.target, self.pool, self.drafter = (
            recipe,
            step,
            target,
            pool,
            drafter,
        )
        self.decode = decode
        self.planner = planner
        self.stop_ids = frozenset() if recipe.sampling.ignore_eos else stop_ids
        self.reach = reach(recipe)
        self.waiting: deque[Request] = deque()
        self.rows: list[Completion] = []
        self.pending: _Pending | None = None
        self.clock = Clock()
        self._ended: list[Completion] = []  # and not told yet

    def submit(self, request: Request) -> None:
        """Queue a request; ValueError where it leaves no room for a single new token."""
        room = self.recipe.run.max_length - len(request.tokens)
        if not request.tokens or room < 1:
            raise ValueError(
                f"a prompt of {len(request.tokens)} tokens does not fit into {room} positions"
            )
        self.waiting.append(request)

    def run(self) -> Iterator[Completion]:
        """Decode everything that was submitted; each completion as it ends."""
        while self.waiting or self.rows:
            yield from self.step()

    def step(self) -> list[Completion]:
        """Admit what fits, launch one step, take in what is known; the completions that ended."""
        began = perf_counter()
        if self.captured.reads is Reads.NEXT:
            self._read()
        read = perf_counter() - began
        self._admit()
        if self.rows:
            self._decode(read)
        return self.ended()

    def ended(self) -> list[Completion]:
        """Completions that ended and were not told: after a step that failed, what it leaves."""
        if not self.recipe.sampling.stop:  # else a text was made token by token
            for completion in self._ended:
                completion.text = self.decode(completion.tokens)
        ended, self._ended = self._ended, []
        return ended

    # -- admission ---------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Prefill waiting requests into free rows; one that its first token ends takes none."""
        while self.waiting and len(self.rows) < self.recipe.run.batch_size:
            began = perf_counter()
            completion = Completion(self.waiting.popleft())
            self._prefill(completion)
            self.clock.prefill += perf_counter() - began
            (self._ended if completion.finish else self.rows).append(completion)

    def _prefill(self, completion: Completion) -> None:
        row, tokens = len(self.rows), completion.request.tokens
        logits, begin, shown = self._read_prompt(row, tokens)
        bonus = self._first(logits, completion.request)
        self._gain(completion, [bonus])
        if completion.finish:
            return
        draws = completion.request.draws
        start: dict[str, Tensor | float] = {"bonus_token": bonus, "seq_lens": len(tokens)}
        first = First(bonus, len(tokens), draws.seed, draws.temperature)
        start |= self.drafter.admit(row, tokens, begin, shown, first)
        if self.planner is not None:
            self.planner.admit(row)
        start |= {"seeds": draws.seed, "temperature": draws.temperature}
        start |= {"top_k": draws.top_k, "top_p": draws.top_p, "min_p": draws.min_p}
        for name, tensor in buffers(self.captured.state).items():
            tensor[row] = start.get(name, 0)

    def _read_prompt(self, row: int, tokens: list[int]) -> tuple[Tensor, int, Tensor]:
        """Prefill the target chunk by chunk, the draft behind it.

        Logits [1, V] after the prompt; where its last chunk begins, and what the target shows of
        it: the draft reads that once the first token is known.
        """
        window = self.target.window(self.pool, self.pool.length, row=row)
        ids = self.pool.positions.new_tensor(tokens)
        chunk, taps = self.recipe.run.prefill_chunk, self.drafter.taps
        last = (len(tokens) - 1) // chunk * chunk
        for begin in range(0, last, chunk):
            _, hidden, tapped = window.prefill(ids[begin : begin + chunk], begin, taps)
            self.drafter.read(row, tokens, begin, tapped if taps else hidden)
        logits, hidden, tapped = window.prefill(ids[last:], last, taps)
        return logits, last, tapped if taps else hidden

    def _first(self, logits: Tensor, request: Request) -> int:
        """The first token, from the prefill's logits [1, V], by the law of the step."""
        if not bool(torch.isfinite(logits).all()):
            raise RuntimeFault(
                f"the target's logits are not finite on prompt `{request.id}`: its weights are "
                "broken, or too large for this dtype; use float32, or download the model again"
            )
        draws = request.draws
        if draws.temperature == 0:
            return int(logits.argmax(-1))

        whole = partial(row, dtype=torch.int64, like=logits)
        part = partial(row, dtype=torch.float32, like=logits)
        law = law_of(logits[:, None], part(draws.temperature))
        if self.recipe.sampling.cuts:
            law = filter_law(law, whole(draws.top_k), part(draws.top_p), part(draws.min_p))
        seed, at = whole(draws.seed), whole(len(request.tokens) - 1)
        return int(pick(law[:, 0], verify_coins(seed, at, 1)[:, 0]))

    # -- decoding ----------------------------------------------------------------------------------

    def _decode(self, read: float = 0.0) -> None:
        """Launch a step for every row, and read it, or the one before it.

        read  seconds that reading took before it
        """
        began, before = perf_counter(), self.pending
        made = self.captured.made.seconds
        self.pending = self._launch()
        began += self.captured.made.seconds - made
        if self.captured.reads is Reads.AT_ONCE:
            self._read()
        elif self.captured.reads is Reads.LATE and before is not None:
            self._settle(before)
        if not self.rows:  # a step may be under way that nobody reads
            if self.pending is not None:
                self.pending.told.wait()  # its turn of the ring is written again
            self.pending = None
            if self.planner is not None:
                self.planner.forget()
        self._count(began, read)

    def _launch(self) -> _Pending:
        """Launch a step for every row."""
        rows = len(self.rows)
        variant, budget = self.captured.draft(rows), self.captured.plan(rows)
        known = max(len(c.request.tokens) + len(c.tokens) for c in self.rows) - 1
        self.captured.launch(rows, variant, known + self._unread() + self.reach, budget)
        told = self.captured.results(rows)
        return _Pending(told, list(self.rows), self._drafted(rows, variant))

    def _read(self) -> None:
        """Take in the step that was launched last, before another is."""
        step, self.pending = self.pending, None
        if step is not None:
            self._settle(step)

    def _unread(self) -> int:
        """Tokens that a row may have gained in a step that is under way."""
        return 0 if self.pending is None else max(self.captured.widths.values())

    def _settle(self, step: _Pending) -> None:
        """Take in what a step gained; a request that had ended before it was read is left alone."""
        lengths, tokens = step.told.lengths(), step.told.tokens()
        judged = step.told.judged()
        self.captured.learn(step.told)
        kept = []
        for i, completion in enumerate(step.rows):
            if completion.finish:
                continue
            kept.append(self._gain(completion, tokens[i][: lengths[i]]))
            completion.accept_lens.append(len(kept[-1]))
            completion.drafted.append(step.drafted[i] if judged is None else judged[i] - 1)
        self.captured.commit(kept)
        self._release()

    def _drafted(self, rows: int, variant: str) -> list[int]:
        """How many guesses of each row are verified, where no plan decides it."""
        most = self.captured.widths[variant] - 1
        return [min(count, most) for count in self.drafter.drafted(rows)]

    def _count(self, began: float, read: float) -> None:
        """Where the time of a step went; of a step that is one launch only the whole is known."""
        now = perf_counter()
        self.clock.steps += 1
        if self.captured.whole:
            self.clock.verify += read + now - began
            return
        entered, left = self.target.entered, self.target.left
        self.clock.draft += entered - began
        self.clock.verify += left - entered
        self.clock.commit += now - left

    def _gain(self, completion: Completion, tokens: list[int]) -> list[int]:
        """Add tokens up to the first event that ends the completion; what was added (§5)."""
        request = completion.request
        room = min(request.max_new_tokens, self.recipe.run.max_length - len(request.tokens)) - len(
            completion.tokens
        )
        kept = tokens[:room]
        stop = next((i for i, token in enumerate(kept) if token in self.stop_ids), None)
        if stop is not None:
            kept = kept[: stop + 1]
            completion.finish = "stop"
        elif len(kept) == room:
            completion.finish = "length"
        before = len(completion.tokens)
        completion.tokens += kept
        if self.recipe.sampling.stop:
            kept = self._cut_at_stop_string(completion, before)
        return kept

    def _cut_at_stop_string(self, completion: Completion, before: int) -> list[int]:
        """End at the first token that completes a stop string; the text ends before the string."""
        for count in range(before + 1, len(completion.tokens) + 1):
            text = self.decode(completion.tokens[:count])
            at = min((i for s in self.recipe.sampling.stop if (i := text.find(s)) >= 0), default=-1)
            if at >= 0:
                del completion.tokens[count:]
                completion.text, completion.finish = text[:at], "stop"
                return completion.tokens[before:]
        completion.text = self.decode(completion.tokens)
        return completion.tokens[before:]

    def _release(self) -> None:
        """Take ended requests out; the last row moves into the gap, so rows stay compact."""
        for completion in [c for c in self.rows if c.finish]:
            row, last = self.rows.index(completion), len(self.rows) - 1
            if row != last:
                moved = self.rows[last]
                length = len(moved.request.tokens) + len(moved.tokens) + self._unread()
                self.pool.copy_row(last, row, min(length, self.pool.length))
                self.drafter.move(last, row, min(length, self.pool.length))
                for tensor in buffers(self.captured.state).values():
                    tensor[row] = tensor[last]
                if self.planner is not None:
                    self.planner.move(last, row)
                self.rows[row] = moved
            self.drafter.release(last)
            if self.planner is not None:
                self.planner.release(last)
            del self.rows[last]
            self._ended.append(completion)
