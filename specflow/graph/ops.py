"""The ops a step is made of: one row says where an op runs and how a line of Python spells it.

domain   model (a forward), vocab (a reduction over V), rows (one program a request),
         kv (move slots), host, shape (lay tensors out)
spelling the right-hand side; {0} {1} are the operands, {model} the model of the phase
kernel   the function of `specflow.kernels` that the line calls, where it calls one
row      how one program a request does it, operands in registers: the call of a Triton function, or
         arithmetic that is the same there; `lane` numbers its lanes, {n0} is the extent of the
         first operand
arity    operands, results
view     it launches nothing
launches at least so many on a device, where torch does it in several
protocol of `specflow.models.protocols`, for ops on the host: whom they ask
table    for ops with a row form that look a number up: the tensor of the model, by name
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class OpSpec:
    """One row of OPS."""

    domain: str
    spelling: str
    arity: tuple[int, int]
    kernel: str = ""
    row: str = ""
    view: bool = False
    launches: int = 1
    protocol: str = ""
    table: str = ""


def _kernel(name: str, inputs: int, outputs: int, domain: str, row: str = "") -> OpSpec:
    """An op that calls the kernel of its own name; `row` is what its row function takes besides."""
    holes = ", ".join(f"{{{i}}}" for i in range(inputs))
    call = f"{name}({holes}{row})" if domain == "rows" else ""
    return OpSpec(domain, f"{name}({holes})", (inputs, outputs), name, call)


def _host(call: str, inputs: int, outputs: int, protocol: str) -> OpSpec:
    """An op that asks the drafter on the host."""
    return OpSpec("host", f"{{model}}.{call}", (inputs, outputs), protocol=protocol)


def _levels() -> Iterator[tuple[str, OpSpec]]:
    """A level of a tree: with hidden states, with what branches see, by a draft's own ids."""
    beside = {
        "": ("", 0, 0),
        "_hidden": (", hidden={2}", 1, 1),
        "_sees": (", sees={2}, level={3}", 2, 1),
    }
    beside["_hidden_sees"] = (", hidden={2}, sees={3}, level={4}", 3, 2)
    for kind, (more, inputs, outputs) in beside.items():
        for mapped, table in (("", ""), ("_mapped", ", table={model}.to_target")):
            spelling = f"grow_level({{0}}, {{1}}{table}{more})"
            arity = (2 + inputs, 5 + outputs)
            yield f"level{kind}{mapped}", OpSpec("vocab", spelling, arity, "grow_level")


OPS: dict[str, OpSpec] = {
    # forwards
    "decode": OpSpec("model", "{model}.decode({0}, {1})", (2, 1)),
    "verify": OpSpec("model", "{model}.verify({0}, {1})", (2, 1)),
    "verify_tree": OpSpec("model", "{model}.verify_tree({0}, {1}, {2}, {3})", (4, 1)),
    "verify_hidden": OpSpec("model", "{model}.verify_hidden({0}, {1})", (2, 2)),
    "verify_taps": OpSpec("model", "{model}.verify_taps({0}, {1}, {2})", (3, 2)),
    "verify_tree_hidden": OpSpec("model", "{model}.verify_tree_hidden({0}, {1}, {2}, {3})", (4, 2)),
    "verify_tree_taps": OpSpec(
        "model", "{model}.verify_tree_taps({0}, {1}, {2}, {3}, {4})", (5, 2)
    ),
    "decode_hidden": OpSpec("model", "{model}.decode_hidden({0}, {1}, {2})", (3, 2)),
    "grow": OpSpec("model", "{model}.grow({0}, {1}, {2}, {3})", (4, 1)),
    "grow_hidden": OpSpec("model", "{model}.grow_hidden({0}, {1}, {2}, {3}, {4})", (5, 2)),
    "grow_frozen": OpSpec("model", "{model}.grow_frozen({0}, {1}, {2})", (3, 2)),
    "extend": OpSpec("model", "{model}.extend({0}, {1}, {2})", (3, 1)),
    "extend_hidden": OpSpec("model", "{model}.extend_hidden({0}, {1}, {2}, {3})", (4, 2)),
    "extend_layer": OpSpec("model", "{model}.extend_layer({0}, {1}, {2}, {3}, {4})", (5, 1)),
    "verify_packed_taps": OpSpec("model", "{model}.verify_packed_taps({0}, {1}, {2}, {3})", (4, 2)),
    # a whole block
    "denoise": OpSpec("model", "{model}.denoise({0}, {1})", (2, 1)),
    "score": OpSpec("model", "{model}.score({0})", (1, 1)),
    "markov": OpSpec("model", "{model}.markov({0}, {1}[:, {2}])", (3, 1)),
    "markov_memory": OpSpec("model", "{model}.markov_memory({0}, {1}[:, {2}], {3})", (4, 2)),
    "no_memory": OpSpec("model", "{model}.no_memory({0})", (1, 1)),
    "trust": OpSpec("model", "{model}.trust({0}, {1}, {2})", (3, 1)),
    "inject": OpSpec("model", "{model}.inject({0}, {1}, {2})", (3, 0)),
    "mask_block": _kernel("mask_block", 3, 1, "shape"),
    "later": OpSpec("shape", "{0}[:, 1:]", (1, 1), view=True),
    "corrected": OpSpec("vocab", "{0}[:, {1}] + {2}", (3, 1)),
    # how much of it is verified
    "survivals": _kernel("survivals", 2, 1, "shape"),
    "allocate": _kernel("allocate", 2, 1, "shape"),
    "pack": _kernel("pack", 3, 1, "shape"),
    "blank": _kernel("blank", 2, 1, "vocab"),
    "cap": _kernel("cap", 2, 1, "rows"),
    # a reduced vocabulary
    "target_ids": OpSpec(
        "shape",
        "{model}.target_ids({0})",
        (1, 1),
        row="look_up({0}, to_target_ptr)",
        table="to_target",
    ),
    "target_law": OpSpec("shape", "{model}.target_law({0})", (1, 1), launches=2),
    # reductions over the vocabulary
    "likeliest": _kernel("likeliest", 2, 2, "vocab"),
    "best_token": OpSpec("vocab", "best_token({0})", (1, 1), "best_token", "best_of_parts"),
    # the same of a row of a block and its bias, as a device runs it
    "best_sum": OpSpec(
        "vocab", "best_token({0}[:, {1}] + {2})", (3, 1), "best_token", "best_of_parts"
    ),
    "law_of": _kernel("law_of", 2, 1, "vocab"),
    # a row's law and a draw from it, as a device runs them; its logits may be a sum
    "propose": OpSpec("vocab", "propose({0}, {1}, {2}[:, {3}])", (4, 2), "propose"),
    "propose_sum": OpSpec(
        "vocab", "propose({0}[:, {1}], {3}, {4}[:, {5}], bias={2})", (6, 2), "propose"
    ),
    # It sorts whole rows, for which torch has the device's own radix sort.
    "filter_law": OpSpec(
        "vocab", "filter_law({0}, {1}, {2}, {3})", (4, 1), "filter_law", launches=26
    ),
    "pick_at": OpSpec("vocab", "pick({0}, {1}[:, {2}])", (3, 1), "pick"),
    "pick_all": OpSpec("vocab", "pick({0}, {1})", (2, 1), "pick"),
    "pick_one": OpSpec("vocab", "pick({0}[:, 0], {1}[:, 0])", (2, 1), "pick"),
    "accept_sampled": _kernel("accept_sampled", 6, 3, "vocab"),
    "accept_rejection": _kernel("accept_rejection", 4, 2, "vocab"),
    "accept_block": _kernel("accept_block", 4, 2, "vocab"),
    # a request's own coins
    "verify_coins": _kernel("verify_coins", 3, 1, "shape"),
    "draft_coins": _kernel("draft_coins", 3, 1, "shape"),
    # one program a request
    "accept_chain": _kernel("accept_chain", 2, 1, "rows", ", lane, {n0}"),
    "accept_tree": _kernel("accept_tree", 3, 2, "rows", ", lane, {n0}"),
    "take_path": _kernel("take_path", 2, 1, "rows", ", lane"),
    "mask_rejected": _kernel("mask_rejected", 2, 1, "rows", ", lane"),
    "take_last": _kernel("take_last", 2, 1, "rows", ", lane"),
    "take_previous": _kernel("take_previous", 3, 1, "rows", ", lane"),
    # Its constant is the row's own extent in a kernel, which needs the tokens' extent instead.
    "widen": OpSpec("rows", "widen({0}, {1})", (2, 1), "widen", "widen({0}, lane, {n0})"),
    "first": OpSpec("rows", "{0}[:, 0]", (1, 1), row="first({0}, lane)", view=True),
    "few": OpSpec("shape", "{0}[:, : {1} - 1].contiguous()", (2, 1), row="few({0}, {1}, lane)"),
    "hold": OpSpec("rows", "{0}.clone()", (1, 1), row="hold({0})"),
    # slots of the KV
    "move_accepted": OpSpec("kv", "{model}.move_accepted({0}, {1})", (2, 0)),
    # the tree as arrays
    "tree_arrays": _kernel("tree_arrays", 1, 2, "shape"),
    "chain_parents": OpSpec(
        "shape", "chain_parents({0})", (1, 1), "chain_parents", "chain_parents({0}, lane)"
    ),
    # a tree while it grows
    "ranks": _kernel("ranks", 1, 1, "shape"),
    "roots": _kernel("roots", 2, 1, "shape"),
    "grow_tree": _kernel("grow_tree", 2, 3, "shape"),
    "follow": _kernel("follow", 2, 3, "shape"),
    "branch": _kernel("branch", 3, 1, "shape"),
    "select_tree": _kernel("select_tree", 4, 2, "shape"),
    # the same as a device runs it
    "plant": _kernel("plant", 2, 2, "shape"),
    **dict(_levels()),
    "choose_tree": _kernel("choose_tree", 5, 5, "shape"),
    "take_rows": _kernel("take_rows", 2, 1, "shape"),
    "take_row": _kernel("take_row", 2, 1, "shape"),
    # lines that only lay tensors out
    "slide": _kernel("slide", 3, 1, "shape"),
    "rotate": _kernel("rotate", 3, 1, "shape"),
    "after_recent": OpSpec("shape", "torch.cat([{0}, {1}], dim=1)", (2, 1)),
    "back": OpSpec("shape", "{0} - {1}", (2, 1), row="{0} - {1}"),
    "read": OpSpec("shape", "{0}", (1, 1), view=True),
    "standing": OpSpec("shape", "{0} + {1} - 1", (2, 1), row="{0} + {1} - 1"),
    "spread": OpSpec("shape", "{0}[:, None].expand(-1, {1}, -1)", (2, 1), view=True),
    "beyond": OpSpec("shape", "{0} + 1", (1, 1), row="{0} + 1"),
    "window": OpSpec(
        "shape", "torch.cat([{0}[:, None], {1}], dim=1)", (2, 1), row="window({0}, {1}, lane)"
    ),
    "known_window": OpSpec(
        "shape",
        "torch.cat([{0}[:, None], {1}.clamp(min=0)], dim=1)",
        (2, 1),
        row="known_window({0}, {1}, lane)",
    ),
    "pair": OpSpec("shape", "torch.stack([{0}, {1}], dim=1)", (2, 1), row="pair({0}, {1}, lane)"),
    "column": OpSpec("shape", "{0}[:, None]", (1, 1), view=True),
    "stack": OpSpec("shape", "torch.stack({0}, dim=1)", (1, 1), row="stack"),
    "before": OpSpec("shape", "{0} - 1", (1, 1), row="{0} - 1"),
    "after": OpSpec("shape", "{0} + {1}", (2, 1), row="{0} + {1}"),
    # on the host, between captured regions
    "propose_tree": _host("propose_tree({0}, {1})", 2, 1, "Lookup"),
    "propose_chain": _host("propose_chain({0})", 1, 1, "Lookup"),
    "insert": _host("insert({0})", 1, 0, "Lookup"),
    "steps": _host("steps(len({0}))", 1, 1, "Controller"),
    "observe": _host("observe({0})", 1, 0, "Controller"),
    "plan": _host("plan(len({0}))", 1, 1, "Planner"),
    "expect": _host("expect({0})", 1, 0, "Planner"),
    "publish": _host("publish({0})", 1, 0, "Planner"),
    "look_back": _host("look_back({0}, {1})", 2, 0, "Planner"),
}

# What many programs of a row find together.
BEST = frozenset({"best_token", "best_sum"})
