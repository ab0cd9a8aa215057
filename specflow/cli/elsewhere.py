"""`specflow run --engine`: the recipe on SGLang or vLLM, where that is installed."""

from __future__ import annotations

import argparse
from pathlib import Path

from specflow.cli.common import FINDINGS, tell
from specflow.cli.engines import asked_engine, resolved_by
from specflow.engines.installed import ready
from specflow.prompts import Prompts
from specflow.recipe import ResolvedRecipe


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
    from specflow.cli.reporting import leave
    from specflow.execute import Completions
    from specflow.serving.run import Asked, serve

    wanted = Asked(asked.engine, asked.version, found.export, args.baseline, args.check_lossless)
    with Progress() as watch, Completions(out) as sink:
        served = serve(resolved, prompts, wanted, sink, watch)
        unwritten = leave(args, out, watch, served.report, served.findings, served.completions)
    return FINDINGS if served.findings else unwritten
