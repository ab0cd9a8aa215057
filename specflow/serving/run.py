"""A recipe run by another engine on this machine: the same prompts, the same report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import specflow
from specflow import lossless
from specflow.diagnostics import Diagnostic
from specflow.engines.base import Engine, Export
from specflow.engines.files import written
from specflow.engines.installed import ready
from specflow.errors import RuntimeFault
from specflow.execute import Completions, Stages, encode, notes_of, open_tokenizer
from specflow.prompts import Prompts
from specflow.recipe import ResolvedRecipe, dump
from specflow.report import SCHEMA, Tally, merged, repeats, spread_of, warnings
from specflow.serving import ADAPTERS
from specflow.serving.base import Adapter, Answer
from specflow.session import Completion, Request

SPECULATIVE = ("speculative", "spec_")  # how the flags that draft begin
UNSAID = "token ids alone tell no near-tie from a fault: the engine's logits are not at hand"


@dataclass(frozen=True)
class Asked:
    """What a run is asked for.

    baseline  decode the same prompts with nothing drafted, and compare the speed
    lossless  compare every token with that
    """

    engine: Engine
    version: str
    export: Export
    baseline: bool
    lossless: bool


@dataclass(frozen=True)
class Served:
    """What a run leaves: the report as plain values, findings of prompts, completions."""

    report: dict[str, Any] | None
    findings: tuple[Diagnostic, ...]
    completions: tuple[Completion, ...]


@dataclass(frozen=True)
class Pass:
    """One pass over the requests."""

    answers: Sequence[Answer]
    tally: Tally
    seconds: float
    conversions: tuple[str, ...]


def serve(
    recipe: ResolvedRecipe, prompts: Prompts, asked: Asked, sink: Completions, watch: Stages
) -> Served:
    """Run the prompts on an engine; RuntimeFault where it or the machine gives up."""
    installed = ready(asked.engine)
    tokenizer = open_tokenizer(recipe)
    requests, found = encode(prompts, tokenizer, recipe)
    findings = (*prompts.findings, *found)
    if not requests:
        return Served(None, findings, ())
    made: type[Adapter] = ADAPTERS[asked.engine.name]
    title = f"{asked.engine.title} {installed}"
    with variables(asked.export.env), written(asked.export) as args:
        watch.say(f"starting {title}")
        done = _pass(made, args, recipe, requests, title)
    completions = [_completion(*pair) for pair in zip(requests, done.answers, strict=True)]
    for completion in completions:
        sink.write(completion)
    report = _report(recipe, asked, installed, prompts, done, len(findings))
    drafts = recipe.axes.guess != "none"
    if (asked.baseline and drafts) or asked.lossless:
        watch.say("the same prompts with nothing drafted")
        with variables(asked.export.env):
            plain = _pass(made, plainly(asked.export.args), recipe, requests, title)
        _compare(report, asked, requests, done, plain)
    report["warnings"] += warnings(report)
    return Served(report, findings, tuple(completions))


@contextmanager
def variables(env: Mapping[str, str]) -> Iterator[None]:
    """The variables of an export, while an engine reads them."""
    # No knob of specflow's: fields of the recipe said what they are.
    before = {name: os.environ.get(name) for name in env}  # noqa: TID251
    os.environ.update(env)  # noqa: TID251
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)  # noqa: TID251
            else:
                os.environ[name] = value  # noqa: TID251


def plainly(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without what drafts."""
    return {name: v for name, v in args.items() if not name.startswith(SPECULATIVE)}


def _pass(
    made: type[Adapter],
    args: Mapping[str, Any],
    recipe: ResolvedRecipe,
    requests: Sequence[Request],
    title: str,
) -> Pass:
    """One engine, started, asked and stopped again; only the asking is timed."""
    sampling = recipe.sampling
    try:
        running = made(args)
        try:
            began = time.perf_counter()
            answers = running.generate(requests, sampling.stop, ignore_eos=sampling.ignore_eos)
            seconds = time.perf_counter() - began
            whole = running.tally()
            conversions = running.conversions
        finally:
            running.close()
    except (KeyboardInterrupt, RuntimeFault):
        raise
    except Exception as error:  # whatever another program stops with
        said = str(error).strip().splitlines()
        reason = f"{type(error).__name__}{': ' + said[0] if said else ''}"[:300]
        raise RuntimeFault(f"{title} gave up: {reason}; see its own log above") from error
    if len(answers) != len(requests):
        raise RuntimeFault(f"{title} answered {len(answers)} of {len(requests)} requests")
    tally = merged([a.tally for a in answers if a.tally is not None]) if whole is None else whole
    return Pass(answers, tally, seconds, conversions)


def _completion(request: Request, answer: Answer) -> Completion:
    """An answer as a line of completions.jsonl; how its steps went one by one is not told."""
    return Completion(request, list(answer.tokens), answer.text, answer.finish)


def _report(
    recipe: ResolvedRecipe,
    asked: Asked,
    installed: str,
    prompts: Prompts,
    done: Pass,
    refused: int,
) -> dict[str, Any]:
    """The report, schema 1, with the engine's counters in it; null is not known."""
    tally, width = done.tally, recipe["verify.num_draft_tokens"]
    tokens = sum(len(a.tokens) for a in done.answers)
    counts = None if tally.histogram is None else [*tally.histogram, *([0] * width)][:width]
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "recipe": dump(recipe),
        "environment": {
            "specflow": specflow.__version__,
            asked.engine.name: installed,
            "python": platform.python_version(),
            "device": platform.machine(),
        },
        "engine": {
            "name": asked.engine.name,
            "rules": asked.version,
            "args": dict(asked.export.args),
            "env": dict(asked.export.env),
            "conversions": list(done.conversions),
        },
        "prompts": {
            "count": len(done.answers),
            "refused": refused,
            "sha256": prompts.sha256,
        },
        "totals": {
            "completion_tokens": tokens,
            "verifies": tally.verifies,
            "drafted": tally.drafted,
            "accepted": tally.accepted,
        },
        "accept_length": tally.accept_length,
        "draft_accept_rate": tally.accepted / tally.drafted if tally.drafted else 0.0,
        "accept_histogram": counts,
    }
    if recipe.axes.shape == "chain" and width > 1 and counts is not None:
        out |= tally.by_position(width - 1)
    lengths = [a.tally.accept_length for a in done.answers if a.tally and a.tally.verifies]
    looping = sum(repeats(a.tokens) for a in done.answers) / len(done.answers)
    return out | {
        "seconds": {"total": done.seconds},
        "forward_seconds": None,
        "cpu_seconds": None,
        "tok_s": tokens / done.seconds if done.seconds else 0.0,
        "per_prompt": spread_of(lengths) if lengths else None,
        "looping": looping,
        "cut_short": False,
        "warnings": [*notes_of(recipe, refused), *_inexact(done.conversions)],
    }


def _inexact(conversions: Sequence[str]) -> list[str]:
    return [f"counted by the engine, {text}" for text in conversions]


def _compare(
    report: dict[str, Any], asked: Asked, requests: Sequence[Request], done: Pass, plain: Pass
) -> None:
    """Speed and words beside those of the same engine with nothing drafted."""
    if asked.baseline:
        tokens = sum(len(a.tokens) for a in plain.answers)
        speed = tokens / plain.seconds if plain.seconds else 0.0
        how = "the same engine, started without a draft"
        report["baseline"] = {"tok_s": speed, "seconds": plain.seconds, "how": how}
        report["speedup"] = report["tok_s"] / speed if speed else 0.0
    if not asked.lossless:
        return
    pairs = zip(requests, done.answers, plain.answers, strict=True)
    greedy = [(r, spoken, base) for r, spoken, base in pairs if r.draws.temperature == 0]
    parted = [lossless.parted(r.id, spoken.tokens, base.tokens) for r, spoken, base in greedy]
    differences = [d for d in parted if d is not None]
    drawn = len(requests) - len(greedy)
    report["lossless"] = lossless.verdict(differences, len(greedy), drawn)
    if differences:
        report["warnings"].append(UNSAID)
