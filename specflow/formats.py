"""What draft networks are made of, and how published checkpoints name their weights.

A `Net` describes a network in a few words; `models.nets` builds it out of shared blocks. A
`Format` is one way in which such a network is published: how to tell it from the names and shapes
of its tensors alone, and what its keys are called here (serial.md §7).

Our names: `embed_tokens`, `lm_head`, `d2t`, `t2d` for what is shared, and `steps.I.` for draft step
I: `embed_norm`, `hidden_norm`, `fc`, `block` (a decoder layer), `norm`. A block draft has one step:
`fc`, `hidden_norm`, `layers.I.`, `norm`, `markov.`, `confidence.`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

HIDDEN, TAPS, TARGET_KV = "hidden", "taps", "target_kv"
CONTEXT = "context"
VANILLA, GATED, RNN = "vanilla", "gated", "rnn"  # kinds of Markov heads


@dataclass(frozen=True)
class Net:
    """One draft network, in the words that tell it from the others.

    reads         what it reads of the target: hidden (after the final norm), taps, target_kv
    block         its decoder layer: llama, wide (attention reads embedding and hidden side by
                  side), target (the target's own kind of layer), or context (attention reads what
                  was injected beside the layer's own block)
    hidden_first  the projection reads [hidden; embedding] instead of [embedding; hidden]
    entry_norms   embedding and hidden are normed before they are projected
    input_norm    the block norms its input
    final_norm    the output is normed before the head
    carries       what a draft step hands to the next: normed or raw output
    own_head      the network has a head of its own; else it asks the target's
    zero_first    the embedding at position 0 is zero, as in training
    own_layers    each draft step has a layer of its own, run while the target's rows are extended
    """

    reads: str
    block: str
    hidden_first: bool = False
    entry_norms: bool = False
    input_norm: bool = True
    final_norm: bool = True
    carries: str = "normed"
    own_head: bool = False
    zero_first: bool = False
    own_layers: bool = False


EAGLE = Net(reads=HIDDEN, block="llama", input_norm=False, final_norm=False, carries="raw")
EAGLE3 = Net(reads=TAPS, block="wide", carries="raw", own_head=True)
MTP = Net(reads=HIDDEN, block="target", entry_norms=True)
MIMO = Net(reads=HIDDEN, block="target", entry_norms=True, hidden_first=True, zero_first=True)
LAYER_PER_STEP = Net(reads=HIDDEN, block="target", entry_norms=True, own_layers=True)
ASSISTANT = Net(reads=TARGET_KV, block="target", own_head=True)
BLOCK = Net(reads=TAPS, block=CONTEXT)


@dataclass(frozen=True)
class Format:
    """One way of publishing a draft network.

    marks    patterns of tensor names; a checkpoint of this format has a tensor for each of them
    lacks    patterns of which it has none
    keys     pattern -> our name; "" is left out on purpose: a copy of the target's, or unused
    bundled  the tensors lie in the target's own checkpoint, {L} being its number of layers
    doc      what it is, for findings
    """

    name: str
    doc: str
    net: Net
    marks: tuple[str, ...]
    keys: tuple[tuple[str, str], ...]
    lacks: tuple[str, ...] = ()
    bundled: bool = False


EMBEDDINGS = ("embed_tokens.weight", "model.embed_tokens.weight")
HEADS = ("lm_head.weight", "model.embed_tokens.weight")  # an assistant's head is its embedding
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?)\.(\d{1,9})\.")
LONE_ENTRY = re.compile(r"(?:model\.)?(?:fc|layers\.(\d{1,9})\.eh_proj)\.weight")
TAP_KEY = "eagle_aux_hidden_state_layer_ids"
OPTIONAL, GROUP = re.compile(r"\(\?:[^()]*\)\?"), re.compile(r"\((?!\?)[^()]*\)")
LITE = "glm4_moe_lite"
SHARED = r"(embed_tokens\.weight|lm_head\.weight|d2t|t2d)"


def _input_proj(layer: str) -> tuple[tuple[str, str], ...]:
    """The keys of an MTP layer in the words of MiMo-7B, under a pattern of its prefix."""
    return (
        (layer + r"\.token_layernorm\.weight", "steps.0.embed_norm.weight"),
        (layer + r"\.hidden_layernorm\.weight", "steps.0.hidden_norm.weight"),
        (layer + r"\.input_proj\.weight", "steps.0.fc.weight"),
        (layer + r"\.final_layernorm\.weight", "steps.0.norm.weight"),
        (layer + r"\.(.+)", r"steps.0.block.\1"),
    )


MARKOV = r"(?:logit_head\.)?markov_head"
CONFIDENCE = r"(?:logit_head\.)?confidence_head"
_BLOCK_MARKS = (
    r"(?:encoder\.)?fc\.weight",
    r"hidden_norm\.weight|encoder\.output_norm_enc\.weight",
    r"layers\.0\.self_attn\.k_norm\.weight",
)
_BLOCK_KEYS = (
    (r"(?:model\.)?" + SHARED, r"\1"),
    (r"(?:model\.)?(?:encoder\.)?fc\.weight", "fc.weight"),
    (r"(?:model\.)?hidden_norm\.weight", "hidden_norm.weight"),
    (r"(?:model\.)?encoder\.output_norm_enc\.weight", "hidden_norm.weight"),
    (r"(?:model\.)?norm\.weight", "norm.weight"),
    (r"(?:model\.)?layers\.(.+)", r"layers.\1"),
    (rf"(?:model\.)?{CONFIDENCE}\.proj\.(weight|bias)", r"confidence.\1"),
)
# Block drafts of other kinds: a pattern of a tensor that only they have, and what they are.
BLOCK_VARIANTS = (
    (r".*\.(attention|mlp)_conv\..+|.*candidate_selector\..+", "a DFlash-2 draft"),
    (r".*prefix_gru\..+", "a DOMINO draft"),
    (r"lilicorr\..+", "a LiLiCorr draft"),
)


FORMATS: tuple[Format, ...] = (
    Format(
        "dspark",
        "a DSpark draft",
        BLOCK,
        marks=(*_BLOCK_MARKS, MARKOV + r"\.markov_w1\.weight"),
        keys=(
            *_BLOCK_KEYS,
            (rf"(?:model\.)?{MARKOV}\.markov_w([12])\.weight", r"markov.w\1.weight"),
            (rf"(?:model\.)?{MARKOV}\.(gate|joint)_proj\.(weight|bias)", r"markov.\1.\2"),
        ),
    ),
    Format(
        "dflash",
        "a DFlash draft",
        BLOCK,
        marks=_BLOCK_MARKS,
        lacks=(MARKOV + r"\.markov_w1\.weight",),
        keys=_BLOCK_KEYS,
    ),
    Format(
        "eagle",
        "an EAGLE or EAGLE-2 draft",
        EAGLE,
        marks=(r"fc\.weight", r"layers\.0\.self_attn\.q_proj\.weight"),
        lacks=(
            r"(midlayer|layers\.0)\.hidden_norm\.weight",
            r"hidden_norm\.weight",
            r"pre_projection\.weight",
        ),
        keys=(
            (r"(?:model\.)?" + SHARED, r"\1"),
            (r"(?:model\.)?fc\.(weight|bias)", r"steps.0.fc.\1"),
            (r"(?:model\.)?layers\.0\.(.+)", r"steps.0.block.\1"),
        ),
    ),
    Format(
        "eagle3",
        "an EAGLE3 draft",
        EAGLE3,
        marks=(r"fc\.weight", r"midlayer\.hidden_norm\.weight"),
        keys=(
            (r"(?:model\.)?" + SHARED, r"\1"),
            (r"(?:model\.)?fc\.(weight|bias)", r"steps.0.fc.\1"),
            (r"(?:model\.)?midlayer\.(.+)", r"steps.0.block.\1"),
            (r"(?:model\.)?norm\.weight", r"steps.0.norm.weight"),
        ),
    ),
    Format(
        "eagle3_speculators",
        "an EAGLE3 draft in the speculators format",
        EAGLE3,
        marks=(r"fc\.weight", r"layers\.0\.hidden_norm\.weight"),
        keys=(
            (SHARED, r"\1"),
            (r"fc\.(weight|bias)", r"steps.0.fc.\1"),
            (r"layers\.0\.(.+)", r"steps.0.block.\1"),
            (r"norm\.weight", r"steps.0.norm.weight"),
        ),
    ),
    Format(
        "mtp",
        "an MTP layer after the target's last one (DeepSeek-V3, GLM-4.5)",
        MTP,
        marks=(r"model\.layers\.{L}\.eh_proj\.weight", r"model\.layers\.{L}\.enorm\.weight"),
        keys=(
            (r"model\.layers\.{L}\.embed_tokens\.weight", ""),
            (r"model\.layers\.{L}\.shared_head\.head\.weight", ""),
            (r"model\.layers\.{L}\.shared_head\.norm\.weight", "steps.0.norm.weight"),
            (r"model\.layers\.{L}\.enorm\.weight", "steps.0.embed_norm.weight"),
            (r"model\.layers\.{L}\.hnorm\.weight", "steps.0.hidden_norm.weight"),
            (r"model\.layers\.{L}\.eh_proj\.weight", "steps.0.fc.weight"),
            (r"model\.layers\.{L}\.(.+)", r"steps.0.block.\1"),
        ),
        bundled=True,
    ),
    Format(
        "mtp_mimo",
        "an MTP layer of MiMo-7B",
        MIMO,
        marks=(r"model\.mtp_layers\.0\.input_proj\.weight",),
        keys=_input_proj(r"model\.mtp_layers\.0"),
        bundled=True,
    ),
    Format(
        "mtp_qwen3_next",
        "the MTP layer of Qwen3-Next",
        MTP,
        marks=(r"mtp\.fc\.weight", r"mtp\.pre_fc_norm_hidden\.weight"),
        keys=(
            (r"mtp\.pre_fc_norm_embedding\.weight", "steps.0.embed_norm.weight"),
            (r"mtp\.pre_fc_norm_hidden\.weight", "steps.0.hidden_norm.weight"),
            (r"mtp\.fc\.weight", "steps.0.fc.weight"),
            (r"mtp\.norm\.weight", "steps.0.norm.weight"),
            (r"mtp\.layers\.0\.(.+)", r"steps.0.block.\1"),
        ),
        bundled=True,
    ),
    Format(
        "mtp_speculators",
        "an MTP layer in the speculators format",
        MIMO,
        marks=(r"mtp_layers\.0\.input_proj\.weight",),
        lacks=(r"model\.mtp_layers\.0\.input_proj\.weight",),
        keys=((SHARED, r"\1"), *_input_proj(r"mtp_layers\.0")),
    ),
    Format(
        "mtp_layers",
        "one MTP layer for each draft step (MiMo-V2)",
        LAYER_PER_STEP,
        marks=(r"model\.mtp\.layers\.0\.eh_proj\.weight",),
        keys=(
            (r"model\.mtp\.layers\.(\d{1,9})\.enorm\.weight", r"steps.\1.embed_norm.weight"),
            (r"model\.mtp\.layers\.(\d{1,9})\.hnorm\.weight", r"steps.\1.hidden_norm.weight"),
            (r"model\.mtp\.layers\.(\d{1,9})\.eh_proj\.weight", r"steps.\1.fc.weight"),
            (r"model\.mtp\.layers\.(\d{1,9})\.final_layernorm\.weight", r"steps.\1.norm.weight"),
            (
                r"model\.mtp\.layers\.(\d{1,9})\.pre_mlp_layernorm\.weight",
                r"steps.\1.block.post_attention_layernorm.weight",
            ),
            (
                r"model\.mtp\.layers\.(\d{1,9})\.self_attn\.attention_sink_bias",
                r"steps.\1.block.self_attn.sinks",
            ),
            (r"model\.mtp\.layers\.(\d{1,9})\.(.+)", r"steps.\1.block.\2"),
        ),
        bundled=True,
    ),
    Format(
        "assistant",
        "a Gemma 4 assistant, which reads the target's own KV",
        ASSISTANT,
        marks=(r"pre_projection\.weight", r"post_projection\.weight"),
        keys=((r"(.+)", r"\1"),),
    ),
)


def named(name: str) -> Format:
    """The format of that name."""
    return next(f for f in FORMATS if f.name == name)


def recognise(names: Iterable[str], layers: int, *, bundled: bool) -> Format | None:
    """The format of a checkpoint with tensors of these names.

    layers   of the target: the index of its first MTP layer
    bundled  look for a draft inside a target's checkpoint, instead of a draft's own
    """
    known = tuple(names)

    def has(pattern: str) -> bool:
        wanted = re.compile(pattern.replace("{L}", str(layers)))
        return any(wanted.fullmatch(name) or _bare(wanted, name) for name in known)

    for each in FORMATS:
        if each.bundled == bundled and all(map(has, each.marks)) and not any(map(has, each.lacks)):
            return each
    return None


def _bare(wanted: re.Pattern[str], name: str) -> bool:
    """Some drafts are saved with their whole network under `model.`."""
    return name.startswith("model.") and bool(wanted.fullmatch(name.removeprefix("model.")))


def block_variant(names: Iterable[str]) -> str:
    """What a block draft is that is of another kind than those of `FORMATS`; empty for none."""
    found = (doc for name in names for p, doc in BLOCK_VARIANTS if re.fullmatch(p, name))
    return next(found, "")


def rename(names: Iterable[str], form: Format, layers: int) -> dict[str, str]:
    """Ours -> theirs, for every tensor of a format; what is left out on purpose is not listed."""
    table = [(re.compile(p.replace("{L}", str(layers))), ours) for p, ours in form.keys]
    found: dict[str, str] = {}
    for name in names:
        for pattern, ours in table:
            match = pattern.fullmatch(name)
            if match:
                if ours:
                    found[match.expand(ours)] = name
                break
    return found


def would_be(ours: str, form: Format, layers: int) -> str:
    """What a format calls a tensor of ours in its plainest words; empty where it has no such."""
    for pattern, template in form.keys:
        wanted = re.escape(template)
        for at in range(1, 3):
            wanted = wanted.replace(rf"\\{at}", rf"(?P<g{at}>.+)", 1)
        match = re.fullmatch(wanted, ours)
        if not template or match is None:
            continue
        theirs = OPTIONAL.sub("", pattern.replace("{L}", str(layers)))
        for value in match.groups():
            before, _, after = GROUP.sub("\n", theirs, count=1).partition("\n")
            theirs = before + value + after
        theirs = theirs.replace("\\.", ".").partition("|")[0]
        if rename((theirs,), form, layers) == {ours: theirs}:
            return theirs
    return ""


def twice_named(names: Iterable[str], form: Format, layers: int) -> tuple[str, ...]:
    """Tensors that a format has one place for; empty where there are none."""
    seen: dict[str, str] = {}
    for name in names:
        for ours in rename((name,), form, layers):
            if seen.setdefault(ours, name) != name:
                return (seen[ours], name)
    return ()


def leftovers(names: Iterable[str], form: Format, layers: int) -> list[str]:
    """Tensors of a draft's own checkpoint that the format has no name for."""
    patterns = [re.compile(p.replace("{L}", str(layers))) for p, _ in form.keys]
    return [n for n in names if not any(p.fullmatch(n) for p in patterns)]


def steps_of(ours: Iterable[str]) -> int:
    """How many draft steps have a layer of their own, one after the other from the first."""
    found = _steps(ours)
    return next(at for at in range(len(found) + 1) if at not in found)


def stray_step(ours: Iterable[str]) -> int | None:
    """A draft step that has a layer while one before it has none."""
    names = tuple(ours)
    first = steps_of(names)
    return min((at for at in _steps(names) if at > first), default=None)


def _steps(ours: Iterable[str]) -> set[int]:
    return {int(name.split(".")[1]) for name in ours if name.startswith("steps.")}


def widths(net: Net, shapes: Mapping[str, tuple[int, ...]], target_width: int) -> tuple[int, int]:
    """How wide the state is that a draft step hands on, and what it reads of the target in a row.

    shapes        of its tensors, by our names; ValueError where its projection is no matrix
    target_width  hidden size of the target, whose embedding is read where there is none of its own
    """
    frozen = net.reads == TARGET_KV
    entry = "fc.weight" if net.block == CONTEXT else "steps.0.fc.weight"
    out, into = shapes["post_projection.weight" if frozen else entry]
    if frozen:
        return out, out
    if net.reads == TAPS:
        return out, into
    own = next((shapes[name][-1] for name in EMBEDDINGS if shapes.get(name)), 0)
    return out, max(into - (own or target_width or out), 0)


def all_layers(names: Iterable[str], layers: int) -> bool:
    """Whether so many layers are all there and feed one another, as a language model's do."""
    known = tuple(names)
    entries = [match for match in map(LONE_ENTRY.fullmatch, known) if match]
    fed = any(match[1] is None or int(match[1]) < layers for match in entries)
    found = {int(match[1]) for match in map(LAYER.search, known) if match}
    return not fed and bool(layers) and found.issuperset(range(layers))


def tap_ids(config: Mapping[str, Any], layers: int, target_type: str = "") -> tuple[int, ...]:
    """Which streams of the target a draft reads, by the layers they enter (serial.md §7.3).

    At the top of a config the ids say just that. Under `eagle_config` they name layers whose output
    is read, except where one of them is past the last layer (gpt-oss), or where a GLM-4 lite model
    does not begin at 1. Empty where the config names none; ValueError where it names no layers.

    layers       of the target, 0 where that is not known
    target_type  the target's `model_type`
    """
    inner = config.get("eagle_config")
    outputs = inner.get(TAP_KEY) if isinstance(inner, Mapping) else None
    said = outputs if outputs is not None else config.get(TAP_KEY)
    if said is None:
        return ()
    if not isinstance(said, list) or not all(type(i) is int and i >= 0 for i in said):
        raise ValueError(said)
    past_last = bool(layers) and max(said, default=0) >= layers
    enters = outputs is None or past_last or (target_type == LITE and said[:1] != [1])
    return tuple(said) if enters else tuple(i + 1 for i in said)
