"""The arguments of an engine in a Python program: read from its syntax, never run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

Made = Callable[[str, dict[str, Any]], Any]


@dataclass(frozen=True)
class Program:
    """What a program makes an engine of.

    args    arguments by name
    env     variables that it sets
    files   files that it writes, by name
    unread  arguments whose value is not written out, and how it stands there
    requests  what requests ask for: `SamplingParams(...)`, or a mapping `params`
    """

    args: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, Any] = field(default_factory=dict)


def program(text: str, classes: tuple[str, ...], made: Made) -> Program | None:
    """The arguments of the first of these classes that a program makes; None where it makes none.

    made  an object that is an argument, by the name of its class and its own arguments
    Raises SyntaxError for what is no Python.
    """
    try:
        tree = ast.parse(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error)) from error
    calls = [node for node in _walk(tree) if isinstance(node, ast.Call)]
    found = next((call for call in calls if _name(call.func) in classes), None)
    if found is None:
        return None
    reader = _Reader({}, made)
    for node in _walk(tree):
        reader.assigned(node)
    args, unread = reader.arguments(found)
    return Program(args, reader.env, reader.files, unread, _requests(reader, calls))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node, in the order of the text."""
    stack = [node]
    while stack:
        here = stack.pop()
        yield here
        stack += reversed(list(ast.iter_child_nodes(here)))


def _requests(reader: _Reader, calls: Sequence[ast.Call]) -> dict[str, Any]:
    """What is asked for by the one set of parameters that a program makes; of several, nothing."""
    made = [call for call in calls if _name(call.func) == "SamplingParams" and not call.args]
    named = reader.known.get("params", reader.known.get("sampling_params"))
    if len(made) == 1:
        return reader.arguments(made[0])[0]
    return dict(named) if not made and isinstance(named, Mapping) else {}


def _name(node: ast.AST) -> str:
    """The last part of a dotted name; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _makes_path(node: ast.expr) -> TypeGuard[ast.Call]:
    """`Path("NAME")`."""
    return isinstance(node, ast.Call) and _name(node.func) == "Path" and len(node.args) == 1


class _Reader:
    """Values that a program writes out, and the names that it gives them."""

    def __init__(self, known: dict[str, Any], made: Made) -> None:
        self.known = known
        self.made = made
        self.env: dict[str, str] = {}
        self.files: dict[str, str] = {}

    def assigned(self, node: ast.AST) -> None:
        """`NAME = VALUE`, `os.environ["NAME"] = "VALUE"`, `Path("NAME").write_text("TEXT")`."""
        try:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._bind(node.targets[0], node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._bind(node.target, node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                self._called(node, node.func)
        except ValueError:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                self.known.pop(_name(target), None)  # what it was before is not what it is now

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.known[target.id] = self.value(value)
        elif isinstance(target, ast.Subscript) and _name(target.value) == "environ":
            self.env[str(self.value(target.slice))] = str(self.value(value))

    def _called(self, call: ast.Call, function: ast.Attribute) -> None:
        within = function.value
        if function.attr == "setdefault" and _name(within) == "environ" and len(call.args) == 2:
            self.env[str(self.value(call.args[0]))] = str(self.value(call.args[1]))
        elif function.attr == "write_text" and _makes_path(within) and call.args:
            self.files[str(self.value(within.args[0]))] = str(self.value(call.args[0]))

    def arguments(self, call: ast.Call) -> tuple[dict[str, Any], dict[str, str]]:
        """Arguments by name, and those that are not written out; the first alone is a model."""
        args: dict[str, Any] = {}
        unread: dict[str, str] = {}
        given = [("model", each) for each in call.args[:1]]
        for name, value in [*given, *((word.arg, word.value) for word in call.keywords)]:
            try:
                found = self.value(value)
                args |= dict(found) if name is None else {name: found}
            except (ValueError, TypeError):
                unread[name or "**"] = ast.unparse(value)[:60]
        return args, unread

    def value(self, node: ast.expr) -> Any:
        """A value that is written out; ValueError for anything else."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        if isinstance(node, ast.Name) and node.id in self.known:
            return self.known[node.id]
        if isinstance(node, ast.Dict):
            return self._mapping(node)
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(each) for each in node.elts]
        called = _name(node.func) if isinstance(node, ast.Call) and not node.args else ""
        # An object by its class: what a function returns does not stand there.
        if isinstance(node, ast.Call) and (called == "dict" or called[:1].isupper()):
            args, unread = self.arguments(node)
            if not unread:
                return args if called == "dict" else self.made(called, args)
        raise ValueError(type(node).__name__)

    def _mapping(self, node: ast.Dict) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.value(value)
            if key is not None:
                out[self.value(key)] = found
            elif isinstance(found, dict):
                out |= found
            else:
                raise ValueError("**")
        return out
