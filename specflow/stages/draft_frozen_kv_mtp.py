"""FROZEN_KV_MTP: an assistant without keys and values of its own reads the target's (§6.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specflow.formats import HIDDEN
from specflow.graph import Builder, Operand, PhaseBuilder, Value
from specflow.recipe import Fields, ResolvedRecipe, field
from specflow.rules import Finding, rule
from specflow.stages.base import Axes, DraftStage, Guess, state
from specflow.stages.growing import Forward, Steps, by_recipe, constants, guesses, there


class FrozenKvMtpFields(Fields):
    """What a recipe may say about an assistant."""

    model: str = field("The assistant: folder of a checkpoint, or builtin:NAME.", min_length=1)
    num_steps: int = field(
        "Tokens guessed on one path, one draft forward each.", table="CHAIN_SHAPES", ge=1, le=63
    )
    topk: int = field("Branches kept a step; 1 makes a chain.", table="CHAIN_SHAPES", ge=1, le=16)


@rule("SF028", "absent-kv-layer")
def absent_kv_layer(r: ResolvedRecipe) -> Iterator[Finding]:
    """An assistant reads kinds of layers that its target has.

    ## Why
    Each of its layers reads the keys and values of the target's last layer of the same kind:
    sliding or full attention.

    ## Example
    `tiny-assistant` has a layer of sliding attention; `tiny-full` attends to everything.
    ```yaml
    target: {model: tiny-full}
    draft: {algorithm: FROZEN_KV_MTP, model: tiny-assistant}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-gemma4}
    draft: {algorithm: FROZEN_KV_MTP, model: builtin:pico-gemma4-assistant}
    ```

    ## Fix
    Name the assistant that was made for this target.
    """
    target, draft, net = r.facts["target"], r.facts["draft"], r.facts.net
    absent = sorted(set(draft.layer_types) - set(target.layer_types))
    if net.format in FROZEN_KV_MTP.formats and target.layer_types and absent:
        yield Finding(
            at="draft.model",
            message=f"`{draft.model}` reads a `{absent[0]}` layer, and the target has none",
            label="made for another target",
            because={"target.model": f"has {' and '.join(sorted(set(target.layer_types)))}"},
            help="name the assistant that was made for this target",
        )


def start(p: PhaseBuilder, b: Builder) -> Forward:
    """The bonus token, beside where the target stood before it."""
    bonus = state(b, "bonus_token")
    return decode(p, b, bonus, state(b, "draft_hidden"), 0)


def decode(
    p: PhaseBuilder, b: Builder, token: Operand, hidden: Operand | None, _step: Operand
) -> Forward:
    """Every query stands at the last committed position: nothing is written."""
    outs = (Value("logits", ("B", "V"), "float"), Value("hidden", ("B", "H"), "float"))
    p.ops("decode_hidden", token, there(hidden), state(b, "seq_lens"), outs=outs)
    return outs


def grow(
    p: PhaseBuilder,
    b: Builder,
    tokens: Value,
    hidden: Value | None,
    _sees: Value | None,
    _level: Operand,
) -> Forward:
    """The branches of a level; each line lives in its hidden state alone."""
    outs = (Value("logits", ("B", "T", "V"), "float"), Value("grown", ("B", "T", "H"), "float"))
    p.ops("grow_frozen", tokens, there(hidden), state(b, "seq_lens"), outs=outs)
    return outs


STEPS = Steps(decode, grow, start, lanes=False)


def lower(recipe: ResolvedRecipe, b: Builder, drawn: bool) -> Guess:
    """As many forwards as guesses on a path: no commit leaves a guess to begin with."""
    constants(recipe, b, recipe.facts.net.hidden_size)
    return by_recipe(recipe, b, STEPS, drawn, shows=HIDDEN)


def cost(draft: Any) -> str:
    """The forwards of a step."""
    rows = f" of {draft.topk} branches" if draft.topk > 1 else ""
    return f"{draft.num_steps} draft forwards{rows} on the target's KV"


FROZEN_KV_MTP = DraftStage(
    name="FROZEN_KV_MTP",
    axes=Axes(signal="target_kv", guess="autoregressive", shape="chain", draft_state="frozen"),
    doc="the target's own keys and values, and its last hidden state",
    fields=FrozenKvMtpFields,
    shapes={"chain": ("frozen",), "tree": ("frozen",)},
    drafter="assistant",
    has_law=True,
    guesses=guesses,
    lower=lower,
    cost=cost,
    rules=(absent_kv_layer,),
    formats=("assistant",),
)
