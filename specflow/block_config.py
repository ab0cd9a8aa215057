"""What a block draft's config.json says of it, in the words of whoever published it.

DFlash, DeepSpec, SpecForge, speculators and drafts bundled with a target each put the same numbers
elsewhere (parallel.md 1a, 2a). All of it is foreign text: what is no such number counts as unsaid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specflow.formats import GATED, RNN, VANILLA

NESTED = ("dspark_config", "dflash_config")
PREFIX = "dspark_"
TAP_IDS = "target_layer_ids"  # these name layers by what they put out
ENTERED_IDS = "aux_hidden_state_layer_ids"  # speculators name what enters a layer
KIND = "speculators_model_type"
SPECULATORS_SIZE = 8  # where such a config says no `block_size`
HEAD, KEYS = 128, 32  # what the library takes for the heads of its layers where it says nothing
MASK_TOKEN = "<|MASK|>"  # where a config names neither an id nor a token
FORMULA = "round(1 + i (L - 4) / (D - 1)) + 1"
SLIDING = "sliding_attention"
MARKOV_KINDS = (VANILLA, GATED, RNN)
FIRST_SCORED = "logits_start"
MOST_LAYERS = 4096
# The most that a recipe may say too; a checkpoint that says more is refused, or sees all.
MOST_SIZE, MOST_TAPS, MOST_WINDOW = 63, 16, 2**24


@dataclass(frozen=True)
class BlockFacts:
    """What is known of a block draft beyond its widths; 0 and empty are not known.

    size        guesses of a block, or positions where a row guesses its own position's token
    mask_token  the id that stands for what is to be guessed; below 0 where none is named
    ahead       a row guesses the token after its position; else the one at it
    markov      the kind of its Markov head, empty without one
    rank        of that head
    confidence  it has a confidence head
    windows     how far each layer sees, the current token included; 0 is without bound
    causal      whether rows of a block see only what lies behind: in layers that see all, and in
                sliding ones
    kv_width    numbers that all layers keep of a position
    pickled     a pickle beside the weights holds the mask's embedding, and is not read
    """

    size: int = 0
    mask_token: int = -1
    ahead: bool = False
    markov: str = ""
    rank: int = 0
    confidence: bool = False
    windows: tuple[int, ...] = ()
    causal: tuple[bool, bool] = (False, True)
    kv_width: int = 0
    pickled: bool = False

    @property
    def window(self) -> int:
        """The widest window, where every layer has one; 0 where a layer sees all."""
        widest = max(self.windows, default=0) if all(self.windows) else 0
        return widest if widest < MOST_WINDOW else 0


def find(config: Mapping[str, Any], name: str) -> Any:
    """A field wherever it may be: prefixed, nested, at the top, or beside the text's own."""
    if PREFIX + name in config:
        return config[PREFIX + name]
    for key in (*NESTED, "text_config", "transformer_layer_config"):
        part = config.get(key)
        if isinstance(part, Mapping) and name in part:
            return part[name]
    return config.get(name)


def whole(config: Mapping[str, Any], *names: str) -> int:
    """The first of these fields that is a whole number from 0 on; else 0."""
    found = (find(config, name) for name in names)
    return next((n for n in found if type(n) is int and n >= 0), 0)


def _own(text: Mapping[str, Any], name: str) -> int:
    """A number of the layers themselves: what is nested in their config is not built from."""
    said = text.get(name)
    return said if type(said) is int and said >= 0 else 0


def describe(
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    vocabulary: Mapping[str, int],
) -> BlockFacts:
    """The facts of a draft from its config.json and the shapes of its tensors, by our names.

    text        the part of the config about its layers
    vocabulary  the target's tokens, in which a mask token may be named as text

    ValueError where the config contradicts itself on which token a row guesses.
    """
    rank = (shapes.get("markov.w1.weight") or (0,))[-1]
    layers = min(_own(text, "num_hidden_layers"), MOST_LAYERS)
    width = sum(
        (shapes.get(f"layers.{i}.self_attn.{name}_proj.weight") or (0,))[0]
        for i in range(layers)
        for name in ("k", "v")
    )
    ahead = guesses_ahead(config, markov=bool(rank))
    # Where a config says which row is scored first, it is the first that guesses.
    if find(config, FIRST_SCORED) not in (None, 0 if ahead else 1):
        raise ValueError(FIRST_SCORED)
    return BlockFacts(
        size=whole(config, "block_size") or _published_size(config),
        mask_token=_mask_token(config, vocabulary),
        ahead=ahead,
        markov=_markov(config, shapes) if rank else "",
        rank=rank,
        confidence="confidence.weight" in shapes,
        windows=_windows(text, layers),
        causal=_causal(config),
        kv_width=width,
    )


# What says which token a row guesses: the next position's where it is true, and where it is false.
AHEAD_KEYS = ("sample_from_anchor", "query_zero_predicts_next", "shift_label")
BESIDE_KEYS = ("dspark_bonus_anchor",)


def guesses_ahead(config: Mapping[str, Any], *, markov: bool) -> bool:
    """Whether a row guesses the next position's token, or its own; ValueError on a contradiction.

    No tensor tells, and neither does the name DFlash: DeepSpec's are next-position drafts without a
    Markov head, z-lab's are not. A key that says so decides; else the kind of speculators draft;
    else whatever marks a DSpark: its class, its projector, a Markov head.
    """
    said = {v for n in AHEAD_KEYS if isinstance(v := find(config, n), bool)}
    said |= {not v for n in BESIDE_KEYS if isinstance(v := find(config, n), bool)}
    if len(said) > 1:
        raise ValueError(said)
    if said:
        return said.pop()
    kind = config.get(KIND)
    if kind in ("dspark", "dflash"):  # it may be of any type, a list too
        return bool(kind == "dspark")
    names = config.get("architectures")
    if isinstance(names, list) and any("DSpark" in str(name) for name in names):
        return True
    return markov or whole(config, "markov_rank") > 0 or find(config, "projector_type") == "dspark"


def tap_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The streams a draft reads, each named by the layer it enters; ValueError where it names none.

    Empty where the config does not say. An id of -1 is the embedding's output.
    """
    outputs, entered = find(config, TAP_IDS), config.get(ENTERED_IDS)
    said, offset, least = (outputs, 1, -1) if outputs is not None else (entered, 0, 0)
    if said is None:
        return ()
    if not isinstance(said, list) or not all(type(i) is int and i >= least for i in said):
        raise ValueError(said)
    return tuple(i + offset for i in said)


def default_taps(layers: int, count: int) -> tuple[int, ...]:
    """The published formula for `count` draft layers on a target of so many (T1), as we name taps.

    Python rounds halves to even, and so does whoever trained by it.
    """
    if count == 1:
        return (layers // 2 + 1,)
    return tuple(round(1 + i * (layers - 4) / (count - 1)) + 1 for i in range(count))


def _published_size(config: Mapping[str, Any]) -> int:
    """What a format means by saying no size; 0 where it does not fix one."""
    return SPECULATORS_SIZE if isinstance(config.get(KIND), str) else 0


def _mask_token(config: Mapping[str, Any], vocabulary: Mapping[str, int]) -> int:
    said = [find(config, name) for name in ("mask_token_id", "noise_token_id")]
    for token in said:
        if type(token) is int and token >= 0:
            return token
    named = find(config, "mask_token")
    if isinstance(named, str):
        return vocabulary.get(named, -1)
    silent = all(each is None for each in (*said, named))
    return vocabulary.get(MASK_TOKEN, -1) if silent else -1


def _markov(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The kind of Markov head: its tensors decide, since a wrong word would go unnoticed."""
    if "markov.joint.weight" in shapes:
        return RNN
    if "markov.gate.weight" in shapes:
        return GATED
    said = find(config, "markov_head_type")
    return said if said in MARKOV_KINDS else VANILLA


def _windows(text: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    kinds = text.get("layer_types")
    window = min(_own(text, "sliding_window"), MOST_WINDOW)
    if not isinstance(kinds, Sequence) or isinstance(kinds, str) or len(kinds) != layers:
        return (0,) * layers
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def _causal(config: Mapping[str, Any]) -> tuple[bool, bool]:
    """Full layers see their whole block, sliding ones what lies behind, unless it is said."""
    said = find(config, "is_causal")
    if isinstance(said, bool):
        return (said, said)
    return (False, config.get("sliding_window_non_causal") is not True)
