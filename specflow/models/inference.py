"""How a forward runs without gradients, whether it is called or traced."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Made = TypeVar("Made")


def inference(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """In inference mode where it is called; as it is where it is a part of what is traced.

    A trace that turns the mode on half way cannot be made free of effects: what it read before is
    no inference tensor. Whoever compiles turns gradients off round the whole.
    """
    called = torch.inference_mode()(function)

    @wraps(function)
    def either(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return called(*args, **kwargs)

    return either
