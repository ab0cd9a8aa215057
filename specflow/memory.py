"""How much KV a recipe allocates, and what a draft's window saves of it: no torch, no weights."""

from __future__ import annotations

from dataclasses import dataclass

from specflow.recipe import ResolvedRecipe
from specflow.stages import DRAFTS
from specflow.stages.blocks import SIZE, block_rows

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def reach(recipe: ResolvedRecipe) -> int:
    """The most positions beyond the committed ones that a step touches, in any pool."""
    width: int = recipe["verify.num_draft_tokens"]
    return max(width + 1, DRAFTS[recipe.stages[0]].reach(recipe.draft))


def positions(recipe: ResolvedRecipe) -> int:
    """KV positions of a row: the longest request, and what a step touches beyond its end."""
    return recipe.run.max_length + reach(recipe)


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


def size(count: int) -> str:
    """A number of bytes as a reader says it."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= scale / 10:
            return f"{count / scale:.2f} {unit}"
    return f"{count / 2**10:.1f} KiB"
