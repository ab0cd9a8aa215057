"""Engines that run a recipe on this machine where their package is installed: one file a row."""

from __future__ import annotations

from specflow.serving.base import Adapter
from specflow.stages import Table

ADAPTERS = Table[type[Adapter]](
    "engine to run",
    {
        "sglang": "specflow.serving.sglang:Sglang",
        "vllm": "specflow.serving.vllm:Vllm",
    },
)
