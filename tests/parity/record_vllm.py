"""Record the arguments of one release of vLLM: `record_vllm.py FOLDER VERSION`.

FOLDER is an unpacked wheel. Its argument classes are read as source, never imported: vLLM needs
compiled kernels. Written are the tables that specflow ships, `flags-VERSION.tsv` and
`frontend.tsv`, what only a server takes, and the list that tests hold exports to,
`tests/parity/vllm-VERSION.json`.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Fields of SpeculativeConfig that the engine fills in; nobody writes them.
INTERNAL = {
    *("target_model_config", "target_parallel_config"),
    *("draft_model_config", "draft_parallel_config"),
}
UNKNOWN = object()


class Source:
    """The classes and the named types of a folder of modules."""

    def __init__(self, folder: Path, more: tuple[Path, ...]) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.names: dict[str, ast.expr] = {}
        for file in (*sorted(folder.rglob("*.py")), *more):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, node)
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.names.setdefault(node.targets[0].id, node.value)

    def fields(self, name: str) -> dict[str, ast.AnnAssign]:
        """The fields of a class by name, those of its bases first."""
        out: dict[str, ast.AnnAssign] = {}
        node = self.classes[name]
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.classes:
                out |= self.fields(base.id)
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                out[part.target.id] = part
        return out

    def default(self, value: ast.expr | None) -> Any:
        """A default as plain data; UNKNOWN where only running the code would tell."""
        if value is None:
            return None
        try:
            return ast.literal_eval(value)
        except ValueError:
            pass
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
            return self._default_of(value.value.id, value.attr)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            return self._called(value)
        return UNKNOWN

    def _called(self, value: ast.Call) -> Any:
        """The default of `get_field(CLASS, NAME)` or `Field(default=...)`."""
        if isinstance(value.func, ast.Name):
            if value.func.id == "get_field":
                owner, name = value.args
                assert isinstance(owner, ast.Name)
                return self._default_of(owner.id, ast.literal_eval(name))
            for word in value.keywords:
                if word.arg == "default":
                    return self.default(word.value)
                if word.arg == "default_factory" and isinstance(word.value, ast.Name):
                    return {"dict": {}, "list": [], "set": []}.get(word.value.id, UNKNOWN)
        return UNKNOWN

    def _default_of(self, owner: str, name: str) -> Any:
        if owner not in self.classes or name not in (fields := self.fields(owner)):
            return UNKNOWN
        return self.default(fields[name].value)

    def choices(self, note: ast.expr) -> list[Any]:
        """What a Literal has, through names that stand for one; empty for any other type."""
        if isinstance(note, ast.Name) and note.id in self.names:
            return self.choices(self.names[note.id])
        if isinstance(note, ast.BinOp):
            parts = (self.choices(note.left), self.choices(note.right))
            if any(
                not p and not _is_none(n)
                for p, n in zip(parts, (note.left, note.right), strict=True)
            ):
                return []
            return [*parts[0], *parts[1]]
        if not (isinstance(note, ast.Subscript) and _head(note) == "Literal"):
            return []
        parts_of = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
        out: list[Any] = []
        for part in parts_of:
            out += [part.value] if isinstance(part, ast.Constant) else self.choices(part)
        return out

    def kind(self, note: ast.expr, default: Any) -> tuple[str, list[str]]:
        """The type of a field, in the words of a table of flags, and its choices."""
        if isinstance(note, ast.Constant) and isinstance(note.value, str):
            note = ast.parse(note.value, mode="eval").body
        choices = self.choices(note)
        if choices and all(isinstance(c, str) for c in choices):
            return "str" + "?" * (default is None), choices
        parts = [p for p in _union(note) if not _is_none(p)]
        kinds = {self._one(p) for p in parts}
        found = kinds.pop() if len(kinds) == 1 else "any"
        optional = default is None or len(parts) < len(_union(note))
        return found + "?" * optional, []

    def _one(self, note: ast.expr) -> str:
        name = note.id if isinstance(note, ast.Name) else _head(note)
        plain = {"int", "float", "bool", "str"}
        known = {"list": "list", "set": "list", "tuple": "list", "dict": "map"}
        if name in plain:
            return name
        if name in known:
            return known[name]
        if name == "SkipValidation" and isinstance(note, ast.Subscript):
            return self._one(note.slice)
        return "map" if name in self.classes and name.endswith("Config") else "any"


def _head(note: ast.expr) -> str:
    if isinstance(note, ast.Subscript) and isinstance(note.value, ast.Name):
        return note.value.id
    return ""


def _is_none(note: ast.expr) -> bool:
    return isinstance(note, ast.Constant) and note.value is None


def _union(note: ast.expr) -> list[ast.expr]:
    if isinstance(note, ast.BinOp):
        return [*_union(note.left), *_union(note.right)]
    return [note]


def spellings(files: list[Path]) -> dict[str, list[str]]:
    """Every way that the parser spells a flag, by the flag's own name."""
    out: dict[str, list[str]] = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                words = [a.value for a in node.args if isinstance(a, ast.Constant)]
                long = [w for w in words if isinstance(w, str) and w.startswith("--")]
                if long:
                    name = long[0].removeprefix("--").replace("-", "_")
                    out[name] = [w for w in words if w != long[0]]
    return out


def record(folder: Path, version: str) -> None:
    """Both files of a release."""
    package = folder / "vllm"
    arguments = package / "engine" / "arg_utils.py"
    front = next(
        file
        for file in sorted((package / "entrypoints").rglob("cli_args.py"))
        if "class FrontendArgs" in file.read_text(encoding="utf-8")
    )
    source = Source(package / "config", (arguments, front))
    spelled = spellings([arguments, front])
    rows: dict[str, tuple[str, Any, list[str], list[str]]] = {}
    for owner in ("AsyncEngineArgs", "FrontendArgs"):
        for name, field in source.fields(owner).items():
            if not name.startswith("_"):
                rows[name] = _row(source, field, spelled.get(name, []))
    rows["config"] = ("str?", None, [], [])  # the file of flags, which the parser takes itself
    rows["speculative_config"] = ("map?", None, [], spelled.get("speculative_config", []))
    for name, field in source.fields("SpeculativeConfig").items():
        if name not in INTERNAL:
            rows[f"speculative_config.{name}"] = _row(source, field, [])
    front_names = [n for n in source.fields("FrontendArgs") if not n.startswith("_")]
    shared = ROOT / "specflow" / "engines" / "vllm" / "frontend.tsv"
    before = shared.read_text(encoding="utf-8").split() if shared.is_file() else []
    shared.write_text("\n".join(sorted({*before, *front_names})) + "\n", encoding="utf-8")
    lines = [_line(name, *row) for name, row in sorted(rows.items())]
    table = ROOT / "specflow" / "engines" / "vllm" / f"flags-{version}.tsv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = {
        "vllm": version,
        "server": sorted(n for n in rows if "." not in n),
        "speculative_config": sorted(
            n.partition(".")[2] for n in rows if n.startswith("speculative_config.")
        ),
        "methods": source.choices(source.names["SpeculativeMethod"]),
        "requests": _requests(package),
    }
    signature = ROOT / "tests" / "parity" / f"vllm-{version}.json"
    signature.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def _row(
    source: Source, field: ast.AnnAssign, more: list[str]
) -> tuple[str, Any, list[str], list[str]]:
    default = source.default(field.value)
    kind, choices = source.kind(field.annotation, None if default is UNKNOWN else default)
    return kind, None if default is UNKNOWN else default, choices, more


def _requests(package: Path) -> list[str]:
    """What a request may say: the fields of SamplingParams."""
    source = Source(package / "config", (package / "sampling_params.py",))
    return sorted(n for n in source.fields("SamplingParams") if not n.startswith("_"))


def _line(name: str, kind: str, default: Any, choices: list[str], spelled: list[str]) -> str:
    said = json.dumps(sorted(default) if isinstance(default, set) else default)
    return "\t".join([name, kind, said, " ".join(choices), " ".join(spelled)]).rstrip("\t")


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2])
