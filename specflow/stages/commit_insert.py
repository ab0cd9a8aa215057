"""Insert: the tokens gained go into the trie that the next guess is looked up in."""

from __future__ import annotations

from specflow.graph import Builder, PhaseBuilder, Value
from specflow.recipe import Fields
from specflow.stages.base import CommitStage, Gained


class InsertFields(Fields):
    """Nothing to say: every token gained is inserted."""


def lower(_gained: Gained, _p: PhaseBuilder, _b: Builder) -> None:
    """Nothing on the device."""


def host(b: Builder) -> None:
    """After the step: the host has read the tokens gained anyway."""
    doc = "On the host, after the step: put the tokens gained into the trie."
    with b.phase("insert", "commit", doc, model="draft", place="host") as p:
        gained = p.take(Value("gained", ("B",), "list"))
        p.ops("insert", gained, outs=())


INSERT = CommitStage(
    name="insert",
    doc="the tokens gained go into the trie",
    fields=InsertFields,
    lower=lower,
    host=host,
)
