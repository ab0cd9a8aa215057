"""None: the draft keeps no state."""

from __future__ import annotations

from specflow.graph import Builder, PhaseBuilder
from specflow.recipe import Fields
from specflow.stages.base import CommitStage, Gained


class NoneFields(Fields):
    """Nothing to say."""


def lower(_gained: Gained, _p: PhaseBuilder, _b: Builder) -> None:
    """Nothing goes on."""


NONE = CommitStage(name="none", doc="the draft keeps no state", fields=NoneFields, lower=lower)
