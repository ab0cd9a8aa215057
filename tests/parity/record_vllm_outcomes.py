"""Record what vLLM's own SpeculativeConfig makes of arguments: FOLDER VERSION, as record_vllm.py.

FOLDER is on the path, with what vLLM imports; no kernel is run. Its class gets a stand-in for the
model's config, which reads config.json for it: the keys that the class looks at, after vLLM's own
`hf_config_override`. Written is `tests/parity/vllm-VERSION.jsonl`, one case a line.
"""

from __future__ import annotations

import copy
import json
import random
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

FOLDER, VERSION = sys.argv[1:3]
sys.path.insert(0, FOLDER)

from transformers import PretrainedConfig  # noqa: E402
from vllm.config import speculative  # noqa: E402

CASES = 600


def _config(kind: str, network: str, vocabulary: int, **more: Any) -> dict[str, Any]:
    """A config.json, as far as it is looked at."""
    return {"model_type": kind, "architectures": [network], "vocab_size": vocabulary, **more}


TARGETS = {
    "llama": _config("llama", "LlamaForCausalLM", 1000),
    "deepseek": _config("deepseek_v3", "DeepseekV3ForCausalLM", 2000, num_nextn_predict_layers=1),
    "glm": _config("glm4_moe", "Glm4MoeForCausalLM", 2000, num_nextn_predict_layers=2),
    "mimo": _config("mimo", "MiMoForCausalLM", 2000, num_nextn_predict_layers=3),
    "flash": _config("mimo_v2_flash", "MiMoV2FlashForCausalLM", 2000, num_nextn_predict_layers=3),
    "next": _config("qwen3_next", "Qwen3NextForCausalLM", 1000, num_nextn_predict_layers=1),
}
DRAFTS = {
    "small": _config("llama", "LlamaForCausalLM", 1000),
    "other": _config("llama", "LlamaForCausalLM", 999),
    "eagle3": _config("llama", "LlamaForCausalLMEagle3", 1000),
    "dflash": _config("qwen3", "DFlashDraftModel", 1000, block_size=8),
    "dspark": _config("qwen3", "Qwen3DSparkModel", 1000, block_size=7),
    "assistant": _config("gemma4_assistant", "Gemma4AssistantForCausalLM", 1000),
    "many": _config("llama", "LlamaForCausalLM", 1000, n_predict=3),
}
PATHS = (
    "org/plain",
    "org/plain",
    "org/plain",
    "org/EAGLE-LLaMA3",
    "org/x-eagle3",
    "org/Qwen-DFlash-b16",
    "org/dspark_7",
)
METHODS = (
    *(
        None,
        None,
        "ngram",
        "draft_model",
        "draft_model",
        "mtp",
        "eagle",
        "eagle3",
        "mtp",
        "deepseek_mtp",
        "glm4_moe_mtp",
    ),
    *("dflash", "dspark", "ngram_gpu", "suffix", "medusa", "nonsense"),
)


class Typed(PretrainedConfig):
    """A config whose type is that of its file, as the loader makes one."""

    def __init__(self, **keys: Any) -> None:
        kind = keys.pop("model_type", "")
        super().__init__(**keys)
        self.model_type = kind


class Model:
    """What SpeculativeConfig asks a model's config for."""

    hf_overrides = None
    quantization = tokenizer = revision = model_weights = None
    tokenizer_mode = "auto"
    trust_remote_code = False
    allowed_local_media_path = ""
    allowed_media_domains = tokenizer_revision = None
    dtype = head_dtype = "float32"
    seed = 0
    enforce_eager = False
    max_logprobs = 20
    config_format = "auto"
    is_moe = False
    made: ClassVar[dict[str, Any]] = {}  # the config.json of whichever model is loaded next

    def __init__(self, model: str, **more: Any) -> None:
        self.model = model
        override, keys = more.get("hf_overrides"), copy.deepcopy(Model.made)
        if isinstance(override, dict):
            keys, override = keys | override, None
        self.hf_config = Typed(**keys) if override is None else override(Typed(**keys))
        self.hf_text_config = self.hf_config
        self.max_model_len = more.get("max_model_len") or 4096

    @property
    def architectures(self) -> list[str]:
        return list(self.hf_config.architectures or [])

    def get_vocab_size(self) -> int:
        return int(self.hf_config.vocab_size)

    def using_transformers_backend(self) -> bool:
        return False

    def verify_with_parallel_config(self, _: Any) -> None:
        return


class Parallel:
    """What SpeculativeConfig asks the target's parallel config for."""

    enable_expert_parallel = False
    decode_context_parallel_size = 1

    def __init__(self, size: int) -> None:
        self.tensor_parallel_size = size


def patch() -> None:
    """Stand-ins where vLLM would read a checkpoint or look for a package."""
    made = speculative.SpeculativeConfig
    speculative.ModelConfig = Model
    # The file of a model is imported for two numbers, and its kernels with it.
    layers = ModuleType("vllm.model_executor.models.mimo_v2_mtp")
    file = Path(FOLDER) / (layers.__name__.replace(".", "/") + ".py")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    for found in re.finditer(r"^(_MIMO_V2_\w+_NUM_MTP_LAYERS) = (\d+)$", text, re.M):
        setattr(layers, found[1], int(found[2]))
    sys.modules[layers.__name__] = layers
    speculative.has_arctic_inference = lambda: True
    made.update_arch_ = lambda self: None
    made.create_draft_parallel_config = staticmethod(lambda *_, **__: Parallel(1))


def draw(rng: random.Random) -> dict[str, Any]:
    """A case: arguments, and the configs of its two models."""
    spec: dict[str, Any] = {}
    if (method := rng.choice(METHODS)) is not None:
        spec["method"] = method
    target, draft = rng.choice(list(TARGETS)), None
    if rng.random() < 0.7:
        spec["model"], draft = rng.choice(PATHS), rng.choice(list(DRAFTS))
    if rng.random() < 0.85:
        spec["num_speculative_tokens"] = rng.randrange(1, 9)
    for name, values, chance in _MORE:
        if rng.random() < chance:
            spec[name] = rng.choice(values)
    size = rng.choice((1, 1, 2, 4))
    return {"spec": spec, "target": target, "draft": draft, "tp": size}


_MORE: tuple[tuple[str, tuple[Any, ...], float], ...] = (
    ("prompt_lookup_min", (1, 2, 4), 0.2),
    ("prompt_lookup_max", (1, 3, 5), 0.2),
    ("draft_tensor_parallel_size", (1, 2, 4), 0.15),
    ("tensor_parallel_size", (2,), 0.02),
    ("parallel_drafting", (True,), 0.1),
    ("rejection_sample_method", ("strict", "standard", "block", "fly", "synthetic"), 0.15),
    ("draft_sample_method", ("greedy", "probabilistic"), 0.15),
    ("use_heterogeneous_vocab", (True,), 0.07),
    ("synthetic_acceptance_length", (1.5, 40.0), 0.05),
    ("synthetic_acceptance_rates", ([0.9, 0.5], [0.5, 0.9]), 0.05),
    ("enable_adaptive_verification", (True,), 0.07),
    ("dspark_draft_topk", (4,), 0.04),
    ("use_local_argmax_reduction", (True,), 0.05),
    ("index_share_for_mtp_iteration", (True,), 0.04),
    ("fly_window_size", (1, 3, 7), 0.05),
    ("suffix_decoding_max_tree_depth", (0, 6), 0.05),
    ("disable_by_batch_size", (4,), 0.02),
    ("speculative_token_tree", ("[(0,)]",), 0.01),
)
TOLD = (
    *("method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"),
    *("draft_tensor_parallel_size", "parallel_drafting", "fly_window_size"),
)


def outcome(case: dict[str, Any]) -> dict[str, Any]:
    """What the class makes of a case: values, or the name of its exception."""
    Model.made = TARGETS[case["target"]]
    target = Model("org/target")
    inside = case["draft"] is None
    Model.made = TARGETS[case["target"]] if inside else DRAFTS[case["draft"]]
    try:
        made = speculative.SpeculativeConfig(
            **copy.deepcopy(case["spec"]),
            target_model_config=target,
            target_parallel_config=Parallel(case["tp"]),
        )
    except Exception as error:  # noqa: BLE001 - whatever it stops with is the record
        return {"error": type(error).__name__}
    found = {name: getattr(made, name, None) for name in TOLD}
    return {"values": {name: value for name, value in found.items() if value is not None}}


def main() -> None:
    """All cases of a seed."""
    patch()
    rng = random.Random(VERSION)
    configs = {"targets": TARGETS, "drafts": DRAFTS}
    lines = [json.dumps(configs)]
    for _ in range(CASES):
        case = draw(rng)
        lines.append(json.dumps(case | outcome(case)))
    out = Path(__file__).with_name(f"vllm-{VERSION}.jsonl")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
