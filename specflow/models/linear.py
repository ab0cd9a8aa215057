"""How a matrix is stored so that a few rows of tokens multiply it at the speed of memory.

    R  rows of tokens      M  inputs      N  outputs

oneDNN packs a float32 matrix into blocks: four to six rows then take as long as one, which is what
makes verifying several guesses at once worth while on a CPU. Fewer rows are padded, which is faster
than leaving them. A small matrix is only stored by columns: the call would cost more than it gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEWEST = 4  # rows below which the blocked kernel falls back to a slower one
SMALLEST = 1 << 18  # elements of a matrix worth packing


def packable(weight: Tensor) -> bool:
    """Whether a matrix gains from blocks: a large one, float32 on a CPU with oneDNN."""
    return (
        weight.numel() >= SMALLEST
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
    )


class PackedLinear(nn.Module):
    """A linear layer whose matrix [N, M] is kept in blocks only."""

    fewest = FEWEST

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())  # noqa: SLF001
        self.bias = bias
        self.spare = weight.new_zeros(FEWEST - 1, weight.shape[1])
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self.number = next(_NUMBERS)
        _PACKED[self.number] = self

    def multiply(self, rows: Tensor) -> Tensor:
        """Rows [R, M] to [R, N]."""
        if torch.compiler.is_compiling():
            return multiply_packed(rows, self.number)
        return self.by_blocks(rows)

    def by_blocks(self, rows: Tensor) -> Tensor:
        """The same, as it is called."""
        count = rows.shape[0]
        if count < FEWEST:
            rows = torch.cat((rows, self.spare[count - 1 :]))
        product: Tensor = _multiply(rows, self.packed, self.bias, "none", [], "")
        return product if count >= FEWEST else product[:count]

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs [..., M] to [..., N]."""
        product = self.multiply(inputs.reshape(-1, self.in_features))
        return product.view(*inputs.shape[:-1], self.out_features)


# By number: a compiler would look into the blocks of a matrix that a trace is given.
_PACKED: WeakValueDictionary[int, PackedLinear] = WeakValueDictionary()
_NUMBERS = count()


@torch.library.custom_op("specflow::multiply_packed", mutates_args=())
def multiply_packed(rows: Tensor, number: int) -> Tensor:
    """Rows [R, M] by the packed layer of a number [R, N], as one operation of a trace."""
    return _PACKED[number].by_blocks(rows).contiguous()


@multiply_packed.register_fake
def _(rows: Tensor, number: int) -> Tensor:
    return rows.new_empty(rows.shape[0], _PACKED[number].out_features)


class PlainLinear(nn.Module):
    """A linear layer with the interface of a packed one, for every other device and type."""

    fewest = 1

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        wide = weight.shape[0] >= weight.shape[1]
        by_columns = wide and weight.device.type == "cpu" and weight.dtype == torch.float32
        self.weight = weight.t().contiguous().t() if by_columns else weight
        self.bias = bias

    def multiply(self, rows: Tensor) -> Tensor:
        """Rows [R, M] to [R, N]."""
        return F.linear(rows, self.weight, self.bias)

    forward = multiply


def padded(rows: Tensor, fewest: int) -> Tensor:
    """Rows [R, M] with rows of zeros after them, up to `fewest`."""
    missing = fewest - rows.shape[0]
    return F.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows


@torch.no_grad()
def fuse(linears: Sequence[nn.Linear]) -> PackedLinear | PlainLinear:
    """One layer in place of several that read the same input; they become parts of it if it can."""
    weight = (
        torch.cat([linear.weight for linear in linears]) if len(linears) > 1 else linears[0].weight
    )
    biases = [linear.bias for linear in linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    if packable(weight):
        return PackedLinear(weight, bias)
    fused = PlainLinear(weight, bias)
    if len(linears) > 1 and fused.weight.is_contiguous():  # else they stay beside it, twice there
        parts = fused.weight.split([linear.out_features for linear in linears])
        for linear, part in zip(linears, parts, strict=True):
            linear.weight = nn.Parameter(part, requires_grad=False)
    return fused


def pack(module: nn.Module) -> None:
    """Replace every plain linear layer inside a module by a packed one, where that gains."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and packable(child.weight):
                setattr(parent, name, PackedLinear(child.weight, child.bias))


_multiply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - the operation inductor emits, public in no module
