"""What is found where a recipe meets an engine: SF110 to SF120, and their manuals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from specflow.diagnostics import Diagnostic, Label, Severity
from specflow.engines.base import ENV, Gap
from specflow.engines.outcome import Effective, Kind, Refused
from specflow.recipe import ResolvedRecipe
from specflow.tables import ENGINE_NAMES

ENGINE_RULES = {
    "SF110": (
        "engine-refuses",
        """The engine starts with the arguments that a recipe becomes.

## Why
An engine holds its arguments to rules of its own, and stops with an exception where one is broken:
some of its own making, some by accident, without a word to the user. Which rule it is, and what to
do, is told here without the engine.

## Example
```sh
specflow explain pico/dspark --engine sglang@0.5.23 --platform cpu
```

Use instead:
```sh
specflow explain pico/dspark --engine sglang@0.5.23 --platform h100
```

## Fix
Change the field that the finding names, or the platform (`--platform`).
""",
    ),
    "SF111": (
        "engine-cannot-say",
        """Everything a recipe says, the engine can be told.

## Why
What an engine has no flag for, it does in its own way: what it measures then is not what the recipe
says.

## Example
```sh
specflow export pico/dflash_planned --engine sglang@0.5.23
```

Use instead:
```sh
specflow export pico/dflash --engine sglang@0.5.23
```

## Fix
Take the field out, or know that it is not in force there.
""",
    ),
    "SF112": (
        "engine-says-otherwise",
        """What a recipe says is said to the engine in other words.

## Why
The engine gets to the same place another way: by requests rather than by flags, or by a rule with
the same law.

## Example
```sh
specflow export pico/eagle --engine sglang@0.5.23 sampling.temperature=0.8
```

Use instead:
```sh
specflow export pico/eagle --engine sglang@0.5.23
```

## Fix
Nothing has to be done; the note says what differs.
""",
    ),
    "SF113": (
        "flag-without-field",
        """Every flag of an engine's command line has a field in a recipe.

## Why
A recipe is about drafting; flags about serving, or about kernels, have no field, and an imported
recipe does not hold them.

## Example
```sh
specflow import --engine sglang@0.5.23 --args "--model-path builtin:pico-llama
--speculative-algorithm STANDALONE
--speculative-draft-model-path builtin:pico-llama-s --speculative-adaptive"
```

Use instead:
```sh
specflow import --engine sglang@0.5.23 --args "--model-path builtin:pico-llama
--speculative-algorithm STANDALONE
--speculative-draft-model-path builtin:pico-llama-s"
```

## Fix
Keep the flag beside the recipe, if the engine is to have it.
""",
    ),
    "SF114": (
        "foreign-arguments",
        """What is imported are arguments of the engine.

## Why
A flag that the engine has not, or a value of another type, would stop the engine itself.

## Example
```sh
specflow import --engine sglang@0.5.23 --args "--model-path builtin:pico-llama
--speculative-num-stepps 3"
```

Use instead:
```sh
specflow import --engine sglang@0.5.23 --args "--model-path builtin:pico-llama
--speculative-num-steps 3"
```

## Fix
Correct the flag; the nearest known ones are named.
""",
    ),
    "SF115": (
        "unknown-engine-version",
        """The rules of the version that is asked for are known.

## Why
Engines change their rules from month to month. A version that is not in the table is judged by the
nearest one that is, and what it says may be out of date.

## Example
```sh
specflow explain pico/eagle --engine sglang@0.5.30
```

Use instead:
```sh
specflow explain pico/eagle --engine sglang@0.5.23
```

## Fix
Ask for a version that is known, or check what the finding names against the engine itself.
""",
    ),
    "SF116": (
        "engine-overrules",
        """An engine runs what a recipe says.

## Why
Some engines replace a value that they do not want by another, with a line in a log or without one.
What is measured then is not what was asked for.

## Example
```sh
specflow export pico/dflash --engine sglang@0.5.23 engine.sglang.speculative_num_steps=3
```

Use instead:
```sh
specflow export pico/dflash --engine sglang@0.5.23
```

## Fix
Write the value that the engine runs, or leave the field out.
""",
    ),
    "SF117": (
        "engine-accepts-in-vain",
        """What an engine accepts has an effect there.

## Why
Not every argument is checked when an engine starts: some are ignored, some mean nothing beside
others. The rule that says so is named.

## Example
```sh
specflow export deepseek/v3_eagle3_chain --engine sglang@0.5.23
```

Use instead:
```sh
specflow export deepseek/v3_nextn --engine sglang@0.5.23
```

## Fix
Leave the field out, or change it as the finding says.
""",
    ),
    "SF118": (
        "foreign-contradiction",
        """Arguments of an engine do not contradict each other.

## Why
Two flags that say the same thing differently leave open which was meant, and no recipe is guessed.

## Example
```sh
specflow import --engine sglang@0.5.23 --args "--model-path builtin:pico-llama
--speculative-algorithm DSPARK
--speculative-dspark-block-size 7 --speculative-num-draft-tokens 7"
```

Use instead:
```sh
specflow import --engine sglang@0.5.23 --args "--model-path builtin:pico-llama
--speculative-algorithm DSPARK
--speculative-dspark-block-size 7 --speculative-num-draft-tokens 8"
```

## Fix
Keep the one that is meant.
""",
    ),
    "SF119": (
        "engine-cannot-run",
        """What a recipe is about exists in the engine.

## Why
Without it the engine would run another recipe: a chain where a tree was asked for, or no draft at
all. Such an export is refused rather than guessed.

## Example
```sh
specflow export pico/eagle_tree --engine vllm
```

Use instead:
```sh
specflow export pico/eagle --engine vllm
```

## Fix
Choose another engine, or write the recipe in terms this one has.
""",
    ),
    "SF120": (
        "engine-fails-later",
        """What an engine accepts as arguments, it goes on to run.

## Why
Some arguments pass every check of an engine, and stop it later: when it builds the model, captures
its graphs, or at the first request. A server that is started by them is lost time at best.

## Example
```sh
specflow export deepseek/v3_nextn --engine sglang@0.5.23 engine.sglang.tp_size=6
```

Use instead:
```sh
specflow export deepseek/v3_nextn --engine sglang@0.5.23 engine.sglang.tp_size=8
```

## Fix
Change what the finding names. Where a variable lifts it, `engine.NAME.env.VARIABLE=VALUE` says so
in the recipe.
""",
    ),
}
SEVERITIES = {
    "SF110": Severity.ERROR,
    "SF111": Severity.WARNING,
    "SF112": Severity.NOTE,
    "SF113": Severity.WARNING,
    "SF114": Severity.ERROR,
    "SF115": Severity.WARNING,
    "SF116": Severity.WARNING,
    "SF117": Severity.WARNING,
    "SF118": Severity.ERROR,
    "SF119": Severity.ERROR,
    "SF120": Severity.ERROR,
}


def finding(
    code: str,
    message: str,
    labels: tuple[Label, ...] = (),
    notes: tuple[str, ...] = (),
    offer: str | None = None,
) -> Diagnostic:
    """A finding of this page."""
    name, severity = ENGINE_RULES[code][0], SEVERITIES[code]
    return Diagnostic(code, name, severity, message, labels, notes, help=offer)


def refused(
    engine: str,
    outcome: Refused,
    platform: str,
    recipe: ResolvedRecipe | None = None,
    elsewhere: tuple[str, ...] = (),
    name: str = "",
) -> Diagnostic:
    """The engine does not start; it does on the machines of `elsewhere`.

    engine  its title and version; `name` is its row of the table
    """
    field = None if recipe is None else _about(outcome.reason, recipe)
    ways = [f"change `{field}`"] if field is not None else []
    if elsewhere:
        ways.append(f"run it with `--platform {elsewhere[0]}`: it starts on {_listed(elsewhere)}")
    how = (
        "it refuses by design"
        if outcome.deliberate
        else f"it stops with {outcome.error}, which it does not explain"
    )
    return finding(
        "SF110",
        f"{engine} does not start on {platform}: {outcome.reason}",
        labels=() if field is None else written_at(field, recipe),
        notes=(f"{_row(name, outcome.rule)}: {how}",),
        offer=", or ".join(ways) or None,
    )


def _row(engine: str, rule: str) -> str:
    """A row of an engine's rules, and where it can be looked up."""
    return f"row {rule} of its rules (`specflow rule {engine}:{rule}`)"


def _listed(names: tuple[str, ...], most: int = 4) -> str:
    """A few names, and how many more there are."""
    if len(names) > most:
        names = (*names[:most], f"{len(names) - most} more")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# What a reason speaks of, where it names no flag, and the field that says it.
_SPOKEN = (
    ("topk", "draft.topk"),
    ("branches", "draft.topk"),
    ("block", "draft.block_size"),
    ("draft tokens", "verify.num_draft_tokens"),
    ("steps", "draft.num_steps"),
    ("rejection", "verify.accept"),
)


def _about(reason: str, recipe: ResolvedRecipe) -> str | None:
    """The written field that a reason is about: of a flag, a value or a word that it says."""
    flags = [flag.replace("-", "_") for flag in re.findall(r"--([a-z0-9-]+)", reason)]
    said = set(re.findall(r"\w+", reason))
    values = [
        f"engine.{name}.{flag}"
        for name, given in recipe.engine.items()
        for flag, value in given.items()
        if isinstance(value, str) and value in said
    ]
    spoken = [field for word, field in _SPOKEN if word in reason]
    named = ["draft.algorithm"] if str(recipe["draft.algorithm"]) in said else []
    for field in (*(_field_of(flag, recipe) for flag in flags), *spoken, *values, *named):
        if written_at(field, recipe):
            return field
    return None


def gaps(code: str, found: Iterable[Gap], recipe: ResolvedRecipe | None) -> list[Diagnostic]:
    """Fields or flags that do not go across, each where it was written."""
    return [
        finding(
            code,
            f"`{gap.at}`: {gap.text}",
            labels=written_at(gap.at, recipe) or _causes(gap.at, recipe),
            offer=gap.way_out or None,
        )
        for gap in found
    ]


def _causes(path: str, recipe: ResolvedRecipe | None) -> tuple[Label, ...]:
    """Where a field was written that decides one that nobody wrote: `draft.topk` makes a tree."""
    cause = "draft.topk" if path == "verify.shape" else "draft.algorithm"
    return written_at(cause, recipe) if path.startswith(("verify.shape", "draft.")) else ()


def of_others(engine: str, title: str, recipe: ResolvedRecipe) -> list[Diagnostic]:
    """A word on each `engine:` block that is another engine's: its flags do not go across."""
    out = []
    for name, given in recipe.engine.items():
        if name == engine or not given or given == {ENV: {}}:
            continue
        variables = given.get(ENV)
        flags = tuple(flag for flag in given if flag != ENV)
        flags += tuple(map(str, variables)) if isinstance(variables, Mapping) else ()
        goes = "does not go" if len(flags) == 1 else "do not go"
        said = f"`engine.{name}` is not for {title}: {_listed(flags)} {goes} across"
        offer = f"write what {title} is to have under `engine.{engine}`"
        labels = written_at(f"engine.{name}.{next(iter(given))}", recipe)
        out.append(finding("SF112", said, labels, offer=offer))
    return out


def written_at(path: str, recipe: ResolvedRecipe | None) -> tuple[Label, ...]:
    """Where somebody wrote a field, as labels; none where nobody did."""
    place = recipe.ledger[path].place if recipe is not None and path in recipe else None
    return () if place is None else (Label(place.value, "", primary=True),)


def overruled(
    engine: str, title: str, platform: str, found: Effective, recipe: ResolvedRecipe
) -> list[Diagnostic]:
    """What the engine replaces, or accepts in vain: asked, effective, by which of its rules."""
    out = []
    for d in found.decisions:
        if d.overrides:
            at = d.field.replace("_", "-")
            field = _field_of(d.field, recipe)
            message = f"{title} on {platform} will run {d.value!r}, not {d.asked!r}: `--{at}`"
            notes = (f"{_row(engine, d.rule)}: {d.because}",)
            offer = f"write {d.value!r} for `{field}`, or leave it out"
            out.append(finding("SF116", message, written_at(field, recipe), notes, offer))
    for note in found.notes:
        if note.kind is not Kind.TOLD:
            said = f"{title} on {platform} {_IN_VAIN[note.kind]}: {note.text}"
            about = _about(note.text, recipe)
            labels = () if about is None else written_at(about, recipe)
            code = "SF120" if note.kind is Kind.AT_START else "SF117"
            rows = (_row(engine, note.rule),)
            out.append(finding(code, said, labels, rows, _lifted(engine, note.text, about)))
    return out


def _lifted(engine: str, text: str, about: str | None) -> str | None:
    """The way out of a failure: a variable that the text names, or the field it is about."""
    variable = re.search(r"\b([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)=(\w+)", text)
    if variable is not None:
        return f"write `engine.{engine}.env.{variable[1]}={variable[2]}`, or set it for the server"
    return None if about is None else f"change `{about}`"


_IN_VAIN = {
    Kind.WARNS: "accepts it without effect",
    Kind.AT_START: "fails when it starts or at the first use",
    Kind.UNCHECKED: "does not check it",
}


def _field_of(flag: str, recipe: ResolvedRecipe) -> str:
    """Where a recipe says a flag: under `engine`, or in the field that stands for it."""
    for name, given in recipe.engine.items():
        if flag in given:
            return f"engine.{name}.{flag}"
    return ENGINE_NAMES.get(flag, f"--{flag.replace('_', '-')}")
