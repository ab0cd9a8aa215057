"""Step 8: acceptance chooses the steps (4.4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specflow.engines.outcome import Kind, Run
from specflow.engines.sglang.names import STEPS, TOKENS, TOPK
from specflow.engines.sglang.start import attention_dp
from specflow.engines.sglang.tables import ADAPTIVE_SLOTS, EAGLES
from specflow.foreign_files import read_text


def adaptive(run: Run) -> None:
    """V1 to V4: acceptance chooses the steps, where nothing stands against it."""
    reason = _static_because(run)
    if reason:
        run.set("speculative_adaptive", False, "V1", f"adaptive steps do not go with {reason}")
        return
    steps = _candidates(run)
    if run[TOPK] is None:
        run.set(TOPK, 1, "3.3", "adaptive steps are of a chain")
    if run[STEPS] is None:
        run.set(STEPS, steps[len(steps) // 2], "3.3", f"the middle of {steps}")
    if run[STEPS] not in steps:
        run.refuse("V2", f"--speculative-num-steps {run[STEPS]} is not one of {steps}")
    run.set(TOKENS, run[STEPS] + 1, "V3", "a chain verifies its steps and one more")
    most = f"buffers are sized for {max(steps)} steps and verify {max(steps) + 1}"
    run.note("V9", Kind.TOLD, most)


def _static_because(run: Run) -> str:
    name, topk = run["speculative_algorithm"], run[TOPK]
    against = {
        f"{name or 'no draft'}": name not in EAGLES,
        f"topk {topk}": topk not in (None, 1),
        "attention DP": attention_dp(run),
        "multi-layer EAGLE": run["enable_multi_layer_eagle"],
        "two-batch overlap": run["enable_two_batch_overlap"],
        "PD multiplexing": run["enable_pdmux"],
    }
    return next((reason for reason, holds in against.items() if holds), "")


def _candidates(run: Run) -> list[int]:
    """Steps of every slot, in order; a file of slots must be there and well formed."""
    path = run["speculative_adaptive_config"]
    if path is None:
        return sorted({s for slot in ADAPTIVE_SLOTS.values() for s in slot})
    try:
        said = json.loads(read_text(Path(path)))
    except (OSError, ValueError, RecursionError) as error:
        run.crash("V4", f"{path} cannot be read: {error}"[:200], type(error).__name__)
    if not isinstance(said, dict):
        run.crash("V4", f"{path} holds no slots", "AttributeError")
    slots = {key: slot for key, slot in said.items() if key.isdigit()}
    if not slots:
        run.refuse("V4", f"{path} has no slot for a batch size")
    found: set[int] = set()
    for key, slot in slots.items():
        if not isinstance(slot, dict):
            run.crash("V4", f"{path}: the slot of batch size {key} is none", "AttributeError")
        steps: Any = slot.get("candidate_steps")
        good = isinstance(steps, list) and len(steps) > 0 and all(map(_step, steps))
        if not good or not key.isdecimal():  # a digit that is no number, as ²
            run.refuse("V4", f"{path}: the slot of batch size {key} has no list of steps")
        found |= set(steps)
    return sorted(found)


def _step(value: object) -> bool:
    """A number of steps; Python prints no number of more digits than a limit, and adds to one."""
    return isinstance(value, int) and 0 <= value < 2**63
