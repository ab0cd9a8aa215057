"""SGLang 0.5.23: its resolver told by rules, and its arguments as a recipe and back."""

from __future__ import annotations

from specflow.engines.outcome import Effective, Refused
from specflow.engines.sglang.resolver import effective

__all__ = ["Effective", "Refused", "effective"]
