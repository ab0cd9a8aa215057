"""Aliases and per-architecture defaults, as data: a default has one home, and it may be here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Alias:
    """A name that means another."""

    means: str
    because: str


PLAIN = "NONE"  # the draft that guesses nothing: what every other one is compared with

ALIASES: dict[str, Alias] = {
    "PLAIN": Alias(PLAIN, "PLAIN is another word for no draft"),
    "DRAFT_MODEL": Alias("STANDALONE", "a draft model of its own is STANDALONE"),
    "AUTOREGRESSIVE": Alias(PLAIN, "plain decoding drafts nothing"),
}

# The draft that a network of each format is made for.
MADE_FOR: dict[str, str] = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "eagle3_speculators": "EAGLE3",
    "mtp": "NEXTN",
    "mtp_mimo": "NEXTN",
    "mtp_qwen3_next": "NEXTN",
    "mtp_speculators": "NEXTN",
    "mtp_layers": "MULTI_LAYER_EAGLE",
    "assistant": "FROZEN_KV_MTP",
    "causal_lm": "STANDALONE",
}

# Defaults that depend on the target's architecture; "*" is every other one.
# num_steps 3: chain 3-1-4 is what SGLang runs where nothing is said (constraints.md).
CHAIN_SHAPES: dict[str, dict[str, Any]] = {
    "*": {"num_steps": 3},
}

# NGRAM verifies 12 positions, bonus included (serial.md §6.7).
LOOKUP_SHAPES: dict[str, dict[str, Any]] = {
    "*": {"num_draft_tokens": 12},
}

TABLES: dict[str, dict[str, dict[str, Any]]] = {
    "CHAIN_SHAPES": CHAIN_SHAPES,
    "LOOKUP_SHAPES": LOOKUP_SHAPES,
}


def look_up(table: str, architecture: str, key: str) -> tuple[Any, str]:
    """A default and the row it came from: `CHAIN_SHAPES[*]`."""
    rows = TABLES[table]
    row = architecture if key in rows.get(architecture, {}) else "*"
    return rows[row][key], f"tables.{table}[{row}]"
