"""V29: heads of attention are divided among ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specflow.engines.heads import uncopied, undivided
from specflow.engines.outcome import START, Run
from specflow.engines.vllm.given import Given, whole
from specflow.engines.vllm.methods import BARE, METHOD
from specflow.engines.vllm.versions import key


def of_draft(run: Run, given: Given) -> None:
    """Those of a draft's network, on as many ranks as it has."""
    if run[METHOD] not in BARE:
        name = key("draft_tensor_parallel_size")
        flag = "tensor-parallel-size" if name not in run.asked else name
        _divide(run, "draft", given.draft, run[name], flag)


def of_target(run: Run, given: Given) -> None:
    """Those of the target, drafted for or not."""
    ranks = run["tensor_parallel_size"]
    _divide(run, "target", given.target, ranks, "tensor-parallel-size")


def _divide(run: Run, whose: str, config: Mapping[str, Any], ranks: int | None, flag: str) -> None:
    if not ranks or ranks < 2:
        return
    said = undivided(whose, whole(config, "num_attention_heads") or 0, ranks)
    if said:
        run.refuse("V29", f"{said} (--{flag} {ranks})")
    if whole(config, "kv_lora_rank") is None:
        said = uncopied(whose, whole(config, "num_key_value_heads") or 0, ranks)
        if said:
            run.note("V29", START, f"{said} (--{flag} {ranks})")
