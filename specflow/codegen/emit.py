"""Emission: the step graph becomes a Python module, and beside it the same as a device runs it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import specflow
from specflow.codegen.cache import StepModule
from specflow.codegen.device import PARTS, TILE, device_steps, unique
from specflow.codegen.layout import INDENT, page, prose
from specflow.codegen.spell import MODELS, operand, shape_of, spell, step_arguments, step_name
from specflow.constraints.accept import acceptance
from specflow.errors import CompileError
from specflow.graph import Buffer, Op, Phase, StepGraph, Value, Variant
from specflow.graph.buffers import LETTERS
from specflow.graph.ir import leaves, reads
from specflow.graph.ops import OPS
from specflow.recipe import ResolvedRecipe
from specflow.stages import COMMITS, DRAFTS, VERIFIES
from specflow.stages.base import STEPS

HERE = Path(__file__).parent
TYPES = {"list": "list[list[int]]", "int": "int"}
LONGEST = 50  # characters of a recipe's name in a docstring
DTYPES = {"int64": "torch.int64", "bool": "torch.bool", "float": "torch.float32"}


@dataclass(frozen=True)
class _Function:
    """One function of the module, as the template lays it out."""

    name: str
    doc: str
    arguments: str
    returns: str
    lines: tuple[str, ...]


def emit(graph: StepGraph, recipe: ResolvedRecipe) -> StepModule:
    """The step module of a graph: its source, a device's source, and what both were made from."""
    made = {
        "recipe": recipe.fingerprint,
        "stages": stages_digest(recipe),
        "templates": templates_digest(),
        "specflow": specflow.__version__,
    }
    step = _render(
        "step.py.j2",
        name=_title(recipe.name),
        head=_head(graph, recipe, made),
        constants=graph.constants,
        buffers=graph.buffers,
        functions=[_phase_function(p) for p in graph.phases],
        steps=[_step(v, graph) for v in graph.variants],
        variants=graph.variants,
        hosts=_hosts(graph),
        types=_types(graph),
        dtypes=DTYPES | {"model": f"torch.{recipe.run.dtype}"},
        shape=shape_of,
        kernels=sorted({OPS[n.kind].kernel for n in _called(graph)} - {""}),
        dims=_dims,
    )
    return StepModule(recipe.name, step, device(graph, recipe), tuple(sorted(made.items())))


def device(graph: StepGraph, recipe: ResolvedRecipe) -> str:
    """The source of the same step as a device runs it: its kernels, and its launches in order."""
    steps = device_steps(graph)
    made = [kernel for s in steps for kernel in s.kernels]
    lines = [line for s in steps for line in s.lines]
    return _render(
        "device.py.j2",
        name=_title(recipe.name),
        steps=steps,
        kernels=made,
        torch=any(k.best or k.outputs for k in made) or any("torch." in line for line in lines),
        called=unique(s.called for s in steps),
        constants=unique(s.constants for s in steps),
        types=unique(s.types for s in steps),
        functions=unique(k.functions for k in made),
        reduces=unique(k.reduces for k in made),
        parts=PARTS,
        tile=TILE,
        dtypes=DTYPES,
    )


def _title(name: str) -> str:
    """A recipe's name as it stands in the first line of a docstring, which has one line of room."""
    return name if len(name) <= LONGEST else "..." + name[3 - LONGEST :]


def _called(graph: StepGraph) -> list[Op]:
    """Ops that the step module calls."""
    return [n for p in graph.phases for n in leaves(p.nodes) if isinstance(n, Op)]


def _phase_function(phase: Phase) -> _Function:
    model = MODELS.get(phase.model, "") if _runs_model(phase) else ""
    lines = spell(phase.nodes, model, phase.outputs)
    returns = _returns(phase.outputs)
    if phase.choice is not None:
        c = phase.choice
        *first, (least, then) = c.cases
        for enough, name in first:
            lines += [f"if {c.value.name} >= {enough.name}:", f'{INDENT}return "{name}"']
        lines.append(f'return "{then}" if {c.value.name} >= {least.name} else "{c.otherwise}"')
        returns = "str"
    elif phase.place == "host" and phase.outputs:
        lines[-1] = "return " + lines[-1].removeprefix(f"{phase.outputs[0].name} = ")
        returns = "int"
    elif phase.outputs:
        last = lines[-1] if lines else ""
        name = phase.outputs[0].name
        if len(phase.outputs) == 1 and last.startswith(f"{name} = "):
            lines[-1] = "return " + last.removeprefix(f"{name} = ")
        else:
            lines.append("return " + ", ".join(v.name for v in phase.outputs))
    arguments = _phase_arguments(phase)
    return _Function(phase.name, phase.doc, _arguments(arguments), returns, tuple(lines))


def _runs_model(phase: Phase) -> bool:
    """Whether any line of a phase names its model."""
    return any(isinstance(n, Op) and "{model}" in OPS[n.kind].spelling for n in leaves(phase.nodes))


def _reads_state(phase: Phase) -> bool:
    """Whether a phase touches any state; a host phase may not."""
    return any(
        not isinstance(n, Op) or any(isinstance(o, Buffer) for o in reads(n))
        for n in leaves(phase.nodes)
    )


def _phase_arguments(phase: Phase) -> tuple[str, ...]:
    model = (f"{MODELS[phase.model]}: {_model_type(phase)}",) if _runs_model(phase) else ()
    state = ("state: State",) if _reads_state(phase) else ()
    return (*model, *state, *_typed(phase.inputs))


def _model_type(phase: Phase) -> str:
    if phase.place == "host":
        return next(OPS[n.kind].protocol for n in leaves(phase.nodes) if isinstance(n, Op))
    return "Target" if phase.model == "target" else "Draft"


def _types(graph: StepGraph) -> list[str]:
    """The protocols of `specflow.models` that the module names."""
    return sorted({_model_type(p) for p in graph.phases if _runs_model(p)} | {"Target"})


def _arguments(arguments: Iterable[str]) -> str:
    return ", ".join(arguments)


def _typed(values: Iterable[Value]) -> tuple[str, ...]:
    return tuple(f"{v.name}: {TYPES.get(v.dtype, 'Tensor')}" for v in values)


def _returns(outputs: tuple[Value, ...]) -> str:
    if not outputs:
        return "None"
    return "Tensor" if len(outputs) == 1 else f"tuple[{', '.join(['Tensor'] * len(outputs))}]"


def _step(variant: Variant, graph: StepGraph) -> _Function:
    """The function that runs a variant's phases in order."""
    lines = []
    for phase in map(graph.phase, variant.phases):
        model = [MODELS[phase.model]] if _runs_model(phase) else []
        state = ["state"] if _reads_state(phase) else []
        call = f"{phase.name}({', '.join([*model, *state, *(v.name for v in phase.inputs)])})"
        outs = ", ".join(v.name for v in phase.outputs)
        lines.append(f"{outs} = {call}" if outs else call)
    doc = f"One captured step: {variant.doc}. No host sync, no data-dependent branch."
    arguments = step_arguments(variant, graph, "State")
    return _Function(step_name(variant, graph), doc, arguments, "None", tuple(lines))


def _hosts(graph: StepGraph) -> dict[str, str]:
    """The host phases by what they are for: HOST_DRAFT, HOST_PLAN and so on, of the module."""
    found = {p.role: p.name for p in graph.phases if p.place == "host"}
    roles = ("draft", "commit", *(r for r in ("plan", "learn") if r in found))
    return {f"HOST_{role.upper()}": found.get(role, "None") for role in roles}


def _dims(buffer: Buffer) -> str:
    """A buffer's shape as code: rows, then what each letter stands for."""
    spelled = {"B": "rows", **LETTERS, "K": f"{LETTERS['W']} - 1"}
    return ", ".join(spelled.get(str(d), str(d)) for d in buffer.shape)


def _head(graph: StepGraph, recipe: ResolvedRecipe, made: Mapping[str, str]) -> list[str]:
    """What the module says of itself: the axes as a table, the cost, the letters of its shapes."""
    lines = prose(f"Generated by `specflow compile {recipe.name}`; edit the recipe, not this file.")
    parts = ("recipe", "stages", "templates", "specflow")
    lines += [f"Made from {' + '.join(f'{p} {made[p]}' for p in parts)}.", ""]
    for axis, value, text in _axes(graph, recipe):
        lines += prose(text, f"{INDENT}{axis:12} {value:15} ", " " * 33)
    lines.append("")
    lines += prose(f"Cost of a step: {_cost(graph, recipe)}.")
    return lines + prose(f"Shapes: {_legend(graph, recipe)}.")


def _axes(graph: StepGraph, recipe: ResolvedRecipe) -> list[tuple[str, str, str]]:
    """The four axes with a word on each, for the head of the module."""
    draft, verify, commit = (
        DRAFTS[recipe.stages[0]],
        VERIFIES[recipe.stages[1]],
        COMMITS[recipe.stages[2]],
    )
    width = recipe["verify.num_draft_tokens"]
    shape = "the bonus token alone" if width == 1 else verify.doc.format(W=width, K=width - 1)
    accept = acceptance(recipe)
    fewer = [str(v.width) for v in graph.variants[1:]]
    if fewer:
        shape += f", {' or '.join(fewer)} {draft.fewer}"
    return [
        ("signal", recipe.axes.signal, draft.doc),
        ("guess", recipe.axes.guess, draft.cost(recipe.draft)),
        ("verify", recipe.axes.shape, f"{shape}, {accept}"),
        ("draft_state", recipe.axes.draft_state, commit.doc),
    ]


def _cost(graph: StepGraph, recipe: ResolvedRecipe) -> str:
    draft = DRAFTS[recipe.stages[0]].cost(recipe.draft)
    width = recipe["verify.num_draft_tokens"]
    counts = sorted({v.width for v in graph.variants})
    widths = f"{counts[0]} to {width}" if len(counts) > 3 else " or ".join(map(str, counts[::-1]))
    if any(p.role == "plan" for p in graph.phases):
        return f"{draft}, 1 target forward of 1 to {width} positions a request"
    return f"{draft}, 1 target forward of {widths} position{'s' if width > 1 else ''}"


def _legend(graph: StepGraph, recipe: ResolvedRecipe) -> str:
    width = recipe["verify.num_draft_tokens"]
    said = ["B requests"]
    if width > 1:
        said.append(f"K = {width - 1} guesses")
    said.append(f"W = {width} verified positions")
    few = next((v.width for v in graph.variants if v.name == "narrow"), 0)
    steps = sorted(c.count for c in graph.constants if c.name.startswith(STEPS) and c.value)
    if steps:
        said.append(f"K{steps[0]} and W{steps[0]} of a step with {steps[0]} guesses and so on")
    if few:
        said.append(f"k = {few - 1} and w = {few} in a narrow step")
    letters = {d for b in graph.buffers for d in map(str, b.shape)}
    known = {c.name: c.value for c in graph.constants}
    for letter, what in (("T", "branches a level"), ("H", "hidden"), ("R", "rows run again")):
        if letter in letters:
            said.append(f"{letter} = {known[LETTERS[letter]]} {what}")
    if "T" in letters:
        said.append("R nodes that were a branch")
    if "BLOCK_ROWS" in known:
        said.append(f"Q = {known['BLOCK_ROWS']} rows of a block")
    if any(p.role == "plan" for p in graph.phases):
        said.append("G positions of the whole batch")
    return ", ".join(said) + ", V target vocabulary"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=False,
    )
    made.filters["printable"] = printable
    return made


def printable(text: str) -> str:
    """A user's text as a comment may hold it: no line break, nothing that cannot be printed."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _render(template: str, **values: Any) -> str:
    text = _environment().get_template(template).render(indent=INDENT, operand=operand, **values)
    laid_out = page(text)
    try:
        ast.parse(laid_out)
    except (SyntaxError, ValueError) as error:
        raise CompileError(f"the generated {template} is no Python: {error}") from error
    return laid_out


@cache
def templates_digest() -> str:
    """A digest of everything in this package that shapes the text of a module."""
    files = sorted((*HERE.glob("*.py"), *(HERE / "templates").glob("*.j2")))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:8]


def stages_digest(recipe: ResolvedRecipe) -> str:
    """A digest of the stage files, the graph and the ops that a recipe is lowered with."""
    package = Path(specflow.__file__).parent
    kinds = zip(("draft", "verify", "commit"), recipe.stages, strict=True)
    files = [package / "stages" / f"{kind}_{name.lower()}.py" for kind, name in kinds]
    files.append(package / "stages" / f"accept_{recipe['verify.accept']}.py")
    files += sorted((package / "graph").glob("*.py"))
    shared = ("base", "blocks", "growing", "tapped")
    files += [package / "lower.py", *(package / "stages" / f"{n}.py" for n in shared)]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:8]
