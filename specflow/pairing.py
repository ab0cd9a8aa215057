"""Whether a draft fits its target, as a table: what each says, and what the rules say of it.

All of it is told from configs, headers and tokenizers, before any weight loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specflow.columns import columns
from specflow.constraints.drafts import offsets
from specflow.constraints.pairs import (
    TIED,
    fewer_words,
    mtp_layers_found,
    packed_weight,
    quantiser,
    rope,
)
from specflow.diagnostics import Diagnostic, Severity
from specflow.facts import CAUSAL_LM, DraftFacts, Facts, ModelFacts
from specflow.formats import TAPS, TARGET_KV, named
from specflow.stored import stored_as
from specflow.vocab_map import differing_ids, offset_fault

UNKNOWN = "not known"
MADE_UP = "made up"  # of weights that a recipe asks no checkpoint for
OK, NOTE, UNTOLD = "ok", "note", "unknown"
# Which row a rule speaks of; a rule of several rows has a word of its message that decides.
CODES = {
    "kind": ("SF003", "SF006", "SF060", "SF061", "SF063"),
    "hidden size": ("SF025",),
    "taps": ("SF021", "SF023"),
    "embedding": ("SF027",),
    "head": ("SF022", "SF029", "SF066"),
    "map": ("SF070",),
    "vocabulary": ("SF020", "SF024"),
    "stored as": ("SF067", "SF073"),
    "mtp layers": ("SF015", "SF019", "SF064"),
    "block": ("SF013", "SF043", "SF056", "SF057", "SF062"),
    "context": ("SF068", "SF071"),
    "positions": ("SF069",),
}
SEVERAL = {
    "SF026": (
        ("no `d2t`", "head"),
        ("d2t", "map"),
        ("t2d", "map"),
        ("tap", "taps"),
        ("layers", "taps"),
        ("head", "head"),
    )
}


@dataclass(frozen=True)
class Row:
    """One question of fit.

    verdict  ok, note (nothing is wrong, and worth knowing), unknown (a side says nothing), or the
             severity of a finding: warning or error
    codes    the rules that say so
    """

    what: str
    target: str
    draft: str
    verdict: str = OK
    codes: tuple[str, ...] = ()


def fit(facts: Facts, findings: Sequence[Diagnostic]) -> tuple[Row, ...]:
    """The table of a draft and its target; empty where no draft network is in play."""
    target, draft = facts["target"], facts["draft"]
    net = facts.net
    spoken = {code for d in findings for code in [d.code] if code in ("SF003", "SF064")}
    if not (draft.model or (net.format and net.bundled) or spoken) or not target.model:
        return ()
    if net.format == CAUSAL_LM and draft.model == target.model and _no_draft(findings):
        net = DraftFacts()
    rows = _rows(target, facts[facts.holder], net)
    return tuple(_judged(row, findings) for row in rows)


def _no_draft(findings: Sequence[Diagnostic]) -> bool:
    """Whether a rule says that a draft network was looked for in a model, and none is there."""
    return any(d.code in (*CODES["kind"], "SF064") for d in findings)


def _rows(target: ModelFacts, draft: ModelFacts, net: DraftFacts) -> Iterator[Row]:
    asked: tuple[Callable[[ModelFacts, ModelFacts, DraftFacts], Row | None], ...] = (
        _kind,
        _hidden,
        _taps,
        _embedding,
        _head,
        _map,
        _vocabulary,
        _stored,
        _mtp,
        _block,
        _context,
        _positions,
    )
    yield from filter(None, (ask(target, draft, net) for ask in asked))


def _judged(row: Row, findings: Sequence[Diagnostic]) -> Row:
    """A row with the worst of what the rules say of it."""
    mine = [d for d in findings if row.what in _rows_of(d)]
    if not mine:
        untold = row.verdict == OK and any(UNKNOWN in side for side in (row.target, row.draft))
        return replace(row, verdict=UNTOLD) if untold else row
    worst = min(mine, key=lambda d: list(Severity).index(d.severity)).severity
    codes = tuple(dict.fromkeys(d.code for d in mine))
    return Row(row.what, row.target, row.draft, worst.value, codes)


def _rows_of(found: Diagnostic) -> tuple[str, ...]:
    words = SEVERAL.get(found.code, ())
    several = tuple(what for word, what in words if word in found.message)[:1]
    return several or tuple(what for what, codes in CODES.items() if found.code in codes)


# -- rows ------------------------------------------------------------------------------------------


def _kind(target: ModelFacts, draft: ModelFacts, net: DraftFacts) -> Row:
    said = "a whole language model" if net.format == CAUSAL_LM else "no draft that is known"
    if net.format and net.format != CAUSAL_LM:
        said = named(net.format).doc.partition(" (")[0].partition(",")[0]
    declared = draft.architecture if not net.bundled else ""
    called = f" ({declared})" if declared and net.format != CAUSAL_LM else ""
    seen = ", as recorded" if draft.recorded else ""
    return Row("kind", target.architecture or UNKNOWN, f"{said}{called}{seen}")


def _hidden(target: ModelFacts, draft: ModelFacts, net: DraftFacts) -> Row:
    own = net.hidden_size or draft.hidden_size
    return Row("hidden size", _number(target.hidden_size), _number(own))


def _taps(target: ModelFacts, _draft: ModelFacts, net: DraftFacts) -> Row | None:
    if net.reads != TAPS:
        return None
    count = net.tap_count or len(net.taps)
    named_ = f": what enters {_listed(net.taps)}" if net.taps else ", its config names none"
    return Row("taps", f"{_number(target.layers)} layers", f"{count}{named_}")


def _embedding(target: ModelFacts, _draft: ModelFacts, net: DraftFacts) -> Row | None:
    if not net.format:
        return None
    own = f"its own, {net.embed_rows} rows" if net.has_embedding else "the target's"
    return Row("embedding", f"{_number(target.vocab_size)} rows", own)


def _head(target: ModelFacts, draft: ModelFacts, net: DraftFacts) -> Row | None:
    if not net.format:
        return None
    if net.vocab_size:
        own = f"its own, {net.vocab_size} rows"
    elif fewer := fewer_words(draft, target, net):
        own = f"none, and {fewer} words are declared"
    elif draft.says(TIED) and net.has_embedding and not net.bundled:
        own = "its own embedding (tied)"
    else:
        own = "the target's"
    said = "its embedding (tied)" if target.says(TIED) else f"{_number(target.vocab_size)} rows"
    return Row("head", said, own)


def _map(target: ModelFacts, draft: ModelFacts, net: DraftFacts) -> Row | None:
    if not net.has_map:
        return None
    values = offsets(draft)
    fault = offset_fault(values, target.vocab_size) if values and target.vocab_size else ""
    untold = MADE_UP if draft.dummy else UNKNOWN
    whole = fault.removeprefix("`d2t` ") or ("each id once" if values else untold)
    shown = ", with `t2d`" if any(n.endswith("t2d") for n in draft.tensors) else ""
    ids = f"{_number(target.vocab_size)} ids"
    return Row("map", ids, f"`d2t` of {net.map_size or len(values)}: {whole}{shown}")


def _vocabulary(target: ModelFacts, draft: ModelFacts, _net: DraftFacts) -> Row:
    ours = _words(target)
    if draft.model == target.model or not draft.vocabulary:
        return Row("vocabulary", ours, "the target's" if target.tokenizer_size else UNKNOWN)
    theirs = _words(draft)
    if not target.vocabulary:
        return Row("vocabulary", ours, theirs, NOTE)
    if target.speaks_like(draft):
        known = (target.tokenizer_size, draft.tokenizer_size)
        padded = target.vocab_size != draft.vocab_size and len(set(known)) == 1
        return Row("vocabulary", ours, f"{theirs}, the same", NOTE if padded else OK)
    count, examples = differing_ids(target.vocabulary, draft.vocabulary)
    first = "; ".join(f"{e.id}: {_token(e.target)} / {_token(e.draft)}" for e in examples)
    return Row("vocabulary", ours, f"{theirs}, {count} ids differ ({first})")


def _stored(target: ModelFacts, draft: ModelFacts, _net: DraftFacts) -> Row:
    return Row("stored as", _types(target), _types(draft))


def _mtp(target: ModelFacts, _draft: ModelFacts, net: DraftFacts) -> Row | None:
    if not target.mtp_layers and not net.bundled:
        return None
    found = mtp_layers_found(target, net) if net.bundled else 0
    said = f"{target.mtp_layers} declared" if target.mtp_layers else "none declared"
    return Row("mtp layers", said, f"{found} present", OK if net.bundled else NOTE)


def _block(_target: ModelFacts, draft: ModelFacts, net: DraftFacts) -> Row | None:
    if not net.block.size and not net.block.kv_width:
        return None
    block = net.block
    window = f"window {block.window}" if block.window else "sees the whole text"
    mask = f"mask token {block.mask_token}" if block.mask_token >= 0 else "no mask token"
    trust = ", a confidence head" if block.confidence else ""
    size = f"{block.size} at once" if block.size else f"`{draft.model}` says no size"
    return Row("block", "", f"{size}, {window}, {mask}{trust}")


def _context(target: ModelFacts, draft: ModelFacts, net: DraftFacts) -> Row | None:
    if _on_its_positions(target, draft, net):
        return None
    ours, theirs = target.max_positions, draft.max_positions
    shorter = 0 < theirs < ours
    beyond = f": beyond position {theirs} nothing useful" if shorter else ""
    return Row("context", _number(ours), _number(theirs) + beyond, NOTE if shorter else OK)


def _positions(target: ModelFacts, draft: ModelFacts, net: DraftFacts) -> Row | None:
    if _on_its_positions(target, draft, net):
        return None
    ours, theirs = rope(target), rope(draft)
    if ours is None and theirs is None:
        return None
    known = ours is not None and theirs is not None and ours != theirs
    return Row("positions", str(ours or UNKNOWN), str(theirs or UNKNOWN), NOTE if known else OK)


def _on_its_positions(target: ModelFacts, draft: ModelFacts, net: DraftFacts) -> bool:
    """Whether what drafts is of the target itself, or reads its keys: no other positions."""
    itself = draft.model == target.model and net.format != CAUSAL_LM
    return net.bundled or itself or net.reads == TARGET_KV


def _words(model: ModelFacts) -> str:
    tokens, rows = model.tokenizer_size, model.vocab_size
    if not tokens:
        return f"{_number(rows)} rows, no tokenizer read"
    padding = f", {rows - tokens} rows of padding" if rows > tokens else ""
    return f"{tokens} tokens{padding}"


def _types(model: ModelFacts) -> str:
    """The types of its weights, the most frequent first."""
    name, _dtype = packed_weight(model)
    if name or quantiser(model):
        return f"quantised ({quantiser(model) or 'config.json does not say so'})"
    if model.dummy and model.unmade is None and not model.tensors:
        return MADE_UP
    if not model.tensors:
        said = stored_as(model)
        return f"{said}, as recorded" if said else UNKNOWN
    counts: dict[str, int] = {}
    for each in model.tensors.values():
        counts[each.dtype] = counts.get(each.dtype, 0) + 1
    return ", ".join(sorted(counts, key=lambda dtype: -counts[dtype])[:3])


def _token(token: str | None) -> str:
    return "none" if token is None else f"`{token}`"


def _number(count: int) -> str:
    return str(count) if count else UNKNOWN


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


# -- as text, as JSON ------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """The rows in aligned columns."""
    shown = [("fit", "", "target", "draft")]
    for row in rows:
        codes = f" ({', '.join(row.codes)})" if row.codes else ""
        shown.append((row.what, f"{row.verdict}{codes}", row.target or "-", row.draft))
    return "\n".join(columns(shown))


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain values."""
    return [vars(row) | {"codes": list(row.codes)} for row in rows]
