"""A recipe becomes vLLM's arguments and comes back; what does not is named."""

from __future__ import annotations

import contextlib
import json
import shlex

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from specflow.engines.base import RECIPE_WORDS
from specflow.engines.configs import draft_config, target_config
from specflow.engines.outcome import Effective, Refusal, Refused
from specflow.engines.vllm.exports import to_args
from specflow.engines.vllm.imports import from_args
from specflow.engines.vllm.lines import read, spread, typed
from specflow.engines.vllm.row import ENGINE
from specflow.engines.vllm.rules import effective
from specflow.engines.vllm.versions import SPEC, VERSIONS, flags_of, keys_of, methods_of
from specflow.errors import RecipeError
from specflow.load import load, loads
from specflow.packs import find
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from tests.conftest import RECIPES, ROOT

NEWEST = VERSIONS[-1]
LLAMA = "target: {model: builtin:pico-llama}\n"
EAGLE3 = "algorithm: EAGLE3, model: builtin:pico-llama-eagle3"
DFLASH = "algorithm: DFLASH, model: builtin:pico-llama-dflash"
DSPARK = "algorithm: DSPARK, model: builtin:pico-llama-dspark"
# Fields that must be the same when a recipe comes back; where vLLM cannot say one, it is a gap.
CARRIED = (
    *("draft.algorithm", "draft.num_steps", "draft.topk", "draft.adaptive", "draft.adaptive_slots"),
    *("draft.block_size", "draft.min_match", "draft.max_trie_depth", "draft.predicts"),
    *("draft.window_size", "draft.taps", "verify.shape", "verify.num_draft_tokens"),
    *("verify.accept", "verify.threshold_single", "verify.threshold_acc", "verify.mode"),
    *("run.batch_size", "run.max_length", "run.dtype", "run.prefill_chunk"),
)
# A gap at one of these fields says of the others too that they are another's.
BESIDE = {
    "draft.adaptive": ("draft.adaptive_slots", "draft.num_steps", "verify.num_draft_tokens"),
    "draft.adaptive_slots": ("draft.num_steps", "verify.num_draft_tokens"),
}


def of(text: str) -> ResolvedRecipe:
    return resolve(loads(text))


def back(recipe: ResolvedRecipe, args, env, version: str) -> ResolvedRecipe:
    """The arguments as a recipe, resolved; requests and what is allowed are the first recipe's."""
    written = dict(from_args(args, env, version).written)
    sampling = recipe.sampling.model_dump()
    written["sampling"] = {k: list(v) if k == "stop" else v for k, v in sampling.items()}
    return resolve(loads(yaml.safe_dump(written)))


def command(export) -> str:
    return ENGINE.formats["args"](export, NEWEST)


def spec_of(text: str, version: str = NEWEST) -> dict:
    export = to_args(of(text), version)
    assert not export.refused
    return export.args[SPEC]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_recipe_goes_across_and_comes_back_or_is_refused(path, version) -> None:
    recipe = load(path)
    first = resolve(recipe)
    export = to_args(first, version)
    draft, shape, _ = first.stages
    if export.refused:
        lacks = draft == "DSPARK" and "dspark" not in methods_of(version)
        assert shape == "tree" or lacks or first["draft.predicts"] == "next"
        return
    assert shape != "tree"
    args, env = read(shlex.join(["vllm", "serve", *shlex.split(command(export))]), version)
    assert args == dict(export.args)
    if recipe.allow:
        return  # resolving again would need the reasons of the first
    second = back(first, args, env, version)
    gaps = {gap.at for gap in (*export.lost, *export.approximate)}
    gaps |= {field for at in gaps for field in BESIDE.get(at, ())}
    for field in CARRIED:
        if field in first and field in second and field not in gaps:
            assert second[field] == first[field], field
    assert to_args(second, version).args == export.args


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_vllm_runs_what_a_recipe_says(path) -> None:
    """Nothing that was exported is overruled: what the engine would change, the exporter knows."""
    recipe = resolve(load(path))
    export = to_args(recipe, NEWEST)
    got = effective(export.args, target_config(recipe), draft_config(recipe))
    assert isinstance(got, Effective), got
    assert [d for d in got.decisions if d.overrides] == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_key_is_one_that_the_version_takes(path, version) -> None:
    said = json.loads((ROOT / "tests" / "parity" / f"vllm-{version}.json").read_text())
    export = to_args(resolve(load(path)), version)
    assert set(export.args) <= set(said["server"])
    keys = set(export.args.get(SPEC, {}))
    assert keys <= set(said["speculative_config"])
    assert set(export.requests) <= set(said["requests"])
    if not export.refused and keys:
        assert export.args[SPEC]["method"] in said["methods"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_of_flags_is_the_record(version) -> None:
    said = json.loads((ROOT / "tests" / "parity" / f"vllm-{version}.json").read_text())
    assert set(keys_of(version)) == set(said["speculative_config"])
    assert {name for name in flags_of(version).all if "." not in name} == set(said["server"])


@pytest.mark.parametrize(
    ("draft", "guesses"),
    [
        (f"{EAGLE3}, num_steps: 2, topk: 1", 2),  # D1: SGLang's 2/1/3
        (f"{DFLASH}, block_size: 8", 7),  # D7 (a)
        (f"{DSPARK}, block_size: 7", 7),  # D7 (b)
        ("algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 5", 5),
    ],
)
def test_guesses_are_counted_without_the_bonus_token(draft, guesses) -> None:
    text = f"{LLAMA}draft: {{{draft}}}\n"
    spec = spec_of(text)
    assert spec["num_speculative_tokens"] == guesses
    first = of(text)
    second = back(first, {"model": str(first.facts["target"].folder), SPEC: spec}, {}, NEWEST)
    for field in ("draft.num_steps", "draft.block_size", "verify.num_draft_tokens"):
        if field in first:
            assert second[field] == first[field]


def test_a_tree_is_refused() -> None:
    export = to_args(resolve(load(find("pico/eagle3_tree"))), NEWEST)
    assert [gap.at for gap in export.refused] == ["verify.shape"]


@pytest.mark.parametrize("name", ["threshold_single", "threshold_acc"])
def test_a_threshold_is_refused(name) -> None:
    text = f"{LLAMA}draft: {{{EAGLE3}}}\nsampling: {{temperature: 0.8}}\n"
    text += f"verify: {{accept: target_only, {name}: 0.9}}\nallow: {{SF075: said here}}\n"
    assert f"verify.{name}" in [gap.at for gap in to_args(of(text), NEWEST).refused]


ACCEPT = {
    "target_only": {},
    "rejection": {"rejection_sample_method": "standard", "draft_sample_method": "probabilistic"},
    "block": {"rejection_sample_method": "block", "draft_sample_method": "probabilistic"},
}


@pytest.mark.parametrize(("rule", "keys"), ACCEPT.items(), ids=ACCEPT)
def test_acceptance_by_its_name_in_each_version(rule, keys) -> None:
    text = f"{LLAMA}draft: {{{EAGLE3}}}\nsampling: {{temperature: 0.8}}\n"
    text += f"verify: {{accept: {rule}}}"
    for version in ("0.28.0", "0.30.0", "0.32.0", "0.33.0"):
        spec = spec_of(text, version)
        assert {k: v for k, v in spec.items() if k.endswith("sample_method")} == keys
    old = spec_of(text, "0.20.0")
    assert old.get("rejection_sample_method") == ("probabilistic" if keys else None)
    bent = {gap.at for gap in to_args(of(text), "0.20.0").approximate}
    assert ("verify.accept" in bent) == (rule != "rejection")
    later = spec_of(text, "0.24.0")  # drawn guesses have a key by then, blocks no method yet
    assert later.get("draft_sample_method") == keys.get("draft_sample_method")
    assert later.get("rejection_sample_method") == ("standard" if keys else None)


def test_a_look_up_is_said_to_be_another_one() -> None:
    text = f"{LLAMA}draft: {{algorithm: NGRAM, min_match: 3}}\nverify: {{shape: chain}}"
    export = to_args(of(text), NEWEST)
    assert export.args[SPEC]["prompt_lookup_min"] == 3
    assert export.args[SPEC]["prompt_lookup_max"] == 17
    assert "draft.algorithm" in {gap.at for gap in export.approximate}


def test_slots_are_ranges_of_the_most_steps_of_each() -> None:
    slots = "adaptive_slots: {1: [2, 4], 8: [0, 1]}"
    text = f"{LLAMA}draft: {{{EAGLE3}, adaptive: true, num_steps: 2, {slots}}}"
    spec = spec_of(text)
    assert spec["num_speculative_tokens_per_batch_size"] == [[1, 7, 4], [8, 1024, 1]]
    assert spec["num_speculative_tokens"] == 4
    assert "draft.adaptive_slots" in {gap.at for gap in to_args(of(text), NEWEST).approximate}
    old = to_args(of(text), "0.20.0")
    assert old.args[SPEC]["num_speculative_tokens"] == 2
    assert "draft.adaptive" in {gap.at for gap in old.lost}


def test_a_planned_verify_is_a_switch_where_there_is_one() -> None:
    text = f"{LLAMA}draft: {{{DSPARK}}}\nverify: {{shape: ragged}}\nallow: {{SF050: no table}}"
    assert spec_of(text)["enable_adaptive_verification"] is True
    flash = f"{LLAMA}draft: {{{DFLASH}}}\nverify: {{shape: ragged, confidence: average}}\n"
    flash += "allow: {SF050: no table}"
    assert spec_of(flash)["enable_adaptive_verification"] is True
    assert "verify.shape" in {gap.at for gap in to_args(of(flash), "0.28.0").lost}


def test_min_p_beside_a_draft_is_told_and_left_out() -> None:
    text = f"{LLAMA}draft: {{{EAGLE3}}}\nsampling: {{temperature: 1.0, min_p: 0.05}}"
    export = to_args(of(text), NEWEST)
    (gap,) = [gap for gap in export.lost if gap.at == "sampling.min_p"]
    assert "400" in gap.text
    assert export.requests == {"temperature": 1.0}
    plain = to_args(of(text.replace(EAGLE3, "algorithm: NONE")), NEWEST)
    assert plain.requests == {"temperature": 1.0, "min_p": 0.05}


def test_a_flag_that_a_field_says_is_refused_where_it_says_otherwise() -> None:
    text = (
        f"{LLAMA}draft: {{{EAGLE3}, num_steps: 3}}\n"
        "engine: {vllm: {speculative_config: {num_speculative_tokens: HERE, quantization: fp8}}}\n"
    )
    assert [gap.at for gap in to_args(of(text.replace("HERE", "4")), NEWEST).refused] == [
        "engine.vllm.speculative_config.num_speculative_tokens"
    ]
    assert spec_of(text.replace("HERE", "3"))["quantization"] == "fp8"


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            (
                "vllm serve m --speculative-config.method eagle3 -sc.num_speculative_tokens 3 "
                "--speculative_config.model=d"
            ),
            {"draft": {"algorithm": "EAGLE3", "num_steps": 3, "model": "d"}},
        ),
        (
            """--model m -sc '{"method": "dspark", "num-speculative-tokens": 7}'""",
            {"draft": {"algorithm": "DSPARK", "block_size": 7}},
        ),
        (
            "--model m --spec-method dflash --spec-model d --spec-tokens 7 --max-num-seqs 16",
            {
                "draft": {"algorithm": "DFLASH", "block_size": 8, "model": "d"},
                "run": {"batch_size": 16},
            },
        ),
        (
            "vllm serve m --max-model-len 8K --max-num-seqs 1024",
            {
                "draft": {"algorithm": "NONE"},
                "run": {"max_length": 8192},
                "engine": {"vllm": {"max_num_seqs": 1024}},  # more than a batch of ours may have
            },
        ),
        (
            """--model m --speculative-config '{"method": "eagle", "model": "d",
            "num_speculative_tokens": 2, "rejection_sample_method": "block",
            "draft_sample_method": "probabilistic"}'""",
            {
                "draft": {"algorithm": "EAGLE", "num_steps": 2, "model": "d"},
                "verify": {"accept": "block"},
            },
        ),
    ],
)
def test_a_command_line_becomes_fields(line, fields) -> None:
    args, env = read(line, NEWEST)
    found = from_args(args, env, NEWEST)
    assert found.written == {"target": {"model": "m"}} | fields
    assert (found.lost, found.overruled, found.refused) == ((), (), ())


def imported(spec: dict, version: str = NEWEST):
    return from_args({"model": "m", SPEC: spec}, {}, version)


def test_an_old_name_of_mtp_is_told() -> None:
    found = imported({"method": "deepseek_mtp", "num_speculative_tokens": 1})
    assert found.written["draft"] == {"algorithm": "MTP", "num_steps": 1}
    assert [gap.at for gap in found.overruled] == ["--speculative-config.method"]


@pytest.mark.parametrize(
    ("path", "draft"),
    [
        ("org/EAGLE-LLaMA3", "EAGLE"),
        ("org/EAGLE3-LLaMA3", "EAGLE3"),
        ("org/Qwen3-DFlash", "DFLASH"),
        ("org/plain", "STANDALONE"),
    ],
)
def test_a_method_that_is_inferred_is_told(path, draft) -> None:
    found = imported({"model": path, "num_speculative_tokens": 3})
    assert found.written["draft"]["algorithm"] == draft
    assert [gap.at for gap in found.approximate] == ["--speculative-config.method"]


def test_a_method_that_the_path_overrules_is_told() -> None:
    spec = {"method": "draft_model", "model": "org/x-eagle3", "num_speculative_tokens": 3}
    found = imported(spec)
    assert found.written["draft"]["algorithm"] == "EAGLE3"
    assert "V8" in found.overruled[0].text


@pytest.mark.parametrize(
    "spec",
    [
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 5}
        | {"prompt_lookup_max": 3},
        {"method": "eagle", "model": "d", "num_speculative_tokens": 3, "tensor_parallel_size": 2},
    ],
)
def test_what_contradicts_itself_is_refused(spec) -> None:
    assert imported(spec).refused


def test_a_json_object_and_dotted_keys_are_not_mixed() -> None:
    """vLLM hands the dotted keys to its parser as a second object, and the last one counts."""
    line = """--model m -sc '{"method": "ngram"}' --speculative-config.num_speculative_tokens 3"""
    args, env = read(line, NEWEST)
    assert from_args(args, env, NEWEST).refused


@pytest.mark.parametrize(
    ("name", "version", "says"),
    [
        ("draft_tp", NEWEST, "draft_tensor_parallel_size"),
        ("num_speculative_token", NEWEST, "num_speculative_tokens"),
        ("disable_by_batch_size", NEWEST, "num_speculative_tokens_per_batch_size"),
        ("speculative_token_tree", "0.28.0", "chains"),
        ("fly_window_size", "0.28.0", "no key"),
        ("draft_sample_method", "0.20.0", "no key"),
    ],
)
def test_an_unknown_key_names_the_nearest(name, version, says) -> None:
    for given_as in ({SPEC: {name: 2}}, {f"{SPEC}.{name}": 2}):
        with pytest.raises(Refusal) as caught:
            from_args({"model": "m"} | given_as, {}, version)
        assert says in caught.value.refused.reason
    with pytest.raises(Refusal):
        read(f"--speculative-config.{name} 2", version)


@pytest.mark.parametrize(
    "line",
    [
        "--max-model-len eight",
        "--speculative-config {",
        "--speculative-config [1]",
        "--speculative-config.method nonsense",
        "--speculative-config.num_speculative_tokens many",
        "vllm serve m 'open",
    ],
)
def test_what_is_no_argument_is_refused(line) -> None:
    with pytest.raises(Refusal):
        from_args(*read(line, NEWEST), NEWEST)


def test_a_file_of_flags_is_named() -> None:
    found = from_args(*read("vllm serve m --config more.yaml", NEWEST), NEWEST)
    assert [gap.at for gap in found.lost] == ["--config"]
    assert "engine" not in found.written


def test_a_draft_that_no_recipe_has_is_kept_and_lost() -> None:
    spec = {"method": "suffix", "num_speculative_tokens": 16}
    found = imported(spec)
    assert [gap.at for gap in found.lost] == ["--speculative-config.method"]
    text = yaml.safe_dump(dict(found.written) | {"target": {"model": "builtin:pico-llama"}})
    assert to_args(of(text), NEWEST).args[SPEC] == spec


@pytest.mark.parametrize("form", ENGINE.formats)
def test_every_format_says_every_argument_and_is_read_again(form) -> None:
    export = to_args(resolve(load(find("pico/dspark_sampled"))), NEWEST)
    text = ENGINE.formats[form](export, NEWEST)
    for value in export.args[SPEC].values():
        assert str(value) in text
    if form in ("args", "sh"):
        assert read(text.split("set -eu")[-1], NEWEST)[0] == export.args
    elif form == "json":
        assert typed(json.loads(text)["args"], NEWEST) == export.args
    elif form == "yaml":
        assert typed(yaml.safe_load(text), NEWEST) == export.args
    else:
        compile(text, "export.py", "exec")


def test_python_has_no_flags_of_a_server() -> None:
    text = f"{LLAMA}draft: {{algorithm: NONE}}\nengine: {{vllm: {{port: 8001, seed: 4}}}}"
    lines = ENGINE.formats["python"](to_args(of(text), NEWEST), NEWEST).splitlines()
    assert "    seed=4," in lines
    assert "    # of a server: port=8001" in lines


def test_every_word_of_a_recipe_is_said() -> None:
    assert set(ENGINE.words) == set(RECIPE_WORDS)


NUMBERS = st.integers(min_value=1, max_value=9)
VALUES = {
    "num_speculative_tokens": NUMBERS,
    "model": st.sampled_from(["org/plain", "org/x-eagle3", "org/EAGLE-x", "org/y-dspark"]),
    "prompt_lookup_min": NUMBERS,
    "prompt_lookup_max": NUMBERS,
    "draft_tensor_parallel_size": st.sampled_from([1, 2]),
    "quantization": st.sampled_from(["fp8", "awq"]),
    "max_model_len": st.integers(min_value=1, max_value=10**6),
    "parallel_drafting": st.booleans(),
    "num_speculative_tokens_per_batch_size": st.lists(
        st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=3
    ),
    "suffix_decoding_max_spec_factor": st.floats(0, 4),
    "rejection_sample_method": st.sampled_from(["strict", "standard", "block", "fly", "synthetic"]),
    "draft_sample_method": st.sampled_from(["greedy", "probabilistic"]),
    "synthetic_acceptance_rates": st.lists(st.floats(0, 1), max_size=3),
    "enable_adaptive_verification": st.booleans(),
    "revision": st.text(max_size=4),
    "enforce_eager": st.booleans(),
}


@st.composite
def configs(draw, version: str):
    spec = {"method": draw(st.sampled_from(methods_of(version)))} if draw(st.booleans()) else {}
    names = [name for name in VALUES if name in keys_of(version)]
    chosen = draw(st.lists(st.sampled_from(names), unique=True))
    spec |= {name: draw(VALUES[name]) for name in chosen}
    server = {"max_num_seqs": NUMBERS, "tensor_parallel_size": NUMBERS, "seed": NUMBERS}
    args = {name: draw(values) for name, values in server.items() if draw(st.booleans())}
    return {"model": "m"} | args | ({SPEC: spec} if spec else {})


def usual(args: dict, version: str) -> dict:
    """Flags that say something: neither a default, nor a model's name, which is a folder back."""
    flags = flags_of(version)
    said = {n: list(v) if isinstance(v, tuple) else v for n, v in spread(args).items()}
    models = ("model", f"{SPEC}.model")
    return {n: v for n, v in said.items() if n not in models and v != flags[n].default}


def named_by(*gaps) -> set[str]:
    """Flags that a gap names, by their own names."""
    return {gap.at.lstrip("-").replace("-", "_") for gap in gaps}


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_any_arguments_are_read_or_refused(version, data) -> None:
    """No exception but a refusal."""
    args = data.draw(configs(version))
    found = effective(args, {"vocab_size": 10}, {"vocab_size": 10}, version=version)
    assert isinstance(found, Effective | Refused)
    with contextlib.suppress(Refusal):
        from_args(args, {}, version)


# The draft of each method that ships, and the target beside it.
SHIPPED = {
    "ngram": ("builtin:pico-llama", None),
    "suffix": ("builtin:pico-llama", None),
    "draft_model": ("builtin:pico-llama", "builtin:pico-llama-s"),
    "eagle": ("builtin:pico-llama", "builtin:pico-llama-eagle"),
    "eagle3": ("builtin:pico-llama", "builtin:pico-llama-eagle3"),
    "dflash": ("builtin:pico-llama", "builtin:pico-llama-dflash"),
    "dspark": ("builtin:pico-llama", "builtin:pico-llama-dspark"),
    "mtp": ("builtin:pico-deepseek", None),
}


@pytest.mark.parametrize("version", [VERSIONS[0], NEWEST])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_imported_is_exported_again_or_named(version, data) -> None:
    args = data.draw(configs(version))
    spec = args.setdefault(SPEC, {})
    known = [method for method in SHIPPED if method in methods_of(version)]
    spec["method"] = data.draw(st.sampled_from(known))
    spec["num_speculative_tokens"] = data.draw(NUMBERS)
    args["model"], draft = SHIPPED[spec["method"]]
    spec.pop("model", None)
    if draft is not None:
        spec["model"] = draft
    try:
        found = from_args(args, {}, version)
    except Refusal:
        return
    if found.refused:
        return
    written = {name: dict(block) for name, block in found.written.items()}
    if "accept" in written.get("verify", {}):
        written["sampling"] = {"temperature": 0.8}
    try:
        recipe = resolve(loads(yaml.safe_dump(written)))
    except RecipeError:
        return  # findings of the recipe: more guesses than a draft has, a match above its depth
    export = to_args(recipe, version)
    assert not export.refused
    gaps = named_by(*found.lost, *found.approximate, *found.overruled)
    before, after = usual(args, version), usual(dict(export.args), version)
    for name in before.keys() | after.keys():
        # A method and its acceptance may be written out where they were the default.
        spelled = name.endswith((".method", "_sample_method")) and name not in before
        assert before.get(name) == after.get(name) or name in gaps or spelled, name
