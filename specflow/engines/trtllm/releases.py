"""TensorRT-LLM by release: the keys of `speculative_config`, which differ by decoding type.

| release | known from |
|---|---|
| 1.2.1 | source of its configuration, of the time when 1.3 was to come |
| 1.3.0rc27 | its published reference; what is derived of it from the source of that line |
| 1.4.0rc4 | its published reference and guide; derived values as in 1.3 |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from specflow.diagnostics import closest
from specflow.engines.flags import Flags
from specflow.engines.outcome import Refusal, Refused

TITLE = "TensorRT-LLM"
SPEC = "speculative_config"
TYPE = "decoding_type"
EAGLE, EAGLE3, MTP, NGRAM = "Eagle", "Eagle3", "MTP", "NGram"
SMALL, DFLASH, DSPARK = "Draft_Target", "DFlash", "DSpark"


def key(name: str) -> str:
    """A key of `speculative_config` by its dotted name."""
    return f"{SPEC}.{name}"


@dataclass(frozen=True)
class Release:
    """One release.

    base      keys of every decoding type
    own       keys of each decoding type besides
    trees     decoding types with a dynamic tree
    upwards   `draft_len_schedule` names the smallest batch of a range; else the largest
    counts    the key of MTP that says how many tokens are guessed
    option    how the server is told of the file
    gone      keys of other releases, and what this one has for them
    """

    version: str
    base: tuple[str, ...]
    own: Mapping[str, tuple[str, ...]]
    trees: tuple[str, ...]
    upwards: bool
    counts: str
    option: str
    gone: Mapping[str, str]

    @property
    def title(self) -> str:
        """How messages say it."""
        return f"{TITLE} {self.version}"

    @cached_property
    def flags(self) -> Flags:
        """Its keys, those of `speculative_config` by their dotted names."""
        file = f"flags-{self.version}.tsv"
        server = ((r"(.*/)?trtllm-serve",),)
        return Flags(self.title, "specflow.engines.trtllm", file, gone=self.gone, server=server)

    def has(self, name: str, kind: str = "") -> bool:
        """Whether `speculative_config` has a key, for a decoding type or for all."""
        return name in self.base or name in self.own.get(kind, ())

    def held(self, kind: str, args: Mapping[str, Any]) -> None:
        """Refuse a decoding type that this release has not, or a key that is none of the type's."""
        if kind not in self.own:
            near = closest(kind, self.own) or tuple(self.own)
            self._refuse("T2", f"{self.title} has no decoding type `{kind[:60]}`", near)
        for name in args:
            inner = name.removeprefix(f"{SPEC}.")
            if inner in (name, TYPE) or self.has(inner, kind):
                continue
            near = closest(inner, (*self.base, *self.own[kind]))
            self._refuse("T1", f"{kind} of {self.title} has no key `{inner}`", near)

    def _refuse(self, rule: str, said: str, near: tuple[str, ...] | list[str]) -> NoReturn:
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise Refusal(Refused(rule, said + hint))


_BASE = (
    *("decoding_type", "max_draft_len", "max_total_draft_tokens", "speculative_model"),
    *("max_concurrency", "draft_len_schedule", "load_format", "allow_advanced_sampling"),
)
_OLD_WINDOW = ("acceptance_window", "acceptance_length_threshold")
_WINDOW = (
    *("acceptance_rate_window_size", "acceptance_rate_threshold", "use_rejection_sampling"),
    *("advanced_sampling_mode", "enable_penalty"),
)
_EAGLE = (
    *("use_dynamic_tree", "dynamic_tree_max_topK", "max_non_leaves_per_layer"),
    *("eagle3_layers_to_capture", "eagle3_model_arch"),
)
_STATIC = ("eagle_choices", "num_eagle_layers")
_OLD_EAGLE = (*_EAGLE, *_STATIC, "greedy_sampling", "posterior_threshold", "eagle3_one_model")
_MTP = (
    *("use_relaxed_acceptance_for_thinking", "relaxed_topk", "relaxed_delta", "use_mtp_vanilla"),
    *("num_nextn_predict_layers", "begin_thinking_phase_token", "end_thinking_phase_token"),
)
_NGRAM = ("max_matching_ngram_size", "is_keep_all", "is_use_oldest", "is_public_pool")
_BLOCK = ("mask_token_id", "target_layer_ids", "attention_backend")
_DSPARK = (*_BLOCK, "block_size", "markov_rank", "markov_head_type")
_CONFIDENCE = (
    *("enable_confidence_scheduling", "confidence_cost_table_path", "confidence_calibration_path"),
    *("confidence_min_predicted_gain", "enable_fused_confidence_scheduler"),
)
_ENHANCED = ("sa_config",)
_PLAIN: dict[str, tuple[str, ...]] = {
    SMALL: (),
    NGRAM: _NGRAM,
    "AUTO": (),
    "Medusa": ("medusa_choices", "num_medusa_heads"),
    "SaveState": (
        *("output_directory", "write_interval", "file_prefix", "eagle3_layers_to_capture"),
    ),
    "User_Provided": (),
}
_SINCE: dict[str, tuple[str, ...]] = {
    "SA": ("max_matching_ngram_size", "enable_global_pool", "global_pool_size"),
    "PARD": ("mask_token_id", *_ENHANCED),
    DFLASH: _BLOCK,
}
_TRAPS = {
    "use_sa_spec": "write sa_config: {threshold: N}",
    "sa_spec_threshold": "write sa_config: {threshold: N}",
    "max_batch_size": "it stands beside speculative_config, not in it",
    "max_matching_ngram": "write max_matching_ngram_size",
    "prompt_lookup_num_tokens": "write max_draft_len",
    "num_speculative_tokens": "write max_draft_len",
    "pytorch_weights_path": "write speculative_model",
    "model": "write speculative_model",
}
_EARLIER = {
    "acceptance_window": "write acceptance_rate_window_size",
    "acceptance_length_threshold": "write acceptance_rate_threshold, of drafted tokens",
    "greedy_sampling": "it was removed",
    "posterior_threshold": "it was removed",
    "eagle3_one_model": "it was removed: the draft is part of the model",
    "mtp_eagle_one_model": "it was removed: the draft is part of the model",
}
_LATER = {
    "acceptance_rate_window_size": "write acceptance_window, of requests",
    "acceptance_rate_threshold": "write acceptance_length_threshold, of lengths",
    "use_rejection_sampling": "it came later",
    "sa_config": "it came later",
}
_STATIC_GONE = {
    "eagle_choices": "it was removed; a tree is use_dynamic_tree",
    "num_eagle_layers": "it was removed; write max_draft_len",
}


def _gone(*tables: Mapping[str, str]) -> dict[str, str]:
    return {key(name): text for table in tables for name, text in table.items()}


_RELEASES = (
    Release(
        version="1.2.1",
        base=(*_BASE, *_OLD_WINDOW),
        own=_PLAIN | {EAGLE: _OLD_EAGLE, EAGLE3: _OLD_EAGLE, MTP: (*_MTP, "mtp_eagle_one_model")},
        trees=(),
        upwards=True,
        counts="num_nextn_predict_layers",
        option="--extra_llm_api_options",
        gone=_gone(_TRAPS, _LATER),
    ),
    Release(
        version="1.3.0rc27",
        base=(*_BASE, *_WINDOW),
        own=_PLAIN
        | _SINCE
        | {
            EAGLE: (*_EAGLE, *_STATIC),
            EAGLE3: (*_EAGLE, *_STATIC, *_ENHANCED),
            MTP: (*_MTP, *_ENHANCED),
            DSPARK: _DSPARK,
        },
        trees=(EAGLE3,),
        upwards=False,
        counts="max_draft_len",
        option="--config",
        gone=_gone(_TRAPS, _EARLIER),
    ),
    Release(
        version="1.4.0rc4",
        base=(*_BASE, *_WINDOW, "moe_backend", "moe_tactic", "spec_dec_variant"),
        own=_PLAIN
        | _SINCE
        | {
            EAGLE: (*_EAGLE, *_ENHANCED),
            EAGLE3: (*_EAGLE, *_ENHANCED),
            MTP: (
                *_MTP,
                *_ENHANCED,
                *("use_dynamic_tree", "dynamic_tree_max_topK"),
                *("draft_lm_head_dtype", "draft_moe_dtype"),
            ),
            DSPARK: (*_DSPARK, *_CONFIDENCE),
        },
        trees=(EAGLE3, MTP),
        upwards=False,
        counts="max_draft_len",
        option="--config",
        gone=_gone(_TRAPS, _EARLIER, _STATIC_GONE),
    ),
)
RELEASES: Mapping[str, Release] = {release.version: release for release in _RELEASES}
