"""What rules look at beside the arguments: the version, the two configs, the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specflow.engines.vllm.versions import FACTS, Facts

UNREAD: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Platform:
    """A machine, as far as defaults go by it: GiB of memory, and whether it is a GPU."""

    memory: int
    gpu: bool = True


# get_batch_defaults of arg_utils.py: large GPUs but the A100 have the larger defaults.
PLATFORMS = {
    "h100": Platform(80),
    "h200": Platform(141),
    "b200": Platform(180),
    "a100": Platform(80),
    "l40s": Platform(48),
    "mi300": Platform(192),
    "cpu": Platform(0, gpu=False),
}


@dataclass(frozen=True)
class Given:
    """Beside the arguments: nothing here is decided, only read.

    draft  the config of the draft, or of the target where the draft is in its checkpoint
    """

    version: str
    target: Mapping[str, Any]
    draft: Mapping[str, Any]
    platform: str
    env: Mapping[str, str]

    @property
    def facts(self) -> Facts:
        """What the version differs in."""
        return FACTS[self.version]

    @property
    def machine(self) -> Platform:
        """The machine by its name."""
        return PLATFORMS[self.platform]


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the language model inside one of several."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def kind_of(config: Mapping[str, Any]) -> str:
    """`model_type`, empty where the config says none."""
    said = config.get("model_type")
    return said if isinstance(said, str) else ""


def architectures_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """`architectures`; a config that has none has none."""
    said = config.get("architectures")
    return tuple(a for a in said if isinstance(a, str)) if isinstance(said, list | tuple) else ()


def whole(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of some keys that has a positive whole number, in the config or its text model."""
    for name in names:
        for place in (config, text_of(config)):
            said = place.get(name)
            if isinstance(said, int) and not isinstance(said, bool) and said > 0:
                return said
            if isinstance(said, float) and math.isfinite(said) and said == int(said) and said > 0:
                return int(said)
    return None
