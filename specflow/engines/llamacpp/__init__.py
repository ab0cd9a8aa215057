"""llama.cpp by build: a recipe as arguments of its server and back, and what it makes of them."""

from __future__ import annotations

from specflow.engines.llamacpp.rules import effective

__all__ = ["effective"]
