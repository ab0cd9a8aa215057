"""Engines that a recipe can be exported to: one row an engine, one file or folder a row."""

from __future__ import annotations

from specflow.engines.base import Engine
from specflow.stages import Table

ENGINES = Table[Engine](
    "engine",
    {
        "sglang": "specflow.engines.sglang.row:ENGINE",
        "vllm": "specflow.engines.vllm.row:ENGINE",
        "llamacpp": "specflow.engines.llamacpp.row:ENGINE",
        "trtllm": "specflow.engines.trtllm.row:ENGINE",
    },
)
