"""Tiny random draft networks beside tiny targets, on disk in the formats they are published in.

A draft passes on mostly what it reads of its token, and the targets' embeddings are loud: so a
draft is right some of the time, and every length of acceptance occurs.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4TextConfig,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from specflow.load import loads
from specflow.models.blocks import llama_config
from specflow.models.lm import LanguageModel
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from specflow.session import Request, Session
from tests.differential.tiny_models import SLIDING, WINDOW, build
from tests.toys import session, tokens

VOCABULARY, WIDTH, CHUNK = 24, 32, 8
LONGEST = 64  # positions of a request
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48,
    "max_position_embeddings": 128,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    **SMALL, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
}  # fmt: skip
COVERED = (0, 2, 3, 4, 6, 7, 9, 10, 11, 13, 15, 16, 18, 19, 21, 23)  # ids a reduced head knows
TAPS = (1, 2, 3)


@dataclass(frozen=True)
class Pair:
    """A target and a draft on disk.

    draft    None where it lies in the target's own checkpoint
    stock    the library's model whose layers the target, and a bundled draft, were taken from
    layers   of the target: the first layer of `stock` that is the draft's
    """

    algorithm: str
    target: Path
    draft: Path | None
    stock: PreTrainedModel
    layers: int

    @property
    def home(self) -> Path:
        """Where the draft's weights lie."""
        return self.draft or self.target

    def tensors(self) -> dict[str, Tensor]:
        """The weights of `home` as they are published."""
        return load_file(self.home / "model.safetensors")

    def said(self) -> dict[str, Any]:
        """The draft's config.json."""
        said: dict[str, Any] = json.loads((self.home / "config.json").read_text())
        return said

    def load(self) -> LanguageModel:
        """The target, as a run loads it."""
        return LanguageModel.load(self.target, device="cpu", dtype="float32")


# -- what is written -------------------------------------------------------------------------------


def write_tokenizer(folder: Path, size: int) -> None:
    """A tokenizer.json of so many words."""
    words = {f"w{i}": i for i in range(size)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """A folder of weights and a config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def edit(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the weights of a folder."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def edit_config(folder: Path, **changes: object) -> None:
    """Change a folder's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def write_model(folder: Path, model: PreTrainedModel) -> Path:
    """A model with its tokenizer."""
    model.save_pretrained(folder)
    write_tokenizer(folder, model.config.vocab_size)
    return folder


@torch.no_grad()
def loud(model: PreTrainedModel, gain: float = 16.0) -> PreTrainedModel:
    """A model whose next token depends on the last one more than on those before it."""
    model.get_input_embeddings().weight.mul_(gain)
    return model


def noise(*shape: int, scale: float = 0.1) -> Tensor:
    """Random weights."""
    return torch.randn(*shape) * scale


def passing(rows: int, columns: int, *, gain: float = 1.0, at: int = 0) -> Tensor:
    """A random projection that passes on what stands in its columns from `at` on."""
    weight = noise(rows, columns, scale=0.05)
    span = min(rows, columns - at)
    weight[:span, at : at + span] += torch.eye(span) * gain
    return weight


def near_one(size: int) -> Tensor:
    """A norm's weights."""
    return 1 + noise(size)


# -- EAGLE and EAGLE3 ------------------------------------------------------------------------------


def llama_target(root: Path, arch: str = "llama", gain: float = 16.0, **changes: Any) -> Any:
    """A target of three layers that an EAGLE or EAGLE3 draft reads."""
    model = loud(build(arch, **SMALL | {"num_hidden_layers": 3} | changes), gain)
    return model, write_model(root / "target", model)


def eagle(root: Path, *, bias: bool = True, embedding: bool = True, prefix: str = "") -> Pair:
    """EAGLE-1 and -2: no norm before the attention, none at the end, the target's own head."""
    stock, target = llama_target(root)
    torch.manual_seed(1)
    block = LlamaDecoderLayer(llama_config(LLAMA), 0)
    tensors = {
        f"layers.0.{name}": near_one(*weight.shape) if weight.ndim == 1 else noise(*weight.shape)
        for name, weight in block.state_dict().items()
        if name != "input_layernorm.weight"
    }
    tensors["fc.weight"] = passing(WIDTH, 2 * WIDTH)
    if bias:
        tensors["fc.bias"] = noise(WIDTH)
    if embedding:
        tensors["embed_tokens.weight"] = stock.get_input_embeddings().weight
    tensors = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    config = LLAMA | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "bias": bias}
    return Pair("EAGLE", target, write(root / "draft", tensors, config), stock, 3)


def eagle3_tensors(
    stock: PreTrainedModel, covered: tuple[int, ...], own: int = WIDTH
) -> dict[str, Tensor]:
    """An EAGLE3 draft whose attention looks at its own token, the block under `midlayer.`.

    Keys are queries, read off the embedding alone; so the row itself is likeliest to be attended.
    A draft of another width than its target's has an embedding of its own: a part of the target's.
    """
    torch.manual_seed(6)
    heads, kv, width = (
        LLAMA[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    turn = torch.linalg.qr(noise(kv * width, own)).Q
    said = torch.cat([turn, noise(kv * width, own, scale=0.02)], dim=1)
    seen = torch.cat([noise(kv * width, own, scale=0.3), noise(kv * width, own, scale=0.02)], dim=1)

    def grouped(weight: Tensor) -> Tensor:
        shape = (kv, heads // kv, width, weight.shape[-1])
        return weight.view(kv, 1, width, -1).expand(shape).reshape(heads * width, -1)

    back = grouped(turn).T * kv / heads  # what the heads have read, turned back
    head = stock.get_output_embeddings().weight.detach()[list(covered), :own]
    inner = SMALL["intermediate_size"]
    block = {
        "input_layernorm.weight": near_one(own),
        "hidden_norm.weight": near_one(own),
        "self_attn.q_proj.weight": grouped(seen) + noise(heads * width, 2 * own, scale=0.02),
        "self_attn.k_proj.weight": seen,
        "self_attn.v_proj.weight": said,
        "self_attn.o_proj.weight": 3 * back + noise(*back.shape, scale=0.02),
        "post_attention_layernorm.weight": near_one(own),
        "mlp.gate_proj.weight": noise(inner, own),
        "mlp.up_proj.weight": noise(inner, own),
        "mlp.down_proj.weight": noise(own, inner),
    }
    tensors = {f"midlayer.{name}": tensor for name, tensor in block.items()}
    tensors |= {
        "fc.weight": noise(own, len(TAPS) * WIDTH, scale=0.05),
        "norm.weight": near_one(own),
        "lm_head.weight": head + noise(*head.shape, scale=0.02),
    }
    known = stock.config.vocab_size
    if len(covered) < known:
        ids = torch.tensor(covered)
        tensors["d2t"] = ids - torch.arange(len(covered))
        tensors["t2d"] = torch.isin(torch.arange(known), ids)
    if own != WIDTH:
        tensors["embed_tokens.weight"] = stock.get_input_embeddings().weight.detach()[:, :own]
    return tensors


def eagle3(
    root: Path, *, covered: tuple[int, ...] = COVERED, size: int = VOCABULARY, gain: float = 8.0,
    **flags: object,
) -> Pair:  # fmt: skip
    """EAGLE3 as its authors publish it: a reduced head, taps named by the layer they leave."""
    stock, target = llama_target(root, vocab_size=size, gain=gain)
    ids = {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in TAPS]}
    config: dict[str, Any] = LLAMA | {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
        "draft_vocab_size": len(covered), "eagle_config": ids | {"use_aux_hidden_state": True},
    } | flags  # fmt: skip
    tensors = eagle3_tensors(stock, covered, int(config["hidden_size"]))
    if config["draft_vocab_size"] is None:  # the target's head serves
        del tensors["lm_head.weight"]
    return Pair("EAGLE3", target, write(root / "draft", tensors, config), stock, 3)


def eagle3_speculators(root: Path) -> Pair:
    """EAGLE3 in the speculators format, whose layer adds the normed state; a target of experts."""
    stock, target = llama_target(root, "qwen3_moe")
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in eagle3_tensors(stock, COVERED).items()
    }
    tensors["embed_tokens.weight"] = stock.get_input_embeddings().weight
    config = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
        "transformer_layer_config": LLAMA | {"model_type": "llama"},
        "draft_vocab_size": len(COVERED), "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
    }  # fmt: skip
    return Pair("EAGLE3", target, write(root / "draft", tensors, config), stock, 3)


# -- MTP layers, bundled with their targets --------------------------------------------------------


@torch.no_grad()
def split(
    root: Path,
    algorithm: str,
    stock: PreTrainedModel,
    layers: int,
    rename: Callable[[str, int], str],
    extra: Callable[[int], dict[str, Tensor]],
) -> Pair:
    """A long model as a shorter target, its last layers renamed to what MTP layers are called.

    rename  of a tensor of layer `layers + i`, by its name inside the layer
    extra   what an MTP layer has beside its block, by published names
    """
    folder = write_model(root / "target", stock)
    whole = load_file(folder / "model.safetensors")
    said = json.loads((folder / "config.json").read_text())
    tensors = {}
    for name, tensor in whole.items():
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        late = found is not None and int(found[1]) >= layers
        tensors[rename(found[2], int(found[1]) - layers) if found and late else name] = tensor
    torch.manual_seed(4)
    for index in range(said["num_hidden_layers"] - layers):
        tensors |= extra(index)
    said["num_hidden_layers"] = layers
    for listed in ("layer_types", "mlp_layer_types"):
        if said.get(listed):
            said[listed] = said[listed][:layers]
    write(folder, tensors, said)
    return Pair(algorithm, folder, None, stock, layers)


def entry(prefix: str, names: tuple[str, str, str, str], *, centred: bool = False,
          hidden_first: bool = False) -> dict[str, Tensor]:  # fmt: skip
    """What stands before and after an MTP layer: two norms, a projection, a norm.

    names    of the norm of the embedding, of the hidden state, the projection, the last norm
    centred  norms store what they add to one
    """
    less = 1.0 if centred else 0.0
    sizes = [near_one(WIDTH) - less for _ in range(3)]
    at = WIDTH if hidden_first else 0
    weights = (sizes[0], sizes[1], passing(WIDTH, 2 * WIDTH, gain=3.0, at=at), sizes[2])
    return {f"{prefix}{n}.weight": w for n, w in zip(names, weights, strict=True)}


def mtp(root: Path, arch: str) -> Pair:
    """An MTP layer of experts behind the last layer of a DeepSeek-V3 or GLM-4-MoE."""
    shape = SMALL | {"num_hidden_layers": 3, "num_nextn_predict_layers": 1}
    stock = loud(build(arch, 3, **shape, moe_intermediate_size=16))
    names = ("enorm", "hnorm", "eh_proj", "shared_head.norm")

    def extra(index: int) -> dict[str, Tensor]:
        prefix = f"model.layers.{2 + index}."
        return entry(prefix, names) | {
            f"{prefix}embed_tokens.weight": stock.get_input_embeddings().weight,
            f"{prefix}shared_head.head.weight": stock.get_output_embeddings().weight,
        }

    return split(root, "NEXTN", stock, 2, lambda name, i: f"model.layers.{2 + i}.{name}", extra)


def mtp_layers(root: Path) -> Pair:
    """Three MTP layers of a MiMo-V2-Flash: sliding attention with sinks, dense, one a step."""
    full, sliding = "full_attention", "sliding_attention"
    shape = SMALL | {
        "num_hidden_layers": 6, "layer_types": [full, sliding, sliding, *[sliding] * 3],
        "mlp_layer_types": ["dense", "sparse", "dense", *["dense"] * 3],
    }  # fmt: skip
    stock = loud(build("mimo_v2", 5, **shape))
    names = ("enorm", "hnorm", "eh_proj", "final_layernorm")

    def rename(name: str, index: int) -> str:
        called = name.replace("post_attention_layernorm", "pre_mlp_layernorm")
        return f"model.mtp.layers.{index}.{called}"

    return split(
        root, "MULTI_LAYER_EAGLE", stock, 3, rename,
        lambda i: entry(f"model.mtp.layers.{i}.", names),
    )  # fmt: skip


def mtp_qwen3_next(root: Path) -> Pair:
    """The MTP layer of a Qwen3-Next whose layers are all of full attention, gated."""
    torch.manual_seed(6)
    config = Qwen3NextConfig(
        **SMALL, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, layer_types=["full_attention"] * 3, eos_token_id=1,
    )  # fmt: skip
    stock = Qwen3NextForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.copy_(noise(*parameter.shape, scale=0.2 if parameter.ndim > 1 else 0.1))
    names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
    return split(
        root, "NEXTN", loud(stock), 2, lambda name, i: f"mtp.layers.{i}.{name}",
        lambda i: entry("mtp.", names, centred=True),
    )  # fmt: skip


def mtp_mimo(root: Path) -> Pair:
    """The MTP layer of a MiMo-7B, whose layers are those of a Qwen2."""
    stock = loud(build("qwen2", 7, **SMALL, num_hidden_layers=3, tie_word_embeddings=False))
    names = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
    made = split(
        root, "NEXTN", stock, 2, lambda name, i: f"model.mtp_layers.{i}.{name}",
        lambda i: entry(f"model.mtp_layers.{i}.", names, hidden_first=True),
    )  # fmt: skip
    edit_config(made.target, model_type="mimo", architectures=["MiMoForCausalLM"])
    return made


def mtp_speculators(root: Path) -> Pair:
    """An MTP layer in the speculators format: a checkpoint of its own, here of a Qwen2."""
    made = mtp_mimo(root)
    tensors = made.tensors()
    own = {n.removeprefix("model."): t for n, t in tensors.items() if ".mtp_layers." in n}
    rest = {n: t for n, t in tensors.items() if ".mtp_layers." not in n}
    write(made.target, rest, made.said())
    edit_config(made.target, model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    config = {"speculators_model_type": "mtp", "num_nextn_predict_layers": 1}
    draft = write(root / "draft", own, config | {"transformer_layer_config": LLAMA})
    return replace(made, draft=draft)


# -- an assistant ----------------------------------------------------------------------------------


def gemma4_target(root: Path, shared: int) -> Any:
    """A Gemma 4 with a head of its own; some of its layers may read the KV of others."""
    kinds = SLIDING["layer_types"]
    shape = SMALL | {
        "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": shared,
        "num_hidden_layers": len(kinds), "tie_word_embeddings": False,
    }  # fmt: skip
    stock = loud(build("gemma4", 8, **shape), 4.0)
    return stock, write_model(root / "target", stock)


def assistant(root: Path, *, shared: int = 0, ordered: bool = False) -> Pair:
    """A Gemma 4 assistant of two layers, one of each kind, narrower than its target."""
    stock, target = gemma4_target(root, shared)
    own = WIDTH
    text = Gemma4TextConfig(
        **SMALL | {"hidden_size": own}, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=SLIDING["head_dim"], global_head_dim=32,
        sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"],
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=0, num_kv_shared_layers=2,
        bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    config = Gemma4AssistantConfig(
        text_config=text, backbone_hidden_size=WIDTH, use_ordered_embeddings=ordered,
        num_centroids=6, centroid_intermediate_top_k=3,
    )  # fmt: skip
    torch.manual_seed(9)
    model = Gemma4AssistantForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                noise(*parameter.shape) if parameter.ndim > 1 else near_one(*parameter.shape)
            )
        model.pre_projection.weight.copy_(passing(own, 2 * WIDTH))
        model.lm_head.weight.copy_(stock.get_output_embeddings().weight)
        if ordered:
            model.masked_embedding.token_ordering.copy_(torch.randperm(VOCABULARY))
    model.save_pretrained(root / "draft")
    return Pair("FROZEN_KV_MTP", target, root / "draft", stock, len(SLIDING["layer_types"]))


def standalone(root: Path) -> Pair:
    """A whole language model: its target with noise on the weights."""
    stock, target = llama_target(root)
    copied = copy.deepcopy(stock)
    torch.manual_seed(10)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3 * parameter.std())
    return Pair("STANDALONE", target, write_model(root / "draft", copied), stock, 3)


PAIRS: dict[str, Callable[[Path], Pair]] = {
    "standalone": standalone,
    "eagle": eagle,
    "eagle_bare": partial(eagle, bias=False, embedding=False, prefix="model."),
    "eagle3": eagle3,
    "eagle3_normed": partial(eagle3, norm_output=True),
    "eagle3_whole": partial(eagle3, covered=tuple(range(VOCABULARY))),
    "eagle3_headless": partial(eagle3, covered=tuple(range(VOCABULARY)), draft_vocab_size=None),
    "eagle3_narrow": partial(eagle3, hidden_size=16),
    "eagle3_six": partial(eagle3, covered=(0, 2, 3, 5), size=6, gain=2.0),
    "eagle3_speculators": eagle3_speculators,
    "mtp_deepseek": partial(mtp, arch="deepseek_v3"),
    "mtp_glm4_moe": partial(mtp, arch="glm4_moe"),
    "mtp_layers": mtp_layers,
    "mtp_qwen3_next": mtp_qwen3_next,
    "mtp_mimo": mtp_mimo,
    "mtp_speculators": mtp_speculators,
    "assistant": assistant,
    "assistant_shared": partial(assistant, shared=2),
    "assistant_ordered": partial(assistant, ordered=True),
}


class Shelf:
    """Pairs, each written once, and their targets, each loaded once."""

    def __init__(self, root: Path) -> None:
        torch.set_num_threads(1)
        self.root = root
        self._pairs: dict[str, Pair] = {}
        self._targets: dict[str, LanguageModel] = {}
        self._plain: dict[str, dict[tuple[str, int], list[int]]] = {}

    def __getitem__(self, name: str) -> Pair:
        if name not in self._pairs:
            (self.root / name).mkdir()
            self._pairs[name] = PAIRS[name](self.root / name)
        return self._pairs[name]

    def target(self, name: str) -> LanguageModel:
        """The target of a pair, loaded."""
        if name not in self._targets:
            self._targets[name] = self[name].load()
        return self._targets[name]

    def session(self, name: str, batch: int, **blocks: Any) -> Session:
        """A session that drafts with a pair, everything read from disk."""
        return session(recipe(self[name], batch, **blocks), self.target(name), self.root / "steps")

    def plain(self, name: str, asked: list[Request]) -> dict[str, list[int]]:
        """What plain decoding makes of requests, one by one; an id stands for one prompt."""
        known = self._plain.setdefault(name, {})
        new = [r for r in asked if (r.id, r.max_new_tokens) not in known]
        if new:
            found = tokens(self.session(name, 1, draft={"algorithm": "NONE"}), new)
            known |= {(r.id, r.max_new_tokens): found[r.id] for r in new}
        return {r.id: known[r.id, r.max_new_tokens] for r in asked}


def recipe(pair: Pair, batch: int = 1, **blocks: Any) -> ResolvedRecipe:
    """A recipe for a pair; `blocks` add to draft, verify, sampling and run."""
    draft = {"algorithm": pair.algorithm} | ({"model": str(pair.draft)} if pair.draft else {})
    run = {"batch_size": batch, "max_length": LONGEST, "prefill_chunk": CHUNK}
    written: dict[str, Any] = copy.deepcopy(
        {"recipe": "tiny/draft", "target": {"model": str(pair.target)}, "draft": draft, "run": run}
    )
    for block, fields in blocks.items():
        given = written.setdefault(block, {})
        plain = block == "draft" and fields.get("algorithm") == "NONE"
        written[block] = dict(fields) if plain else given | fields
    return resolve(loads(yaml.safe_dump(written), "tiny.yaml"))


def requests(count: int, new: int, seed: int = 3) -> list[Request]:
    """Prompts of one token, of two, of a few, of more than a chunk; they end at different times."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (1, 5, 19, 2, 8, 11, 3)
    made = []
    for i in range(count):
        ids = torch.randint(3, VOCABULARY, (lengths[i % 7],), generator=generator).tolist()
        made.append(Request(str(i), ids, new + 2 * (i % 4)))
    return made
