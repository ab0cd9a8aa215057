"""The recipes that ship with specflow, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from specflow.diagnostics import Diagnostic, Label, Severity, closest
from specflow.errors import RecipeError
from specflow.recipe import Recipe

HERE = Path(__file__).parent
FOR_THE_MODEL = ("max_length",)  # fields of `run` that go with the real model alone


def root() -> Path:
    """The folder of the recipe packs: inside the installed package, or beside it in a checkout."""
    installed = HERE / "recipes"
    return installed if installed.is_dir() else HERE.parent / "recipes"


def names() -> tuple[str, ...]:
    """Every pack recipe: `pico/ngram`."""
    top = root()
    return tuple(p.relative_to(top).with_suffix("").as_posix() for p in sorted(top.rglob("*.yaml")))


def inside(folder: str) -> tuple[str, ...]:
    """The pack recipes of a folder of them: `pico`."""
    return tuple(name for name in names() if name.startswith(f"{folder.rstrip('/')}/"))


def find(name: str) -> Path:
    """A path where it is one, else the pack recipe of that name; RecipeError where neither is."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return path
    if name in names():
        return root() / f"{name}.yaml"
    pack = inside(name) if name else ()
    near = closest(name, names())
    offer = f"did you mean {' or '.join(pack[:3] or near)}? " if pack or near else ""
    said = "a folder of recipes" if pack else "neither a file nor a recipe"
    raise RecipeError(
        [
            Diagnostic(
                "SF000",
                "unreadable-recipe",
                Severity.ERROR,
                f"`{name}` is {said} that {'ship' if pack else 'ships'} with specflow",
                help=f"{offer}`specflow recipes` lists them",
            )
        ]
    )


def with_stand_in(recipe: Recipe) -> Recipe:
    """The recipe on the small models that stand in for its own; RecipeError where it names none.

    Every model that is written needs one: a real draft does not fit a small target. A length that
    was written for the real target's context is left out, so that it is derived from the small one.
    """
    blocks = {k: dict(v) for k, v in recipe.written.items() if isinstance(v, Mapping)}
    named = [block for block in ("target", "draft") if "model" in blocks.get(block, {})]
    lacking = [block for block in named if not blocks[block].get("stand_in")]
    if lacking or not named:
        block = lacking[0] if lacking else "target"
        place = recipe.places.get(f"{block}.model")
        labels = (Label(place.value, "no `stand_in`", primary=True),) if place else ()
        message = f"`--stand-in` is asked for, and `{block}` names no small model to stand in"
        offer = f"write `{block}.stand_in: builtin:NAME`, or leave `--stand-in` out"
        found = Diagnostic("SF065", "no-stand-in", Severity.ERROR, message, labels, (), offer)
        raise RecipeError([found])
    places = dict(recipe.places)
    for block in named:
        blocks[block]["model"] = blocks[block]["stand_in"]
        places[f"{block}.model"] = places[f"{block}.stand_in"]
    run = {k: v for k, v in blocks.get("run", {}).items() if k not in FOR_THE_MODEL}
    blocks |= {"run": run} if "run" in blocks else {}
    overridden = recipe.overridden | {f"{block}.model" for block in named}
    return replace(
        recipe, written={**recipe.written, **blocks}, places=places, overridden=overridden
    )


def title(file: Path) -> str:
    """The first line of a recipe's opening comment."""
    with file.open(encoding="utf-8") as opened:
        return opened.readline().lstrip("# ").strip()
