"""Rows RT, GAP and WARN of the catalogue, as remarks on arguments that passed."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.engines.outcome import OPEN, START, TOLD, WARN, Remark, Run
from specflow.engines.sglang.draft_notes import dflash, dspark, fit, names
from specflow.engines.sglang.heads import heads
from specflow.engines.sglang.names import DRAFT_BACKEND, NAME, STEPS, TOKENS, TOPK
from specflow.engines.sglang.start import Given, backends
from specflow.engines.sglang.tables import (
    EAGLE_DRAFT_BACKENDS,
    EAGLES,
    GEMMA4,
    KIMI_HYBRID,
    NO_VERIFY,
    SHAPES,
)

SERIAL = (*EAGLES, "STANDALONE", "FROZEN_KV_MTP")


def notes(run: Run, given: Given) -> None:
    """Every remark on the arguments as they run."""
    drafts = run[NAME] not in (None, "NONE")
    for rule, kind, text in (*heads(run, given), *(_remarks(run, given) if drafts else ())):
        run.note(rule, kind, text)


def _remarks(run: Run, given: Given) -> Iterator[Remark]:
    yield from _shape(run, given)
    yield from _backends(run, given)
    yield from _sampling(run, given)
    yield from fit(run, given)
    yield from names(run, given)
    if run[NAME] == "DFLASH":
        yield from dflash(run, given)
    if run[NAME] == "DSPARK":
        yield from dspark(run, given)
    yield from _serving(run)
    yield from _adaptive(run, given)
    yield from _requests(run)
    yield from _memory(run, given)


def _shape(run: Run, given: Given) -> Iterator[Remark]:
    """E9, N9, and shapes by algorithm and by target."""
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
    if given.target.architecture in NO_VERIFY:
        yield "A19", START, f"{given.target.architecture} has no kernel that verifies"
    qsa = given.target.architecture == "Qwen4ExpForConditionalGeneration"
    ring = given.target.count("indexer_compress_ratio") or 4
    if qsa and width is not None and width > ring:
        yield "A10", START, f"Qwen's sparse attention holds {ring} draft tokens, not {width}"
    inkling = given.target.architecture == "InklingForConditionalGeneration"
    if inkling and name == "EAGLE" and not run["enable_multi_layer_eagle"] and (steps or 0) > 1:
        yield "N9", START, "Inkling drafts more than one step with --enable-multi-layer-eagle alone"


def _serial_shape(run: Run, given: Given) -> Iterator[Remark]:
    """E3, E5 to E7, E10."""
    steps, topk, width = run[STEPS], run[TOPK], run[TOKENS]
    if width is None:
        yield "E3", OPEN, "a tree without --speculative-num-draft-tokens has no width"
    if steps < 1 or topk < 1:
        yield "E5", OPEN, f"{steps} steps of {topk} branches guess nothing"
    if width is not None and width < 2 and steps > 0:
        yield "E5", OPEN, f"{width} draft tokens leave no guess to verify"
    reserved = max(steps * topk, width or 0)
    context = run["context_length"] or given.target.count("max_position_embeddings")
    if 0 < context <= reserved:
        yield "E10", START, f"{reserved} reserved positions leave no room in a context of {context}"
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
            ("A17", "Gemma 4 on aiter"): "aiter" in both and arch in GEMMA4,
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


def _adaptive(run: Run, given: Given) -> Iterator[Remark]:
    """3.3, O22: what an environment makes of steps that change, and of made-up acceptance."""
    if run["speculative_adaptive"] and given.env.on("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"):
        said = "the draft's KV goes stale while it takes no step"
        yield "3.3", TOLD, f"SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND: {said}"
    mode = given.env.values.get("SGLANG_SIMULATE_ACC_TOKEN_MODE")
    if mode == "real-draft-token" and (run[TOPK] or 1) > 1:
        yield "O22", START, "SGLANG_SIMULATE_ACC_TOKEN_MODE real-draft-token is for chains: topk 1"


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
    pool = run["max_total_tokens"]
    if pool is not None and requests and 2 * length * requests > pool:
        yield "4.13", WARN, f"what {requests} requests reserve is more than {pool} tokens of KV"
    yield from _draft_kv(run, given)
    if given.target.hybrid_mamba and requests and not run["enable_linear_replayssm_spec"]:
        states = (requests + 1) * width
        yield "4.13", TOLD, f"verify keeps {states} snapshots of recurrent state"


def _draft_kv(run: Run, given: Given) -> Iterator[Remark]:
    """4.13: KV of a draft, beside the target's."""
    mine, theirs = given.draft.layers, given.target.layers
    if run[NAME] in SERIAL and mine > 0 and theirs > 0:
        said = f"KV of a token costs 1 + {mine}/{theirs} of the target's alone"
        yield "4.13", TOLD, f"{said}, the draft's layers among them"
