"""Whether an engine's package is here, and what installs it."""

from __future__ import annotations

from importlib import metadata, util

from specflow.engines.base import Engine
from specflow.errors import UsageError


def ready(engine: Engine) -> str:
    """The installed version of an engine that runs from here; UsageError with the way to it."""
    if not engine.package:
        offer = f"`specflow export RECIPE --engine {engine.name}` writes what it is started with"
        raise UsageError(f"{engine.title} is not run from here", offer)
    if util.find_spec(engine.package) is None:
        offer = f"`pip install '{engine.installs}'`, on a machine that it runs on"
        raise UsageError(f"{engine.title} is not installed", offer)
    try:
        return metadata.version(engine.package)
    except metadata.PackageNotFoundError:
        return "of no known version"
