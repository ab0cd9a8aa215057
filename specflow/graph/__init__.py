"""The step graph: what one step computes, as a value."""

from specflow.graph.builder import Builder, PhaseBuilder
from specflow.graph.ir import (
    Buffer,
    Carry,
    Choice,
    Constant,
    Fused,
    Node,
    Op,
    Operand,
    Phase,
    Repeat,
    StepGraph,
    Store,
    Value,
    Variant,
)

__all__ = [
    "Buffer",
    "Builder",
    "Carry",
    "Choice",
    "Constant",
    "Fused",
    "Node",
    "Op",
    "Operand",
    "Phase",
    "PhaseBuilder",
    "Repeat",
    "StepGraph",
    "Store",
    "Value",
    "Variant",
]
