"""What every engine is to specflow: versions, export, import, effective values, words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from specflow.dummies import FORMAT as DUMMY
from specflow.engines.flags import Flags
from specflow.engines.outcome import Effective, Fault, Refusal, Refused, no_flag, no_value, shown
from specflow.provenance import Origin
from specflow.recipe import ResolvedRecipe, SamplingFields
from specflow.stages import DRAFTS

WRITTEN = (Origin.USER, Origin.OVERRIDE, Origin.ALIAS)
MTP_NAMES = ("NEXTN", "MTP")  # of an EAGLE draft that is an MTP layer
ENV = "env"  # the key of an `engine:` block that holds variables rather than flags
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def variables(said: object) -> dict[str, str]:
    """Variables by name, as text; none where nothing is said.

    A name or a value that no shell has could become a command of an exported script. Raises
    `Refusal` for the first that is none.
    """
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        _no_variable(f"`{ENV}` takes variables by name, not {shown(said)}")
    return {_name(name): _text(name, value) for name, value in said.items()}


def _name(name: object) -> str:
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        _no_variable(f"{shown(name)} is no name of a variable: letters, digits and `_`")
    return name


def _text(name: object, value: object) -> str:
    unsaid = no_value(value)
    if unsaid or not isinstance(value, str | int | float):
        what = unsaid or "is neither text nor a number"
        _no_variable(f"variable `{name}`: {shown(value)} {what}")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _no_variable(reason: str) -> NoReturn:
    refused = no_flag(reason)
    raise Refusal(refused, (Fault(refused, (ENV,)),))


# What engines call a parameter of a request that has another name here.
_REQUESTS = {"sampling_seed": "seed", "max_tokens": "max_new_tokens", "n_predict": "max_new_tokens"}


def from_requests(said: Mapping[Any, Any]) -> tuple[dict[str, Any], tuple[Gap, ...]]:
    """Parameters of requests as fields of `sampling`, and those that are none."""
    written: dict[str, Any] = {}
    lost = []
    for name, value in said.items():
        field_name = _REQUESTS.get(name, name)
        if field_name not in SamplingFields.model_fields:
            at = name if isinstance(name, str) else shown(name)
            lost.append(Gap(at, "requests ask for it, and no recipe has a field for it"))
        elif unsaid := no_value(value):
            lost.append(Gap(str(name), f"{shown(value)} {unsaid}"))
        elif value is not None:
            written[field_name] = value
    return written, tuple(lost)


@dataclass(frozen=True)
class Gap:
    """A field, or a flag, that does not go across as it is; `way_out` may be empty."""

    at: str
    text: str
    way_out: str = ""


@dataclass(frozen=True)
class Export:
    """A recipe for an engine.

    args         flags by name
    env          variables that the server reads
    files        files that the arguments name and that are not there yet, by name
    requests     what a request says, not the server
    lost         what the engine cannot say: it will do otherwise
    approximate  what it says differently
    refused      what it cannot say and must not be left out: nothing is exported then
    """

    args: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[Gap, ...] = ()
    approximate: tuple[Gap, ...] = ()
    refused: tuple[Gap, ...] = ()


@dataclass(frozen=True)
class Import:
    """Arguments as a recipe.

    written      nested fields
    lost         flags that no recipe says
    approximate  flags that a recipe says differently
    overruled    flags whose value the engine replaces: the recipe has the one that runs
    refused      flags that contradict each other, or that are no recipe at all
    """

    written: Mapping[str, Any]
    lost: tuple[Gap, ...] = ()
    approximate: tuple[Gap, ...] = ()
    overruled: tuple[Gap, ...] = ()
    refused: tuple[Gap, ...] = ()


@dataclass(frozen=True)
class Beside:
    """What is known beside the arguments that are imported.

    files   files that a script writes before it starts the server, by name
    target  the config.json of the target, and `draft` of its draft; None where it is not known
    """

    files: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, Any] | None = None
    draft: Mapping[str, Any] | None = None


NOTHING = Beside()


@dataclass(frozen=True)
class Word:
    """How an engine says a word of a recipe.

    flag    its spelling there; empty where the engine has no such word
    counts  what it counts, where that differs: `guesses, without the bonus token`
    """

    flag: str
    counts: str = ""


@dataclass
class Out:
    """An export in the making."""

    recipe: ResolvedRecipe
    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)
    lost: list[Gap] = field(default_factory=list)
    approximate: list[Gap] = field(default_factory=list)
    refused: list[Gap] = field(default_factory=list)

    def __getitem__(self, path: str) -> Any:
        return self.recipe[path]

    def has(self, path: str) -> bool:
        """Whether the recipe has a field."""
        return path in self.recipe

    def wrote(self, path: str) -> bool:
        """Whether somebody wrote a field, rather than a default or a checkpoint."""
        return path in self.recipe and self.recipe.ledger[path].origin in WRITTEN

    def known(self, path: str) -> bool:
        """Whether a field has a value that somebody said, not the usual one for lack of a model."""
        return path in self.recipe and self.recipe.ledger[path].origin is not Origin.ASSUMED

    @property
    def inside(self) -> bool:
        """Whether the draft lies in the target's checkpoint, as far as is known."""
        named = self.has("draft.model") and self["draft.model"] != self["target.model"]
        return self.recipe.facts.net.bundled or not named

    @property
    def mtp(self) -> bool:
        """Whether a draft is an MTP layer by its name, where it is not here to say so itself."""
        facts = self.recipe.facts
        source = facts["draft"] if facts["draft"].model else facts["target"]
        called = self.recipe.ledger.history("draft.algorithm")[-1].value
        return source.elsewhere and (called in MTP_NAMES or self.inside)

    def lose(self, path: str, text: str) -> None:
        """A field the engine has no word for."""
        self.lost.append(Gap(path, text))

    def bend(self, path: str, text: str) -> None:
        """A field the engine takes another way."""
        self.approximate.append(Gap(path, text))

    def refuse(self, path: str, text: str, way_out: str = "") -> None:
        """A field the engine cannot have, and without which the recipe is another one."""
        self.refused.append(Gap(path, text, way_out))

    def say(self, fields: Mapping[str, str]) -> None:
        """Fields that somebody wrote, each as its flag."""
        for path, flag in fields.items():
            if self.wrote(path):
                self.args[flag] = self[path]

    def ask(self, title: str, names: Mapping[str, str], but: Collection[str] = ()) -> None:
        """What was written of sampling, as parameters of requests.

        names  of those that are called otherwise there
        but    those that are left out
        """
        for name in type(self.recipe.sampling).model_fields:
            if name not in but and self.wrote(f"sampling.{name}"):
                value = self[f"sampling.{name}"]
                self.requests[names.get(name, name)] = list(value) if name == "stop" else value
        if self.requests:
            said = ", ".join(self.requests)
            text = f"{title} takes {said} with each request, not when it starts"
            self.bend("sampling", text)

    def no_thresholds(self, how: str) -> None:
        """Thresholds of acceptance, which an engine has not that accepts by a law."""
        for path in ("verify.threshold_single", "verify.threshold_acc"):
            if self[path] < 1.0:
                self.refuse(path, f"{how}: it has no such threshold")

    def own(self, engine: str) -> dict[str, Any]:
        """The flags under `engine.NAME` as they are written; the variables there go across."""
        given = dict(self.recipe.engine.get(engine, {}))
        self.env |= variables(given.pop(ENV, None))
        return given

    def pass_through(
        self, engine: str, flags: Mapping[str, Any], first: Collection[str] = ()
    ) -> None:
        """The flags under `engine.NAME`, by their own names; one that a field says is refused.

        first  flags that go before the fields
        """
        for name, value in flags.items():
            said = self.args.get(name)
            if name in self.args and said != value and name not in first:
                self.refuse(f"engine.{engine}.{name}", f"the fields of the recipe make it {said!r}")
            else:
                self.args[name] = value

    def commit(self, title: str) -> None:
        """How a step ends, which engines are not told; a draft's usual way comes back unsaid."""
        draft, shape, state = self.recipe.stages
        stage = DRAFTS[draft]
        if state != stage.shapes.get(shape, (stage.axes.draft_state,))[0]:
            text = f"{title} ends a step in its own way, and cannot be told"
            self.lose("commit.draft_state", text)

    def done(self) -> Export:
        """The export, frozen."""
        gaps = (tuple(self.lost), tuple(self.approximate), tuple(self.refused))
        return Export(self.args, self.env, self.files, self.requests, *gaps)


@dataclass
class Back:
    """An import in the making: flags are taken off as they are understood.

    args  flags by name; those of an object by dotted names
    kept  flags that stay beside the fields that say a part of them
    """

    args: dict[str, Any]
    env: dict[str, str]
    beside: Beside = NOTHING
    kept: dict[str, Any] = field(default_factory=dict)
    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    lost: list[Gap] = field(default_factory=list)
    approximate: list[Gap] = field(default_factory=list)
    overruled: list[Gap] = field(default_factory=list)
    refused: list[Gap] = field(default_factory=list)

    def called(self, flag: str) -> str:
        """A flag as messages say it."""
        return option(flag)

    def put(self, path: str, value: Any) -> None:
        """A field of the recipe; none where nothing is said."""
        if value is not None:
            block, _, name = path.partition(".")
            self.written.setdefault(block, {})[name] = value

    def lose(self, flag: str, text: str) -> None:
        """A flag that no recipe says."""
        self.lost.append(Gap(self.called(flag), text))

    def bend(self, flag: str, text: str) -> None:
        """A flag that a recipe says another way."""
        self.approximate.append(Gap(self.called(flag), text))

    def overrule(self, flag: str, text: str) -> None:
        """A flag whose value the engine replaces."""
        self.overruled.append(Gap(self.called(flag), text))

    def refuse(self, flag: str, text: str) -> None:
        """A flag that contradicts another, or that the engine would not start with."""
        self.refused.append(Gap(self.called(flag), text))

    def done(
        self,
        engine: str,
        flags: Flags,
        nested: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
    ) -> Import:
        """The import, frozen; what no field says goes under `engine.NAME`, by its own name.

        nested  flags as the engine takes them, where some are keys of an object
        """
        usual = flags.defaults
        rest = {name: value for name, value in self.args.items() if value != usual.get(name)}
        block = nested(rest | self.kept)
        if self.env:
            block[ENV] = dict(self.env)
        if block:
            self.written["engine"] = {engine: block}
        gaps = (self.lost, self.approximate, self.overruled, self.refused)
        lost, approximate, overruled, refused = map(tuple, gaps)
        return Import(self.written, lost, approximate, overruled, refused)


def option(flag: str) -> str:
    """A flag on the command line."""
    return "--" + flag.replace("_", "-")


# What a recipe takes of a draft and of a run, where engines take more.
MOST_GUESSES, DEEPEST = 63, 256  # tokens that are guessed at once, and of a trie
DTYPES = ("float32", "bfloat16", "float16")
LOAD_FORMAT = "run.load_format"
_LIMITS = {
    "run.batch_size": (1, 256),
    "run.max_length": (2, 2**24),
    "run.prefill_chunk": (1, 2**24),
    "run.threads": (1, 256),
}


def fits(path: str, value: Any) -> bool:
    """Whether a field of a run takes what a flag says."""
    if path == "run.dtype":
        return value in DTYPES
    if path == LOAD_FORMAT:
        return bool(value == DUMMY)
    least, most = _LIMITS[path]
    return isinstance(value, int) and least <= value <= most


def ranges(slots: Iterable[tuple[int, Sequence[int]]], widest: int) -> list[tuple[int, int, int]]:
    """Slots of adaptive steps as ranges of batch sizes, each with its most steps.

    widest  where the last one ends, as a recipe's does not
    """
    found = sorted(slots)
    starts = [1, *(size for size, _ in found[1:])]
    ends = [*(start - 1 for start in starts[1:]), max(widest, starts[-1])]
    most = [max(steps) for _, steps in found]
    return list(zip(starts, ends, most, strict=True))


def model_of(out: Out, block: str) -> str:
    """A model as another engine finds it: those that ship with specflow are folders."""
    facts, name = out.recipe.facts[block], str(out[f"{block}.model"])
    inside = name.startswith("builtin:") and facts.folder is not None
    return str(facts.folder) if inside else name


@dataclass(frozen=True)
class Engine:
    """One engine; every function takes the version that was asked for, one of `versions`.

    title      how messages say it
    versions   whose rules are known, oldest first
    platforms  machines that `--platform` names; the first is the default
    flags      of a version
    side       flags that `explain --engine` shows whether or not anything happened to them
    export     a resolved recipe, version, platform -> Export
    effective  what the engine makes of an export: recipe, export, version, platform
    read       a command line -> arguments by name, variables; raises Refusal
    typed      arguments by name as a file has them -> checked; raises Refusal
    load       arguments, variables, version, what is known beside them -> Import
    formats    `--format` -> an export as text; the first is the default
    words      recipe word -> this engine's
    classes    what a Python program makes an engine of; empty where none is made so
    made       an argument of those that is an object: its class, its arguments -> as a file has it
    above      the text of a file -> arguments that a comment of an export says, not the file
    spread     arguments -> flags as `effective` names them, where an argument holds several
    installs   what `pip install` takes to have it; empty where pip does not
    rows       what each row of its rules says, by its name
    package    what `run --engine` imports; empty where it is not run from here
    """

    name: str
    title: str
    versions: tuple[str, ...]
    platforms: tuple[str, ...]
    flags: Callable[[str], Flags]
    side: tuple[str, ...]
    export: Callable[[ResolvedRecipe, str, str], Export]
    effective: Callable[[ResolvedRecipe, Export, str, str], Effective | Refused]
    read: Callable[[str, str], tuple[dict[str, Any], dict[str, str]]]
    typed: Callable[[Mapping[Any, Any], str], dict[str, Any]]
    load: Callable[[Mapping[str, Any], Mapping[str, str], str, Beside], Import]
    formats: Mapping[str, Callable[[Export, str], str]]
    words: Mapping[str, Word]
    classes: tuple[str, ...] = ()
    made: Callable[[str, dict[str, Any]], Any] = lambda name, args: args  # noqa: ARG005
    above: Callable[[str], dict[str, Any]] = lambda text: {}  # noqa: ARG005
    spread: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    installs: str = ""
    package: str = ""
    rows: Callable[[], Mapping[str, str]] = dict


def listed(doc: str | None) -> dict[str, str]:
    """The rows that the docstring of a module lists: `T1   a key that ...`."""
    return dict(re.findall(r"^([A-Z]\d+) +(.+)$", doc or "", re.M))


# The way out of a tree, for engines that have none.
_ELSEWHERE = "or export to an engine that verifies trees: sglang"
NO_TREE = f"write `draft.topk: 1` and no width for a chain, {_ELSEWHERE}"
NO_SHAPE = f"write `verify.shape: chain`, {_ELSEWHERE}"

# The words of a recipe that engines have words of their own for: rows of docs/engines.md.
RECIPE_WORDS = (
    *("target.model", "draft.algorithm", "draft.model", "draft.num_steps", "draft.topk"),
    *("draft.block_size", "verify.num_draft_tokens", "verify.shape", "verify.accept"),
    *("draft.adaptive_slots", "draft.window_size", "run.batch_size", "run.max_length"),
)
