"""Networks whose weights are made up: made where they run, in the type they run in.

Nothing is made twice or elsewhere: a network is built of zeros on its device, and its matrices are
then filled in place. A matrix keeps the scale of what it multiplies, so that states neither vanish
nor overflow; norms are ones, and what else is a row is zeros.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from specflow.config_draft import trust_width
from specflow.errors import RuntimeFault
from specflow.facts import DraftFacts, ModelFacts, text_of
from specflow.faults import of_device
from specflow.formats import named
from specflow.models.adapters import Adapter, absorb
from specflow.models.block_draft import BlockModel
from specflow.models.block_nets import BlockNet
from specflow.models.families import register
from specflow.models.linear import pack
from specflow.models.loading import (
    DTYPES,
    foreign,
    load_weights,
    one_line,
    open_model,
    quiet,
)
from specflow.models.nets import DraftModel, DraftNet, Sizes
from specflow.models.weights import block_sizes, flagged
from specflow.pools import available
from specflow.recipe import ResolvedRecipe

N = TypeVar("N", bound=nn.Module)
SMALLER = "name a smaller model, or a smaller `run.dtype`"
NO_CONFIG = "correct its config.json, or name another model"
CGROUP = Path("/sys/fs/cgroup")
ORDER = "token_ordering"  # a table of ids: each has to be there
EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
}


class _Blank(TorchDispatchMode):
    """New tensors are zeros, and nothing draws numbers for them, whoever asks for it.

    Operations are looked at, not functions: the library puts its own in the place of torch's.
    """

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if draws and func.overloadpacket.__name__.endswith("_"):
            return args[0]  # as it is
        made = func(*args, **(kwargs or {}))
        return made.zero_() if draws or func in EMPTY else made


def causal_lm(found: ModelFacts, *, device: str, dtype: str) -> Any:
    """The `PreTrainedModel` that a config means, its weights made up."""
    may_be_made(found)
    if dtype not in DTYPES:
        raise RuntimeFault(f"`{dtype}` is not a dtype of a model: use one of {', '.join(DTYPES)}")
    config = config_of(found)
    kind = getattr(torch, dtype)

    def build() -> Any:
        return AutoModelForCausalLM.from_config(config, dtype=kind, trust_remote_code=False)

    model = blank(build, found.model, torch.device(device), kind)
    if hasattr(model, "hf_quantizer"):
        model.hf_quantizer = None
    return model.eval()


def pretrained(recipe: ResolvedRecipe, block: str) -> Any:
    """The `PreTrainedModel` of a recipe's block: out of its checkpoint, or made up."""
    where = {"device": recipe.run.device, "dtype": recipe.run.dtype}
    if recipe.facts[block].dummy:
        return causal_lm(recipe.facts[block], **where)
    return load_weights(open_model(recipe[f"{block}.model"]), **where)


@contextmanager
def first_forward(found: ModelFacts) -> Iterator[None]:
    """Sizes of a written config that do not go together are told by the first forward alone.

    Of a checkpoint, or of a config that is recorded, such an error is not the config's.
    """
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError, ZeroDivisionError) as error:
        if isinstance(error, RuntimeFault) or not found.dummy or found.recorded or of_device(error):
            raise
        raise RuntimeFault(
            f"the sizes in config.json of `{found.model}` do not go together: {one_line(error)}; "
            "write the whole config, or name another model"
        ) from error


def may_be_made(found: ModelFacts) -> None:
    """Stop at a model of which no config says what its weights are."""
    if found.unmade is not None:
        said = f"{found.unmade.message}: `run.load_format: dummy` makes no weights of it"
        raise RuntimeFault(f"{said}; {found.unmade.help}")


def config_of(found: ModelFacts) -> Any:
    """The library's config out of what config.json says."""
    register()
    kind = found.config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise RuntimeFault(
            f"config.json of `{found.model}` says `model_type: {kind}`, "
            f"which the library does not know; {NO_CONFIG}"
        )
    with quiet(), foreign(f"config.json of `{found.model}` is no config", NO_CONFIG):
        config = CONFIG_MAPPING[kind].from_dict(dict(found.config))
        layers = config.get_text_config().num_hidden_layers
    width = found.text.get("head_dim")
    fault = "" if layers else "no layers"
    if type(width) is int and width % 2:  # a config may have one for each layer
        fault = f"heads of {width}, whose halves are turned by position"
    if fault:
        raise RuntimeFault(f"config.json of `{found.model}` says {fault}; {NO_CONFIG}")
    return config


def blank(build: Callable[[], N], name: str, device: torch.device, dtype: torch.dtype) -> N:
    """A network whose matrices are random, of one seed for each name; nothing of it is trained."""
    out_of = foreign(f"no weights can be made for `{name}`", NO_CONFIG)
    with quiet(), out_of, as_default(dtype), torch.device("meta"):
        size = sum(t.numel() * t.element_size() for t in weights(build()))
    room(name, size, device)
    with quiet(), foreign(f"no weights can be made for `{name}`", SMALLER):
        with as_default(dtype), torch.device(device), _Blank():
            net = build()
        fill(net, zlib.crc32(name.encode()))
    return net.eval().requires_grad_(requires_grad=False)


def draft(found: ModelFacts, net: DraftFacts, target: Adapter) -> DraftModel:
    """A draft network as its facts have it, its weights made up, ready to run beside its target.

    found  whose config it is: the target's for a bundled draft
    """
    may_be_made(found)
    said = dict(found.config)
    kind = flagged(named(net.format), said)
    sizes = Sizes(
        reads=net.reads_width,
        width=net.hidden_size,
        vocab=net.vocab_size if kind.own_head else 0,
        steps=net.steps,
        embedding=net.has_embedding,
        mapped=net.has_map,
        fc_bias=net.fc_bias,
        residual_normed=net.norm_before_residual,
    )

    def build() -> DraftNet:
        return DraftNet(kind, sizes, target, deepcopy(dict(text_of(said))))

    made = blank(build, _beside(found, net), target.device, target.dtype)
    if made.d2t is not None:
        made.d2t.copy_(spread_ids(sizes.vocab, target.vocab_size, target.device))
    if kind.block == "target" and target.row.absorbed:
        absorb(made)
    pack(made.steps)
    return DraftModel(made, target.dtype, target.device)


def block(found: ModelFacts, net: DraftFacts, target: Adapter) -> BlockModel:
    """A block draft as its facts have it, its weights made up, ready to run beside its target."""
    may_be_made(found)
    said, facts = dict(found.config), net.block
    trust = trust_width(said, net.hidden_size, facts.rank) if facts.confidence else 0
    sizes = block_sizes(net, said, trust)

    def build() -> BlockNet:
        return BlockNet(sizes, target, deepcopy(dict(text_of(said))))

    made = blank(build, _beside(found, net), target.device, target.dtype)
    if made.d2t is not None:
        made.d2t.copy_(spread_ids(sizes.vocab, target.vocab_size, target.device))
    pack(made.layers)
    return BlockModel(made, facts.causal, target.dtype, target.device)


def _beside(found: ModelFacts, net: DraftFacts) -> str:
    """The name of a network, which its numbers are drawn by."""
    return f"{found.model}, {net.format}" if net.bundled else found.model


def weights(net: nn.Module) -> Iterator[Tensor]:
    """The tensors of a network, each once."""
    yield from net.parameters()
    yield from net.buffers()


@torch.no_grad()
def fill(net: nn.Module, seed: int) -> None:
    """Draw the matrices of a network in place; a table of ids counts up."""
    generators: dict[torch.device, torch.Generator] = {}
    for weight in net.parameters():
        if weight.dim() < 2 or not weight.is_floating_point():
            continue
        device = weight.device
        if device.type != "meta" and device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=generators.get(device))
    for name, table in net.named_buffers():
        if name.endswith(ORDER):
            table.copy_(torch.arange(table.numel(), device=table.device).view_as(table))


def room(name: str, size: int, device: torch.device) -> None:
    """Stop where the weights would not fit: asked for, a machine may rather be halted."""
    free = free_bytes(device)
    if free is not None and size > free:
        raise RuntimeFault(
            f"the weights of `{name}` take {size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB "
            f"are free on {device}; {SMALLER}"
        )


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free where a network is to be made; None where nobody says."""
    free = available(device)
    if free is None or device.type != "cpu":
        return free
    return min([free, *_allowed(CGROUP)])


def _allowed(folder: Path) -> Iterator[int]:
    """Bytes that a container may still take: the machine may have more, and end it all the same."""
    with suppress(OSError, ValueError):
        most, used = ((folder / f"memory.{name}").read_text() for name in ("max", "current"))
        yield max(0, int(most) - int(used))  # `max` where there is no bound


@contextmanager
def as_default(dtype: torch.dtype) -> Iterator[None]:
    """New tensors are of this type where nobody says otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def spread_ids(rows: int, known: int, device: torch.device) -> Tensor:
    """A `d2t` of so many rows: offsets to ids spread over all that the target knows."""
    at = torch.arange(rows, device=device)
    return at * known // rows - at
