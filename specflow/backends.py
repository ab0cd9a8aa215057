"""What each attention backend can do, as data that rules read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Capability:
    """One row: where a backend runs, and what it reads.

    devices     where it runs
    dtypes      of queries, keys and values
    head_sizes  widths of a head; empty is any up to `widest`
    trees       a query reads the new tokens of its own path, not all before it
    window      sliding windows; softcap, sinks likewise
    latents     latent attention without expanding it
    by_length   reads a row as far as it is long, however far a step was captured to reach
    package     the module it needs, by the name it is imported by; empty is none
    """

    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    head_sizes: tuple[int, ...] = ()
    widest: int = 0
    trees: bool = True
    window: bool = True
    softcap: bool = True
    sinks: bool = True
    latents: bool = True
    by_length: bool = True
    package: str = ""


CAPABILITIES = {
    # It reads all that a mask spans: a step that reaches further costs more.
    "sdpa": Capability(("cpu", "cuda"), ("float32", *HALVES), by_length=False),
    # Heads are padded to a power of two; its registers are proven up to this width.
    "triton": Capability(("cuda",), ("float32", *HALVES), widest=512, package="triton"),
    # Its mask is ours, and its manual names these widths.
    "flashinfer": Capability(
        ("cuda",), HALVES, (64, 128, 256), sinks=False, latents=False, package="flashinfer"
    ),
}
EXTRA = "specflow[gpu]"  # brings what they need


@dataclass(frozen=True)
class Asked:
    """What a recipe asks of a backend; a width of 0 is not known.

    draft_head_size  of the heads of a draft, which the same backend computes
    """

    dtype: str
    head_size: int
    tree: bool
    window: bool
    softcap: bool
    sinks: bool
    latents: bool
    draft_head_size: int = 0


def default_backend(device: str) -> str:
    """Who computes attention where a recipe does not say."""
    return "triton" if device == "cuda" else "sdpa"


def lacking(row: Capability, asked: Asked) -> Iterator[str]:
    """What a backend has not, as the end of `it has no ..`."""
    if asked.dtype not in row.dtypes:
        yield asked.dtype
    if asked.tree and not row.trees:
        yield "trees"
    named = {each: (getattr(asked, each), getattr(row, each)) for each in ("window", "softcap")}
    yield from (each for each, (wanted, there) in named.items() if wanted and not there)
    if asked.sinks and not row.sinks:
        yield "attention sinks"
    if asked.latents and not row.latents:
        yield "latent attention"
    widths = (0 if asked.latents else asked.head_size, asked.draft_head_size)
    for width in dict.fromkeys(each for each in widths if each):
        fits = not row.head_sizes or width in row.head_sizes
        if not fits or (row.widest and width > row.widest):
            yield f"heads of {width}"


def installed(row: Capability) -> bool:
    """Whether what a backend needs is here."""
    return not row.package or find_spec(row.package) is not None
