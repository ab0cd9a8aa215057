"""TensorRT-LLM by release: a recipe as its configuration and back, and what it makes of it."""

from __future__ import annotations

from specflow.engines.trtllm.rules import effective

__all__ = ["effective"]
