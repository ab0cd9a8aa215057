"""`specflow run --engine`: the recipe on SGLang or vLLM, where that is installed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specflow.cli.common import CLEAN, FINDINGS, show, tell
from specflow.cli.engines import asked_engine, resolved_by
from specflow.cli.files import keep
from specflow.engines.installed import ready
from specflow.prompts import Prompts
from specflow.recipe import ResolvedRecipe
from specflow.report import REPORT


def run_elsewhere(
    args: argparse.Namespace, resolved: ResolvedRecipe, prompts: Prompts, out: Path | None
) -> int:
    """Start the engine, ask it, report as `run` does; 1 where it does not start."""
    asked = asked_engine(args.engine)
    ready(asked.engine)
    found = resolved_by(asked, args.platform, resolved)
    tell([*found.findings, *found.remarks])
    if found.export is None or not found.starts:
        return FINDINGS
    # rich and torch load only now, when all else is known to be right
    from specflow.cli.progress import Progress
    from specflow.execute import Completions
    from specflow.serving.run import Asked, serve

    wanted = Asked(asked.engine, asked.version, found.export, args.baseline, args.check_lossless)
    with Progress() as watch, Completions(out) as sink:
        served = serve(resolved, prompts, wanted, sink, watch)
        unwritten = CLEAN
        if served.report is not None and out is not None:
            text = json.dumps(served.report, indent=2, ensure_ascii=False) + "\n"
            unwritten = keep(out / REPORT, text)
        if served.report is not None and args.format == "json":
            tell(served.findings)
            print(json.dumps(served.report, indent=2, ensure_ascii=False))
        else:
            show(served.findings, args.format)
        if served.report is not None and args.format != "json":
            shown = [(c.request.id, c.text) for c in served.completions] if args.prompt else []
            watch.table(served.report, shown)
    return FINDINGS if served.findings else unwritten
