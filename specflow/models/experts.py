"""Experts of a layer without a host sync: who is asked is known to the device alone.

Three ways that say the same, of which a CUDA graph holds two everywhere, and one on some devices:

    grouped   the library's: one product for all, by where each expert's tokens begin. In bfloat16
              torch has a kernel for it on Hopper and on Blackwell's servers; on other devices, and
              in other types, the host is asked where they begin (`offs.cpu()`): no graph holds that
    batched   the library's: the weights of each chosen expert are copied beside its token
    dense     every expert multiplies all tokens, and those that were not asked weigh nothing: the
              weights are read once, which is what many tokens cost anyway

    T  tokens      C  chosen of them each      X  experts      H  hidden width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, ExpertsInterface

EXPERTS = "specflow"
MOST_COPIED = 16  # tokens up to which copying the weights of each chosen expert is bearable
GROUPED = (9, 10)  # major compute capabilities of which torch has a kernel of groups


def uses_experts(decoder: nn.Module) -> bool:
    """Whether some layer routes its tokens through a table of experts."""
    return any(
        hasattr(module, "num_experts") and hasattr(module, "has_gate")
        for module in decoder.modules()
    )


def run_experts(module: nn.Module, hidden: Tensor, *routing: Tensor) -> Tensor:
    """What the chosen experts [T, C] say of tokens [T, H], by their weights [T, C]."""
    major = None
    if hidden.device.type == "cuda":
        major = torch.cuda.get_device_capability(hidden.device)[0]
    way = way_of(hidden.shape[0], hidden.dtype, major)
    said: Tensor = WAYS[way](module, hidden, *routing)
    return said


def way_of(tokens: int, dtype: torch.dtype, major: int | None) -> str:
    """How so many tokens are multiplied on a device of a compute capability; None is a CPU."""
    if major is None and dtype != torch.float64:  # which its kernel does not know
        return "grouped"
    if major in GROUPED and dtype == torch.bfloat16:
        return "grouped"
    return "batched" if tokens <= MOST_COPIED else "dense"


def dense(module: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """All experts of all tokens, as products [X, T, ..]."""
    shares = hidden.new_zeros(hidden.shape[0], module.num_experts, dtype=weights.dtype)
    shares = shares.scatter_add(1, chosen.long(), weights)  # [T, X]
    name = "gate_up_proj" if module.has_gate else "up_proj"
    said = _product(module, hidden[None], name)
    flat = said.flatten(0, 1)
    gate = module._apply_gate if module.has_gate else module.act_fn  # noqa: SLF001 - its own
    flat = gate(flat)
    said = _product(module, flat.unflatten(0, said.shape[:2]), "down_proj")
    if getattr(module, "has_post_expert_norm", False):
        said = module.post_expert_norm(said)
    mixed: Tensor = (said * shares.T[:, :, None]).sum(0)
    return mixed.to(hidden.dtype)


def _product(module: Any, given: Tensor, name: str) -> Tensor:
    """Tokens [X or 1, T, ..] times the weights of each expert [X, .., ..]."""
    weight = getattr(module, name)
    made = torch.matmul(given, weight if module.is_transposed else weight.transpose(1, 2))
    return made + getattr(module, f"{name}_bias")[:, None] if module.has_bias else made


WAYS = {
    "grouped": ALL_EXPERTS_FUNCTIONS["grouped_mm"],
    "batched": ALL_EXPERTS_FUNCTIONS["batched_mm"],
    "dense": dense,
}
ExpertsInterface.register(EXPERTS, run_experts)
