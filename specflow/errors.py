"""The three ways specflow stops: a recipe at fault, an illegal graph, a device that gave up."""

from __future__ import annotations

from collections.abc import Sequence

from specflow.diagnostics import Diagnostic


class RecipeError(Exception):
    """What the user wrote, or the files it names, cannot be run; carries the findings."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__("; ".join(d.message for d in diagnostics))
        self.diagnostics = tuple(diagnostics)


class CompileError(Exception):
    """An illegal step graph: a bug in specflow, never in a recipe."""


class RuntimeFault(Exception):
    """The machine could not go on: memory, device, disk."""
