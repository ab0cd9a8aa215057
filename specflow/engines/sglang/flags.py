"""The flags of SGLang 0.5.23, as its own parser lists them."""

from __future__ import annotations

from specflow.engines.flags import Flags

SERVER = ((r"sglang\.launch_server",), (r"(.*/)?launch_server(\.py)?",), (r"(.*/)?sglang", "serve"))
FLAGS = Flags("SGLang 0.5.23", "specflow.engines.sglang", short=True, server=SERVER)
