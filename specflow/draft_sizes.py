"""Whether a draft network's tensors are of the sizes that its config.json says.

A network is built by its config and filled by its tensors: where they differ nothing fits, and what
is built first may be of any size. So they are compared by the header alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from specflow.block_config import HEAD, KEYS, MOST_SIZE, MOST_TAPS, BlockFacts, find
from specflow.formats import CONTEXT, GATED, RNN, VANILLA, Net
from specflow.headers import LARGEST_NUMBER

Shape = tuple[int, ...]
OWN_BLOCKS = ("llama", "wide", CONTEXT)  # built by the draft's config; others by the target's
SLIDING = "sliding_attention"
DRIVEN = ("full_attention", SLIDING)
MOST = 1e30  # a factor beyond it is none
NUMBERS = (
    "rms_norm_eps",
    "rope_theta",
    "input_embedding_scale",
    "output_multiplier",
    "final_logit_softcapping",
)
MLP = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
ATTENTION = tuple(f"self_attn.{name}_proj.weight" for name in "qkvo")
LAYER_OF = {
    "llama": (*ATTENTION, *MLP, "post_attention_layernorm.weight"),
    "wide": (
        *ATTENTION,
        *MLP,
        *(f"{n}.weight" for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")),
    ),
    CONTEXT: (
        *ATTENTION,
        *MLP,
        *(f"self_attn.{n}_norm.weight" for n in "qk"),
        *(f"{n}_layernorm.weight" for n in ("input", "post_attention")),
    ),
}
ROWS = ("embed_tokens.weight", "lm_head.weight")
LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class Sizes:
    """What a config.json says of the layers: width, of an MLP, heads, and of one head."""

    width: int
    inner: int
    heads: int
    keys: int
    head: int


def sizes_fault(
    net: Net,
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    shapes: Mapping[str, Shape],
    name_of: Callable[[str], str],
) -> str:
    """What config.json lacks, or what a tensor contradicts, as what follows the draft's name.

    text     the part of the config about its layers
    shapes   of its tensors, by our names; none where they are made up from the config
    name_of  our name to the checkpoint's own
    """
    empty = next((name_of(n) for n, shape in shapes.items() if 0 in shape), "")
    if empty:
        return f"has no number in `{empty}`"
    if net.block not in OWN_BLOCKS:
        return ""
    sizes = _sizes(net, text)
    if isinstance(sizes, str):
        return sizes
    odd = _odd(net, config, text, sizes)
    misshapen = _misshapen(net, text, sizes, shapes, name_of) if shapes else iter(())
    return next(chain(odd, misshapen), "")


def block_fault(
    block: BlockFacts,
    width: int,
    tokens: tuple[int, int],
    shapes: Mapping[str, Shape],
    name_of: Callable[[str], str],
) -> str:
    """What is wrong with a block draft's size and its heads, as what follows its name.

    tokens  that it is told, and that it guesses of; 0 where that is not known
    """
    if block.size > MOST_SIZE:
        return f"guesses blocks of {block.size}, and {MOST_SIZE} are the most that are run"
    if {"markov.gate.weight", "markov.joint.weight"} <= shapes.keys():
        return "has a Markov head of two kinds, gated and rnn"
    heads = {
        "": (),
        VANILLA: ("w2.weight",),
        GATED: ("w2.weight", "gate.weight", "gate.bias"),
        RNN: ("w2.weight", "joint.weight", "joint.bias"),
    }
    lost = [name for part in heads[block.markov] if (name := f"markov.{part}") not in shapes]
    if lost:
        return f"lacks `{name_of(lost[0])}`"
    rank = block.rank
    wanted: dict[str, tuple[Shape, ...]] = {
        "markov.gate.weight": ((rank, width + rank),),
        "markov.gate.bias": ((rank,),),
        "markov.joint.weight": ((3 * rank, 2 * rank + width),),
        "markov.joint.bias": ((3 * rank,),),
        # It reads the row that guesses, and what the Markov head knows of the token before.
        "confidence.weight": ((1, width), (1, width + rank)) if rank else ((1, width),),
        "confidence.bias": ((1,),),
    }
    for name, known in zip(("markov.w1.weight", "markov.w2.weight"), tokens, strict=True):
        rows = known or (shapes.get(name) or (1,))[0]
        wanted[name] = ((rows, rank),)
    for name, fits in wanted.items():
        if name in shapes and shapes[name] not in fits:
            would = " or ".join(str(list(shape)) for shape in fits)
            return f"has `{name_of(name)}` {list(shapes[name])}, and {would} would fit"
    return ""


def taps_fault(count: int) -> str:
    """Why so many taps are not read, as what follows a draft's name; empty where they are."""
    return f"reads {count} layers, and {MOST_TAPS} are the most that are read" * (count > MOST_TAPS)


def is_factor(said: Any) -> bool:
    """Whether a config says a number that states may be multiplied by."""
    return type(said) in {int, float} and abs(said) < MOST


def _sizes(net: Net, text: Mapping[str, Any]) -> Sizes | str:
    """The sizes a config says, or what it lacks."""
    found: dict[str, int] = {}
    otherwise = {"num_key_value_heads": KEYS, "head_dim": HEAD} if net.block == CONTEXT else {}
    for key in (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ):
        value = text.get(key, otherwise.get(key))
        if value is None and key == "num_key_value_heads":
            value = found["num_attention_heads"]
        elif value is None and key == "head_dim" and net.block != CONTEXT:
            value = found["hidden_size"] // found["num_attention_heads"]
        if value is None:
            return f"has no `{key}` in config.json"
        if type(value) is not int or not 0 < value < LARGEST_NUMBER:
            return f"has a `{key}` in config.json that is no size"
        found[key] = value
    return Sizes(*found.values())


def _odd(
    net: Net, config: Mapping[str, Any], text: Mapping[str, Any], sizes: Sizes
) -> Iterator[str]:
    """What no tensor shows: heads that do not share keys evenly, layers of another kind."""
    if sizes.heads % sizes.keys:
        yield f"has {sizes.heads} heads for {sizes.keys} of keys, which do not divide them"
    if sizes.head % 2:
        yield f"has heads of {sizes.head}, whose halves are turned by position"
    if net.block != CONTEXT and sizes.width % sizes.heads:
        yield f"has {sizes.heads} heads, which do not divide a width of {sizes.width}"
    for key in NUMBERS:
        number = find(config, key)
        if number is not None and not is_factor(number):
            yield f"has a `{key}` in config.json that is no number"
    kinds = text.get("layer_types")
    if kinds is None:
        return
    layers = text.get("num_hidden_layers")
    if not isinstance(kinds, list) or (net.block == CONTEXT and len(kinds) != layers):
        yield f"lists no `layer_types` of {layers} layers in config.json"
        return
    other = next((str(kind) for kind in kinds if kind not in DRIVEN), "")
    if other:
        yield f"has `{other}` layers, which specflow's own engine does not run in a draft"
    window = text.get("sliding_window")
    if net.block == CONTEXT and SLIDING in kinds and not (type(window) is int and window > 0):
        yield "has sliding layers, and no `sliding_window` in config.json"


def _misshapen(
    net: Net,
    text: Mapping[str, Any],
    sizes: Sizes,
    shapes: Mapping[str, Shape],
    name_of: Callable[[str], str],
) -> Iterator[str]:
    """Layers and tensors that are not as config.json says."""
    if net.block == CONTEXT:
        there = {match[1] for name in shapes if (match := LAYER.match(name))}
        layers = text.get("num_hidden_layers")
        if layers != len(there) or there != set(map(str, range(len(there)))):
            yield f"has weights of {len(there)} layers, and its config.json says {layers}"
    # A weight that is stored in parts, packed, is told elsewhere.
    parts = {name.rpartition(".")[0] for name in shapes if not name.endswith(".bias")}
    lost = next(
        (
            name
            for name in _needed(net, text)
            if name not in shapes and name.removesuffix(".weight") not in parts
        ),
        "",
    )
    if lost:
        yield f"lacks `{name_of(lost)}`"
    for name, shape in shapes.items():
        wanted = _wanted(net, sizes, name, shape)
        if wanted is not None and shape != wanted:
            yield f"has `{name_of(name)}` {list(shape)}, and its config.json means {list(wanted)}"


def _needed(net: Net, text: Mapping[str, Any]) -> Iterator[str]:
    """Tensors without which a network of the draft's own layers is none."""
    blocks = ["steps.0.block."]
    if net.block == CONTEXT:
        blocks = [f"layers.{at}." for at in range(text["num_hidden_layers"])]
        yield from ("fc.weight", "hidden_norm.weight", "norm.weight")
    elif net.final_norm:
        yield "steps.0.norm.weight"
    for block in blocks:
        yield from (block + part for part in LAYER_OF[net.block])
        if text.get("attention_bias") is True:
            yield from (block + part.replace("weight", "bias") for part in ATTENTION)


def _wanted(net: Net, sizes: Sizes, name: str, shape: Shape) -> Shape | None:
    """The shape that a tensor has by the config; None where that is told elsewhere.

    shape  as it is: how many tokens an embedding has is told elsewhere, and what `fc` reads
    """
    if name in ROWS:
        return (shape[0] if shape else 1, sizes.width)
    if name.endswith("fc.weight"):
        return (sizes.width, shape[-1])
    width, whole = sizes.width, sizes.heads * sizes.head
    into = 2 * width if net.block == "wide" else width
    parts = {
        "self_attn.q_proj.weight": (whole, into),
        "self_attn.k_proj.weight": (sizes.keys * sizes.head, into),
        "self_attn.v_proj.weight": (sizes.keys * sizes.head, into),
        "self_attn.o_proj.weight": (width, whole),
        "self_attn.q_norm.weight": (sizes.head,),
        "self_attn.k_norm.weight": (sizes.head,),
        "mlp.gate_proj.weight": (sizes.inner, width),
        "mlp.up_proj.weight": (sizes.inner, width),
        "mlp.down_proj.weight": (width, sizes.inner),
    }
    for part, wanted in parts.items():
        if name.endswith(part):
            return wanted
    return (width,) if name.endswith(("norm.weight", "fc.bias")) else None
