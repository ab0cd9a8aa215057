"""After any run of acceptances the draft's state is what a recompute from scratch gives (TV-13).

Tolerance: float32, one to three layers of width 32, sums over another width or another order of
chunks; values are near 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specflow.capture import buffers
from specflow.kernels import draft_coins, law_of, likeliest, pick
from specflow.models.drafters import prefill
from specflow.models.lm import LanguageModel
from specflow.pools import KVPool
from specflow.session import Draws, Request, Session
from tests.differential.tiny_drafts import CHUNK, VOCABULARY, Shelf, requests
from tests.toys import tokens as decoded

ATOL = RTOL = 1e-4


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("drafts"))


def near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=ATOL, rtol=RTOL)


def same_rows(pool: KVPool, row: int, whole: KVPool, length: int) -> None:
    """A row of a pool against the one row of another, layer by layer."""
    for layer in whole.shapes:
        for ours, theirs in zip(
            pool.read(layer, 1, length, row), whole.read(layer, 1, length), strict=True
        ):
            near(ours, theirs)


@dataclass
class Truth:
    """What the target shows of a text without its last token, from one plain forward."""

    text: list[int]
    pool: KVPool
    hidden: Tensor  # [1, L, H]
    shown: Tensor  # [1, L, n * H] where taps are read, else the hidden states

    @classmethod
    def of(cls, target: LanguageModel, text: list[int], taps: tuple[int, ...]) -> Truth:
        length = len(text) - 1
        pool = target.pool(1, length)
        window = target.window(pool, length)
        _, hidden, tapped = window.prefill(torch.tensor(text[:-1]), 0, taps)
        return cls(text, pool, hidden, tapped if taps else hidden)


Check = Callable[[Session, int, Truth, dict[str, Tensor], Draws], None]


def begins(
    made: Session, logits: Tensor, truth: Truth, state: dict[str, Tensor], draws: Draws
) -> None:
    """What the next draft begins with, out of the logits [1, V] after the last token."""
    recipe, table = made.recipe, getattr(made.drafter.model, "to_target", None)
    ids = torch.arange(VOCABULARY) if table is None else table
    if recipe["draft.topk"] > 1:
        words, scores = likeliest(logits, recipe["draft.topk"])
        assert state["first_words"].tolist() == ids[words[0]].tolist()
        near(state["first_scores"], scores[0])
    elif "first_law" in state:
        law = scattered(logits, ids, draws)
        near(state["first_law"], law[0])
        coins = coins_of(truth, draws, recipe["verify.num_draft_tokens"] - 1)
        assert state["first_guess"] == pick(law, coins[:, 0])
    else:
        assert state["first_guess"] == ids[logits.argmax(-1)]


def scattered(logits: Tensor, ids: Tensor, draws: Draws) -> Tensor:
    """A law [1, V] over the target's ids, out of logits over the draft's."""
    law = law_of(logits, torch.tensor([draws.temperature]))
    return torch.zeros(1, VOCABULARY).index_copy(1, ids, law)


def coins_of(truth: Truth, draws: Draws, count: int) -> Tensor:
    return draft_coins(torch.tensor([draws.seed]), torch.tensor([len(truth.text) - 1]), count)


def one_layer(
    made: Session, row: int, truth: Truth, state: dict[str, Tensor], draws: Draws
) -> None:
    """Ids x1.. beside h0.., from scratch: KV, the state carried on, the first guesses."""
    model, length = made.drafter.model, len(truth.text) - 1
    own = model.pool(1, length)
    logits, carried = model.window(own, length).feed(torch.tensor(truth.text[1:]), truth.shown, 0)
    same_rows(made.drafter.pool, row, own, length)
    near(state["draft_hidden"], carried[0])
    begins(made, logits, truth, state, draws)


def layers(made: Session, row: int, truth: Truth, state: dict[str, Tensor], draws: Draws) -> None:
    """Layer k at row p reads token p + 1 + k: a true one, or near the end what was guessed before.

    The recompute reads the same guesses; so all of a layer's rows are compared, and those that the
    boundary repair has to keep exact, the rows p + 1 + k <= L, are among them.
    """
    recipe, model, length = made.recipe, made.drafter.model, len(truth.text) - 1
    own = model.pool(1, length)
    window, known = model.window(own, length), list(truth.text)
    for layer in range(recipe["draft.num_steps"]):
        ids = torch.tensor(known[layer + 1 :])
        logits, _ = window.feed(ids, truth.hidden, 0, layer)
        if "laws_ahead" in state:
            law = scattered(logits, torch.arange(VOCABULARY), draws)
            near(state["laws_ahead"][layer], law[0])
            word = int(pick(law, coins_of(truth, draws, recipe["draft.num_steps"])[:, layer]))
        else:
            word = int(logits.argmax(-1))
        known.append(word)
        for ours, theirs in zip(
            made.drafter.pool.read(layer, 1, length, row), own.read(layer, 1, length), strict=True
        ):
            near(ours, theirs)
    assert state["words_ahead"].tolist() == known[len(truth.text) :]
    recent = recipe["draft.num_steps"] - 1
    have = min(recent, length)
    if have:
        assert state["recent_tokens"][-have:].tolist() == truth.text[-have:]
        near(state["recent_hidden"][-have:], truth.hidden[0, -have:])


def frozen(made: Session, row: int, truth: Truth, state: dict[str, Tensor], _draws: Draws) -> None:
    """Nothing but where the target stands at the last committed token."""
    del made, row
    near(state["draft_hidden"], truth.hidden[0, -1])


def extended(made: Session, row: int, truth: Truth, state: dict[str, Tensor], draws: Draws) -> None:
    """A language model that was extended has the KV of the last token too."""
    model, length = made.drafter.model, len(truth.text)
    own = model.pool(1, length)
    logits = prefill(model, own, 0, truth.text, CHUNK)
    same_rows(made.drafter.pool, row, own, length)
    begins(made, logits, truth, state, draws)


def caught_up(
    made: Session, row: int, truth: Truth, state: dict[str, Tensor], _draws: Draws
) -> None:
    """The next draft writes the last two positions itself (serial.md §6.6)."""
    model, length = made.drafter.model, len(truth.text) - 2
    assert state["previous_token"] == truth.text[-2]
    if length:
        own = model.pool(1, length)
        prefill(model, own, 0, truth.text[:-2], CHUNK)
        same_rows(made.drafter.pool, row, own, length)


def check_of(made: Session) -> Check:
    how = {"extend": one_layer, "extend_layers": layers, "frozen": frozen, "catch_up": caught_up}
    state = made.recipe.axes.draft_state
    return extended if made.recipe.stages[0] == "STANDALONE" and state == "extend" else how[state]


def follow(made: Session, asked: list[Request]) -> tuple[int, set[int]]:
    """Run requests; how many checks, and accept lengths.

    Every row is checked after every step, and as it is admitted.
    """
    checked, check, lengths = 0, check_of(made), set[int]()
    for request in asked:
        made.submit(request)
    while made.waiting or made.rows:
        for act in (made._admit, made._decode):
            act()
            for row, completion in enumerate(made.rows):
                text = completion.request.tokens + completion.tokens
                state = {n: t[row] for n, t in buffers(made.captured.state).items()}
                assert (state["seq_lens"], state["bonus_token"]) == (len(text) - 1, text[-1])
                truth = Truth.of(made.target, text, made.drafter.taps)
                same_rows(made.pool, row, truth.pool, len(text) - 1)
                check(made, row, truth, state, completion.request.draws)
                lengths |= set(completion.accept_lens)
                checked += 1
    return checked, lengths


CHAIN = {"num_steps": 3}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "eagle": ("eagle", CHAIN, {}),
    "eagle_1": ("eagle", {"num_steps": 1}, {}),
    "eagle_tree": ("eagle", {"num_steps": 3, "topk": 3}, {"num_draft_tokens": 12}),
    "eagle_level": ("eagle", {"num_steps": 1, "topk": 3}, {}),
    "eagle3": ("eagle3", CHAIN, {}),
    "eagle3_tree": ("eagle3", {"num_steps": 4, "topk": 2}, {"num_draft_tokens": 10}),
    "eagle3_normed": ("eagle3_normed", CHAIN, {}),
    "eagle3_narrow": ("eagle3_narrow", {"num_steps": 2}, {}),
    "eagle3_speculators": ("eagle3_speculators", CHAIN, {}),
    "eagle3_speculators_tree": ("eagle3_speculators", {"num_steps": 3, "topk": 2}, {}),
    "mtp_deepseek": ("mtp_deepseek", CHAIN, {}),
    "mtp_deepseek_tree": ("mtp_deepseek", {"num_steps": 3, "topk": 2}, {"num_draft_tokens": 8}),
    "mtp_glm4_moe": ("mtp_glm4_moe", CHAIN, {}),
    "mtp_glm4_moe_tree": ("mtp_glm4_moe", {"num_steps": 2, "topk": 3}, {"num_draft_tokens": 9}),
    "mtp_mimo": ("mtp_mimo", {"num_steps": 2}, {}),
    "mtp_layers": ("mtp_layers", CHAIN, {}),
    "mtp_layers_2": ("mtp_layers", {"num_steps": 2}, {}),
    "mtp_layers_1": ("mtp_layers", {"num_steps": 1}, {}),
    "assistant": ("assistant", CHAIN, {}),
    "assistant_tree": ("assistant", {"num_steps": 3, "topk": 2}, {"num_draft_tokens": 9}),
    "assistant_shared": ("assistant_shared", CHAIN, {}),
    "standalone": ("standalone", CHAIN, {}),
    "standalone_tree": ("standalone", {"num_steps": 3, "topk": 2}, {"num_draft_tokens": 9}),
}
SAMPLED = ["eagle", "eagle3", "mtp_layers", "mtp_deepseek", "assistant", "eagle3_tree"]


def open_case(name: str, shelf: Shelf, batch: int, **blocks: Any) -> Session:
    pair, draft, verify = CASES[name]
    return shelf.session(pair, batch, draft=draft, verify=verify, **blocks)


@pytest.mark.parametrize("name", CASES)
def test_state_equals_a_recompute(name: str, shelf: Shelf) -> None:
    """Prompts of one token (shorter than what layers repeat) and of several chunks; rows move."""
    made = open_case(name, shelf, 3)
    checked, lengths = follow(made, requests(5, 11))
    assert checked > 10
    steps = CASES[name][1]["num_steps"]
    assert {1, 2} <= lengths
    assert steps < 3 or max(lengths) >= 3


def test_state_of_an_extended_language_model_equals_a_recompute(shelf: Shelf) -> None:
    made = shelf.session("standalone", 3, draft=CHAIN, commit={"draft_state": "extend"})
    checked, lengths = follow(made, requests(5, 11))
    assert checked > 10
    assert max(lengths) >= 3


@pytest.mark.parametrize("name", SAMPLED)
def test_state_of_a_sampled_session_equals_a_recompute(name: str, shelf: Shelf) -> None:
    """Acceptance by coins, the laws of guesses among the state; greedy rows beside drawn ones."""
    made = open_case(name, shelf, 3, sampling={"temperature": 0.9})
    asked = [
        replace(r, draws=Draws(temperature=(0.9, 0.0, 1.5)[i % 3], seed=7 + i))
        for i, r in enumerate(requests(5, 9))
    ]
    checked, lengths = follow(made, asked)
    assert checked > 10
    assert len(lengths) > 1


TIERS = {"adaptive": True, "adaptive_slots": [[1, [0, 1, 2, 4]]], "num_steps": 2}


@pytest.mark.parametrize("temperature", [0.0, 0.9], ids=["greedy", "sampled"])
@pytest.mark.parametrize("pair", ["eagle", "eagle3", "mtp_deepseek"])
def test_state_equals_a_recompute_whatever_the_steps(
    pair: str, temperature: float, shelf: Shelf
) -> None:
    """Steps that change from round to round, plain decoding among them, and what was said."""
    sampling = {"temperature": temperature}
    made = shelf.session(pair, 3, draft=TIERS, sampling=sampling)
    turns = itertools.cycle((2, 0, 4, 0, 0, 1, 4, 2))
    made.drafter.steps = lambda _rows: next(turns)
    variants, launch = set[str](), made.captured.launch
    made.captured.launch = lambda rows, variant, *rest: (
        variants.add(variant),
        launch(rows, variant, *rest),
    )
    asked = [
        replace(r, draws=Draws(temperature=temperature, seed=i))
        for i, r in enumerate(requests(5, 11))
    ]
    checked, lengths = follow(made, asked)
    assert checked > 20
    assert lengths >= {1, 2, 3}
    assert variants == {"steps_0", "steps_1", "steps_2", "steps_4"}
    if temperature == 0:
        made = shelf.session(pair, 3, draft=TIERS)
        made.drafter.steps = lambda _rows: next(turns)
        assert decoded(made, asked) == shelf.plain(pair, asked)


# -- the draft phase alone -------------------------------------------------------------------------


class Watched:
    """What a step binds; each call of it is shown to a watcher with its arguments and result."""

    def __init__(self, window: Any, watch: Callable[..., None]) -> None:
        self._window, self._watch = window, watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._window, name)

        def call(*args: Any) -> Any:
            self._watch(name, args, None)
            made = found(*args)
            self._watch(name, args, made)
            return made

        return call


def watch(made: Session, watcher: Callable[..., None]) -> None:
    bind = made.drafter.bind
    made.drafter.bind = lambda extent: Watched(bind(extent), watcher)  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["assistant", "assistant_tree", "assistant_shared"])
def test_an_assistant_leaves_the_targets_kv_alone(name: str, shelf: Shelf) -> None:
    """TV-21: nothing is written, and every query stands at the last committed position."""
    made = open_case(name, shelf, 3)
    kept: list[Tensor] = []
    calls: list[str] = []

    def contents() -> list[Tensor]:
        return [block.clone() for block in made.pool._blocks.values()]

    def watcher(call: str, args: tuple[Any, ...], result: object) -> None:
        if result is None:
            calls.append(call)
            kept[:] = kept or contents()
            assert torch.equal(args[2], made.captured.view(len(made.rows)).seq_lens)
        else:
            assert all(map(torch.equal, kept, contents()))

    watch(made, watcher)
    for request in requests(3, 9):
        made.submit(request)
    while made.waiting or made.rows:
        kept.clear()
        made.step()
    assert len(calls) > 9


@dataclass
class Level:
    """A level of a tree as the draft grew it; `logits` by branch."""

    tokens: Tensor
    hidden: Tensor | None
    starts: Tensor
    sees: Tensor
    logits: Tensor


TREES = {
    "eagle": {"num_steps": 4, "topk": 2},
    "eagle3": {"num_steps": 4, "topk": 3},
    "mtp_deepseek": {"num_steps": 4, "topk": 3},
    "mtp_glm4_moe": {"num_steps": 3, "topk": 2},
    "standalone": {"num_steps": 4, "topk": 3},
}


@pytest.mark.parametrize("pair", TREES)
def test_a_branch_says_what_its_line_says_alone(pair: str, shelf: Shelf) -> None:
    """Each branch of each level, against a chain of the same tokens from the committed prefix."""
    made = shelf.session(pair, 3, draft=TREES[pair])
    grown: list[Level] = []
    before: list[KVPool] = []
    hidden = pair != "standalone"

    def watcher(call: str, args: tuple[Any, ...], result: Any) -> None:
        if not call.startswith("grow"):
            return
        if result is None:
            if not grown:
                before[:] = [copied(made.drafter.pool)]
            return
        # Copies: what a phase reads of the state is written before the step ends.
        tokens, *state, starts, sees = (given.clone() for given in args[:-1])
        logits = result[0] if hidden else result
        grown.append(Level(tokens, state[0] if state else None, starts, sees, logits))

    watch(made, watcher)
    crossed = compared = 0
    for request in requests(4, 9):
        made.submit(request)
    while made.waiting or made.rows:
        grown.clear()
        before.clear()
        made.step()
        if not grown:
            continue
        branches, depth = TREES[pair]["topk"], TREES[pair]["num_steps"] - 1
        assert len(grown) == depth
        for lane in range(branches):
            lines = grown[-1].sees[:, lane].view(-1, depth, branches)
            assert torch.equal(lines.sum(-1), torch.ones_like(lines[..., 0]))  # one a level
            line = lines.long().argmax(-1)  # [B, levels]
            crossed += int((line != lane).any(-1).sum())
            compared += walk(made, before[0], grown, line)
    assert compared > 30
    assert crossed > 5


def copied(pool: KVPool) -> KVPool:
    twin = KVPool(pool.slots, pool.length, pool.shapes)
    for key, block in pool._blocks.items():
        twin._blocks[key].copy_(block)
    return twin


def walk(made: Session, before: KVPool, grown: list[Level], line: Tensor) -> int:
    """Run a line of branches as a chain and compare what it says at each level."""
    pool = copied(before)
    window = made.drafter.model.window(pool, pool.length)
    rows = torch.arange(len(line))
    state = grown[0].hidden[rows, line[:, 0]] if grown[0].hidden is not None else None
    for depth, level in enumerate(grown):
        tokens, at = level.tokens[rows, line[:, depth]], level.starts + depth
        if state is None:
            logits = window.decode(tokens[:, None], at)
        else:
            near(level.hidden[rows, line[:, depth]], state)
            logits, state = window.decode_hidden(tokens, state, at)
        near(level.logits[rows, line[:, depth]], logits)
    return len(rows)


Line = tuple[tuple[int, ...], float]  # tokens from the first guess on, and how likely they are
BRANCHES, WIDTH = 3, 9


class Forest:
    """What a draft and its target are asked in one step, and the tree that has to come of it."""

    def __init__(self, made: Session) -> None:
        self.made, self.target = made, made.captured.target
        self.adapter = self.target.adapter
        self.first: Tensor | None = None  # the logits of the first guess, where no state holds it
        self.grown: list[tuple[Tensor, Tensor]] = []  # tokens and logits of each level
        self.verified: tuple[Tensor, Tensor] | None = None  # tokens, and whom each sees
        self.ids = getattr(made.drafter.model, "to_target", None)
        watch(made, self.watch)
        made.captured.target = self

    def window(self, *args: Any) -> Watched:
        """What the step binds as its target."""
        return Watched(self.target.window(*args), self.watch)

    def watch(self, call: str, args: tuple[Any, ...], result: Any) -> None:
        if result is None:
            return
        if call.startswith("grow"):
            logits = result[0] if isinstance(result, tuple) else result
            self.grown.append((args[0].clone(), logits))
        elif call == "decode_hidden":
            self.first = result[0]
        elif call.startswith("verify_tree"):
            self.verified = args[0], args[3]

    def likely(self, logits: Tensor) -> list[tuple[int, float]]:
        best = logits.softmax(-1).topk(BRANCHES)
        words = best.indices if self.ids is None else self.ids[best.indices]
        return list(zip(words.tolist(), best.values.tolist(), strict=True))

    def expected(self, row: int, state: dict[str, Tensor]) -> set[tuple[int, ...]]:
        """The likeliest lines of all that were offered, each level grown from the likeliest."""
        if self.first is None:
            begun = (state[name][row].tolist() for name in ("first_words", "first_scores"))
            first = list(zip(*begun, strict=True))
        else:
            first = self.likely(self.first[row])
        lanes: list[Line] = [((token,), chance) for token, chance in first]
        offered = list(lanes)
        for tokens, logits in self.grown:
            assert tokens[row].tolist() == [path[-1] for path, _ in lanes]
            said = [
                ((*path, token), score * chance)
                for (path, score), heard in zip(lanes, logits[row], strict=True)
                for token, chance in self.likely(heard)
            ]
            offered += said
            lanes = top(said, BRANCHES)
        return {path for path, _ in top(offered, WIDTH - 1)}

    def found(self, row: int) -> set[tuple[int, ...]]:
        assert self.verified is not None
        tokens, sees = (each[row] for each in self.verified)
        return {tuple(tokens[sees[node]].tolist()[1:]) for node in range(1, WIDTH)}


def top(offered: list[Line], count: int) -> list[Line]:
    return sorted(offered, key=lambda line: -line[1])[:count]


@pytest.mark.parametrize("pair", [*TREES, "assistant"])
def test_the_tree_that_is_verified_is_the_likeliest(pair: str, shelf: Shelf) -> None:
    """Out of what the draft said of each branch: who grows on, and who is verified under whom."""
    draft, verify = {"topk": BRANCHES, "num_steps": 3}, {"num_draft_tokens": WIDTH}
    made = shelf.session(pair, 3, draft=draft, verify=verify)
    forest, compared = Forest(made), 0
    for request in requests(4, 9):
        made.submit(request)
    while made.waiting or made.rows:
        made._admit()
        rows, whole = len(made.rows), buffers(made.captured.state)
        state = {name: tensor[:rows].clone() for name, tensor in whole.items()}
        forest.grown.clear()
        made._decode()
        for row in range(rows):
            assert forest.found(row) == forest.expected(row, state)
            compared += 1
    assert compared > 10
