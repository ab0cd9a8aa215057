"""A recipe on prompts: models, session, baseline, lossless check, report."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from platformdirs import user_cache_path

import specflow
from specflow import facts, lossless
from specflow import prompts as prompt_files
from specflow.backends import CAPABILITIES
from specflow.capture import capture
from specflow.codegen import emit
from specflow.constraints.accept import lossy
from specflow.diagnostics import Diagnostic
from specflow.dummies import FORMAT as DUMMY
from specflow.errors import RuntimeFault
from specflow.faults import device_faults
from specflow.interrupts import heed
from specflow.lower import lower
from specflow.memory import positions
from specflow.models import loading
from specflow.models.backends import open_backend
from specflow.models.drafters import DRAFTERS
from specflow.models.dummy import first_forward, may_be_made, pretrained
from specflow.models.lm import LanguageModel
from specflow.models.ragged import BatchPlanner
from specflow.models.tokenizer import ByteTokenizer, Tokenizer, Words
from specflow.recipe import Recipe, ResolvedRecipe, dump
from specflow.report import COMPLETIONS, REPORT, Counted, Report, Timed
from specflow.resolve import resolve
from specflow.session import Completion, Draws, Request, Session
from specflow.stages import ACCEPTS
from specflow.tables import PLAIN


class Stages(Protocol):
    """What loading tells whoever looks on."""

    def say(self, text: str) -> None:
        """A stage begins."""


class Watch(Stages, Protocol):
    """What a run tells whoever looks on."""

    def progress(self, done: int, total: int, session: Session, seconds: float) -> None:
        """A step ended."""


@dataclass(frozen=True)
class Wanted:
    """What a run is asked for beside its recipe."""

    out: Path | None
    baseline: bool
    check_lossless: bool


@dataclass(frozen=True)
class Outcome:
    """What a run leaves.

    report       None where no prompt could be run
    findings     what is wrong with prompts
    completions  in the order they ended
    stopped      what ended it early, or nothing
    """

    report: Report | None
    findings: tuple[Diagnostic, ...]
    completions: tuple[Completion, ...]
    stopped: str


@dataclass
class Run:
    """One pass over the requests; `stopped` says what ended it early, or nothing."""

    session: Session
    requests: list[Request]
    completions: list[Completion]
    timed: Timed
    stopped: str


def execute(
    recipe: Recipe,
    resolved: ResolvedRecipe,
    prompts: prompt_files.Prompts,
    wanted: Wanted,
    watch: Watch,
) -> Outcome:
    """Load, decode, compare, count. RuntimeFault where the machine or a checkpoint gives up."""
    target, tokenizer = open_target(resolved, watch)
    requests, findings = encode(prompts, tokenizer, resolved)
    findings = [*prompts.findings, *findings]
    if not requests:
        return Outcome(None, tuple(findings), (), "")
    main = make_session(resolved, target, tokenizer)
    with Completions(wanted.out) as sink:
        watch.say(f"decoding {len(requests)} prompts")
        done = decode(main, requests, watch, sink)
    report = Report(
        recipe=dump(resolved),
        environment=environment(resolved),
        prompts={"count": len(requests), "refused": len(findings), "sha256": prompts.sha256},
        counted=[counted(c) for c in done.completions],
        timed=done.timed,
        chain=resolved.axes.shape != "tree",
        width=resolved["verify.num_draft_tokens"],
        cut_short=bool(done.stopped),
        notes=[*notes_of(resolved, len(findings)), *made_late(done.session, "the run")],
    )
    stopped = done.stopped
    drafts = resolved.axes.guess != "none"
    if not stopped and ((wanted.baseline and drafts) or wanted.check_lossless):
        watch.say("decoding the same prompts plainly")
        plain = resolve(plain_of(recipe))
        stopped = measure_plain(
            report, done, lambda: make_session(plain, target, tokenizer), wanted, watch
        )
    if stopped:
        report.notes.append(stopped)
    return Outcome(report, tuple(findings), tuple(done.completions), stopped)


def open_target(recipe: ResolvedRecipe, watch: Stages) -> tuple[LanguageModel, Words]:
    """The target on its device, with its tokenizer; RuntimeFault where that cannot be."""
    heed()
    for block in ("target", "draft"):
        may_be_made(recipe.facts[block])
    if recipe.run.device == "cuda" and not torch.cuda.is_available():
        built = "" if torch.version.cuda else f" that torch {torch.__version__} can use"
        raise RuntimeFault(
            f"`run.device: cuda` is asked for and this machine has no CUDA device{built}; "
            "write `run.device: cpu`, or run it where `torch.cuda.is_available()`"
        )
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    made = "making up" if recipe.facts["target"].dummy else "loading"
    watch.say(f"{made} {recipe.target.model}")
    backend = open_backend(recipe.run.attention)  # before weights: it may not be installed
    found = recipe.facts["target"]
    with device_faults("while the target was loaded"), first_forward(found):
        target = LanguageModel.wrap(pretrained(recipe, "target"), backend)
    return target, open_tokenizer(recipe)


def open_tokenizer(recipe: ResolvedRecipe) -> Words:
    """The target's tokenizer; one of bytes where its weights are made up and it has none."""
    found = recipe.facts["target"]
    if found.dummy and not found.has_words:
        stop_ids = facts.token_ids(found.text.get("eos_token_id")) or frozenset()
        return ByteTokenizer(found.vocab_size, stop_ids)
    return Tokenizer(found.folder or loading.open_model(found.model))


def notes_of(recipe: ResolvedRecipe, refused: int) -> list[str]:
    """What a reader of the report has to know; what a recipe allows is told all the same."""
    notes = [f"{f.name}: {f.message}" for f in recipe.findings]
    notes += [
        f"`{recipe[f'{block}.model']}` stands in for the recipe's own {block}"
        for block in ("target", "draft")
        if recipe.stands_in(block)
    ]
    notes += made_up(recipe)
    if lossy(recipe) and not any("favours" in note for note in notes):
        notes.append("a threshold below 1 favours guesses: the output is not the target's")
    if refused:
        notes.append(f"{refused} prompts were refused and did not run")
    return notes


def made_up(recipe: ResolvedRecipe) -> list[str]:
    """What a run of made up weights shows, and what it does not."""
    if recipe.run.load_format != DUMMY:
        return []
    said = "weights are random (`run.load_format: dummy`): text, accept lengths and speedups mean "
    notes = [f"{said}nothing; the time of a step does"]
    if not recipe.facts["target"].has_words:
        notes.append("the target has no tokenizer here: a prompt's bytes are its ids")
    return notes


def made_late(session: Session, where: str) -> list[str]:
    """What compiling or capturing took in the middle of a run, which is no part of its figures."""
    made = session.captured.made
    if not made.keys:
        return []
    steps = f"{made.keys} step{'s' * (made.keys > 1)} made ready in the middle of {where}"
    return [f"{steps} took {made.seconds:.1f} s, which no figure counts"]


def measure_plain(
    report: Report, done: Run, open_session: Callable[[], Session], wanted: Wanted, watch: Watch
) -> str:
    """Decode the same prompts plainly and compare; what stopped it early, or nothing."""
    stopped = "a signal ended it"
    try:
        base = decode(open_session(), done.requests, watch, None)
        stopped = base.stopped
        report.notes += made_late(base.session, "plain decoding")
        if not stopped:
            with device_faults("while tokens were compared"):
                compare(report, done, base, wanted)
            return ""
    except KeyboardInterrupt:
        pass
    except RuntimeFault as error:  # a second session may find no room beside the first
        stopped = str(error)
    return f"the run had ended; the comparison with plain decoding had not: {stopped}"


def compare(report: Report, done: Run, base: Run, wanted: Wanted) -> None:
    """Put the baseline, and the lossless check where it is asked for, into the report."""
    tokens = sum(len(c.tokens) for c in base.completions)
    if wanted.baseline:
        report.baseline = {
            "tok_s": tokens / base.timed.total if base.timed.total else 0.0,
            "seconds": base.timed.total,
            "forward_seconds": base.timed.forward,
            "cpu_seconds": base.timed.cpu,
            "steps": base.timed.steps,
            "step_ms": base.timed.step_ms,
        }
    if wanted.check_lossless:
        plain = {c.request.id: c.tokens for c in base.completions}
        greedy = [c for c in done.completions if c.request.draws.temperature == 0]
        found = [
            lossless.explain(
                c.request.id, c.request.tokens, c.tokens, plain[c.request.id], done.session.target
            )
            for c in greedy
        ]
        differences = [d for d in found if d is not None]
        drawn = len(done.completions) - len(greedy)
        report.lossless = lossless.verdict(differences, len(greedy), drawn)


def encode(
    prompts: prompt_files.Prompts, tokenizer: Words, recipe: ResolvedRecipe
) -> tuple[list[Request], list[Diagnostic]]:
    """Prompts as requests; a prompt that does not fit is a finding, and the others run."""
    requests: list[Request] = []
    found: list[Diagnostic] = []
    for prompt in prompts.items:
        if prompt.messages and not tokenizer.has_chat_template:
            found.append(
                prompt_files.unusable(
                    prompt,
                    "is a chat, and the target has no chat template",
                    "write `prompt` instead of `messages`",
                )
            )
            continue
        try:
            tokens = (
                tokenizer.encode_chat(prompt.messages)
                if prompt.messages
                else tokenizer.encode(prompt.text)
            )
        except RuntimeFault as error:
            found.append(
                prompt_files.unusable(
                    prompt, f"does not fit the template: {error}", "see the model's card"
                )
            )
            continue
        unmet = unmet_settings(prompt, recipe)
        if unmet:
            found.append(prompt_files.unusable(prompt, *unmet))
        elif not tokens:
            found.append(prompt_files.unusable(prompt, "has no token", "write a text"))
        elif len(tokens) >= recipe.run.max_length:
            found.append(prompt_files.too_long(prompt, len(tokens), recipe.run.max_length))
        else:
            most = prompt.max_new_tokens or recipe.sampling.max_new_tokens
            requests.append(Request(prompt.id, tokens, most, draws_of(prompt, recipe)))
    return requests, found


def unmet_settings(prompt: prompt_files.Prompt, recipe: ResolvedRecipe) -> tuple[str, str] | None:
    """Why the step of a recipe cannot do what a prompt's own settings ask, and the way out."""
    own = prompt.settings
    if own.get("temperature", 0) > 0 and not ACCEPTS[recipe["verify.accept"]].draws:
        asked = f"asks for temperature {own['temperature']:g}"
        return (
            f"{asked}, and the recipe's step takes the likeliest token",
            "write `verify.accept: target_only` in the recipe",
        )
    cuts = own.get("top_k", 0) > 0 or own.get("top_p", 1) < 1 or own.get("min_p", 0) > 0
    if cuts and not recipe.sampling.cuts:
        return (
            "asks for `top_k`, `top_p` or `min_p`, and the recipe's step was made without them",
            "write one of them under `sampling:` in the recipe",
        )
    return None


def draws_of(prompt: prompt_files.Prompt, recipe: ResolvedRecipe) -> Draws:
    """A prompt's own settings over the recipe's; its seed is made of theirs and of its id."""
    known = {name: getattr(recipe.sampling, name) for name in prompt_files.SETTINGS}
    chosen = known | dict(prompt.settings)
    digest = hashlib.sha256(f"{chosen['seed']}:{prompt.id}".encode()).digest()
    chosen["seed"] = int.from_bytes(digest[:8], "big") >> 1
    return Draws(**chosen)


@device_faults("while a session was made ready")
def make_session(recipe: ResolvedRecipe, target: LanguageModel, tokenizer: Words) -> Session:
    """A session ready to decode, its drafter loaded, its steps run once or captured."""
    graph = lower(recipe)
    pool = target.pool(recipe.run.batch_size, positions(recipe))
    drafter = DRAFTERS[graph.drafter](recipe, target, pool)
    module = emit(graph, recipe).load(user_cache_path("specflow") / "steps")
    stop_ids = target.stop_ids | tokenizer.stop_ids
    planner = BatchPlanner.of(recipe)
    step = capture(
        module,
        target,
        pool,
        drafter,
        planner,
        graph=recipe.run.graph == "on",
        compiled=recipe.run.compile == "inductor",
        by_length=CAPABILITIES[recipe.run.attention].by_length,
    )
    session = Session(recipe, step, target, pool, drafter, tokenizer.decode, stop_ids, planner)
    step.prepare(session.reach + 2)
    return session


def decode(
    session: Session, requests: list[Request], watch: Watch, sink: Completions | None
) -> Run:
    """Decode all requests; what stops it early is told, and what had ended is kept."""
    models = (session.target, *session.drafter.models())
    for model in models:
        model.forward_seconds = 0.0
    session.captured.made.forget()
    completions: list[Completion] = []
    began, cpu = time.perf_counter(), time.process_time()
    stopped = ""

    def keep(ended: list[Completion]) -> None:
        for completion in ended:
            if sink is not None:
                sink.write(completion)
            completions.append(completion)

    try:
        for request in requests:
            session.submit(request)
        while session.waiting or session.rows:
            heed()
            with device_faults("in the middle of the run"):
                ended = session.step()
            keep(ended)
            watch.progress(len(completions), len(requests), session, time.perf_counter() - began)
    except KeyboardInterrupt:
        stopped = "Ctrl-C or a signal ended the run"
    except RuntimeFault as error:
        stopped = str(error)
    if stopped:  # a step that failed may have ended requests first
        with contextlib.suppress(RuntimeFault):  # where the disk took no more
            keep(session.ended())
    timed = timed_of(session, time.perf_counter() - began, time.process_time() - cpu)
    return Run(session, requests, completions, timed, stopped)


def timed_of(session: Session, total: float, cpu: float) -> Timed:
    """Where the time of a run went."""
    clock, whole = session.clock, session.captured.whole
    phases = {"prefill": clock.prefill}
    if whole:
        phases["step"] = clock.verify
    else:
        phases |= {"draft": clock.draft, "verify": clock.verify, "commit": clock.commit}
    models = (session.target, *session.drafter.models())
    forward = None if whole else sum(m.forward_seconds for m in models)
    made = session.captured.made
    return Timed(phases, total - made.seconds, forward, cpu - made.cpu, clock.steps)


def plain_of(recipe: Recipe) -> Recipe:
    """The same target, sampling and run with nothing drafted."""
    kept = ("target", "sampling", "run")
    written: dict[str, Any] = {k: recipe.written[k] for k in kept if k in recipe.written}
    written["draft"] = {"algorithm": PLAIN}
    places = {p: place for p, place in recipe.places.items() if p.split(".")[0] in kept}
    allow = recipe.allow | {"SF082"}  # a code allowed for the draft's sake is not useless here
    return replace(recipe, name=f"{recipe.name}_plain", written=written, places=places, allow=allow)


def counted(completion: Completion) -> Counted:
    """A completion as the report counts it."""
    return Counted(
        completion.request.id,
        completion.tokens,
        completion.accept_lens,
        completion.drafted,
        completion.finish,
    )


def environment(recipe: ResolvedRecipe) -> Mapping[str, Any]:
    """Versions and the machine, as far as they bear on the figures."""
    device = torch.cuda.get_device_name() if recipe.run.device == "cuda" else platform.machine()
    return {
        "specflow": specflow.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "device": device,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


class Completions:
    """completions.jsonl, one line as each request ends, on disk before the next one does.

    A line is there whole or not at all: where the disk is full, what was begun is taken back.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / COMPLETIONS if folder else None
        self._handle = -1

    def __enter__(self) -> Completions:
        """Open the file, if there is a folder for it; the report of an older run goes."""
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                (self._path.parent / REPORT).unlink(missing_ok=True)
                self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            except OSError as error:
                raise RuntimeFault(f"`{self._path}` cannot be written: {error.strerror}") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        if self._handle >= 0:
            os.close(self._handle)

    def write(self, completion: Completion) -> None:
        """Add a completion; RuntimeFault where the disk does not take it."""
        if self._handle < 0:
            return
        line = {
            "id": completion.request.id,
            "prompt_tokens": len(completion.request.tokens),
            "text": completion.text,
            "token_ids": completion.tokens,
            "finish_reason": completion.finish,
            "accept_lens": completion.accept_lens,
        }
        rest = (json.dumps(line, ensure_ascii=False) + "\n").encode()
        start = os.lseek(self._handle, 0, os.SEEK_END)
        try:
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, start)
            raise RuntimeFault(f"`{self._path}` cannot be written: {error.strerror}") from error
