"""Triton's interpreter without its dearest habit: half the time of a kernel of many functions.

At every call of a function from a kernel it looks through all of `triton.language` for what it has
to replace, which the launch of the kernel, or the first such call, has done already.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def hasten() -> None:
    """Replace what a function calls only where nobody has."""

    def called(function: Any, *arguments: Any, **named: Any) -> Any:
        known = vars(function).get("languages")
        if known is None:
            values = function.fn.__globals__.values()
            known = [each for each in (tl, tl.core) if any(each is value for value in values)]
            function.languages = known
        if any(tl.core.is_builtin(each.load) for each in known):
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*arguments, **named)

    interpreter.InterpretedFunction.__call__ = called
