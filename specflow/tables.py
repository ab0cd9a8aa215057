"""Aliases and per-architecture defaults, as data: a default has one home, and it may be here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Alias:
    """A name that means another; with `draft`, only beside a draft network of that format."""

    means: str
    because: str
    draft: str = ""


PLAIN = "NONE"  # the draft that guesses nothing: what every other one is compared with

_ASSISTANT = Alias(
    "FROZEN_KV_MTP", "the draft is a Gemma 4 assistant, which reads the target's KV", "assistant"
)

# The first that fits is taken; a name may be a draft's own and mean another beside some drafts.
ALIASES: dict[str, tuple[Alias, ...]] = {
    "PLAIN": (Alias(PLAIN, "PLAIN is another word for no draft"),),
    "AUTOREGRESSIVE": (Alias(PLAIN, "plain decoding drafts nothing"),),
    "DRAFT_MODEL": (Alias("STANDALONE", "a draft model of its own is STANDALONE"),),
    "NEXTN": (_ASSISTANT, Alias("EAGLE", "an MTP layer drafts as EAGLE does")),
    "MTP": (
        _ASSISTANT,
        Alias("MULTI_LAYER_EAGLE", "there is an MTP layer for each draft step", "mtp_layers"),
        Alias("EAGLE", "an MTP layer drafts as EAGLE does"),
    ),
    "EAGLE2": (Alias("EAGLE", "EAGLE-2 is EAGLE with topk above 1"),),
    "EAGLE": (_ASSISTANT,),
}


def alias_of(name: str, draft: str) -> Alias | None:
    """What a name means beside a draft network of a format."""
    fits = (a for a in ALIASES.get(name, ()) if a.draft in ("", draft))
    return next(fits, None)


# Engines whose flags a recipe may carry under `engine`; a test holds them to the table of engines.
ENGINES = ("sglang", "vllm", "trtllm", "llamacpp")

# What other engines call our fields.
ENGINE_NAMES: dict[str, str] = {
    "speculative_algorithm": "draft.algorithm",
    "speculative_draft_model_path": "draft.model",
    "speculative_draft_model": "draft.model",
    "speculative_num_steps": "draft.num_steps",
    "speculative_eagle_topk": "draft.topk",
    "speculative_num_draft_tokens": "verify.num_draft_tokens",
    "speculative_adaptive": "draft.adaptive",
    "speculative_dflash_block_size": "draft.block_size",
    "speculative_dspark_block_size": "draft.block_size",
    "speculative_draft_window_size": "draft.window_size",
    "speculative_dspark_confidence_sts_path": "verify.temperatures",
    "speculative_dspark_sps_table_path": "verify.cost_table",
    "speculative_dspark_align_verify_tokens_to_graph_tier": "verify.token_bucket",
    "num_speculative_tokens": "draft.num_steps",
    "method": "draft.algorithm",
    "model_path": "target.model",
    "max_running_requests": "run.batch_size",
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
    "dflash": "DFLASH",
    "dspark": "DSPARK",
    "causal_lm": "STANDALONE",
}

# Defaults that depend on the target's architecture; "*" is every other one.
# num_steps 3: chain 3-1-4 is what SGLang runs where nothing is said (constraints.md).
CHAIN_SHAPES: dict[str, dict[str, Any]] = {
    "*": {"num_steps": 3, "topk": 1},
}

# Steps an adaptive draft chooses from, by batch size: what SGLang tries (serial.md §6.13).
ADAPTIVE_SLOTS: dict[str, dict[str, Any]] = {
    "*": {"adaptive_slots": ((1, (1, 3, 5, 7)), (8, (0, 1, 3)), (32, (0, 1)), (64, (0,)))},
}

# NGRAM verifies 12 positions, bonus included (serial.md §6.7).
LOOKUP_SHAPES: dict[str, dict[str, Any]] = {
    "*": {"num_draft_tokens": 12},
}

TABLES: dict[str, dict[str, dict[str, Any]]] = {
    "CHAIN_SHAPES": CHAIN_SHAPES,
    "ADAPTIVE_SLOTS": ADAPTIVE_SLOTS,
    "LOOKUP_SHAPES": LOOKUP_SHAPES,
}


def by_architecture(table: str) -> bool:
    """Whether a table has other values for some targets."""
    return len(TABLES[table]) > 1


def look_up(table: str, architecture: str, key: str) -> tuple[Any, str]:
    """A default and the row it came from: `CHAIN_SHAPES[*]`."""
    rows = TABLES[table]
    row = architecture if key in rows.get(architecture, {}) else "*"
    return rows[row][key], f"tables.{table}[{row}]"
