"""V12 to V17: keys that contradict each other, or the models."""

from __future__ import annotations

from itertools import pairwise

from specflow.engines.outcome import TOLD, WARN, Run
from specflow.engines.vllm.given import Given, architectures_of, kind_of, text_of, whole
from specflow.engines.vllm.methods import BARE, LOOKUPS, METHOD, TOKENS
from specflow.engines.vllm.versions import has, key, since

# verify_args of 0.20 lists the families whose hidden states a draft may read; later ones do not.
AUX_0_20 = (
    *("llama", "qwen", "minicpm", "gpt_oss", "hunyuan_vl", "hunyuan_v1_dense", "afmoe"),
    *("nemotron_h", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "minimax_m2", "gemma4"),
)


def tensor_parallel(run: Run, given: Given) -> None:  # noqa: ARG001
    """V12: the draft runs on one device, or on all of the target's."""
    if run[key("tensor_parallel_size")] is not None:
        text = "tensor_parallel_size is no key of the draft; it is draft_tensor_parallel_size"
        run.refuse("V12", text)
    name, target = key("draft_tensor_parallel_size"), run["tensor_parallel_size"]
    if run[METHOD] in BARE:
        return
    if run[name] is None:
        run.set(name, target, "V12", "the draft is split as the target is")
    elif run[name] not in (1, target):
        run.refuse("V12", f"draft_tensor_parallel_size {run[name]} is neither 1 nor {target}")


def draft_length(run: Run, given: Given) -> None:
    """V13: the draft's own length is checked, and read by nothing that runs."""
    name = key("max_model_len")
    asked = run[name]
    if asked is None:
        return
    for whose, config in (("draft", given.draft), ("target", given.target)):
        most = whole(config, "max_position_embeddings")
        if most is not None and asked > most:
            run.refuse("V13", f"the draft's max_model_len {asked} is above the {most} of {whose}")
    run.note("V13", WARN, f"max_model_len {asked} of the draft is read by nothing that runs")


def vocabulary(run: Run, given: Given) -> None:
    """V14: a draft model has the target's vocabulary, row for row, or is told otherwise."""
    mixed = has(given.version, "use_heterogeneous_vocab") and run[key("use_heterogeneous_vocab")]
    if mixed:
        if run[METHOD] != "draft_model":
            run.refuse("V14", f"use_heterogeneous_vocab goes with draft_model, not {run[METHOD]}")
        if run[key("draft_sample_method")] != "greedy":
            run.refuse("V14", "use_heterogeneous_vocab goes with greedy guesses alone")
        if run[key("use_local_argmax_reduction")] and since(given.version, "0.33.0"):
            run.refuse("V14", "use_heterogeneous_vocab needs whole logits, not a local argmax")
    elif run[METHOD] == "draft_model":
        ours, theirs = whole(given.draft, "vocab_size"), whole(given.target, "vocab_size")
        if ours and theirs and ours != theirs:
            said = f"the draft has {ours} rows of vocabulary and the target {theirs}"
            run.refuse("V14", said)


def synthetic(run: Run, given: Given) -> None:  # noqa: ARG001
    """V15: made-up acceptance, for measuring, says its rates in one way."""
    rates, length = run[key("synthetic_acceptance_rates")], run[key("synthetic_acceptance_length")]
    if run[key("rejection_sample_method")] != "synthetic":
        if rates is not None or length is not None:
            run.refuse("V15", "synthetic rates go with rejection_sample_method synthetic alone")
        return
    run.note("V15", WARN, "synthetic acceptance keeps no law: the output is no text of the target")
    most = run[TOKENS]
    if (rates is None) == (length is None):
        run.refuse("V15", "synthetic acceptance takes rates or a length, one of them")
    if rates is not None:
        if len(rates) != most:
            run.refuse("V15", f"{len(rates)} rates stand for {most} guesses")
        if not all(_chance(rate) for rate in rates):
            run.refuse("V15", "a rate is a chance, from 0 to 1")
        if any(later > rate for rate, later in pairwise(rates)):
            run.refuse("V15", "rates do not rise from one guess to the next")
    elif not 1 <= length <= most + 1:
        run.refuse("V15", f"synthetic_acceptance_length is from 1 to {most + 1}")


def loose(run: Run, given: Given) -> None:
    """V16: FLy accepts what the target might have said as well."""
    if run[key("rejection_sample_method")] != "fly" or not has(given.version, "fly_window_size"):
        return
    name, most = key("fly_window_size"), run[TOKENS]
    if run[METHOD] == "extract_hidden_states":
        run.refuse("V16", "FLy goes with drafts, and extract_hidden_states makes none")
    if most < 2:
        run.refuse("V16", "FLy takes two guesses or more")
    if run[name] is None:
        run.set(name, min(6, most - 1), "V16", "no window is said")
    elif run[name] >= most:
        run.refuse("V16", f"fly_window_size {run[name]} is not below the {most} guesses")
    run.note("V16", WARN, "FLy does not keep the target's law")


def belongs(run: Run, given: Given) -> None:
    """V17: keys of one method beside another."""
    method = run[METHOD]
    if method not in BARE:
        _of_networks(run, given)
    share = "index_share_for_mtp_iteration"
    if has(given.version, share) and run[key(share)] is not None and method != "mtp":
        run.refuse("V17", f"{share} goes with mtp alone")
    head = "draft_lm_head_quantization"
    shares = method in ("eagle", "eagle3", "mtp")
    if has(given.version, head) and run[key(head)] is not None and not shares:
        run.refuse("V17", f"{head} does not go with {method}")
    if method not in LOOKUPS and (run.asked.keys() & _BOUNDS):
        run.note("V17", WARN, f"the bounds of a look-up mean nothing to {method}")
    _adaptive(run, given)
    if given.facts.strict and method in ("eagle3", "extract_hidden_states", "dflash"):
        _families(run, given)


_BOUNDS = {key("prompt_lookup_min"), key("prompt_lookup_max")}


def _of_networks(run: Run, given: Given) -> None:
    """Keys that a draft's network has to know."""
    if has(given.version, "dspark_draft_topk") and run[key("dspark_draft_topk")] is not None:
        _draft_topk(run, given)
    refined = any(name.endswith("XPressModel") for name in architectures_of(given.draft))
    if has(given.version, "xpress_topc") and run[key("xpress_topc")] is not None and not refined:
        run.refuse("V17", "xpress_topc goes with an XPress draft alone")


def _draft_topk(run: Run, given: Given) -> None:
    names = architectures_of(given.draft)
    if run[METHOD] != "dspark":
        run.refuse("V17", "dspark_draft_topk goes with dspark alone")
    most = whole(given.draft, "draft_vocab_size", "vocab_size")
    if most is not None and run[key("dspark_draft_topk")] > most:
        run.refuse("V17", f"dspark_draft_topk is above the {most} ids of the draft")
    if names and not {"Qwen3DSparkModel", "Qwen3OmniDSparkModel"} & set(names):
        run.refuse("V17", f"dspark_draft_topk goes with Qwen3DSparkModel, not with {names[0]}")


def _adaptive(run: Run, given: Given) -> None:
    name = "enable_adaptive_verification"
    if not has(given.version, name) or not run[key(name)]:
        return
    allowed = given.facts.adaptive
    if allowed and run[METHOD] not in allowed:
        run.refuse("V17", f"{name} goes with {' or '.join(allowed)} alone")
    if not allowed and run[METHOD] != "dspark" and run[key("use_local_argmax_reduction")]:
        run.refuse("V17", f"{name} reads logits that use_local_argmax_reduction never makes")
    if run["enable_lora"]:
        run.refuse("V17", f"{name} does not go with LoRA")
    if run["pipeline_parallel_size"] > 1:
        run.refuse("V17", f"{name} does not go with pipeline parallelism")
    if run["enforce_eager"]:
        run.refuse("V17", f"{name} runs in full CUDA graphs, and enforce_eager has none")
    run.note("V17", TOLD, "vLLM measures the cost of its steps when it starts")


def _families(run: Run, given: Given) -> None:
    kind = kind_of(text_of(given.target))
    if kind and not any(known in kind for known in AUX_0_20):
        run.refuse("V17", f"{run[METHOD]} does not read the hidden states of {kind}")


def _chance(rate: object) -> bool:
    return isinstance(rate, int | float) and 0 <= rate <= 1
