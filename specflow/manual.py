"""Every rule's manual in one list, wherever it is applied: load, resolve, constraints, prompts."""

from __future__ import annotations

from dataclasses import dataclass

from specflow.constraints import FIELD_RULES, rules
from specflow.load import LOAD_RULES
from specflow.prompts import RULES as PROMPT_RULES


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
    return tuple(sorted(found, key=lambda m: m.code))
