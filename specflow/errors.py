"""The ways specflow stops: recipe at fault, broken graph, machine that gave up, usage."""

from __future__ import annotations

from collections.abc import Sequence

from specflow.diagnostics import Diagnostic


class RecipeError(Exception):
    """What the user wrote, or the files it names, cannot be run; carries the findings."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Keep the findings; the text of the exception is one line."""
        super().__init__("; ".join(f"{d.code}: {d.message}" for d in diagnostics))
        self.diagnostics = tuple(diagnostics)

    @property
    def unreadable(self) -> bool:
        """Whether the input could not be read at all, which exits 2 where findings exit 1."""
        return any(d.code == "SF000" for d in self.diagnostics)


class CompileError(Exception):
    """A step graph that does not hold together: a bug in specflow, never in a recipe."""


class RuntimeFault(Exception):  # noqa: N818  (a fault of the machine, not of the program)
    """The machine could not go on: memory, device, disk."""


class UsageError(Exception):
    """What was asked for on the command line cannot be done so; exits 2.

    help  the way out
    """

    def __init__(self, message: str, help: str) -> None:  # noqa: A002
        """Keep both; the text of the exception is the message."""
        super().__init__(message)
        self.help = help
