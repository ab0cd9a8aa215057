"""What drafts that read layers of the target share: there are such layers, and as many."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.diagnostics import Drop
from specflow.provenance import Origin
from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, rule


@rule("SF021", "tap-out-of-range")
def tap_out_of_range(r: ResolvedRecipe) -> Iterator[Finding]:
    """A tap names a layer the target has.

    ## Why
    Tap `i` is the stream that enters layer `i`; with `L` layers the last one is `L`, what the final
    norm reads. A tap beyond it has nothing to read.

    ## Example
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: EAGLE3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, taps: [2, 16, 33]}
    ```

    Use instead:
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: EAGLE3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}
    ```

    ## Fix
    Leave `draft.taps` out: the draft's own config says which layers it was trained on.
    """
    layers = r.facts["target"].layers
    beyond = [tap for tap in _asked(r) if tap > layers] if layers else []
    if beyond:
        yield Finding(
            at="draft.taps",
            message=f"tap {beyond[0]} is none of the target's {layers} layers",
            label=f"from 0 to {layers}",
            because={"target.model": f"{layers} layers"},
            help=_usual(r),
            fix=Drop("draft.taps") if r.facts.net.taps else None,
        )


@rule("SF023", "tap-count-mismatch")
def tap_count_mismatch(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft reads as many taps as its projection has weights for.

    ## Why
    The taps are laid side by side and projected to one state. The width of that projection, told
    from the header of the checkpoint, says how many there are.

    ## Example
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: EAGLE3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, taps: [2, 16]}
    ```

    Use instead:
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: EAGLE3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, taps: [2, 16, 29]}
    ```

    ## Fix
    Write the layers the draft was trained on, or leave `draft.taps` out.
    """
    net, taps, width = r.facts.net, _asked(r), r.facts["target"].hidden_size
    known = net.tap_count and net.tap_count * width == net.reads_width
    if net.tap_count > r.facts["target"].layers or net.hidden_size != width:
        return  # a draft of another width: that is the finding
    if not taps or not known or len(taps) == net.tap_count:
        return
    yield Finding(
        at="draft.taps",
        message=f"{len(taps)} taps for a draft that reads {net.tap_count}",
        label=f"expected {net.tap_count}",
        because={"draft.model": f"reads rows of {net.reads_width} = {net.tap_count} x {width}"},
        help=_usual(r),
        fix=Drop("draft.taps") if net.taps else None,
    )


def _asked(r: ResolvedRecipe) -> tuple[int, ...]:
    """Taps that are not the draft's own: what its config says of itself is judged with it."""
    if "draft.taps" not in r or r.ledger["draft.taps"].origin is Origin.CHECKPOINT:
        return ()
    return tuple(r["draft.taps"])


def _usual(r: ResolvedRecipe) -> str:
    """The way out of taps that do not fit."""
    if r.facts.net.taps:
        trained = ", ".join(map(str, r.facts.net.taps))
        return f"leave `draft.taps` out: the draft's config names [{trained}]"
    return f"write the {r.facts.net.tap_count or 3} layers that the draft was trained on"


TAP_RULES = (tap_out_of_range, tap_count_mismatch)
