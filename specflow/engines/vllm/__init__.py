"""vLLM: its arguments told by rules of three versions, and as a recipe and back."""

from __future__ import annotations

from specflow.engines.outcome import Effective, Refused
from specflow.engines.vllm.rules import effective

__all__ = ["Effective", "Refused", "effective"]
