"""What may stand where the cursor is: commands, options, recipes, fields, rules, engines, files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from specflow import packs
from specflow.cli.common import is_override
from specflow.errors import RecipeError
from specflow.facts import BUILTIN, builtins
from specflow.load import load
from specflow.recipe import STAND_IN, Recipe
from specflow.resolve import AXES, block_fields
from specflow.stages import COMMITS, DRAFTS, VERIFIES
from specflow.tables import ALIASES

Found = Iterable[tuple[str, str]]  # a word, and what it is
AXIS_DOCS = {
    "algorithm": "Who guesses: a row of the table of drafts, or an alias.",
    "signal": "What the guess is based on.",
    "guess": "How it guesses.",
    "shape": "What is verified.",
    "draft_state": "How draft state goes on.",
    STAND_IN: "The small model that `--stand-in` uses instead.",
}


def candidates(words: Sequence[str], commands: Mapping[str, str]) -> list[tuple[str, str]]:
    """Words that may stand in place of the last one, each with what it is.

    words  what stands after `specflow`, up to the cursor; the last may be empty
    """
    *before, typed = words or [""]
    if not before:
        found: Found = [*commands.items(), ("--help", "help"), ("--version", "the version")]
    elif before[0] in commands:
        found = _of_command(before[0], before[1:], typed)
    else:
        found = ()
    return [(word, doc) for word, doc in found if word.startswith(typed)]


def _of_command(command: str, before: Sequence[str], typed: str) -> Found:
    """What a command takes next."""
    parser = argparse.ArgumentParser(prog=f"specflow {command}")
    import_module(f"specflow.cli.{command}").add(parser)
    actions = parser._actions  # noqa: SLF001 - argparse tells of itself in no other way
    options = {name: action for action in actions for name in action.option_strings}
    name, equals, _ = typed.partition("=")
    if equals and name in options:
        return [(f"{name}={word}", doc) for word, doc in _values(options[name], before)]
    asked = options.get(before[-1]) if before else None
    if asked is not None and _takes_value(asked):
        return _values(asked, before)
    if typed.startswith("-"):
        return [
            (name, action.help or "")
            for name, action in options.items()
            if name.startswith("--") and name not in before
        ]
    named = _positionals(before, options)
    places = [action for action in actions if not action.option_strings]
    if not places or (len(named) >= len(places) and places[-1].nargs not in ("*", "+")):
        return ()
    return _values(places[min(len(named), len(places) - 1)], named, typed)


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0


def _positionals(before: Sequence[str], options: Mapping[str, argparse.Action]) -> list[str]:
    """The words that are neither options nor values of one."""
    out: list[str] = []
    value = False
    for word in before:
        if not value and not word.startswith("-"):
            out.append(word)
        value = not value and word in options and _takes_value(options[word])
    return out


def _values(action: argparse.Action, before: Sequence[str], typed: str = "") -> Found:
    """What an argument may be, by its choices, or by the name of what it stands for."""
    if action.choices is not None:
        return [(str(choice), "") for choice in action.choices]
    shown = action.metavar if isinstance(action.metavar, str) else ""
    if shown == "NAME":
        shown = action.option_strings[0]
    kinds = shown.split("|")
    if "FIELD" in kinds and not is_override(typed):
        kinds = ["FIELD"]  # `=` may follow
    return [each for kind in kinds for each in _KINDS.get(kind, _none)(before, typed)]


# -- kinds of words --------------------------------------------------------------------------------


def _none(_before: Sequence[str], _typed: str) -> Found:
    return ()


def _recipes(_before: Sequence[str], typed: str) -> Found:
    """Recipes that ship, and files."""
    yield from ((name, packs.title(packs.root() / f"{name}.yaml")) for name in packs.names())
    yield from _paths(typed, ".yaml", ".yml")


def _files(_before: Sequence[str], typed: str) -> Found:
    return _paths(typed)


def _paths(typed: str, *suffixes: str) -> Iterator[tuple[str, str]]:
    """Files and folders that begin so; hidden ones only where the dot is typed."""
    folder, slash, name = typed.rpartition("/")
    here = Path(folder + slash or ".")
    try:
        inside = sorted(here.iterdir())
    except (OSError, ValueError):
        return
    for path in inside:
        if not path.name.startswith(name) or (path.name.startswith(".") and not name):
            continue
        if path.is_dir():
            yield f"{folder}{slash}{path.name}/", "folder"
        elif not suffixes or path.suffix in suffixes:
            yield f"{folder}{slash}{path.name}", "file"


def _rules(_before: Sequence[str], _typed: str) -> Found:
    from specflow.manual import manuals

    for manual in manuals():
        yield manual.code, manual.name
        yield manual.name, manual.code


def _engines(_before: Sequence[str], _typed: str) -> Found:
    from specflow.engines import ENGINES

    for name in ENGINES.names():
        yield name, ENGINES[name].title
        yield from ((f"{name}@{v}", ENGINES[name].title) for v in ENGINES[name].versions)


def _platforms(before: Sequence[str], _typed: str) -> Found:
    from specflow.engines import ENGINES

    asked = [word.rpartition("=")[2].partition("@")[0] for word in before]
    named = [name for name in asked if name in ENGINES] or ENGINES.names()
    return [(p, "") for p in dict.fromkeys(p for name in named for p in ENGINES[name].platforms)]


def _overrides(before: Sequence[str], typed: str) -> Found:
    """`key=` for each field of a recipe, the values of one, or `~key` for those written."""
    path, equals, _ = typed.partition("=")
    written, fields = _recipe(before)
    if typed.startswith("~"):
        return [(f"~{key}", "take it out") for key in written]
    if equals:
        return [(f"{path}={word}", doc) for word, doc in _field_values(path, fields, typed)]
    return _by_block(fields, typed, "=")


def _fields(before: Sequence[str], typed: str) -> Found:
    """The path of each field of the recipe that is named."""
    return _by_block(_recipe(before)[1], typed, "")


def _by_block(fields: Mapping[str, tuple[str, Any]], typed: str, end: str) -> Found:
    """Blocks first, so that a list stays short; then the fields of one."""
    if "." not in typed:
        return [(f"{block}.", "") for block in dict.fromkeys(p.split(".")[0] for p in fields)]
    return [(f"{path}{end}", doc) for path, (doc, _) in fields.items()]


_KINDS: dict[str, Callable[[Sequence[str], str], Found]] = {
    "RECIPE": _recipes,
    "A": _recipes,
    "B": _recipes,
    "FIELD": _fields,
    "key=value": _overrides,
    "CODE": _rules,
    "FILE": _files,
    "DIR": _files,
    "NAME[@VERSION]": _engines,
    "--platform": _platforms,
}


# -- fields of a recipe ----------------------------------------------------------------------------


def _recipe(named: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, Any]]]:
    """What the recipe that is named writes; the fields that its stages have, and their types."""
    names = [word for word in named if not is_override(word)]
    try:
        recipe = load(packs.find(names[0]), [w for w in named if is_override(w)]) if names else None
    except RecipeError:
        recipe = None  # what is wrong with it, other commands tell
    said = _said(recipe)
    rows = [alias.means for alias in ALIASES.get(said("draft", "algorithm"), ())]
    rows += [name for name in (said("draft", "algorithm"),) if name in DRAFTS]
    stages = [DRAFTS[row] for row in dict.fromkeys(rows or DRAFTS.names())]
    shapes = [name for name in (said("verify", "shape"),) if name in VERIFIES]
    states = [name for name in (said("commit", "draft_state"),) if name in COMMITS]
    shapes = shapes or list(dict.fromkeys(shape for stage in stages for shape in stage.shapes))
    have = block_fields(stages, shapes, states or COMMITS.names())
    out: dict[str, tuple[str, Any]] = {}
    for block, each in have.items():
        out |= {f"{block}.{key}": (AXIS_DOCS[key], None) for key in AXES.get(block, ())}
        for fields in each:
            for name, info in fields.model_fields.items():
                out[f"{block}.{name}"] = (info.description or "", info.annotation)
    paths = [p for p in (recipe.places if recipe is not None else ()) if not p[-1].isdigit()]
    return paths, out


def _said(recipe: Recipe | None) -> Callable[[str, str], str]:
    """What a recipe writes at a field, as text; empty where it writes nothing."""
    written = recipe.written if recipe is not None else {}

    def said(block: str, key: str) -> str:
        fields = written.get(block)
        return str(fields.get(key, "")) if isinstance(fields, Mapping) else ""

    return said


def _field_values(path: str, fields: Mapping[str, tuple[str, Any]], typed: str) -> Found:
    """What a field may be, where that is a list of names, a switch or a file."""
    _, kind = fields.get(path, ("", None))
    if path in _AXIS_VALUES:
        return [(name, "") for name in _AXIS_VALUES[path]()]
    if get_origin(kind) is Literal:
        return [(str(choice), "") for choice in get_args(kind)]
    if kind is bool:
        return [("true", ""), ("false", "")]
    if kind is str or path.endswith(STAND_IN):
        value = typed.partition("=")[2]
        named = builtins() if path.endswith((".model", STAND_IN)) else ()
        return [*((f"{BUILTIN}{name}", "") for name in named), *_paths(value)]
    return ()


_AXIS_VALUES: dict[str, Callable[[], Iterable[str]]] = {
    "draft.algorithm": lambda: dict.fromkeys((*DRAFTS.names(), *ALIASES)),
    "draft.signal": lambda: dict.fromkeys(DRAFTS[n].axes.signal for n in DRAFTS.names()),
    "draft.guess": lambda: dict.fromkeys(DRAFTS[n].axes.guess for n in DRAFTS.names()),
    "verify.shape": VERIFIES.names,
    "commit.draft_state": COMMITS.names,
}
