"""The rules that span stages, and the list of all rules."""

from __future__ import annotations

from typing import Any

from specflow.constraints.accept import (
    accept_on_other_shape,
    accept_without_law,
    greedy_at_temperature,
)
from specflow.constraints.checkpoints import (
    dummy_without_config,
    missing_checkpoint,
    model_not_here,
    tokenizer_mismatch,
    unreadable_checkpoint,
    vocabulary_mismatch,
)
from specflow.constraints.drafts import (
    draft_vocabulary_mismatch,
    engine_only_target,
    foreign_draft,
    hidden_size_mismatch,
    ill_fitting_draft,
    recurrent_draft,
    recurrent_target,
)
from specflow.constraints.fields import FIELD_RULES, FieldRule
from specflow.constraints.pairs import PAIR_RULES
from specflow.constraints.run import (
    backend_cannot_attend,
    backend_needs_device,
    backend_not_installed,
    compile_needs_sdpa,
    graph_needs_device,
    half_precision_on_cpu,
    longer_than_context,
    useless_allow,
)
from specflow.constraints.shapes import (
    adaptive_steps_on_tree,
    branches_on_a_chain,
    chain_width_mismatch,
    more_branches_than_words,
    no_step_to_adapt_to,
    tree_wider_than_guesses,
    tree_without_branches,
)
from specflow.rules import Rule
from specflow.stages import ACCEPTS, DRAFTS, VERIFIES, Table

SPANNING: tuple[Rule, ...] = (
    branches_on_a_chain,
    chain_width_mismatch,
    tree_wider_than_guesses,
    more_branches_than_words,
    adaptive_steps_on_tree,
    no_step_to_adapt_to,
    vocabulary_mismatch,
    tokenizer_mismatch,
    hidden_size_mismatch,
    ill_fitting_draft,
    draft_vocabulary_mismatch,
    *PAIR_RULES,
    tree_without_branches,
    accept_on_other_shape,
    accept_without_law,
    greedy_at_temperature,
    recurrent_target,
    recurrent_draft,
    engine_only_target,
    foreign_draft,
    missing_checkpoint,
    model_not_here,
    dummy_without_config,
    unreadable_checkpoint,
    longer_than_context,
    half_precision_on_cpu,
    backend_not_installed,
    backend_needs_device,
    backend_cannot_attend,
    graph_needs_device,
    compile_needs_sdpa,
    useless_allow,
)


def rules(draft: str = "", shape: str = "") -> tuple[Rule, ...]:
    """Every rule a resolved recipe is held to, by code; those of stages too.

    draft  the draft in force, whose own rules are enough: other drafts' speak of fields it has not,
           and importing them all would cost `validate` a tenth of its time
    shape  the verify shape in force, likewise
    """
    tables: tuple[tuple[Table[Any], tuple[str, ...]], ...] = (
        (DRAFTS, (draft,) if draft else DRAFTS.names()),
        (VERIFIES, (shape,) if shape else VERIFIES.names()),
        (ACCEPTS, ACCEPTS.names()),
    )
    staged = [rule for table, names in tables for name in names for rule in table[name].rules]
    each = dict.fromkeys((*SPANNING, *staged))  # stages of a kind share rules
    return tuple(sorted(each, key=lambda r: r.code))


__all__ = ["FIELD_RULES", "SPANNING", "FieldRule", "rules"]
