"""What speculation can gain on a machine: an estimate by roofline, each number with its formula.

A forward takes as long as its slower half: its FLOPs at the machine's peak, or its weights and KV
through the machine's memory. No kernel reaches either, so ratios say more than times; launches and
the host are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from specflow.config_sizes import Sizes
from specflow.cost import Forward, Load, Networks, StepCost, forward_loads, networks, step_cost
from specflow.machines import Machine
from specflow.memory import BYTES, Footprint, footprint, positions, size
from specflow.recipe import ResolvedRecipe

UNKNOWN = "unknown"
MODELS = ("target", "draft")


@dataclass(frozen=True)
class Row:
    """One number: as a reader sees it, how it came about, and the bare number."""

    name: str
    shown: str
    formula: str
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Timed:
    """A forward on a machine; `seconds` of one of its `times`."""

    forward: Forward
    load: Load
    seconds: float
    limit: str


@dataclass(frozen=True)
class Estimate:
    """The step of a recipe on a machine, beside plain decoding; None is not known.

    timed   every forward of the step
    plain   one position of every request, nothing drafted
    others  seconds of the other steps that a launch may take
    """

    recipe: ResolvedRecipe
    machine: Machine
    cost: StepCost
    networks: Networks
    memory: Footprint
    timed: tuple[Timed, ...] | None
    plain: Timed | None
    others: tuple[float, ...] = ()

    def seconds(self, model: str) -> float:
        """What a step spends in one of its models."""
        return sum(
            t.seconds * t.forward.times for t in self.timed or () if t.forward.model == model
        )

    @property
    def step(self) -> float | None:
        """Seconds of a step."""
        return self.seconds("draft") + self.seconds("target") if self.timed else None

    @property
    def break_even(self) -> float | None:
        """The accept length at which a step pays for itself."""
        if self.step is None or self.plain is None:
            return None
        return self.step / self.plain.seconds

    def speedup(self, accept_length: float) -> float | None:
        """How many times plain decoding's tokens a second come out at an accept length."""
        return None if self.break_even is None else accept_length / self.break_even


def estimate(recipe: ResolvedRecipe, machine: Machine, *, context: int | None = None) -> Estimate:
    """The step of a recipe on a machine, `context` tokens into every request."""
    cost, models = step_cost(recipe, context=context), networks(recipe)
    plain = Forward("target", "verify", 1, cost.batch, cost.batch)
    rate, memory = machine.flops(recipe.run.dtype), footprint(recipe)

    def timed(asked: tuple[Forward, ...]) -> tuple[Timed, ...] | None:
        loads = forward_loads(asked, models, cost.batch, cost.context)
        if loads is None:
            return None
        pairs = zip(asked, loads, strict=True)
        return tuple(_timed(forward, each, rate, machine.bandwidth) for forward, each in pairs)

    both = timed((*cost.forwards, plain))
    if both is None:
        return Estimate(recipe, machine, cost, models, memory, None, None)
    steps = [timed(each.forwards) or () for each in cost.others]
    others = tuple(sum(t.seconds * t.forward.times for t in each) for each in steps)
    return Estimate(recipe, machine, cost, models, memory, both[:-1], both[-1], others)


def _timed(forward: Forward, load: Load, rate: float, bandwidth: float) -> Timed:
    works, moves = load.flops / rate, load.bytes / bandwidth
    return Timed(forward, load, max(works, moves), "FLOPs" if works > moves else "bytes")


def rows(e: Estimate, accept_length: float | None = None) -> list[Row]:
    """Everything that is known, in the order of a reader's questions."""
    found = [*_setting(e), *_sizes(e), *_step(e), *_gain(e, accept_length), *_memory(e)]
    return [*found, *(Row(UNKNOWN, "", reason) for reason in e.cost.unknown)]


def as_json(e: Estimate, accept_length: float | None = None) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "recipe": e.recipe.name,
        "fingerprint": e.recipe.fingerprint,
        "estimate": "by roofline: weights and KV alone, no launches, no host",
        "machine": asdict(e.machine),
        "dtype": e.recipe.run.dtype,
        "batch": e.cost.batch,
        "context": e.cost.context,
        "variant": e.cost.variant,
        "verified_positions": list(e.cost.verified_positions),
        "forwards": [asdict(forward) for forward in e.cost.forwards],
        "launches": e.cost.launches,
        "rows": {
            row.name: {"value": row.value, "unit": row.unit, "formula": row.formula}
            for row in rows(e, accept_length)
            if row.unit
        },
        "unknown": list(e.cost.unknown),
    }


def _setting(e: Estimate) -> Iterator[Row]:
    m, run, cost = e.machine, e.recipe.run, e.cost
    at = f"{_si(m.flops(run.dtype))}FLOP/s in {run.dtype}, {_si(m.bandwidth)}B/s ({m.source})"
    yield Row("machine", m.name, at)
    device = e.recipe.ledger["run.device"]
    yield Row("device", str(device.value), f"run.device, {device.origin.value}: {device.because}")
    yield Row("batch", str(cost.batch), "run.batch_size", cost.batch, "requests")
    half = f"half of run.max_length {run.max_length}"
    how = half if cost.context == run.max_length // 2 else "--context"
    yield Row(
        "context", str(cost.context), f"tokens into every request: {how}", cost.context, "tokens"
    )
    least, most = cost.verified_positions
    said = str(most) if least == most else f"{least} to {most}"
    counted = f"of a request; counted is the step `{cost.variant}`"
    yield Row("verified positions", said, counted)


def _sizes(e: Estimate) -> Iterator[Row]:
    width, memory = BYTES[e.recipe.run.dtype], e.memory
    for model in MODELS:
        sizes = e.networks.of(model)
        if sizes is not None:
            value = sizes.total * width
            formula = f"{sizes.total:,} weights x {width} bytes of {e.recipe.run.dtype} (run.dtype)"
            yield Row(f"{model} weights", size(value), formula, value, "bytes")
            stored = sizes.stored
            if stored is not None and stored.total != value:
                formula = f"in {stored.dtypes}, as an engine would keep them; not counted below"
                name = f"{model} weights, as stored"
                yield Row(name, size(stored.total), formula, stored.total, "bytes")
    if memory.kv_a_token is None:
        return
    kept = [f"{model} {_kept(each)}" for model in MODELS if (each := e.networks.of(model))]
    formula = f"({' + '.join(kept)}) x {width} bytes"
    yield Row("KV a token", size(memory.kv_a_token), formula, memory.kv_a_token, "bytes")
    share = memory.draft_kv_a_token
    if share:
        yield Row("KV a token, draft", size(share), "its share of it", share, "bytes")


def _kept(sizes: Sizes) -> str:
    """How many layers keep how many numbers of a position."""
    widths = Counter(each.keeps for each in sizes.layers)
    return " + ".join(f"{_many(n, 'layer')} x {width:,}" for width, n in widths.items())


def _step(e: Estimate) -> Iterator[Row]:
    yield Row(
        "draft forwards",
        str(e.cost.draft_forwards),
        "through the draft's layers, those that the commit extends by included",
        e.cost.draft_forwards,
        "forwards",
    )
    yield Row("launches", str(e.cost.launches), "outside the forwards", e.cost.launches, "launches")
    if e.timed is None or e.plain is None or e.step is None:
        return
    for timed in e.timed:
        yield _forward(timed, e)
    yield from _experts(e)
    if e.cost.step_bytes is not None and e.cost.step_flops is not None:
        read, work = e.cost.step_bytes, e.cost.step_flops
        yield Row(
            "bytes of a step", size(read), "weights and KV read, forwards summed", read, "bytes"
        )
        yield Row("FLOPs of a step", _si(work).strip(), "forwards summed", work, "FLOPs")
    draft, verify = e.seconds("draft"), e.seconds("target")
    yield Row("T_draft", _time(draft), "draft forwards summed", draft, "seconds")
    yield Row("T_verify", _time(verify), "the target's forward", verify, "seconds")
    plain = e.plain
    yield Row("T_plain", _time(plain.seconds), _roof(plain, e), plain.seconds, "seconds")
    formula = f"T_draft + T_verify = {_time(draft)} + {_time(verify)}"
    yield Row("T_step", _time(e.step), formula, e.step, "seconds")


def _forward(timed: Timed, e: Estimate) -> Row:
    """One op of the step: what it takes, and which half of it is the slower."""
    forward = timed.forward
    times = f"{forward.times} x " if forward.times > 1 else ""
    name = f"{forward.model} {forward.kind}, {_many(forward.rows or forward.outs, 'row')}"
    shown = f"{times}{_time(timed.seconds)}"
    return Row(name, shown, _roof(timed, e), timed.seconds * forward.times, "seconds")


def _experts(e: Estimate) -> Iterator[Row]:
    """How many experts of a layer the target reads, for one position and for all verified."""
    sizes = e.networks.of("target")
    if sizes is None or not sizes.routed:
        return
    count, chosen = sizes.experts
    asked = [f.rows for f in e.cost.forwards if f.model == "target"]
    for rows_in in dict.fromkeys((e.cost.batch, *asked)):
        value = count * sizes.touched(rows_in)
        formula = f"of {count}, expected: {count} (1 - (1 - {chosen}/{count})^{rows_in})"
        yield Row(
            f"experts read, {_many(rows_in, 'row')}", f"{value:.1f}", formula, value, "experts"
        )


def _roof(timed: Timed, e: Estimate) -> str:
    """The roofline with its numbers put in."""
    rate, load = e.machine.flops(e.recipe.run.dtype), timed.load
    return (
        f"max({_si(load.flops)}FLOP / {_si(rate)}FLOP/s, "
        f"{_si(load.bytes)}B / {_si(e.machine.bandwidth)}B/s), by {timed.limit}"
    )


def _gain(e: Estimate, accept_length: float | None) -> Iterator[Row]:
    if e.break_even is None or e.step is None or e.plain is None:
        return
    formula = f"T_step / T_plain = {_time(e.step)} / {_time(e.plain.seconds)}"
    yield Row("break-even accept length", f"{e.break_even:.2f}", formula, e.break_even, "tokens")
    for captured, seconds in zip(e.cost.others, e.others, strict=True):
        name = f"break-even of `{captured.name}`" + (", fewest" if captured.fewest else "")
        verified = f"verifies {_many(captured.width, 'position')}"
        value = seconds / e.plain.seconds
        formula = f"{verified}: {_time(seconds)} / {_time(e.plain.seconds)}"
        yield Row(name, f"{value:.2f}", formula, value, "tokens")
    for tau in [accept_length] if accept_length is not None else _lengths(e.cost.width):
        gain = tau / e.break_even
        formula = f"estimate: {tau:g} / {e.break_even:.2f}"
        yield Row(f"speedup at accept length {tau:g}", f"{gain:.2f}x", formula, gain, "x")


def _lengths(most: int) -> list[float]:
    """Accept lengths to show where none is given: nothing accepted, half, everything."""
    return list(dict.fromkeys((1.0, (1 + most) / 2, float(most))))


def _memory(e: Estimate) -> Iterator[Row]:
    memory, batch, recipe = e.memory, e.cost.batch, e.recipe
    request, total = memory.a_request, memory.total(batch)
    if memory.weights is None or request is None or total is None:
        return
    kept = f"KV {size(memory.kv_a_request or 0)} of {positions(recipe)} positions"
    draft = f", the draft's {size(memory.draft_kv)} of it" if memory.draft_kv else ""
    logits = f" + logits {size(memory.logits)}"
    yield Row("memory a request", size(request), f"{kept}{draft}{logits}", request, "bytes")
    formula = f"weights {size(memory.weights)} + {batch} x {size(request)}"
    yield Row("memory", size(total), formula, total, "bytes")
    has = e.machine.memory
    largest = memory.largest_batch(has) or 0
    formula = f"({size(has)} of {e.machine.name} - {size(memory.weights)}) / {size(request)}"
    if memory.weights > has:
        formula = (
            f"the weights alone are {memory.weights / has:.1f} times {e.machine.name}'s memory"
        )
    yield Row("largest batch", str(largest), formula, largest, "requests")
    yield from _on_engines(memory, has)


def _on_engines(memory: Footprint, has: int) -> Iterator[Row]:
    """What an engine would keep, where that is not what specflow's own does."""
    other = memory.on_engines
    if other == memory or other.a_request is None or other.weights is None:
        return
    if other.kv_a_request != memory.kv_a_request:
        formula = f"KV {size(other.kv_a_request or 0)} + logits, where windows alone are kept; "
        formula += "specflow's own pool keeps all positions"
        name = "memory a request, windows alone"
        yield Row(name, size(other.a_request), formula, other.a_request, "bytes")
    largest = other.largest_batch(has) or 0
    formula = f"one of these machines: ({size(has)} - {size(other.weights)}) / "
    formula += size(other.a_request)
    yield Row("largest batch, on an engine", str(largest), formula, largest, "requests")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _time(seconds: float) -> str:
    """Seconds as a reader says them."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _si(number: float) -> str:
    """A number with the letter of its scale, and room for a unit."""
    for letter, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.4g} {letter}"
    return f"{number:.4g} "
