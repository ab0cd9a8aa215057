"""How each engine lays a model out over GPUs, by the flags that are in force."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specflow.deployed import Deployment

DTYPES = {"half": "float16", "float": "float32", "auto": ""}


def deployment(engine: str, title: str, values: Mapping[str, Any]) -> Deployment:
    """The layout of an engine, by its flags; of one that is not known, a single machine."""
    said = LAYOUTS.get(engine)
    return said(title, values) if said is not None else Deployment(title)


def _sglang(title: str, values: Mapping[str, Any]) -> Deployment:
    """Experts are cut or handed out over all GPUs of a layer, whatever `ep_size` is."""
    tensor = _count(values, "tp_size")
    groups = _count(values, "attn_dp_size")
    if groups == 1 and values.get("enable_dp_attention") is True:
        groups = _count(values, "dp_size")
    return Deployment(
        title,
        flag="engine.sglang.tp_size",
        tensor=tensor,
        pipeline=_count(values, "pp_size"),
        groups=min(groups, tensor),
        experts=max(tensor // _count(values, "moe_dp_size"), 1),
        draft=tensor,
        spread=True,  # max_running_requests is divided by the groups
        dtype=_dtype(values, "dtype"),
        kv_dtype=_dtype(values, "kv_cache_dtype"),
        windows=values.get("disable_hybrid_swa_memory") is not True,
    )


def _vllm(title: str, values: Mapping[str, Any]) -> Deployment:
    """Replicas of attention share one set of experts."""
    tensor = _count(values, "tensor_parallel_size")
    draft = "speculative_config.draft_tensor_parallel_size"
    return Deployment(
        title,
        flag="engine.vllm.tensor_parallel_size",
        tensor=tensor,
        pipeline=_count(values, "pipeline_parallel_size"),
        experts=tensor * _count(values, "data_parallel_size"),
        draft=_count(values, draft) if values.get(draft) else tensor,
        dtype=_dtype(values, "dtype"),
        kv_dtype=_dtype(values, "kv_cache_dtype"),
        windows=values.get("disable_hybrid_kv_cache_manager") is not True,
    )


def _trtllm(title: str, values: Mapping[str, Any]) -> Deployment:
    tensor, kv = _count(values, "tensor_parallel_size"), values.get("kv_cache_config")
    return Deployment(
        title,
        flag="engine.trtllm.tensor_parallel_size",
        tensor=tensor,
        pipeline=_count(values, "pipeline_parallel_size"),
        groups=tensor if values.get("enable_attention_dp") is True else 1,
        experts=tensor,
        draft=tensor,
        dtype=_dtype(values, "dtype"),
        kv_dtype=_dtype(kv if isinstance(kv, Mapping) else {}, "dtype"),
    )


def _count(values: Mapping[str, Any], flag: str) -> int:
    said = values.get(flag)
    return said if type(said) is int and said > 0 else 1


def _dtype(values: Mapping[str, Any], flag: str) -> str:
    said = str(values.get(flag) or "auto")
    return DTYPES.get(said, said)


LAYOUTS: dict[str, Callable[[str, Mapping[str, Any]], Deployment]] = {
    "sglang": _sglang,
    "vllm": _vllm,
    "trtllm": _trtllm,
}
