"""Every rule's manual in one list, wherever it is applied: load, resolve, constraints, prompts."""

from __future__ import annotations

from dataclasses import dataclass

from specflow.constraints import FIELD_RULES, rules
from specflow.engines.findings import ENGINE_RULES, SEVERITIES
from specflow.fit import FIT_RULES
from specflow.load import LOAD_RULES
from specflow.prompts import RULES as PROMPT_RULES

# What the command line itself says, of no field and no file.
CLI_RULES = {
    "SF065": (
        "no-stand-in",
        """`--stand-in` is asked for, and every model of the recipe names one.

## Why
The small models that ship with specflow have the architecture of a recipe's own, so that its very
step runs on a laptop. A real draft beside a small target would fit in nothing.

## Example
```yaml
target: {model: meta-llama/Llama-3.1-8B-Instruct}
draft: {algorithm: NGRAM}
```
```sh
specflow explain recipe.yaml --stand-in
```

Use instead:
```yaml
target: {model: meta-llama/Llama-3.1-8B-Instruct, stand_in: builtin:pico-llama}
draft: {algorithm: NGRAM}
```
```sh
specflow explain recipe.yaml --stand-in
```

## Fix
Write `stand_in: builtin:NAME` beside each `model`, or leave `--stand-in` out.
""",
    ),
    "SF090": (
        "broken-invariant",
        """specflow itself is at fault.

## Why
Whatever a recipe, a prompt or a checkpoint holds should end in a finding of its own. Where it does
not, the failure is told as what it is, and the traceback is kept in a file.

## Fix
Report it with the file and with `specflow explain RECIPE --format json`.
""",
    ),
    "SF091": (
        "run-fault",
        """The machine or a checkpoint did not let a run go on.

## Why
Some things show only when weights load and memory is asked for: a weight of another shape, numbers
that are not finite, a full disk, a device that is not there.

## Example
```sh
specflow schema -o /dev/full
```

Use instead:
```sh
specflow schema -o recipe.schema.json
```

## Fix
The finding names the reason and the way out. Completions that had ended are kept.
""",
    ),
    "SF092": (
        "usage",
        """What was asked for on the command line cannot be done so.

## Why
It is told before any model loads.

## Example
```sh
specflow validate pico/ngram --diff
```

Use instead:
```sh
specflow validate pico/ngram --fix --diff
```

## Fix
`specflow COMMAND --help` lists what a command takes.
""",
    ),
}


@dataclass(frozen=True)
class Manual:
    """A rule as `specflow rule` prints it."""

    code: str
    name: str
    severity: str
    doc: str
    where: str = ""


def manuals() -> tuple[Manual, ...]:
    """Every code, in order."""
    found = [Manual(r.code, r.name, r.severity.value, r.doc, r.where) for r in rules()]
    found += [
        Manual(r.code, r.name, "error", r.doc, "specflow/constraints/fields.py")
        for r in FIELD_RULES.values()
    ]
    found += [
        Manual(code, name, "error", doc, "specflow/load.py")
        for code, (name, doc) in LOAD_RULES.items()
    ]
    found += [
        Manual(code, name, "error", doc, "specflow/prompts.py")
        for code, (name, doc) in PROMPT_RULES.items()
    ]
    found += [
        Manual(code, name, SEVERITIES[code].value, doc, "specflow/engines/findings.py")
        for code, (name, doc) in ENGINE_RULES.items()
    ]
    found += [
        Manual(code, name, "error", doc, "specflow/fit.py")
        for code, (name, doc) in FIT_RULES.items()
    ]
    found += [Manual(code, name, "error", doc) for code, (name, doc) in CLI_RULES.items()]
    return tuple(sorted(found, key=lambda m: m.code))
