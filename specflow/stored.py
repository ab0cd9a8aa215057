"""How many bytes weights take as they are stored: by a header, or by what is recorded of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from specflow import published
from specflow.config_sizes import Sizes, Stored
from specflow.facts import ModelFacts
from specflow.headers import FLOATS, INTEGERS, Tensor
from specflow.layer_sizes import number

EXPERT = re.compile(r"(?:^|\.)experts\.")  # routed; those shared by all tokens are `shared_experts`
ATTENDS = re.compile(r"(?:^|\.)(?:self_attn|attn)\.")
SCALE = re.compile(r"(?:_scale_inv|_scale|\.scales)$")  # of quantized weights, not weights
PACKED = re.compile(r"weight(?:_packed)?$|_blocks$")  # several in one whole number, of any format
FOUR = re.compile("fp4|int4|w4a|4bit", re.IGNORECASE)
EIGHT = re.compile("int8|w8a", re.IGNORECASE)
DTYPE_KEYS = ("dtype", "torch_dtype")
HALF = 2.0
FP8 = 1 + 4 / 128**2  # a float32 scale for each block of 128 x 128, as DeepSeek stores them
FP4 = 0.5 + 1 / 32  # MXFP4: a byte of scale for each 32
# Bytes of a weight of the layers and of a routed expert, by what a record says of a checkpoint.
# Embedding, head and what reads the target's states stay in two bytes.
FORMS: dict[str, tuple[float, float]] = {
    "BF16": (HALF, HALF),
    "FP16": (HALF, HALF),
    "FP8": (FP8, FP8),
    "FP8, experts in FP4": (FP8, FP4),
    "MXFP4 experts, else BF16": (HALF, FP4),
}

# The floats of two bytes, by what headers, records and configs call them.
HALVES = {
    "BF16": "bfloat16", "F16": "float16", "FP16": "float16",
    "bfloat16": "bfloat16", "float16": "float16",
}  # fmt: skip


def stored_as(facts: ModelFacts) -> str:
    """What is recorded of how a model's weights are stored; empty where nothing is."""
    said = str((published.record(facts.model) or {}).get("weights", "")) if facts.recorded else ""
    return "" if said == "unknown" else said


def stored_dtype(facts: ModelFacts) -> str:
    """The float of two bytes that most of a model is stored in; empty for another, or none known.

    Of weights that are made up, what the config says that they were.
    """
    lengths: dict[str, int] = {}
    for tensor in facts.tensors.values():
        lengths[tensor.dtype] = lengths.get(tensor.dtype, 0) + tensor.end - tensor.begin
    if lengths:
        return HALVES.get(max(lengths, key=lambda dtype: lengths[dtype]), "")
    if facts.recorded:
        return HALVES.get(stored_as(facts), "")
    said = (config.get(key) for config in (facts.text, facts.config) for key in DTYPE_KEYS)
    return HALVES.get(str(next(filter(None, said), "")), "") if facts.dummy else ""


def packed(name: str, tensor: Tensor) -> bool:
    """Whether a tensor holds weights that no float is read from as it is."""
    return tensor.dtype in INTEGERS and PACKED.search(name) is not None


def bits(config: Mapping[str, Any]) -> int:
    """Bits of a packed weight by `quantization_config`; 0 where it does not say."""
    said = config.get("quantization_config")
    if not isinstance(said, Mapping):
        return 0
    groups = said.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and number(weights, "num_bits"):
            return number(weights, "num_bits")
    names = " ".join(str(said.get(key, "")) for key in ("quant_method", "quant_algo", "format"))
    if said.get("load_in_4bit") is True or FOUR.search(names):
        return 4
    if said.get("load_in_8bit") is True or EIGHT.search(names):
        return 8
    return number(said, "bits", "w_bit")


def held(tensors: Mapping[str, Tensor]) -> Stored:
    """What tensors of a header take in their file, scales and tables of theirs included."""
    total = routed = attends = 0
    narrow, dtypes = False, dict[str, int]()
    for name, tensor in tensors.items():
        length = tensor.end - tensor.begin
        total += length
        routed += length if EXPERT.search(name) else 0
        attends += length if ATTENDS.search(name) else 0
        narrow |= packed(name, tensor) or tensor.dtype not in (*FLOATS, *INTEGERS)
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + length
    most = sorted(dtypes, key=lambda dtype: -dtypes[dtype])
    return Stored(total, routed, attends, " and ".join(most[:2]), narrow)


def recorded(said: str, sizes: Sizes) -> Stored | None:
    """The same of a model that is not here, by its sizes and what is recorded of its weights."""
    if said not in FORMS:
        return None
    dense, expert = FORMS[said]
    beside = sizes.total - sizes.body - sizes.routed
    total = HALF * beside + dense * sizes.body + expert * sizes.routed
    routed, attends = round(expert * sizes.routed), round(dense * sizes.attends)
    return Stored(round(total), routed, attends, said, packed=min(dense, expert) < HALF)
