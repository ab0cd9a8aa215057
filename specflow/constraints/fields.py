"""What is held of every field before a recipe is whole: the manuals of SF001 to SF010.

These findings come from pydantic and from the tables; `resolve` makes them, this page documents
them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldRule:
    """A rule that `resolve` itself applies."""

    code: str
    name: str
    doc: str


_UNKNOWN = """A recipe says nothing that specflow does not know.

## Why
A misspelt field that is ignored looks like a setting that has no effect. So every unknown field is
an error, and the nearest known names are offered.

## Example
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: NGRAM, bredth: [1, 10]}
```

Use instead:
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: NGRAM, breadth: [1, 10]}
```

## Fix
Correct the name, or remove the field. Where it belongs to another stage the finding says to which.
"""

_TYPE = """A value has the type of its field.

## Why
Text that looks like a number, a number where a list is wanted: guessing what was meant would decide
behind the user's back.

## Example
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: NGRAM, min_match: two}
```

Use instead:
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: NGRAM, min_match: 2}
```

## Fix
Write a value of the type that the finding names.
"""

_MISSING = """A field without a default is written.

## Why
No default can stand for the model that is to be run.

## Example
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: STANDALONE}
```

Use instead:
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: STANDALONE, model: builtin:pico-llama-s}
```

## Fix
Write the field that the finding names.
"""

_ALGORITHM = """An algorithm, a shape or a draft state is a row of its table.

## Why
A name that stands in no table has no stage that could be run.

## Example
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: NGRAMM}
```

Use instead:
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: NGRAM}
```

## Fix
Write one of the names that the finding lists.
"""

_RANGE = """A number lies in the range of its field.

## Why
A step with no guess, a window of no position or a batch of no request computes nothing.

## Example
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 0}
```

Use instead:
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 3}
```

## Fix
Write a number inside the range that the finding names.
"""

_AXIS = """The axes that are written are ones the draft can feed.

## Why
A draft stage is a point on the axes signal and guess; it can feed some verify shapes and go on
in some ways. A trie has no KV to catch up, and a chain drafter has no tree to verify.

## Example
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: NGRAM}
commit: {draft_state: catch_up}
```

Use instead:
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: NGRAM}
commit: {draft_state: insert}
```

## Fix
Leave the axis out: the algorithm's row fills it. Or write one of the values the finding lists.
"""

_NO_DRAFT = """A draft is named, or the target brings one along.

## Why
MTP layers lie in the target's own checkpoint, so a recipe need not name them. Where there are none
- a copy of the weights without them, or a target that never had any - there is nothing to draft
with.

## Example
```yaml
target: {model: builtin:pico-llama}
draft: {algorithm: NEXTN}
```

Use instead:
```yaml
target: {model: deepseek-ai/DeepSeek-V3}
draft: {algorithm: NEXTN}
```

## Fix
Name a draft as `draft.model`, or take the whole checkpoint of the target.
"""

FIELD_RULES = {
    "SF001": FieldRule("SF001", "unknown-field", _UNKNOWN),
    "SF002": FieldRule("SF002", "wrong-type", _TYPE),
    "SF003": FieldRule("SF003", "missing-field", _MISSING),
    "SF006": FieldRule("SF006", "unknown-algorithm", _ALGORITHM),
    "SF039": FieldRule("SF039", "axis-mismatch", _AXIS),
    "SF064": FieldRule("SF064", "missing-mtp-layer", _NO_DRAFT),
    "SF010": FieldRule("SF010", "number-out-of-range", _RANGE),
}
