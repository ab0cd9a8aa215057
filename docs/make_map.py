"""The map of the house in README.md, made of the modules' own first lines: `make map`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- map: made by `make map` -->", "<!-- end of map -->"

# Top may import below, never above; tests/architecture holds it.
LAYERS = (
    ("what a person calls", ("cli",)),
    (
        "one run",
        ("profile.py", "calibrate.py", "execute.py", "session.py", "lossless.py", "capture.py"),
    ),
    ("the device", ("models", "pools.py", "kernels")),
    (
        "what is told",
        (
            "schema.py",
            "pairing.py",
            "fixing.py",
            "measuring.py",
            "report.py",
            "columns.py",
            "explain.py",
            "roofline.py",
            "fit.py",
            "deployed.py",
            "cost.py",
            "diff.py",
            "manual.py",
            "engines",
        ),
    ),
    (
        "the compiler (no torch)",
        ("codegen", "lower.py", "resolve.py", "constraints", "memory.py", "stages", "graph"),
    ),
    (
        "its words",
        (
            "rules.py",
            "tables.py",
            "load.py",
            "recipe_text.py",
            "packs.py",
            "prompts.py",
            "recipe.py",
            "facts.py",
            "config_draft.py",
            "dummies.py",
            "facts_file.py",
            "deep.py",
            "hub.py",
            "sizes.py",
            "stored.py",
            "config_sizes.py",
            "layer_sizes.py",
            "machines.py",
            "backends.py",
            "formats.py",
            "block_config.py",
            "planning.py",
            "temperatures.py",
            "cost_fit.py",
            "provenance.py",
            "errors.py",
            "diagnostics.py",
            "spans.py",
        ),
    ),
)


def first_line(path: Path) -> str:
    """The first sentence of a module's docstring, or of a package's."""
    file = path / "__init__.py" if path.is_dir() else path
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return text.split("\n")[0]


def made() -> str:
    """The table, between its markers."""
    rows = [BEGIN, "| | module | what it answers |", "|---|---|---|"]
    for title, names in LAYERS:
        for i, name in enumerate(names):
            path = ROOT / "specflow" / name
            shown = f"`{name}/`" if path.is_dir() else f"`{name}`"
            rows.append(f"| {title if not i else ''} | {shown} | {first_line(path)} |")
    return "\n".join([*rows, END])


def replaced(text: str) -> str:
    """A text with the map between its markers made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + made() + tail


def main() -> None:
    """Rewrite README.md; with --check only compare."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    if "--check" in sys.argv:
        sys.exit(0 if replaced(text) == text else "README.md: the map is stale; run `make map`")
    readme.write_text(replaced(text))


if __name__ == "__main__":
    main()
