"""MULTI_LAYER_EAGLE: each guess has a layer of its own, run while the draft is extended (§6.4).

So the draft phase has no forward: the last commit left the whole chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specflow.diagnostics import Put
from specflow.facts import Facts
from specflow.formats import HIDDEN
from specflow.graph import Builder
from specflow.provenance import Origin
from specflow.recipe import Fields, ResolvedRecipe, field
from specflow.rules import Finding, rule
from specflow.stages.base import Axes, Derived, DraftStage, Guess, Seeds, own_layer, state
from specflow.stages.growing import constants


class MultiLayerEagleFields(Fields):
    """What a recipe may say about a draft with a layer for each step."""

    model: str = field(
        "The draft: folder of a checkpoint, or builtin:NAME.",
        derive="the target's own checkpoint, where it holds an MTP layer",
        min_length=1,
    )
    num_steps: int = field(
        "Tokens guessed, each by a layer of its own.", derive="the draft's layers", ge=1, le=63
    )
    topk: int = field("Branches kept a step: 1, always.", default=1, ge=1, le=16)


@rule("SF015", "more-steps-than-mtp-layers")
def more_steps_than_layers(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft with a layer for each step has a layer for each step.

    ## Why
    Step `k` is guessed by layer `k`, which was trained for it alone.

    ## Example
    ```yaml
    target: {model: XiaomiMiMo/MiMo-V2-Flash}
    draft: {algorithm: MULTI_LAYER_EAGLE, num_steps: 5}
    ```

    Use instead:
    ```yaml
    target: {model: XiaomiMiMo/MiMo-V2-Flash}
    draft: {algorithm: MULTI_LAYER_EAGLE, num_steps: 3}
    ```

    ## Fix
    Leave `draft.num_steps` out: there are as many steps as layers.
    """
    net, layers = r.facts.net, r.facts.net.steps
    if r.axes.guess != "layer_per_step" or net.format not in MULTI_LAYER_EAGLE.formats:
        return
    if r["draft.num_steps"] > layers:
        yield Finding(
            at="draft.num_steps",
            message=f"{r['draft.num_steps']} steps need as many draft layers, "
            f"and the checkpoint has {layers}",
            label=f"at most {layers}",
            because={
                "target.model" if net.bundled else "draft.model": f"holds {layers} draft layers"
            },
            help=f"leave `draft.num_steps` out, or write {layers} or less",
            fix=Put("draft.num_steps", layers, safe=False),
        )


def layers_of(facts: Facts) -> Derived:
    """A step for each layer."""
    because = f"the draft has {facts.net.steps} layers"
    return Derived(facts.net.steps, because, Origin.CHECKPOINT)


def guesses(fields: Mapping[str, Any]) -> int:
    """One guess a layer."""
    return int(fields["num_steps"])


def lower(recipe: ResolvedRecipe, b: Builder, drawn: bool) -> Guess:
    """Nothing to run: the guesses are state, their laws too where they were drawn."""
    constants(recipe, b, recipe.facts.net.hidden_size)
    recent = recipe["draft.num_steps"] - 1
    b.constant("NUM_RECENT", recent, "rows whose later layers guessed a token that is known now")
    laws = state(b, "laws_ahead") if drawn else None
    left = Seeds(drawn=drawn, mapped=recipe.facts.net.has_map)
    return Guess(tokens=state(b, "words_ahead"), laws=laws, shows=HIDDEN, seeds=left)


def cost(draft: Any) -> str:
    """No forward to guess, one a layer to go on."""
    return f"no draft forward, {draft.num_steps} extends of one layer each"


MULTI_LAYER_EAGLE = DraftStage(
    name="MULTI_LAYER_EAGLE",
    axes=Axes(signal="hidden", guess="layer_per_step", shape="chain", draft_state="extend_layers"),
    doc="the target's last hidden state and the tokens after it",
    fields=MultiLayerEagleFields,
    shapes={"chain": ("extend_layers",)},
    drafter="layers",
    has_law=True,
    guesses=guesses,
    lower=lower,
    cost=cost,
    derive={"model": own_layer, "num_steps": layers_of},
    rules=(more_steps_than_layers,),
    formats=("mtp_layers",),
)
