"""Extend layers: each draft layer runs once over what was gained and guesses one token (§6.4).

Layer k reads the token k places further on. So its last k rows read guesses; they are run again in
the next step, by then with the tokens that were really gained, which keeps every layer's KV exact.
"""

from __future__ import annotations

from specflow.errors import CompileError
from specflow.graph import Builder, PhaseBuilder
from specflow.recipe import Fields
from specflow.stages.base import CommitStage, Gained, Guess, state
from specflow.stages.growing import choose, draft_coins, resume


class ExtendLayersFields(Fields):
    """Nothing to say: there is one forward a layer."""


def lower(_gained: Gained, _p: PhaseBuilder, _b: Builder) -> None:
    """Nothing beside the commit itself."""


def extend(gained: Gained, guess: Guess, b: Builder, suffix: str) -> str:
    """Guess the whole next chain, one layer after the other over the same rows."""
    left = guess.seeds
    if left is None:
        raise CompileError("a draft that leaves nothing to begin with is extended")
    name = f"extend{suffix}"
    doc = "Run each draft layer over what was gained, and the few rows before it once more."
    steps, recent = b.constants["NUM_STEPS"], b.constants["NUM_RECENT"]
    with b.phase(name, "commit", doc, model="draft") as p:
        tokens, shown, starts, length = resume(gained, p)
        if shown is None:
            raise CompileError("a draft layer reads a hidden state that the target did not show")
        wide = ("B", "R + W")
        ids = p.op("after_recent", state(b, "recent_tokens"), tokens, out="ids", shape=wide)
        beside = p.op(
            "after_recent", state(b, "recent_hidden"), shown, out="beside", shape=(*wide, "H"),
            dtype="float",
        )  # fmt: skip
        at = p.op("back", starts, recent, out="at", shape=("B",))
        rows = p.op("after", length, recent, out="rows", shape=("B",), note="up to the last gained")
        slid = p.op("slide", ids, length, recent, out="recent", shape=("B", "R"))
        p.store(state(b, "recent_tokens"), slid)
        kept = p.op(
            "slide", beside, length, recent, out="recent_hidden", shape=("B", "R", "H"),
            dtype="float",
        )  # fmt: skip
        p.store(state(b, "recent_hidden"), kept)
        coins = draft_coins(state(b, "seq_lens"), steps, p, b) if left.drawn else None
        logits = p.op(
            "extend_layer", ids, beside, at, rows, 0, out="logits", shape=("B", "V"), dtype="float"
        )
        guess_now, law = choose(logits, coins, 0, p, b, mapped=left.mapped)
        with p.repeat(steps, first=1, index="layer") as loop:
            word, window = loop.carry(guess_now, collected="chain"), loop.carry(ids)
            laws = loop.carry(law, collected="laws") if law is not None else None
            turned = p.op("rotate", window.now, rows, word.now, out="ids", shape=wide)
            logits = p.op(
                "extend_layer", turned, beside, at, rows, loop.index,
                out="logits", shape=("B", "V"), dtype="float",
            )  # fmt: skip
            window.next = turned
            word.next, law = choose(logits, coins, loop.index, p, b, mapped=left.mapped)
            if laws is not None:
                laws.next = law
        ahead = p.op("stack", word.all, out="ahead", shape=("B", "K"))
        p.store(state(b, "words_ahead"), ahead)
        if laws is not None:
            drawn_from = p.op(
                "stack", laws.all, out="from_laws", shape=("B", "K", "V"), dtype="float"
            )
            p.store(state(b, "laws_ahead"), drawn_from)
    return name


EXTEND_LAYERS = CommitStage(
    name="extend_layers",
    doc="one forward of each draft layer over what was gained",
    fields=ExtendLayersFields,
    lower=lower,
    extend=extend,
)
