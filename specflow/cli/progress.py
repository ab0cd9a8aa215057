"""Live progress on stderr and the table at the end on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from specflow.columns import columns
from specflow.explain import spelled
from specflow.report import table
from specflow.session import Session

EVERY = 0.1  # seconds between two refreshes


class Progress:
    """What `execute` tells while it runs: a live line on a terminal, one line a stage elsewhere."""

    def __init__(self) -> None:
        self.stderr = Console(stderr=True, highlight=False)
        self.live = Live(console=self.stderr, transient=True, auto_refresh=False)
        self.stage = ""
        self._at = 0.0

    def __enter__(self) -> Progress:
        """Begin."""
        if self.stderr.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """End, and leave the terminal as it was."""
        if self.stderr.is_terminal:
            self.live.stop()

    def say(self, text: str) -> None:
        """A stage begins."""
        self.stage = text
        if self.stderr.is_terminal:
            self.live.update(Text(text), refresh=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def progress(self, done: int, total: int, session: Session, seconds: float) -> None:
        """A step ended: refresh, but not so often that it costs time."""
        if not self._due():
            return
        lens = [n for c in session.rows for n in c.accept_lens]
        length = f", accept length {sum(lens) / len(lens):.2f}" if lens else ""
        running = f"{len(session.rows)} running{length}"
        self._show(f"{done}/{total} ended, {running}, {seconds:.0f} s")

    def turn(self, done: int, total: int, seconds: float) -> None:
        """A round of what is repeated ended."""
        if self._due():
            self._show(f"{done}/{total} rounds, {seconds:.0f} s")

    def _due(self) -> bool:
        now = time.monotonic()
        if not self.stderr.is_terminal or now - self._at < EVERY:
            return False
        self._at = now
        return True

    def _show(self, text: str) -> None:
        self.live.update(Text(f"{self.stage}: {text}"), refresh=True)

    def table(self, report: Mapping[str, Any], texts: Sequence[tuple[str, str]]) -> None:
        """The report as a person reads it."""
        out = Console(highlight=False, soft_wrap=True)
        for _, text in texts:
            out.print(escape(text))
        if texts:
            out.print()
        made = report["recipe"]
        out.print(
            f"[bold]{escape(made['recipe'])}[/bold]  {report['prompts']['count']} "
            f"{'prompt' if report['prompts']['count'] == 1 else 'prompts'}, "
            f"{report['totals']['completion_tokens']} tokens, "
            f"{escape(spelled(made['target']['model']))} in {made['run']['dtype']} on "
            f"{report['environment']['device']}, batch {made['run']['batch_size']}"
        )
        for line in columns(table(report)):
            out.print(escape(line))
        for difference in report.get("lossless", {}).get("differences", ()):
            out.print(
                escape(
                    f"  {difference['id']}: "
                    f"token {difference['index']} is {difference['token']}, "
                    f"plainly {difference['plain']}{_why(difference)}"
                )
            )
        if report["cut_short"]:
            out.print("cut short; what is above is about the completions that had ended")
        for warning in report["warnings"]:
            out.print(escape(f"warning: {warning}"))


def _why(difference: Mapping[str, Any]) -> str:
    """The class of a difference, where the logits were at hand."""
    if difference["gap"] is None:
        return ""
    return f"; gap {difference['gap']:.2g}: {difference['kind']}"
