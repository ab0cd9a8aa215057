"""What a block draft computes: the published vectors T2 to T5, and a plain loop, in float64.

The weights are written to disk in the formats they are published in, and read as a run reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.qwen3 import modeling_qwen3

from specflow import facts
from specflow.errors import RuntimeFault
from specflow.facts import ModelFacts
from specflow.formats import named
from specflow.kernels import survivals
from specflow.models.block_draft import BlockModel, BlockStep, BlockWindow
from specflow.models.lm import LanguageModel
from specflow.models.weights import load_block
from specflow.pools import KVPool, LayerShape, Ring
from tests.differential.tiny_blocks import FULL, SLIDING, Plain, causal_of
from tests.differential.tiny_drafts import write

EXACT = {"atol": 1e-9, "rtol": 1e-9}
# Six decimals were published, and RoPE is float32 here as it is there.
PUBLISHED = {"atol": 3e-6, "rtol": 0.0}


@contextmanager
def doubled() -> Iterator[None]:
    """Modules that are made are float64, so that no weight of a file is rounded."""
    torch.set_num_threads(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def near(actual: Tensor, expected: Any, **how: float) -> None:
    wanted = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, wanted, **(how or EXACT))


def fill(shape: tuple[int, ...], start: float, size: float = 0.3) -> Tensor:
    """`fill` of parallel.md (ii)."""
    flat = [size * math.sin(start + 0.7 * i) for i in range(math.prod(shape))]
    return torch.tensor(flat, dtype=torch.float64).view(shape)


def nw(count: int, start: float) -> Tensor:
    """`nw` of parallel.md (ii): the weights of a norm."""
    return torch.tensor([1 + 0.1 * math.cos(start + i) for i in range(count)], dtype=torch.float64)


def target_of(table: Tensor, head: Tensor) -> LanguageModel:
    """A target whose embedding and head are these; its layers do not matter."""
    rows, width = table.shape
    config = LlamaConfig(
        vocab_size=rows, hidden_size=width, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=4,
    )  # fmt: skip
    with doubled():
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            model.get_input_embeddings().weight.copy_(table)
            model.get_output_embeddings().weight.copy_(head)
        return LanguageModel.wrap(model)


def open_block(
    folder: Path, tensors: dict[str, Tensor], said: dict[str, Any], target: LanguageModel
) -> BlockModel:
    """Write a draft, and open it as a drafter does; what headers tell is told before."""
    draft = facts.read_folder(write(folder, tensors, said))
    whole = ModelFacts(
        "target",
        vocab_size=target.vocab_size,
        hidden_size=int(target.adapter.config.hidden_size),
        layers=80,
    )
    net = facts.describe_draft(whole, draft)
    assert draft.problem is None
    if net.problem is not None:
        assert net.problem.kind == "misfit"
        raise RuntimeFault(net.problem.message)
    with doubled():
        return load_block(draft.weights, named(net.format), dict(draft.config), net, target.adapter)


def full_ring(model: BlockModel, rows: int, length: int = 48, block: int = 4) -> Ring:
    return Ring.make(model.pool, rows, length, 0, 64, block)


# -- T3: the backbone ------------------------------------------------------------------------------

HEIGHT, WORDS, START, BLOCK = 8, 11, 5, [3, 10, 10, 10]
KNOWN: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "vocab_size": WORDS,
    "hidden_size": HEIGHT, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": False, "block_size": 4,
    "max_position_embeddings": 128,
    "dflash_config": {"mask_token_id": 10, "target_layer_ids": [0, 1]},
}  # fmt: skip
LAST = {"layer_types": [FULL, SLIDING], "sliding_window": 3}


def published() -> dict[str, Tensor]:
    tensors = {
        "fc.weight": fill((8, 16), 1.0),
        "hidden_norm.weight": nw(8, 0.1),
        "norm.weight": nw(8, 0.2),
    }
    for layer in range(2):
        at, beta = f"layers.{layer}.", 10.0 * (layer + 1)
        tensors |= {
            f"{at}self_attn.q_proj.weight": fill((16, 8), beta + 1),
            f"{at}self_attn.k_proj.weight": fill((8, 8), beta + 2),
            f"{at}self_attn.v_proj.weight": fill((8, 8), beta + 3),
            f"{at}self_attn.o_proj.weight": fill((8, 16), beta + 4),
            f"{at}self_attn.q_norm.weight": nw(4, beta + 0.1),
            f"{at}self_attn.k_norm.weight": nw(4, beta + 0.2),
            f"{at}mlp.gate_proj.weight": fill((12, 8), beta + 5),
            f"{at}mlp.up_proj.weight": fill((12, 8), beta + 6),
            f"{at}mlp.down_proj.weight": fill((8, 12), beta + 7),
            f"{at}input_layernorm.weight": nw(8, beta + 0.3),
            f"{at}post_attention_layernorm.weight": nw(8, beta + 0.4),
        }
    return tensors


EMBEDDED, HEAD = fill((11, 8), 50, 1.0), fill((11, 8), 60, 1.0)
SHOWN = fill((5, 16), 70, 1.0)[None]


@pytest.fixture(scope="module")
def known_target() -> LanguageModel:
    return target_of(EMBEDDED, HEAD)


@dataclass
class Known:
    """A draft of T3 after the injection of its five positions, and what it makes of its block."""

    model: BlockModel
    window: BlockWindow
    hidden: Tensor


def known(target: LanguageModel, folder: Path, tensors: dict[str, Tensor], **said: Any) -> Known:
    model = open_block(folder / "draft", tensors, KNOWN | said, target)
    window = BlockWindow(model, full_ring(model, 1), 48)
    window.inject(SHOWN, torch.tensor([0]), torch.tensor([5]))
    hidden = window.denoise(torch.tensor([BLOCK]), torch.tensor([START]))
    return Known(model, window, hidden)


def test_t3_the_context_is_one_projection(known_target: LanguageModel, tmp_path: Path) -> None:
    made = known(known_target, tmp_path, published())
    c = made.model.net.context(SHOWN)[0]
    first = [1.458633, 0.403532, -1.110842, -0.774988, 0.773170, 1.239207, -0.368509, -1.421363]
    last = [1.256057, -0.579081, -1.298272, -0.001065, 1.288251, 0.577145, -1.253220, -1.089175]
    near(c[0], first, **PUBLISHED)
    near(c[4], last, **PUBLISHED)
    keys, values = made.window.ring.pool.read(0, 1, 5)
    near(
        keys[0, :, 4],
        [[-0.347626, 1.312117, -1.393701, -0.329154], [-0.171668, -1.356518, 1.472021, -0.281229]],
        **PUBLISHED,
    )
    near(
        values[0, :, 4],
        [[0.106392, 0.270134, 0.312622, 0.214783], [0.020535, -0.182930, -0.304284, -0.289054]],
        **PUBLISHED,
    )


ROWS = [
    [-1.678325, -0.195214, 0.606358, -0.864796, -0.608814, 1.252362, 1.453896, 0.888204],
    [-0.038108, -0.347815, 0.740650, 0.497238, 0.282465, 1.703494, 0.090441, -2.178911],
    [-0.203121, 1.220154, 0.611875, -0.369702, 0.257296, 1.737543, 0.852676, -1.696879],
    [0.053036, 1.374616, 0.371808, -0.627137, 0.215946, 1.707719, 0.882486, -1.587638],
]
LOOKS_BACK = [0.139658, 0.454449, 0.348019, 0.002697, 0.622516, 1.846114, 0.221871, -2.141629]


def test_t3_every_row_sees_the_whole_block(known_target: LanguageModel, tmp_path: Path) -> None:
    made = known(known_target, tmp_path, published())
    near(made.hidden[0], ROWS, **PUBLISHED)
    logits = made.window.score(made.hidden)[0]
    assert logits.argmax(-1).tolist() == [9, 6, 6, 6]
    near(logits.max(-1).values, [3.807171, 3.642940, 2.128037, 1.409031], **PUBLISHED)
    assert (made.hidden[0, 1] - torch.tensor(LOOKS_BACK)).abs().max() > 0.1  # the wrong answer


SLID = [0.386698, 0.799738, 0.175190, -0.187820, 0.442141, 1.771453, 0.626572, -2.067369]
BOTH_WAYS = [0.118405, 0.026066, 0.519950, 0.317412, 0.437246, 1.770686, 0.227569, -2.236069]


@pytest.mark.parametrize(
    ("said", "row", "words"),
    [
        (LAST, SLID, [8, 6, 6, 6]),
        (LAST | {"sliding_window_non_causal": True}, BOTH_WAYS, None),
        (LAST | {"is_causal": False}, BOTH_WAYS, None),
        ({"is_causal": True}, LOOKS_BACK, None),  # where a config asks for it
        ({"is_causal": False}, ROWS[1], [9, 6, 6, 6]),
        ({"layer_types": [FULL, FULL], "sliding_window": 3}, ROWS[1], [9, 6, 6, 6]),
    ],
)
def test_t3_windows_and_directions(
    known_target: LanguageModel,
    tmp_path: Path,
    said: dict[str, Any],
    row: list[float],
    words: list[int] | None,
) -> None:
    made = known(known_target, tmp_path, published(), **said)
    near(made.hidden[0, 1], row, **PUBLISHED)
    if words is not None:
        assert made.window.score(made.hidden)[0].argmax(-1).tolist() == words


# -- T4, T5: the heads beside it -------------------------------------------------------------------

W12 = {
    "markov_head.markov_w1.weight": fill((11, 3), 80, 2.0),
    "markov_head.markov_w2.weight": fill((11, 3), 90, 2.0),
}
GATE = {
    "markov_head.gate_proj.weight": fill((3, 11), 100),
    "markov_head.gate_proj.bias": fill((3,), 101),
}
JOINT = {
    "markov_head.joint_proj.weight": fill((9, 14), 110),
    "markov_head.joint_proj.bias": fill((9,), 111),
}
TRUST = {
    "confidence_head.proj.weight": fill((1, 11), 120),
    "confidence_head.proj.bias": torch.tensor([0.25], dtype=torch.float64),
}
AHEAD = {"architectures": ["Qwen3DSparkModel"], "markov_rank": 3}


def spoken(window: BlockWindow, hidden: Tensor, bonus: int) -> tuple[list[int], Tensor, Tensor]:
    """Guesses of one block's rows [1, K, M], the logits of each [K, V], the memory left behind."""
    base, last = window.score(hidden), torch.tensor([bonus])
    memory = window.no_memory(last)
    words, logits = [], []
    for row in range(hidden.shape[1]):
        if window.model.net.sizes.markov == "rnn":
            bias, memory = window.markov_memory(last, hidden[:, row], memory)
        else:
            bias = window.markov(last, hidden[:, row])
        logits.append((base[:, row] + bias)[0])
        guess = logits[-1].argmax()
        words.append(int(guess))
        last = window.target_ids(guess[None])
    return words, torch.stack(logits), memory


@pytest.mark.parametrize(
    ("kind", "more", "words", "winning"),
    [
        ("vanilla", {}, [10, 5, 6, 7], [9.747526, 8.368593, 4.910843, 8.513775]),
        ("gated", GATE, [10, 5, 6, 7], [5.337304, 5.899395, 3.691057, 5.364368]),
        ("rnn", JOINT, [8, 5, 5, 5], [3.968530, 3.471234, 2.311812, 1.700915]),
    ],
)
def test_t4_markov_heads(
    known_target: LanguageModel,
    tmp_path: Path,
    kind: str,
    more: dict[str, Tensor],
    words: list[int],
    winning: list[float],
) -> None:
    said = AHEAD | {"markov_head_type": kind}
    made = known(known_target, tmp_path, published() | W12 | more, **said)
    assert made.model.net.sizes.markov == kind
    near(made.hidden[0], ROWS, **PUBLISHED)
    found, logits, memory = spoken(made.window, made.hidden, 3)
    assert found == words
    near(logits.max(-1).values, winning, **PUBLISHED)
    if kind == "rnn":
        near(memory[0], [0.812989, -0.490132, 0.726972], **PUBLISHED)


@pytest.mark.parametrize(
    ("more", "words", "logits"),
    [
        ({}, [10, 5, 6, 7], [-1.328472, 1.250341, -0.137885, -0.088965]),
        (JOINT, [8, 5, 5, 5], [-1.328472, -0.101875, -0.137885, -0.165650]),
    ],
)
def test_t5_confidence(
    known_target: LanguageModel,
    tmp_path: Path,
    more: dict[str, Tensor],
    words: list[int],
    logits: list[float],
) -> None:
    made = known(known_target, tmp_path, published() | W12 | TRUST | more, **AHEAD)
    trust = made.window.trust(made.hidden, torch.tensor([3]), torch.tensor([words]))
    near(trust[0], logits, **PUBLISHED)
    if not more:
        chances = [0.209412, 0.777359, 0.465583, 0.477774]
        near(torch.sigmoid(trust[0]), chances, **PUBLISHED)
        near(survivals(trust, (1.0,) * 4)[0], [0.209412, 0.162788, 0.075792, 0.036211], **PUBLISHED)
    # A guess is judged by what was known before it: the guess itself changes nothing (trap 18).
    other = made.window.trust(made.hidden, torch.tensor([3]), torch.tensor([[*words[:-1], 0]]))
    assert torch.equal(trust, other)


# -- T2: who sees whom -----------------------------------------------------------------------------


def seen(mask: Tensor, held: Tensor) -> list[set[int]]:
    """The positions that each row of a mask [1, 1, Q, S] reads, of those the slots hold [1, S]."""
    return [set(held[0][row == 0].tolist()) for row in mask[0, 0]]


def rings(window: int, page: int, rows: int, length: int = 64) -> Ring:
    shapes = {0: LayerShape(2, 4, 4)}
    return Ring.make(lambda slots, size: KVPool(slots, size, shapes), 1, length, window, page, rows)


def masked(ring: Ring, start: int, rows: int, window: int | None, **how: Any) -> list[set[int]]:
    lens = torch.tensor([start])
    held, visible = ring.view(lens, rows, ring.extent(64))
    positions = lens[:, None] + torch.arange(rows)
    step = BlockStep(
        how.get("causal", (False, True)), pool=ring.pool, slots=ring.slots(positions),
        query_positions=positions, extent=held.shape[1], dtype=torch.float32,
        looks=lambda: (visible[:, None].expand(-1, rows, -1), held),
    )  # fmt: skip
    whole = step.mask(window, 1)
    folded = step.mask(window, 2)
    assert torch.equal(folded[:, :, :rows], whole)
    assert torch.equal(folded[:, :, rows:], whole)
    assert set(whole.unique().tolist()) <= {0.0, torch.finfo(torch.float32).min}
    return seen(whole, held)


T2 = [
    (None, (False, True), [set(range(9))] * 4),
    (3, (False, True), [{3, 4, 5}, {4, 5, 6}, {5, 6, 7}, {6, 7, 8}]),
    (3, (False, False), [{3, 4, 5, 6, 7}, {4, 5, 6, 7, 8}, {5, 6, 7, 8}, {6, 7, 8}]),
    (None, (True, True), [set(range(n)) for n in (6, 7, 8, 9)]),
]


@pytest.mark.parametrize(("window", "causal", "expected"), T2)
def test_t2_masks(window: int | None, causal: tuple[bool, bool], expected: list[set[int]]) -> None:
    assert masked(rings(0, 64, 4), 5, 4, window, causal=causal) == expected


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("start", [5, 9, 21, 40])
@pytest.mark.parametrize(
    ("window", "causal"), [(8, (False, True)), (8, (True, False)), (5, (0, 0))]
)
def test_masks_of_a_ring_are_those_of_the_whole_text(
    window: int, causal: tuple[bool, bool], start: int, page: int
) -> None:
    """Wherever positions lie, rows see the same; and never what a slot held before."""
    ring, whole = rings(window, page, 4), rings(0, page, 4)
    assert ring.turns
    expected = masked(whole, start, 4, window, causal=causal)
    assert masked(ring, start, 4, window, causal=causal) == expected
    # A layer without a window reads what is kept: from a page's boundary on.
    first = max(start - window, 0) // page * page
    every = masked(ring, start, 4, None, causal=(False, True))
    assert every == [set(range(first, start + 4))] * 4


# -- a plain loop ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A draft's sizes, and what its config says of its block."""

    width: int = 12
    heads: int = 4
    kv: int = 2
    head: int = 6
    inner: int = 10
    kinds: tuple[str, ...] = (FULL, FULL)
    window: int = 3
    taps: int = 2
    rows: int = 4
    theta: float = 10000.0
    bias: bool = False
    block: dict[str, Any] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)

    def said(self) -> dict[str, Any]:
        ids = {"mask_token_id": 1, "target_layer_ids": list(range(self.taps))}
        return {
            "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "vocab_size": WORDS,
            "hidden_size": self.width, "intermediate_size": self.inner,
            "num_hidden_layers": len(self.kinds), "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv, "head_dim": self.head, "rms_norm_eps": 1e-5,
            "rope_theta": self.theta, "hidden_act": "silu", "attention_bias": self.bias,
            "block_size": self.rows, "max_position_embeddings": 4096,
            "layer_types": list(self.kinds),
            "sliding_window": self.window if SLIDING in self.kinds else None,
            "dflash_config": ids | self.block,
        } | self.top  # fmt: skip


def random(*shape: int, size: float = 0.6) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64) * size


def weights(shape: Shape) -> dict[str, Tensor]:
    tensors = {
        "fc.weight": random(shape.width, shape.taps * shape.width),
        "hidden_norm.weight": 1 + random(shape.width),
        "norm.weight": 1 + random(shape.width),
    }
    queries, keys = shape.heads * shape.head, shape.kv * shape.head
    for i in range(len(shape.kinds)):
        at = f"layers.{i}."
        tensors |= {
            f"{at}self_attn.q_proj.weight": random(queries, shape.width),
            f"{at}self_attn.k_proj.weight": random(keys, shape.width),
            f"{at}self_attn.v_proj.weight": random(keys, shape.width),
            f"{at}self_attn.o_proj.weight": random(shape.width, queries),
            f"{at}self_attn.q_norm.weight": 1 + random(shape.head),
            f"{at}self_attn.k_norm.weight": 1 + random(shape.head),
            f"{at}mlp.gate_proj.weight": random(shape.inner, shape.width),
            f"{at}mlp.up_proj.weight": random(shape.inner, shape.width),
            f"{at}mlp.down_proj.weight": random(shape.width, shape.inner),
            f"{at}input_layernorm.weight": 1 + random(shape.width),
            f"{at}post_attention_layernorm.weight": 1 + random(shape.width),
        }
        if shape.bias:
            sizes = {"q": queries, "k": keys, "v": keys, "o": shape.width}
            tensors |= {f"{at}self_attn.{n}_proj.bias": random(s) for n, s in sizes.items()}
    return tensors


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and RoPE in float64; the library computes both in float32, whatever the weights are."""

    def norm(self: Any, hidden: Tensor) -> Tensor:
        mean = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden * torch.rsqrt(mean + self.variance_epsilon))

    def turn(self: Any, _like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        width, theta = self.config.head_dim, self.config.rope_parameters["rope_theta"]
        angle = positions[..., None] * theta ** (-torch.arange(0, width, 2).double() / width)
        both = torch.cat([angle, angle], dim=-1)
        return both.cos(), both.sin()

    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", norm)
    monkeypatch.setattr(modeling_qwen3.Qwen3RotaryEmbedding, "forward", turn)


SHAPES = {
    "full": Shape(),
    "sliding": Shape(kinds=(SLIDING, SLIDING)),
    "mixed": Shape(kinds=(FULL, SLIDING, FULL), window=2),
    "both ways": Shape(kinds=(SLIDING, FULL), top={"sliding_window_non_causal": True}),
    "forced both ways": Shape(kinds=(SLIDING, SLIDING), window=4, top={"is_causal": False}),
    "forced back": Shape(kinds=(FULL, SLIDING), block={"is_causal": True}),
    "one head each": Shape(heads=3, kv=3, head=4),
    "one key head": Shape(heads=6, kv=1, head=2, kinds=(SLIDING, FULL)),
    "wide heads": Shape(heads=2, kv=1, head=16, inner=3),
    "one layer, one tap": Shape(kinds=(FULL,), taps=1, rows=6),
    "five taps": Shape(kinds=(FULL,), taps=5, rows=2),
    "one row": Shape(rows=1),
    "biases": Shape(bias=True, kinds=(FULL, SLIDING)),
    "another base": Shape(theta=123.0),
    "scaled": Shape(block={"input_embedding_scale": 3.5}),
    "multiplied": Shape(block={"output_multiplier": 0.25}),
    "capped": Shape(block={"final_logit_softcapping": 1.5}),
    "all three": Shape(
        kinds=(SLIDING, FULL),
        block={
            "input_embedding_scale": 2,
            "output_multiplier": 3.0,
            "final_logit_softcapping": 4.0,
        },
    ),
}


def plain_of(shape: Shape, tensors: dict[str, Tensor], table: Tensor, head: Tensor) -> Plain:
    said = shape.said()
    return Plain(
        tensors, said, table, head, causal_of(said),
        scale=shape.block.get("input_embedding_scale", 1.0),
        multiplier=shape.block.get("output_multiplier", 1.0),
        softcap=shape.block.get("final_logit_softcapping", 0.0),
    )  # fmt: skip


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", SHAPES)
def test_the_backbone_is_a_plain_loop(name: str, tmp_path: Path) -> None:
    """Two requests of different lengths, one of them injected in parts."""
    shape = SHAPES[name]
    torch.manual_seed(list(SHAPES).index(name))
    tensors, lens = weights(shape), (7, 2)
    table, head = random(WORDS, shape.width, size=1.0), random(WORDS, shape.width, size=1.0)
    model = open_block(tmp_path / "draft", tensors, shape.said(), target_of(table, head))
    ring = full_ring(model, 2, block=shape.rows)
    shown = [random(count, shape.taps * shape.width, size=1.0) for count in lens]
    for row, (taps, cut) in enumerate(zip(shown, (3, 2), strict=True)):
        window = BlockWindow(model, ring, 0, row)
        window.feed(taps[None, :cut], 0)
        if cut < len(taps):
            window.feed(taps[None, cut:], cut)
    blocks = [[4, *[1] * (shape.rows - 1)], [9, *[1] * (shape.rows - 1)]]
    window = BlockWindow(model, ring, 48)
    hidden = window.denoise(torch.tensor(blocks), torch.tensor(lens))
    logits = window.score(hidden)
    loop = plain_of(shape, tensors, table, head)
    for row, (taps, ids) in enumerate(zip(shown, blocks, strict=True)):
        kept = loop.injected(taps)
        near(model.net.context(taps[None])[0], torch.stack([loop.context(t) for t in taps]))
        for layer, positions in enumerate(kept):
            keys, values = ring.pool.read(layer, 1, len(taps), row)
            near(keys[0].transpose(0, 1), torch.stack([k for k, _ in positions]))
            near(values[0].transpose(0, 1), torch.stack([v for _, v in positions]))
        expected = loop.block(ids, len(taps), kept)
        near(hidden[row], expected)
        near(logits[row], loop.score(expected))


@pytest.mark.parametrize("name", ["sliding", "mixed", "both ways", "forced both ways", "full"])
def test_what_config_says_changes_what_is_computed(name: str) -> None:
    """The loop tells one mask from another: each of them fails for all others."""
    torch.manual_seed(3)
    shape = Shape()
    tensors, taps = weights(shape), random(7, 24, size=1.0)
    table, head = random(WORDS, 12, size=1.0), random(WORDS, 12, size=1.0)
    found = {}
    for each in ("sliding", "mixed", "both ways", "forced both ways", "full"):
        look = SHAPES[each]
        said = look.said() | {"num_hidden_layers": 2, "layer_types": list(look.kinds)[:2]}
        loop = Plain(tensors, said, table, head, causal_of(said))
        found[each] = loop.block([4, 1, 1, 1], 7, loop.injected(taps))
    for other, hidden in found.items():
        assert (other == name) == bool((hidden - found[name]).abs().max() < 1e-3)


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256},
    ],
    ids=["plain", "linear", "yarn"],
)
@pytest.mark.parametrize("theta", [10000.0, 500.0])
def test_positions_turn_as_the_config_says(
    theta: float, scaling: dict[str, Any] | None, tmp_path: Path
) -> None:
    """In float32; an angle of `position` radians is then known to about 1e-7 of itself."""
    shape = Shape(theta=theta, head=16, top={"rope_scaling": scaling} if scaling else {})
    torch.manual_seed(0)
    table = random(WORDS, shape.width)
    model = open_block(tmp_path / "draft", weights(shape), shape.said(), target_of(table, table))
    positions = torch.tensor([[0, 1, 7, 200, 1500]])
    cos, sin = model.net._rotary[0](table, positions)
    half, factor = shape.head // 2, 1.0
    frequencies = [theta ** (-i / half) for i in range(half)]
    if scaling and scaling["rope_type"] == "linear":
        frequencies = [f / 4.0 for f in frequencies]
    if scaling and scaling["rope_type"] == "yarn":
        factor = 0.1 * math.log(16.0) + 1.0

        def bound(turns: float) -> float:
            return shape.head * math.log(256 / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(bound(32)), 0), min(math.ceil(bound(1)), shape.head - 1)
        ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(half)]
        frequencies = [f * (1 - r) + f / 16.0 * r for f, r in zip(frequencies, ramp, strict=True)]
    angle = positions[0, :, None].double() * torch.tensor(frequencies, dtype=torch.float64)
    for ours, theirs in ((cos, angle.cos()), (sin, angle.sin())):
        near(ours[0, :, :half].double(), theirs * factor, atol=1e-3, rtol=0.0)
        assert torch.equal(ours[0, :, :half], ours[0, :, half:])


HEADS = {
    "vanilla": {},
    "gated": {"gate_proj": (5, 17)},
    "rnn": {"joint_proj": (15, 22)},
}


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("covered", [(), (0, 3, 4, 8, 10)], ids=["whole", "reduced"])
@pytest.mark.parametrize("kind", HEADS)
def test_markov_heads_and_confidence_are_plain_loops(
    kind: str, covered: tuple[int, ...], tmp_path: Path
) -> None:
    """W1 is of the target's words, whatever words the draft can say (trap 16)."""
    torch.manual_seed(len(kind) + len(covered))
    shape, rank = Shape(rows=5), 5
    rows = len(covered) or WORDS
    tensors = weights(shape) | {
        "markov_head.markov_w1.weight": random(WORDS, rank, size=2.0),
        "markov_head.markov_w2.weight": random(rows, rank, size=2.0),
        "confidence_head.proj.weight": random(1, shape.width + rank),
        "confidence_head.proj.bias": random(1),
    }
    for name, (out, into) in HEADS[kind].items():
        tensors[f"markov_head.{name}.weight"] = random(out, into)
        tensors[f"markov_head.{name}.bias"] = random(out)
    table, head = random(WORDS, shape.width, size=1.0), random(WORDS, shape.width, size=1.0)
    if covered:
        tensors["lm_head.weight"] = random(rows, shape.width, size=1.0)
        tensors["d2t"] = torch.tensor(covered) - torch.arange(rows)
    said = shape.said() | {"architectures": ["Qwen3DSparkModel"]}
    model = open_block(tmp_path / "draft", tensors, said, target_of(table, head))
    window = BlockWindow(model, full_ring(model, 1, block=5), 48)
    shown = random(6, 24, size=1.0)
    window.feed(shown[None], 0)
    hidden = window.denoise(torch.tensor([[7, 1, 1, 1, 1]]), torch.tensor([6]))
    own, logits, _ = spoken(window, hidden, 7)
    words = window.target_ids(torch.tensor(own)).tolist()
    loop = plain_of(shape, tensors, table, tensors.get("lm_head.weight", head))
    assert words == [loop.words()[i] for i in own]
    expected, trust = loop.said_of(loop.block([7, 1, 1, 1, 1], 6, loop.injected(shown)), 7, words)
    near(logits, expected)
    assert own == expected.argmax(-1).tolist()
    assert len(set(own)) > 1
    # The confidence head is float32 on purpose: its sums are of a dozen numbers near 1.
    found = window.trust(hidden, torch.tensor([7]), torch.tensor([words]))
    assert found.dtype == torch.float32
    near(found[0].double(), trust, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("markov", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_confidence_with_less_to_go_by(markov: bool, bias: bool, tmp_path: Path) -> None:
    """Of the row alone; with no bias, as DeepSeek-V4's; beside no Markov head at all."""
    torch.manual_seed(8)
    shape = Shape()
    tensors = weights(shape) | {"confidence_head.proj.weight": random(1, shape.width)}
    if markov:
        tensors["markov_head.markov_w1.weight"] = random(WORDS, 3)
        tensors["markov_head.markov_w2.weight"] = random(WORDS, 3)
    if bias:
        tensors["confidence_head.proj.bias"] = random(1)
    table = random(WORDS, shape.width)
    model = open_block(tmp_path / "draft", tensors, shape.said(), target_of(table, table))
    window = BlockWindow(model, full_ring(model, 1), 48)
    hidden = random(1, 3, shape.width)
    found = window.trust(hidden, torch.tensor([3]), torch.tensor([[4, 5, 6]]))
    loop = plain_of(shape, tensors, table, table)
    near(
        found[0].double(),
        [loop.trust(row, word) for row, word in zip(hidden[0], (3, 4, 5), strict=True)],
        atol=1e-5,
        rtol=1e-5,
    )


# -- whose embedding and head ----------------------------------------------------------------------


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("own", [True, False])
def test_an_embedding_and_a_head_that_came_along(own: bool, tmp_path: Path) -> None:
    """Copies of the target's are dropped, whatever they hold, unless a config says they differ."""
    torch.manual_seed(9)
    shape = Shape(top={"has_own_embed": own, "has_own_lm_head": own})
    table, head = random(WORDS, shape.width, size=1.0), random(WORDS, shape.width, size=1.0)
    brought = random(WORDS, shape.width, size=1.0), random(WORDS, shape.width, size=1.0)
    tensors = weights(shape)
    both = {"embed_tokens.weight": brought[0], "lm_head.weight": brought[1]}
    model = open_block(tmp_path / "draft", tensors | both, shape.said(), target_of(table, head))
    assert (model.net.embed_tokens is not None, model.net.lm_head is not None) == (own, own)
    window = BlockWindow(model, full_ring(model, 1), 48)
    shown = random(4, 24, size=1.0)
    window.feed(shown[None], 0)
    hidden = window.denoise(torch.tensor([[7, 1, 1, 1]]), torch.tensor([4]))
    loop = plain_of(shape, tensors, *(brought if own else (table, head)))
    expected = loop.block([7, 1, 1, 1], 4, loop.injected(shown))
    near(hidden[0], expected)
    near(window.score(hidden)[0], loop.score(expected))


NAMES = {
    "model": lambda n: f"model.{n}",
    "encoder": lambda n: {
        "fc.weight": "encoder.fc.weight",
        "hidden_norm.weight": "encoder.output_norm_enc.weight",
    }.get(n, n),
    "logit_head": lambda n: f"logit_head.{n}" if "_head." in n else n,
    "model.logit_head": lambda n: f"model.logit_head.{n}" if "_head." in n else f"model.{n}",
}


@pytest.mark.parametrize("how", NAMES)
def test_published_names(how: str, known_target: LanguageModel, tmp_path: Path) -> None:
    """Every alias of a weight is the same weight."""
    tensors = published() | W12 | GATE | TRUST
    renamed = {NAMES[how](name): tensor for name, tensor in tensors.items()}
    assert renamed.keys() != tensors.keys()
    made = known(known_target, tmp_path, renamed, **AHEAD)
    near(made.hidden[0], ROWS, **PUBLISHED)
    assert spoken(made.window, made.hidden, 3)[0] == [10, 5, 6, 7]


# -- every tensor has a place ----------------------------------------------------------------------


def without(*names: str) -> dict[str, Tensor]:
    return {n: t for n, t in (published() | W12 | TRUST).items() if n not in names}


BROKEN = {
    "no layer": (without("layers.1.mlp.up_proj.weight"),
                 r"lacks `layers\.1\.mlp\.up_proj\.weight`"),
    "no head norm": (without("layers.1.self_attn.q_norm.weight"), r"lacks .*q_norm"),
    "no w2": (without("markov_head.markov_w2.weight"),
              r"lacks `markov_head\.markov_w2\.weight`"),
    "half a gate": (without() | {"markov_head.gate_proj.weight": fill((3, 11), 100)},
                    r"lacks `markov_head\.gate_proj\.bias`"),
    "an unknown head": (without() | {"markov_head.other.weight": fill((3, 3), 1)},
                        r"weights nothing reads, `markov_head\.other\.weight`"),
    "an unknown tensor": (without() | {"selector.weight": fill((3, 3), 1)},
                          r"weights nothing reads, `selector\.weight`"),
    "a third layer": (without() | {"layers.2.mlp.up_proj.weight": fill((12, 8), 1)},
                      r"has weights of 3 layers, and its config\.json says 2"),
    "a bias nobody said": (without() | {"layers.0.self_attn.q_proj.bias": fill((16,), 1)},
                           r"weights nothing reads, `layers\.0\.self_attn\.q_proj\.bias`"),
    "a confidence head alone": (without("confidence_head.proj.weight"),
                                r"weights nothing reads, `confidence_head\.proj\.bias`"),
    "a flat table": (without() | {"markov_head.markov_w1.weight": fill((7, 3), 80)},
                     r"has `markov_head\.markov_w1\.weight` \[7, 3\]"),
    "not a number": (without() | {"fc.weight": fill((8, 16), 1.0) * math.nan},
                     r"`fc\.weight` of .* is not finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_draft_whose_tensors_do_not_fit_is_refused(
    name: str, known_target: LanguageModel, tmp_path: Path
) -> None:
    """A head that is dropped in silence shows only in what is accepted (trap 38)."""
    tensors, said = BROKEN[name]
    with pytest.raises(RuntimeFault, match=said):
        known(known_target, tmp_path, tensors, **AHEAD)


def test_a_head_that_only_the_config_has(known_target: LanguageModel, tmp_path: Path) -> None:
    said = AHEAD | {"markov_head_type": "gated"}
    with pytest.raises(RuntimeFault, match=r"lacks `markov_head\.gate_proj\.weight`"):
        known(known_target, tmp_path, published() | W12, **said)
