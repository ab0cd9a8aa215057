"""A recipe becomes SGLang's arguments and comes back; what does not is named."""

from __future__ import annotations

import shlex

import pytest
import yaml

from specflow.engines.command_line import read, words
from specflow.engines.configs import draft_config, target_config
from specflow.engines.outcome import Effective, Refusal
from specflow.engines.sglang.exports import to_args
from specflow.engines.sglang.flags import FLAGS
from specflow.engines.sglang.imports import from_args
from specflow.engines.sglang.resolver import effective
from specflow.engines.sglang.row import ENGINE
from specflow.errors import RecipeError
from specflow.load import load, loads
from specflow.packs import find
from specflow.recipe import ResolvedRecipe, dump
from specflow.resolve import resolve
from tests.conftest import RECIPES, ROOT

# Fields that must be the same when a recipe comes back; where SGLang cannot say one, it is a gap.
CARRIED = (
    *("draft.algorithm", "draft.num_steps", "draft.topk", "draft.adaptive", "draft.adaptive_slots"),
    *("draft.block_size", "draft.max_trie_depth", "draft.order", "draft.capacity"),
    *("draft.breadth", "draft.window_size", "draft.predicts", "draft.min_match"),
    *("draft.full_match", "draft.narrow_tokens", "draft.insert_prompt", "draft.taps"),
    *("verify.shape", "verify.num_draft_tokens", "verify.accept", "verify.threshold_single"),
    *("verify.threshold_acc", "verify.mode", "verify.confidence", "verify.lag_steps"),
    *("run.batch_size", "run.max_length", "run.dtype", "run.prefill_chunk"),
)


def of(text: str) -> ResolvedRecipe:
    return resolve(loads(text))


def back(recipe: ResolvedRecipe, args, env, **more) -> ResolvedRecipe:
    """The arguments as a recipe, resolved; requests and what is allowed are the first recipe's."""
    written = dict(from_args(args, env).written)
    sampling = recipe.sampling.model_dump()
    written["sampling"] = {k: list(v) if k == "stop" else v for k, v in sampling.items()}
    return resolve(loads(yaml.safe_dump(written | more)))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_recipe_goes_across_and_comes_back(path, tmp_path, monkeypatch) -> None:
    recipe = load(path)
    first = resolve(recipe)
    export = to_args(first)
    monkeypatch.chdir(tmp_path)
    for name, text in export.files.items():
        (tmp_path / name).write_text(text)
    args, env = read(
        FLAGS,
        " ".join(f"{k}={v}" for k, v in export.env.items())
        + " "
        + shlex.join(words(FLAGS, export.args)),
    )
    assert (args, env) == (dict(export.args), dict(export.env))
    allow = {"allow": dict.fromkeys(recipe.allow, "as the first recipe has it")}
    second = back(first, args, env, **(allow if recipe.allow else {}))
    gaps = {gap.at for gap in (*export.lost, *export.approximate)}
    for field in CARRIED:
        if field in first and field in second and field not in gaps:
            assert second[field] == first[field], field
    again = to_args(second)
    differ = {
        k for k in export.args.keys() | again.args.keys() if export.args.get(k) != again.args.get(k)
    }
    assert not differ
    assert again.env == export.env


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_sglang_runs_what_a_recipe_says_where_it_starts_at_all(path) -> None:
    """Nothing that was exported is overruled: what the engine would change, the exporter knows."""
    recipe = resolve(load(path))
    export = to_args(recipe)
    got = effective(
        export.args, target_config(recipe), draft_config(recipe), "h100", dict(export.env)
    )
    assert isinstance(got, Effective), got
    assert [d for d in got.decisions if d.overrides] == []


def test_every_shape_of_recipe_ships() -> None:
    names = {resolve(load(path)).stages[0] for path in RECIPES}
    assert len(names) == 9


LLAMA = "target: {model: builtin:pico-llama}\n"
LOST = {
    "draft: {algorithm: NGRAM, min_match: 3}": "draft.min_match",
    "draft: {algorithm: NGRAM, insert_prompt: false}": "draft.insert_prompt",
    "draft: {algorithm: EAGLE3, model: builtin:pico-llama-eagle3, taps: [1, 2, 3]}": "draft.taps",
    "draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark, window_size: 64}": (
        "draft.window_size"
    ),
    "draft: {algorithm: DFLASH, model: builtin:pico-llama-dflash}\n"
    "verify: {shape: ragged, confidence: average}": "verify.shape",
    "draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}\n"
    "verify: {shape: ragged, confidence: average}": "verify.confidence",
    "draft: {algorithm: NGRAM}\nrun: {threads: 2}": "run.threads",
}


@pytest.mark.parametrize(("text", "at"), LOST.items(), ids=LOST.values())
def test_what_sglang_cannot_say_is_lost_by_name(text, at) -> None:
    assert at in {gap.at for gap in to_args(of(LLAMA + text)).lost}


BENT = {
    "draft: {algorithm: NGRAM}": "draft.order",
    "draft: {algorithm: NGRAM}\nsampling: {temperature: 0.8}": "sampling",
    "draft: {algorithm: STANDALONE, model: builtin:pico-llama-s}\n"
    "sampling: {temperature: 0.8}\nverify: {accept: rejection}": "verify.accept",
    "draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}\n"
    "sampling: {temperature: 0.8}\nverify: {accept: target_only}": "verify.accept",
}


@pytest.mark.parametrize(("text", "at"), BENT.items(), ids=BENT.values())
def test_what_sglang_says_otherwise_is_told(text, at) -> None:
    assert at in {gap.at for gap in to_args(of(LLAMA + text)).approximate}


def test_slots_of_its_own_become_a_file(tmp_path, monkeypatch) -> None:
    draft = "algorithm: EAGLE3, model: builtin:pico-llama-eagle3, adaptive: true, num_steps: 2"
    slots = "adaptive_slots: {1: [2, 4], 8: [0, 2]}"
    recipe = of(f"{LLAMA}draft: {{{draft}, {slots}}}")
    export = to_args(recipe)
    monkeypatch.chdir(tmp_path)
    (name,) = export.files
    assert export.args["speculative_adaptive_config"] == name
    (tmp_path / name).write_text(export.files[name])
    got = effective(export.args, target_config(recipe), draft_config(recipe))
    assert isinstance(got, Effective)
    assert got["speculative_num_steps"] == 2
    assert back(recipe, export.args, {})["draft.adaptive_slots"] == ((1, (2, 4)), (8, (0, 2)))


def test_a_tree_names_a_backend_that_has_trees() -> None:
    recipe = resolve(load(find("deepseek/v3_eagle3_tree")))
    assert to_args(recipe, "h100").args["attention_backend"] == "fa3"
    there = to_args(recipe, "b200")
    assert (there.args["attention_backend"], there.args["page_size"]) == ("triton", 1)
    assert "verify.shape" in {gap.at for gap in there.approximate}
    eagle = resolve(load(find("llama/llama3_eagle_tree")))
    assert to_args(eagle, "mi300").args["attention_backend"] == "triton"


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "python -m sglang.launch_server --model-path m --speculative-algorithm NEXTN",
            {"target": {"model": "m"}, "draft": {"algorithm": "NEXTN"}},
        ),
        (
            "--speculative-algorithm EAGLE --enable-multi-layer-eagle",
            {"draft": {"algorithm": "MULTI_LAYER_EAGLE"}},
        ),
        (
            "--speculative-algorithm DSPARK --speculative-num-draft-tokens 6",
            {"draft": {"algorithm": "DSPARK", "block_size": 5}},
        ),
        (
            (
                "SGLANG_RAGGED_VERIFY_MODE=compact python x.py --speculative-algorithm DSPARK \\\n"
                " --speculative-dspark-sps-table-path t.json"
            ),
            {
                "draft": {"algorithm": "DSPARK"},
                "verify": {"shape": "ragged", "mode": "compact", "cost_table": "t.json"},
            },
        ),
        (
            "--speculative-algorithm EAGLE3 --speculative-use-block-verification --dtype bfloat16",
            {
                "draft": {"algorithm": "EAGLE3"},
                "verify": {"accept": "block"},
                "run": {"dtype": "bfloat16"},
            },
        ),
    ],
)
def test_a_command_line_becomes_fields(line, fields) -> None:
    args, env = read(FLAGS, line)
    found = from_args(args, env)
    assert found.written == fields
    assert not found.lost


def test_flags_without_a_field_pass_through_both_ways() -> None:
    line = (
        "SGLANG_ENABLE_PP_SPEC=1 --model-path builtin:pico-llama --tp-size 8 "
        "--kv-cache-dtype fp8_e4m3 --speculative-algorithm NGRAM --attention-backend fa3"
    )
    args, env = read(FLAGS, line)
    found = from_args(args, env)
    kept = {"tp_size": 8, "kv_cache_dtype": "fp8_e4m3", "attention_backend": "fa3"}
    variables = {"env": {"SGLANG_ENABLE_PP_SPEC": "1"}}
    assert found.written["engine"] == {"sglang": kept | variables}
    assert not found.lost
    export = to_args(of(yaml.safe_dump(dict(found.written))))
    assert {name: export.args[name] for name in kept} == kept
    assert export.env == variables["env"]


def test_a_draft_that_no_recipe_has_is_lost() -> None:
    args, env = read(FLAGS, "--speculative-algorithm UNO")
    assert {gap.at for gap in from_args(args, env).lost} == {"--speculative-algorithm"}


def test_a_flag_that_a_field_says_is_refused_where_it_says_otherwise() -> None:
    text = (
        "target: {model: builtin:pico-llama}\n"
        "draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 3}\n"
        "engine: {sglang: {speculative_num_steps: HERE}}\n"
    )
    assert [gap.at for gap in to_args(of(text.replace("HERE", "4"))).refused] == [
        "engine.sglang.speculative_num_steps"
    ]
    assert not to_args(of(text.replace("HERE", "3"))).refused


@pytest.mark.parametrize(
    ("engine", "code"),
    [
        ("{sglang: 3}", "SF002"),
        ("{sglnag: {tp_size: 2}}", "SF001"),
        ("[sglang]", "SF002"),
    ],
)
def test_a_block_that_holds_no_flags_is_a_finding(engine, code) -> None:
    text = f"target: {{model: builtin:pico-llama}}\ndraft: {{algorithm: NGRAM}}\nengine: {engine}"
    with pytest.raises(RecipeError) as caught:
        of(text)
    assert {d.code for d in caught.value.diagnostics} == {code}


def test_flags_for_an_engine_leave_the_step_alone() -> None:
    text = "target: {model: builtin:pico-llama}\ndraft: {algorithm: NGRAM}\n"
    plain, with_flags = of(text), of(text + "engine: {sglang: {tp_size: 4}}")
    assert plain.fingerprint == with_flags.fingerprint
    assert with_flags["engine.sglang.tp_size"] == 4
    assert dump(with_flags)["engine"] == {"sglang": {"tp_size": 4}}


@pytest.mark.parametrize(
    "line",
    [
        "--speculative-num-stepps 3",
        "--tp-size two",
        "--tp-size",
        "serve me --tp-size 2 'open",
        "-x 3 --y",
    ],
)
def test_what_is_no_argument_is_refused(line) -> None:
    with pytest.raises(Refusal):
        read(FLAGS, line)


def test_values_survive_the_command_line() -> None:
    args = {
        "tp_size": -1,
        "served_model_name": "a b'c",
        "enable_lora": False,
        "lora_paths": ["x", "y z"],
        "speculative_accept_threshold_acc": 0.25,
    }
    assert read(FLAGS, shlex.join(words(FLAGS, args)))[0] == args


@pytest.mark.parametrize("form", ENGINE.formats)
def test_every_format_of_an_export_says_every_argument(form) -> None:
    export = to_args(resolve(load(find("pico/dspark_planned"))))
    text = ENGINE.formats[form](export, "0.5.23")
    for value in export.args.values():
        assert str(value) in text
    assert form == "args" or "SGLANG_RAGGED_VERIFY_MODE" in text


def test_exported_python_parses() -> None:
    for path in RECIPES:
        compile(
            ENGINE.formats["python"](to_args(resolve(load(path))), "0.5.23"), "export.py", "exec"
        )
    assert ROOT.exists()
