"""TensorRT-LLM by release: a recipe becomes its configuration and comes back, or says what not."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specflow.cli import main
from specflow.engines.base import RECIPE_WORDS, Export
from specflow.engines.outcome import Effective, Refusal, Refused
from specflow.engines.trtllm.lines import spread
from specflow.engines.trtllm.releases import RELEASES, key
from specflow.engines.trtllm.row import ENGINE
from specflow.engines.trtllm.schedules import WIDEST, fault, to_schedule, to_slots
from specflow.engines.versions import nearest
from specflow.load import load, loads
from specflow.packs import find
from specflow.recipe import ResolvedRecipe
from specflow.resolve import resolve
from tests.conftest import RECIPES

NEW, MIDDLE, OLD = "1.4.0rc4", "1.3.0rc27", "1.2.1"
LLAMA = "target: {model: builtin:pico-llama}\n"
PLAIN = LLAMA + "draft: {algorithm: NONE}"
CARRIED = (
    *("draft.algorithm", "draft.num_steps", "draft.topk", "draft.adaptive", "draft.adaptive_slots"),
    *("draft.block_size", "draft.order", "draft.min_match", "draft.max_trie_depth"),
    *("draft.taps", "draft.mask_token", "draft.window_size", "draft.predicts"),
    *("verify.shape", "verify.num_draft_tokens", "verify.accept", "verify.mode"),
    *("verify.confidence", "verify.threshold_single", "verify.threshold_acc"),
    *("run.batch_size", "run.max_length", "run.prefill_chunk", "run.dtype"),
)


def of(text: str) -> ResolvedRecipe:
    return resolve(loads(text))


def spec(recipe: ResolvedRecipe, version: str = NEW) -> dict:
    export = ENGINE.export(recipe, version, "h100")
    assert not export.refused, export.refused
    return dict(export.args["speculative_config"])


def back(config: dict | str, version: str = NEW):
    """What a `speculative_config`, or a command line, is as a recipe."""
    if isinstance(config, str):
        return ENGINE.load(*ENGINE.read(config, version), version)
    args = ENGINE.typed({"model": "t", "speculative_config": config}, version)
    return ENGINE.load(args, {}, version)


def again(first: ResolvedRecipe, export: Export, version: str, allow=()) -> ResolvedRecipe:
    """An export as a recipe; requests, and what it said it does not carry, are the first one's."""
    written = dict(ENGINE.load(export.args, {}, version).written)
    sampling = first.sampling.model_dump()
    written["sampling"] = {k: list(v) if k == "stop" else v for k, v in sampling.items()}
    if first.stages[0] == "MULTI_LAYER_EAGLE":
        assert "draft.algorithm" in {gap.at for gap in export.approximate}
        written["draft"]["algorithm"] = first.stages[0]
    more = {"allow": dict.fromkeys(allow, "as the first recipe has it")} if allow else {}
    return resolve(loads(yaml.safe_dump(written | more)))


def effective(config: dict, version: str = NEW, recipe: str = PLAIN, **more):
    args = {"model": "t", "speculative_config": config, **more}
    return ENGINE.effective(of(recipe), Export(args), version, "h100")


@pytest.mark.parametrize("version", ENGINE.versions)
@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_recipe_goes_across_and_comes_back_or_is_refused(path, version) -> None:
    recipe = load(path)
    first = resolve(recipe)
    export = ENGINE.export(first, version, "h100")
    if export.refused:
        assert all(gap.text for gap in export.refused)
        return
    gaps = {gap.at for gap in (*export.lost, *export.approximate)}
    second = again(first, export, version, recipe.allow)
    for field in CARRIED:
        if field in first and field in second and field not in gaps:
            assert second[field] == first[field], field
    if "draft.adaptive_slots" not in gaps:
        assert ENGINE.export(second, version, "h100").args == export.args


@pytest.mark.parametrize("version", ENGINE.versions)
@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_nothing_that_is_exported_is_overruled(path, version) -> None:
    recipe = resolve(load(path))
    export = ENGINE.export(recipe, version, "h100")
    if export.refused:
        return
    found = ENGINE.effective(recipe, export, version, "h100")
    assert isinstance(found, Effective), found
    assert [d for d in found.decisions if d.overrides] == []


@pytest.mark.parametrize("form", ["sh", "json"])
@pytest.mark.parametrize("version", ENGINE.versions)
def test_every_export_is_read_as_it_was(form, version) -> None:
    for path in RECIPES:
        export = ENGINE.export(resolve(load(path)), version, "h100")
        text = ENGINE.formats[form](export, version)
        if form == "sh":
            assert ENGINE.read(text, version) == (dict(export.args), {})
        else:
            assert ENGINE.typed(json.loads(text)["args"], version) == export.args


def test_the_file_is_yaml_and_the_program_is_python() -> None:
    export = ENGINE.export(resolve(load(find("pico/eagle3_tree"))), NEW, "h100")
    said = yaml.safe_load(ENGINE.formats["yaml"](export, NEW))
    assert said == {"speculative_config": export.args["speculative_config"]}
    program = ENGINE.formats["python"](export, NEW)
    compile(program, "program", "exec")
    assert "Eagle3DecodingConfig(max_draft_len=3" in program
    small = ENGINE.export(resolve(load(find("pico/standalone_sampled"))), NEW, "h100")
    program = ENGINE.formats["python"](small, NEW)
    compile(program, "program", "exec")
    assert "DraftTargetDecodingConfig(" in program
    assert "SamplingParams(temperature=0.8)" in program


def test_the_file_is_what_an_export_is_where_nothing_is_said(capsys) -> None:
    assert main(["export", "pico/eagle3", "--engine", "trtllm"]) == 0
    said = yaml.safe_load(capsys.readouterr().out)
    assert said["speculative_config"]["decoding_type"] == "Eagle3"
    assert main(["export", "pico/eagle3", "--engine", "trtllm", "--format", "args"]) == 2


DFLASH = LLAMA + "draft: {algorithm: DFLASH, model: builtin:pico-llama-dflash}"
DSPARK = LLAMA + "draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}"


@pytest.mark.parametrize("version", [MIDDLE, NEW])
@pytest.mark.parametrize(("text", "block"), [(DFLASH, 8), (DSPARK, 7)], ids=["DFLASH", "DSPARK"])
def test_a_block_is_counted_in_guesses(text, block, version) -> None:
    """D7: a DFLASH block of 8 and a DSPARK block of 7 are both 7 guesses."""
    recipe = of(text)
    assert recipe["draft.block_size"] == block
    export = ENGINE.export(recipe, version, "h100")
    assert export.args["speculative_config"]["max_draft_len"] == 7
    there = again(recipe, export, version)
    assert (there["draft.block_size"], there["verify.num_draft_tokens"]) == (block, 8)


TREE = (
    LLAMA
    + "draft: {algorithm: EAGLE3, model: builtin:pico-llama-eagle3, num_steps: 3, topk: 2}\n"
    + "verify: {shape: tree, num_draft_tokens: %d}"
)


def test_a_tree_counts_its_tokens_without_the_root() -> None:
    said = spec(of(TREE % 7))
    assert (said["dynamic_tree_max_topK"], said["max_total_draft_tokens"]) == (2, 6)
    assert said["use_dynamic_tree"] is True
    there = back({**said}).written
    assert there["verify"] == {"shape": "tree", "num_draft_tokens": 7}


def test_a_tree_that_does_not_fit_is_refused() -> None:
    export = ENGINE.export(of(TREE % 8), NEW, "h100")
    assert [gap.at for gap in export.refused] == ["verify.num_draft_tokens"]
    assert "3 to 6" in export.refused[0].text
    old = ENGINE.export(of(TREE % 7), OLD, "h100")
    assert [gap.at for gap in old.refused] == ["verify.shape"]


REFUSED = {
    "draft: {algorithm: EAGLE, model: builtin:pico-llama-eagle}": (NEW, "draft.algorithm"),
    "draft: {algorithm: NGRAM}": (NEW, "verify.shape"),
    "draft: {algorithm: DFLASH, model: builtin:pico-llama-dflash}": (OLD, "draft.algorithm"),
    "draft: {algorithm: DSPARK, model: builtin:pico-llama-dspark}": (OLD, "draft.algorithm"),
    "draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, topk: 2}\nverify: {shape: tree}": (
        NEW,
        "verify.shape",
    ),
}


@pytest.mark.parametrize(("text", "what"), REFUSED.items())
def test_what_a_release_has_not_is_refused(text, what) -> None:
    version, at = what
    export = ENGINE.export(of(LLAMA + text), version, "h100")
    assert at in {gap.at for gap in export.refused}


def test_each_release_says_it_in_its_words() -> None:
    mtp = "target: {model: builtin:pico-deepseek}\ndraft: {algorithm: NEXTN, num_steps: 2, topk: 1}"
    assert spec(of(mtp), OLD)["num_nextn_predict_layers"] == 2
    assert spec(of(mtp), NEW)["max_draft_len"] == 2
    assert "--extra_llm_api_options" in ENGINE.formats["sh"](
        ENGINE.export(of(mtp), OLD, "h100"), OLD
    )
    assert "--config" in ENGINE.formats["sh"](ENGINE.export(of(mtp), NEW, "h100"), NEW)


def test_the_name_of_a_small_models_type_is_said_to_be_in_doubt() -> None:
    text = LLAMA + "draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, topk: 1}"
    for version in ENGINE.versions:
        export = ENGINE.export(of(text), version, "h100")
        assert export.args["speculative_config"]["decoding_type"] == "Draft_Target"
        doubt = [gap for gap in export.approximate if "DraftTarget`" in gap.text]
        assert bool(doubt) == (version == NEW)


CONFIDENT = DSPARK + "\nverify: {shape: ragged, mode: compact}"


def test_confidence_plans_a_verify_since_1_4() -> None:
    assert spec(of(CONFIDENT))["enable_confidence_scheduling"] is True
    old = ENGINE.export(of(CONFIDENT), MIDDLE, "h100")
    assert "enable_confidence_scheduling" not in old.args["speculative_config"]
    assert "verify.shape" in {gap.at for gap in old.lost}


SAMPLED = (
    LLAMA
    + "draft: {algorithm: EAGLE3, model: builtin:pico-llama-eagle3, num_steps: 3, topk: 1}\n"
    + "sampling: {temperature: 0.8}\nverify: {accept: %s}"
)


def test_rejection_is_of_eagle3_since_1_3() -> None:
    assert spec(of(SAMPLED % "rejection"))["use_rejection_sampling"] is True
    block = ENGINE.export(of(SAMPLED % "block"), NEW, "h100")
    assert "verify.accept" in {gap.at for gap in block.approximate}
    old = ENGINE.export(of(SAMPLED % "rejection"), OLD, "h100")
    assert old.args["speculative_config"]["allow_advanced_sampling"] is True
    assert "verify.accept" in {gap.at for gap in old.approximate}
    assert "use_rejection_sampling" not in spec(of(SAMPLED % "target_only"))


ADAPTIVE = (
    LLAMA
    + "draft: {algorithm: EAGLE3, model: builtin:pico-llama-eagle3, topk: 1, num_steps: 4, "
    + "adaptive: true, adaptive_slots: %s}"
)


def test_slots_become_a_schedule_whose_keys_differ_by_release() -> None:
    recipe = of(ADAPTIVE % "{1: [2, 4], 8: [0, 2]}")
    assert spec(recipe)["draft_len_schedule"] == {7: 4, WIDEST: 2}
    assert spec(recipe, OLD)["draft_len_schedule"] == {1: 4, 8: 2}
    for version in ENGINE.versions:
        there = back(spec(recipe, version), version).written["draft"]
        assert there["adaptive"] is True
        assert there["adaptive_slots"] == {1: [4], 8: [2]}


def test_a_schedule_that_grows_is_lost() -> None:
    export = ENGINE.export(of(ADAPTIVE % "{1: [2], 8: [4]}"), NEW, "h100")
    assert "draft_len_schedule" not in export.args["speculative_config"]
    assert {"draft.adaptive", "draft.adaptive_slots"} <= {gap.at for gap in export.lost}


SLOTS = st.dictionaries(st.integers(2, WIDEST), st.integers(0, 6), max_size=5)


@given(later=SLOTS, first=st.integers(1, 8), upwards=st.booleans())
def test_a_schedule_comes_back_as_the_slots_it_was(later, first, upwards) -> None:
    steps = {1: first} | {size: min(n, first) for size, n in sorted(later.items())}
    schedule = to_schedule([(size, (n,)) for size, n in steps.items()], upwards=upwards)
    assert not fault(schedule, first, upwards=upwards)
    found = to_slots(schedule, upwards=upwards)
    assert {size: n for size, (n,) in found.items()} == steps


EAGLE3 = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "d"}
FOREIGN = {
    "use_sa_spec": ({**EAGLE3, "use_sa_spec": True}, "write sa_config"),
    "max_batch_size": ({**EAGLE3, "max_batch_size": 8}, "beside speculative_config"),
    "eagle_choices": ({**EAGLE3, "eagle_choices": [[0]]}, "use_dynamic_tree"),
    "acceptance_window": ({**EAGLE3, "acceptance_window": 8}, "acceptance_rate_window_size"),
    "use_dynamic_trees": ({**EAGLE3, "use_dynamic_trees": True}, "did you mean"),
    "of another type": ({**EAGLE3, "is_keep_all": True}, "has no key `is_keep_all`"),
    "another type": ({**EAGLE3, "decoding_type": "Eagle4"}, "did you mean Eagle"),
    "no number": ({**EAGLE3, "max_draft_len": "three"}, "a whole number"),
    "no schedule": ({**EAGLE3, "draft_len_schedule": {"many": 3}}, "by batch size"),
    "no keys": (7, "holds keys"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_key_that_is_none_is_refused_and_the_nearest_named(what, tmp_path, capsys) -> None:
    config, said = FOREIGN[what]
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"speculative_config": config}))
    assert main(["import", str(file), "--engine", f"trtllm@{NEW}"]) == 1
    out = capsys.readouterr().out
    assert "error[SF114]" in out
    assert said in out


def test_what_a_later_release_renamed_is_told_to_an_earlier_one() -> None:
    with pytest.raises(Refusal, match="acceptance_window, of requests"):
        back({**EAGLE3, "acceptance_rate_window_size": 8}, OLD)
    assert back({**EAGLE3, "acceptance_window": 8}, OLD).written["engine"]["trtllm"] == {
        "speculative_config": {"acceptance_window": 8}
    }


CONTRADICTIONS = {
    "max_draft_len": {"decoding_type": "NGram"},
    "speculative_model": {"decoding_type": "Eagle3", "max_draft_len": 3},
    "max_total_draft_tokens": {**EAGLE3, "max_total_draft_tokens": 9},
    "dynamic_tree_max_topK": {**EAGLE3, "use_dynamic_tree": True},
    "draft_len_schedule": {**EAGLE3, "draft_len_schedule": {4: 2}},
    "block_size": {"decoding_type": "DSpark", "max_draft_len": 7, "block_size": 8},
    "decoding_type": {"max_draft_len": 3},
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_told(name, tmp_path, capsys) -> None:
    config = CONTRADICTIONS[name]
    assert key(name) in {gap.at for gap in back(config).refused}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"speculative_config": config}))
    assert main(["import", str(file), "--engine", "trtllm"]) == 1
    assert "error[SF118]" in capsys.readouterr().out


def test_earlier_names_are_read() -> None:
    config = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "d"}
    assert back(config).written["draft"] == {
        "algorithm": "EAGLE3",
        "model": "d",
        "num_steps": 3,
        "topk": 1,
    }
    found = back({"decoding_type": "MTP", "num_nextn_predict_layers": 2})
    assert found.written["draft"]["num_steps"] == 2


def test_a_line_reads_its_file_and_goes_before_it(tmp_path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"max_batch_size": 4, "speculative_config": EAGLE3}))
    for option in ("--config", "--extra_llm_api_options"):
        words = f"trtllm-serve serve m {option} {file} --max_batch_size 8 --tp_size 2 --port 9000"
        found = back(words)
        assert found.written["target"] == {"model": "m"}
        assert found.written["draft"]["algorithm"] == "EAGLE3"
        assert found.written["run"] == {"batch_size": 8}
        kept = {"tensor_parallel_size": 2, "port": 9000}
        assert found.written["engine"] == {"trtllm": kept}
    with pytest.raises(Refusal, match="cannot be read"):
        back("trtllm-serve m --config no/such/file.yaml")


def test_what_no_field_says_is_kept_and_goes_back() -> None:
    config = {**EAGLE3, "sa_config": {"threshold": 4}, "max_concurrency": 8}
    found = back(config)
    kept = found.written["engine"]["trtllm"]["speculative_config"]
    assert kept == {"sa_config": {"threshold": 4}, "max_concurrency": 8}
    assert key("sa_config") in {gap.at for gap in found.approximate}
    models = {"target": {"model": "builtin:pico-llama"}}
    draft = {**found.written["draft"], "model": "builtin:pico-llama-eagle3"}
    recipe = resolve(loads(yaml.safe_dump(found.written | models | {"draft": draft})))
    said = spec(recipe)
    assert {name: said[name] for name in kept} == kept


def test_an_engine_block_that_a_field_contradicts_is_refused() -> None:
    text = SAMPLED % "target_only"
    clash = of(text + "\nengine: {trtllm: {speculative_config: {max_draft_len: 9}}}")
    export = ENGINE.export(clash, NEW, "h100")
    assert [gap.at for gap in export.refused] == [f"engine.trtllm.{key('max_draft_len')}"]
    other = of(text + "\nengine: {trtllm: {speculative_config: {is_keep_all: false}}}")
    with pytest.raises(Refusal, match="no key `is_keep_all`"):
        ENGINE.export(other, NEW, "h100")
    plain = of(PLAIN + "\nengine: {trtllm: {speculative_config: {max_draft_len: 9}}}")
    assert ENGINE.export(plain, NEW, "h100").refused


DECIDED = {
    "T5": ({**EAGLE3, "dynamic_tree_max_topK": 4}, "max_total_draft_tokens", 12),
    "T6": (EAGLE3, "max_total_draft_tokens", 3),
    "T8": ({**EAGLE3, "max_concurrency": 8}, "draft_len_schedule", {8: 3}),
    "T9": (
        {"decoding_type": "MTP", "max_draft_len": 2, "use_rejection_sampling": True},
        "use_rejection_sampling",
        False,
    ),
    "T10": ({"decoding_type": "MTP"}, "max_draft_len", 1),
    "T12": ({**EAGLE3, "decoding_type": "Eagle"}, "decoding_type", "Eagle3"),
}


@pytest.mark.parametrize("rule", DECIDED)
def test_what_the_engine_decides_has_its_rule(rule) -> None:
    config, name, value = DECIDED[rule]
    found = effective(config)
    assert isinstance(found, Effective), found
    assert found[key(name)] == value
    decision = found.decision(key(name))
    assert decision is not None
    assert decision.rule == rule


def test_1_2_counts_mtp_and_trees_in_its_own_way() -> None:
    found = effective({"decoding_type": "MTP", "max_draft_len": 3}, OLD)
    assert isinstance(found, Effective)
    decision = found.decision(key("max_draft_len"))
    assert decision is not None
    assert (decision.value, decision.rule, decision.overrides) == (1, "T10", True)
    tree = {**EAGLE3, "use_dynamic_tree": True, "dynamic_tree_max_topK": 4}
    found = effective({**tree, "max_total_draft_tokens": 12}, OLD)
    assert isinstance(found, Effective)
    assert found[key("max_total_draft_tokens")] == 3
    assert "T5" in {note.rule for note in found.notes}


STOPPED = {
    "T1": {**EAGLE3, "is_keep_all": True},
    "T2": {"max_draft_len": 3},
    "T3": {"decoding_type": "Eagle3", "max_draft_len": 3},
    "T4": {"decoding_type": "NGram"},
    "T5": {**EAGLE3, "dynamic_tree_max_topK": 2, "max_total_draft_tokens": 7},
    "T7": {**EAGLE3, "draft_len_schedule": {4: 3}, "max_concurrency": 8},
    "T8": {**EAGLE3, "max_concurrency": 0},
}


@pytest.mark.parametrize("rule", STOPPED)
def test_what_stops_the_engine_has_its_rule(rule) -> None:
    found = effective(STOPPED[rule])
    assert isinstance(found, Refused)
    assert found.rule == rule


NOTED = {
    "T11": ({**EAGLE3, "allow_advanced_sampling": True}, {}),
    "T13": (EAGLE3, {"gather_generation_logits": True}),
    "T14": ({"decoding_type": "NGram", "max_draft_len": 3}, {}),
    "T15": ({**EAGLE3, "acceptance_rate_window_size": 8, "acceptance_rate_threshold": 0.3}, {}),
    "T16": ({**EAGLE3, "draft_len_schedule": {4: 3, 8: 1}}, {}),
    "T17": (
        {
            "decoding_type": "MTP",
            "max_draft_len": 1,
            "use_relaxed_acceptance_for_thinking": True,
        },
        {},
    ),
}


@pytest.mark.parametrize("rule", NOTED)
def test_what_a_key_leads_to_is_noted(rule) -> None:
    config, more = NOTED[rule]
    found = effective(config, **more)
    assert isinstance(found, Effective), found
    assert rule in {note.rule for note in found.notes}


def test_every_word_is_a_key_of_the_newest_release() -> None:
    flags = ENGINE.flags(NEW)
    assert set(ENGINE.words) == set(RECIPE_WORDS)
    for word in ENGINE.words.values():
        assert not word.flag or word.flag in flags or key(word.flag) in flags


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_tables_of_a_release_agree(release) -> None:
    inner = {n.removeprefix("speculative_config.") for n in release.flags.all if "." in n}
    assert inner == {*release.base, *(name for own in release.own.values() for name in own)}


@pytest.mark.parametrize(
    ("asked", "known"),
    [("1.2.1", OLD), ("1.2", OLD), ("1.3", MIDDLE), ("1.3.0rc26", OLD), ("1.4.0", NEW)],
)
def test_a_release_is_the_newest_that_is_not_newer(asked, known) -> None:
    assert nearest(asked, ENGINE.versions) == known


VALUES = {
    "int": st.integers(-2, 70) | st.integers(),
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": st.sampled_from(["", "a", "auto", "d", *RELEASES[NEW].own]),
    "map": st.dictionaries(st.integers(-1, 70) | st.just("x"), st.integers(-1, 9), max_size=3),
    "any": st.none() | st.integers(-1, 9) | st.lists(st.integers(-1, 9), max_size=4),
}


@st.composite
def arguments(draw, version: str) -> dict:
    flags = ENGINE.flags(version)
    inner = [name for name in flags.all if "." in name]
    often = [n for n in inner if "draft" in n or "tree" in n or "len" in n or "model" in n]
    often += ["max_batch_size", "max_seq_len", "dtype"]
    pick = st.sampled_from(often) | st.sampled_from(inner) | st.sampled_from(sorted(flags.all))
    names = draw(st.lists(pick, max_size=8))
    found = {name: draw(VALUES[flags[name].type.rstrip("?")]) for name in names}
    if draw(st.integers(0, 4)):
        kind = draw(st.sampled_from(sorted(RELEASES[version].own)))
        allowed = RELEASES[version]
        found = {
            n: v for n, v in found.items() if "." not in n or allowed.has(n.partition(".")[2], kind)
        }
        found[key("decoding_type")] = kind
    out: dict = {"model": "t"}
    for name, value in found.items():
        outer, dot, last = name.partition(".")
        if dot:
            out.setdefault(outer, {})[last] = value
        else:
            out[name] = value
    return out


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data(), version=st.sampled_from(ENGINE.versions))
def test_any_arguments_have_an_outcome(data, version) -> None:
    """They are a recipe, or a refusal; and what the engine makes of them is the same twice."""
    args = data.draw(arguments(version))
    recipe = of(PLAIN)
    found = ENGINE.effective(recipe, Export(args), version, "h100")
    assert isinstance(found, Effective | Refused)
    assert found == ENGINE.effective(recipe, Export(args), version, "h100")
    with suppress(Refusal):
        typed = ENGINE.typed(args, version)
        imported = ENGINE.load(typed, {}, version)
        known = {"target", "draft", "verify", "sampling", "run", "engine"}
        assert set(imported.written) <= known
        yaml.safe_dump(dict(imported.written))
        kept = imported.written.get("engine", {}).get("trtllm", {})
        assert set(spread(kept)) <= set(spread(typed))


WORDS = st.sampled_from(["trtllm-serve", "serve", "--config", "--tp_size", "2", "m", "-x", "A=b"])


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80) | st.lists(WORDS, max_size=8).map(" ".join))
def test_any_line_is_read_or_refused(text) -> None:
    for version in ENGINE.versions:
        with suppress(Refusal):
            assert set(ENGINE.load(*ENGINE.read(text, version), version).written)


FILES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(said=st.dictionaries(st.just("speculative_config") | st.text(max_size=8), FILES, max_size=3))
def test_any_file_is_read_or_refused(said) -> None:
    with suppress(Refusal):
        assert set(ENGINE.load(ENGINE.typed(said, NEW), {}, NEW).written)
