"""The weights of a draft network, out of whatever format they were published in.

Every tensor has a place and every place a tensor, or the draft is refused: a random head would run,
and guess nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn

from specflow.block_config import find
from specflow.draft_sizes import is_factor
from specflow.errors import RuntimeFault
from specflow.facts import DraftFacts, text_of
from specflow.formats import (
    Format,
    Net,
    leftovers,
    rename,
    steps_of,
    stray_step,
    twice_named,
    widths,
    would_be,
)
from specflow.models.adapters import Adapter, absorb
from specflow.models.block_draft import BlockModel
from specflow.models.block_nets import BlockNet, BlockSizes
from specflow.models.linear import pack
from specflow.models.loading import OTHER, foreign, quiet
from specflow.models.nets import DraftModel, DraftNet, Sizes

MISFIT = "the draft in `{}` does not fit its config.json"
N = TypeVar("N", bound=nn.Module)
EXPERT = re.compile(r"(.*\.experts)\.(\d{1,9})\.(gate|up|down)_proj\.weight")
STORED = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
UNREAD = {"t2d"}  # the inverse of d2t, read by training only


def load_draft(
    files: tuple[Path, ...], form: Format, said: dict[str, Any], target: Adapter
) -> DraftModel:
    """A draft network of one format, ready to run beside its target.

    files  the safetensors that hold it; the target's own for a bundled draft
    said   the draft's config.json
    """
    ours, tensors = read_draft(files, form, target)
    folder = files[0].parent
    name_of = partial(called, published=ours, form=form, layers=target.layers)
    with foreign(MISFIT.format(folder)):
        tensors = pack_experts(tensors, name_of)
        parts = described(form, tensors, said, target)

    def build() -> DraftNet:
        return DraftNet(*parts, target, deepcopy(dict(text_of(said))))

    net = filled(build, tensors, folder, name_of)
    ready(net, target)
    finite(net, folder, name_of)
    if net.net.block == "target" and target.row.absorbed:
        absorb(net)
    pack(net.steps)
    return DraftModel(net, target.dtype, target.device)


def load_block(
    files: tuple[Path, ...],
    form: Format,
    said: dict[str, Any],
    facts: DraftFacts,
    target: Adapter,
) -> BlockModel:
    """A block draft, ready to run beside its target."""
    ours, tensors = read_draft(files, form, target)
    own = {"embed_tokens.weight": facts.has_embedding, "lm_head.weight": bool(facts.vocab_size)}
    tensors = {n: t for n, t in tensors.items() if own.get(n, True)}  # else a copy of the target's
    folder = files[0].parent

    def build() -> BlockNet:
        text = deepcopy(dict(text_of(said)))
        sizes = block_sizes(
            facts, said, read_by_trust(facts, tensors), trust_bias="confidence.bias" in tensors
        )
        return BlockNet(sizes, target, text)

    name_of = partial(called, published=ours, form=form, layers=target.layers)
    net = filled(build, tensors, folder, name_of)
    ready(net, target)
    finite(net, folder, name_of)
    pack(net.layers)
    return BlockModel(net, facts.block.causal, target.dtype, target.device)


def ready(net: nn.Module, target: Adapter) -> None:
    """Put a network where its target is, and in its type; nothing of it is trained."""
    net.to(device=target.device, dtype=target.dtype).eval().requires_grad_(requires_grad=False)


def block_sizes(
    facts: DraftFacts, said: Mapping[str, Any], trust: int, *, trust_bias: bool = True
) -> BlockSizes:
    """What a block draft's facts and config say of it, for the network.

    trust  what its confidence head reads, 0 without one
    """
    return BlockSizes(
        taps=facts.tap_count,
        vocab=facts.vocab_size,
        embedding=facts.has_embedding,
        mapped=facts.has_map,
        markov=facts.block.markov,
        rank=facts.block.rank,
        trust=trust,
        trust_bias=trust_bias,
        scale=number(said, "input_embedding_scale", 1.0),
        multiplier=number(said, "output_multiplier", 1.0),
        softcap=number(said, "final_logit_softcapping", 0.0),
    )


def read_by_trust(facts: DraftFacts, tensors: Mapping[str, Tensor]) -> int:
    """How many numbers a confidence head reads; 0 without one."""
    trust = tensors.get("confidence.weight")
    width = 0 if trust is None else trust.shape[-1]
    rows = tensors["fc.weight"].shape[0]
    if width not in (0, rows, rows + facts.block.rank):
        raise RuntimeFault(f"the confidence head reads {width} numbers of {rows}; {OTHER}")
    return width


def number(said: Mapping[str, Any], name: str, otherwise: float) -> float:
    """A number of a block draft's config, wherever it is."""
    found = find(said, name)
    return float(found) if is_factor(found) else otherwise


def read_draft(
    files: tuple[Path, ...], form: Format, target: Adapter
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Our names to the checkpoint's, and the tensors by ours; none may be left over."""
    layers = target.layers
    where: dict[str, Path] = {}
    for file in files:
        for name in _names(file):
            if where.setdefault(name, file) != file:
                _refuse(f"both in {where[name].name} and in {file.name},", [name], file.parent)
    _refuse("for one place,", list(twice_named(where, form, layers)), files[0].parent)
    ours = rename(where, form, layers)
    if not form.bundled:
        _refuse("weights nothing reads,", leftovers(where, form, layers), files[0].parent)
    return ours, {n: t for n, t in _read(ours, where).items() if n not in UNREAD}


def described(
    form: Format, tensors: Mapping[str, Tensor], said: Mapping[str, Any], target: Adapter
) -> tuple[Any, Sizes]:
    """The network and its sizes, from the shapes of its tensors and the flags of its config."""
    net = flagged(form, said)
    if "steps.0.fc.weight" not in tensors:
        raise RuntimeFault(f"{form.doc} has no `fc.weight`; {OTHER}")
    stray = stray_step(tensors)
    if stray is not None:
        raise RuntimeFault(f"{form.doc} has a layer {stray} and lacks others before it; {OTHER}")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    width, reads = widths(net, shapes, int(target.config.hidden_size))
    head = tensors.get("lm_head.weight") if net.own_head else None
    sizes = Sizes(
        reads=reads,
        width=width,
        vocab=0 if head is None else head.shape[0],
        steps=steps_of(tensors),
        embedding="embed_tokens.weight" in tensors,
        mapped="d2t" in tensors,
        fc_bias="steps.0.fc.bias" in tensors,
        residual_normed=bool(said.get("norm_before_residual")),
    )
    return net, sizes


def flagged(form: Format, said: Mapping[str, Any]) -> Net:
    """The network of a format, with what the config of a draft changes of it."""
    return replace(form.net, carries="normed") if said.get("norm_output") else form.net


def pack_experts(
    tensors: Mapping[str, Tensor], name_of: Callable[[str], str] = str
) -> dict[str, Tensor]:
    """Published experts are tensors of their own; the library's layers hold them as one."""
    out: dict[str, Tensor] = {}
    found: dict[str, dict[tuple[int, str], Tensor]] = {}
    for name, tensor in tensors.items():
        match = EXPERT.fullmatch(name)
        if match is None:
            out[name] = tensor
        else:
            found.setdefault(match[1], {})[int(match[2]), match[3]] = tensor
    for prefix, parts in found.items():
        most = max(expert for expert, _ in parts)
        if most >= len(parts):  # each of them has at least one weight
            raise RuntimeFault(
                f"`{name_of(prefix)}` names an expert {most} and lacks others; {OTHER}"
            )
        count = range(1 + most)
        missing = [(e, k) for e in count for k in ("gate", "up", "down") if (e, k) not in parts]
        if missing:
            said = f"expert {missing[0][0]} of `{name_of(prefix)}` has no weights"
            raise RuntimeFault(f"{said}; {OTHER}")
        both = [torch.cat([parts[e, "gate"], parts[e, "up"]]) for e in count]
        out[f"{prefix}.gate_up_proj"] = torch.stack(both)
        out[f"{prefix}.down_proj"] = torch.stack([parts[e, "down"] for e in count])
    return out


def filled(
    build: Callable[[], N],
    tensors: Mapping[str, Tensor],
    folder: Path,
    name_of: Callable[[str], str],
) -> N:
    """A network with the tensors in their places; RuntimeFault where they do not fit.

    It is built without memory first: what a config says may be of any size, and what fits is not.
    """
    with quiet(), foreign(MISFIT.format(folder)), torch.device("meta"):
        wanted = build().state_dict()
    given = fitting(wanted, tensors, folder, name_of)
    with quiet(), foreign(MISFIT.format(folder)):
        net = build()
    with foreign(f"`{folder}` does not load"):
        net.load_state_dict({n: given[n].to(wanted[n].dtype) for n in wanted})
    return net


def fitting(
    wanted: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    folder: Path,
    name_of: Callable[[str], str],
) -> dict[str, Tensor]:
    """The tensors that a network wants; RuntimeFault lists what is missing, left over, misshapen.

    name_of  our name to the checkpoint's own, by which a finding calls a tensor
    A head or an embedding that the network shares with its target is a copy, and is dropped.
    """
    shared = {"lm_head.weight", "embed_tokens.weight"} - wanted.keys()
    given = {n: t for n, t in tensors.items() if n not in shared}
    missing = sorted(name_of(n) for n in wanted.keys() - given.keys())
    _refuse("missing weights,", missing, folder)
    unread = sorted(name_of(n) for n in given.keys() - wanted.keys())
    _refuse("weights nothing reads,", unread, folder)
    misshapen = [
        f"{name_of(n)} {list(given[n].shape)} instead of {list(wanted[n].shape)}"
        for n in sorted(wanted)
        if given[n].shape != wanted[n].shape
    ]
    _refuse("weights of another shape,", misshapen, folder)
    odd = [
        f"{name_of(n)} as {str(given[n].dtype).removeprefix('torch.')}"
        for n in sorted(wanted)
        if wanted[n].is_floating_point() and given[n].dtype not in STORED
    ]
    _refuse("weights that are no plain floats,", odd, folder)
    return given


def finite(net: nn.Module, folder: Path, name_of: Callable[[str], str]) -> None:
    """RuntimeFault where a weight is not finite in the type it runs in, buffers included."""
    for ours, weight in net.state_dict().items():
        if not torch.isfinite(weight).all():
            name, dtype = name_of(ours), str(weight.dtype).removeprefix("torch.")
            said = f"`{name}` of `{folder}` holds a number that is not finite in {dtype}"
            raise RuntimeFault(f"{said}; {OTHER}")


def called(name: str, published: Mapping[str, str], form: Format, layers: int) -> str:
    """Our name as the checkpoint has it, or would have it beside the tensors of the same block."""
    if name in published:
        return published[name]
    step, block, rest = name.partition(".block.")
    for ours, theirs in published.items():
        prefix, _, end = ours.partition(".block.")
        if block and end and prefix == step and theirs.endswith(end):
            return theirs.removesuffix(end) + rest
    return would_be(name, form, layers) or name


def _names(file: Path) -> list[str]:
    with foreign(f"`{file}` cannot be read"), safe_open(file, framework="pt") as opened:
        return list(opened.keys())


def _read(ours: Mapping[str, str], where: Mapping[str, Path]) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for file in sorted(set(where.values())):
        with foreign(f"`{file}` cannot be read"), safe_open(file, framework="pt") as opened:
            out |= {n: opened.get_tensor(t) for n, t in ours.items() if where[t] == file}
    return out


def _refuse(kind: str, names: list[str], folder: Path) -> None:
    if names:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        listed = ", ".join(f"`{name}`" for name in names[:4]) + more
        raise RuntimeFault(f"the draft in `{folder}` does not fit: {kind} {listed}; {OTHER}")
