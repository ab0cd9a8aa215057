"""Tables of SGLang 0.5.23: machines, architectures, defaults, by rows of the rule catalogue."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Machine:
    """What a platform is to the engine.

    kind    h100, a100, b200, rtx5090, mi300, npu, xpu or cpu
    device  the torch device
    sm      compute capability, times ten; 0 off NVIDIA
    memory  MiB of one device, which sets the size of a prefill chunk
    name    its own, where rules take it for another of its kind
    """

    kind: str
    device: str
    sm: int = 0
    memory: int = 0
    name: str = ""

    @property
    def cuda(self) -> bool:
        """An NVIDIA device; ROCm calls its device cuda too, and is not one."""
        return self.sm > 0

    @property
    def hopper(self) -> bool:
        """H100 and its kin."""
        return self.sm == 90

    @property
    def sm100(self) -> bool:
        """B200 and its kin."""
        return self.sm in (100, 103)

    @property
    def sm120(self) -> bool:
        """RTX 5090 and its kin."""
        return self.sm == 120

    @property
    def blackwell(self) -> bool:
        """Either of the two."""
        return self.sm100 or self.sm120

    @property
    def rocm(self) -> bool:
        """An AMD device."""
        return self.kind == "mi300"

    @property
    def flashinfer(self) -> bool:
        """Whether FlashInfer runs here."""
        return self.cuda


H100 = Machine("h100", "cuda", sm=90, memory=80 * 1024)
A100 = Machine("a100", "cuda", sm=80, memory=80 * 1024)
B200 = Machine("b200", "cuda", sm=100, memory=180 * 1024)
RTX5090 = Machine("rtx5090", "cuda", sm=120, memory=32 * 1024)
MI300 = Machine("mi300", "cuda", memory=192 * 1024)

_MACHINES: dict[str, Machine] = {
    "h100": H100,
    "h200": H100,
    "h20": H100,
    "a100": A100,
    "l40s": Machine("a100", "cuda", sm=89, memory=48 * 1024),
    "b200": B200,
    "gb200": B200,
    "b300": Machine("b200", "cuda", sm=103, memory=270 * 1024),
    "rtx5090": RTX5090,
    "mi300": MI300,
    "mi300x": MI300,
    "npu": Machine("npu", "npu", memory=64 * 1024),
    "xpu": Machine("xpu", "xpu"),
    "cpu": Machine("cpu", "cpu"),
}
PLATFORMS = {name: replace(machine, name=name) for name, machine in _MACHINES.items()}

ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE", "FROZEN_KV_MTP", "NGRAM", "DFLASH", "DSPARK", "UNO")
RESERVED = (*ALGORITHMS, "NEXTN", "NONE")
HEADS = {  # names of heads of a DFLASH checkpoint, which are no algorithms (2.1)
    "DOMINO": "DFLASH",
    "DFLASH2": "DFLASH",
    "LILICORR": "DFLASH",
}
EAGLES = ("EAGLE", "EAGLE3")
MIXED_CHUNK = ("EAGLE", "EAGLE3", "DFLASH", "DSPARK")  # 2.5
ASSISTANTS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")  # N6

# N8: an MTP layer a step, where the name is written EAGLE.
MIMO_V2 = ("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM")
GIGACHAT = ("GigaChat35ForCausalLM", "GigaChat35ForCausalLMNextN")
STEP = ("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration")  # as a part of the name

# D1: the draft is in the target's checkpoint.
BUNDLED_MTP = (
    "DeepseekV32ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV4ForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM",
    "BailingMoeForCausalLM",
    "BailingMoeV2ForCausalLM",
    "BailingMoeV2_5ForCausalLM",
    "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration",
    "HYV3ForCausalLM",
    "HYV4ForCausalLM",
    "Qwen4ExpForConditionalGeneration",
)
SEPARATE_TOO = ("MistralLarge3ForCausalLM", "PixtralForConditionalGeneration")  # D2

# 2.4: targets whose checkpoint is rewritten into a draft when loaded as one.
WITH_MTP = frozenset(
    {
        *BUNDLED_MTP,
        *MIMO_V2,
        *GIGACHAT,
        *STEP,
        "Glm5NextForConditionalGeneration",
        "GlmOcrForConditionalGeneration",
        "LongcatFlashForCausalLM",
        "MiMoForCausalLM",
        "InklingForConditionalGeneration",
        "BailingMoeV3ForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "InternS2PreviewForConditionalGeneration",
        "InternS2MobiusForConditionalGeneration",
        "ExaoneMoEForCausalLM",
        "ExaoneMoeForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Omni_Reasoning_V3",
        "Dots3NoteForCausalLM",
    }
)

# 3.1: steps, topk, draft tokens where none is written. What has no row runs 3-1-4.
CHAIN = (3, 1, 4)
SHAPES: dict[str, tuple[int, int, int]] = {
    "LlamaForCausalLM": (5, 4, 8),
    "Grok1ForCausalLM": (5, 4, 8),
    "Grok1VForCausalLM": (5, 4, 8),
}

DFLASH_BLOCK = 16  # 3.2
DSPARK_GAMMA = 7
NGRAM_TOKENS = 12
MAX_RUNNING = 48  # 3.4
MAX_RUNNING_V4 = 256
MARKOV_HEADS = ("vanilla", "gated", "rnn")
RAGGED_MODES = ("static", "cap-accept", "compact")

# 3.3: steps an adaptive draft tries, by batch size.
ADAPTIVE_SLOTS: dict[int, tuple[int, ...]] = {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}

# 3.8
BLOCK_DRAFT_BACKENDS = ("flashinfer", "fa3", "fa4", "triton", "ascend", "trtllm_mha", "intel_xpu")
EAGLE_DRAFT_BACKENDS = (
    *("flashinfer", "triton", "intel_amx", "intel_xpu", "aiter", "fa3", "hybrid_linear_attn"),
    *("flashmla", "trtllm_mha", "trtllm_mla", "cutedsl_mla", "dsa", "nsa", "ascend", "fa4", "dsv4"),
)
PAGED_TREE_BACKENDS = ("flashinfer", "fa3", "triton")  # A2
DETERMINISTIC_BACKENDS = ("ascend", "fa3", "fa4", "flashinfer", "intel_xpu", "triton")
DETERMINISTIC_MLA_BACKENDS = ("ascend", "fa3", "fa4", "triton")

# Multi-head latent attention; Pixtral only where its text config has a kv_lora_rank.
MLA = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmMoeDsaForCausalLM",
        "Glm5NextForConditionalGeneration",
        "LongcatFlashForCausalLM",
        "HYV4ForCausalLM",
        "DotsVLMForCausalLM",
        "Dots3NoteForCausalLM",
        "MistralLarge3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        *GIGACHAT,
        "MiniCPM3ForCausalLM",
        "DeepseekVL2ForCausalLM",
        "KimiVLForConditionalGeneration",
        "KimiLinearForCausalLM",
        "KimiK3ForConditionalGeneration",
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration",
        "SarvamMLAForCausalLM",
    }
)
DEEPSEEK_FAMILY = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
        "PixtralForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "Glm5NextForConditionalGeneration",
        "HYV4ForCausalLM",
        "LongcatFlashForCausalLM",
        "Dots3NoteForCausalLM",
    }
)
DETERMINISTIC_MLA = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "MistralLarge3ForCausalLM",
        "PixtralForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "Glm4MoeLiteForCausalLM",
    }
)
KIMI_HYBRID = ("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration")
NEMOTRON_H = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "NemotronH_Omni_Reasoning_V3")
GEMMA4 = (
    "Gemma4ForConditionalGeneration",
    "Gemma4ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration",
)
LLAMA4 = ("Llama4ForConditionalGeneration", "Llama4ForCausalLM")
EXAONE = ("Exaone4ForCausalLM", "ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM")
LFM2 = ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM")
QWEN_HYBRID = (
    "Qwen3NextForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "InternS2PreviewForConditionalGeneration",
    "InternS2MobiusForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen4ExpForConditionalGeneration",
)
PLAIN_HYBRID = (
    "FalconH1ForCausalLM",
    "JetNemotronForCausalLM",
    "JetVLMForConditionalGeneration",
    "MiniCPMV4_6ForConditionalGeneration",
    "MiniCPMV4_7ForConditionalGeneration",
)
QWEN_MOE = (
    *QWEN_HYBRID,
    "Qwen3MoeForCausalLM",
    "Qwen3VLMoeForConditionalGeneration",
)
# Targets with recurrent state, whose prefix cache snapshots it (O15, O16) ...
HYBRID_MAMBA = frozenset(
    {
        *KIMI_HYBRID,
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration",
        *QWEN_HYBRID,
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5ForCausalLM",
        "MiniCPMV4_6ForConditionalGeneration",
        "MiniCPMV4_7ForConditionalGeneration",
        *NEMOTRON_H,
        "FalconH1ForCausalLM",
        "JetNemotronForCausalLM",
        "JetVLMForConditionalGeneration",
        *LFM2,
        "ZayaForCausalLM",
        "Glm5NextForConditionalGeneration",
        *GIGACHAT,
    }
)
# ... and those whose snapshots may have a buffer of their own.
EXTRA_BUFFER = (HYBRID_MAMBA | {"GraniteMoeHybridForCausalLM"}) - {
    "InternS2MobiusForConditionalGeneration",
    "JetNemotronForCausalLM",
    "JetVLMForConditionalGeneration",
    *LFM2,
    *GIGACHAT,
    "ZayaForCausalLM",
}
SINKS = frozenset(
    {"GptOssForCausalLM", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"}
    | {"IQuestQ1ForCausalLM"}
)
HYBRID_SWA = frozenset(
    {
        *SINKS,
        *MIMO_V2,
        *STEP,
        *GEMMA4,
        "DeepseekV4ForCausalLM",
        "Llama4ForConditionalGeneration",
        "LagunaForCausalLM",
        "MellumForCausalLM",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
        "InklingForConditionalGeneration",
    }
)
# Attention backends that an architecture is held to.
GPT_OSS_BACKENDS = (
    *("triton", "trtllm_mha", "fa3", "fa4", "ascend", "intel_amx", "intel_xpu", "aiter"),
)
GEMMA4_BACKENDS = ("trtllm_mha", "triton", "fa4", "ascend", "intel_xpu", "intel_amx", "aiter")
LLAMA4_BACKENDS = ("fa3", "aiter", "triton", "ascend", "trtllm_mha", "intel_xpu")
EXAONE_BACKENDS = ("fa3", "triton", "trtllm_mha")
# P13: targets whose layer norms may be sharded along the sequence.
LAYERNORM_SP = ("MuseSparkForConditionalGeneration", "Qwen3ForCausalLM")

# O11: backends audited for the unified pool.
UNIFIED_MHA = ("triton", "flashinfer", "fa3", "trtllm_mha")
UNIFIED_MLA = ("triton", "trtllm_mla", "cutedsl_mla", "flashmla", "flashinfer", "fa3")

# A19: targets without a kernel that verifies.
NO_VERIFY = ("FalconMambaForCausalLM", "MambaForCausalLM")

# K28.
MINIMAX_M3 = ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration")

# P19: tokens a rank's buffer of an all-to-all holds: the variable, and its default.
CAPACITY = {
    "mori": ("SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 4096),
    "pplx": ("SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 128),
    "flashinfer": ("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 4096),
    "megamoe": ("SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK", 8192),
}
A2A_RUNNERS = (
    *("flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_trtllm", "flashinfer_trtllm_routed"),
    "deep_gemm",
)
MXFP8_RUNNERS = (
    "cutlass",
    "deep_gemm",
    "flashinfer_megamoe",
    "flashinfer_trtllm",
    "flashinfer_trtllm_routed",
)
NO_MEGA_MOE_FALLBACK = frozenset(
    {
        "DeepseekV4ForCausalLM",
        "InternS2PreviewForConditionalGeneration",
        "MellumForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
