"""llama.cpp by build: a recipe becomes its arguments and comes back; what does not is named."""

from __future__ import annotations

import shlex
from contextlib import suppress

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specflow.cli import main
from specflow.engines.base import RECIPE_WORDS
from specflow.engines.llamacpp.builds import BUILDS
from specflow.engines.llamacpp.row import ENGINE
from specflow.engines.outcome import Effective, Refusal, Refused
from specflow.engines.versions import nearest
from specflow.load import load, loads
from specflow.packs import find
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from tests.conftest import RECIPES

NEW, OLD = "b11312", "b5142"
LLAMA = "target: {model: builtin:pico-llama}\n"
PLAIN = LLAMA + "draft: {algorithm: NONE}"
CARRIED = (
    *("draft.algorithm", "draft.num_steps", "draft.topk", "draft.adaptive", "draft.adaptive_slots"),
    *("draft.block_size", "draft.order", "draft.min_match", "draft.predicts"),
    *("draft.taps", "draft.window_size", "draft.full_match", "draft.narrow_tokens"),
    *("verify.shape", "verify.num_draft_tokens", "verify.accept", "verify.threshold_single"),
    *("run.batch_size", "run.max_length", "run.prefill_chunk", "run.device", "run.threads"),
    *("sampling.temperature", "sampling.top_k", "sampling.top_p", "sampling.min_p"),
    *("sampling.max_new_tokens", "sampling.seed", "sampling.ignore_eos"),
)


def of(text: str) -> ResolvedRecipe:
    return resolve(loads(text))


def line(recipe: ResolvedRecipe, version: str = NEW) -> str:
    export = ENGINE.export(recipe, version, "cuda")
    assert not export.refused, export.refused
    return ENGINE.formats["args"](export, version)


def back(text: str, version: str = NEW):
    return ENGINE.load(*ENGINE.read(text, version), version)


def again(text: str, version: str = NEW, allow=(), **draft) -> ResolvedRecipe:
    """A line as a recipe, resolved; `draft` is what the export said it does not carry."""
    more = {"allow": dict.fromkeys(allow, "as the first recipe has it")} if allow else {}
    written = dict(back(text, version).written)
    written["draft"] |= draft
    return resolve(loads(yaml.safe_dump(written | more)))


def effective(recipe: ResolvedRecipe, version: str = NEW, platform: str = "cuda"):
    export = ENGINE.export(recipe, version, platform)
    return ENGINE.effective(recipe, export, version, platform)


def notes(found) -> set[str]:
    assert isinstance(found, Effective), found
    return {note.rule for note in found.notes}


@pytest.mark.parametrize("version", ENGINE.versions)
@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_recipe_goes_across_and_comes_back_or_is_refused(path, version) -> None:
    recipe = load(path)
    first = resolve(recipe)
    export = ENGINE.export(first, version, "cuda")
    if export.refused:
        assert all(gap.text for gap in export.refused)
        return
    text = ENGINE.formats["args"](export, version)
    assert ENGINE.read(text, version) == (dict(export.args), {})
    gaps = {gap.at for gap in (*export.lost, *export.approximate)}
    layered = first.stages[0] == "MULTI_LAYER_EAGLE"
    assert not layered or "draft.algorithm" in gaps
    second = again(
        text, version, recipe.allow, **({"algorithm": first.stages[0]} if layered else {})
    )
    for field in CARRIED:
        if field in first and field in second and field not in gaps:
            assert second[field] == first[field], field
    assert dict(ENGINE.export(second, version, "cuda").args) == dict(export.args)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_nothing_that_is_exported_is_overruled(path) -> None:
    recipe = resolve(load(path))
    if ENGINE.export(recipe, NEW, "cuda").refused:
        return
    found = effective(recipe)
    assert isinstance(found, Effective), found
    assert [d for d in found.decisions if d.overrides] == []


DFLASH = LLAMA + "draft: {algorithm: DFLASH, model: builtin:pico-llama-dflash}"
DSPARK = LLAMA + "draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}"


@pytest.mark.parametrize(("text", "block"), [(DFLASH, 8), (DSPARK, 7)], ids=["DFLASH", "DSPARK"])
def test_a_block_is_counted_in_guesses(text, block) -> None:
    """D7: a DFLASH block of 8 and a DSPARK block of 7 are both 7 guesses."""
    recipe = of(text)
    assert recipe["draft.block_size"] == block
    said = ENGINE.export(recipe, NEW, "cuda").args
    assert said["spec_draft_n_max"] == 7
    there = again(line(recipe))
    assert there["draft.block_size"] == block
    assert there["verify.num_draft_tokens"] == 8


REFUSED = {
    "draft: {algorithm: EAGLE3, model: builtin:pico-llama-eagle3, topk: 2}\n"
    "verify: {shape: tree}": "verify.shape",
    "draft: {algorithm: EAGLE, model: builtin:pico-llama-eagle}": "draft.algorithm",
    "draft: {algorithm: NGRAM}\nverify: {shape: tree}": "verify.shape",
    "draft: {algorithm: STANDALONE, model: builtin:pico-llama-s}\n"
    "sampling: {temperature: 0.8}\n"
    "verify: {accept: target_only, threshold_single: 0.9}\nallow: {SF034: a test}": (
        "verify.threshold_single"
    ),
}


@pytest.mark.parametrize(("text", "at"), REFUSED.items(), ids=REFUSED.values())
def test_what_llama_cpp_has_not_is_refused(text, at) -> None:
    export = ENGINE.export(of(LLAMA + text), NEW, "cuda")
    assert at in {gap.at for gap in export.refused}


def test_rows_that_guess_the_next_position_are_refused() -> None:
    text = "target: {model: builtin:pico-qwen3}\n"
    text += "draft: {algorithm: DFLASH, model: builtin:pico-qwen3-dflash-next}"
    export = ENGINE.export(of(text), NEW, "cuda")
    assert [gap.at for gap in export.refused] == ["draft.predicts"]


SMALL = LLAMA + "draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 5}"


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("b5142", "--draft-max 5 --draft-p-min 0.0"),
        ("b9102", "--spec-draft-n-max 5 --spec-draft-p-min 0.0"),
        ("b9445", "--spec-draft-n-max 5 --temp"),
        ("b11312", "--spec-draft-n-max 5 --temp"),
    ],
)
def test_a_small_model_in_every_build(version, said) -> None:
    text = line(of(SMALL), version)
    assert said in text
    assert ("--spec-type draft-simple" in text) == (version in ("b9445", "b11312"))
    there = again(text, version)
    assert (there.stages[0], there["draft.num_steps"]) == ("STANDALONE", 5)
    assert "llamacpp" not in there.engine or "p_min" not in str(there.engine)


@pytest.mark.parametrize(
    ("version", "kind"), [("b5142", "EAGLE3"), ("b9102", "EAGLE3"), ("b9445", "EAGLE3")]
)
def test_a_build_refuses_what_it_has_not(version, kind) -> None:
    text = LLAMA + f"draft: {{algorithm: {kind}, model: builtin:pico-llama-eagle3, topk: 1}}"
    export = ENGINE.export(of(text), version, "cuda")
    assert [gap.at for gap in export.refused] == ["draft.algorithm"]
    assert version in export.refused[0].text


def test_what_was_left_unsaid_is_the_default_of_the_build() -> None:
    words = "llama-server -m t.gguf -md d.gguf"
    old, new = back(words, OLD), back(f"{words} --spec-type draft-simple", NEW)
    assert (old.written["draft"]["num_steps"], new.written["draft"]["num_steps"]) == (16, 3)
    assert old.written["engine"]["llamacpp"]["draft_p_min"] == 0.75
    assert "engine" not in new.written
    sampling = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    assert old.written["sampling"] == new.written["sampling"] == sampling


def test_short_forms_and_earlier_names_are_read() -> None:
    words = "llama-server -m t.gguf -md d.gguf -ngl all -ngld all -c 8192 -np 4 -nkvo -s -1"
    found = back(f"{words} --spec-type draft-simple --draft-p-min 0.5 --temperature 0")
    assert found.written["target"] == {"model": "t.gguf"}
    assert found.written["draft"]["model"] == "d.gguf"
    assert found.written["run"] == {"batch_size": 4, "max_length": 2048, "device": "cuda"}
    kept = {"kv_offload": False, "spec_draft_p_min": 0.5}
    assert found.written["engine"] == {"llamacpp": kept}


GONE = {
    "--draft-max 8": "write --spec-draft-n-max",
    "--draft-n 8": "write --spec-draft-n-max",
    "--draft-min 8": "write --spec-draft-n-min",
    "--spec-ngram-size-n 8": "write --spec-ngram-TYPE-size-n",
    "-cd 8": "a draft's context is the target's",
    "--spec-draft-n-maks 8": "did you mean",
    "--spec-draft-n-max=8": "has no flag",
    "--spec-type draft-eagle": "draft-eagle3",
    "--spec-draft-n-max many": "a whole number",
}


@pytest.mark.parametrize("words", GONE)
def test_a_flag_that_the_build_has_not_names_what_it_has(words, capsys) -> None:
    code = main(["import", "--engine", f"llamacpp@{NEW}", "--args", f"-m t.gguf {words}"])
    captured = capsys.readouterr()
    assert code == 1
    assert "error[SF114]" in captured.out
    assert GONE[words] in captured.out


def test_variables_stand_for_flags_that_the_line_has_not() -> None:
    words = "LLAMA_ARG_SPEC_DRAFT_N_MAX=6 LLAMA_ARG_CTX_SIZE=512 HF_HOME=x llama-server -m t.gguf "
    found = back(words + "--spec-type draft-mtp -c 1024")
    assert found.written["draft"]["num_steps"] == 6
    assert found.written["run"] == {"batch_size": 4, "max_length": 1024}
    kept = {"kv_unified": True, "env": {"HF_HOME": "x"}}
    assert found.written["engine"] == {"llamacpp": kept}
    with pytest.raises(Refusal, match=r"it was removed; write --spec-draft-n-max"):
        back("LLAMA_ARG_DRAFT_MAX=6 llama-server -m t.gguf")
    old = back("LLAMA_ARG_DRAFT_MAX=6 llama-server -m t.gguf -md d.gguf", OLD)
    assert old.written["draft"]["num_steps"] == 6


def test_a_flag_that_came_later_names_what_there_was() -> None:
    with pytest.raises(Refusal, match=r"came later; write --draft-max"):
        back("-m t.gguf -md d.gguf --spec-draft-n-max 8", OLD)


CONTRADICTIONS = {
    "-m t.gguf --spec-type draft-eagle3": "--spec-type",
    "-m t.gguf -md d.gguf --spec-type draft-simple --spec-draft-n-min 9": "--spec-draft-n-min",
}


@pytest.mark.parametrize(("words", "at"), CONTRADICTIONS.items())
def test_a_contradiction_is_told(words, at, capsys) -> None:
    assert at in {gap.at for gap in back(words).refused}
    assert main(["import", "--engine", f"llamacpp@{NEW}", "--args", words]) == 1
    assert "error[SF118]" in capsys.readouterr().out


def test_several_ways_of_drafting_are_one_recipe_and_its_engine_block() -> None:
    words = "-m t.gguf -md d.gguf --spec-type draft-simple,ngram-mod --spec-draft-n-max 4"
    found = back(words)
    assert found.written["draft"]["algorithm"] == "STANDALONE"
    assert found.written["engine"]["llamacpp"]["spec_type"] == "draft-simple,ngram-mod"
    assert "--spec-type" in {gap.at for gap in found.approximate}


@pytest.mark.parametrize("kind", ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"])
def test_a_look_up_comes_back_as_it_was(kind) -> None:
    names = ("n-match", "n-max") if kind == "ngram-mod" else ("size-n", "size-m")
    sizes = " ".join(f"--spec-{kind}-{name} {n}" for name, n in zip(names, (20, 6), strict=True))
    found = back(f"-m builtin:pico-llama --spec-type {kind} {sizes} --temp 0")
    assert "--spec-type" in {gap.at for gap in found.approximate}
    recipe = resolve(loads(yaml.safe_dump(dict(found.written))))
    assert (recipe["draft.min_match"], recipe["verify.num_draft_tokens"]) == (20, 7)
    export = ENGINE.export(recipe, NEW, "cuda")
    assert not export.refused
    assert "draft.algorithm" in {gap.at for gap in export.approximate}
    flag = f"spec_{kind.replace('-', '_')}_{names[0].replace('-', '_')}"
    assert (export.args["spec_type"], export.args[flag]) == (kind, 20)


def test_a_context_is_of_all_slots() -> None:
    recipe = of(SMALL + "\nrun: {batch_size: 4, max_length: 512}")
    said = ENGINE.export(recipe, NEW, "cuda").args
    assert (said["parallel"], said["ctx_size"]) == (4, 2048)
    assert "L9" in notes(effective(recipe))
    assert again(line(recipe))["run.max_length"] == 512


def test_a_context_that_slots_share_is_not_divided() -> None:
    for words in ("-c 512", "-c 512 -np 4 -kvu"):
        found = back(f"-m builtin:pico-llama --temp 0 {words}")
        assert found.written["run"] == {"batch_size": 4, "max_length": 512}
        args = ENGINE.export(resolve(loads(yaml.safe_dump(dict(found.written)))), NEW, "cuda").args
        assert (args["parallel"], args["ctx_size"], args["kv_unified"]) == (4, 512, True)
    assert back("-m t -c 512", OLD).written["run"] == {"max_length": 512}


def test_cuts_after_a_temperature_name_their_order() -> None:
    drawn = SMALL + "\nsampling: {temperature: 0.8, top_p: 0.9}"
    assert "--samplers 'temperature;top_k;top_p;min_p'" in line(of(drawn))
    assert "--samplers" not in line(of(SMALL + "\nsampling: {temperature: 0.8}"))
    assert "--samplers" not in line(of(SMALL + "\nsampling: {top_p: 0.9}"))
    found = back("-m t.gguf --temp 0.7 --top-p 0.9")
    assert "--samplers" in {gap.at for gap in found.approximate}


def test_what_ends_a_completion_goes_with_each_request() -> None:
    export = ENGINE.export(of(SMALL + "\nsampling: {stop: [END], seed: 7}"), NEW, "cuda")
    assert export.requests == {"stop": ["END"]}
    assert export.args["seed"] == 7
    big = ENGINE.export(of(SMALL + f"\nsampling: {{seed: {2**40}}}"), NEW, "cuda")
    assert "sampling.seed" in {gap.at for gap in big.lost}


def test_a_block_longer_than_the_trained_one_is_cut() -> None:
    recipe = of(DFLASH)
    export = ENGINE.export(recipe, NEW, "cuda")
    asked = {**export.args, "spec_draft_n_max": 15}
    found = ENGINE.effective(recipe, type(export)(asked), NEW, "cuda")
    assert isinstance(found, Effective)
    assert found["spec_draft_n_max"] == 7
    decision = found.decision("spec_draft_n_max")
    assert decision is not None
    assert (decision.rule, decision.overrides) == ("L7", True)


NOTED = {
    "model: t.gguf, spec_draft_model: d.gguf": "L4",
    "model: t.gguf, spec_type: draft-eagle3": "L5",
    "model: t.gguf, spec_draft_model: d.gguf, spec_type: 'draft-mtp,draft-eagle3'": "L6",
    "model: t.gguf, spec_draft_model: d.gguf, spec_type: draft-simple": "L2",
    "model: t.gguf, spec_type: draft-mtp, spec_draft_p_min: 0.6": "L3",
    "model: t.gguf, spec_type: draft-mtp, spec_draft_n_min: 6": "L3",
    "model: t.gguf, spec_type: 'draft-mtp,ngram-mod'": "L12",
    "model: t.gguf, spec_synth_len: 2.5": "L13",
}


@pytest.mark.parametrize(("args", "rule"), NOTED.items(), ids=NOTED.values())
def test_what_an_argument_leads_to_is_noted(args, rule) -> None:
    recipe = of(PLAIN)
    export = type(ENGINE.export(recipe, NEW, "cuda"))(yaml.safe_load(f"{{{args}}}"))
    assert rule in notes(ENGINE.effective(recipe, export, NEW, "cuda"))


def test_layers_on_a_cpu_do_nothing() -> None:
    recipe = of(SMALL + "\nengine: {llamacpp: {gpu_layers: 20}}")
    assert "L14" in notes(effective(recipe, platform="cpu"))
    assert "L14" not in notes(effective(recipe))


def test_a_build_that_runs_a_small_model_in_its_place_says_so() -> None:
    words = "-m t.gguf -md d.gguf --spec-type draft-eagle3"
    found = back(words, "b9445")
    assert found.written["draft"]["algorithm"] == "STANDALONE"
    assert "--spec-type" in {gap.at for gap in found.lost}
    assert back(words, NEW).written["draft"]["algorithm"] == "EAGLE3"


def test_a_draft_in_the_targets_checkpoint_is_a_file_of_its_own() -> None:
    recipe = resolve(load(find("deepseek/v4_dspark")))
    export = ENGINE.export(recipe, NEW, "cuda")
    assert export.args["spec_draft_model"] == export.args["model"]
    assert "draft.model" in {gap.at for gap in export.approximate}
    assert again(line(recipe)).facts.net.bundled


def test_checkpoints_are_to_be_converted() -> None:
    export = ENGINE.export(of(SMALL), NEW, "cuda")
    assert {"target.model", "draft.model"} <= {gap.at for gap in export.approximate}


def test_an_engine_block_keeps_the_flags_it_has() -> None:
    recipe = of(SMALL + "\nengine: {llamacpp: {flash_attn: 'on', spec_draft_p_min: 0.4}}")
    export = ENGINE.export(recipe, NEW, "cuda")
    assert (export.args["flash_attn"], export.args["spec_draft_p_min"]) == ("on", 0.4)
    clash = of(SMALL + "\nengine: {llamacpp: {spec_draft_n_max: 9}}")
    assert "engine.llamacpp.spec_draft_n_max" in {
        gap.at for gap in ENGINE.export(clash, NEW, "cuda").refused
    }


def test_every_word_is_a_flag_of_the_newest_build() -> None:
    flags = ENGINE.flags(NEW)
    assert set(ENGINE.words) == set(RECIPE_WORDS)
    for word in ENGINE.words.values():
        assert not word.flag or word.flag[2:].replace("-", "_") in flags


@pytest.mark.parametrize(
    ("asked", "known"),
    [("b11312", "b11312"), ("b11311", "b9445"), ("b12000", "b11312"), ("b4000", "b5142")],
)
def test_a_build_is_compared_by_its_number(asked, known) -> None:
    assert nearest(asked, ENGINE.versions) == known


@pytest.mark.parametrize("word", ["bb1", "b", "master", "b-1", "b1x"])
def test_what_is_no_build_is_none(word) -> None:
    with pytest.raises(ValueError, match=word):
        nearest(word, ENGINE.versions)


def test_a_script_and_json_come_back(capsys, tmp_path) -> None:
    for form, name in {"args": "a.txt", "sh": "a.sh", "json": "a.json"}.items():
        words = ["pico/standalone_sampled", "--engine", "llamacpp", "--format", form]
        assert main(["export", *words]) == 0
        file = tmp_path / name
        file.write_text(capsys.readouterr().out)
        assert main(["import", str(file), "--engine", "llamacpp"]) == 0
        assert resolve(loads(capsys.readouterr().out)).stages[0] == "STANDALONE"
    assert main(["export", "pico/plain", "--engine", "llamacpp", "--format", "yaml"]) == 2


SAFE = st.text("abcXYZ0129._/:,;=", min_size=1, max_size=12)
VALUES = {
    "int": st.integers(-5, 5000) | st.integers(),
    "float": st.floats(-2, 200) | st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": SAFE,
    "list": st.lists(SAFE, min_size=1, max_size=3),
    "any": SAFE | st.integers(0, 1000).map(str),
}
KINDS = st.sampled_from([*BUILDS[NEW].types, "none", "draft-mtp,ngram-mod", "draft-nothing", ""])


@st.composite
def arguments(draw, version: str) -> dict:
    flags = ENGINE.flags(version)
    often = [name for name in flags.all if "spec" in name or "draft" in name]
    often += ["parallel", "ctx_size", "temp", "top_p", "top_k", "min_p", "seed", "model"]
    names = draw(st.lists(st.sampled_from(often) | st.sampled_from(sorted(flags.all)), max_size=9))
    found = {name: draw(VALUES[flags[name].type.rstrip("?")]) for name in names}
    if "spec_type" in flags and draw(st.booleans()):
        found["spec_type"] = draw(KINDS)
    return found


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data(), version=st.sampled_from(ENGINE.versions))
def test_any_arguments_have_an_outcome(data, version) -> None:
    """They are a recipe, or a refusal; and what the engine makes of them is the same twice."""
    args = data.draw(arguments(version))
    recipe = of(PLAIN)
    export = type(ENGINE.export(recipe, version, "cuda"))(args)
    found = ENGINE.effective(recipe, export, version, "cuda")
    assert isinstance(found, Effective | Refused)
    assert found == ENGINE.effective(recipe, export, version, "cuda")
    text = ENGINE.formats["args"](export, version)
    try:
        read = ENGINE.read(text, version)
        imported = ENGINE.load(*read, version)
    except Refusal:
        return
    known = {"target", "draft", "verify", "sampling", "run", "engine"}
    assert set(imported.written) <= known
    yaml.safe_dump(dict(imported.written))


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=80) | st.lists(SAFE | st.just("-md"), max_size=8).map(" --".join))
def test_any_line_is_read_or_refused(text) -> None:
    for version in ENGINE.versions:
        with suppress(Refusal):
            assert set(ENGINE.load(*ENGINE.read(text, version), version).written)


STEPS, ALGORITHMS = st.integers(1, 63), st.sampled_from(["STANDALONE", "EAGLE3"])


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    steps=STEPS,
    algorithm=ALGORITHMS,
    batch=st.integers(1, 16),
    length=st.integers(128, 1024),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    top_k=st.integers(0, 100),
)
def test_a_chain_comes_back_the_same(
    steps, algorithm, batch, length, temperature, top_p, top_k
) -> None:
    model = {"STANDALONE": "builtin:pico-llama-s", "EAGLE3": "builtin:pico-llama-eagle3"}[algorithm]
    written = {
        "target": {"model": "builtin:pico-llama"},
        "draft": {"algorithm": algorithm, "model": model, "num_steps": steps, "topk": 1},
        "run": {"batch_size": batch, "max_length": length},
        "sampling": {"temperature": temperature, "top_p": top_p, "top_k": top_k},
        "allow": dict.fromkeys(("SF074", "SF031"), "a test"),
    }
    first = resolve(loads(yaml.safe_dump(written)))
    text = line(first)
    assert shlex.split(text)
    second = again(text)
    gaps = {gap.at for gap in ENGINE.export(first, NEW, "cuda").approximate}
    for field in CARRIED:
        drawn = field.startswith("sampling.top") and temperature == 0
        if field in first and field in second and field not in gaps and not drawn:
            assert second[field] == first[field], field
