"""The flags of SGLang 0.5.23, as its own parser lists them."""

from __future__ import annotations

from specflow.engines.flags import Flags

FLAGS = Flags("SGLang 0.5.23", "specflow.engines.sglang")
