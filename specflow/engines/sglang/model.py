"""A config.json as SGLang reads it, of a target or of a draft; nothing in it is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specflow.engines.sglang.tables import (
    ASSISTANTS,
    DEEPSEEK_FAMILY,
    HYBRID_MAMBA,
    HYBRID_SWA,
    MARKOV_HEADS,
    MIMO_V2,
    MLA,
    SINKS,
    STEP,
)

_BUNDLED = (
    "dspark_block_size",
    "dspark_markov_rank",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
)


class UnusableConfig(Exception):  # noqa: N818  (what a reader answers, not a fault)
    """A draft's config that the engine's reader refuses."""


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON can have it, of bounded depth and size; None for anything else."""
    if isinstance(value, int):
        return value if abs(value) < 2**2000 else None
    if value is None or isinstance(value, float | str):
        return value
    if depth < 8 and isinstance(value, Mapping):
        return {k: _plain(v, depth + 1) for k, v in value.items() if isinstance(k, str)}
    if depth < 8 and isinstance(value, list | tuple):
        return [_plain(v, depth + 1) for v in value]
    return None


@dataclass(frozen=True)
class Config:
    """A config.json, read by key; a text config inside it goes first where the engine looks there.

    known  whether there is one at all
    """

    raw: Mapping[str, Any]
    known: bool = True

    @classmethod
    def of(cls, raw: object) -> Config:
        """A config of whatever was handed over."""
        if not isinstance(raw, Mapping):
            return cls({}, known=False)
        return cls({key: _plain(value) for key, value in raw.items() if isinstance(key, str)})

    def get(self, key: str, default: Any = None) -> Any:
        """A value of the whole config; one that it has not, its text config may have."""
        if key in self.raw or key == "model_type":
            return self.raw.get(key, default)
        inner = self.raw.get("text_config")
        value = inner.get(key) if isinstance(inner, Mapping) else None
        return default if value is None else value

    def text(self, key: str, default: Any = None) -> Any:
        """A value of the text model."""
        inner = self.raw.get("text_config")
        if isinstance(inner, Mapping):
            return inner.get(key, default)
        return self.raw.get(key, default)

    def nested(self, key: str) -> Mapping[str, Any]:
        """A block of the config, empty where there is none."""
        block = self.get(key)
        return block if isinstance(block, Mapping) else {}

    def count(self, key: str) -> int:
        """A number of the text model; 0 where there is none."""
        value = self.text(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names of the networks."""
        names = self.raw.get("architectures")
        if not isinstance(names, list | tuple):
            return ()
        return tuple(n for n in names if isinstance(n, str))

    @property
    def architecture(self) -> str:
        """The first of them, which decides; empty where there is none."""
        return next(iter(self.architectures), "")

    @property
    def assistant(self) -> bool:
        """Whether this is a Gemma 4 assistant (N6)."""
        return any(a in ASSISTANTS for a in self.architectures)

    @property
    def step(self) -> bool:
        """Whether this is of the Step family, whose names are matched in part."""
        return any(part in self.architecture for part in STEP)

    @property
    def mla(self) -> bool:
        """Multi-head latent attention."""
        if "PixtralForConditionalGeneration" in self.architectures:
            return self.text("kv_lora_rank") is not None
        return any(a in MLA for a in self.architectures)

    @property
    def dsa(self) -> bool:
        """DeepSeek's sparse attention."""
        return self.architecture in DEEPSEEK_FAMILY and self.text("index_topk") is not None

    @property
    def hybrid_mamba(self) -> bool:
        """A recurrent state beside the KV."""
        if self.architecture == "GraniteMoeHybridForCausalLM":
            kinds = self.get("layer_types")
            return isinstance(kinds, list | tuple) and "mamba" in kinds
        return self.architecture in HYBRID_MAMBA

    @property
    def hybrid_swa(self) -> bool:
        """Layers of a sliding window beside full ones."""
        return (
            self.step
            or any(a in HYBRID_SWA for a in self.architectures)
            or bool(self.text("is_hybrid_swa"))
        )

    @property
    def sinks(self) -> bool:
        """Learned attention sinks, which FlashInfer has not."""
        if any(a in SINKS for a in self.architectures):
            return True
        if any(a in MIMO_V2 for a in self.architectures):
            flags = ("add_swa_attention_sink_bias", "add_full_attention_sink_bias")
            return any(bool(self.text(flag)) for flag in flags)
        return bool(self.text("learnable_sink"))

    @property
    def uneven_kv(self) -> bool:
        """Keys and values of unlike width."""
        hidden, heads = self.count("hidden_size"), self.count("num_attention_heads")
        head = self.count("head_dim") or (hidden // heads if heads else 0)
        swa = self.count("swa_head_dim") or head
        value = self.count("v_head_dim") or head
        return head != value or swa != (self.count("swa_v_head_dim") or swa)

    @property
    def bundles_dspark(self) -> bool:
        """Whether a DSPARK head lies in the target's own checkpoint (D5)."""
        return any(self.get(key) is not None for key in _BUNDLED)

    @property
    def vocab(self) -> int:
        """Words; 0 where it does not say."""
        return self.count("vocab_size")

    @property
    def layers(self) -> int:
        """Layers; 0 where it does not say."""
        return self.count("num_hidden_layers")


def _whole(value: Any, name: str, least: int) -> int | None:
    """A number as the engine's reader takes it: anything that `int` takes."""
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnusableConfig(f"{name} is {value!r}"[:80]) from error
    if number < least:
        raise UnusableConfig(f"{name} is {number}, below {least}")
    return number


def _pair(block: Mapping[str, Any], first: str, second: str) -> None:
    """Two numbers that go together."""
    has = [bool(_whole(block.get(key, 0), key, 0)) for key in (first, second)]
    if has[0] != has[1]:
        raise UnusableConfig(f"{first} and {second} go together")


def dflash_block(config: Config) -> int | None:
    """The block size of a DFLASH draft, None where it says none (3.2, F16)."""
    block = config.nested("dflash_config")
    _whole(config.text("num_hidden_layers"), "num_hidden_layers", 1)
    layers = block.get("num_target_layers", config.get("num_target_layers"))
    _whole(layers, "num_target_layers", 1)
    size = _whole(block.get("block_size", config.get("block_size")), "block_size", 1)
    _pair(block, "conv_kernel_size", "conv_group_size")
    _pair(block, "selector_rank", "selector_top_k")
    _scale(block)
    _layer_ids(block.get("target_layer_ids", config.get("target_layer_ids")))
    _mask(block, config)
    sink = block.get("attention_sink_bias", False)
    if not isinstance(sink, bool):
        raise UnusableConfig("attention_sink_bias is not true or false")
    if domino(config):
        _domino(block, config, size)
    return size


def domino(config: Config) -> bool:
    """Whether a DFLASH draft has a Domino head."""
    block = config.nested("dflash_config")
    return bool(block.get("projector_type", config.get("projector_type")) == "domino")


def _scale(block: Mapping[str, Any]) -> None:
    try:
        positive = float(block.get("output_multiplier", 1.0)) > 0
        float(block.get("final_logit_softcapping") or 0.0)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnusableConfig("output_multiplier is not a number") from error
    if not positive:
        raise UnusableConfig("output_multiplier is not positive")


def _layer_ids(ids: Any) -> None:
    if ids is None:
        return
    if not isinstance(ids, list | tuple) or not ids:
        raise UnusableConfig("target_layer_ids is not a list of layers")
    for each in ids:
        if _whole(each, "target_layer_ids", -(2**63)) is None:
            raise UnusableConfig("target_layer_ids names no layer")


def _mask(block: Mapping[str, Any], config: Config) -> None:
    token = block.get("mask_token", config.get("mask_token"))
    if token is not None and (not isinstance(token, str) or not token):
        raise UnusableConfig("mask_token is not a word")
    number = block.get("mask_token_id", config.get("mask_token_id"))
    if number is None:
        return
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise UnusableConfig("mask_token_id is not a token")


def _domino(block: Mapping[str, Any], config: Config, size: int | None) -> None:
    """What a Domino head must say of itself (F17)."""

    def said(key: str) -> Any:
        return block.get(key, config.get(key))

    emb = {e for e in (block.get("emb_dim"), config.get("emb_dim")) if isinstance(e, int)}
    wrong = {
        "shift_label is not true or false": not isinstance(said("shift_label"), bool),
        "pure_draft_prefix_len is not 1": said("pure_draft_prefix_len") != 1,
        "gru_hidden_dim is missing": not isinstance(said("gru_hidden_dim"), int),
        "emb_dim is missing, or said twice": len(emb) != 1,
        "a block of 1": size is not None and size <= 1,
    }
    for reason, holds in wrong.items():
        if holds:
            raise UnusableConfig(f"Domino: {reason}")


def dspark_gamma(config: Config) -> int | None:
    """Guesses a block of a DSPARK draft, None where it says none (3.2)."""
    base = dflash_block(config)
    prefixed = {key: config.get(key) for key in _BUNDLED}
    rank = prefixed["dspark_markov_rank"]
    rank = _whole(rank if rank is not None else _markov(config, "markov_rank"), "markov_rank", 0)
    kind = config.get("dspark_markov_head_type")
    kind = kind if kind is not None else _markov(config, "markov_head_type")
    if rank and kind is None and all(value is None for value in prefixed.values()):
        raise UnusableConfig("markov_head_type is missing")
    if kind is not None and str(kind).lower() not in MARKOV_HEADS:
        raise UnusableConfig(f"markov_head_type is {kind!r}"[:80])
    mask = prefixed["dspark_noise_token_id"]
    _whole(mask if mask is not None else _markov(config, "mask_token_id"), "mask_token_id", 0)
    ids = prefixed["dspark_target_layer_ids"]
    _layer_ids(ids)
    gamma = prefixed["dspark_block_size"]
    return base if gamma is None else _whole(gamma, "dspark_block_size", -(2**63))


def _markov(config: Config, key: str) -> Any:
    """A key of a DSPARK draft: in its blocks, in its text config, on top."""
    blocks = {**config.nested("dflash_config"), **config.nested("dspark_config")}
    if key in blocks:
        return blocks[key]
    value = config.text(key)
    return config.get(key) if value is None else value


def confidence_head(config: Config) -> bool | None:
    """Whether a DSPARK draft has one; None where its config does not say."""
    said = config.get("enable_confidence_head")
    return None if said is None else bool(said)


def all_sliding_or_causal(config: Config) -> bool:
    """Whether TRT-LLM's attention can serve a DFLASH draft (3.8)."""
    kinds = config.text("layer_types")
    if kinds is None:
        kinds = config.get("layer_types")
    sliding = (
        isinstance(kinds, list | tuple)
        and len(kinds) > 0
        and len(kinds) == config.text("num_hidden_layers")
        and all(kind == "sliding_attention" for kind in kinds)
    )
    return sliding or config.text("is_causal", False) is True
