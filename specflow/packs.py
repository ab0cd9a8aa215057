"""The recipes that ship with specflow, by name."""

from __future__ import annotations

from pathlib import Path

from specflow.diagnostics import Diagnostic, Severity, closest
from specflow.errors import RecipeError

HERE = Path(__file__).parent


def root() -> Path:
    """The folder of the recipe packs: inside the installed package, or beside it in a checkout."""
    installed = HERE / "recipes"
    return installed if installed.is_dir() else HERE.parent / "recipes"


def names() -> tuple[str, ...]:
    """Every pack recipe: `pico/ngram`."""
    return tuple(
        p.relative_to(root()).with_suffix("").as_posix() for p in sorted(root().rglob("*.yaml"))
    )


def find(name: str) -> Path:
    """A path where it is one, else the pack recipe of that name; RecipeError where neither is."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return path
    if name in names():
        return root() / f"{name}.yaml"
    near = closest(name, names())
    offer = f"did you mean {' or '.join(near)}? " if near else ""
    raise RecipeError(
        [
            Diagnostic(
                "SF000",
                "unreadable-recipe",
                Severity.ERROR,
                f"`{name}` is neither a file nor a recipe that ships with specflow",
                help=f"{offer}`specflow recipes` lists them",
            )
        ]
    )


def title(file: Path) -> str:
    """The first line of a recipe's opening comment."""
    with file.open(encoding="utf-8") as opened:
        return opened.readline().lstrip("# ").strip()
