"""What a run leaves, whoever decoded: the report in its folder, findings, and the table or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specflow.cli.common import CLEAN, show, tell
from specflow.cli.files import keep
from specflow.cli.progress import Progress
from specflow.diagnostics import Diagnostic
from specflow.report import REPORT, made_up
from specflow.session import Completion


def leave(
    args: argparse.Namespace,
    out: Path | None,
    watch: Progress,
    report: Mapping[str, Any] | None,
    findings: Sequence[Diagnostic],
    completions: Sequence[Completion],
) -> int:
    """Write the report before it is shown, then show it; not clean where it could not be written.

    report  None where no prompt could be run
    """
    if report is None:
        show(findings, args.format)
        return CLEAN
    text = json.dumps(report, indent=2, ensure_ascii=False)
    unwritten = keep(out / REPORT, text + "\n") if out is not None else CLEAN
    if args.format == "json":
        tell(findings)
        print(text)
    else:
        show(findings, args.format)
        asked = args.prompt and not made_up(report)  # the text of random weights is noise
        shown = [(c.request.id, c.text) for c in completions] if asked else []
        watch.table(report, shown)
    return unwritten
