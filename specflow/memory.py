"""How much memory a recipe takes, and what a draft's window saves of it: no torch, no weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from specflow.config_sizes import Attention, Sizes, Unknown
from specflow.recipe import ResolvedRecipe
from specflow.sizes import sizes_of_draft, sizes_of_target
from specflow.stages import DRAFTS
from specflow.stages.blocks import SIZE, block_rows

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
UNITS = ((30, "G"), (20, "M"), (10, "K"))


def reach(recipe: ResolvedRecipe) -> int:
    """The most positions beyond the committed ones that a step touches, in any pool."""
    width: int = recipe["verify.num_draft_tokens"]
    return max(width + 1, DRAFTS[recipe.stages[0]].reach(recipe.draft))


def positions(recipe: ResolvedRecipe) -> int:
    """KV positions of a row: the longest request, and what a step touches beyond its end."""
    # A step whose results are read late runs once more after the end of a request.
    late = recipe["verify.num_draft_tokens"] if recipe.run.graph == "on" else 0
    return recipe.run.max_length + reach(recipe) + int(late)


def ring_slots(window: int, page: int, rows: int) -> int:
    """Slots of a request whose draft keeps a window of positions beside a block of `rows`.

    At draft time the live positions are at most `page - 1` more than the window, and the block; the
    slot that a commit overwrites is then older than any of them (parallel.md 8.2).
    """
    return window + page + rows


def slots_of(window: int, page: int, rows: int, whole: int) -> int:
    """Slots of a request: those of its ring, or of all its positions where that is no larger."""
    return min(ring_slots(window, page, rows), whole) if window else whole


@dataclass(frozen=True)
class DraftKV:
    """The keys and values of a block draft.

    requests  decoded at once
    slots     of each: all its positions, or those of a ring
    whole     positions of each, without a window
    parts     window, page and rows of a block; empty where all positions are kept
    width     bytes of a position, over all layers
    """

    requests: int
    slots: int
    whole: int
    parts: tuple[int, int, int] | None
    width: int

    @property
    def bytes(self) -> int:
        """What is allocated, but for one spare row."""
        return self.requests * self.slots * self.width

    @property
    def bytes_whole(self) -> int:
        """What would be without the window."""
        return self.requests * self.whole * self.width


def draft_kv(recipe: ResolvedRecipe) -> DraftKV | None:
    """What the draft of a recipe keeps; None for drafts of other kinds, or of unknown sizes."""
    width = recipe.facts.net.block.kv_width
    if SIZE not in recipe or not width:
        return None
    requests, whole = recipe.run.batch_size, positions(recipe)
    window, page, rows = recipe["draft.window_size"], recipe["draft.page_size"], block_rows(recipe)
    slots = slots_of(window, page, rows, whole)
    parts = (window, page, rows) if slots < whole else None
    return DraftKV(requests, slots, whole, parts, width * BYTES[recipe.run.dtype])


@dataclass(frozen=True)
class Footprint:
    """What a recipe takes of memory, in bytes; None is not known, and `unknown` says why.

    weights           of target and draft
    target_weights    the target's share
    kv_a_token        kept of a position by target and draft
    draft_kv_a_token  the draft's share
    kv_a_request      of all positions of a request; a draft with a window keeps fewer
    draft_kv          of a request, the draft's share
    logits            of a request, while a step is verified
    windowed          KV of a request where no more than windows are kept, and latents as they are
    stored            weights as their checkpoints have them; None where that is not known
    whole             of an engine's: KV of a request where all positions are kept
    """

    weights: int | None
    target_weights: int | None
    kv_a_token: int | None
    draft_kv_a_token: int | None
    kv_a_request: int | None
    draft_kv: int | None
    logits: int
    windowed: int | None = None
    stored: int | None = None
    whole: int | None = None
    unknown: tuple[str, ...] = ()

    @property
    def on_engines(self) -> Footprint:
        """The same on an engine that keeps weights as they are stored, and windows alone."""
        weights = self.weights if self.stored is None else self.stored
        kept = self.kv_a_request if self.windowed is None else self.windowed
        return replace(self, weights=weights, kv_a_request=kept)

    @property
    def a_request(self) -> int | None:
        """What one more request takes."""
        return None if self.kv_a_request is None else self.kv_a_request + self.logits

    def total(self, batch: int) -> int | None:
        """What a batch takes, weights included."""
        if self.weights is None or self.a_request is None:
            return None
        return self.weights + batch * self.a_request

    def largest_batch(self, memory: int) -> int | None:
        """The most requests that fit into so many bytes; 0 where none does."""
        if self.weights is None or self.a_request is None:
            return None
        return max(memory - self.weights, 0) // self.a_request


def sizes_of(recipe: ResolvedRecipe) -> tuple[Sizes | Unknown, Sizes | Unknown | None]:
    """The sizes of the target and of the network that drafts; None where none does."""
    drafts = bool(DRAFTS[recipe.stages[0]].formats)
    return sizes_of_target(recipe.facts["target"]), sizes_of_draft(recipe.facts) if drafts else None


def footprint(recipe: ResolvedRecipe) -> Footprint:
    """What a recipe takes: weights and KV in its dtype, and the logits of what a step verifies."""
    width = BYTES[recipe.run.dtype]
    target, draft = sizes_of(recipe)
    drafts = draft is not None
    unknown = (each.reason for each in (target, draft) if isinstance(each, Unknown))
    kept = target.kept * width if isinstance(target, Sizes) else None
    own = (draft.kept * width if isinstance(draft, Sizes) else None) if drafts else 0
    block = draft_kv(recipe)  # of a block draft, which may keep a window only
    if block is not None:
        own = block.width
    of_draft = own if own is None else own * (block.slots if block else positions(recipe))
    of_target = None if kept is None else kept * positions(recipe)
    windowed = _sum(
        _windowed(target, recipe), _windowed(draft, recipe) if block is None else of_draft
    )
    stored = _sum(stored_bytes(target), stored_bytes(draft) if drafts else 0)
    weights = target.total * width if isinstance(target, Sizes) else None
    beside = (draft.total * width if isinstance(draft, Sizes) else None) if drafts else 0
    return Footprint(
        weights=_sum(weights, beside),
        target_weights=weights,
        kv_a_token=_sum(kept, own),
        draft_kv_a_token=own,
        kv_a_request=_sum(of_target, of_draft),
        draft_kv=of_draft,
        logits=logits(recipe, width),
        windowed=windowed,
        stored=stored,
        unknown=tuple(dict.fromkeys(unknown)),
    )


def stored_bytes(sizes: Sizes | Unknown | None) -> int | None:
    """Bytes of a network's weights as its checkpoint has them."""
    stored = sizes.stored if isinstance(sizes, Sizes) else None
    return None if stored is None else stored.total


def kept_numbers(
    layers: Iterable[Attention], recipe: ResolvedRecipe, split: int = 1, *, windows: bool = True
) -> int:
    """Numbers of a request that an engine keeps, latents as they are.

    split    machines that share a layer's heads, each with whole ones; latents are of all heads
    windows  layers that see a window keep no more than it
    """
    whole, beyond = positions(recipe), reach(recipe)
    total = 0
    for each in layers:
        held = min(whole, each.window + beyond) if each.window and windows else whole
        if each.latent:
            total += (each.narrow or each.keeps) * held
        else:
            total += each.keeps * math.ceil(each.heads / split) // each.heads * held
    return total


def _windowed(sizes: Sizes | Unknown | None, recipe: ResolvedRecipe) -> int | None:
    """Bytes of a request's KV where windows alone are kept; 0 where no network is."""
    if sizes is None:
        return 0
    width = BYTES[recipe.run.dtype]
    return kept_numbers(sizes.layers, recipe) * width if isinstance(sizes, Sizes) else None


def logits(recipe: ResolvedRecipe, width: int) -> int:
    """Bytes of the logits of a request's verified positions, and of their law where it is drawn."""
    a_logit = width + (4 if recipe.sampling.temperature > 0 else 0)
    positions_judged: int = recipe["verify.num_draft_tokens"]
    return positions_judged * recipe.facts["target"].vocab_size * a_logit


def _sum(*parts: int | None) -> int | None:
    """The sum of numbers; None where one of them is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def draft_kv_text(recipe: ResolvedRecipe) -> list[str]:
    """The same in words, for `explain`; nothing for drafts of other kinds."""
    kept = draft_kv(recipe)
    if kept is None:
        return []
    each = f"{kept.width} bytes a position"
    whole = f"{kept.requests} x {kept.whole} positions = {size(kept.bytes_whole)}"
    if kept.parts is None:
        said = f"draft KV: {whole}, at {each}"
        if recipe["draft.window_size"]:
            said += "; the window saves nothing: it holds as much as a request has"
        return [said + "."]
    ring = f"{kept.requests} x ({' + '.join(map(str, kept.parts))}) positions"
    made_of = f"window + page + block, {each}"
    return [f"draft KV: {ring} = {size(kept.bytes)} ({made_of}); without the window {whole}."]


def size(count: float, digits: int = 3) -> str:
    """A number of bytes as a reader says it: so many digits, in the largest unit below it."""
    scale, unit = next(
        ((2**power, f"{letter}iB") for power, letter in UNITS if abs(count) >= 2**power), (1, "B")
    )
    number = count / scale
    whole = len(str(int(abs(number))))
    return f"{number:.{max(digits - whole, 0) if scale > 1 else 0}f} {unit}"


def sizes_apart(less: float, more: float) -> tuple[str, str]:
    """Two numbers of bytes, with as many digits as tell one from the other."""
    for digits in range(3, 12):
        said = size(less, digits), size(more, digits)
        if said[0] != said[1]:
            return said
    return f"{less} B", f"{more} B"
