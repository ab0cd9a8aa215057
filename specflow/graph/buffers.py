"""State planning: keep the buffers that the step touches, in the order a reader wants them."""

from __future__ import annotations

from dataclasses import replace

from specflow.graph.ir import Buffer, Constant, StepGraph, reads, writes

# The host reads these two after every step, whatever the recipe (session.py).
OUTPUTS = ("accept_len", "output_tokens")
# The constants behind the letters that state is shaped by.
LETTERS = {
    "W": "NUM_DRAFT_TOKENS",
    "T": "TOPK",
    "H": "HIDDEN_SIZE",
    "V": "VOCAB_SIZE",
    "R": "NUM_RECENT",
}


def plan(graph: StepGraph) -> StepGraph:
    """Drop buffers and constants that no phase touches; outputs for the host come last."""
    used: set[str] = set()
    for phase in graph.phases:
        for node in phase.nodes:
            used |= {o.name for o in reads(node) if isinstance(o, Buffer | Constant)}
            used |= {o.name for o in writes(node) if isinstance(o, Buffer)}
        if phase.choice:
            used |= {least.name for least, _ in phase.choice.cases}
    kept = sorted((b for b in graph.buffers if b.name in used), key=lambda b: b.name in OUTPUTS)
    used |= {LETTERS[d] for b in kept for d in map(str, b.shape) if d in LETTERS}
    constants = tuple(c for c in graph.constants if c.name in used or c.name == LETTERS["W"])
    return replace(graph, buffers=tuple(kept), constants=constants)
