"""SF011 to SF019, SF030, SF053, SF054: how wide a step is, and what shape it has."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.diagnostics import Drop, Put
from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, rule
from specflow.stages import DRAFTS
from specflow.stages.blocks import SIZE
from specflow.stages.growing import candidates

FEW = 4  # branches that a recipe is offered where it names none


def branches(r: ResolvedRecipe) -> int:
    """How many a serial draft keeps a step; 0 where a draft has no such number."""
    return int(r["draft.topk"]) if "draft.topk" in r else 0


@rule("SF011", "branches-on-a-chain-draft")
def branches_on_a_chain(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft that keeps branches verifies a tree.

    ## Why
    In a chain each guess has one successor, so every other branch would be drafted for nothing. A
    draft with a layer for each step leaves one guess a layer, and has no tree to verify.

    ## Example
    ```yaml
    target: {model: XiaomiMiMo/MiMo-V2-Flash}
    draft: {algorithm: MULTI_LAYER_EAGLE, topk: 4}
    ```

    Use instead:
    ```yaml
    target: {model: XiaomiMiMo/MiMo-V2-Flash}
    draft: {algorithm: MULTI_LAYER_EAGLE}
    ```

    ## Fix
    Leave `draft.topk` out, or leave `verify.shape` out where the draft can feed a tree.
    """
    kept, draft = branches(r), DRAFTS[r.stages[0]]
    if r.axes.shape != "chain" or kept <= 1:
        return
    if "tree" in draft.shapes:
        because = {"verify.shape": "each guess has one successor"}
        offer = "leave `verify.shape` out to verify a tree, or write `topk: 1`"
    else:
        because = {"draft.algorithm": "one guess a step: it has no tree"}
        offer = "leave `draft.topk` out"
    yield Finding(
        at="draft.topk",
        message=f"{kept} branches a step, and a chain keeps one",
        label="expected 1",
        because=because,
        help=offer,
        fix=None if "tree" in draft.shapes else Drop("draft.topk"),
    )


@rule("SF012", "chain-width-mismatch")
def chain_width_mismatch(r: ResolvedRecipe) -> Iterator[Finding]:
    """A chain is verified at exactly as many positions as it has guesses, plus one.

    ## Why
    Each draft step proposes one token, so the target verifies the bonus token plus `num_steps`
    guesses. A wider verify would score positions that nobody guessed; a narrower one would throw
    guesses away.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 3}
    verify: {num_draft_tokens: 8}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 7}
    ```

    ## Fix
    Leave `verify.num_draft_tokens` out: it is derived. Or change `draft.num_steps`.
    """
    if r.axes.shape != "chain" or branches(r) > 1 or SIZE in r:  # blocks have a rule of their own
        return
    guesses = DRAFTS[r.stages[0]].guesses(r.draft.model_dump())
    width = r["verify.num_draft_tokens"]
    if guesses is None or width == guesses + 1:
        return
    most = "draft.adaptive_slots" if _adapts(r) else "draft.num_steps"
    steps = {most: f"{guesses} guesses + 1 bonus token = {guesses + 1} positions"}
    meant = f"write `{most}: {width - 1}`" if most == "draft.num_steps" else f"change `{most}`"
    yield Finding(
        at="verify.num_draft_tokens",
        message=f"a chain of {guesses} steps verifies {guesses + 1} positions, not {width}",
        label=f"expected {guesses + 1}",
        because=steps if "draft.num_steps" in r else {"draft.algorithm": "nothing is drafted"},
        help="remove `verify.num_draft_tokens`; it is derived from the number of guesses"
        + (f"; or {meant}" if most in r and width > 1 else ""),
        fix=Drop("verify.num_draft_tokens", otherwise=(meant,) if most in r and width > 1 else ()),
    )


@rule("SF014", "tree-wider-than-guesses")
def tree_wider_than_guesses(r: ResolvedRecipe) -> Iterator[Finding]:
    """A tree has no more positions than the draft offers guesses, plus one.

    ## Why
    The first level offers `topk` guesses, every later one `topk` for each of the `topk` branches
    that were kept: `topk + (num_steps - 1) * topk^2` in all, of which the best are verified. A
    wider tree has positions that nobody guessed.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 2, topk: 2}
    verify: {num_draft_tokens: 12}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 4, topk: 2}
    verify: {num_draft_tokens: 12}
    ```

    ## Fix
    Lower `verify.num_draft_tokens` or leave it out; or raise `draft.num_steps` or `draft.topk`.
    """
    kept = branches(r)
    if r.axes.shape != "tree" or kept <= 1 or _adapts(r):
        return
    offered, width = candidates(r.draft.model_dump()), r["verify.num_draft_tokens"]
    if width - 1 <= offered:
        return
    steps = r["draft.num_steps"]
    yield Finding(
        at="verify.num_draft_tokens",
        message=f"a tree of {width} positions needs {width - 1} guesses, and the draft offers "
        f"{offered}",
        label=f"at most {offered + 1}",
        because={
            "draft.num_steps": f"{kept} + {steps - 1} x {kept}^2 = {offered} guesses",
            "draft.topk": "branches kept a step",
        },
        help=f"write `num_draft_tokens: {offered + 1}` or less, or raise `draft.num_steps` or "
        "`draft.topk`",
        fix=Put(
            "verify.num_draft_tokens",
            offered + 1,
            safe=False,
            otherwise=("raise `draft.num_steps`", "raise `draft.topk`"),
        ),
    )


@rule("SF030", "tree-without-branches")
def tree_without_branches(r: ResolvedRecipe) -> Iterator[Finding]:
    """A tree is drafted with branches.

    ## Why
    With one branch a step each guess has one successor: that is a chain, which costs less to
    verify and may be judged by the draft's own law.

    ## Example
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, topk: 1}
    verify: {shape: tree}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, topk: 4}
    ```

    ## Fix
    Write a `draft.topk` above 1, which makes a tree by itself; or leave `verify.shape` out.
    """
    if r.axes.shape == "tree" and branches(r) == 1:
        yield Finding(
            at="verify.shape",
            message="a tree of one branch a step is a chain",
            label="no branches",
            because={"draft.topk": "one branch a step"},
            help=f"write `draft.topk: {FEW}` for a tree, or leave `verify.shape` out for a chain",
            fix=Drop("verify.shape", safe=False, otherwise=(f"write `draft.topk: {FEW}`",)),
        )


def _adapts(r: ResolvedRecipe) -> bool:
    """Whether acceptance decides the number of steps."""
    return "draft.adaptive" in r and bool(r["draft.adaptive"])


@rule("SF018", "more-branches-than-words")
def more_branches_than_words(r: ResolvedRecipe) -> Iterator[Finding]:
    """A step keeps no more branches than the draft has words.

    ## Why
    The branches of a step are its likeliest words, each another one.

    ## Example
    The head of `tiny-eagle3` has 5 rows.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3, topk: 6}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: EAGLE3, model: tiny-eagle3, topk: 4}
    ```

    ## Fix
    Lower `draft.topk`.
    """
    if "draft.topk" not in r:
        return
    words = r.facts.net.vocab_size or r.facts["target"].vocab_size
    if words and r["draft.topk"] > words:
        yield Finding(
            at="draft.topk",
            message=f"{r['draft.topk']} branches a step, and the draft knows {words} words",
            label=f"at most {words}",
            help=f"lower `draft.topk` to {words} or less",
            fix=Put("draft.topk", words, safe=False),
        )


@rule("SF053", "adaptive-steps-on-tree")
def adaptive_steps_on_tree(r: ResolvedRecipe) -> Iterator[Finding]:
    """Adaptive steps belong to a chain.

    ## Why
    A chain of fewer steps is the same draft, cut short. A tree of fewer levels has other
    candidates, and its width would not follow.

    ## Example
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: EAGLE3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, topk: 4, adaptive: true}
    ```

    Use instead:
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: EAGLE3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, adaptive: true}
    ```

    ## Fix
    Leave `draft.topk` out, or set `draft.adaptive: false`.
    """
    if "draft.adaptive" in r and r["draft.adaptive"] and r.axes.shape != "chain":
        because = {"draft.topk": "above 1 makes a tree"} if r["draft.topk"] > 1 else {}
        yield Finding(
            at="draft.adaptive",
            message="steps adapt on a chain only, and a tree is verified",
            label="needs topk = 1",
            because=because,
            help="leave `draft.topk` out, or set `draft.adaptive: false`",
            fix=Put("draft.adaptive", False, safe=False, otherwise=("leave `draft.topk` out",)),
        )


@rule("SF054", "adaptive-steps-without-a-draft")
def no_step_to_adapt_to(r: ResolvedRecipe) -> Iterator[Finding]:
    """Some slot of an adaptive draft has a step to take.

    ## Why
    0 is plain decoding. Where every slot offers nothing else the draft never guesses, and costs its
    forward all the same.

    ## Example
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft:
      algorithm: EAGLE3
      model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
      adaptive: true
      adaptive_slots: {1: [0]}
    ```

    Use instead:
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft:
      algorithm: EAGLE3
      model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
      adaptive: true
      adaptive_slots: {1: [0, 1, 3]}
    ```

    ## Fix
    Put a number above 0 into a slot, or leave `draft.adaptive_slots` out.
    """
    if "draft.adaptive" not in r or not r["draft.adaptive"]:
        return
    if not any(steps for _, choices in r["draft.adaptive_slots"] for steps in choices):
        yield Finding(
            at="draft.adaptive_slots",
            message="no slot offers a draft step: nothing would ever be guessed",
            label="only 0",
            because={"draft.adaptive": "steps are chosen from the slots"},
            help="put a number above 0 into a slot, or leave `draft.adaptive_slots` out",
            fix=Drop(
                "draft.adaptive_slots", safe=False, otherwise=("put a number above 0 into a slot",)
            ),
        )
