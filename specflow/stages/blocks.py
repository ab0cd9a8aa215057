"""What drafts that guess a whole block at once share: one forward, then a word for each row.

The block is the bonus token and masks after it. Its rows guess the tokens at their own positions,
or those after them (parallel.md 1b, 2b); all else is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from specflow import block_config
from specflow.diagnostics import Drop, Put
from specflow.facts import Facts
from specflow.formats import RNN, TAPS
from specflow.graph import Builder, PhaseBuilder, Value
from specflow.graph.ir import Shape
from specflow.provenance import Origin
from specflow.recipe import Fields, Layers, ResolvedRecipe, field
from specflow.rules import Finding, rule
from specflow.stages.base import HEAT, Derived, Guess, said, state
from specflow.stages.growing import choose, draft_coins
from specflow.stages.tapped import TAP_RULES

OWN, NEXT = "own", "next"
SIZE = "draft.block_size"
PAGE = 64  # positions; what engines' attention reads a KV cache by


class BlockFields(Fields):
    """What a recipe may say about every draft of a whole block."""

    mask_token: int = field(
        "Id of the token that stands for what is to be guessed.", derive="the draft's own", ge=-1
    )
    taps: Layers = field(
        "Target layers whose input the draft reads; the number of layers is the last one's output.",
        derive="the draft's own, else spread evenly from 2 on",
    )
    predicts: Literal["own", "next"] = field(
        "Whose token a row of the block guesses: its `own` position's, or the `next` one's.",
        derive="the draft's config",
    )
    window_size: int = field(
        "Committed positions that the draft's KV keeps; 0 keeps all.",
        derive="the draft's own window, where all its layers have one",
        ge=0,
        le=2**24,
    )
    page_size: int = field(
        "Positions a page of that window holds; it begins on a page boundary.",
        default=PAGE,
        ge=1,
        le=4096,
    )


def derived_size(facts: Facts, otherwise: int) -> Derived:
    """How large a block is: the checkpoint's word, else a published default."""
    size = facts.net.block.size
    if size:
        return Derived(size, "the draft's config", Origin.CHECKPOINT)
    return Derived(otherwise, "what is published where a config says nothing")


def derived_mask(facts: Facts) -> Derived:
    """The id of the mask, which nothing else can tell; below 0 where nothing does (SF062)."""
    return Derived(facts.net.block.mask_token, "the draft's config", Origin.CHECKPOINT)


def derived_taps(facts: Facts) -> Derived:
    """The layers the draft was trained on, or else the published formula; never both."""
    net, layers = facts.net, facts["target"].layers
    if net.taps:
        return Derived(net.taps, "the draft's config", Origin.CHECKPOINT)
    count = max(net.tap_count, 1)
    taps = tuple(max(tap, 0) for tap in block_config.default_taps(layers, count))
    return Derived(taps, f"{block_config.FORMULA} with L = {layers}, D = {count}")


def derived_predicts(facts: Facts) -> Derived:
    """Which token a row guesses, by the draft's config (`block_config.guesses_ahead`)."""
    ahead = facts.net.block.ahead
    return Derived(NEXT if ahead else OWN, "the draft's config", Origin.CHECKPOINT)


def derived_window(facts: Facts) -> Derived:
    """The draft's own window, where all of its layers have one: nothing older is ever read."""
    window = facts.net.block.window
    if window:
        return Derived(window, "all layers of the draft have this window", Origin.CHECKPOINT)
    return Derived(0, "a layer of the draft sees the whole text")


DERIVE = {
    "mask_token": derived_mask,
    "taps": derived_taps,
    "predicts": derived_predicts,
    "window_size": derived_window,
}


@rule("SF062", "missing-mask-token")
def unusable_mask(r: ResolvedRecipe) -> Iterator[Finding]:
    """The mask of a block draft is a row of the target's embedding.

    ## Why
    A block is the bonus token and masks after it, and the draft borrows the target's embedding. The
    id may be past the tokenizer's last token, since embeddings are padded; past the last row there
    is nothing to read.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark, mask_token: 2048}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}
    ```

    ## Fix
    Leave `draft.mask_token` out: the draft's own config names the one it was trained with.
    """
    if SIZE not in r:
        return
    token, known = r["draft.mask_token"], r.facts["target"].vocab_size
    if token < 0 and r.ledger["draft.mask_token"].place is not None:
        yield Finding(
            at="draft.mask_token",
            message=f"mask token {token} is no id: ids begin at 0",
            label="below 0",
            help="leave `draft.mask_token` out, or write the id the draft was trained with",
            fix=Drop("draft.mask_token"),
        )
    elif token < 0 and r.facts.net.block.size + r.facts.net.block.kv_width:
        yield Finding(
            at="draft.model" if r["draft.model"] == r.facts["draft"].model else "draft",
            message="the draft's config names no mask token, and neither does the recipe",
            label="no `mask_token_id`",
            help="write the id that the draft was trained with as `draft.mask_token`",
        )
    if known and token >= known:
        own = r.ledger["draft.mask_token"].origin is Origin.CHECKPOINT
        yield Finding(
            at="draft.model" if own else "draft.mask_token",
            message=f"mask token {token} is none of the target's {known} ids",
            label=f"below {known}" if not own else f"its config says {token}",
            because={"target.model": f"{known} rows of its embedding"},
            help="name a draft that was made for this target"
            if own
            else "leave `draft.mask_token` out, or write the id the draft was trained with",
            fix=None if own else Drop("draft.mask_token"),
        )


@rule("SF013", "block-width-mismatch")
def block_width(r: ResolvedRecipe) -> Iterator[Finding]:
    """A block is verified at exactly as many positions as it has guesses, plus the bonus token.

    ## Why
    A DFLASH block of `block_size` positions begins with the bonus token, so it has one guess less
    and is verified at `block_size` positions; where its rows guess ahead, at `block_size + 1`. A
    DSPARK block has `block_size` guesses, so `block_size + 1` positions are verified. This is where
    recipes written for the one trip over the other.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark, block_size: 7}
    verify: {num_draft_tokens: 7}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark, block_size: 7}
    ```

    ## Fix
    Leave `verify.num_draft_tokens` out: it is derived from `draft.block_size`.
    """
    if SIZE not in r:
        return
    count, width = guesses_of(r), r["verify.num_draft_tokens"]
    if count < 1:
        yield Finding(
            at="draft.block_size",
            message="a block of one position is the bonus token alone: nothing would be guessed",
            label="at least 2",
            because={"draft.predicts": "the first row guesses nothing"},
            help="leave `draft.block_size` out",
            fix=Drop("draft.block_size"),
        )
        return
    if width != count + 1:
        size = r["draft.block_size"] + width - count - 1
        written = r.ledger["draft.block_size"].place is not None and size > 0
        meant = (f"write `draft.block_size: {size}`",) if written else ()
        yield Finding(
            at="verify.num_draft_tokens",
            message=f"a block of {count} guesses is verified at {count + 1} positions, not {width}",
            label=f"expected {count + 1}",
            because={"draft.block_size": f"{count} guesses + 1 bonus token"},
            help="remove `verify.num_draft_tokens`; it is derived from `draft.block_size`"
            + "".join(f"; or {answer}" for answer in meant),
            fix=Drop("verify.num_draft_tokens", otherwise=meant),
        )


@rule("SF043", "window-smaller-than-block")
def window_too_small(r: ResolvedRecipe) -> Iterator[Finding]:
    """The window of a draft holds a block at least.

    ## Why
    The window counts committed positions that a block attends to. Fewer than a block's own rows
    leave the draft with less text than it writes at once; engines refuse to start with that.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark, window_size: 4}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark, window_size: 128}
    ```

    ## Fix
    Raise `draft.window_size`, or leave it out.
    """
    if SIZE not in r:
        return
    window, count = r["draft.window_size"], block_rows(r)
    if 0 < window < count:
        yield Finding(
            at="draft.window_size",
            message=f"a window of {window} positions is smaller than a block of {count}",
            label=f"at least {count}",
            because={"draft.block_size": f"{count} rows of a block"},
            help=f"write `window_size: {count}` or more, or leave it out",
            fix=Put(
                "draft.window_size",
                count,
                safe=False,
                otherwise=("leave `draft.window_size` out",),
            ),
        )


@rule("SF047", "window-wider-than-the-drafts", warning=True)
def window_too_wide(r: ResolvedRecipe) -> Iterator[Finding]:
    """The window of a draft is no wider than the one its layers have.

    ## Why
    Where every layer of a draft has a sliding window, nothing older is ever read. A wider
    `window_size`, or 0 for all of the text, takes memory for keys and values that no guess sees.

    ## Example
    ```yaml
    target: {model: builtin:pico-kimi}
    draft: {algorithm: DSPARK, model: builtin:pico-kimi-dspark, window_size: 256}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-kimi}
    draft: {algorithm: DSPARK, model: builtin:pico-kimi-dspark}
    ```

    ## Fix
    Leave `draft.window_size` out: it is the draft's own window then.
    """
    if SIZE not in r:
        return
    own, asked = r.facts.net.block.window, r["draft.window_size"]
    if own and (asked > own or asked == 0) and not r.stands_in("draft"):
        kept = f"a window of {asked} positions keeps" if asked else "`window_size: 0` keeps"
        yield Finding(
            at="draft.window_size",
            message=f"{kept} what the draft never reads: its layers see {own} positions",
            label=f"sees {own}",
            help="leave `draft.window_size` out: it is the draft's own window then",
            fix=Drop("draft.window_size"),
        )


@rule("SF056", "pickled-mask-embedding", warning=True)
def pickled_mask(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft's own embedding of the mask is read where it is safetensors.

    ## Why
    Some drafts ship `mask_embedding.pt`, a row of their own for the mask. A pickle may run code, so
    it is not loaded: the target's row is read instead, which no training has seen. The output stays
    right; fewer guesses hold.

    ## Example
    The folder of `tiny-dspark-pickle` holds `mask_embedding.pt` beside its safetensors.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: DSPARK, model: tiny-dspark-pickle}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: DSPARK, model: tiny-dspark}
    ```

    ## Fix
    Name a draft that needs none, or convert it into the draft's own embedding (`embed_tokens`, with
    `has_own_embed: true` in its config.json).
    """
    if SIZE in r and r.facts.net.block.pickled:
        yield Finding(
            at="draft.model",
            message="the draft's own embedding of its mask is a pickle, and is not loaded",
            label="holds mask_embedding.pt",
            help="expect fewer guesses to hold, or convert it to safetensors",
        )


@rule("SF057", "block-larger-than-trained", warning=True)
def larger_than_trained(r: ResolvedRecipe) -> Iterator[Finding]:
    """A block is no larger than the one its draft was trained with.

    ## Why
    A row learned to guess at its place in the block. Rows past the last trained place guess as they
    were never taught: they cost as much as the others, and hardly ever hold.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark, block_size: 12}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}
    ```

    ## Fix
    Leave `draft.block_size` out, or lower it.
    """
    if SIZE not in r:
        return
    trained, asked = r.facts.net.block.size, r[SIZE]
    if 0 < trained < asked:
        yield Finding(
            at=SIZE,
            message=f"a block of {asked} is larger than the {trained} its draft was trained with",
            label=f"trained with {trained}",
            help=f"leave `draft.block_size` out, or write {trained} or less",
            fix=Drop(SIZE, safe=False),
        )


@rule("SF058", "unlike-the-checkpoint", warning=True)
def unlike_the_checkpoint(r: ResolvedRecipe) -> Iterator[Finding]:
    """What a draft was trained with is what its config says.

    ## Why
    Which token a row guesses, and which token stands for a guess that is to come, is decided when a
    draft is trained. Another word for either leaves the output right and hardly a guess that holds.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark, predicts: own}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}
    ```

    ## Fix
    Leave the field out, unless the config is known to be wrong.
    """
    if SIZE not in r:
        return
    block = r.facts.net.block
    trained = {"predicts": NEXT if block.ahead else OWN, "mask_token": block.mask_token}
    for name, said_there in trained.items():
        path = f"draft.{name}"
        ids = range(r.facts["target"].vocab_size)
        if name == "mask_token" and not (r[path] in ids and said_there in ids):
            continue  # that is the finding (SF062), or its way out
        if r.ledger[path].place is not None and block.size and r[path] != said_there:
            yield Finding(
                at=path,
                message=f"`{path}` is {r[path]}, and the draft's config says {said_there}",
                label=f"trained with {said_there}",
                help="leave it out, unless the config is known to be wrong",
                fix=Drop(path, safe=False),
            )


RULES = (
    unlike_the_checkpoint,
    *TAP_RULES,
    unusable_mask,
    block_width,
    window_too_small,
    window_too_wide,
    pickled_mask,
    larger_than_trained,
)


def guesses_of(r: ResolvedRecipe) -> int:
    """Guesses of a block, whatever its size counts."""
    return block_rows(r) - int(r["draft.predicts"] == OWN)


def block_rows(r: ResolvedRecipe) -> int:
    """Rows of a block: the bonus token and the masks after it."""
    extra = r["draft.predicts"] == OWN and r.axes.guess == "block_markov"
    return int(r["draft.block_size"]) + int(extra)


def guess_block(recipe: ResolvedRecipe, b: Builder, drawn: bool) -> Guess:
    """One forward over the block; then a word a row, each by itself or told the one before it."""
    b.constant("TAPS", recipe["draft.taps"], said(recipe, "draft.taps"))
    b.constant("VOCAB_SIZE", recipe.facts["target"].vocab_size, "the target's vocabulary")
    mask = b.constant("MASK_TOKEN", recipe["draft.mask_token"], said(recipe, "draft.mask_token"))
    count = b.constant("BLOCK_ROWS", block_rows(recipe), said(recipe, "draft.block_size"))
    guesses = b.constant("NUM_GUESSES", guesses_of(recipe), "guesses of a block")
    markov, mapped = recipe.facts.net.block.markov, recipe.facts.net.has_map
    heat = b.constants.get(HEAT)
    doc = "Guess a whole block in one forward: the bonus token, and masks for what is to come."
    survival: Value | None = None
    shape: Shape
    with b.phase("draft", "draft", doc, model="draft") as p:
        bonus, lens = state(b, "bonus_token"), state(b, "seq_lens")
        block = p.op("mask_block", bonus, mask, count, out="block", shape=("B", "Q"))
        wide = ("B", "Q", "H")
        hidden = p.op("denoise", block, lens, out="hidden", shape=wide, dtype="float")
        if recipe["draft.predicts"] == OWN:
            note = "the first row is the bonus token's own"
            shape = ("B", "K", "H")
            hidden = p.op("later", hidden, out="rows", shape=shape, dtype="float", note=note)
        logits = p.op("score", hidden, out="base", shape=("B", "K", "V"), dtype="float")
        coins = draft_coins(lens, guesses, p, b) if drawn else None
        if markov:
            tokens, laws = _by_markov(p, b, hidden, logits, coins, rnn=markov == RNN, mapped=mapped)
        else:
            tokens, laws = _each_by_itself(p, b, logits, coins, mapped=mapped)
        if heat is not None:
            shape = ("B", "K")
            note = "logits; each from what stands before its guess"
            trust = p.op(
                "trust", hidden, bonus, tokens, out="trust", shape=shape, dtype="float", note=note
            )
            p.store(state(b, "trust"), trust)
            note = "sigmoid, then the running product"
            survival = p.op(
                "survivals", trust, heat, out="survival", shape=shape, dtype="float", note=note
            )
        p.give(*filter(None, (tokens, laws, survival)))
    return Guess(tokens=tokens, laws=laws, phases=("draft",), shows=TAPS, survival=survival)


def _each_by_itself(
    p: PhaseBuilder, b: Builder, logits: Value, coins: Value | None, *, mapped: bool
) -> tuple[Value, Value | None]:
    """The likeliest token of each row, or a draw from each row's law."""
    shape: Shape = ("B", "K")
    if coins is None:
        if not mapped:
            return p.op("best_token", logits, out="guesses", shape=shape), None
        words = p.op("best_token", logits, out="words", shape=shape)
        return p.op("target_ids", words, out="guesses", shape=shape), None
    wide: Shape = ("B", "K", "V")
    law = p.op("law_of", logits, state(b, "temperature"), out="laws", shape=wide, dtype="float")
    if mapped:
        law = p.op("target_law", law, out="whole_laws", shape=wide, dtype="float")
    return p.op("pick_all", law, coins, out="guesses", shape=shape), law


def _by_markov(
    p: PhaseBuilder,
    b: Builder,
    hidden: Value,
    base: Value,
    coins: Value | None,
    *,
    rnn: bool,
    mapped: bool,
) -> tuple[Value, Value | None]:
    """Row by row, each corrected by the token before it (2c)."""
    last = p.op("read", state(b, "bonus_token"), out="last", shape=("B",))
    memory = None
    if rnn:
        memory = p.op("no_memory", last, out="memory", shape=("B", "R"), dtype="float")
    with p.repeat(b.constants["NUM_GUESSES"], first=0) as loop:
        word = loop.carry(last)
        words = loop.gather(last, "chain", fresh=True)
        remembered = loop.carry(memory) if memory is not None else None
        bias = Value("bias", ("B", "V"), "float")
        if remembered is None:
            p.ops("markov", word.now, hidden, loop.index, outs=(bias,))
        else:
            kept = Value("memory", ("B", "R"), "float")
            operands = (word.now, hidden, loop.index, remembered.now)
            p.ops("markov_memory", *operands, outs=(bias, kept))
            remembered.next = kept
        logits = p.op(
            "corrected", base, loop.index, bias, out="logits", shape=("B", "V"), dtype="float"
        )
        guess, law = choose(logits, coins, loop.index, p, b, mapped=mapped)
        word.next = words.next = guess
        laws = loop.gather(law, "laws", fresh=True) if law is not None else None
        if laws is not None:
            laws.next = law
    tokens = p.op("stack", words.all, out="guesses", shape=("B", "K"))
    proposed = None
    if laws is not None:
        wide = ("B", "K", "V")
        proposed = p.op("stack", laws.all, out="proposed", shape=wide, dtype="float")
    return tokens, proposed
