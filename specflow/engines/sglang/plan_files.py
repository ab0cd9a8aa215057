"""A DSPARK plan's files, costs and temperatures, as SGLang's readers take them (K16, K18)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specflow.engines.outcome import START, Remark, Run
from specflow.foreign_files import read_text

COSTS, TEMPERATURES = "speculative_dspark_sps_table_path", "speculative_dspark_confidence_sts_path"

LARGEST = 16_000_000  # bytes of a table of costs


def plan_files(run: Run, gamma: int | None) -> Iterator[Remark]:
    """What would stop the engine in files that are here; a path that is not here is not judged."""
    for field, row, wrong in ((COSTS, "K18", _costs), (TEMPERATURES, "K16", _temperatures)):
        path = run[field]
        said = None if path is None else _read(path)
        if said is None:
            continue
        reason = wrong(said, gamma) if isinstance(said, dict) else "no object"
        if reason:
            yield row, START, f"{path}: {reason}"


def _read(path: str) -> Any:
    """The file's JSON; False where it is none, None where there is no such file."""
    try:
        return json.loads(read_text(Path(path), LARGEST))
    except (ValueError, RecursionError):
        return False
    except OSError:
        return None


def _costs(said: dict[str, Any], gamma: int | None) -> str:  # noqa: ARG001
    """What is wrong with a cost table, of one curve or of two that add up."""
    if "bias_seconds" not in said:
        most, tokens = said.get("max_batch_tokens"), said.get("sample_batch_tokens")
        reason = _curve(said, "sample_batch_tokens", "sample_steps_per_sec")
        if not reason and (not isinstance(most, int) or not tokens or most < tokens[-1]):
            reason = "max_batch_tokens is below the last probe"
        return reason
    bias = said["bias_seconds"]
    if not _number(bias) or bias <= 0:
        return "bias_seconds is not positive"
    curves = (("bs_probes", "alpha_seconds"), ("m_probes", "theta_seconds"))
    return next(filter(None, (_curve(said, *names) for names in curves)), "")


def _curve(said: dict[str, Any], first: str, second: str) -> str:
    probes, values = said.get(first), said.get(second)
    if not isinstance(probes, list) or not isinstance(values, list) or not probes:
        return f"{first} and {second} are no lists of numbers"
    if not all(map(_number, [*probes, *values])):
        return f"{first} and {second} are no lists of numbers"
    if probes != sorted(set(probes)):
        return f"{first} does not rise"
    return "" if len(probes) == len(values) else f"{first} and {second} are not of one length"


def _temperatures(said: dict[str, Any], gamma: int | None) -> str:
    listed = said.get("temperatures")
    if not isinstance(listed, list) or not listed or not all(map(_number, listed)):
        return "temperatures is no list of numbers"
    if any(t <= 0 for t in listed):
        return "a temperature is not positive"
    fits = gamma is None or len(listed) == gamma
    return "" if fits else f"{len(listed)} temperatures for a block of {gamma} guesses"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
