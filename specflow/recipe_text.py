"""How YAML text becomes plain values that know where they were written, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from specflow.diagnostics import Diagnostic, Label, Severity, closest
from specflow.spans import Place, Source, Span

DEEPEST = 50

# The findings of the loader, by code; `specflow.load.LOAD_RULES` holds the manual of each.
NAMES = {
    "SF000": "unreadable-recipe",
    "SF002": "wrong-type",
    "SF004": "duplicate-key",
    "SF005": "unresolved-interpolation",
    "SF007": "extends-cycle",
    "SF008": "merge-key",
    "SF009": "ambiguous-boolean",
}

Value = dict[str, "Node"] | list["Node"] | str | int | float | bool | None


@dataclass(frozen=True)
class Node:
    """A value as written: a mapping or list of further nodes, or a scalar, and its place."""

    value: Value
    place: Place


def finding(code: str, message: str, *labels: Label, help: str | None = None) -> Diagnostic:  # noqa: A002
    """An error of the loader; the first label is where it is."""
    marked = tuple(replace(label, primary=label is labels[0]) for label in labels)
    return Diagnostic(code, NAMES[code], Severity.ERROR, message, marked, help=help)


def read(
    source: Source, start: int = 0, end: int | None = None, key: str = ""
) -> tuple[Node | None, list[Diagnostic]]:
    """The value written in a stretch of a source, nothing for an empty one, and the findings.

    key  the field that the whole of it is of, where it is one's
    """
    text = source.text[start:end]
    reading = _Reading(source, start, [], key)
    try:
        return reading.document(yaml.parse(text, Loader=yaml.SafeLoader)), reading.findings
    except _TooDeep:
        return None, reading.findings
    except yaml.YAMLError as error:
        found = _syntax_error(error, source, start)
    # PyYAML lets these out of numbers it reads itself: an escape beyond Unicode, a long `%YAML`.
    except (ValueError, OverflowError):
        whole = Span(source, start, start + len(text))
        found = finding("SF000", "an escape or a directive is out of range", Label(whole))
    return None, [*reading.findings, found]


def plain(node: Node) -> Any:
    """The values alone, as dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def children(node: Node) -> list[tuple[str, Node]]:
    """The nodes directly inside, each under its key or index."""
    if isinstance(node.value, dict):
        return list(node.value.items())
    if isinstance(node.value, list):
        return [(str(index), child) for index, child in enumerate(node.value)]
    return []


def walk(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Every node inside, with its path, outer before inner."""
    for key, child in children(node):
        yield (*path, key), child
        yield from walk(child, (*path, key))


class _TooDeep(Exception):  # noqa: N818  (a way out of the recursion, never seen outside)
    """Stops the reading; the finding is already noted."""


@dataclass(frozen=True)
class _Reading:
    """One pass over the parser's events: aliases and tags are met before anything is built."""

    source: Source
    base: int
    findings: list[Diagnostic]
    field: str = ""

    def document(self, events: Iterator[Any]) -> Node | None:
        """The only document of a stream, or nothing when the stream has none."""
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent) and root:
                self.note("SF000", "a recipe is one document", event, label="a second one begins")
                break
            if isinstance(event, yaml.NodeEvent):
                root = self.node(event, events, None, 1, self.field)
        return root

    def node(
        self, event: Any, events: Iterator[Any], key: Span | None, depth: int, name: str = ""
    ) -> Node:
        """The node an event begins, read to its end."""
        if depth > DEEPEST:
            self.note("SF000", f"nested deeper than {DEEPEST} levels", event)
            raise _TooDeep
        self.refuse_sharing(event)
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(event, events, key, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(event, events, key, depth)
        value = self.scalar(event, name) if isinstance(event, yaml.ScalarEvent) else None
        return Node(value, Place(key, self.span(event)))

    def mapping(self, event: Any, events: Iterator[Any], key: Span | None, depth: int) -> Node:
        """Keys and values up to the end of a mapping; the first of two equal keys is kept."""
        items: dict[str, Node] = {}
        for inner in events:
            if isinstance(inner, yaml.MappingEndEvent):
                return Node(items, Place(key, self.around(event, inner, list(items.values()))))
            name = self.key(inner, events, depth)
            value = self.node(next(events), events, self.span(inner), depth + 1, name or "")
            if name in items:
                first = items[name].place.key
                label = (Label(first, "first written here"),) if first else ()
                message = f"`{name}` is written twice"
                self.note("SF004", message, inner, *label, label="written again")
            elif name is not None:
                items[name] = value
        raise AssertionError("the parser ends each mapping it began")

    def sequence(self, event: Any, events: Iterator[Any], key: Span | None, depth: int) -> Node:
        """Items up to the end of a list."""
        items: list[Node] = []
        for inner in events:
            if isinstance(inner, yaml.SequenceEndEvent):
                return Node(items, Place(key, self.around(event, inner, items)))
            items.append(self.node(inner, events, None, depth + 1))
        raise AssertionError("the parser ends each list it began")

    def key(self, event: Any, events: Iterator[Any], depth: int) -> str | None:
        """The text of a key, or nothing when a recipe cannot have it."""
        if not isinstance(event, yaml.ScalarEvent):
            self.node(event, events, None, depth + 1)
            self.note("SF000", "a key is a name, not a list, a mapping or an alias", event)
            return None
        self.refuse_sharing(event)
        name: str = event.value
        if name == "<<" and event.style is None:
            help_ = "inherit with `extends: base.yaml`, or write the fields out"
            self.note("SF008", "a merge key is not part of a recipe", event, help=help_)
            return None
        if not name or "." in name:
            # A dotted path names a nested field everywhere else: in places, overrides and rules.
            nest = "nest it: each part of the path is a block of its own" if name else None
            self.note("SF000", f"a key is one name, not `{name}`", event, help=nest)
            return None
        return name

    def scalar(self, event: Any, name: str) -> str | int | float | bool | None:
        """The value of a scalar: quoted text is text, plain text as a reader takes it."""
        text: str = event.value
        if event.style is not None or event.tag is not None:
            return text
        if text.lower() in _AMBIGUOUS and (name, text) not in _SWITCHES:
            message = f"`{text}` is a boolean to some readers of YAML and text to others"
            self.note("SF009", message, event, help="write true or false, or quote it")
        return typed(text)

    def refuse_sharing(self, event: Any) -> None:
        """Note an anchor, an alias or a tag: a value stands where it is written, or is extended."""
        help_ = _SHARING_HELP
        if isinstance(event, yaml.AliasEvent):
            what = f"the alias `*{event.anchor}`"
        elif event.anchor is not None:
            what = f"the anchor `&{event.anchor}`"
        elif getattr(event, "tag", None) is not None:
            what, help_ = "a tag", "leave the tag out; a field has the type its manual says"
        else:
            return
        self.note("SF008", f"{what} is not part of a recipe", event, help=help_)

    def around(self, start: Any, end: Any, items: list[Node]) -> Span:
        """From the first character of a collection to its bracket, or to its last item."""
        # A block ends where the next one begins, comments between them included: too far.
        flow = end.start_mark.index < end.end_mark.index or not items
        last = self.base + end.end_mark.index if flow else items[-1].place.value.end
        return Span(self.source, self.base + start.start_mark.index, last)

    def span(self, event: Any) -> Span:
        """The text of an event, without the blank lines after a block scalar."""
        start, end = event.start_mark.index + self.base, event.end_mark.index + self.base
        return Span(self.source, start, start + len(self.source.text[start:end].rstrip()))

    def note(
        self,
        code: str,
        message: str,
        event: Any,
        *more: Label,
        label: str = "",
        help: str | None = None,  # noqa: A002
    ) -> None:
        """Keep a finding at an event, and read on."""
        at = Label(self.span(event), label)
        self.findings.append(finding(code, message, at, *more, help=help))


_SHARING_HELP = "refer to another field with `${draft.topk}`, or inherit with `extends: base.yaml`"
_AMBIGUOUS = frozenset({"yes", "no", "on", "off", "y", "n"})
# Words that are no boolean because of where they stand: `run.graph` is auto, on or off.
_SWITCHES = frozenset({("graph", "on"), ("graph", "off")})

# What a reader takes for a number, which is less than YAML 1.1 does: `1:30` is a time and `012` a
# label, and more than its floats: `1e-5` is one.
_CONSTANTS: dict[str, bool | float | None] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "false": False,
    ".inf": float("inf"),
    "+.inf": float("inf"),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
_INTEGER = re.compile(
    r"[-+]?(?:0|[1-9][0-9]{0,99}(?:_[0-9]{1,9}){0,30}|0x[0-9a-fA-F]{1,64}|0o[0-7]{1,64}|0b[01]{1,256})"
)
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,9})?")


def typed(text: str) -> str | int | float | bool | None:
    """A plain scalar as null, a boolean, a number, or else the text itself."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if (text.istitle() or text.isupper()) and text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


# PyYAML's problem, by a piece of it; our message, and the way out. The first match counts.
_SYNTAX = (
    ("sequence entries are not allowed", "a `- item` cannot begin here",
     "give each item a line of its own, indented like its neighbours"),
    ("expected '<document start>'", "the recipe has ended before this",
     "a bracket is closed once too often, or its closing one is followed by text"),
    ("undefined tag handle", "a tag is not part of a recipe", "leave the tag out"),
    ("mapping values are not allowed", "a `key: value` cannot begin here",
     "indent it like its neighbours, or quote a value that holds `: `"),
    ("expected <block end>", "this does not line up with the block it is in",
     "give the fields of a block the same indentation"),
    ("expected ',' or", "a bracket is not closed, or a comma is missing",
     "quote a value that holds a bracket, like \"${draft.topk}\" inside a list"),
    ("expected the node content", "a value is missing or cannot begin like this", "quote it"),
    ("end of stream", "a quote is not closed", "close it on the same line"),
    ("document separator", "a quote is not closed", "close it on the same line"),
    ("could not find expected ':'", "a key without a `:`", "write `key: value`"),
    ("escape character", "an unknown escape in double quotes", "use single quotes"),
    ("expected escape sequence", "an unknown escape in double quotes", "use single quotes"),
)  # fmt: skip


def _syntax_error(error: yaml.YAMLError, source: Source, base: int) -> Diagnostic:
    """Where the parser gave up, in our words."""
    if isinstance(error, yaml.reader.ReaderError):
        at = base + error.position
        message = f"the character U+{ord(source.text[at]):04X} cannot be in YAML"
        return finding("SF000", message, Label(Span(source, at, at + 1)))
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    at = base + mark.index if mark else base
    message, help_ = _explain(getattr(error, "problem", None) or "", source.text[at : at + 1])
    labels = [Label(Span(source, at, at + 1))]
    began = getattr(error, "context_mark", None)
    if began and base + began.index < at:
        start = base + began.index
        labels.append(Label(Span(source, start, start + 1), "began here"))
    return finding("SF000", message, *labels, help=help_)


def _explain(problem: str, character: str) -> tuple[str, str | None]:
    if "cannot start any token" in problem:
        if character == "\t":
            return "a tab cannot separate or indent", "use spaces"
        return f"a value cannot begin with `{character}`", "quote it"
    for piece, message, help_ in _SYNTAX:
        if piece in problem:
            return message, help_
    return "not YAML from here on", None


LARGEST = 1_000_000  # characters and values that one interpolation may grow to

# An odd number of backslashes makes `${` plain text, as in OmegaConf. The look-behind keeps a long
# run of backslashes from being tried at each of its positions.
_OPENING = re.compile(r"(?<!\\)(\\*)\$\{")
_NAME = r"[^\s.,:\[\]{}()$'\"\\]+"
_EXPRESSION = re.compile(
    r"\$\{\s*(?:oc\.env\s*:\s*(?P<env>[A-Za-z_][A-Za-z0-9_]*)\s*(?P<default>,[^{}$]*)?"
    rf"|(?P<dots>\.*)(?P<field>(?:{_NAME}|\[{_NAME}\])(?:\.{_NAME}|\[{_NAME}\])*)\s*)\}}"
)
_RESOLVER = re.compile(r"\$\{\s*([\w.-]*)\s*:")
_INTERPOLATION_HELP = (
    "a value may name a field, `${draft.topk}` or `${.topk}` beside it, "
    "or a variable, `${oc.env:NAME}` or `${oc.env:NAME,default}`"
)

Path = tuple[str, ...]


def interpolate(root: Node) -> tuple[Any, list[Diagnostic]]:
    """The plain values with each `${...}` resolved, and what could not be."""
    nodes = dict(walk(root))
    open_ = {path: node for path, node in nodes.items() if _expressions(node)}
    found = [f for path, node in open_.items() for f in _unresolved(path, node, nodes)]
    found = found or _endless(open_, nodes)
    if found or not any(isinstance(n.value, str) and "${" in n.value for n in nodes.values()):
        return plain(root), found
    return _evaluate(root, nodes)


def _expressions(node: Node) -> list[tuple[int, re.Match[str] | None]]:
    """Where each `${` of a text begins, with what it says, if a recipe may say it."""
    if not isinstance(node.value, str) or "${" not in node.value:
        return []
    starts = [m.end() - 2 for m in _OPENING.finditer(node.value) if len(m[1]) % 2 == 0]
    return [(start, _EXPRESSION.match(node.value, start)) for start in starts]


def _field(path: Path, said: re.Match[str]) -> Path:
    """The path an expression names; leading dots count up from the value's own block."""
    keys = tuple(key for key in re.split(r"[.\[\]]+", said["field"]) if key)
    dots = len(said["dots"])
    # Beyond the top there is nothing: a name no key can have.
    above = ("",) * max(0, dots - len(path))
    return (*above, *path[: len(path) - dots], *keys) if dots else keys


def _unresolved(path: Path, node: Node, nodes: dict[Path, Node]) -> Iterator[Diagnostic]:
    """A finding for each expression of a value that names nothing, or is not allowed."""
    for start, said in _expressions(node):
        if said is None:
            yield _refused(node, start)
            return  # what follows may be inside of what was refused
        elif said["env"] is None:
            yield from _missing_field(path, node, said, nodes)
        elif said["default"] is None and _unset(said["env"]):
            name = said["env"]
            help_ = f"set it, or give a default: `${{oc.env:{name},default}}`"
            message = f"the environment variable `{name}` is not set"
            yield finding("SF005", message, _label(node, said[0]), help=help_)


def _refused(node: Node, start: int) -> Diagnostic:
    rest = str(node.value)[start:]
    resolver = _RESOLVER.match(rest)
    message = "`${` begins nothing that a recipe can hold"
    if resolver and resolver[1] == "oc.env":
        message = "`oc.env` takes the name of a variable, and a default without `${`"
    elif resolver:
        message = f"the resolver `{resolver[1]}` is not part of a recipe"
    return finding("SF005", message, _label(node, rest.split("}")[0]), help=_INTERPOLATION_HELP)


def _missing_field(
    path: Path, node: Node, said: re.Match[str], nodes: dict[Path, Node]
) -> Iterator[Diagnostic]:
    target = _field(path, said)
    if target in nodes:
        return
    name = ".".join(target).lstrip(".")
    near = closest(name, (".".join(known) for known in nodes), n=1)
    help_ = f"did you mean `{near[0]}`?" if near else "write the field, or leave the reference out"
    message = f"`{said[0]}` names `{name}`, which the recipe does not write"
    yield finding("SF005", message, _label(node, said[0]), help=help_)


def _label(node: Node, expression: str) -> Label:
    """A label at an expression, or at the whole value where escapes hide it."""
    span = node.place.value
    at = span.text.find(expression)
    if at < 0:
        return Label(span)
    return Label(Span(span.source, span.start + at, span.start + at + len(expression)))


def _endless(open_: dict[Path, Node], nodes: dict[Path, Node]) -> list[Diagnostic]:
    """The first value that refers to itself, or grows beyond all use."""
    measures: dict[Path, _Measure] = {}
    for path, node in open_.items():
        try:
            _measure(path, nodes, measures, ())
        except _Endless as error:
            return [finding("SF005", str(error), Label(node.place.value))]
    return []


class _Endless(Exception):  # noqa: N818  (a way out of the recursion, never seen outside)
    """An expansion without an end in sight; the text says why."""


@dataclass(frozen=True)
class _Measure:
    """What a value would grow to: characters and values in all, and steps to the last of them."""

    size: int
    height: int


def _measure(
    path: Path, nodes: dict[Path, Node], measures: dict[Path, _Measure], trail: tuple[Path, ...]
) -> _Measure:
    """Measure a value, each once, before anything is expanded."""
    if path in measures:
        return measures[path]
    if path in trail:
        circle = " -> ".join(".".join(step) for step in (*trail[trail.index(path) :], path))
        raise _Endless(f"a value refers to itself: {circle}")
    if len(trail) > DEEPEST:
        raise _Endless(f"a value is reached through more than {DEEPEST} others")
    node = nodes[path]
    steps = [(*path, key) for key, _ in children(node)]
    steps += [_field(path, said) for _, said in _expressions(node) if said and said["field"]]
    inner = [_measure(step, nodes, measures, (*trail, path)) for step in steps]
    size = len(node.value) if isinstance(node.value, str) else 1
    measure = _Measure(
        size + sum(m.size for m in inner), 1 + max((m.height for m in inner), default=0)
    )
    if measure.height > DEEPEST:
        raise _Endless(f"a value is reached through more than {DEEPEST} others")
    if steps and measure.size > LARGEST:
        raise _Endless(f"a value grows beyond {LARGEST} characters")
    measures[path] = measure
    return measure


def _unset(variable: str) -> bool:
    from omegaconf import OmegaConf

    return OmegaConf.create({"it": f"${{oc.env:{variable},null}}"})["it"] is None


def _evaluate(root: Node, nodes: dict[Path, Node]) -> tuple[Any, list[Diagnostic]]:
    """What OmegaConf makes of each text with `${`; it meets only forms that were checked."""
    # Imported here: it costs as much as all of YAML, and most recipes refer to nothing.
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    written, found = plain(root), []
    config = OmegaConf.create(plain(root))
    for path, node in nodes.items():
        if not isinstance(node.value, str) or "${" not in node.value:
            continue
        try:
            value = _at(config, path)
            value = (
                OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            )
        except (OmegaConfBaseException, RecursionError):
            message = "an interpolation that cannot be resolved"
            found.append(
                finding("SF005", message, Label(node.place.value), help=_INTERPOLATION_HELP)
            )
        else:
            outer = _at(written, path[:-1])
            outer[int(path[-1]) if isinstance(outer, list) else path[-1]] = value
    return written, found


def _at(tree: Any, path: Path) -> Any:
    """The value at a path of nested dicts and lists, plain or OmegaConf's."""
    for key in path:
        tree = tree[key] if hasattr(tree, "keys") else tree[int(key)]
    return tree
