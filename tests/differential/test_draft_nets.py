"""Draft networks out of published files: what they compute, and what is said of broken ones.

The references here read the published tensors by their published names, and attend without a pool.
"""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from specflow import facts
from specflow.errors import RuntimeFault
from specflow.formats import TAPS as READS_TAPS
from specflow.formats import named
from specflow.models.lm import LanguageModel
from specflow.models.nets import DraftModel
from specflow.models.weights import load_draft
from tests.differential.test_target_tree import arrays, lineage
from tests.differential.tiny_drafts import (
    COVERED,
    LLAMA,
    PAIRS,
    TAPS,
    VOCABULARY,
    WIDTH,
    Pair,
    Shelf,
    edit,
    edit_config,
)
from tests.differential.tiny_models import VOCABULARY as WORDS
from tests.differential.tiny_models import WINDOW, build

NETS = [name for name in PAIRS if not name.startswith(("assistant", "standalone", "eagle3_six"))]
LENGTH = 13  # rows: more than the sliding window
# float32 through one layer; sums in another order, logits of a few units.
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("drafts"))


def open_draft(pair: Pair, target: LanguageModel) -> DraftModel:
    """As a drafter opens it: facts of both, then the weights."""
    net = facts.describe_draft(facts.read_folder(pair.target), draft_of(pair))
    if net.problem is not None:  # told by headers, before any weight is read
        assert net.problem.kind == "misfit"
        raise RuntimeFault(net.problem.message)
    home = facts.read_folder(pair.home)
    return load_draft(home.weights, named(net.format), dict(home.config), target.adapter)


def draft_of(pair: Pair) -> facts.ModelFacts | None:
    return facts.read_folder(pair.draft) if pair.draft else None


# -- what they compute -----------------------------------------------------------------------------


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def turned(x: Tensor, base: float = LLAMA["rope_theta"]) -> Tensor:
    """RoPE over rows 0, 1, .. of heads [P, H, E]."""
    half = x.shape[-1] // 2
    angle = torch.arange(len(x))[:, None] * base ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def attended(x: Tensor, w: dict[str, Tensor], at: str) -> Tensor:
    """Causal attention of rows [P, I], the weights under a prefix."""
    heads, kv, width = (
        LLAMA[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    q, k, v = (F.linear(x, w[f"{at}.{n}_proj.weight"]).view(len(x), -1, width) for n in "qkv")
    q, k = turned(q), turned(k).repeat_interleave(heads // kv, dim=1)
    scores = torch.einsum("qhe,khe->hqk", q, k) * width**-0.5
    scores = scores.masked_fill(~torch.ones(len(x), len(x)).tril().bool(), float("-inf"))
    mixed = torch.einsum("hqk,khe->qhe", scores.softmax(-1), v.repeat_interleave(heads // kv, 1))
    return F.linear(mixed.flatten(1), w[f"{at}.o_proj.weight"])


def fed(x: Tensor, w: dict[str, Tensor], at: str) -> Tensor:
    gate, up = (F.linear(x, w[f"{at}.{n}_proj.weight"]) for n in ("gate", "up"))
    return F.linear(F.silu(gate) * up, w[f"{at}.down_proj.weight"])


@dataclass
class Reference:
    """One network, row by row: `enter` what the target shows, then states of its own."""

    pair: Pair
    weights: dict[str, Tensor]

    def enter(self, shown: Tensor) -> Tensor:
        return shown

    def rows(self, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [P, V] and states carried on [P, D] of ids [P] beside states [P, D]."""
        raise NotImplementedError

    def embedded(self, ids: Tensor) -> Tensor:
        own = self.weights.get("embed_tokens.weight")
        return F.embedding(
            ids, self.pair.stock.get_input_embeddings().weight if own is None else own
        )

    def headed(self, x: Tensor) -> Tensor:
        own = self.weights.get("lm_head.weight")
        return F.linear(x, self.pair.stock.get_output_embeddings().weight if own is None else own)


class Eagle(Reference):
    """Embedding first, no norm before attention, the raw output to the target's head (§7.1)."""

    def rows(self, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        w = {name.removeprefix("model."): tensor for name, tensor in self.weights.items()}
        both = torch.cat([self.embedded(ids), states], dim=-1)
        x = F.linear(both, w["fc.weight"], w.get("fc.bias"))
        x = x + attended(x, w, "layers.0.self_attn")
        after = normed(x, w["layers.0.post_attention_layernorm.weight"], LLAMA["rms_norm_eps"])
        x = x + fed(after, w, "layers.0.mlp")
        return self.headed(x), x


class Eagle3(Reference):
    """Attention reads embedding and state, both normed; the state is the residual (§6.2)."""

    def enter(self, shown: Tensor) -> Tensor:
        return F.linear(shown, self.weights["fc.weight"])

    def rows(self, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        w, said, eps = self.weights, self.pair.said(), LLAMA["rms_norm_eps"]
        at = "midlayer" if "midlayer.hidden_norm.weight" in w else "layers.0"
        inner = normed(states, w[f"{at}.hidden_norm.weight"], eps)
        words = normed(self.embedded(ids), w[f"{at}.input_layernorm.weight"], eps)
        residual = inner if said.get("norm_before_residual") else states
        x = residual + attended(torch.cat([words, inner], dim=-1), w, f"{at}.self_attn")
        x = x + fed(normed(x, w[f"{at}.post_attention_layernorm.weight"], eps), w, f"{at}.mlp")
        last = normed(x, w["norm.weight"], eps)
        return self.headed(last), last if said.get("norm_output") else x


@dataclass
class Mtp(Reference):
    """Two norms, a projection, a layer of the library's own, a norm, the target's head (§7.2).

    names  of the two norms, the projection and the last norm
    """

    prefix: str
    names: tuple[str, str, str, str]
    index: int = 0
    hidden_first: bool = False
    zero_first: bool = False
    centred: bool = False

    def rows(self, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        model = self.pair.stock.model
        first, second, projection, last = (
            self.weights[f"{self.prefix}{name}.weight"] for name in self.names
        )
        one, eps = 1.0 if self.centred else 0.0, self.pair.stock.config.rms_norm_eps
        words = self.embedded(ids)
        if self.zero_first:
            words = torch.cat([torch.zeros_like(words[:1]), words[1:]])
        halves = [normed(words, first + one, eps), normed(states, second + one, eps)]
        z = F.linear(torch.cat(halves[::-1] if self.hidden_first else halves, dim=-1), projection)
        layer = model.layers[self.pair.layers + self.index]
        at, kinds = torch.arange(len(ids))[None], getattr(model.config, "layer_types", None)
        kind = kinds[self.pair.layers + self.index] if kinds else ""
        by_kind = (kind,) if kind == "sliding_attention" else ()
        turn = model.rotary_emb(z[None], at, *by_kind)
        back = at[0][:, None] - at[0]
        sees = (back >= 0) & ((back < WINDOW) | (kind != "sliding_attention"))
        mask = torch.zeros(len(ids), len(ids)).masked_fill(~sees, torch.finfo(z.dtype).min)
        out = layer(
            z[None], position_embeddings=turn, attention_mask=mask[None, None], position_ids=at
        )
        x = normed(out[0], last + one, eps)
        return self.headed(x), x


DEEPSEEK = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
MIMO_7B = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
QWEN = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
FLASH = ("enorm", "hnorm", "eh_proj", "final_layernorm")
BACKWARDS: dict[str, Any] = {"hidden_first": True, "zero_first": True}
MTPS: dict[str, Callable[[int], tuple[str, tuple[str, str, str, str], dict[str, Any]]]] = {
    "mtp_deepseek": lambda _: ("model.layers.2.", DEEPSEEK, {}),
    "mtp_glm4_moe": lambda _: ("model.layers.2.", DEEPSEEK, {}),
    "mtp_layers": lambda index: (f"model.mtp.layers.{index}.", FLASH, {"index": index}),
    "mtp_qwen3_next": lambda _: ("mtp.", QWEN, {"centred": True}),
    "mtp_mimo": lambda _: ("model.mtp_layers.0.", MIMO_7B, BACKWARDS),
    "mtp_speculators": lambda _: ("mtp_layers.0.", MIMO_7B, BACKWARDS),
}


def reference(name: str, pair: Pair, index: int = 0) -> Reference:
    weights = pair.tensors()
    if name.startswith("eagle3"):
        return Eagle3(pair, weights)
    if name.startswith("eagle"):
        return Eagle(pair, weights)
    prefix, names, flags = MTPS[name](index)
    # A bundled draft lies beside the target's own embedding and head, which are not its own.
    own = {n: t for n, t in weights.items() if n.startswith(prefix)}
    pair.stock.set_attn_implementation("eager")
    return Mtp(pair, own, prefix, names, **flags)


@torch.inference_mode()
@pytest.mark.parametrize("name", NETS)
def test_a_network_computes_what_is_published(name: str, shelf: Shelf) -> None:
    """Rows from the target in uneven chunks, then a row of its own: logits and states of each."""
    pair, target = shelf[name], shelf.target(name)
    draft = open_draft(pair, target)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (LENGTH,), generator=generator)
    width = WIDTH * (len(TAPS) if draft.net.net.reads == READS_TAPS else 1)
    shown = torch.randn(1, LENGTH, width, generator=generator)
    for index in range(draft.net.sizes.steps):
        pool = draft.pool(1, LENGTH + 1)
        window = draft.window(pool, LENGTH + 1)
        made = reference(name, pair, index)
        states = made.enter(shown[0])
        logits, carried = made.rows(ids, states)
        for begin, end in ((0, 1), (1, 6), (6, LENGTH)):
            found, state = window.feed(ids[begin:end], shown[:, begin:end], begin, index)
            torch.testing.assert_close(found[0], logits[end - 1], **CLOSE)
            torch.testing.assert_close(state[0], carried[end - 1], **CLOSE)
        if draft.net.net.own_layers:
            continue  # its steps never go on from a state of their own
        guess = logits[-1:].argmax(-1)
        found, state = window.decode_hidden(guess, state, torch.tensor([LENGTH]))
        logits, carried = made.rows(torch.cat([ids, guess]), torch.cat([states, carried[-1:]]))
        torch.testing.assert_close(found[0], logits[-1], **CLOSE)
        torch.testing.assert_close(state[0], carried[-1], **CLOSE)


@pytest.mark.parametrize("name", NETS)
def test_every_tensor_of_a_draft_changes_what_it_says(name: str, shelf: Shelf) -> None:
    """What is loaded is used: each weight moves the logits of some layer, or is known not to."""
    target = shelf.target(name)
    draft = open_draft(shelf[name], target)
    net = draft.net
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(VOCABULARY, (1, LENGTH), generator=generator)
    hidden = torch.randn(1, LENGTH, net.sizes.reads, generator=generator)

    @torch.inference_mode()
    def said() -> Tensor:
        logits = []
        for index in range(net.sizes.steps):
            window = draft.window(draft.pool(1, LENGTH), LENGTH)
            logits += [window.feed(ids[0], hidden, 0, index)[0]]
        return torch.cat(logits)

    before, still = said(), []
    for key, weight in net.named_parameters():
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.copy_(torch.randn_like(weight))
        if torch.equal(said(), before):
            still.append(key)
        with torch.no_grad():
            weight.copy_(kept)
    assert still == []


def test_a_map_is_applied_once(shelf: Shelf) -> None:
    """TV-14: offsets, as published; an id of the draft means the id that its row of the head is."""
    pair = shelf["eagle3"]
    draft = open_draft(pair, shelf.target("eagle3"))
    window = draft.window(draft.pool(1, 4), 4)
    assert draft.to_target.tolist() == list(COVERED)
    assert window.target_ids(torch.tensor([[0, 3], [15, 4]])).tolist() == [[0, 4], [23, 6]]
    law = torch.rand(2, 3, len(COVERED)) + 0.1
    whole = window.target_law(law)
    assert torch.equal(whole[..., list(COVERED)], law)
    assert (whole != 0).sum() == law.numel()
    assert window.target_ids(window.target_ids(torch.tensor([3]))).tolist() != [4]


def test_a_map_of_the_vector() -> None:
    """TV-14's own numbers."""
    assert (torch.arange(4) + torch.tensor([0, 2, 2, 5])).tolist() == [0, 3, 4, 8]


# -- broken files ----------------------------------------------------------------------------------


def copied(pair: Pair, root: Path) -> Pair:
    """A pair that may be broken."""
    target = shutil.copytree(pair.target, root / "target")
    draft = shutil.copytree(pair.draft, root / "draft") if pair.draft else None
    return Pair(pair.algorithm, target, draft, pair.stock, pair.layers)


def drop(pattern: str) -> Callable[[dict[str, Tensor]], None]:
    def change(weights: dict[str, Tensor]) -> None:
        found = [name for name in weights if re.fullmatch(pattern, name)]
        assert found
        for name in found:
            del weights[name]

    return change


def put(name: str, *shape: int) -> Callable[[dict[str, Tensor]], None]:
    def change(weights: dict[str, Tensor]) -> None:
        weights[name] = torch.zeros(*shape)

    return change


def poison(name: str) -> Callable[[dict[str, Tensor]], None]:
    def change(weights: dict[str, Tensor]) -> None:
        weights[name][0] = float("nan")

    return change


EXPERT = r"model\.layers\.2\.mlp\.experts\.{}\..+"
BROKEN: dict[str, tuple[str, Callable[[dict[str, Tensor]], None], str]] = {
    "missing": ("eagle", drop(r"layers\.0\.mlp\.up_proj\.weight"),
                r"lacks `layers\.0\.mlp\.up_proj\.weight`"),
    "missing norm": ("eagle3", drop(r"norm\.weight"), r"lacks `norm\.weight`"),
    "missing bundled": ("mtp_deepseek", drop(r"model\.layers\.2\.hnorm\.weight"),
                        r"missing weights, `model\.layers\.2\.hnorm\.weight`"),
    "missing layer": ("mtp_layers", drop(r"model\.mtp\.layers\.1\..+"),
                      r"has a draft layer 2, and lacks others before it"),
    "unknown": ("eagle", put("layers.1.mlp.up_proj.weight", 2, 2),
                r"weights nothing reads, `layers\.1\.mlp\.up_proj\.weight`"),
    "unknown part": ("eagle3", put("midlayer.mlp.extra.weight", 2),
                     r"weights nothing reads, `midlayer\.mlp\.extra\.weight`"),
    "unknown norm": ("eagle", put("layers.0.input_layernorm.weight", WIDTH),
                     r"weights nothing reads, `layers\.0\.input_layernorm\.weight`"),
    "unknown bundled": ("mtp_glm4_moe", put("model.layers.2.mlp.extra.weight", 2),
                        r"weights nothing reads, `model\.layers\.2\.mlp\.extra\.weight`"),
    "misshapen": ("eagle", put("layers.0.mlp.up_proj.weight", 7, WIDTH),
                  r"`layers\.0\.mlp\.up_proj\.weight` \[7, 32\], and .* means \[48, 32\]"),
    "misshapen bundled": ("mtp_layers", put("model.mtp.layers.2.enorm.weight", 5),
                          r"`model\.mtp\.layers\.2\.enorm\.weight \[5\] instead of \[32\]`"),
    "poisoned": ("eagle3", poison("fc.weight"), r"`fc\.weight` .* is not finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_draft_is_refused(name: str, shelf: Shelf, tmp_path: Path) -> None:
    source, change, said = BROKEN[name]
    pair, target = copied(shelf[source], tmp_path), shelf.target(source)
    edit(pair.home, change)
    with pytest.raises(RuntimeFault, match=said):
        open_draft(pair, target)


@pytest.mark.parametrize("source", ["mtp_deepseek", "mtp_glm4_moe", "mtp_qwen3_next"])
@pytest.mark.parametrize(
    ("gap", "said"),
    [
        ("1", r"expert 1 of `(model\.layers\.2|mtp\.layers\.0)\.mlp\.experts` has no weights"),
        (
            r"1\.up_proj",
            r"expert 1 of `(model\.layers\.2|mtp\.layers\.0)\.mlp\.experts` has no weights",
        ),
        (
            "last",
            r"another shape, `(model\.layers\.2|mtp\.layers\.0)\.mlp\.experts\.down_proj \[\d",
        ),
    ],
)
def test_experts_with_a_gap_are_refused(
    source: str, gap: str, said: str, shelf: Shelf, tmp_path: Path
) -> None:
    pair, target = copied(shelf[source], tmp_path), shelf.target(source)
    count = {"mtp_qwen3_next": 4}.get(source, 8)
    own = rf"(model\.layers\.2|mtp\.layers\.0)\.mlp\.experts\.{gap}\..*weight"
    edit(pair.home, drop(own.replace("last", str(count - 1))))
    with pytest.raises(RuntimeFault, match=said):
        open_draft(pair, target)


def test_a_reduced_head_without_a_map_is_told(shelf: Shelf, tmp_path: Path) -> None:
    pair = copied(shelf["eagle3"], tmp_path)
    edit(pair.home, drop("d2t"))
    net = facts.describe_draft(facts.read_folder(pair.target), draft_of(pair))
    assert net.problem is not None
    assert "has a head of 16 rows and no `d2t` to the 24 ids" in net.problem.message


def test_a_config_that_says_another_width_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    pair = copied(shelf["eagle"], tmp_path)
    edit_config(pair.home, intermediate_size=40)
    with pytest.raises(
        RuntimeFault, match=r"has `layers\.0\.mlp\..*, and its config\.json means \["
    ):
        open_draft(pair, shelf.target("eagle"))


def test_a_copy_of_the_targets_head_is_dropped(shelf: Shelf, tmp_path: Path) -> None:
    """EAGLE asks the target's head, whether or not a copy of it came along."""
    pair, target = copied(shelf["eagle"], tmp_path), shelf.target("eagle")
    edit(pair.home, put("lm_head.weight", VOCABULARY, WIDTH))
    draft = open_draft(pair, target)
    logits, _ = draft.window(draft.pool(1, 4), 4).feed(
        torch.tensor([5]), torch.ones(1, 1, WIDTH), 0
    )
    assert draft.net.lm_head is None
    assert logits.abs().max() > 0


def test_a_bundled_checkpoint_still_loads_without_its_draft(shelf: Shelf, tmp_path: Path) -> None:
    """The target of a checkpoint is the same with and without the MTP layers beside it."""
    pair = copied(shelf["mtp_deepseek"], tmp_path)
    edit(pair.home, drop(r"model\.layers\.2\..+"))
    said = [
        model.window(model.pool(1, 4), 4).prefill(torch.tensor([3, 4, 5]))[0]
        for model in (pair.load(), shelf.target("mtp_deepseek"))
    ]
    torch.testing.assert_close(*said, **CLOSE)


# -- what the target shows -------------------------------------------------------------------------

SHOWN = ["llama", "qwen3", "mistral", "qwen3_moe", "deepseek_v3", "glm4_moe", "mimo_v2", "gemma2",
         "gemma3", "gemma4", "gemma4_shared"]  # fmt: skip
PARENTS = [-1, 0, 0, 2, 3, 1, 3]
TEXT, CUTS = 19, ((0, 8), (8, 9), (9, 19))


class Streams:
    """r_0 .. r_L of a stock model: what enters each layer, and the final norm (serial.md §7.3)."""

    def __init__(self, name: str) -> None:
        self.stock = build(name)
        self.lm = LanguageModel.wrap(copy.deepcopy(self.stock))
        self.layers = self.lm.layers

    @torch.inference_mode()
    def of(self, ids: list[int]) -> tuple[list[Tensor], Tensor]:
        """Streams [P, H] each, and the normed state [P, H] that the head reads."""
        last: list[Tensor] = []
        hook = self.stock.model.norm.register_forward_pre_hook(lambda _, args: last.append(args[0]))
        out = self.stock(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        hook.remove()
        streams = [stream[0] for stream in out.hidden_states[: self.layers]]
        return [*streams, last[0][0]], out.hidden_states[-1][0]


@pytest.fixture(scope="module", params=SHOWN)
def streams(request: pytest.FixtureRequest) -> Streams:
    torch.set_num_threads(1)
    return Streams(request.param)


def alike(actual: Tensor, expected: Tensor) -> None:
    """Up to rounding; the streams of a Gemma are in the hundreds."""
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual, expected, atol=1e-5 * scale, rtol=0)


def test_a_target_shows_what_enters_its_layers(streams: Streams) -> None:
    """Chunks of a prompt, a chain, every node of a tree; any order of taps, the last included."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(3, WORDS, (TEXT,), generator=generator)
    taps = (1, streams.layers, 0, streams.layers - 1)
    lm, pool = streams.lm, streams.lm.pool(2, 64)
    expected, last = streams.of(ids.tolist())
    beside = torch.cat([expected[tap] for tap in taps], dim=-1)
    for row in range(2):
        window = lm.window(pool, 64, row=row)
        for begin, end in CUTS:
            _, hidden, tapped = window.prefill(ids[begin:end], begin, taps)
            alike(hidden[0], last[begin:end])
            alike(tapped[0], beside[begin:end])
        _, _, none = window.prefill(ids[18:], 18)
        assert none.shape[-1] == 0
    window, lens = lm.window(pool, 64), torch.tensor([TEXT, 12])
    tokens = torch.randint(3, WORDS, (2, len(PARENTS)), generator=generator)
    texts = [ids.tolist(), ids[:12].tolist()]

    logits, tapped = window.verify_taps(tokens, lens, taps)
    again, hidden = window.verify_hidden(tokens, lens)
    alike(again, logits)
    for row, text in enumerate(texts):
        expected, last = streams.of(text + tokens[row].tolist())
        alike(tapped[row], torch.cat([expected[tap] for tap in taps], dim=-1)[len(text) :])
        alike(hidden[row], last[len(text) :])

    depths, sees = arrays([PARENTS] * 2)
    logits, tapped = window.verify_tree_taps(tokens, lens, depths, sees, taps)
    again, hidden = window.verify_tree_hidden(tokens, lens, depths, sees)
    alike(again, logits)
    for row, text in enumerate(texts):
        for node in range(len(PARENTS)):
            path = tokens[row, lineage(PARENTS, node)].tolist()
            expected, last = streams.of(text + path)
            alike(tapped[row, node], torch.cat([expected[tap][-1] for tap in taps]))
            alike(hidden[row, node], last[-1])
