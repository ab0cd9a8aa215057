"""Laws of engines: any arguments have an outcome, the same twice; written out it stays so."""

from __future__ import annotations

import inspect
import math
import shlex
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.engines.command_line import read, words
from specflow.engines.outcome import Effective, Refusal, Refused
from specflow.engines.sglang.flags import FLAGS
from specflow.engines.sglang.imports import from_args
from specflow.engines.sglang.model import Config
from specflow.engines.sglang.resolver import effective
from specflow.engines.sglang.tables import (
    ALGORITHMS,
    ASSISTANTS,
    BUNDLED_MTP,
    HYBRID_MAMBA,
    PLATFORMS,
    WITH_MTP,
)
from tests.unit.test_sglang_rules import DFLASH, DSPARK, EAGLE3, LLAMA, like


def nested(levels: int) -> list[Any]:
    """Lists in lists, deeper than Python prints."""
    out: list[Any] = []
    for _ in range(levels):
        out = [out]
    return out


STRANGE_VALUES: tuple[Any, ...] = (
    *(10**400, -(10**5000), math.nan, math.inf, -math.inf, "\x00", "\ud800", "²", b"x", ()),
    *(nested(2000), {1: 2}, {"a": {"b": [math.nan]}}, object(), range(3), 1 + 2j, {1, 2}),
)
LEAF = st.one_of(
    st.integers(),
    st.integers(-3, 20),
    st.booleans(),
    st.none(),
    st.floats(),
    st.text(max_size=8),
    st.integers(0, len(STRANGE_VALUES) - 1).map(STRANGE_VALUES.__getitem__),  # not all print
)
ODD = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
NAMES = st.sampled_from([*ALGORITHMS, "NEXTN", "NONE", "eagle", "nextn", "Dspark"])
ENV = st.dictionaries(
    st.sampled_from(
        [
            "SGLANG_RAGGED_VERIFY_MODE",
            "SGLANG_ENABLE_PP_SPEC",
            "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION",
            "SGLANG_SIMULATE_ACC_LEN",
            "SGLANG_SPEC_TP_SYNC",
            "SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS",
            "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK",
        ]
    ),
    st.one_of(
        st.sampled_from(["", "1", "0", "static", "compact", "cap-accept", "3.5", "all,-rng"]), ODD
    ),
    max_size=2,
)


def of_type(name: str) -> st.SearchStrategy[Any]:
    """A value of a flag's own type, mostly a likely one."""
    flag = FLAGS.all[name]
    if name == "speculative_algorithm":
        return NAMES
    if flag.choices:
        return st.sampled_from(flag.choices)
    by_type = {
        "int": st.one_of(st.integers(-2, 20), st.sampled_from([0, 16, 64, 128, 2**31, 10**30])),
        "float": st.floats(-1, 2),
        "bool": st.booleans(),
        "str": st.text(max_size=6),
        "list": st.lists(st.integers(0, 4), max_size=3),
        "any": ODD,
    }
    return by_type[flag.type.rstrip("?")]


SPECULATIVE = sorted(n for n in FLAGS.all if n.startswith("speculative_") or "spec" in n)
USUAL = (
    *("attention_backend", "page_size", "tp_size", "pp_size", "attn_dp_size", "enable_dp_lm_head"),
    *("disaggregation_mode", "enable_mixed_chunk", "kv_cache_dtype", "enable_lora", "device"),
    *("mamba_radix_cache_strategy", "disable_radix_cache", "max_running_requests", "dcp_size"),
)
TYPED = st.lists(
    st.one_of(
        st.sampled_from(SPECULATIVE), st.sampled_from(USUAL), st.sampled_from(sorted(FLAGS.all))
    ),
    max_size=7,
    unique=True,
).flatmap(lambda names: st.fixed_dictionaries({n: of_type(n) for n in names}))
LIKELY = st.fixed_dictionaries(
    {"speculative_algorithm": NAMES},
    optional={
        "speculative_num_steps": st.integers(1, 7),
        "speculative_eagle_topk": st.integers(1, 4),
        "speculative_num_draft_tokens": st.integers(2, 16),
    },
)
ANY = st.dictionaries(
    st.one_of(st.sampled_from(sorted(FLAGS.all)), st.text(max_size=9)), ODD, max_size=6
)
ARGS = st.one_of(ANY, TYPED, LIKELY, st.builds(lambda a, b: {**a, **b}, LIKELY, TYPED))
ARCHITECTURES = sorted({"LlamaForCausalLM", *BUNDLED_MTP, *WITH_MTP, *HYBRID_MAMBA, *ASSISTANTS})
KEYS = (
    *("architectures", "text_config", "dflash_config", "dspark_config", "num_hidden_layers"),
    *("hidden_size", "num_attention_heads", "head_dim", "v_head_dim", "vocab_size", "block_size"),
    *("index_topk", "model_type", "layer_types", "target_layer_ids", "mask_token_id"),
    *("markov_rank", "markov_head_type", "projector_type", "dspark_block_size", "is_causal"),
    *("num_nextn_predict_layers", "max_position_embeddings", "quantization_config"),
)
STRANGE = st.dictionaries(st.sampled_from(KEYS), ODD, max_size=6)
SANE = st.one_of(
    st.sampled_from([LLAMA, DFLASH, DSPARK, EAGLE3]), st.sampled_from(ARCHITECTURES).map(like)
)
CONFIG = st.one_of(SANE, st.builds(lambda a, b: {**a, **b}, SANE, STRANGE), STRANGE, ODD)
SETTINGS = st.one_of(ENV, ODD)
PLATFORM = st.one_of(st.sampled_from(sorted(PLATFORMS)), st.text(max_size=5), ODD)


@settings(max_examples=400, deadline=None)
@given(
    args=st.one_of(ARGS, ODD),
    target=CONFIG,
    draft=CONFIG,
    platform=PLATFORM,
    env=st.one_of(ENV, ODD),
)
def test_any_arguments_have_an_outcome_and_always_the_same(
    args, target, draft, platform, env
) -> None:
    first = effective(args, target, draft, platform, env)
    assert isinstance(first, Effective | Refused)
    assert effective(args, target, draft, platform, env) == first
    if isinstance(first, Refused):
        assert first.rule
        assert first.reason
        return
    for decision in first.decisions:
        assert first[decision.field] == decision.value
        assert decision.because
    decided = {d.field for d in first.decisions}
    for name, flag in FLAGS.all.items():
        if name not in decided and name not in {"model_path", "speculative_draft_model_path"}:
            assert first[name] in (args.get(name), flag.default) or name not in args


def test_an_outcome_is_asked_for_by_these_names() -> None:
    names = list(inspect.signature(effective).parameters)
    assert names == ["args", "target_config", "draft_config", "platform", "env"]
    got = effective(args={}, target_config=LLAMA, draft_config=None, platform="b200", env={})
    assert isinstance(got, Effective)
    assert got["attention_backend"] == "trtllm_mha"


# What a second start takes for granted: the algorithm by its name, its numbers, its backends.
SETTLED = (
    *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"),
    *("speculative_num_draft_tokens", "speculative_adaptive", "enable_multi_layer_eagle"),
    *("speculative_use_rejection_sampling", "speculative_draft_attention_backend"),
    *("attention_backend", "page_size", "max_running_requests", "disable_overlap_schedule"),
    *("enable_mixed_chunk",),
)


@settings(max_examples=300, deadline=None)
@given(args=LIKELY, target=SANE, draft=SANE, platform=st.sampled_from(sorted(PLATFORMS)))
def test_what_is_effective_stays_so_when_it_is_written_out(args, target, draft, platform) -> None:
    """Writing out what SGLang made of arguments starts the same server.

    But for row N4: a name that is not written EAGLE misses the rules that ask for that word; and
    where topk is overruled, since the page is picked by the topk that was asked (section 0); and of
    recurrent targets, whose page is held to account only if it is written (O16).
    """
    first = effective(args, target, draft, platform)
    if isinstance(first, Refused) or any(note.rule == "N4" for note in first.notes):
        return
    topk = first.decision("speculative_eagle_topk")
    if topk is not None and topk.overrides:
        return
    if Config.of(target).hybrid_mamba:
        return
    again = dict(args) | {f: first[f] for f in SETTLED if first[f] is not None}
    second = effective(again, target, draft, platform)
    assert isinstance(second, Effective), second
    assert {f: second[f] for f in SETTLED} == {f: first[f] for f in SETTLED}


LINES = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.one_of(
            st.sampled_from([*(f.option for f in FLAGS.all.values())]),
            st.sampled_from(["1", "-1", "true", "x", "'", "--no-x", "A=1", "NGRAM", "--tp-size=2"]),
            st.text(max_size=5),
        ),
        max_size=8,
    ).map(" ".join),
)


@settings(max_examples=400, deadline=None)
@given(line=LINES)
def test_any_line_is_read_or_refused_and_what_is_read_is_a_recipe(line) -> None:
    try:
        args, env = read(FLAGS, line)
    except Refusal:
        return
    assert isinstance(effective(args, LLAMA), Effective | Refused)
    found = from_args(args, env)
    assert set(found.written) <= {"target", "draft", "verify", "run", "engine"}
    assert read(FLAGS, shlex.join(words(FLAGS, args)))[0] == args
