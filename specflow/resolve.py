"""Resolution: every field gets a value and a reason, or the recipe gets findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specflow import dummies
from specflow import facts as checkpoints
from specflow.backends import default_backend
from specflow.constraints import FIELD_RULES, rules
from specflow.diagnostics import Diagnostic, Drop, Fix, Label, Put, Rename, Severity, closest
from specflow.errors import RecipeError
from specflow.planning import read_table
from specflow.provenance import Entry, LedgerBuilder, Origin
from specflow.recipe import (
    BLOCKS,
    STAND_IN,
    Axes,
    Fields,
    Recipe,
    ResolvedRecipe,
    RunFields,
    SamplingFields,
    TargetFields,
    home,
    says_nothing,
)
from specflow.recipe_text import typed
from specflow.rules import Finding, diagnose
from specflow.spans import Span
from specflow.stages import COMMITS, DRAFTS, VERIFIES, Table, rows_with
from specflow.stages.base import Derived, DraftStage, Missing
from specflow.stored import stored_dtype
from specflow.tables import (
    ALIASES,
    ENGINE_NAMES,
    ENGINES,
    MADE_FOR,
    alias_of,
    by_architecture,
    look_up,
)
from specflow.temperatures import read_temperatures

TOP = ("recipe", "extends", "allow", *BLOCKS)
# Keys of a block that are no fields of its stage: axes, and the small model of `--stand-in`.
AXES = {
    "target": (STAND_IN,),
    "draft": ("algorithm", "signal", "guess", STAND_IN),
    "verify": ("shape",),
    "commit": ("draft_state",),
}
SOUND_DEFAULTS = ("verify", "commit", "sampling")  # blocks whose defaults need no checking
# Pydantic on a text or a list that is too short or too long; by any name it is one.
LENGTHS = re.compile(r"\w+ should have (at (?:least|most) \d+ \w+)(?: after validation)?.*")
WIDTH = ("draft.num_steps", "draft.topk", "draft.block_size", "draft.predicts")
BUCKET = 8  # tokens, where each number of them is a step captured of its own
NO_LAW = "guesses have no law of their own"
LONGEST_DEFAULT = 2048  # positions: KV for a long context is memory that few runs use


Reader = Callable[[str], checkpoints.ModelFacts]
Look = Callable[[checkpoints.Facts], checkpoints.Facts]


def resolve(
    recipe: Recipe,
    reader: Reader = checkpoints.read,
    look: Look | None = None,
    *,
    device: str = "",
) -> ResolvedRecipe:
    """Decide every field of a recipe and record why; RecipeError carries all findings at once.

    reader  what a model says of itself, by the name a recipe has for it
    look    adds to the facts what costs more to tell
    device  that the question is about: `run.device` where the recipe names none
    """
    return _Resolution(recipe, reader, look, device).run()


def facts_of(recipe: Recipe, reader: Reader = checkpoints.read) -> checkpoints.Facts:
    """What the models that a recipe names say of themselves, whatever else it holds."""
    blocks = {block: recipe.written.get(block) for block in ("target", "draft")}
    said = {block: v if isinstance(v, Mapping) else {} for block, v in blocks.items()}
    names = {block: each.get("model") for block, each in said.items()}
    algorithm = str(said["draft"].get("algorithm"))
    dummy = is_dummy(recipe)
    asked = DRAFTS[algorithm].formats if algorithm in DRAFTS else ()
    reader = dummies.reader(reader, asked) if dummy else reader
    found = {block: reader(name) for block, name in names.items() if isinstance(name, str)}
    folder = DRAFTS[algorithm].folder if algorithm in DRAFTS else ""
    if folder and "target" in found and "draft" not in found:
        inside = checkpoints.inside(found["target"], folder)
        if inside is not None:
            found["draft"] = dummies.made_up(inside, asked) if dummy else inside
    return checkpoints.Facts(found)


def is_dummy(recipe: Recipe) -> bool:
    """Whether a recipe asks for weights that are made up."""
    run = recipe.written.get("run")
    return isinstance(run, Mapping) and run.get("load_format") == dummies.FORMAT


def block_fields(
    drafts: Sequence[DraftStage], shapes: Sequence[str], states: Sequence[str]
) -> dict[str, tuple[type[Fields], ...]]:
    """The fields that each block may have under some drafts, verify shapes and draft states."""
    return {
        "target": (TargetFields,),
        "draft": tuple(draft.fields for draft in drafts),
        "verify": tuple(VERIFIES[name].fields for name in shapes),
        "commit": tuple(COMMITS[name].fields for name in states),
        "sampling": (SamplingFields,),
        "run": (RunFields,),
    }


class _Resolution:
    """The state of one resolution: what is decided so far, and what was found."""

    def __init__(self, recipe: Recipe, reader: Reader, look: Look | None, device: str) -> None:
        self.recipe, self.reader, self.look, self.device = recipe, reader, look, device
        self.ledger = LedgerBuilder()
        self.found: list[Diagnostic] = []
        self.blocks: dict[str, Mapping[str, Any]] = {}
        self.facts = checkpoints.Facts()

    def run(self) -> ResolvedRecipe:
        """Axes, then fields block by block, then rules."""
        self._open_blocks()
        facts = facts_of(self.recipe, self.reader)
        facts = self.facts = facts if self.look is None else self.look(facts)
        draft = self._algorithm(facts)
        if draft is None:
            self._strangers(None)
            raise RecipeError(self.found)
        axes = self._axes(draft)
        if self.found:
            self._strangers(draft)
            raise RecipeError(self.found)
        models = block_fields((draft,), (axes.shape,), (axes.draft_state,))
        made: dict[str, Any] = {}
        for block in ("target", "draft", "sampling", "verify", "commit", "run"):
            made[block] = self._block(block, models[block][0], draft, facts, made)
        engine = self._engine_flags()
        if self.found:
            raise RecipeError(self.found)
        facts = self.facts = self._measured(facts)
        resolved = ResolvedRecipe(
            name=self.recipe.name,
            axes=axes,
            stages=(draft.name, axes.shape, axes.draft_state),
            ledger=self.ledger.freeze(BLOCKS),
            facts=facts,
            engine=engine,
            **made,
        )
        return self._judge(resolved)

    def _measured(self, facts: checkpoints.Facts) -> checkpoints.Facts:
        """The files that a planned verify names, each read or told why not."""

        def named(path: str) -> Path | None:
            written = self.ledger[path].value if path in self.ledger else ""
            return self.recipe.file(path, written) if written else None

        cost, heat = named("verify.cost_table"), named("verify.temperatures")
        if cost is not None:
            table, problem = read_table(cost)
            facts = replace(facts, cost=checkpoints.Measured(str(cost), table, problem))
        if heat is not None:
            width = self.ledger["verify.num_draft_tokens"].value - 1
            found, problem = read_temperatures(heat, width)
            facts = replace(facts, heat=checkpoints.Measured(str(heat), found, problem))
        return facts

    # -- blocks and axes ---------------------------------------------------------------------------

    def _open_blocks(self) -> None:
        """The blocks as mappings; anything else at the top is unknown."""
        for key, value in self.recipe.written.items():
            if key not in TOP:
                self._unknown(key, key, "a recipe", TOP)
            elif key in BLOCKS and not isinstance(value, Mapping) and value is not None:
                self._finding(
                    "SF002",
                    key,
                    f"`{key}` is a block of fields, not {_kind(value)}",
                    "expected a block",
                )
        for block in BLOCKS:
            value = self.recipe.written.get(block)
            self.blocks[block] = value if isinstance(value, Mapping) else {}
            instead = self.blocks[block].get(STAND_IN, "a name")
            if STAND_IN in AXES.get(block, ()) and not (isinstance(instead, str) and instead):
                path = f"{block}.{STAND_IN}"
                message = f"`{path}` is {_kind(instead)}: expected the name of a model"
                self._finding("SF002", path, message, "expected a name")

    def _algorithm(self, facts: checkpoints.Facts) -> DraftStage | None:
        """The draft's row: named, by an alias, or by the two axes that are its own."""
        if "algorithm" not in self.blocks["draft"]:
            return self._by_axes()
        written = self.blocks["draft"]["algorithm"]
        path = "draft.algorithm"
        if not isinstance(written, str) or (written not in DRAFTS and written not in ALIASES):
            self._not_a_row(path, written, DRAFTS, also=tuple(ALIASES))
            return None
        self._wrote(path, written)
        alias = alias_of(written, facts.net.format if written in ALIASES else "")
        if alias is not None:
            because = f"{written} means {alias.means}: {alias.because}"
            others = {a.means for a in ALIASES[written]} - {alias.means}
            if others and facts[facts.holder].elsewhere:
                because += f"; a draft that is not here may make it {' or '.join(sorted(others))}"
            self.ledger.rename(path, alias.means, because)
        return DRAFTS[alias.means if alias else written]

    def _by_axes(self) -> DraftStage | None:
        """The one row that has the signal and the guess that are written."""
        draft = self.blocks["draft"]
        wanted = {k: draft[k] for k in ("signal", "guess") if k in draft}
        rows = [DRAFTS[n] for n in DRAFTS.names()]
        fits = [s for s in rows if all(getattr(s.axes, k) == v for k, v in wanted.items())]
        if wanted and len(fits) == 1:
            because = "the row with " + " and ".join(f"{k} {v}" for k, v in wanted.items())
            self.ledger.put(Entry("draft.algorithm", fits[0].name, Origin.DERIVED, because))
            return fits[0]
        names = ", ".join(dict.fromkeys((*DRAFTS.names(), *ALIASES)))
        if wanted and fits:
            said = f"several drafts have these axes: {', '.join(s.name for s in fits)}"
        elif wanted:
            said = "no draft has these axes"
        else:
            said = "the recipe names no draft"
        self._finding(
            "SF003",
            "draft",
            said,
            "no `algorithm`",
            help=f"write `draft.algorithm`: one of {names}",
        )
        return None

    def _strangers(self, draft: DraftStage | None) -> None:
        """The keys that are fields of no stage a block may have, where stages are not known yet."""
        drafts = (draft,) if draft else tuple(DRAFTS[n] for n in DRAFTS.names())
        models = block_fields(drafts, VERIFIES.names(), COMMITS.names())
        for block, stages in models.items():
            fields = dict.fromkeys(name for each in stages for name in each.model_fields)
            known = (*AXES.get(block, ()), *fields)
            whose = _whose(block, stages[0]) if len(stages) == 1 else f"`{block}`"
            for name in self.blocks[block]:
                if name not in known:
                    self._unknown(f"{block}.{name}", str(name), whose, known, block)

    def _axes(self, draft: DraftStage) -> Axes:
        """The four axes, from the row unless they are written; each one the draft can feed."""
        self._axis("draft.signal", draft.axes.signal, (draft.axes.signal,), draft)
        self._axis("draft.guess", draft.axes.guess, (draft.axes.guess,), draft)
        branches = self.blocks["draft"].get("topk")
        if type(branches) is int and branches > 1 and "tree" in draft.shapes:
            because = f"topk = {branches}"
            self._axis("verify.shape", "tree", tuple(draft.shapes), draft, because, VERIFIES)
        else:
            row = draft.axes.shape
            self._axis("verify.shape", row, tuple(draft.shapes), draft, table=VERIFIES)
        shape = str(self.ledger["verify.shape"].value)
        states = draft.shapes.get(shape, (draft.axes.draft_state,))
        self._axis("commit.draft_state", states[0], states, draft, table=COMMITS)
        paths = ("draft.signal", "draft.guess", "verify.shape", "commit.draft_state")
        signal, guess, shape, state = (str(self.ledger[p].value) for p in paths)
        return Axes(signal, guess, shape, state)

    def _axis(
        self,
        path: str,
        value: str,
        fits: tuple[str, ...],
        draft: DraftStage,
        because: str = "",
        table: Table[Any] | None = None,
    ) -> None:
        """One axis: what is written where the draft can feed it, else its default."""
        block, _, key = path.partition(".")
        if key in self.blocks[block]:
            written = self.blocks[block][key]
            if table is not None and written not in table:
                self._not_a_row(path, written, table)
            else:
                self._wrote(path, written)
                self._fits(path, written, value, fits, draft)
        origin = Origin.DERIVED if because else Origin.DEFAULT
        self.ledger.put(Entry(path, value, origin, because or f"stages.{draft.name}.axes"))

    def _fits(
        self, path: str, written: Any, default: str, fits: tuple[str, ...], draft: DraftStage
    ) -> None:
        """A finding where the draft cannot feed an axis that is written."""
        if written in fits:
            return
        key = path.split(".")[1]
        message = f"`{key}: {written}` does not go with {draft.name}"
        offer = "leave it out, or write " + " or ".join(f"`{v}`" for v in fits)
        problem = self.facts["draft"].problem
        form = self.facts.net.format
        if problem is not None:  # a name may mean another draft once its checkpoint is read
            offer = f"{problem.message}: {problem.help}"
        elif form in MADE_FOR and draft.formats and form not in draft.formats:
            offer = (
                f"the checkpoint is made for {MADE_FOR[form]}: write `algorithm: {MADE_FOR[form]}`"
            )
        at = self.recipe.places.get("draft.algorithm")
        also = (Label(at.value, draft.doc),) if at else ()
        label = f"expected {' or '.join(fits)}"
        others = tuple(f"write `{path}: {v}`" for v in fits if v != default)
        fix = Drop(path, otherwise=others) if offer.startswith("leave it out") else None
        self._finding("SF039", path, message, label, help=offer, fix=fix, also=also)

    # -- fields ------------------------------------------------------------------------------------

    def _block(
        self,
        block: str,
        fields: type[Fields],
        draft: DraftStage,
        facts: checkpoints.Facts,
        made: Mapping[str, Any],
    ) -> Fields | None:
        """One block's fields, validated; findings instead where they do not hold."""
        written = {
            k: v
            for k, v in self.blocks[block].items()
            if k not in AXES.get(block, ()) and not says_nothing(fields, k, v)
        }
        values = dict(written)
        for name in fields.model_fields:
            path = f"{block}.{name}"
            if name in written:
                self._wrote(path, written[name])
            default = self._default(path, fields, draft, facts, made)
            if default is not None:
                self.ledger.put(default)
                values.setdefault(name, default.value)
        if not written and block in SOUND_DEFAULTS:  # building a validator costs milliseconds
            return fields.model_construct(**values)
        try:
            whole = fields.model_validate(values)
        except ValidationError as error:
            for one in error.errors():
                self._invalid(block, fields, dict(one))
            return None
        for name in fields.model_fields:  # a list that was written is a tuple from here on
            path = f"{block}.{name}"
            if path in self.ledger and self.ledger[path].value != getattr(whole, name):
                self.ledger.restate(path, getattr(whole, name))
        return whole

    def _default(
        self,
        path: str,
        fields: type[Fields],
        draft: DraftStage,
        facts: checkpoints.Facts,
        made: Mapping[str, Any],
    ) -> Entry | None:
        """A field's default and its home; None where it has to be written."""
        name = path.split(".")[1]
        table = draft.tables.get(path) or home(fields, name)["table"]
        if table:
            value, because = look_up(table, facts["target"].architecture, name)
            if facts["target"].elsewhere and by_architecture(table):
                return _assumed(path, value, facts["target"])
            return Entry(path, value, Origin.DEFAULT, because)
        if home(fields, name)["derive"]:
            return self._derived(path, draft, facts, made)
        info = fields.model_fields[name]
        if info.is_required():
            return None
        if path == "run.device" and self.device:
            return Entry(path, self.device, Origin.DERIVED, "what was asked is about a GPU")
        return Entry(path, info.default, Origin.DEFAULT, f"{fields.__name__}.{name}")

    def _derived(
        self, path: str, draft: DraftStage, facts: checkpoints.Facts, made: Mapping[str, Any]
    ) -> Entry | None:
        """The value of a formula; a formula that has no value leaves a finding."""
        if path == "verify.num_draft_tokens":
            return self._width(path, draft, made["draft"])
        if path == "verify.accept":
            return self._accept(path, draft, made)
        if path == "run.dtype":
            return self._dtype(path, facts["target"])
        if path in ("verify.token_bucket", "run.attention", "run.graph"):
            return self._by_device(path)
        name = path.removeprefix("draft.")
        if name in draft.derive:
            return self._from_checkpoint(path, draft.derive[name](facts), facts)
        context = facts["target"].max_positions
        because = f"min(target's context of {context or 'unknown'}, {LONGEST_DEFAULT})"
        return Entry(
            path, min(context or LONGEST_DEFAULT, LONGEST_DEFAULT), Origin.DERIVED, because
        )

    @property
    def _device(self) -> Any:
        return self.blocks["run"].get("device", self.device or "cpu")

    def _dtype(self, path: str, target: checkpoints.ModelFacts) -> Entry:
        """On a GPU the type that weights are stored in, where that is a float of two bytes."""
        if self._device != "cuda":
            return Entry(path, "float32", Origin.DERIVED, "the CPU's type")
        if target.elsewhere:
            return _assumed(path, "float32", target)
        half = stored_dtype(target)
        because = "as the weights are stored" if half else "no weights known in two bytes"
        return Entry(path, half or "float32", Origin.DERIVED, because)

    def _by_device(self, path: str) -> Entry:
        """What the device decides."""
        device = self._device
        if path == "run.attention":
            if self.blocks["run"].get("compile") == "inductor":
                return Entry(path, "sdpa", Origin.DERIVED, "inductor compiles torch's own")
            because = "a kernel reads the past in parts" if device == "cuda" else "torch's own"
            return Entry(path, default_backend(device), Origin.DERIVED, because)
        if path == "run.graph":
            because = "a step is one launch" if device == "cuda" else "a CPU has no such graphs"
            return Entry(path, "on" if device == "cuda" else "off", Origin.DERIVED, because)
        because = "few steps are captured" if device != "cpu" else "nothing is captured on a CPU"
        return Entry(path, BUCKET if device != "cpu" else 1, Origin.DERIVED, because)

    def _width(self, path: str, draft: DraftStage, fields: Fields | None) -> Entry | None:
        """The positions that are verified: as many as are guessed, and one."""
        if fields is None:
            return Entry(path, 1, Origin.DERIVED, "unknown while the draft has findings")
        count = draft.guesses(fields.model_dump())
        if count is None:
            return None
        tree = self.ledger["verify.shape"].value == "tree"
        because = "up to 7 candidates + 1" if tree else "guesses + 1"
        unsure = [p for p in WIDTH if p in self.ledger and self._unsure(p)]
        if unsure:
            return Entry(path, count + 1, Origin.ASSUMED, f"{because}, of `{unsure[0]}`")
        return Entry(path, count + 1, Origin.DERIVED, because)

    def _from_checkpoint(
        self, path: str, found: Derived | Missing, facts: checkpoints.Facts
    ) -> Entry | None:
        """What a checkpoint says of a field, or a finding where it lacks what the field needs."""
        if isinstance(found, Derived):
            source = facts[facts.holder]
            if found.origin is Origin.DERIVED and not source.elsewhere:
                source = facts["target"]
            if source.elsewhere:
                return _assumed(path, found.value, source)
            return Entry(path, found.value, found.origin, found.because)
        if path.removeprefix("draft.") not in self.blocks["draft"]:
            self._finding("SF064", "draft", found.message, "no draft", help=found.help)
        return None

    def _unsure(self, path: str) -> bool:
        return self.ledger[path].origin is Origin.ASSUMED

    def _engine_flags(self) -> dict[str, Mapping[str, Any]]:
        """Flags for other engines, as they were written; each engine judges its own."""
        out: dict[str, Mapping[str, Any]] = {}
        for name, flags in self.blocks["engine"].items():
            path = f"engine.{name}"
            if name not in ENGINES:
                self._unknown(path, str(name), "`engine`", ENGINES)
            elif not isinstance(flags, Mapping):
                message = f"`{path}` is {_kind(flags)}: expected flags by name"
                self._finding("SF002", path, message, "expected flags by name")
            else:
                out[name] = {str(k): v for k, v in flags.items() if v is not None}
                for key, value in out[name].items():
                    self._wrote(f"{path}.{key}", value)
        return out

    def _accept(self, path: str, draft: DraftStage, made: Mapping[str, Any]) -> Entry:
        """Greedy at temperature 0; else a rule that keeps the law, by the draft's own if any."""
        if made["sampling"] is None or made["sampling"].temperature == 0:
            return Entry(path, "greedy", Origin.DERIVED, "temperature 0")
        if draft.has_law and self.ledger["verify.shape"].value != "tree":
            return Entry(path, "rejection", Origin.DERIVED, "guesses can be drawn from a law")
        because = "trees are judged by the target's law alone" if draft.has_law else NO_LAW
        return Entry(path, "target_only", Origin.DERIVED, because)

    def _wrote(self, path: str, value: Any) -> None:
        """Record what the user wrote, in the file or on the command line."""
        if path in self.ledger:
            return
        place = self.recipe.places.get(path)
        origin = Origin.OVERRIDE if path in self.recipe.overridden else Origin.USER
        because = short(place.value) if place else "written"
        if origin is Origin.OVERRIDE and place is not None:
            key = f"{place.key.text if place.key else path}="
            because = key + place.value.text
        self.ledger.put(Entry(path, value, origin, because, place))

    # -- findings ----------------------------------------------------------------------------------

    def _judge(self, resolved: ResolvedRecipe) -> ResolvedRecipe:
        """Hold the whole recipe to every rule; errors stop it, warnings stay with it."""
        known = rules() if self.recipe.allow else rules(*resolved.stages[:2])
        warnings = {r.code for r in known if r.severity is Severity.WARNING}
        useless = tuple(sorted(self.recipe.allow - warnings))
        resolved = replace(resolved, useless_allow=useless)
        found: list[Diagnostic] = []
        for rule in known:
            if rule.code in self.recipe.allow and rule.severity is Severity.WARNING:
                continue
            told = (f for f in rule(resolved) if not self._rests_on_assumed(f))
            found += [diagnose(rule, finding, resolved, self.recipe) for finding in told]
        if any(d.severity is Severity.ERROR for d in found):
            raise RecipeError(found)
        return replace(resolved, findings=tuple(found))

    def _rests_on_assumed(self, finding: Finding) -> bool:
        """Whether a finding speaks of a value that nobody said: it may be another one."""
        fields = (finding.at, *finding.because)
        return any(path in self.ledger and self._unsure(path) for path in fields)

    def _invalid(self, block: str, fields: type[Fields], error: Mapping[str, Any]) -> None:
        """One pydantic error as a finding."""
        path = ".".join([block, *map(str, error["loc"])])
        kind, said = str(error["type"]), str(error["msg"])
        if kind == "extra_forbidden":
            known = (*fields.model_fields, *AXES.get(block, ()))
            self._unknown(path, str(error["loc"][-1]), _whose(block, fields), known, block)
            return
        field = str(error["loc"][0])
        doc = f"`{field}`: {fields.model_fields[field].description}"
        if kind == "missing" and len(error["loc"]) == 1:
            self._finding("SF003", block, f"`{path}` is not written", f"no `{field}`", help=doc)
        elif kind == "missing":  # an item of a list that is too short
            path = f"{block}.{field}"
            said = f"`{path}` has {error['loc'][1]} items, which is too few"
            self._finding("SF002", path, said, "too few", help=doc)
        else:
            limits = ("greater_than", "less_than", "greater_than_equal", "less_than_equal")
            code = "SF010" if kind in limits else "SF002"
            said = f"`{path}` is {_kind(error['input'])}: {_wanted(said)}"
            derived = home(fields, field)["derive"]
            if kind in ("too_short", "too_long") and derived:
                doc = f"leave `{path}` out for {derived}"
            fix = _mended(path, kind, error)
            self._finding(code, path, said, _wanted(str(error["msg"])), help=doc, fix=fix)

    def _unknown(
        self, path: str, name: str, whose: str, options: Iterable[str], block: str = ""
    ) -> None:
        options = tuple(options)
        near = closest(name, options)
        message = f"`{name}` is not a field of {whose}"
        others = rows_with(DRAFTS, name) if block == "draft" else []
        shapes = rows_with(VERIFIES, name) if block == "verify" else []
        if shapes:
            message += f"; it goes with `verify.shape: {shapes[0]}`"
        if others:
            message += f"; it is one of {', '.join(others)}"
        elsewhere = ENGINE_NAMES.get(name.replace("-", "_").lstrip("_")) or _home_of(name, block)
        if elsewhere == "draft.num_steps" and "block_size" in options:
            elsewhere = "draft.block_size"  # a block has no steps
        if elsewhere:
            message += f"; here it is `{elsewhere}`"
        offer = (
            "did you mean " + " or ".join(f"`{n}`" for n in near) + "?"
            if near
            else ("known here are " + ", ".join(f"`{o}`" for o in options))
        )
        here = elsewhere.partition(".")[2] if elsewhere.startswith(f"{block}.") else ""
        meant = here or (near[0] if len(near) == 1 and not (shapes or others or elsewhere) else "")
        fix = Rename(path, meant) if meant and meant not in self.blocks.get(block, {}) else None
        self._finding("SF001", path, message, "unknown", help=offer, fix=fix, at_key=True)

    def _not_a_row(
        self, path: str, written: Any, table: Table[Any], also: tuple[str, ...] = ()
    ) -> None:
        near = closest(str(written).upper() if also else str(written), (*table.names(), *also))
        names = ", ".join(dict.fromkeys((*table.names(), *also)))
        offer = f"did you mean `{near[0]}`? known are {names}" if near else f"known are {names}"
        fix = Put(path, near[0], safe=False) if len(near) == 1 else None
        message = f"{_kind(written)} is no {table.what}"
        self._finding("SF006", path, message, "unknown", help=offer, fix=fix)

    def _finding(
        self,
        code: str,
        path: str,
        message: str,
        label: str,
        *,
        help: str | None = None,  # noqa: A002
        fix: Fix | None = None,
        also: tuple[Label, ...] = (),
        at_key: bool = False,
    ) -> None:
        """Record a finding at a path, or at the nearest block around it that was written."""
        place = self.recipe.places.get(path)
        around = path
        while place is None and "." in around:
            around = around.rpartition(".")[0]
            place = self.recipe.places.get(around)
        labels: tuple[Label, ...] = ()
        if place is not None:
            span = (
                place.key
                if (at_key or around != path or path in BLOCKS) and place.key
                else place.value
            )
            labels = (Label(span, label, primary=True), *also)
        rule = FIELD_RULES[code]
        self.found.append(
            Diagnostic(code, rule.name, Severity.ERROR, message, labels, (), help, fix)
        )


def _assumed(path: str, value: Any, model: checkpoints.ModelFacts) -> Entry:
    return Entry(path, value, Origin.ASSUMED, f"`{model.model}` is not here, which would tell")


def short(span: Span) -> str:
    """A span by its file's own name: `ngram.yaml:6:10`."""
    return f"{Path(span.source.name).name}:{span.line}:{span.column}"


def _kind(value: Any) -> str:
    """A value in words a reader of YAML knows."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return f"{str(value).lower()}"
    if isinstance(value, Mapping):
        return "a block"
    if isinstance(value, list | tuple):
        return f"the list {list(value)}"
    return f"`{value}`" if isinstance(value, str) else str(value)


def _mended(path: str, kind: str, error: Mapping[str, Any]) -> Fix | None:
    """The value that was meant: a number in quotes is one, and one out of range has a limit."""
    written, limits = error["input"], error.get("ctx", {})
    if kind in ("greater_than_equal", "less_than_equal"):
        return Put(path, limits["ge" if kind.startswith("greater") else "le"], safe=False)
    if kind == "literal_error" and isinstance(written, str):
        options = re.findall(r"'([^']*)'", str(limits.get("expected", "")))
        return next((Put(path, near, safe=False) for near in closest(written, options, 1)), None)
    meant = typed(written) if isinstance(written, str) else written
    wanted = {"int_type": int, "bool_type": bool, "float_type": float}.get(kind)
    if wanted is int and type(meant) is float and meant.is_integer():
        meant = int(meant)
    if wanted is float and type(meant) is int:  # in quotes: a bare one is a number as it is
        meant = float(meant)
    return Put(path, meant) if wanted is not None and type(meant) is wanted else None


def _wanted(said: str) -> str:
    """Pydantic's sentence as the end of ours."""
    said = said.replace("Input should be", "expected").replace("a valid tuple", "a list")
    return LENGTHS.sub(r"expected \1", said)


def _home_of(name: str, block: str) -> str:
    """The block that has a field or an axis of that name, where it is another one."""
    homes: dict[str, set[str]] = {key: set(axes) for key, axes in AXES.items()}
    homes["sampling"], homes["run"] = set(SamplingFields.model_fields), set(RunFields.model_fields)
    homes["verify"] |= {f for n in VERIFIES.names() for f in VERIFIES[n].fields.model_fields}
    found = [key for key, names in homes.items() if name in names and key != block]
    return f"{found[0]}.{name}" if len(found) == 1 else ""


def _whose(block: str, fields: type[Fields]) -> str:
    """Whose fields a block holds, as a reader calls it."""
    for name in DRAFTS.names():
        if block == "draft" and DRAFTS[name].fields is fields:
            return name
    return f"`{block}`"
