"""What a checkpoint says of itself, from its headers alone: no weights, no torch.

All of it is foreign text: whatever a folder holds, a reader here returns facts or a `Problem`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from specflow import block_config, config_draft, formats, published, vocab_map
from specflow.draft_sizes import block_fault, sizes_fault, taps_fault
from specflow.gguf_header import read_header
from specflow.headers import (
    AGAIN,
    FLOATS,
    INTEGERS,
    LARGEST_JSON,
    Problem,
    Refused,
    Tensor,
    guarded,
    read_all,
    read_integers,
    read_json,
    read_object,
    weight_files,
    whole_number,
)
from specflow.remembered import KEPT, Stamp, stamp

BUILTIN = "builtin:"
PICO = Path(__file__).parent / "models" / "pico"
MOSTLY = 0.98  # share of tokens that a GGUF and a folder of one model agree on
SIDE_TABLES = re.compile(r"(model\.)?(d2t|t2d|masked_embedding\.token_ordering)")
TEXT_KEYS = ("text_config", "transformer_layer_config")
MTP_KEYS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
CAUSAL_LM = "causal_lm"
TOKENIZER = "tokenizer.json"
MASK_PICKLE = "mask_embedding.pt"  # what some drafts replace the target's mask row by
OWN_EMBEDDING, OWN_HEAD = "has_own_embed", "has_own_lm_head"  # of a block draft's config
FIRST_SCORED = block_config.FIRST_SCORED
NO_BLOCK = block_config.BlockFacts()
MISSING = "missing"  # the kind of problem of a model that is not here
ELSEWHERE = "elsewhere"  # the kind of problem of a model that is not here, and need not be
ASK = "`--hub` asks the Hub for its config and headers, `--facts FILE` has them in a file"
WITHOUT_CONFIG = "has no config.json"
NAME_ONE = "name a checkpoint folder, a .gguf file, or builtin:NAME"
AS_SAID = "correct its config.json, download it again, or name another draft"
FOR_ANOTHER = "name a draft that was made for this target"
SPECIALS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before its weights load; zero or empty is not known.

    weights      the safetensors files, each of them whole
    no_float     name and dtype of the first weight that is not stored as a float
    tokens       a GGUF file's map of tokens to ids; a folder's is read when it is asked for
    layer_types  the kind of attention of each layer, where config.json lists it
    mtp_layers   how many layers for drafting config.json declares
    tensors      every tensor of the weights, by name
    config       config.json as it is; `text` is the part of it that is about text
    recorded     where the facts are from, of a model that is not here: it can be judged, not run
    dummy        its weights are made up from its config, which is all that has to be here
    unmade       of such a model: why no weights can be made of it
    asked        of such a model: the formats of drafts that the recipe's algorithm runs
    """

    model: str
    folder: Path | None = None
    problem: Problem | None = None
    architecture: str = ""
    vocab_size: int = 0
    max_positions: int = 0
    weights: tuple[Path, ...] = ()
    no_float: tuple[str, str] | None = None
    tokens: Mapping[str, int] | None = None
    model_type: str = ""
    hidden_size: int = 0
    layers: int = 0
    layer_types: tuple[str, ...] = ()
    mtp_layers: int = 0
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    recorded: str = ""
    dummy: bool = False
    unmade: Problem | None = None
    asked: tuple[str, ...] = ()

    @property
    def elsewhere(self) -> bool:
        """Whether nothing is known of it, as it is not here."""
        return self.problem is not None and self.problem.kind == ELSEWHERE

    @property
    def missing(self) -> bool:
        """Whether it was looked for here, and is not."""
        return self.problem is not None and self.problem.kind == MISSING

    @property
    def text(self) -> Mapping[str, Any]:
        """What config.json says of the language model alone."""
        return text_of(self.config)

    def says(self, flag: str) -> bool:
        """Whether config.json has a flag that is on, at its top or with what is about text."""
        return any(config.get(flag) is True for config in (self.config, self.text))

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor of the weights, by name."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    @property
    def has_words(self) -> bool:
        """Whether its folder holds a tokenizer."""
        return self.folder is not None and (self.folder / TOKENIZER).is_file()

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """The tokens of its tokenizer and their ids; empty where none can be read."""
        return self._tokenizer[0]

    @cached_property
    def tokenizer_size(self) -> int:
        """How many tokens the tokenizer knows: its highest id + 1."""
        return max(self._tokenizer[0].values(), default=-1) + 1

    @property
    def tokenizer_problem(self) -> Problem | None:
        """Why the tokenizer cannot be used; only a target needs one."""
        return self._tokenizer[1]

    @cached_property
    def _tokenizer(self) -> tuple[dict[str, int], Problem | None]:
        folder = self.folder
        if folder is None or (self.dummy and not self.has_words):
            return dict(self.tokens or {}), None
        nothing: dict[str, int] = {}
        return guarded(self.model, lambda: _vocabulary(self.model, folder), nothing)

    def speaks_like(self, other: ModelFacts) -> bool:
        """Whether both tokenizers map the same tokens to the same ids, as far as is known."""
        mine, theirs = self._tokenizer[0], other._tokenizer[0]
        if self.model == other.model or not mine or not theirs:
            return True
        # Some formats write a model's own special tokens in other words; most tokens decide.
        shared = mine.keys() & theirs.keys()
        same = sum(mine[token] == theirs[token] for token in shared)
        if self.tokens is None and other.tokens is None:
            return mine == theirs
        return same >= MOSTLY * max(len(mine), len(theirs))


@dataclass(frozen=True)
class DraftFacts:
    """What a draft network is, told from the names and shapes of its tensors and its config.

    format       a name of `formats.FORMATS`; causal_lm for a whole language model; empty for no
                 draft, or none that is known
    bundled      it lies in the target's own checkpoint
    hidden_size  width of the state that one draft step hands to the next
    reads_width  width of what it reads of the target in each row
    taps         the streams its config says it reads, each named by the layer it enters; empty
                 where the config says nothing
    tap_count    how many streams of the target's width it reads; 0 where it reads none
    vocab_size   rows of its own head; 0 without one
    embed_rows   rows of its own embedding; 0 without one
    map_size     length of `d2t`, its map to the target's ids; 0 without one
    steps        how many draft steps have a layer of their own; 1 where all share one
    block        of a draft that guesses a whole block: what its config says of that
    problem      why it cannot draft for this target, as far as it says so itself

    The flags are what the config says; `fc_bias` is whether there is one.
    """

    format: str = ""
    bundled: bool = False
    hidden_size: int = 0
    reads_width: int = 0
    taps: tuple[int, ...] = ()
    tap_count: int = 0
    vocab_size: int = 0
    embed_rows: int = 0
    has_embedding: bool = False
    has_map: bool = False
    map_size: int = 0
    steps: int = 1
    fc_bias: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    ordered_embeddings: bool = False
    block: block_config.BlockFacts = NO_BLOCK
    problem: Problem | None = None

    @property
    def reads(self) -> str:
        """What it reads of the target, as `formats.Net` says; empty where it is no such network."""
        known = self.format not in ("", CAUSAL_LM)
        return formats.named(self.format).net.reads if known else ""


@dataclass(frozen=True)
class Measured:
    """A file that a recipe names beside its models: what it says, or why it says nothing.

    path  where it was looked for; empty where none is named
    """

    path: str = ""
    value: Any = None
    problem: Problem | None = None


@dataclass(frozen=True)
class Facts:
    """Facts by block: target, and draft where it names a model; and the files a verify names.

    cost      what a step costs by its tokens: a table of `planning`
    heat      temperatures of a confidence head
    oddities  tensors of the draft that look wrong, and how; told where weights are looked through
    """

    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    cost: Measured = field(default_factory=Measured)
    heat: Measured = field(default_factory=Measured)
    oddities: tuple[tuple[str, str], ...] = ()

    @property
    def temperatures(self) -> tuple[float, ...]:
        """What the logits of a confidence head are divided by; empty where nothing is written."""
        return tuple(self.heat.value or ())

    def __getitem__(self, block: str) -> ModelFacts:
        return self.models.get(block, ModelFacts(""))

    @property
    def holder(self) -> str:
        """The block whose checkpoint the draft lies in."""
        return "draft" if self["draft"].model else "target"

    @cached_property
    def net(self) -> DraftFacts:
        """What the draft model is; where none is named, the one that the target brings along."""
        return describe_draft(self["target"], self.models.get("draft"))


def inside(model: ModelFacts, name: str) -> ModelFacts | None:
    """The facts of a checkpoint that lies in a folder of another one, if it does."""
    if model.folder is None or not (model.folder / name / "config.json").is_file():
        return None
    return read_folder(model.folder / name, f"{model.model}/{name}")


def builtins() -> dict[str, Path]:
    """The checkpoints that ship with specflow, by the name after `builtin:`."""
    return {f"pico-{p.parent.name}": p.parent for p in sorted(PICO.glob("*/config.json"))}


def read(model: str) -> ModelFacts:
    """The facts of a model as a recipe names it; never an exception: a problem is a fact too."""
    facts, problem = guarded(model, lambda: _named(model), ModelFacts(model))
    return ModelFacts(model, problem=problem) if problem else facts


_MODELS: deque[tuple[str, Path, Stamp, ModelFacts]] = deque(maxlen=KEPT)
_NETS: deque[tuple[ModelFacts, ModelFacts | None, DraftFacts]] = deque(maxlen=KEPT)


def _remembered(model: str, path: Path, reader: Callable[[], ModelFacts]) -> ModelFacts:
    """What a folder or a file was found to hold, where it is still as it was then."""
    path = path.absolute()
    now = stamp(path)
    if now is None:
        return reader()
    for known in _MODELS:
        if known[:3] == (model, path, now):
            return known[3]
    facts = reader()
    _MODELS.append((model, path, now, facts))
    return facts


def unread(reader: Callable[[str], ModelFacts]) -> Callable[[str], ModelFacts]:
    """A reader for what runs nothing here: a model that is not here may be where a recipe runs."""

    def look(model: str) -> ModelFacts:
        found = reader(model)
        if not found.missing or model.startswith(BUILTIN) or not model.strip():
            return found
        return ModelFacts(model, problem=Problem(ELSEWHERE, f"`{model}` is not here", ASK))

    return look


def hub_may_tell(found: ModelFacts, *, network: bool) -> bool:
    """Whether the Hub's cache, or the Hub itself, may say more of a model than is known here.

    network  the Hub is asked; then what is recorded of a model does not stand for it
    """
    lacking = found.missing or (network and bool(found.recorded))
    return lacking and published.is_hub_name(found.model)


def read_folder(folder: Path, model: str = "") -> ModelFacts:
    """The facts of a folder, under a name for it; never an exception."""
    model = model or str(folder)
    facts, problem = guarded(model, lambda: _known_folder(model, folder), ModelFacts(model))
    return ModelFacts(model, problem=problem) if problem else facts


def describe_draft(target: ModelFacts, draft: ModelFacts | None) -> DraftFacts:
    """What the draft is to the target; never an exception.

    Where there is no draft, or it is the target itself, a network bundled with the target is meant.
    """
    for known in _NETS:
        if known[0] is target and known[1] is draft:
            return known[2]
    facts = _described(target, draft)
    if all(any(m is known[3] for known in _MODELS) for m in (target, draft or target)):
        _NETS.append((target, draft, facts))
    return facts


def _described(target: ModelFacts, draft: ModelFacts | None) -> DraftFacts:
    own = draft is not None and not _same(target, draft)
    source = draft if draft is not None and own else target
    facts, problem = guarded(source.model, lambda: _told(target, source, draft, own), DraftFacts())
    return replace(facts, problem=problem) if problem else facts


def _told(
    target: ModelFacts, source: ModelFacts, draft: ModelFacts | None, own: bool
) -> DraftFacts:
    facts = _network(target, source, own)
    if facts.format or draft is None or not _is_causal_lm(draft):
        return facts
    return DraftFacts(
        CAUSAL_LM,
        hidden_size=draft.hidden_size,
        vocab_size=draft.vocab_size,
        embed_rows=draft.vocab_size,
        has_embedding=True,
    )


def _same(target: ModelFacts, draft: ModelFacts) -> bool:
    if target.folder is None or draft.folder is None:
        return target.model == draft.model
    return target.folder.resolve() == draft.folder.resolve()


def _is_causal_lm(model: ModelFacts) -> bool:
    if model.tokens or model.recorded or _made_up(model):
        return True
    embedding = (model.vocab_size, model.hidden_size)
    return embedding in model.shapes.values() and formats.all_layers(model.shapes, model.layers)


def _network(target: ModelFacts, source: ModelFacts, own: bool) -> DraftFacts:
    """The facts of a network that is no language model; none where there is none."""
    if source.recorded:
        return _recorded(target, source, own)
    if _made_up(source):
        return _meant(target, source, own)
    form = formats.recognise(source.tensors, target.layers, bundled=not own)
    if form is None:
        return DraftFacts()
    twice = formats.twice_named(source.tensors, form, target.layers)
    if twice:
        said = " and ".join(f"`{name}`" for name in twice)
        raise Refused(f"{said} of `{source.model}` are both for one place", "leave one of them out")
    names = formats.rename(source.tensors, form, target.layers)
    ours = {name: source.tensors[theirs] for name, theirs in names.items()}
    shapes = {name: tensor.shape for name, tensor in ours.items()}
    hidden, reads = _widths(target, source, form.net, shapes)
    taps = form.net.reads == formats.TAPS
    embedding, head = _rows(ours, formats.EMBEDDINGS), _rows(ours, formats.HEADS)
    block = NO_BLOCK
    if form.net.block == formats.CONTEXT:
        block = _block(target, source, shapes)
        embedding = embedding if source.says(OWN_EMBEDDING) else 0
        head = head if "d2t" in ours or source.says(OWN_HEAD) else 0
    facts = DraftFacts(
        form.name,
        bundled=not own,
        hidden_size=hidden,
        reads_width=reads,
        taps=_tap_ids(target, source, block=form.net.block == formats.CONTEXT) if taps else (),
        tap_count=_tap_count(target, form.net, reads),
        vocab_size=head,
        embed_rows=embedding,
        has_embedding=bool(embedding),
        has_map="d2t" in ours,
        map_size=_rows(ours, ("d2t",)),
        steps=formats.steps_of(ours) if form.net.own_layers else 1,
        fc_bias="steps.0.fc.bias" in ours,
        ordered_embeddings="masked_embedding.token_ordering" in ours,
        norm_before_residual=source.says("norm_before_residual"),
        norm_output=source.says("norm_output"),
        norm_before_fc=source.says("norm_before_fc"),
        block=block,
    )

    def name_of(name: str) -> str:
        return names.get(name) or formats.would_be(name, form, target.layers) or name

    unfit = next(_size_faults(target, source, form.net, facts, shapes, name_of), "")
    return _judged(target, source, _bounded(facts), ours, unfit)


def _bounded(facts: DraftFacts) -> DraftFacts:
    """The facts without what no recipe may say either: that is a finding of its own."""
    if facts.block.size > block_config.MOST_SIZE:
        facts = replace(facts, block=replace(facts.block, size=0))
    if max(len(facts.taps), facts.tap_count) > block_config.MOST_TAPS:
        facts = replace(facts, taps=(), tap_count=0)
    return replace(facts, steps=min(facts.steps, block_config.MOST_SIZE))


def _size_faults(
    target: ModelFacts,
    source: ModelFacts,
    net: formats.Net,
    facts: DraftFacts,
    shapes: Mapping[str, tuple[int, ...]],
    name_of: Callable[[str], str],
) -> Iterator[str]:
    """What is of another size than the config says, or too many, as what follows its name."""
    lent = {
        *(() if facts.has_embedding else ("embed_tokens.weight",)),
        *(() if net.own_head or facts.vocab_size else ("lm_head.weight",)),
    }
    used = {name: shape for name, shape in shapes.items() if name not in lent}
    stray = formats.stray_step(shapes) if net.own_layers else None
    found = [
        "" if stray is None else f"has a draft layer {stray}, and lacks others before it",
        taps_fault(max(len(facts.taps), facts.tap_count)),
        sizes_fault(net, source.config, source.text, used, name_of),
    ]
    if net.block == formats.CONTEXT and shapes:
        tokens = (target.vocab_size, facts.vocab_size or target.vocab_size)
        found.append(block_fault(facts.block, facts.hidden_size, tokens, used, name_of))
    yield from filter(None, found)


def _block(
    target: ModelFacts, source: ModelFacts, shapes: Mapping[str, tuple[int, ...]]
) -> block_config.BlockFacts:
    """What a block draft says of its block."""
    told = type(block_config.find(source.config, "mask_token_id")) is int
    vocabulary = {} if told else target.vocabulary
    try:
        found = block_config.describe(source.config, source.text, shapes, vocabulary)
    except ValueError as error:
        keys = ", ".join((*block_config.AHEAD_KEYS, *block_config.BESIDE_KEYS, FIRST_SCORED))
        fault = f"config.json of `{source.model}` says both that rows guess ahead and that not"
        raise Refused(fault, f"correct it: keep the one that is true of {keys}") from error
    pickled = source.folder is not None and (source.folder / MASK_PICKLE).is_file()
    return replace(found, pickled=pickled)


def _recorded(target: ModelFacts, source: ModelFacts, own: bool) -> DraftFacts:
    """The facts of a network that is only recorded; none where none is."""
    said = published.draft_facts(published.record(source.model) or {})
    if "block" in said:
        said["block"] = block_config.BlockFacts(**said["block"])
    facts = DraftFacts(**said)
    if not facts.format or facts.bundled == own:
        return DraftFacts()
    taps = _tap_count(target, formats.named(facts.format).net, facts.reads_width)
    return _judged(target, source, replace(facts, tap_count=taps), {})


def _made_up(model: ModelFacts) -> bool:
    """Whether a config is all that is known of a model's weights."""
    return model.dummy and not model.tensors


def _meant(target: ModelFacts, source: ModelFacts, own: bool) -> DraftFacts:
    """The facts of a network whose config is all there is; none where it means none."""
    config, text = source.config, source.text
    kind = str(target.text.get("model_type") or target.model_type)
    beside = config_draft.Beside(kind, target.hidden_size, target.vocab_size, target.mtp_layers)
    bundled = config_draft.bundled_format(beside)
    form = config_draft.own_format(config, source.asked) if own else bundled
    if not form:
        return DraftFacts()
    net = formats.named(form).net
    facts = DraftFacts(
        form,
        bundled=not own,
        norm_before_residual=source.says("norm_before_residual"),
        norm_output=source.says("norm_output"),
        norm_before_fc=source.says("norm_before_fc"),
        **config_draft.network(form, config, text, beside),
    )
    in_context = net.block == formats.CONTEXT
    if in_context:
        shapes = config_draft.block_shapes(config, text, beside)
        facts = replace(facts, block=_block(target, source, shapes))
    if net.reads == formats.TAPS:
        taps = _tap_ids(target, source, block=in_context)
        count = len(taps) or (text.get("num_hidden_layers") if in_context else config_draft.TAPS)
        reads = config_draft.taps_width(config, beside, count if type(count) is int else 0)
        facts = replace(facts, taps=taps, reads_width=reads)
        facts = replace(facts, tap_count=_tap_count(target, net, reads))
    unfit = next(_size_faults(target, source, net, facts, {}, str), "") if own else ""
    return _judged(target, source, _bounded(facts), {}, unfit)


def _tap_count(target: ModelFacts, net: formats.Net, reads: int) -> int:
    return reads // target.hidden_size if net.reads == formats.TAPS and target.hidden_size else 0


def _judged(
    target: ModelFacts,
    source: ModelFacts,
    facts: DraftFacts,
    ours: Mapping[str, Tensor],
    unfit: str = "",
) -> DraftFacts:
    """The facts, and the first of what is wrong with them; `unfit` is what is seen of itself."""
    other = formats.block_variant(source.tensors) if facts.block.kv_width else ""
    if other:
        fault = f"`{source.model}` is {other}, which specflow's own engine does not run"
        return replace(facts, problem=Problem("misfit", fault, "run it on an engine"))
    fault = next(_faults(target, source, facts, ours), "")
    if fault:
        return replace(facts, problem=Problem("misfit", fault, FOR_ANOTHER))
    if unfit:
        return replace(facts, problem=Problem("misfit", f"`{source.model}` {unfit}", AS_SAID))
    return facts


def _widths(
    target: ModelFacts,
    source: ModelFacts,
    net: formats.Net,
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[int, int]:
    try:
        return formats.widths(net, shapes, target.hidden_size)
    except ValueError as error:
        raise Refused(f"the projection of `{source.model}` is no matrix") from error


def _rows(ours: Mapping[str, Tensor], names: Iterable[str]) -> int:
    """Rows of the first of these tensors that is there; 0 where none is."""
    shapes = (ours[name].shape for name in names if name in ours)
    return next((shape[0] for shape in shapes if shape), 0)


def _tap_ids(target: ModelFacts, source: ModelFacts, *, block: bool) -> tuple[int, ...]:
    try:
        if block:
            return block_config.tap_ids(source.config)
        return formats.tap_ids(source.config, target.layers, target.model_type)
    except ValueError as error:
        key = block_config.TAP_IDS if block else formats.TAP_KEY
        raise Refused(f"`{key}` of `{source.model}` names no layers") from error


def _faults(
    target: ModelFacts, source: ModelFacts, facts: DraftFacts, ours: Mapping[str, Tensor]
) -> Iterator[str]:
    """What does not hold together, the cause of others first."""
    name, vocab, head = source.model, target.vocab_size, facts.vocab_size
    if facts.norm_before_fc:
        yield f"`{name}` norms what it reads before `fc`, which specflow's own engine does not"
    if facts.has_map:
        yield from _map_faults(name, vocab, facts, ours)
    elif vocab and head not in (0, vocab):
        yield f"`{name}` has a head of {head} rows and no `d2t` to the {vocab} ids of the target"
    if target.layers and any(i > target.layers for i in facts.taps):
        taps = ", ".join(map(str, facts.taps))
        yield f"`{name}` reads what enters layers {taps} of a target that has {target.layers}"
    whole = facts.tap_count * target.hidden_size == facts.reads_width
    if facts.taps and facts.tap_count and whole and len(facts.taps) != facts.tap_count:
        yield f"`{name}` has weights for {facts.tap_count} taps, and names {len(facts.taps)}"


def _map_faults(
    name: str, vocab: int, facts: DraftFacts, ours: Mapping[str, Tensor]
) -> Iterator[str]:
    """What is wrong with `d2t` and `t2d`; their values are read last."""
    if not facts.vocab_size:
        yield f"`{name}` has `d2t` and no head of its own whose ids it could map"
    if facts.map_size != facts.vocab_size:
        yield f"`d2t` of `{name}` has {facts.map_size} ids, its head {facts.vocab_size} rows"
    marked = _rows(ours, ("t2d",))
    if vocab and "t2d" in ours and marked != vocab:
        yield f"`t2d` of `{name}` has {marked} ids, the target {vocab}"
    if vocab and "d2t" in ours:
        offsets = read_integers(name, "d2t", ours["d2t"])
        fault = vocab_map.offset_fault(offsets, vocab)
        if not fault and "t2d" in ours:
            fault = vocab_map.cover_fault(offsets, read_integers(name, "t2d", ours["t2d"]))
        if fault:
            yield f"{fault} (`{name}`)"


def _named(model: str) -> ModelFacts:
    if model.startswith(BUILTIN):
        return _known_folder(model, _builtin(model))
    if not model.strip():
        raise Refused("the name of a model is empty", NAME_ONE, "missing")
    path = Path(model).expanduser()
    if path.is_dir():
        return _known_folder(model, path)
    if path.suffix == ".gguf" and path.is_file():
        return _remembered(model, path, lambda: _gguf(model, path))
    if path.exists():
        raise Refused(
            f"`{model}` is neither a folder nor a GGUF file",
            "only safetensors and GGUF are loaded; name the folder that holds config.json",
        )
    found = published.record(model)
    if found is not None:
        return ModelFacts(model, recorded=published.source(found), **published.model_facts(found))
    hub = f"; get it from the Hub with `hf download {model} --local-dir FOLDER`, or judge it by "
    hub += "what the Hub says of it with `specflow validate --hub`"
    named = published.is_hub_name(model)
    fault = "is not here, and nothing is recorded of it" if named else "does not exist"
    raise Refused(f"`{model}` {fault}", NAME_ONE + (hub if named else ""), "missing")


def _builtin(model: str) -> Path:
    """The folder of a `builtin:` name, or of a checkpoint that lies in one: `builtin:NAME/PART`."""
    name, _, part = model.removeprefix(BUILTIN).partition("/")
    known = builtins()
    if name not in known:
        offer = ", ".join(BUILTIN + n for n in known)
        raise Refused(f"specflow ships no `{name}`", f"built in are {offer}", "missing")
    parts = {each.parent.name for each in known[name].glob("*/config.json")} if part else set()
    if part and part not in parts:
        inside = ", ".join(f"{BUILTIN}{name}/{each}" for each in sorted(parts))
        offer = f"in it {'is' if len(parts) == 1 else 'are'} {inside}" if inside else "drop it"
        raise Refused(f"`{BUILTIN}{name}` has no part `{part}`", offer, "missing")
    return known[name] / part


def _gguf(model: str, path: Path) -> ModelFacts:
    """The facts of a GGUF file, from its header."""
    try:
        header = read_header(path)
    except ValueError as error:
        raise Refused(f"`{model}` cannot be read: {error}") from error
    size = path.stat().st_size
    if size < header.needed:
        raise Refused(f"`{model}` is cut short: {size} of {header.needed} bytes")
    return ModelFacts(
        model,
        vocab_size=len(header.tokens),
        max_positions=_context(model, header.context),
        tokens={token: at for at, token in enumerate(header.tokens)},
    )


def _known_folder(model: str, folder: Path) -> ModelFacts:
    return _remembered(model, folder, lambda: _folder(model, folder))


def _folder(model: str, folder: Path) -> ModelFacts:
    if not (folder / "config.json").is_file():
        raise Refused(f"`{model}` {WITHOUT_CONFIG}", "name the folder of a whole checkpoint")
    said = read_object(model, folder / "config.json")
    for config in (said, read_object(model, folder / "generation_config.json")):
        if token_ids(config.get("eos_token_id")) is None:
            raise Refused(f"an `eos_token_id` of `{model}` is no token id", AGAIN)
    text = text_of(said)
    names, kinds = said.get("architectures"), text.get("layer_types")
    number = partial(whole_number, model)
    nothing: tuple[tuple[Path, ...], dict[str, Tensor]] = ((), {})
    (files, tensors), problem = guarded(model, lambda: _weights(model, folder), nothing)
    layers = number(text, "num_hidden_layers")
    _check_heads(model, text)
    if layers > block_config.MOST_LAYERS:
        raise Refused(f"config.json of `{model}` says {layers} layers", AGAIN)
    return ModelFacts(
        model,
        folder,
        problem,
        architecture=str(names[0]) if isinstance(names, list) and names else "",
        vocab_size=number(text, "vocab_size"),
        max_positions=_context(model, number(text, "max_position_embeddings")),
        weights=files,
        no_float=next(filter(None, map(_odd, tensors.items())), None),
        model_type=str(said.get("model_type") or ""),
        hidden_size=number(text, "hidden_size"),
        layers=layers,
        layer_types=tuple(map(str, kinds)) if isinstance(kinds, list) else (),
        mtp_layers=next((n for c in (text, said) for k in MTP_KEYS if (n := number(c, k))), 0),
        tensors=tensors,
        config=said,
    )


def _context(model: str, positions: int) -> int:
    """Positions a model sees, of which it speaks after one at least; 0 is not known."""
    if positions == 1:
        raise Refused(f"`{model}` says that it sees 1 position, after which nothing is said")
    return positions


def _check_heads(model: str, text: Mapping[str, Any]) -> None:
    """Refuse heads that cannot share their keys, and a window that is no number of positions."""
    heads, keys = text.get("num_attention_heads"), text.get("num_key_value_heads")
    if type(heads) is int and type(keys) is int and (keys < 1 or heads < 1 or heads % keys):
        said = f"config.json of `{model}` says {heads} heads for {keys} of keys"
        raise Refused(f"{said}, which do not divide them")
    if type(text.get("sliding_window")) is int:
        whole_number(model, text, "sliding_window")


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that is about text: one of its objects, or all of it."""
    parts = (config.get(key) for key in TEXT_KEYS)
    return next((part for part in parts if isinstance(part, dict)), config)


def _weights(model: str, folder: Path) -> tuple[tuple[Path, ...], dict[str, Tensor]]:
    """The files that hold the weights, each checked to be whole, and what lies in them."""
    files = weight_files(model, folder)
    return tuple(files), read_all(model, files)


def _odd(item: tuple[str, Tensor]) -> tuple[str, str] | None:
    """Name and dtype of a weight that is not stored as a float; a table of ids is no weight."""
    name, dtype = item[0], item[1].dtype
    table = dtype in INTEGERS and SIDE_TABLES.fullmatch(name)
    return None if dtype in FLOATS or table else (name, dtype)


def _vocabulary(model: str, folder: Path) -> dict[str, int]:
    """What a tokenizer.json maps to ids; empty where it is too large to read here."""
    special_tokens(read_object(model, folder / "tokenizer_config.json"))
    file = folder / TOKENIZER
    if not file.is_file():
        raise Refused(f"`{model}` has no tokenizer.json", "save the model with a fast tokenizer")
    if file.stat().st_size > LARGEST_JSON:
        return {}
    try:
        known = words_of(read_json(file) or {})
        whole = all(type(i) is int and 0 <= i < 2**32 for i in known.values())
    except Exception as error:  # foreign text: no list of types is ever complete
        raise Refused(f"tokenizer.json of `{model}` is not a tokenizer") from error
    if not whole:
        raise Refused(f"tokenizer.json of `{model}` gives a token an id that is none")
    return known


def words_of(said: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of a tokenizer.json and their ids; whatever is raised where it is none."""
    vocab = said["model"]["vocab"]
    if isinstance(vocab, list):  # Unigram: pairs of a token and its score, in the order of ids
        vocab = {token: at for at, (token, _) in enumerate(vocab)}
    return dict(vocab | {each["content"]: each["id"] for each in said.get("added_tokens", [])})


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a tokenizer_config.json names, each as text."""
    found = {}
    for name in SPECIALS:
        said = config.get(name)
        content = said.get("content") if isinstance(said, dict) else said
        if not said:
            continue
        if not isinstance(content, str) or any("\ud800" <= c <= "\udfff" for c in content):
            raise Refused(f"`{name}` of tokenizer_config.json is no token", AGAIN)
        found[name] = content
    return found


def token_ids(said: Any) -> frozenset[int] | None:
    """The ids an `eos_token_id` names, none, one or several; None where it is no such thing."""
    if said is None:
        return frozenset()
    listed = said if isinstance(said, list | tuple | set | frozenset) else [said]
    return frozenset(listed) if all(type(i) is int for i in listed) else None
