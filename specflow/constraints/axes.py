"""SF030 to SF049: which values of the four axes go together."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, rule
from specflow.stages import DRAFTS


@rule("SF039", "axis-mismatch")
def axis_mismatch(r: ResolvedRecipe) -> Iterator[Finding]:
    """The axes that are written are ones the draft can feed.

    ## Why
    A draft stage is a point on the axes signal and guess; it can feed some verify shapes and go on
    in some ways. A trie has no KV to catch up, and a chain drafter has no tree to verify.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    commit: {draft_state: catch_up}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    commit: {draft_state: insert}
    ```

    ## Fix
    Leave the axis out: the algorithm's row fills it. Or write one of the values the finding lists.
    """
    stage = DRAFTS[r.stages[0]]
    allowed = {
        "draft.signal": (stage.axes.signal,),
        "draft.guess": (stage.axes.guess,),
        "verify.shape": stage.shapes,
        "commit.draft_state": stage.draft_states,
    }
    for path, values in allowed.items():
        if r[path] not in values:
            yield Finding(
                at=path,
                message=f"`{path.split('.')[1]}: {r[path]}` does not go with {stage.name}",
                label=f"expected {' or '.join(values)}",
                because={"draft.algorithm": stage.doc},
                help=f"leave it out, or write {' or '.join(f'`{v}`' for v in values)}",
            )
