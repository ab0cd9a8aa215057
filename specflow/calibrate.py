"""What temperatures bring a recipe's confidence head to say the truth, on prompts of one's own.

The recipe runs as it is, with the head's logits as they are and every guess verified. After each
step, row by row: what the head said of each guess, and how many of them were accepted. A request
that ends within a step counts with all of it, since what ends it is no word on the guesses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan
from typing import Any

from specflow import prompts as prompt_files
from specflow.capture import CapturedStep, Reads, Results
from specflow.columns import columns
from specflow.diagnostics import Diagnostic
from specflow.execute import Watch, decode, encode, make_session, open_target
from specflow.explain import spelled
from specflow.recipe import ResolvedRecipe
from specflow.temperatures import GRID, MEANT, Fit, fit_temperatures

HEADS = ("position", "temperature", "ECE before", "ECE after", "held", "n")
FEWEST = 50  # steps, below which a calibration error says little


@dataclass
class Heard:
    """What was said and what came of it, a row's step at a time.

    logits    K of the confidence head, as they are
    accepted  guesses that were right
    spared    steps that did not verify all guesses, because the head gave the last ones no chance
    """

    logits: list[list[float]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    spared: int = 0

    def take(self, state: Any, rows: int) -> None:
        """Take in the step that ended, of the first `rows` rows."""
        self.logits += state.trust[:rows].tolist()
        self.accepted += [length - 1 for length in state.accept_len[:rows].tolist()]
        width = state.trust.shape[1] + 1
        self.spared += sum(length < width for length in state.verify_len[:rows].tolist())

    @property
    def held(self) -> list[float]:
        """How often all guesses up to each were right."""
        return [sum(n > at for n in self.accepted) / len(self.accepted) for at in self._positions]

    @property
    def reached(self) -> list[int]:
        """In how many steps all guesses before each were right."""
        return [sum(n >= at for n in self.accepted) for at in self._positions]

    @property
    def _positions(self) -> range:
        return range(len(self.logits[0]) if self.logits else 0)


class OpenStep:
    """A captured step that is overheard: after each launch, while rows are as they were."""

    reads = Reads.AT_ONCE  # what a step said is heard before the next one is launched

    def __init__(self, step: CapturedStep, heard: Heard) -> None:
        self.step, self.heard = step, heard
        self.state: Any = step.state
        self.widths = step.widths
        self.whole, self.made = step.whole, step.made

    def prepare(self, needed: int) -> None:
        """As it is."""
        self.step.prepare(needed)

    def draft(self, rows: int) -> str:
        """As it is."""
        return self.step.draft(rows)

    def plan(self, rows: int) -> int:
        """As it is."""
        return self.step.plan(rows)

    def launch(self, rows: int, variant: str, needed: int, budget: int = 0) -> None:
        """As it is."""
        self.step.launch(rows, variant, needed, budget)

    def results(self, rows: int) -> Results:
        """As it is."""
        return self.step.results(rows)

    def learn(self, told: Results) -> None:
        """Keep what the step said, and let its plan do the same."""
        self.heard.take(self.state, len(told.lengths()))
        self.step.learn(told)

    def commit(self, gained: list[list[int]]) -> None:
        """As it is."""
        self.step.commit(gained)


@dataclass(frozen=True)
class Calibration:
    """What calibrating leaves.

    fit       None where it was stopped, or there was too little to fit
    findings  what is wrong with prompts
    stopped   what ended it early, or nothing
    """

    heard: Heard
    fit: Fit | None
    notes: tuple[str, ...]
    findings: tuple[Diagnostic, ...]
    stopped: str


def calibrate(recipe: ResolvedRecipe, prompts: prompt_files.Prompts, watch: Watch) -> Calibration:
    """Decode prompts with a recipe as `measuring.to_calibrate` makes it, and fit."""
    target, tokenizer = open_target(recipe, watch)
    requests, findings = encode(prompts, tokenizer, recipe)
    found = (*prompts.findings, *findings)
    heard = Heard()
    if not requests:
        return Calibration(heard, None, (), found, "no prompt could be run")
    session = make_session(recipe, target, tokenizer)
    session.captured = OpenStep(session.captured, heard)
    watch.say(f"decoding {len(requests)} prompts")
    done = decode(session, requests, watch, None)
    steps = len(heard.accepted)
    stopped = done.stopped or unfit(heard)
    if stopped:
        return Calibration(heard, None, (), found, stopped)
    watch.say(f"fitting {len(heard.logits[0])} temperatures to {steps} steps")
    fit = fit_temperatures(heard.logits, heard.accepted)
    return Calibration(heard, fit, tuple(notes_of(recipe, heard, fit)), found, "")


def unfit(heard: Heard) -> str:
    """Why nothing can be fitted to what was heard, and the way out; or nothing."""
    steps = len(heard.accepted)
    if steps < FEWEST:
        return (
            f"{steps} steps are too few to fit temperatures to; name more prompts, or raise "
            f"`sampling.max_new_tokens`, until there are {FEWEST} at least"
        )
    broken = sum(any(map(isnan, row)) for row in heard.logits)
    if broken:
        return (
            f"the confidence head says no number in {broken} of {steps} steps; its weights are "
            "broken, or too large for this dtype: use float32, or download the draft again"
        )
    return ""


def notes_of(recipe: ResolvedRecipe, heard: Heard, fit: Fit) -> list[str]:
    """What whoever uses the temperatures should know of them."""
    accept, heat = recipe["verify.accept"], recipe.sampling.temperature
    notes = [f"what was accepted is by `accept: {accept}` at temperature {heat:g}", MEANT]
    ends = [at for at, t in enumerate(fit.temperatures, start=1) if t in (GRID[0], GRID[-1])]
    if ends:
        at = ", ".join(map(str, ends))
        notes.append(f"the temperature at {at} is the end of the grid: the head says little there")
    rare = [at for at, count in enumerate(heard.reached, start=1) if count < FEWEST]
    if rare:
        notes.append(
            f"from guess {rare[0]} on fewer than {FEWEST} steps had all guesses before it right: "
            "temperatures there say little, and more prompts make them say more"
        )
    if heard.spared:
        notes.append(
            f"{heard.spared} of {len(heard.accepted)} steps left guesses out that the head gives "
            "less than one chance in a million; they count as wrong"
        )
    return notes


# -- what is told ----------------------------------------------------------------------------------


def table(recipe: ResolvedRecipe, found: Calibration) -> list[str]:
    """The fit as a person reads it, position by position."""
    steps = len(found.heard.accepted)
    lines = [f"{recipe.name}  {steps} steps of {spelled(recipe['draft.model'])}"]
    if found.fit is not None:
        lines += columns([HEADS, *rows_of(found.fit, found.heard)])
    lines += [f"note: {note}" for note in found.notes]
    return [*lines, f"cut short: {found.stopped}; nothing is fitted"] if found.stopped else lines


def as_json(recipe: ResolvedRecipe, found: Calibration) -> dict[str, Any]:
    """All that was found, as plain values."""
    fit = found.fit
    return {
        "recipe": recipe.name,
        "steps": len(found.heard.accepted),
        "held": found.heard.held,
        "temperatures": fit and list(fit.temperatures),
        "ece_before": fit and list(fit.ece_before),
        "ece_after": fit and list(fit.ece_after),
        "notes": list(found.notes),
        "stopped": found.stopped,
    }


def rows_of(fit: Fit, heard: Heard) -> list[tuple[str, ...]]:
    """A line for each position: what was fitted, what it gains, and how often it held."""
    figures = zip(fit.temperatures, fit.ece_before, fit.ece_after, heard.held, strict=True)
    n = str(len(heard.accepted))
    return [
        (str(at), f"{t:.3f}", f"{before:.4f}", f"{after:.4f}", f"{held:.3f}", n)
        for at, (t, before, after, held) in enumerate(figures, start=1)
    ]
