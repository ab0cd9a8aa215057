"""What `validate --fix` does to the text of a recipe: each fix at its spans, and nothing else."""

from __future__ import annotations

import difflib
import json
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specflow import packs
from specflow.diagnostics import Diagnostic, Drop, Fix, Put, Rename, only_answer
from specflow.errors import RecipeError, RuntimeFault
from specflow.facts import read as read_model
from specflow.load import COMMAND_LINE, load
from specflow.recipe import Recipe
from specflow.recipe_text import Node, children, plain, read, walk
from specflow.resolve import Reader, resolve
from specflow.spans import Place, Source, Span

MOST = 100  # fixes of one recipe: each takes a finding away, so the end comes long before
# Found before the rules are asked: a fix of a rule that leads to one of these mends nothing.
OF_FIELDS = frozenset({f"SF{n:03}" for n in range(11)} | {"SF039", "SF064"})
INDENT = "  "


class Unfixable(Exception):  # noqa: N818 - a reason that is told, no fault
    """Why a fix is not written."""


@dataclass(frozen=True)
class Skipped:
    """A fix that was not written, and why."""

    finding: Diagnostic
    reason: str


@dataclass(frozen=True)
class Fixed:
    """What fixing a recipe came to; nothing is written yet.

    before, after  the text of each file that changes, by the name it was read under
    done           the findings that are gone by a fix of their own
    skipped        those whose fix is not written
    findings       what is found in the recipe as it is now
    """

    before: Mapping[str, str]
    after: Mapping[str, str]
    done: tuple[Diagnostic, ...]
    skipped: tuple[Skipped, ...]
    findings: tuple[Diagnostic, ...]


@dataclass
class _Work:
    """A recipe while it is fixed."""

    look: Callable[[Mapping[str, str]], tuple[Recipe | None, tuple[Diagnostic, ...]]]
    unsafe: bool
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    done: list[Diagnostic] = field(default_factory=list)
    skipped: dict[tuple[str, Fix], Skipped] = field(default_factory=dict)

    def step(self, recipe: Recipe, found: Sequence[Diagnostic]) -> bool:
        """Write the first fix that mends what it is for; whether there was one."""
        for each in found:
            if each.fix is None or (each.code, each.fix) in self.skipped:
                continue
            try:
                self.write(recipe, each, each.fix)
            except Unfixable as reason:
                self.skipped[each.code, each.fix] = Skipped(each, str(reason))
            else:
                self.done.append(each)
                return True
        return False

    def write(self, recipe: Recipe, found: Diagnostic, fix: Fix) -> None:
        """One fix, in the text of the file where its field stands."""
        if not only_answer(fix) and not self.unsafe:
            raise Unfixable(_waits(fix))
        source, fix = home_of(recipe, fix)
        trial = {**self.after, source.name: edit(source, fix)}
        _, after = self.look(trial)
        if any((d.code, d.fix) == (found.code, found.fix) for d in after):
            raise Unfixable("the finding would stay")
        worse = {d.code for d in after} & OF_FIELDS
        if worse and found.code not in OF_FIELDS:
            raise Unfixable(f"{min(worse)} would be found instead")
        self.before.setdefault(source.name, source.text)
        self.after = trial


def fix_recipe(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    stand_in: bool = False,
    unsafe: bool = False,
    reader: Reader = read_model,
) -> Fixed:
    """Every fix that a recipe's findings carry, until nothing more can be fixed."""

    def look(texts: Mapping[str, str]) -> tuple[Recipe | None, tuple[Diagnostic, ...]]:
        recipe = None
        try:
            recipe = load(path, overrides, texts)
            recipe = packs.with_stand_in(recipe) if stand_in else recipe
            return recipe, resolve(recipe, reader).findings
        except RecipeError as error:
            return recipe, error.diagnostics

    work = _Work(look, unsafe)
    recipe, found = look({})
    for _ in range(MOST):
        if recipe is None or not work.step(recipe, found):
            break
        recipe, found = look(work.after)
    left = {(d.code, d.fix) for d in found}
    skipped = tuple(s for key, s in work.skipped.items() if key in left)
    return Fixed(work.before, work.after, tuple(work.done), skipped, tuple(found))


def _waits(fix: Fix) -> str:
    """Why a fix is not written unasked, and what there is to choose between."""
    if not fix.otherwise:
        return f"to {fix.does} may change what the recipe means; `--unsafe-fixes` writes it too"
    answers = "; or ".join((fix.does, *fix.otherwise))
    return f"there is more than one answer: {answers}; `--unsafe-fixes` writes the first"


def home_of(recipe: Recipe, fix: Fix) -> tuple[Source, Fix]:
    """The source that a fix is written in, and its path there; Unfixable where it may not be."""
    block, _, item = fix.path.rpartition(".")
    listed = {
        place.value.text.strip("\"'"): path
        for path, place in recipe.places.items()
        if path.rpartition(".")[0] == block and place.key is None
    }
    fix = replace(fix, path=listed.get(item, fix.path))  # `allow.SF012` of a list of codes
    place = recipe.places.get(fix.path)
    if place is None and not isinstance(fix, Put):
        raise Unfixable(f"`{fix.path}` is not written")
    source = place.value.source if place is not None else recipe.sources[0]
    if source.name == COMMAND_LINE:
        raise Unfixable(f"`{fix.path}` is set on the command line: leave it out there")
    if Path(source.name).resolve().is_relative_to(packs.HERE.resolve()):
        raise Unfixable(
            f"`{source.name}` ships with specflow: copy it, or extend it by a file of your own"
        )
    return source, fix


def difference(fixed: Fixed) -> str:
    """The changes as a unified diff; empty where there are none."""
    lines: list[str] = []
    for name, after in fixed.after.items():
        old, new = (text.splitlines(keepends=True) for text in (fixed.before[name], after))
        lines += map(_ended, difflib.unified_diff(old, new, name, name))
    return "".join(lines)


def _ended(line: str) -> str:
    return line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def write(fixed: Fixed) -> None:
    """Each changed file whole or not at all: its mode, links to it and a byte order mark stay."""
    for name, text in fixed.after.items():
        file = Path(name).resolve()  # a link goes on pointing where it does
        _replace(file, fixed.before[name], text)


def _replace(file: Path, before: str, after: str) -> None:
    try:
        content = file.read_bytes()
        mark = b"\xef\xbb\xbf" if content.startswith(b"\xef\xbb\xbf") else b""
        if content != mark + before.encode():
            raise RuntimeFault(f"`{file}` was changed meanwhile; fix it again")
        handle, beside = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(mark + after.encode())
            Path(beside).chmod(stat.S_IMODE(file.stat().st_mode))
            Path(beside).replace(file)
        finally:
            Path(beside).unlink(missing_ok=True)
    except OSError as error:
        raise RuntimeFault(f"`{file}` cannot be written: {error.strerror}") from error


# -- text ------------------------------------------------------------------------------------------


def edit(source: Source, fix: Fix) -> str:
    """The text with a fix in it; Unfixable where more would change than the fix says."""
    root = _tree(source)
    steps = fix.path.split(".")
    match fix:
        case Drop():
            text = _drop(source, root, steps)
        case Put(value=value):
            text = _put(source, root, steps, value)
        case Rename(name=name):
            text = _rename(source, root, steps, name)
    after = Source(source.name, text)
    meant = _applied(plain(root), steps, fix)
    before, now = comments(source), comments(after)
    gone = _behind(source, root, steps) if isinstance(fix, Drop) else Counter()
    if plain(_tree(after)) != meant or now - before or before - now - gone:
        raise Unfixable("its place in the text is one that is safer changed by hand")
    return text


def _behind(source: Source, root: Node, steps: Sequence[str]) -> Counter[str]:
    """The comments that stand behind what is dropped, on its lines: they go with it."""
    holder, item = _dropped(root, steps)
    if _is_flow(holder):
        return Counter()
    said = dict(_comments(source, root))
    lines = _lines(source, *_extent(item.place))
    found = [(at, end) for at, end in said.items() if any(a <= at < b for a, b in lines)]
    return Counter(source.text[at:end] for at, end in found if _is_behind(source, at))


def _is_behind(source: Source, at: int) -> bool:
    """Whether something stands before a comment on its line."""
    begin = source.starts[source.locate(at)[0] - 1]
    return bool(source.text[begin:at].strip())


def comments(source: Source) -> Counter[str]:
    """Every comment of a text, and how often it stands there."""
    root = _tree(source)
    return Counter(source.text[at:end] for at, end in _comments(source, root))


def _tree(source: Source) -> Node:
    root, found = read(source)
    if root is None or found or not isinstance(root.value, dict):
        raise Unfixable("the text would be YAML no more")
    return root


def _applied(tree: dict[str, Any], steps: Sequence[str], fix: Fix) -> dict[str, Any]:
    """What the values are once a fix is in: the check of what was written."""
    *outer, last = steps
    block: Any = tree
    trail: list[tuple[Any, str]] = []
    for key in outer:
        if isinstance(fix, Put) and block.get(key) is None:
            block[key] = {}
        trail.append((block, key))
        block = block[int(key)] if isinstance(block, list) else block[key]
    match fix:
        case Put(value=value):
            here = int(last) if isinstance(block, list) else last
            block[here] = list(value) if isinstance(value, tuple) else value
        case Rename(name=name):
            block[name] = block.pop(last)
        case Drop():
            block.pop(int(last) if isinstance(block, list) else last)
            for parent, key in reversed(trail):
                inner = parent[int(key)] if isinstance(parent, list) else parent[key]
                if not inner:
                    parent.pop(int(key) if isinstance(parent, list) else key)
    return tree


def _chain(root: Node, steps: Sequence[str]) -> list[Node]:
    """The nodes along a path, the root first; Unfixable where the text has it not."""
    chain = [root]
    for key in steps:
        found = dict(children(chain[-1])).get(key)
        if found is None:
            raise Unfixable(f"`{'.'.join(steps)}` is not written in this file")
        chain.append(found)
    return chain


def _is_flow(node: Node) -> bool:
    return node.place.value.text[:1] in ("{", "[")


def _extent(place: Place) -> tuple[int, int]:
    """Where an item begins and ends, its key included."""
    key, value = place.key, place.value
    return (value.start, value.end) if key is None else (key.start, max(key.end, value.end))


def _drop(source: Source, root: Node, steps: Sequence[str]) -> str:
    """The text without an item, nor the blocks that hold nothing else; comments above stay."""
    holder, item = _dropped(root, steps)
    if _is_flow(holder):
        return _drop_flow(source, root, holder, item)
    return _without_lines(source, root, *_extent(item.place), behind=False)


def _dropped(root: Node, steps: Sequence[str]) -> tuple[Node, Node]:
    """What goes with an item: the outermost block that holds nothing else; and what holds that."""
    chain = _chain(root, steps)
    at = len(chain) - 1
    while at > 1 and len(children(chain[at - 1])) == 1:
        at -= 1
    return chain[at - 1], chain[at]


def _drop_flow(source: Source, root: Node, holder: Node, item: Node) -> str:
    """Take an item out of brackets, with one comma."""
    text, items = source.text, [node for _, node in children(holder)]
    at = next(i for i, node in enumerate(items) if node is item)
    start, end = _extent(item.place)
    if at:
        start_gap, end_gap = _extent(items[at - 1].place)[1], start
        whole = (start_gap, end)
    elif len(items) > 1:
        start_gap, end_gap = end, _extent(items[1].place)[0]
        whole = (start, end_gap)
    else:
        return text[:start] + text[end:]
    if not {"#", "\n", "\r"} & set(text[start_gap:end_gap]):
        return text[: whole[0]] + text[whole[1] :]
    said = [range(a, b) for a, b in _comments(source, root)]
    commas = (i for i in range(start_gap, end_gap) if text[i] == ",")
    comma = next((i for i in commas if not any(i in each for each in said)), None)
    if comma is None:
        raise Unfixable("no comma is found beside it")
    cuts = sorted([(start, end), (comma, comma + 1)], reverse=True)
    for a, b in cuts:
        text = text[:a] + text[b:]
    return text


def _without_lines(source: Source, root: Node, start: int, end: int, *, behind: bool) -> str:
    """The text without the lines of an item; comments among them stay, on lines of their own.

    behind  whether those stay that stand behind what is taken out, on its line
    """
    text = source.text
    line = source.starts[source.locate(start)[0] - 1]
    if text[line:start].strip(" ") not in ("", "-"):
        raise Unfixable("something else stands on its line")
    said = dict(_comments(source, root))
    kept = ""
    for begin, stop in _lines(source, line, end):
        at = next((i for i in range(begin, stop) if i in said), None)
        if at is not None and (behind or not _is_behind(source, at)):
            indent = text[begin:at][: len(text[begin:at]) - len(text[begin:at].lstrip(" "))]
            kept += indent + text[at:stop]
    last = _lines(source, line, end)[-1][1]
    return text[:line] + kept + text[last:]


def _lines(source: Source, start: int, end: int) -> list[tuple[int, int]]:
    """The lines that a stretch touches, each with its break."""
    bounds = [*source.starts, len(source.text)]
    first, last = source.locate(start)[0], source.locate(max(start, end - 1))[0]
    return [(bounds[i - 1], bounds[i]) for i in range(first, last + 1)]


def _put(source: Source, root: Node, steps: Sequence[str], value: Any) -> str:
    """The text with a value at a path: in the place of another one, or as a new field."""
    known: list[Node] = [root]
    for key in steps:
        found = dict(children(known[-1])).get(key)
        if found is None:
            break
        known.append(found)
    missing = list(steps[len(known) - 1 :])
    if not missing:
        at = known[-1].place
        if isinstance(known[-1].value, dict | list) and at.key and not _is_flow(known[-1]):
            return _in_place_of_lines(source, root, known[-1], at.key, _spelled(value))
        return _replaced(source.text, at.value, _spelled(value, at.value.text))
    holder = known[-1]
    if not isinstance(holder.value, dict):
        if holder.value is not None:
            raise Unfixable(f"`{'.'.join(steps[:-1])}` is no block")
        return _new_block(source, known, missing, value)
    if not holder.value and not _is_flow(holder):
        raise Unfixable("the file is empty")
    return _new_field(source, holder, missing, value)


def _replaced(text: str, at: Span, spelled: str) -> str:
    gap = " " if at.start == at.end and text[at.start - 1 : at.start] == ":" else ""
    return text[: at.start] + gap + spelled + text[at.end :]


def _in_place_of_lines(source: Source, root: Node, item: Node, key: Span, spelled: str) -> str:
    """A value behind its key, in the place of the lines below it."""
    colon = source.text.index(":", key.end) + 1
    start, end = item.place.value.start, item.place.value.end
    after = _without_lines(source, root, start, end, behind=True)
    return f"{after[:colon]} {spelled}{after[colon:]}"


def _new_block(source: Source, known: list[Node], missing: list[str], value: Any) -> str:
    """A field in a block that is written and empty: `verify:`."""
    at = known[-1].place.value
    inner = _spelled(value)
    for key in reversed(missing):
        inner = f"{{{key}: {inner}}}"
    return _replaced(source.text, at, inner)


def _new_field(source: Source, holder: Node, missing: list[str], value: Any) -> str:
    """A field after the last one of its block."""
    text, items = source.text, [node for _, node in children(holder)]
    if _is_flow(holder):
        inner = _spelled(value)
        for key in reversed(missing[1:]):
            inner = f"{{{key}: {inner}}}"
        end = _extent(items[-1].place)[1] if items else holder.place.value.start + 1
        return text[:end] + (", " if items else "") + f"{missing[0]}: {inner}" + text[end:]
    first = items[0].place.key
    if first is None:
        raise Unfixable("it is no block of fields")
    start, end = _extent(items[-1].place)
    stop = _lines(source, start, end)[-1][1]
    gap = "\r\n" if "\r\n" in text else "\n"
    indent = " " * (first.column - 1)
    lines = [f"{indent}{INDENT * i}{key}:" for i, key in enumerate(missing)]
    lines[-1] += f" {_spelled(value)}"
    ends = text[:stop].endswith(("\n", "\r"))
    new = gap.join(lines)
    return text[:stop] + (new + gap if ends else gap + new) + text[stop:]


def _rename(source: Source, root: Node, steps: Sequence[str], name: str) -> str:
    """The text with another name for a key."""
    key = _chain(root, steps)[-1].place.key
    if key is None:
        raise Unfixable("it has no name")
    return source.text[: key.start] + name + source.text[key.end :]


def _spelled(value: Any, before: str = "") -> str:
    """A value as YAML has it, in the quotes of the one before."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_spelled, value)) + "]"
    if not isinstance(value, str):
        return str(value)
    if before[:1] == "'" and "'" not in value and value.isprintable():
        return f"'{value}'"
    bare = value.replace("_", "").replace("-", "").replace("/", "").isalnum() and value.isascii()
    said, found = read(Source("", value)) if bare else (None, [])
    if before[:1] == '"' or said is None or found or said.value != value:
        return json.dumps(value, ensure_ascii=False)
    return value


def _comments(source: Source, root: Node) -> Iterator[tuple[int, int]]:
    """Where each comment begins and where its line ends."""
    text = source.text
    held: list[tuple[int, int]] = []
    for _, node in walk(root):
        spans = [node.place.key] + (
            [] if isinstance(node.value, dict | list) else [node.place.value]
        )
        held += [(span.start, span.end) for span in spans if span is not None]
    for begin, stop in _lines(source, 0, len(text)):
        end = begin + len(text[begin:stop].rstrip("\r\n"))
        inside = [pair for pair in held if pair[0] < end and pair[1] > begin]
        for at in range(begin, end):
            opens = text[at] == "#" and (at == begin or text[at - 1] in " \t")
            if opens and not any(a <= at < b for a, b in inside):
                yield at, end
                break
