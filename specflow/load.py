"""How a recipe file, what it extends and what the command line adds become one `Recipe`."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specflow.diagnostics import Diagnostic, Label, closest
from specflow.errors import RecipeError
from specflow.recipe import Recipe
from specflow.recipe_text import NAMES, Node, finding, interpolate, read, walk
from specflow.spans import Place, Source, Span

LARGEST_FILE = 1_000_000
COMMAND_LINE = "<command line>"

# Keys that speak of the recipe as a whole; they are fields of `Recipe`, not of `written`.
HEADER = ("recipe", "extends", "allow")

LONGEST_NAME = 60  # characters; it stands in the first line of the generated module
DEEPEST = 50  # levels of an override's path, as of a file's blocks

_ODD = re.compile(r"[^\w./-]")
_UNHOLDABLE = re.compile("[\\ud800-\\udfff\\0]")
NOTHING: Mapping[str, str] = {}

_PATH = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*")


def load(
    path: str | Path, overrides: Sequence[str] = (), texts: Mapping[str, str] = NOTHING
) -> Recipe:
    """The recipe in a file, with what it extends beneath and the overrides on top.

    path       as the user gave it; findings name the file so
    overrides  `key=value`, the value in YAML, or `~key` to take a field out
    texts      what to read instead of a file, by the name a source has: an edit not yet written

    Raises RecipeError with every finding that can be told at once.
    """
    file, findings = Path(path), list[Diagnostic]()
    source = _open(file, str(path), None, findings, texts)
    if source is None:
        raise RecipeError(findings)
    return _compose(source, file, overrides, findings, texts)


def loads(text: str, name: str = "<text>", overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a text, as `load` reads it from a file of that name."""
    return _compose(Source(name, text.removeprefix("\ufeff")), None, overrides, [])


def _compose(
    source: Source,
    file: Path | None,
    overrides: Sequence[str],
    findings: list[Diagnostic],
    texts: Mapping[str, str] = NOTHING,
) -> Recipe:
    """Read, extend, override, interpolate; every step notes what it finds and the next goes on."""
    root, sources = _extended(source, file or Path(source.name), findings, texts)
    line = Source(COMMAND_LINE, " ".join(overrides))
    root = _override(root, line, overrides, findings)
    # A file or key that was not understood would make each reference to it a false finding.
    certain = not {f.code for f in findings} & {"SF000", "SF007", "SF008"}
    written, unresolved = interpolate(root) if certain else ({}, [])
    findings += [*unresolved, *_check_header(root), *_check_characters(root)]
    if findings:
        raise RecipeError(findings)
    nodes = {".".join(path): node for path, node in walk(root)}
    name = written.get("recipe") or _derive_name(file.resolve() if file else Path(source.name))
    return Recipe(
        name=name,
        written={key: value for key, value in written.items() if key not in HEADER},
        places={path: node.place for path, node in nodes.items()},
        overridden=frozenset(
            path
            for path, node in nodes.items()
            if node.place.value.source is line and not isinstance(node.value, dict)
        ),
        allow=frozenset(written.get("allow") or ()),
        sources=(*sources, line) if overrides else sources,
        path=file,
    )


def _derive_name(path: Path) -> str:
    """The last folder and the stem: `pico/ngram` for recipes/pico/ngram.yaml."""
    name = f"{path.parent.name}/{path.stem}".lstrip("/")
    return _ODD.sub("_", name)[:LONGEST_NAME] or "recipe"


def _open(
    file: Path,
    name: str,
    extends: Span | None,
    findings: list[Diagnostic],
    texts: Mapping[str, str],
) -> Source | None:
    """The text of a file under the name the user knows, or nothing and a finding."""
    if name in texts:
        return Source(name, texts[name])
    try:
        content = _bytes(file)
    except (OSError, ValueError) as error:
        message, help_ = _unreadable(file, name, error)
    else:
        if len(content) > LARGEST_FILE:
            message, help_ = f"`{name}` is larger than 1 MB", "a recipe is a page of YAML"
        else:
            try:
                return Source(name, content.decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                line = content[: error.start].count(b"\n") + 1
                message = f"`{name}` is not UTF-8: byte 0x{content[error.start]:02X} in line {line}"
                help_ = "save it as UTF-8"
    labels = (Label(extends, "extended here"),) if extends else ()
    findings.append(finding("SF000", message, *labels, help=help_))
    return None


def _bytes(file: Path) -> bytes:
    """The head of a file, one byte more than is allowed; ValueError for what is no file."""
    if _UNHOLDABLE.search(str(file)):
        raise ValueError("no file has such a name")
    if file.exists() and not file.is_file() and not file.is_dir():
        raise ValueError("not a regular file")  # a pipe would wait for a writer
    with file.open("rb") as stream:
        return stream.read(LARGEST_FILE + 1)


def _unreadable(file: Path, name: str, error: OSError | ValueError) -> tuple[str, str | None]:
    """Why a file did not open, and what to try."""
    if isinstance(error, FileNotFoundError):
        near = [p.name for p in _neighbours(file)]
        offers = " or ".join(f"`{Path(name).with_name(option)}`" for option in near)
        return f"there is no file `{name}`", f"did you mean {offers}?" if near else None
    if isinstance(error, IsADirectoryError):
        return f"`{name}` is a folder", "name a recipe in it"
    # A ValueError is a name that no file can have, or what is no file: a device, a pipe.
    if isinstance(error, ValueError) and not _UNHOLDABLE.search(str(file)):
        return f"`{name}` is not a regular file", "name a YAML file"
    reason = (error.strerror or "") if isinstance(error, OSError) else "no file has such a name"
    return f"`{name}` cannot be read: {reason.lower()}", None


def _neighbours(missing: Path) -> list[Path]:
    """The recipes beside a missing file whose names are like it, closest first."""
    try:
        files = sorted(p for p in missing.parent.iterdir() if p.suffix in {".yaml", ".yml"})
    except OSError:
        return []
    near = closest(missing.stem, {p.stem for p in files})
    return [p for stem in near for p in files if p.stem == stem]


def _block(source: Source, findings: list[Diagnostic]) -> Node:
    """The top level of a source; empty, with a finding, where it is not a mapping."""
    root, found = read(source)
    findings += found
    if root and isinstance(root.value, dict):
        return root
    start = Span(source, 0, 0)
    if root is None and not found:
        findings.append(finding("SF000", "the recipe is empty", Label(start)))
    elif root and not found:
        message = "a recipe is a mapping of blocks"
        findings.append(finding("SF000", message, Label(root.place.value, "not a mapping")))
    return Node({}, Place(None, start))


@dataclass(frozen=True)
class _File:
    """One link of the chain of `extends`."""

    source: Source
    path: Path
    root: Node
    extends: Span | None


def _extended(
    source: Source, path: Path, findings: list[Diagnostic], texts: Mapping[str, str]
) -> tuple[Node, tuple[Source, ...]]:
    """The top level with all it extends beneath it, and the sources, the recipe's own first."""
    chain: list[_File] = []
    following: Source | None = source
    while following:
        root = _block(following, findings)
        base = root.value.get("extends") if isinstance(root.value, dict) else None
        chain.append(_File(following, path, root, base.place.value if base else None))
        following = None
        if base and _is_text("extends", base, findings):
            path, following = _base(chain, str(base.value), findings, texts)
    merged = chain[-1].root
    for link in reversed(chain[:-1]):
        merged = _merge(_nameless(merged), link.root)
    return merged, tuple(link.source for link in chain)


def _base(
    chain: list[_File], extends: str, findings: list[Diagnostic], texts: Mapping[str, str]
) -> tuple[Path, Source | None]:
    """The file the last link extends, and its text unless it closes a circle or cannot be read."""
    last = chain[-1]
    path = last.path.parent / extends
    known = [_identity(link.path) for link in chain]
    if _identity(path) not in known:
        name = os.path.normpath(Path(last.source.name).parent / extends)
        return path, _open(path, name, last.extends, findings, texts)
    circle = chain[known.index(_identity(path)) :]
    names = " -> ".join(link.source.name for link in [*circle, circle[0]])
    labels = [Label(link.extends) for link in reversed(circle) if link.extends]
    help_ = "take one `extends` out"
    findings.append(finding("SF007", f"files extend each other: {names}", *labels, help=help_))
    return path, None


def _identity(path: Path) -> str:
    return os.path.realpath(path) if not _UNHOLDABLE.search(str(path)) else str(path)


def _nameless(base: Node) -> Node:
    """A base without its own `recipe` and `extends`: those say what the base is, not its heirs."""
    items = base.value if isinstance(base.value, dict) else {}
    kept = {key: node for key, node in items.items() if key not in {"recipe", "extends"}}
    return replace(base, value=kept)


def _merge(base: Node, top: Node) -> Node:
    """Two values as one: mappings field by field, and anything else is the top one."""
    if not isinstance(base.value, dict) or not isinstance(top.value, dict):
        return top
    merged = dict(base.value)
    for key, node in top.value.items():
        merged[key] = _merge(merged[key], node) if key in merged else node
    return replace(top, value=merged)


def _override(
    root: Node, line: Source, overrides: Sequence[str], findings: list[Diagnostic]
) -> Node:
    """The tree with each override on top, in the order of the command line."""
    start = 0
    for text in overrides:
        at = Span(line, start, start + len(text))
        start = at.end + 1
        if text.startswith("~"):
            root = _remove(root, at, findings)
        elif (item := _read_override(at, findings)) is not None:
            path, node = item
            root = _put(root, path, node)
    return root


def _read_override(at: Span, findings: list[Diagnostic]) -> tuple[list[str], Node] | None:
    """The path and the value of `key=value`, or nothing and a finding."""
    name, equals, _ = at.text.partition("=")
    key = Span(at.source, at.start, at.start + len(name))
    if not equals:
        help_ = "write `key=value`, or `~key` to take a field out"
        findings.append(finding("SF000", f"`{name}` sets nothing", Label(at), help=help_))
        return None
    if not _is_path(name, key, findings):
        return None
    node, found = read(at.source, key.end + 1, at.end, name.rpartition(".")[2])
    findings += found
    if node is not None and node.value is None and not node.place.value.text:
        node = None
    if node is not None:
        return name.split("."), replace(node, place=replace(node.place, key=key))
    if not found:
        help_ = f"write `{name}=null` for nothing, `{name}=''` for an empty text, or `~{name}`"
        findings.append(finding("SF000", f"`{name}=` has no value", Label(at), help=help_))
    return None


def _is_path(name: str, at: Span, findings: list[Diagnostic]) -> bool:
    """Whether an override may name this field."""
    if name == "extends":
        findings.append(finding("SF000", "`extends` stands in a file", Label(at)))
        return False
    if not _PATH.fullmatch(name) or name.count(".") > DEEPEST:
        help_ = "name a field by its path, like `draft.topk`; a list is set as a whole"
        findings.append(finding("SF000", f"`{name}` is not a field's path", Label(at), help=help_))
        return False
    return True


def _put(node: Node, path: list[str], value: Node) -> Node:
    """The tree with a value merged in at a path; blocks on the way stay where they were written."""
    if not path:
        return _merge(node, value)
    items, place = (node.value, node.place) if isinstance(node.value, dict) else ({}, value.place)
    beneath = items.get(path[0], Node({}, value.place))
    return Node({**items, path[0]: _put(beneath, path[1:], value)}, place)


def _remove(root: Node, at: Span, findings: list[Diagnostic]) -> Node:
    """The tree without the field of `~key`; a field that is not there is a finding."""
    name = at.text[1:]
    if not _is_path(name, replace(at, start=at.start + 1), findings):
        return root
    nodes = {".".join(path): node for path, node in walk(root)}
    if name not in nodes:
        near = closest(name, nodes)
        help_ = f"did you mean `~{near[0]}`?" if near else None
        message = f"the recipe does not write `{name}`, so `~{name}` takes nothing out"
        findings.append(finding("SF000", message, Label(at), help=help_))
        return root
    return _without(root, name.split("."))


def _without(node: Node, path: list[str]) -> Node:
    items = dict(node.value) if isinstance(node.value, dict) else {}
    inner = items.pop(path[0])
    if path[1:]:
        items[path[0]] = _without(inner, path[1:])
    return replace(node, value=items)


def _check_header(root: Node) -> list[Diagnostic]:
    """What is wrong with the keys that resolve never sees: `recipe` and `allow`."""
    findings: list[Diagnostic] = []
    items = root.value if isinstance(root.value, dict) else {}
    if "recipe" in items and _is_text("recipe", items["recipe"], findings):
        name = str(items["recipe"].value)
        if _ODD.search(name) or len(name) > LONGEST_NAME:
            message = (
                f"a recipe's name is 1 to {LONGEST_NAME} letters, digits, `_`, `.`, `-` and `/`"
            )
            findings.append(finding("SF002", message, Label(items["recipe"].place.value)))
    allow = items.get("allow")
    if allow is None or allow.value is None:
        return findings
    if not isinstance(allow.value, dict | list):
        message = "`allow` is a list of rule codes, or a mapping of codes to reasons"
        findings.append(finding("SF002", message, Label(allow.place.value)))
    elif isinstance(allow.value, list):
        for item in allow.value:
            _is_text("allow", item, findings)
    return findings


def _check_characters(root: Node) -> list[Diagnostic]:
    """Texts that no file can hold: half of a character (a lone surrogate), or NUL."""
    found: list[Diagnostic] = []
    for path, node in walk(root):
        texts = [path[-1]] if path else []
        texts += [node.value] if isinstance(node.value, str) else []
        if any(_UNHOLDABLE.search(text) for text in texts):
            message = f"`{'.'.join(path)}` holds half of a character, or NUL"
            help_ = "write text that a file can hold"
            found.append(finding("SF002", message, Label(node.place.value), help=help_))
    return found


def _is_text(key: str, node: Node, findings: list[Diagnostic]) -> bool:
    """Whether a value is a text with something in it; a finding where it is not."""
    if isinstance(node.value, str) and node.value and "${" not in node.value:
        return True
    what = "holds rule codes" if key == "allow" else "is a text, without interpolation"
    findings.append(finding("SF002", f"`{key}` {what}", Label(node.place.value)))
    return False


# What `specflow rule SF004` prints. Each failing example fails with its code and each passing one
# loads: tests/unit/test_load.py runs them, from a file named `recipe.yaml`.
_MANUALS = {
    "SF000": """\
A recipe is a file of YAML text that can be read.

## Why
Nothing else can be said of a file that is missing, is a folder, is not UTF-8, is larger than 1 MB,
is not YAML, holds no mapping, nests deeper than 50 levels, or of an override that sets nothing.
Because the recipe was not even read, the command exits 2 where other findings exit 1.

## Example
```yaml
draft: {algorithm: NGRAM, breadth: [1, 10}
```

Use instead:
```yaml
draft: {algorithm: NGRAM, breadth: [1, 10]}
```

## Fix
Mend the text at the place shown. A tab cannot indent, a value that holds `: ` wants quotes, and the
fields of a block line up.
""",
    "SF004": """\
A key stands once in its block.

## Why
YAML readers keep one of two equal keys and drop the other without a word, so half of what the
recipe says would be lost.

## Example
```yaml
draft:
  num_steps: 3
  num_steps: 5
```

Use instead:
```yaml
draft:
  num_steps: 5
```

## Fix
Delete the line that is not meant; both are shown.
""",
    "SF005": """\
Each `${...}` names a field the recipe writes, or an environment variable that is set.

## Why
A reference that leads nowhere, or back to itself, has no value. Only plain references and `oc.env`
are resolved: a recipe is data, and reading it runs nothing.

## Example
```yaml
draft: {num_steps: 3, topk: "${draft.steps}"}
```

Use instead:
```yaml
draft: {num_steps: 3, topk: "${.num_steps}"}
target: {model: "${oc.env:SPECFLOW_MODELS,models}/deepseek-v3"}
```

## Fix
Name a field by its whole path, or by `${.name}` for one beside it. Set the variable, or give a
default after a comma. Write `\\${` for text that is no reference. A field left to its default is
not written, so nothing can refer to it.
""",
    "SF007": """\
What a recipe extends does not extend the recipe in turn.

## Why
Each file is laid over the one it extends. A circle has no lowest file to begin with.

## Example
```yaml
extends: recipe.yaml  # this very file
draft: {topk: 1}
```

Use instead:
```yaml
draft: {topk: 1}
```

## Fix
Take out one `extends` of the circle, or move what the files share to a third that extends nothing.
""",
    "SF008": """\
A value is written where it stands, without merge keys, anchors, aliases or tags.

## Why
A recipe has one way to inherit, `extends`, and one way to refer, `${...}`; both keep the place a
value came from. YAML's own ways lose it, are not in YAML 1.2, and a tag can name code to run.

## Example
```yaml
target: &shared {model: deepseek-v3}
draft:
  <<: *shared
  algorithm: NGRAM
```

Use instead:
```yaml
target: {model: deepseek-v3}
draft:
  algorithm: NGRAM
  model: ${target.model}
```

## Fix
Refer to the field with `${...}`, or move the shared fields to a file and extend it.
""",
    "SF009": """\
A boolean is `true` or `false`.

## Why
YAML 1.1 reads a bare yes, no, on, off, y or n as a boolean, YAML 1.2 as text. Which one a reader
takes it for should not depend on the reader.

## Example
```yaml
run: {compile: yes}
```

Use instead:
```yaml
run: {compile: true}
sampling: {stop: ["no"]}
```

## Fix
Write `true` or `false`, or put quotes round what is text.
""",
}

LOAD_RULES: dict[str, tuple[str, str]] = {
    code: (NAMES[code], manual) for code, manual in _MANUALS.items()
}
