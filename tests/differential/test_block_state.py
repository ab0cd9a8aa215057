"""After any run of acceptances a block draft knows what all taps from scratch would tell it.

Its guesses are those of the CPU reference of parallel.md (`Plain`): float64, each request by
itself, dense softmax. Tolerance: float32, two layers of width 32, values near 1 in the pool and
logits of a few tens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specflow.models.block_draft import BlockWindow
from specflow.models.lm import LanguageModel
from specflow.pools import Ring
from specflow.session import Request, Session
from tests.differential.tiny_blocks import (
    DEEPSPEC,
    FULL,
    MASK,
    SLIDING,
    SPECFORGE,
    SPECULATORS,
    ZLAB,
    Look,
    Made,
    Workshop,
    hint,
    redraft,
    texts,
)
from tests.differential.tiny_drafts import Pair, noise, write, write_model
from tests.toys import tokens

ATOL = RTOL = 1e-4
LENGTHS, NEWS = (1, 5, 19, 2, 8, 11, 3), (12, 19, 15)
REDUCED = (0, 2, 3, 4, 6, 7, 9, 10, 11, 13, 15, 16, 18, 19, 21, 23)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("blocks"))


@dataclass(frozen=True)
class Case:
    """A draft, and what a recipe says of it."""

    look: Look
    draft: dict[str, Any] = field(default_factory=dict)
    batch: int = 3


CASES = {
    "dspark": Case(Look()),
    "dspark own": Case(Look(ahead=False, rows=4)),
    "dspark gated": Case(Look(markov="gated", layout=SPECFORGE)),
    "dspark rnn": Case(Look(markov="rnn", rows=5)),
    "dspark one": Case(Look(rows=1, kinds=(FULL,))),
    "dspark reduced": Case(Look(covered=REDUCED, layout=SPECULATORS)),
    "dspark sliding": Case(Look(kinds=(SLIDING, SLIDING), window=9), {"page_size": 4}),
    "dspark windowed": Case(Look(rows=5), {"window_size": 6, "page_size": 4}),
    "dspark mixed": Case(Look(kinds=(FULL, SLIDING), window=9)),
    "dflash": Case(Look(layout=ZLAB, markov="", trust=False, rows=6)),
    "dflash next": Case(Look(layout=DEEPSPEC, markov="", trust=False, rows=6)),
    "dflash reduced": Case(
        Look(layout=SPECULATORS, markov="", trust=False, rows=5, covered=REDUCED)
    ),
    "dflash sliding": Case(
        Look(layout=ZLAB, markov="", trust=False, rows=5, kinds=(SLIDING, SLIDING), window=8),
        {"page_size": 1},
    ),
    "dflash both ways": Case(
        Look(layout=ZLAB, markov="", trust=False, rows=5, kinds=(SLIDING, FULL), window=8,
             bias=True, taps=(2, -1), config={"is_causal": False}),
    ),
}  # fmt: skip


def kept_from(made: Session, length: int) -> int:
    """The first position that a block at `length` may read (8.1)."""
    window, page = made.recipe["draft.window_size"], made.recipe["draft.page_size"]
    return max(length - window, 0) // page * page if window else 0


@torch.inference_mode()
def taps_of(stock: PreTrainedModel, ids: tuple[int, ...], text: list[int]) -> Tensor:
    """What the library's own model puts out [1, P, n * H] of layers that are published as `ids`.

    -1 is its embedding; the last layer is tapped before the final norm.
    """
    last: list[Tensor] = []
    hook = stock.model.norm.register_forward_pre_hook(lambda _, args: last.append(args[0]))
    out = stock(torch.tensor([text]), use_cache=False, output_hidden_states=True)
    hook.remove()
    streams = [*out.hidden_states[:-1], last[0]]
    return torch.cat([streams[i + 1] for i in ids], dim=-1)


def same_context(made: Session, row: int, taps: Tensor) -> int:
    """The pool against an injection of everything at once; how many positions were compared."""
    model, count = made.drafter.model, taps.shape[1]
    whole = Ring.make(model.pool, 1, count, 0, 64, 1)
    BlockWindow(model, whole, 0).feed(taps, 0)
    ring = made.drafter.ring
    live = range(kept_from(made, count), count)
    slots = [p % ring.pool.length for p in live]
    for layer in whole.pool.shapes:
        for ours, theirs in zip(
            ring.pool.read(layer, 1, ring.pool.length, row),
            whole.pool.read(layer, 1, count),
            strict=True,
        ):
            torch.testing.assert_close(
                ours[:, :, slots], theirs[:, :, list(live)], atol=ATOL, rtol=RTOL
            )
    return len(live)


class Oracle:
    """What a draft should guess, and know, at every step of a session."""

    def __init__(self, made: Session, source: Made) -> None:
        self.made, self.plain, self.look = made, source.plain(), source.look
        self.stock, look = source.pair.stock, source.look
        self._shown: dict[tuple[int, ...], Tensor] = {}
        self.ahead = look.ahead if look.ahead is not None else look.layout != ZLAB
        if look.layout == SPECULATORS and look.ahead is None:
            self.ahead = bool(look.markov)
        self.checked, self.compared, self.sure = 0, 0, 0
        redraft(made, self.judge)

    @property
    def rows(self) -> int:
        """Of a block: where a row guesses its own position's token, the first guesses nothing."""
        more = not self.ahead and self.look.algorithm == "DSPARK"
        return self.look.rows + int(more)

    def shown(self, text: list[int]) -> Tensor:
        key = tuple(text)
        if key not in self._shown:
            self._shown[key] = taps_of(self.stock, self.look.taps, text)
        return self._shown[key]

    def judge(self, state: Any, guesses: Tensor) -> Tensor:
        for row, completion in enumerate(self.made.rows):
            text = completion.request.tokens + completion.tokens
            start = len(text) - 1
            assert (state.seq_lens[row], state.bonus_token[row]) == (start, text[-1])
            kept = self.plain.injected(self.shown(text[:-1])[0].double())
            block = [text[-1], *[MASK] * (self.rows - 1)]
            hidden = self.plain.block(block, start, kept, kept_from(self.made, start))
            hidden = hidden if self.ahead else hidden[1:]
            said = guesses[row].tolist()
            logits, trust = self.plain.said_of(hidden, text[-1], said)
            assert len(said) == len(logits)
            words = self.plain.words()
            for word, heard in zip(said, logits, strict=True):
                # The likeliest, but for what rounding may turn around.
                slack = 1e-4 * float(heard.abs().max())
                assert heard[words.index(word)] >= heard.max() - slack
            if hasattr(state, "trust"):
                found = state.trust[row].double()
                torch.testing.assert_close(found, trust, atol=ATOL, rtol=RTOL)
                self.sure += 1
            self.checked += 1
        return guesses

    def follow(self, asked: list[Request]) -> set[int]:
        """Run requests, and compare what is kept of each row after each step; accept lengths."""
        made, lengths = self.made, set[int]()
        for request in asked:
            made.submit(request)
        while made.waiting or made.rows:
            for act in (made._admit, made._decode):
                act()
                for ended in made.ended():
                    lengths |= set(ended.accept_lens)
                for row, completion in enumerate(made.rows):
                    text = completion.request.tokens + completion.tokens
                    self.compared += same_context(made, row, self.shown(text[:-1]))
                    lengths |= set(completion.accept_lens)
        return lengths


@pytest.mark.parametrize("name", CASES)
def test_incremental_injection_is_injection_from_scratch(name: str, shop: Workshop) -> None:
    """Every row is compared as it is admitted and after every step, and so is every guess.

    Prompts are longer and shorter than a chunk; rows end at different times and move.
    """
    case = CASES[name]
    asked = texts(5, LENGTHS, NEWS)
    made = shop(case.look)
    running = made.session(case.batch, draft=case.draft)
    oracle = Oracle(running, made)
    hint(running, shop.plain(asked))
    lengths = oracle.follow(asked)
    guesses = running.recipe["verify.num_draft_tokens"] - 1
    assert guesses == oracle.rows - int(not oracle.ahead)
    assert oracle.checked > 10
    assert oracle.compared > 100
    assert {1, guesses + 1} <= lengths
    assert len(lengths) >= min(guesses, 4)


@pytest.mark.parametrize("mode", ["cap-accept", "compact"])
@pytest.mark.parametrize("markov", ["vanilla", "rnn"])
def test_confidence_is_of_what_was_known(
    mode: str, markov: str, shop: Workshop, tmp_path: Path
) -> None:
    """Planned steps: what the head says is told from the token before each guess (trap 18).

    And fewer positions are verified, so fewer are injected: what is kept is the same nonetheless.
    """
    table = tmp_path / "cost.json"
    probes = {"sample_batch_tokens": [1, 6, 12], "sample_steps_per_sec": [100.0, 60.0, 20.0]}
    table.write_text(json.dumps(probes | {"max_batch_tokens": 64}))
    asked = texts(4, LENGTHS[1:], NEWS)
    made = shop(Look(markov=markov))
    verify = {"shape": "ragged", "mode": mode, "cost_table": str(table)}
    running = made.session(3, verify=verify)
    oracle = Oracle(running, made)
    hint(running, shop.plain(asked))
    assert len(oracle.follow(asked)) > 2
    assert oracle.sure == oracle.checked > 10


# -- whatever is drafted, the text is the target's -------------------------------------------------

ASKED = texts(9, LENGTHS, (14, 20, 9))
BLOCKS = {
    **{f"dspark {n}": Look(rows=n) for n in (1, 2, 7, 16)},
    **{f"dspark own {n}": Look(rows=n, ahead=False) for n in (1, 2, 7, 16)},
    **{f"dflash {n}": Look(layout=ZLAB, markov="", trust=False, rows=n) for n in (2, 7, 16)},
    **{f"dflash next {n}": Look(markov="", trust=False, rows=n) for n in (1, 2, 16)},
    "dspark sliding": Look(kinds=(SLIDING, SLIDING), window=9, markov="rnn"),
    "dflash sliding": Look(
        layout=ZLAB, markov="", trust=False, rows=7, kinds=(SLIDING, SLIDING), window=8
    ),
    "speculators": Look(layout=SPECULATORS, covered=REDUCED),
    "under model": Look(names="model.", markov="gated"),
}


@pytest.mark.parametrize("hinted", [False, True], ids=["by itself", "hinted"])
@pytest.mark.parametrize("name", BLOCKS)
def test_greedy_is_plain_decoding(name: str, hinted: bool, shop: Workshop) -> None:
    made = shop(BLOCKS[name])
    truth = shop.plain(ASKED)
    running = made.session(4 if hinted else 3)
    if hinted:
        hint(running, truth)
    assert tokens(running, ASKED) == truth
    assert tokens(made.session(1), ASKED[-1:]) == {ASKED[-1].id: truth[ASKED[-1].id]}


@pytest.mark.parametrize("size", [1, 3, 12])
def test_a_recipe_may_say_another_size(size: int, shop: Workshop) -> None:
    """The runtime's word counts; a draft is out of its depth there, and no text changes."""
    running = shop(Look()).session(4, draft={"block_size": size})
    assert running.recipe["verify.num_draft_tokens"] == size + 1
    assert tokens(running, ASKED) == shop.plain(ASKED)


def test_guesses_are_right_some_of_the_time(shop: Workshop) -> None:
    """These drafts are drafts: with a Markov head of the target's own words they often hold."""
    for look, least in ((Look(), 1.5), (Look(ahead=False), 1.5)):
        running = shop(look).session(4)
        for request in ASKED:
            running.submit(request)
        lens = [n for completion in running.run() for n in completion.accept_lens]
        assert sum(lens) / len(lens) > least


def test_the_other_alignment_guesses_something_else(shop: Workshop) -> None:
    """Reading own rows as next ones gives no error, only another draft (trap 1)."""
    made, other = shop(Look()), {"predicts": "own"}
    found = []
    for draft in ({}, other):
        running = made.session(4, draft=draft)
        for request in ASKED:
            running.submit(request)
        lens = [n for completion in running.run() for n in completion.accept_lens]
        found.append(len(lens))
    assert found[0] != found[1]


@pytest.mark.parametrize("look", [Look(), Look(layout=ZLAB, markov="", trust=False, rows=7)])
def test_a_text_ends_where_the_positions_end(look: Look, shop: Workshop) -> None:
    """The last blocks lie partly past the end of both pools."""
    asked = texts(5, LENGTHS, (60,))
    running = shop(look).session(3, run={"max_length": 24})
    truth = shop.plain(asked, max_length=24)
    hint(running, truth)
    found = tokens(running, asked)
    assert found == truth
    assert all(len(r.tokens) + len(found[r.id]) == 24 for r in asked)


# -- T18 -------------------------------------------------------------------------------------------

WORDS, WIDE = 11, 12
TRACE: dict[str, Look] = {
    "dflash": Look(layout=ZLAB, markov="", trust=False, rows=4),
    "dspark": Look(rows=3),
}


def counting(root: Path) -> Pair:
    """A target that says 3t + 1 mod 11 after a token t, whatever was before."""
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDE, intermediate_size=8, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=128,
        bos_token_id=0, eos_token_id=9, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.get_input_embeddings().weight.copy_(torch.eye(WORDS, WIDE))
        says = torch.tensor([(3 * t + 1) % WORDS for t in range(WORDS)])
        model.get_output_embeddings().weight.zero_()[says, torch.arange(WORDS)] = 1.0
    return Pair("", write_model(root / "target", model), None, model, 2)


def small(look: Look, folder: Path) -> Path:
    """A random draft of that target; what it would guess is never asked."""
    torch.manual_seed(1)
    said = look.said() | {
        "vocab_size": WORDS, "hidden_size": WIDE, "num_hidden_layers": 1, "layer_types": [FULL],
    }  # fmt: skip
    where = said.get("dflash_config", said)
    where["target_layer_ids"] = [0, 1]
    tensors = {
        "fc.weight": noise(WIDE, 2 * WIDE),
        **{f"{n}.weight": 1 + noise(WIDE) for n in ("hidden_norm", "norm")},
        **{f"layers.0.{n}_layernorm.weight": 1 + noise(WIDE) for n in ("input", "post_attention")},
        **{f"layers.0.self_attn.{n}_norm.weight": 1 + noise(16) for n in "qk"},
        "layers.0.self_attn.q_proj.weight": noise(64, WIDE),
        "layers.0.self_attn.k_proj.weight": noise(32, WIDE),
        "layers.0.self_attn.v_proj.weight": noise(32, WIDE),
        "layers.0.self_attn.o_proj.weight": noise(WIDE, 64),
        **{f"layers.0.mlp.{n}_proj.weight": noise(48, WIDE) for n in ("gate", "up")},
        "layers.0.mlp.down_proj.weight": noise(WIDE, 48),
    }
    if look.markov:
        tensors |= {f"markov_head.markov_w{i}.weight": noise(WORDS, 3) for i in (1, 2)}
    return write(folder, tensors, said)


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("name", TRACE)
def test_t18_trace(name: str, stops: bool, tmp_path: Path) -> None:
    look = TRACE[name]
    target = counting(tmp_path)
    pair = Pair(look.algorithm, target.target, small(look, tmp_path / "draft"), target.stock, 2)
    model = LanguageModel.load(pair.target, device="cpu", dtype="float32")
    running = Made(look, pair, model).session(2)
    script = [[10, 9, 5], [8, 3, 10]]
    redraft(running, lambda _state, guesses: torch.tensor([script.pop(0)]).expand_as(guesses))
    if stops:
        running.stop_ids = frozenset({9})
    running.submit(Request("0", [1, 2, 3, 4, 5, 6, 8], 8))
    running._admit()
    running._decode()
    ended = running.ended()
    if stops:  # inclusively, and what the device has beyond it is dropped
        assert ended[0].tokens == [3, 10, 9]
        assert ended[0].finish == "stop"
        return
    (row,), state = running.rows, running.captured.state
    assert (row.tokens, row.accept_lens) == ([3, 10, 9, 6], [3])
    assert (state.seq_lens[0], state.bonus_token[0]) == (10, 6)
    text = row.request.tokens + row.tokens[:-1]
    same_context(running, 0, taps_of(target.stock, (0, 1), text))
    running._decode()
    (done,) = running.ended()
    assert (done.tokens, done.accept_lens) == ([3, 10, 9, 6, 8, 3, 10, 9], [3, 4])
    assert state.seq_lens[0] == 14
    assert sum(done.accept_lens) / 2 == 3.5
