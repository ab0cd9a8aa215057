"""From the step graph to readable Python: names, emission, and the cache of modules."""

from specflow.codegen.cache import StaleReason, StepModule
from specflow.codegen.emit import emit

__all__ = ["StaleReason", "StepModule", "emit"]
