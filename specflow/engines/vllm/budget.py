"""V18 to V20, V23: tokens of a step, schedules of guesses, and the runner that has them all."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from specflow.engines.outcome import TOLD, WARN, Run
from specflow.engines.vllm.given import Given, architectures_of, text_of, whole
from specflow.engines.vllm.methods import BARE, METHOD, TOKENS
from specflow.engines.vllm.versions import SCHEDULE, has, key, since

BATCHED, SEQS, SCHEDULED = "max_num_batched_tokens", "max_num_seqs", "max_num_scheduled_tokens"
FEW = 8192  # below it vLLM warns of slow prefills
# Methods whose number of guesses the first runner can change from step to step (0.33).
CHANGING = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")
# Where a config says how many experts there are.
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
# DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES of two versions; in 0.28 beside all without experts.
LISTED_0_24 = frozenset(
    {
        *("Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "DeepseekV2ForCausalLM"),
        *("Qwen2MoeForCausalLM", "GraniteMoeForCausalLM"),
    }
)
LISTED_0_28 = frozenset(
    {
        *("DeepseekV2ForCausalLM", "DeepseekV4ForCausalLM", "GraniteMoeForCausalLM"),
        *("InklingForCausalLM", "InklingForConditionalGeneration", "Qwen2MoeForCausalLM"),
        *("KimiK3ForConditionalGeneration", "LongcatFlashNgramForCausalLM"),
    }
)
VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def defaults(run: Run, given: Given) -> None:
    """V18: how much a server takes at once, by the machine (get_batch_defaults)."""
    machine, world = given.machine, run["tensor_parallel_size"] * run["pipeline_parallel_size"]
    if not machine.gpu:
        tokens, seqs = 2048 * world, 128 * world
    elif machine.memory >= 160 and since(given.version, "0.28.0"):
        tokens, seqs = 16384, 1024
    elif machine.memory >= 70 and given.platform != "a100":
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    if run[SEQS] is None:
        run.set(SEQS, seqs, "V18", f"the default of a server on {given.platform}")
    if run[BATCHED] is None:
        tokens = max(tokens, run[SEQS]) if given.machine.gpu else tokens
        run.set(BATCHED, tokens, "V18", f"the default of a server on {given.platform}")


def slots(run: Run, given: Given) -> int:
    """Rows that drafting adds to a batch: a request's, by the counting of the version."""
    guesses, method = int(run[TOKENS]), run[METHOD]
    at_once = run[key("parallel_drafting")]
    counting = given.facts.slots
    if counting == "per batch":
        return (guesses - 1 if at_once else 0) + int(method == "draft_model")
    if counting == "lookahead":
        return _lookahead(run, given)
    if method == "dflash" or (at_once and method == "draft_model"):
        return guesses
    return guesses - 1 if at_once else int(method == "draft_model")


def _lookahead(run: Run, given: Given) -> int:
    """Positions of KV past those that the target runs."""
    guesses, method = int(run[TOKENS]), run[METHOD]
    if method in BARE:
        return 0
    fills_in = method == "dspark" and given.draft.get("sample_from_anchor", True) is False
    return guesses + int(method == "dflash" or fills_in)


def batched(run: Run, given: Given) -> None:
    """V18: what is left of a step's tokens for prompts; none left is no engine."""
    each, tokens, seqs = slots(run, given), run[BATCHED], run[SEQS]
    if given.facts.slots == "per batch":
        _per_batch(run, each * seqs)
    elif tokens <= each:
        run.refuse("V18", f"{tokens} tokens a step have no room for {each} slots of drafting")
    if given.facts.slots == "lookahead" and run[METHOD] in ("dflash", "dspark"):
        _draft_pass(run, each)
    if run["enable_lora"] and tokens < seqs * (run[TOKENS] + 1):
        said = f"{tokens} tokens a step are fewer than {seqs} requests of {run[TOKENS] + 1}"
        run.refuse("V23", f"{said}, which LoRA takes")


def _per_batch(run: Run, taken: int) -> None:
    tokens = run[BATCHED]
    run.values.setdefault(SCHEDULED, None)  # no argument yet, but what the scheduler goes by
    if run[SCHEDULED] is None:
        left = tokens - taken
        why = f"{taken} of {tokens} are slots of drafting"
        run.set(SCHEDULED, left, "V18", why)
    else:
        left = run[SCHEDULED]
        if tokens < left + taken:
            run.refuse("V18", f"{left} scheduled and {taken} drafting are above {tokens} a step")
    if left <= 0:
        said = f"{tokens} tokens a step less {taken} slots of drafting leave {left}"
        run.refuse("V18", said)
    if left < FEW:
        run.note("V18", TOLD, f"{left} tokens of prompt a step; below {FEW} vLLM warns")


def _draft_pass(run: Run, each: int) -> None:
    """The draft's own pass takes rows of its own: so many requests at once, no more."""
    most, tokens = run["max_num_active_seqs"] or run[SEQS], run[BATCHED]
    fit = tokens // each
    if fit < most:
        why = f"a draft pass takes {each} rows a request, of {tokens} a step"
        run.set("max_num_active_seqs", fit, "V18", why)


def schedule(run: Run, given: Given) -> None:
    """V19: guesses by the size of a batch."""
    name = key(SCHEDULE)
    if not has(given.version, SCHEDULE) or run[name] is None:
        return
    rows = _rows(run, run[name])
    if rows[0][0] != 1:
        run.refuse("V19", f"the first range of {SCHEDULE} starts at {rows[0][0]}, not at 1")
    for (_, end, _), (start, _, _) in pairwise(rows):
        if start <= end:
            run.refuse("V19", f"ranges of {SCHEDULE} overlap at {start}")
    above = max(most for _, _, most in rows)
    if above > run[TOKENS]:
        text = f"{above} guesses of the schedule are cut to the {run[TOKENS]} of the engine"
        run.note("V19", WARN, text)
    if run["data_parallel_size"] > 1:
        why = "ranks would choose different numbers of guesses"
        run.set(name, None, "V19", why)
    elif since(given.version, "0.33.0") and _stays(run, given):
        run.set(name, None, "V19", f"the first model runner runs {run[METHOD]} at one number")


def _stays(run: Run, given: Given) -> bool:
    """Whether the runner that goes has one number of guesses for a method."""
    return runner(run, given) == 1 and run[METHOD] not in CHANGING


def _rows(run: Run, value: Any) -> list[tuple[int, int, int]]:
    if not isinstance(value, list | tuple) or not value:
        run.refuse("V19", f"{SCHEDULE} is a list of [from, to, guesses]")
    out = []
    for row in value:
        if not isinstance(row, list | tuple) or len(row) != 3:
            run.refuse("V19", f"a range of {SCHEDULE} is [from, to, guesses]")
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in row):
            run.refuse("V19", f"a range of {SCHEDULE} has whole numbers")
        start, end, guesses = row
        if start <= 0 or end < start or guesses < 0:
            run.refuse("V19", f"[{start}, {end}, {guesses}] is no range of {SCHEDULE}")
        out.append((start, end, guesses))
    return sorted(out)


def runner(run: Run, given: Given) -> int:
    """Which of the two model runners goes: later versions take the second where they can."""
    said = given.env.get(VARIABLE, "")
    if said in ("0", "1"):
        return 1 + int(said)
    if run[METHOD] == "dspark" and given.facts.runner == "dense":
        return 2  # 0.28 takes it unasked, whatever the target
    takes = given.machine.gpu and _taken_for(given) and not _first_only(run, given)
    return 2 if takes else 1


def _taken_for(given: Given) -> bool:
    """Whether the second runner is the one for a target."""
    names, which = set(architectures_of(given.target)), given.facts.runner
    if which == "dense":
        experts = whole(given.target, *EXPERTS)
        return experts is None or bool(names & LISTED_0_28)
    return which == "all" or (which == "listed" and bool(names & LISTED_0_24))


def _first_only(run: Run, given: Given) -> bool:
    method = run[METHOD]
    if method not in given.facts.second:
        return True
    if run[key("parallel_drafting")] and method not in ("dflash", "dspark"):
        return True
    changes = has(given.version, SCHEDULE) and run[key(SCHEDULE)] is not None
    if changes and given.facts.runner == "listed":
        return True
    mixed = has(given.version, "use_heterogeneous_vocab")
    return bool(mixed and run[key("use_heterogeneous_vocab")])


def runners(run: Run, given: Given) -> None:
    """V20: what the runner that goes has not."""
    which, method = runner(run, given), run[METHOD]
    if given.facts.strict:
        if run[key("rejection_sample_method")] == "probabilistic" and which == 1:
            text = f"probabilistic acceptance is of the second runner ({VARIABLE}=1)"
            run.note("V20", WARN, text)
        return
    if which == 2 and _first_only(run, given):
        run.refuse("V20", f"the second model runner does not run {method} so")
    if which == 1:
        _first(run, given)
    if run["async_scheduling"] and which == 1:
        if method in ("ngram", "suffix", "custom_class", "medusa", "mlp_speculator"):
            run.refuse("V27", f"async_scheduling does not go with {method} on the first runner")
        if run[key("disable_padded_drafter_batch")]:
            text = "async_scheduling does not go with disable_padded_drafter_batch"
            run.refuse("V27", text)


def _first(run: Run, given: Given) -> None:
    method = run[METHOD]
    where = "" if given.machine.gpu else ", the one that runs without Triton,"
    if method == "dspark":
        run.refuse("V20", f"the first model runner{where} has no dspark")
    for name in ("enable_adaptive_verification", "draft_lm_head_quantization"):
        if has(given.version, name) and run[key(name)]:
            run.refuse("V20", f"the first model runner{where} has no {name}")
    if run[key("rejection_sample_method")] == "block":
        text = f"the first model runner{where} judges guesses one by one, not by block"
        run.note("V20", WARN, text)
    kinds = text_of(given.draft).get("layer_types")
    sliding = [k == "sliding_attention" for k in kinds] if isinstance(kinds, list | tuple) else []
    if method == "dflash" and any(sliding) and not all(sliding):
        run.refuse("V20", f"the first model runner{where} has no draft with some sliding layers")
    if method == "dflash" and any("DFlash2" in name for name in architectures_of(given.draft)):
        run.refuse("V20", f"the first model runner{where} has no candidate heads of DFlash2")


def target_length(run: Run, given: Given) -> None:
    """V28: the second runner drafts for every position, so the draft's length is the target's."""
    if not since(given.version, "0.33.0") or run[METHOD] != "draft_model":
        return
    draft = whole(given.draft, "max_position_embeddings")
    target = run["max_model_len"] or whole(given.target, "max_position_embeddings")
    if draft is None or target is None or draft >= target:
        return
    if runner(run, given) == 2:
        why = f"the draft has {draft} positions, and every position is drafted for"
        run.set("max_model_len", draft, "V28", why)
