"""The four tables of stages: one row a stage, one file a row."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Generic, TypeVar

from specflow.stages.base import AcceptStage, CommitStage, DraftStage, VerifyStage

T = TypeVar("T")


class Table(Generic[T]):
    """Names to `module:ATTRIBUTE`, imported when looked up."""

    def __init__(self, what: str, rows: dict[str, str]) -> None:
        self.what = what
        self.rows = rows

    def __getitem__(self, name: str) -> T:
        module, _, attribute = self.rows[name].partition(":")
        found: T = getattr(import_module(module), attribute)
        return found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.rows

    def names(self) -> tuple[str, ...]:
        """Every row's name."""
        return tuple(self.rows)


DRAFTS = Table[DraftStage](
    "draft stage",
    {
        "NONE": "specflow.stages.draft_none:NONE",
        "NGRAM": "specflow.stages.draft_ngram:NGRAM",
        "STANDALONE": "specflow.stages.draft_standalone:STANDALONE",
        "EAGLE": "specflow.stages.draft_eagle:EAGLE",
        "EAGLE3": "specflow.stages.draft_eagle3:EAGLE3",
        "MULTI_LAYER_EAGLE": "specflow.stages.draft_multi_layer_eagle:MULTI_LAYER_EAGLE",
        "FROZEN_KV_MTP": "specflow.stages.draft_frozen_kv_mtp:FROZEN_KV_MTP",
        "DFLASH": "specflow.stages.draft_dflash:DFLASH",
        "DSPARK": "specflow.stages.draft_dspark:DSPARK",
    },
)

VERIFIES = Table[VerifyStage](
    "verify shape",
    {
        "chain": "specflow.stages.verify_chain:CHAIN",
        "tree": "specflow.stages.verify_tree:TREE",
        "ragged": "specflow.stages.verify_ragged:RAGGED",
    },
)

ACCEPTS = Table[AcceptStage](
    "accept rule",
    {
        "greedy": "specflow.stages.accept_greedy:GREEDY",
        "target_only": "specflow.stages.accept_target_only:TARGET_ONLY",
        "rejection": "specflow.stages.accept_rejection:REJECTION",
        "block": "specflow.stages.accept_block:BLOCK",
    },
)

COMMITS = Table[CommitStage](
    "draft state",
    {
        "none": "specflow.stages.commit_none:NONE",
        "insert": "specflow.stages.commit_insert:INSERT",
        "catch_up": "specflow.stages.commit_catch_up:CATCH_UP",
        "extend": "specflow.stages.commit_extend:EXTEND",
        "extend_layers": "specflow.stages.commit_extend_layers:EXTEND_LAYERS",
        "frozen": "specflow.stages.commit_frozen:FROZEN",
        "inject": "specflow.stages.commit_inject:INJECT",
    },
)


def rows_with(table: Table[Any], field: str) -> list[str]:
    """The rows of a table of stages whose recipes have a field of that name."""
    return [name for name in table.names() if field in table[name].fields.model_fields]
