"""What vLLM makes of its arguments, told without vLLM, torch or a GPU.

Read in the sources of the versions in versions.py; RULES says where in them each rule is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specflow.diagnostics import closest
from specflow.engines.outcome import START, Effective, Refusal, Refused, Run
from specflow.engines.vllm import budget, checks, heads, methods, speculators
from specflow.engines.vllm.given import PLATFORMS, UNREAD, Given
from specflow.engines.vllm.lines import flat
from specflow.engines.vllm.methods import METHOD, MODEL
from specflow.engines.vllm.sampling import BESIDE_A_DRAFT, How
from specflow.engines.vllm.versions import SPEC, VERSIONS, flags_of, renamed

# Rule -> what it says, and where it is in vLLM.
RULES: dict[str, tuple[str, str]] = {
    "V1": ("names, types and choices of arguments", "config/utils.py: extra fields forbidden"),
    "V2": ("--spec-* beside the same key", "arg_utils.py: create_speculative_config"),
    "V3": ("a method where none is said", "speculative.py: __post_init__"),
    "V4": ("*_mtp is mtp", "speculative.py: __post_init__"),
    "V5": ("a draft model where none is said", "speculative.py: __post_init__"),
    "V6": ("bounds of a look-up", "speculative.py: __post_init__"),
    "V7": ("suffix decoding", "speculative.py: _validate_suffix_decoding"),
    "V8": ("a path replaces the method", "speculative.py: __post_init__"),
    "V9": ("blocks are guessed in parallel", "speculative.py: __post_init__"),
    "V10": ("guesses by what one pass predicts", "speculative.py: __post_init__"),
    "V11": ("a number of guesses is there", "speculative.py: _verify_args"),
    "V12": ("devices of the draft", "speculative.py: _verify_and_get_draft_tp"),
    "V13": ("the draft's own length", "speculative.py: _maybe_override_draft_max_model_len"),
    "V14": ("one vocabulary", "speculative.py: verify_equal_vocab_size_if_draft_model"),
    "V15": ("synthetic acceptance", "speculative.py: _resolve_synthetic_acceptance_rates"),
    "V16": ("FLy", "speculative.py: _verify_args (0.33)"),
    "V17": ("keys of one method", "speculative.py: __post_init__; vllm.py: _validate_adaptive_*"),
    "V18": ("tokens of a step", "vllm.py: _set_max_num_scheduled_tokens; arg_utils.py"),
    "V19": ("guesses by batch size", "spec_decode/dynamic/utils.py; vllm.py: _maybe_disable_*"),
    "V20": ("what a model runner has not", "vllm.py: _get_v1/_v2_model_runner_unsupported_*"),
    "V21": ("names of EAGLE networks", "transformers_utils/configs/eagle.py"),
    "V22": ("parameters of requests", "sampling_params.py: _validate_spec_decode"),
    "V23": ("LoRA takes room for every guess", "arg_utils.py: create_engine_config"),
    "V24": ("a draft as the model", "transformers_utils/config.py: maybe_override_with_*"),
    "V27": ("asynchronous scheduling", "vllm.py: __post_init__"),
    "V28": ("the draft's length is the target's", "vllm.py: _limit_max_model_len_to_draft (0.33)"),
    "V29": (
        "heads divide among ranks",
        "model.py: verify_with_parallel_config; layers/linear.py: QKVParallelLinear",
    ),
}

Step = Callable[[Run, Given], None]
# In vLLM's own order: the speculative config first, then what the engine makes of it.
STEPS: tuple[Step, ...] = (
    methods.infer,
    methods.model,
    methods.lookup,
    methods.suffix,
    methods.replaced,
    methods.parallel,
    methods.guesses,
    methods.names,
    checks.tensor_parallel,
    checks.draft_length,
    checks.synthetic,
    heads.of_draft,
    checks.vocabulary,
    checks.loose,
    checks.belongs,
    budget.defaults,
    budget.batched,
    budget.schedule,
    budget.runners,
    budget.target_length,
    heads.of_target,
)


def effective(
    args: Mapping[str, Any],
    target_config: Mapping[str, Any] | None,
    draft_config: Mapping[str, Any] | None = None,
    platform: str = "h100",
    env: Mapping[str, str] | None = None,
    version: str = VERSIONS[-1],
    requests: Mapping[str, Any] | None = None,
) -> Effective | Refused:
    """What vLLM runs with, or why it does not start; never an exception.

    args      flags by name; keys of the JSON object inside it, or by dotted names
    platform  a name of PLATFORMS
    requests  parameters of requests, of which some are answered with an error beside a draft
    """
    try:
        run = Run(flat(_mapping(args, version), version), flags_of(version).defaults)
        if args.get(SPEC) == {}:  # it is there, so vLLM makes a draft of it
            run.refuse("V11", "the JSON object says nothing: no draft model, no number of guesses")
        methods.shorthands(run, _given(version, target_config, draft_config, platform, env))
        draft = _draft(run, target_config, draft_config)
        given = _given(version, target_config, draft, platform, env)
        if speculators.names_its_target(run, given):
            return _plain(run, given)
        if not methods.speculates(run):
            return _plain(run, given)
        for step in STEPS:
            step(run, given)
        _requests(run, requests if isinstance(requests, Mapping) else {})
    except Refusal as refusal:
        return refusal.refused
    return run.outcome()


def _plain(run: Run, given: Given) -> Effective:
    """What is decided of a server that does not speculate, or whose draft is not known here."""
    budget.defaults(run, given)
    heads.of_target(run, given)
    return run.outcome()


def _given(
    version: str,
    target: object,
    draft: object,
    platform: object,
    env: Mapping[str, str] | None,
) -> Given:
    name = str(platform).lower()
    if name not in PLATFORMS:
        near = closest(name, PLATFORMS) or list(PLATFORMS)
        raise Refusal(Refused("V1", f"no platform {name!r}; did you mean {' or '.join(near)}?"))
    configs = [c if isinstance(c, Mapping) else UNREAD for c in (target, draft)]
    return Given(version, configs[0], configs[1], name, env if isinstance(env, Mapping) else {})


def _draft(run: Run, target: object, draft: object) -> object:
    """The config that the draft is built from: the target's, where its checkpoint has the draft."""
    inside = run[MODEL] is None or run[MODEL] == run["model"]
    bundled = run[METHOD] in ("mtp", "dspark") or renamed(str(run[METHOD]))
    return target if draft is None and inside and bundled else draft


def _mapping(args: object, version: str) -> Mapping[Any, Any]:
    if version not in VERSIONS:
        known = ", ".join(VERSIONS)
        raise Refusal(Refused("V1", f"no rules of vLLM {version} are known, but of {known}"))
    if not isinstance(args, Mapping):
        raise Refusal(Refused("V1", "arguments are flags by name", "TypeError"))
    return args


def _requests(run: Run, requests: Mapping[str, Any]) -> None:
    """V22: a request with such a parameter is answered with an error, and the server goes on."""
    for name, value in requests.items():
        if value and BESIDE_A_DRAFT.get(name) is How.REJECTED:
            run.note("V22", START, f"a request with {name} is answered 400 beside a draft")
