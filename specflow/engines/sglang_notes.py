"""Rows RT, GAP and WARN of the catalogue, as remarks on arguments that passed."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.engines.outcome import Kind, Run
from specflow.engines.sglang_env import SIMULATE
from specflow.engines.sglang_model import Config, confidence_head, domino
from specflow.engines.sglang_start import Given, attention_dp, backends
from specflow.engines.sglang_tables import (
    EAGLE_DRAFT_BACKENDS,
    EAGLES,
    KIMI_HYBRID,
    SHAPES,
)

Remark = tuple[str, Kind, str]

NAME = "speculative_algorithm"
STEPS, TOPK, TOKENS = (
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
DRAFT_BACKEND = "speculative_draft_attention_backend"
START, OPEN, WARN, TOLD = Kind.AT_START, Kind.UNCHECKED, Kind.WARNS, Kind.TOLD
LILICORR = (
    *("candidate_topk", "hidden_size", "num_layers", "num_heads", "mlp_ratio", "factor_dim"),
    *("vector_eps", "logit_scale"),
)
SERIAL = (*EAGLES, "STANDALONE", "FROZEN_KV_MTP")


def notes(run: Run, given: Given) -> None:
    """Every remark on the arguments as they run."""
    if run[NAME] in (None, "NONE"):
        return
    for rule, kind, text in _remarks(run, given):
        run.note(rule, kind, text)


def _remarks(run: Run, given: Given) -> Iterator[Remark]:
    yield from _shape(run, given)
    yield from _backends(run, given)
    yield from _sampling(run, given)
    yield from _draft(run, given)
    yield from _names(run, given)
    if run[NAME] == "DFLASH":
        yield from _dflash(run, given)
    if run[NAME] == "DSPARK":
        yield from _dspark(run, given)
    yield from _serving(run)
    yield from _requests(run)
    yield from _memory(run, given)


def _shape(run: Run, given: Given) -> Iterator[Remark]:
    """E9, N9, O17, and shapes by algorithm."""
    name, steps, topk, width = run[NAME], run[STEPS], run[TOPK], run[TOKENS]
    if name in SERIAL and None not in (steps, topk):
        yield from _serial_shape(run, given)
    if name == "NGRAM":
        yield from _ngram(run)
    if run["enable_multi_layer_eagle"] and name in EAGLES:
        if topk != 1:
            yield "E9", START, f"an MTP layer a step drafts chains: topk 1, not {topk}"
        layers = given.target.count("num_nextn_predict_layers")
        if layers and steps is not None and steps > layers:
            yield "E9", TOLD, f"{steps} steps, but the checkpoint has {layers} MTP layers"
    v4 = given.target.architecture == "DeepseekV4ForCausalLM"
    if v4 and width is not None and width > 10:
        yield "O17", START, f"DeepSeek-V4 holds 10 draft tokens, not {width}"
    inkling = given.target.architecture == "InklingForConditionalGeneration"
    if inkling and name == "EAGLE" and not run["enable_multi_layer_eagle"] and (steps or 0) > 1:
        yield "N9", START, "Inkling drafts more than one step with --enable-multi-layer-eagle alone"


def _serial_shape(run: Run, given: Given) -> Iterator[Remark]:
    """E3, E5 to E7."""
    steps, topk, width = run[STEPS], run[TOPK], run[TOKENS]
    if width is None:
        yield "E3", OPEN, "a tree without --speculative-num-draft-tokens has no width"
    if steps < 1 or topk < 1:
        yield "E5", OPEN, f"{steps} steps of {topk} branches guess nothing"
    most = topk + (steps - 1) * topk * topk
    if width is not None and topk > 1 and steps > 0 and width - 1 > most:
        said = f"{steps} steps of {topk} branches score {most} guesses, fewer than {width - 1}"
        yield "E6", START, said
    slots = (
        (run["max_running_requests"] or 0) * topk * given.target.count("max_position_embeddings")
    )
    if slots >= 2**31:
        yield "E7", START, "requests times topk times context do not fit 31 bits"


def _ngram(run: Run) -> Iterator[Remark]:
    least, most = (run[f"speculative_ngram_{k}_bfs_breadth"] for k in ("min", "max"))
    if least > most:
        yield "G7", OPEN, f"the least breadth, {least}, is above the most, {most}"
    for field in ("speculative_ngram_max_trie_depth", "speculative_ngram_capacity"):
        if run[field] <= 0:
            yield "G7", OPEN, f"--{field.replace('_', '-')} is not positive"
    if run[STEPS] == 0:
        yield "G8", OPEN, f"{run[TOKENS]} draft tokens of breadth {most} make 0 steps"
    corpus = run["speculative_ngram_external_corpus_path"]
    if corpus is not None and run["skip_tokenizer_init"]:
        yield "G6", START, "a corpus needs a tokenizer"
    if run["speculative_draft_model_path"] is not None:
        yield "D3", WARN, "NGRAM has no draft model: the path is not used"


def _backends(run: Run, given: Given) -> Iterator[Remark]:
    """A5 to A16."""
    name, topk, steps = run[NAME], run[TOPK], run[STEPS]
    prefill, decode = backends(run)
    both, arch = {prefill, decode}, given.target.architecture
    if "hpc_ops" in both:
        yield "A5", START, "hpc_ops does not speculate"
    if topk is not None and topk > 1:
        chains = {
            ("A6", "flashinfer with latent attention"): "flashinfer" in both and given.target.mla,
            ("A6", "flashmla"): "flashmla" in both,
            ("A7", "aiter"): "aiter" in both,
            ("A8", "lightning attention"): arch == "BailingMoeV2_5ForCausalLM",
            ("A9", "KDA verified on flashinfer"): arch in KIMI_HYBRID
            and run["linear_attn_verify_backend"] == "flashinfer",
            ("A10", "Qwen's sparse attention"): arch == "Qwen4ExpForConditionalGeneration",
            ("A11", "MiniMax-M3 on ROCm"): arch.startswith("MiniMaxM3") and given.machine.rocm,
        }
        for (rule, what), holds in chains.items():
            if holds:
                yield rule, START, f"{what} drafts chains: topk 1, not {topk}"
        swa = given.target.hybrid_swa and both & {"fa3", "intel_xpu"}
        if swa and run["page_size"] > 1:
            yield "A12", START, "a tree over a sliding window needs --page-size 1"
        own = run[DRAFT_BACKEND] or decode
        if name == "FROZEN_KV_MTP" and own not in ("triton", "trtllm_mha"):
            yield "A15", START, f"a tree of FROZEN_KV_MTP drafts on triton or trtllm_mha, not {own}"
    own = run[DRAFT_BACKEND]
    if name in SERIAL and own is not None and own not in EAGLE_DRAFT_BACKENDS:
        yield "A14", START, f"{name} does not draft on {own}"
    if decode == "trtllm_mla" and run["dcp_size"] > 1:
        yield "A16", START, "trtllm_mla does not verify under DCP; cutedsl_mla does"
    asked = run.asked.get(TOPK)
    if name in EAGLES and asked is None and arch in SHAPES and topk != 1 and steps is not None:
        yield "E2", TOLD, f"the backend, {decode}, was picked before topk became {topk}"


def _sampling(run: Run, given: Given) -> Iterator[Remark]:
    """S2, S7, S12, S15."""
    name, rejection = run[NAME], run["speculative_use_rejection_sampling"]
    if rejection and name in ("NGRAM", "FROZEN_KV_MTP"):
        yield "S2", OPEN, f"{name} has no law to reject by: the first sampled batch fails"
    if rejection and name in ("DFLASH", "DSPARK"):
        yield "S2", OPEN, f"{name} never reads --speculative-use-rejection-sampling"
    reduced = given.draft.count("draft_vocab_size")
    if rejection and reduced and reduced != given.target.vocab:
        yield "S7", START, f"rejection sampling with a draft vocabulary of {reduced} words"
    elif rejection and run["speculative_token_map"] is not None:
        yield "S7", START, "rejection sampling with a map of a reduced draft vocabulary"
    greedy = run["device"] in ("cpu", "xpu") or (given.machine.rocm and not rejection)
    if greedy and name in (*SERIAL, "NGRAM"):
        yield "S15", TOLD, "sampled requests are verified greedily on this device"
    if run["speculative_use_block_verification"] and name == "DFLASH":
        selector = given.draft.nested("dflash_config").get("selector_rank")
        if not selector:
            yield "S12", WARN, "block verification does nothing for a greedy DFLASH draft"
    yield from _thresholds(run)


def _thresholds(run: Run) -> Iterator[Remark]:
    """S13, and what a threshold below 1 means."""
    name = run[NAME]
    for field in ("single", "acc"):
        value = run[f"speculative_accept_threshold_{field}"]
        option = f"--speculative-accept-threshold-{field}"
        if not 0 <= value <= 1:
            yield "S13", START, f"{option} is {value}, not between 0 and 1"
        elif value < 1 and name == "DSPARK":
            yield "5", WARN, f"DSPARK does not read {option}"
        elif value < 1:
            yield "5", TOLD, f"{option} below 1: the output no longer follows the target's law"


def _draft(run: Run, given: Given) -> Iterator[Remark]:
    """O18, O20, Z4 and token maps."""
    name, draft, target = run[NAME], given.draft, given.target
    if not draft.known or name in ("NGRAM", "UNO"):
        return
    short, long = (c.count("max_position_embeddings") for c in (draft, target))
    allowed = given.env.on("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
    if 0 < short < long and not allowed:
        yield "O18", START, f"the draft's context of {short} is shorter than the target's, {long}"
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


def _names(run: Run, given: Given) -> Iterator[Remark]:
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


def _dflash(run: Run, given: Given) -> Iterator[Remark]:
    """F3, F9, F11 to F13, F17."""
    draft, target = given.draft, given.target
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


def _dspark(run: Run, given: Given) -> Iterator[Remark]:
    """K15, K17, K19 to K24."""
    draft, mode = given.draft, given.env.ragged
    dynamic = mode != "static"
    head = confidence_head(draft) if draft.known else None
    table = run["speculative_dspark_sps_table_path"]
    if dynamic and head is False:
        yield "K15", START, f"mode {mode} needs a draft with a confidence head"
    if run["speculative_dspark_confidence_sts_path"] and head is False:
        yield "K17", WARN, "temperatures of a confidence head that is not there"
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


def _serving(run: Run) -> Iterator[Remark]:
    """P9, PD and decoupled servers."""
    name, topk, steps = run[NAME], run[TOPK], run[STEPS]
    if run["disaggregation_mode"] != "null":
        entries = (topk or 1) * ((steps or 1) if run["enable_multi_layer_eagle"] else 1)
        if entries > 16:
            yield "P9", START, f"PD hands over 16 guesses, not {entries}"
        if name in ("STANDALONE", "UNO", "NGRAM"):
            yield "2.5", OPEN, f"PD builds no draft input for {name}"
    role = run["decoupled_spec_role"]
    needed = ("rank", "bind_endpoint", "connect_endpoints")
    if role != "null" and any(run[f"decoupled_spec_{key}"] is None for key in needed):
        yield "1.1", START, f"--decoupled-spec-role {role} needs rank, bind and connect endpoints"
    if run["spec_trace_dir"] is not None:
        yield "1.1", WARN, "--spec-trace-dir is read nowhere"


def _requests(run: Run) -> Iterator[Remark]:
    """F14, S16, U11: requests that the server will turn down, or judge another way."""
    name = run[NAME]
    if name == "UNO":
        said = "min_p, grammars, logprobs, hidden states, penalties, logit_bias or adapters"
        yield "U11", TOLD, f"requests with {said} are refused"
    overlaps = name in ("DFLASH", "DSPARK") and not run["disable_overlap_schedule"]
    if overlaps and run["enable_return_hidden_states"]:
        yield "F14", TOLD, "requests for hidden states are refused while steps overlap"
    if name == "DFLASH" and run["device"] == "npu":
        yield "S16", TOLD, "sampled requests are verified greedily on this device"


def _memory(run: Run, given: Given) -> Iterator[Remark]:
    """4.13: what a request reserves."""
    steps, topk, width = (run[f] or 1 for f in (STEPS, TOPK, TOKENS))
    if min(steps, topk, width) < 1 or run["page_size"] < 1:
        return
    page = run["page_size"] * max(run["dcp_size"], 1)
    if run[NAME] == "UNO":
        length = width + 1
    elif page == 1 or topk == 1 or run[NAME] == "NGRAM":
        length = max(steps * topk, width)
    else:
        length = max(-(-(page - 1 + steps) // page) * page * topk, width)
    requests = run["max_running_requests"]
    most = f", {2 * length * requests} for {requests} requests" if requests else ""
    yield "4.13", TOLD, f"a request reserves {2 * length} KV positions beyond its text{most}"
    if given.target.hybrid_mamba and requests and not run["enable_linear_replayssm_spec"]:
        states = (requests + 1) * width
        yield "4.13", TOLD, f"verify keeps {states} snapshots of recurrent state"
