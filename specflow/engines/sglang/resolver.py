"""SGLang 0.5.23: what its resolver makes of arguments, told without SGLang, torch or a GPU.

The rules are those of `spec/constraints.md`, in its order of evaluation (section 0); a row's letter
and number is the name of its rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specflow.diagnostics import closest
from specflow.engines.outcome import Effective, Refusal, Refused, Run, shown
from specflow.engines.sglang import (
    architectures,
    checks,
    experts,
    fp4,
    minimax,
    sharding,
    start,
    state,
    targets,
)
from specflow.engines.sglang import backends as attention
from specflow.engines.sglang.engine import engine_start
from specflow.engines.sglang.env import Env, remark
from specflow.engines.sglang.flags import FLAGS
from specflow.engines.sglang.model import Config
from specflow.engines.sglang.notes import notes
from specflow.engines.sglang.speculative import speculate
from specflow.engines.sglang.start import DRAFT_PATH, TARGET_PATH, Given
from specflow.engines.sglang.tables import PLATFORMS

Step = Callable[[Run, Given], None]

STEPS: tuple[tuple[str, Step], ...] = (
    ("old spelling of attention DP", start.old_dp_attention),
    ("MegaMoE", experts.mega_moe),
    ("hidden states without a draft", start.capture_without_draft),
    ("old names of backends", start.old_backends),
    ("device", start.device),
    ("quantization of the draft", start.draft_quantization),
    ("PD", start.prefill_decode),
    ("parallel sizes", start.parallel),
    ("defaults of the device", start.device_defaults),
    ("DCP of an NPU", start.npu_dcp),
    ("multi-layer EAGLE", targets.multi_layer),
    ("IQuest Q1", targets.iquest),
    ("backend of the architecture", architectures.own_backend),
    ("DeepSeek", architectures.deepseek),
    ("prefill of DeepSeek in parallel", sharding.deepseek_cp),
    ("MoE runner", architectures.moe_runner),
    ("Qwen hybrids", architectures.qwen_hybrid),
    ("Nemotron-H", architectures.nemotron),
    ("Kimi", targets.kimi),
    ("GLM-5-Next", targets.glm5_next),
    ("DeepSeek-V4", targets.deepseek_v4),
    ("DeepSeek-V4.1", targets.deepseek_v41),
    ("MiniMax-M3", minimax.minimax_m3),
    ("Muse Spark", targets.muse_spark),
    ("backends an architecture is held to", architectures.held_to_backends),
    ("recurrent state", state.recurrent_state),
    ("deterministic inference", attention.deterministic),
    ("prefill of FP4 KV", fp4.fp4_prefill),
    ("attention backend and pages", attention.attention),
    ("linear attention", state.linear_attention),
    ("FP4 KV", fp4.fp4_kv),
    ("page", attention.page_default),
    ("HiCache", checks.host_cache),
    ("attention DP", checks.data_parallel),
    ("context parallelism", sharding.context_parallel),
    ("sharded KV", sharding.kv_sharding),
    ("runner of a quantization", experts.quantized_runner),
    ("MTP layer of an FP4 checkpoint", experts.draft_of_fp4),
    ("all-to-all of experts", experts.all_to_all),
    ("pipeline", checks.pipeline),
    ("speculative decoding", speculate),
    ("layer norms along the sequence", checks.layernorm_sp),
    ("buffers of experts", experts.budgets),
    ("weight cache", checks.weight_cache),
    ("LMCache", checks.external_cache),
    ("unified memory", checks.unified_memory),
    ("sharded KV again", sharding.kv_sharding),
    ("all-to-all of the draft", experts.draft_all_to_all),
    ("engine start", engine_start),
    ("remarks", notes),
)


def effective(
    args: Mapping[str, Any],
    target_config: Mapping[str, Any] | None,
    draft_config: Mapping[str, Any] | None = None,
    platform: str = "h100",
    env: Mapping[str, str] | None = None,
) -> Effective | Refused:
    """What SGLang runs with, or why it does not start; never an exception.

    args    flags by name, with dashes or without; what is left out, or None, is open
    platform  a row of PLATFORMS; the device of `args` goes before its own
    """
    try:
        run = Run(_asked(args, draft_config), FLAGS.defaults)
        given = Given(
            Config.of(target_config), Config.of(draft_config), _machine(platform), Env.of(env)
        )
        remark(run, given.env)
        for _, step in STEPS:
            step(run, given)
    except Refusal as refusal:
        return refusal.refused
    return run.outcome()


def _asked(args: object, draft_config: object) -> dict[str, Any]:
    if not isinstance(args, Mapping):
        raise Refusal(Refused("1.1", "arguments are flags by name", "TypeError"))
    asked = FLAGS.checked(args)
    asked.setdefault("model_path", TARGET_PATH)
    if isinstance(draft_config, Mapping):
        asked.setdefault("speculative_draft_model_path", DRAFT_PATH)
    return asked


def _machine(platform: object) -> Any:
    name = platform.lower() if isinstance(platform, str) else shown(platform)
    if name not in PLATFORMS:
        near = closest(name, PLATFORMS) or list(PLATFORMS)
        said = f"no platform {name!r}; did you mean {' or '.join(near[:4])}?"
        raise Refusal(Refused("3.6", said, "RuntimeError"))
    return PLATFORMS[name]
