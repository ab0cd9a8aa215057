"""What is recorded of published checkpoints, for a model that a recipe names as ORG/NAME.

A record in published.json holds facts of a model and of the draft network in it, as `facts` names
them, the sizes of its layers, as config.json names them, and the place they were seen in. What was
not seen, but inferred, is not `confirmed`. With its `config`, what config.json says beside sizes,
a whole one can be made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "published.json"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What config.json calls the facts of a model.
CONFIG_KEYS = {
    "model_type": "model_type",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
}
# A record has a letter for each layer.
KINDS = {"S": "sliding_attention", "F": "full_attention", "L": "linear_attention"}


def is_hub_name(model: str) -> bool:
    """Whether a model is named as the Hub names them: ORG/NAME."""
    return HUB_NAME.fullmatch(model) is not None


def record(model: str) -> Mapping[str, Any] | None:
    """What is recorded of a model, if it is; names are compared as the Hub does, without case."""
    return _records().get(model.lower()) if is_hub_name(model) else None


def names() -> tuple[str, ...]:
    """Every model that something is recorded of, as the Hub spells it."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8")))


@cache
def _records() -> dict[str, Mapping[str, Any]]:
    said = json.loads(FILE.read_text(encoding="utf-8"))
    return {name.lower(): each for name, each in said.items()}


def source(found: Mapping[str, Any]) -> str:
    """Where the facts of a record are from, and how far they can be trusted."""
    trust = "" if found["confirmed"] else ", not confirmed"
    return f"{found['source']} (weights in {found['weights']}{trust})"


def config(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """A whole config.json of what is recorded; None where a part of it is not."""
    if "config" not in found:
        return None
    model, named = found["model"], {"architectures": [found["model"]["architecture"]]}
    keys = {theirs: model[ours] for ours, theirs in CONFIG_KEYS.items() if ours in model}
    kinds = list(model_facts(found)["layer_types"])
    listed = {"layer_types": kinds} if kinds else {}
    return {**named, **keys, **listed, **found.get("sizes", {}), **found["config"]}


def model_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `facts.ModelFacts` that a record gives."""
    kinds = tuple(KINDS[letter] for letter in found["model"].get("layer_types", ""))
    return {**found["model"], "layer_types": kinds}


def draft_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `facts.DraftFacts` that a record gives; empty where there is no network."""
    net = found.get("net", {})
    block = {"block": _frozen(net["block"])} if "block" in net else {}
    return _frozen(net) | block


def _frozen(said: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping whose lists are tuples, as facts have them."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in said.items()}
