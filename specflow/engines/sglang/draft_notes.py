"""Remarks on a draft model beside its target: rows F, K, N, O and Z."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.engines.outcome import OPEN, START, TOLD, WARN, Remark, Run
from specflow.engines.sglang.env import LAG, SIMULATE
from specflow.engines.sglang.model import Config, confidence_head, domino
from specflow.engines.sglang.names import DRAFT_BACKEND, NAME, TOKENS
from specflow.engines.sglang.plan_files import plan_files
from specflow.engines.sglang.start import Given, attention_dp
from specflow.engines.sglang.tables import EAGLES

LILICORR = (
    *("candidate_topk", "hidden_size", "num_layers", "num_heads", "mlp_ratio", "factor_dim"),
    *("vector_eps", "logit_scale"),
)


def fit(run: Run, given: Given) -> Iterator[Remark]:
    """O18, O20, Z4 and token maps."""
    name, draft, target = run[NAME], given.draft, given.target
    if not draft.known or name in ("NGRAM", "UNO"):
        return
    short = draft.count("max_position_embeddings")
    long = run["context_length"] or target.count("max_position_embeddings")
    allowed = given.env.on("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
    if 0 < short < long and not allowed:
        said = f"the draft's context of {short} is shorter than the target's, {long}"
        yield "O18", START, f"{said}: set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    if name == "STANDALONE" and draft.vocab != target.vocab:
        yield "Z4", START, f"a draft of {draft.vocab} words beside a target of {target.vocab}"
    if name == "EAGLE3" and run["speculative_token_map"] is not None:
        yield "O20", WARN, "EAGLE3 has a vocabulary of its own: the token map is not used"
    if run["speculative_dsa_topk_backend"] == "torch" and not _unfused(given):
        yield "O23", START, "top-k on torch needs SGLANG_DSA_FUSE_TOPK=false"
    sink = run["speculative_draft_sink_size"]
    if sink is not None and (
        name in ("EAGLE3", "DFLASH") or (run[DRAFT_BACKEND] not in (None, "triton", "flashinfer"))
    ):
        yield "O20", WARN, "--speculative-draft-sink-size is read on triton and flashinfer alone"


def _unfused(given: Given) -> bool:
    return given.env.values.get("SGLANG_DSA_FUSE_TOPK", "").lower() in ("0", "false", "no", "n")


def names(run: Run, given: Given) -> Iterator[Remark]:
    """N7, and flags of another algorithm."""
    name = run[NAME]
    if given.draft.assistant and name not in ("FROZEN_KV_MTP", "NGRAM", "UNO"):
        yield "N7", OPEN, f"a Gemma 4 assistant does not draft as {name}"
    if name == "FROZEN_KV_MTP" and given.draft.known and not given.draft.assistant:
        yield "N6", OPEN, "FROZEN_KV_MTP needs a Gemma 4 assistant; this draft reads no KV"
    if run["enable_multi_layer_eagle"] and name not in EAGLES:
        yield "N8", WARN, f"--enable-multi-layer-eagle does nothing for {name}"
    owners = {
        "speculative_dflash_block_size": "DFLASH",
        "speculative_dspark_block_size": "DSPARK",
        "speculative_dspark_sps_table_path": "DSPARK",
        "speculative_dspark_confidence_sts_path": "DSPARK",
        "uno_lora_path": "UNO",
    }
    for field, owner in owners.items():
        if field in run.asked and name != owner:
            yield "1.1", WARN, f"--{field.replace('_', '-')} is read by {owner} alone"
    if name != "DSPARK" and given.env.ragged != "static":
        yield "2.5", WARN, f"verify mode {given.env.ragged} is of DSPARK alone"


def dflash(run: Run, given: Given) -> Iterator[Remark]:
    """F3, F9 to F13, F15, F17."""
    draft, target = given.draft, given.target
    if target.nested("quantization_config").get("lm_head") is True and run["tp_size"] > 1:
        yield "F15", START, "a quantized head of the target drafts with --tp-size 1 alone"
    if run[DRAFT_BACKEND] == "fa4" and run["speculative_draft_kv_cache_dtype"] not in (
        None,
        "auto",
    ):
        yield "F10", WARN, "a draft on fa4 keeps its KV in the type it computes in"
    if not draft.known:
        return
    block = draft.nested("dflash_config")
    said = block.get("block_size", draft.get("block_size"))
    if isinstance(said, int) and said > 0 and said != run[TOKENS]:
        yield "F9", WARN, f"a block of {run[TOKENS]} with a checkpoint trained for {said}"
    yield from _lilicorr(draft)
    head = domino(draft) or "LiLiCorrDraftModel" in draft.architectures
    if head and attention_dp(run):
        yield "F3", START, "a Domino or LiLiCorr head does not go with attention DP"
    if domino(draft) and run["speculative_domino_candidate_pool_size"] < 0:
        yield "F17", START, "--speculative-domino-candidate-pool-size is below 0"
    yield from _layers(block.get("target_layer_ids", draft.get("target_layer_ids")), draft, target)
    mask = block.get("mask_token_id", draft.get("mask_token_id"))
    if isinstance(mask, int) and target.vocab and mask >= target.vocab:
        yield "F12", START, f"the mask token, {mask}, is not of the target's {target.vocab} words"
    if mask is None and run["skip_tokenizer_init"]:
        yield "F12", START, "the mask token is neither in the config nor to be had of a tokenizer"
    depth = block.get("num_target_layers", draft.get("num_target_layers"))
    if isinstance(depth, int) and target.layers and depth != target.layers:
        yield "F13", WARN, f"the draft was trained on {depth} target layers, not {target.layers}"


def _lilicorr(draft: Config) -> Iterator[Remark]:
    """F18."""
    if "LiLiCorrDraftModel" not in draft.architectures:
        return
    block = {**draft.raw, **draft.nested("dflash_config")}
    missing = [key for key in LILICORR if block.get(f"lilicorr_{key}") is None]
    if missing:
        yield "F18", START, f"the draft's config has no lilicorr_{missing[0]}"
    topk = block.get("lilicorr_candidate_topk")
    if isinstance(topk, int) and (topk <= 0 or topk > 16 or topk & (topk - 1)):
        yield "F18", START, f"lilicorr_candidate_topk is {topk}, no power of two up to 16"


def _layers(ids: object, draft: Config, target: Config) -> Iterator[Remark]:
    if isinstance(ids, list | tuple) and target.layers:
        wrong = [i for i in ids if isinstance(i, int) and not 0 <= i < target.layers]
        if wrong:
            yield "F11", START, f"layer {wrong[0]} is not one of the target's {target.layers}"
    elif ids is None and 0 < target.layers < 4 and draft.layers > 1:
        yield "F11", START, "layers are chosen by rule for targets of at least 4"


def dspark(run: Run, given: Given) -> Iterator[Remark]:
    """K15, K17, K19 to K24."""
    draft, mode = given.draft, given.env.ragged
    dynamic = mode != "static"
    head = confidence_head(draft) if draft.known else None
    table = run["speculative_dspark_sps_table_path"]
    if dynamic and head is False:
        yield "K15", START, f"mode {mode} needs a draft with a confidence head"
    if run["speculative_dspark_confidence_sts_path"] and head is False:
        yield "K17", WARN, "temperatures of a confidence head that is not there"
    yield from _plan(run, given)
    if dynamic and not table:
        yield "K19", WARN, f"mode {mode} without a cost table verifies everything"
    compact = mode == "compact"
    if compact and (run["enable_two_batch_overlap"] or run["disable_cuda_graph_padding"]):
        yield "K21", START, "compact verify needs padded graphs and no two-batch overlap"
    if compact and attention_dp(run) and not run["disable_cuda_graph"]:
        yield "K20", START, "compact verify of a dense draft under attention DP needs graphs off"
    v4 = "DeepseekV4ForCausalLMDSpark" in draft.architectures
    if v4 and 1 < run["attn_dp_size"] < run["tp_size"] and run["device"] != "npu":
        yield "K22", START, "a DeepSeek-V4 draft under attention DP needs attn_dp_size = tp_size"
    forced = given.env.number(SIMULATE, -1.0)
    if forced > 0 and forced != 1.0 and (mode == "cap-accept" or (compact and table)):
        yield "K23", START, f"{SIMULATE} above the verify budget"
    if draft.known:
        yield from _markov(draft, given.target)


def _plan(run: Run, given: Given) -> Iterator[Remark]:
    """K16, K18, and the age of what a plan reads."""
    width = run[TOKENS]
    yield from plan_files(run, None if width is None else width - 1)
    collects = given.env.values.get("SGLANG_DSPARK_STS_COLLECT_PATH")
    if collects and run["speculative_dspark_confidence_sts_path"]:
        yield "K16", START, "temperatures are collected without temperatures in force"
    if given.env.number(LAG, 2) < 1:
        yield "3.2", TOLD, f"{LAG} below 1 counts as 1"


def _markov(draft: Config, target: Config) -> Iterator[Remark]:
    """K24."""
    blocks = {**draft.nested("dflash_config"), **draft.nested("dspark_config")}
    mask = blocks.get("mask_token_id", draft.get("mask_token_id"))
    mask = draft.get("dspark_noise_token_id") if mask is None else mask
    if mask is None:
        yield "K24", START, "the draft's config names no mask token"
    elif isinstance(mask, int) and target.vocab and mask >= target.vocab:
        yield "K24", START, f"the mask token, {mask}, is not one of the target's words"
    rank = blocks.get("markov_rank", draft.get("markov_rank", draft.get("dspark_markov_rank")))
    if not rank:
        yield "K24", START, "the draft's config has no Markov head"
