"""How wide lines of generated code are broken: the way ruff breaks them, so that both agree."""

from __future__ import annotations

import textwrap

INDENT = "    "
WIDTH = 100


def page(text: str) -> str:
    """The same module with no code wider than the page."""
    return "\n".join(part for line in text.split("\n") for part in narrow(line))


def narrow(line: str) -> list[str]:
    """One line of code as lines that fit; a comment without room moves to the line above."""
    if len(line) <= WIDTH:
        return [line]
    code, _, remark = line.partition("  # ")
    indent = code[: len(code) - len(code.lstrip())]
    if remark.startswith("[") and remark.endswith("]"):  # would read as code that was taken out
        remark = f"shapes given: {remark}"
    above = prose(remark, f"{indent}# ", f"{indent}# ") if remark else []
    return above + _broken(code.strip(), indent)


def prose(text: str, first: str = "", rest: str = "") -> list[str]:
    """Words wrapped to the page: `first` begins the first line, `rest` every other one."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _broken(code: str, indent: str) -> list[str]:
    """A statement on one line, else opened at a bracket: items on one line, or each on its own."""
    if len(indent + code) <= WIDTH:
        return [indent + code]
    if code.startswith('"""'):
        return _docstring(code.strip('"'), indent)
    if code.startswith("from "):
        head, names = code.split(" import ")
        return [f"{head} import (", *(f"{INDENT}{name}," for name in names.split(", ")), ")"]
    opened, closed = _brackets(code)
    if opened == closed:
        return [indent + code]
    inner, deeper = code[opened + 1 : closed], indent + INDENT
    items = _items(inner)
    if len(deeper + inner) <= WIDTH or len(items) == 1:
        lines = _broken(inner, deeper)
    else:
        lines = [line for item in items for line in _broken(f"{item},", deeper)]
    return [indent + code[: opened + 1], *lines, indent + code[closed:]]


def _docstring(text: str, indent: str) -> list[str]:
    """The first sentence alone, the others below it."""
    contract, _, rest = text.partition(". ")
    return [f'{indent}"""{contract}.', "", *prose(rest, indent, indent), f'{indent}"""']


def _brackets(code: str) -> tuple[int, int]:
    """Where the bracket to break opens and closes: the parameters of a `def`, else the last one."""
    pairs: list[tuple[int, int]] = []
    open_at: list[int] = []
    for i, letter in enumerate(code):
        if letter in "([{":
            open_at.append(i)
        elif letter in ")]}":
            start = open_at.pop()
            if not open_at:
                pairs.append((start, i))
    if not pairs:
        return 0, 0
    return pairs[0] if code.startswith("def ") else pairs[-1]


def _items(inner: str) -> list[str]:
    """What stands between the commas outside any bracket."""
    items, depth = [""], 0
    for letter in inner:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    return [item.strip() for item in items]
