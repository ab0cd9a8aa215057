"""`specflow validate`: check recipes before anything loads, and mend what has one answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specflow.cli.common import (
    CLEAN,
    FINDINGS,
    USAGE,
    add_format,
    add_overwrite,
    add_stand_in,
    is_override,
    need_engine,
    show,
    told,
    worst,
    written,
)
from specflow.cli.models import add_models, reader_of
from specflow.diagnostics import Diagnostic, Label, Severity, only_answer, render, summary
from specflow.errors import RecipeError, UsageError
from specflow.facts import Facts, ModelFacts
from specflow.load import COMMAND_LINE
from specflow.packs import find, inside
from specflow.recipe import Recipe, ResolvedRecipe
from specflow.resolve import Look, Reader, facts_of, resolve
from specflow.stages import DRAFTS
from specflow.tables import ENGINES


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="RECIPE|key=value",
        help="paths, folders, pack names (`pico/ngram`) or packs (`pico`); overrides",
    )
    parser.add_argument("--strict", action="store_true", help="warnings count as findings")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="write the fixes of findings that have one answer into the recipe",
    )
    parser.add_argument(
        "--unsafe-fixes",
        action="store_true",
        help="with --fix: those too that may change what it means, or are one answer of several",
    )
    parser.add_argument(
        "--diff", action="store_true", help="with --fix: show what would change, write nothing"
    )
    parser.add_argument(
        "--deep", action="store_true", help="look through the draft's weights too, by a sample"
    )
    add_models(parser)
    parser.add_argument(
        "--write-facts",
        metavar="FILE",
        help="write what the models that are here say, as --facts reads it",
    )
    add_overwrite(parser)
    fits = parser.add_mutually_exclusive_group()
    fits.add_argument(
        "--fit",
        action="store_true",
        default=None,
        help="show what target and draft say of each other; by itself where one recipe is named",
    )
    fits.add_argument("--no-fit", dest="fit", action="store_false", help="leave that table out")
    parser.add_argument(
        "--memory", metavar="SIZE", help="what weights and KV have to fit into: 80GiB, h200"
    )
    parser.add_argument(
        "--engine",
        metavar="NAME[@VERSION]",
        help=f"what an engine would do otherwise, or refuse, too: {', '.join(ENGINES)}",
    )
    parser.add_argument("--platform", metavar="NAME", help="the machine that engine is to run on")
    add_stand_in(parser)
    add_format(parser, "text", "json", "github")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Validate each recipe; the worst exit code of all."""
    overrides = [w for w in args.words if is_override(w)]
    names = [n for w in args.words if not is_override(w) for n in _inside(w)]
    _check(args, names)
    reader = reader_of(args, needed=args.engine is None)
    fixes = sum(_fix(args, name, overrides, reader) for name in names) if args.fix else 0
    judged = [_judge(args, name, overrides, reader) for name in names]
    unwritten = CLEAN
    if args.write_facts is not None:
        unwritten = _write_facts(args, judged, reader)
    found = [each for one in judged for each in one.findings]
    fits = _fits(args, judged, reader)
    if args.format == "json" and args.fit:
        print(_whole(found, fits, judged))
        return max(unwritten, *(one.code for one in judged))
    show(found, args.format)
    if args.format == "text":
        if found:
            print()
        for name, rows in fits.items():
            print(_table(name if len(names) > 1 else "", rows))
        for one in judged:
            print(_room(one, several=len(names) > 1), end="")
        would = "would be " if args.diff else ""
        mends = sum(map(_mendable, found))
        more = f"; `--fix` mends {mends}" if mends else ""
        print(summary(len(names), found) + (f", {fixes} {would}fixed" if args.fix else more))
    return max(unwritten, *(one.code for one in judged))


@dataclass(frozen=True)
class _Held:
    """A recipe held against a memory: in words where it fits, and as plain values."""

    lines: tuple[str, ...]
    values: dict[str, Any]


@dataclass(frozen=True)
class _Judged:
    """One recipe: what was found in it, its exit code, and what its models say where it loads."""

    name: str
    findings: tuple[Diagnostic, ...]
    code: int
    recipe: Recipe | None = None
    facts: Facts | None = None
    held: _Held | None = None

    def models(self, reader: Reader) -> Facts:
        """What its models say, whether or not it resolves."""
        if self.facts is not None or self.recipe is None:
            return self.facts or Facts()
        return facts_of(self.recipe, reader)


def _look(args: argparse.Namespace) -> Look | None:
    """What else is told of the models: their weights, where they are asked for."""
    if not args.deep:
        return None
    from specflow.deep import look

    return look


def _write_facts(args: argparse.Namespace, judged: Sequence[_Judged], reader: Reader) -> int:
    """The facts of every model that is named and here, in one file; 1, and no file, without any."""
    from specflow.cli.files import prepare_file, read_by, write_whole
    from specflow.facts_file import facts_of as written_facts
    from specflow.facts_file import text_of

    models = {model.model: model for one in judged for model in one.models(reader).models.values()}
    known = {name: facts for name, m in models.items() if (facts := written_facts(m)) is not None}
    name = args.write_facts
    if known:
        recipes = [one.recipe for one in judged if one.recipe is not None]
        read = [file for recipe in recipes for file in read_by(recipe)]
        read += [file for each in models.values() for file in _own(each)]
        overwrite, option = args.overwrite, "--write-facts"
        write_whole(prepare_file(name, read, overwrite=overwrite, option=option), text_of(known))
    for each in sorted(models.keys() - known.keys()):
        why = "is in no folder, or not whole"
        if models[each].recorded:
            why = "is recorded in the package, and judged without a facts file"
        print(f"no facts of `{each}`: it {why}", file=sys.stderr)
    if known:
        return CLEAN
    message = f"`--write-facts {name}` has nothing to write, and wrote nothing"
    offer = "name a recipe whose models are here in folders, or add --hub"
    return told("SF091", "run-fault", message, "text", FINDINGS, offer)


def _own(model: ModelFacts) -> list[Path]:
    """What a model's folder holds of it: facts may lie beside, and nothing else there is YAML."""
    if model.folder is None or not model.folder.is_dir():
        return []
    return [each for each in model.folder.iterdir() if each.suffix not in (".yaml", ".yml")]


def _judge(args: argparse.Namespace, name: str, overrides: list[str], reader: Reader) -> _Judged:
    recipe = None
    found: tuple[Diagnostic, ...] = ()
    try:
        recipe, found = written(name, overrides, stand_in=args.stand_in)
        resolved = resolve(recipe, reader, _look(args), device=_device(args))
    except RecipeError as error:
        code = USAGE if error.unreadable else FINDINGS
        return _Judged(name, (*found, *error.diagnostics), code, recipe)
    held, elsewhere = _elsewhere(args, resolved)
    found = (*found, *resolved.findings, *_unseen(args, recipe, resolved), *elsewhere)
    return _Judged(name, found, worst(found, strict=args.strict), recipe, resolved.facts, held)


def _mendable(found: Diagnostic) -> bool:
    """Whether `--fix` may mend it: what the command line says is not."""
    at = found.primary
    written = at is None or at.span.source.name != COMMAND_LINE
    return found.fix is not None and only_answer(found.fix) and written


def _unseen(args: argparse.Namespace, recipe: Recipe, resolved: ResolvedRecipe) -> list[Diagnostic]:
    """That `--deep` looked through no weights, where a draft has some and they are not here."""
    if not args.deep or not DRAFTS[resolved.stages[0]].formats:
        return []
    from specflow.constraints.drafts import holder
    from specflow.constraints.pairs import untrained_weights
    from specflow.deep import unseen

    why = unseen(resolved.facts)
    if not why:
        return []
    path = f"{holder(resolved)}.model"
    place = recipe.places.get(path)
    return [
        Diagnostic(
            untrained_weights.code,
            untrained_weights.name,
            Severity.NOTE,
            f"`--deep` looked through no weights of `{resolved[path]}`",
            (Label(place.value, why, primary=True),) if place is not None else (),
            () if place is not None else (why,),
            f"name a folder that holds them: `{path}=/path/to/it`",
        )
    ]


def _device(args: argparse.Namespace) -> str:
    """The device that is asked about: a memory and an engine may be of a GPU."""
    if args.memory is None and args.engine is None:
        return ""
    from specflow.cli.memory import device_of

    return device_of(args)


def _elsewhere(
    args: argparse.Namespace, resolved: ResolvedRecipe
) -> tuple[_Held | None, list[Diagnostic]]:
    """Whether a sound recipe fits into the memory, and what the engine makes of it, if named."""
    need_engine(args)
    if args.memory is None and args.engine is None:
        return None, []
    from specflow.cli.engines import asked_engine, resolved_by
    from specflow.cli.memory import held, held_by
    from specflow.fit import as_json, findings
    from specflow.fit import told as room

    if args.engine is None:
        fit = held(args.memory, resolved)
        return _Held(tuple(room(fit)), as_json(fit)), findings(fit)
    asked = asked_engine(args.engine)
    found = resolved_by(asked, args.platform, resolved)
    remarks = [*found.findings, *found.remarks]
    if args.memory is None:
        return None, remarks
    fit = held_by(args.memory, resolved, asked, found)
    return _Held(tuple(room(fit)), as_json(fit)), [*findings(fit), *remarks]


def _fits(
    args: argparse.Namespace, judged: Sequence[_Judged], reader: Reader
) -> dict[str, tuple[Any, ...]]:
    """The tables that are asked for, by recipe; of one recipe it is shown unasked."""
    if args.fit is False or (args.fit is None and (len(judged) > 1 or args.format != "text")):
        return {}
    drafted = [each for each in judged if each.recipe is None or _runs_a_network(each.recipe)]
    if not drafted:
        return {}
    from specflow.pairing import fit  # only a table needs it

    found = {each.name: fit(each.models(reader), each.findings) for each in drafted}
    return {name: rows for name, rows in found.items() if rows}


def _runs_a_network(recipe: Recipe) -> bool:
    """Whether a recipe's draft may be a network: a table says nothing of any other."""
    draft = recipe.written.get("draft")
    said = draft.get("algorithm") if isinstance(draft, Mapping) else None
    return not (isinstance(said, str) and said in DRAFTS) or bool(DRAFTS[said].formats)


def _room(one: _Judged, *, several: bool) -> str:
    """What a recipe that fits leaves of the memory."""
    lines = one.held.lines if one.held is not None else ()
    if several:
        return f"{one.name} {lines[0]}\n" if lines else ""
    return "\n  ".join(lines) + "\n\n" if lines else ""


def _table(name: str, rows: tuple[Any, ...]) -> str:
    from specflow.pairing import table

    return (f"{name}\n" if name else "") + table(rows) + "\n"


def _whole(
    found: Sequence[Diagnostic], fits: dict[str, tuple[Any, ...]], judged: Sequence[_Judged]
) -> str:
    """Findings, tables and what memory is taken as one JSON object."""
    from specflow.pairing import as_json

    findings = json.loads(render(found, "json"))
    whole = {"findings": findings, "fit": {name: as_json(rows) for name, rows in fits.items()}}
    held = {one.name: one.held.values for one in judged if one.held is not None}
    whole |= {"memory": held} if held else {}
    return json.dumps(whole, indent=2, ensure_ascii=False)


def _check(args: argparse.Namespace, names: list[str]) -> None:
    """What the words on the command line ask for can be done."""
    if not names:
        named = [w for w in args.words if not is_override(w)]
        said = f"`{named[0]}` holds no recipe (*.yaml)" if named else "no recipe is named"
        raise UsageError(said, "`specflow recipes` lists those that ship with specflow")
    if args.memory is not None:
        from specflow.cli.memory import memory_of

        memory_of(args.memory)
    if args.deep and args.facts is not None:
        raise UsageError(
            "`--deep` reads weights, and a facts file has none", "leave one of both out"
        )
    if args.write_facts is not None and not Path(args.write_facts).absolute().parent.is_dir():
        reason = f"`--write-facts {args.write_facts}` is in no folder that exists"
        raise UsageError(reason, "make the folder first, or name another file")
    if args.write_facts is not None:
        _check_facts(args, names)
    elif args.overwrite:
        raise UsageError("`--overwrite` goes with `--write-facts`", "leave it out")
    for option in ("diff", "unsafe_fixes"):
        if getattr(args, option) and not args.fix:
            word = f"--{option.replace('_', '-')}"
            raise UsageError(f"`{word}` goes with `--fix`", f"add --fix, or leave {word} out")


def _check_facts(args: argparse.Namespace, names: list[str]) -> None:
    """The facts can be written where they are to go; what is read otherwise is known later."""
    from specflow.cli.files import prepare_file

    read = [*map(Path, names), *([Path(args.facts)] if args.facts is not None else [])]
    prepare_file(args.write_facts, read, overwrite=args.overwrite, option="--write-facts")


def _fix(args: argparse.Namespace, name: str, overrides: list[str], reader: Reader) -> int:
    """Mend one recipe, or show how; how many findings are gone by it."""
    from specflow import fixing

    try:
        path = find(name)
    except RecipeError:
        return 0  # told where the recipe is read
    unsafe, stand_in = args.unsafe_fixes, args.stand_in
    fixed = fixing.fix_recipe(path, overrides, stand_in=stand_in, unsafe=unsafe, reader=reader)
    # A machine reads findings on stdout.
    out = sys.stdout if args.format == "text" else sys.stderr
    print(fixing.difference(fixed), end="", file=out)
    for one in fixed.done:
        if one.fix is not None and one.fix.otherwise:
            others = "; or ".join(one.fix.otherwise)
            print(f"fixed: {one.code} {one.name}: to {one.fix.does}; or: {others}", file=out)
    for each in fixed.skipped:
        print(f"not fixed: {each.finding.code} {each.finding.name}: {each.reason}", file=out)
    if fixed.after or fixed.skipped:
        print(file=out)
    if not args.diff:
        fixing.write(fixed)
    return len(fixed.done)


def _inside(word: str) -> list[str]:
    """The recipes in a folder, or of a pack, or the word itself."""
    path = Path(word)
    if path.is_dir():
        return [str(p) for p in sorted(path.rglob("*.yaml"))]
    return (list(inside(word)) if word else []) or [word]
