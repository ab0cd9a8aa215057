"""The recipes that ship with specflow, by name."""

from __future__ import annotations

from pathlib import Path

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
    """The path where it exists; else the pack recipe of that name; else the path, for `load`."""
    path = Path(name)
    if path.exists() or path.suffix in (".yaml", ".yml"):
        return path
    return root() / f"{name}.yaml" if name in names() else path


def title(file: Path) -> str:
    """The first line of a recipe's opening comment."""
    with file.open(encoding="utf-8") as opened:
        return opened.readline().lstrip("# ").strip()
