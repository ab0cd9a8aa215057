"""What a recipe says to an engine stays data: no command, no key, no flag comes of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specflow.cli import main
from specflow.engines import ENGINES
from specflow.engines.base import Export
from specflow.engines.outcome import Effective, Refusal, Refused
from specflow.engines.sglang.resolver import effective as of_sglang
from specflow.engines.vllm.rules import effective as of_vllm
from specflow.load import loads
from specflow.resolve import resolve

PLAIN = {"target": {"model": "builtin:pico-llama"}, "draft": {"algorithm": "NONE"}}
SMALL = PLAIN | {"draft": {"algorithm": "STANDALONE", "model": "builtin:pico-llama-s"}}
BREAKS = ("\n", "\r", "\x85", "\u2028", "\u2029")
NAMES = ENGINES.names()


@pytest.fixture
def export(tmp_path, capsys, monkeypatch):
    """Export a recipe: the exit code, what is printed, what is told."""
    monkeypatch.chdir(tmp_path)

    def run(engine: str, form: str, *, recipe: dict = PLAIN, **flags) -> tuple[int, str, str]:
        said = recipe | ({"engine": {engine.partition("@")[0]: flags}} if flags else {})
        Path("r.yaml").write_text(yaml.safe_dump(said))
        code = main(["export", "r.yaml", "--engine", engine, "--format", form])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def back(capsys):
    """Import a text: the recipe, and what is told."""

    def run(engine: str, text: str, suffix: str) -> tuple[dict, str]:
        Path(f"back.{suffix}").write_text(text)
        code = main(["import", f"back.{suffix}", "--engine", engine])
        out, err = capsys.readouterr()
        return (yaml.safe_load(out), err) if code == 0 else ({}, out + err)

    return run


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("name", ["A;touch PWN;B", "A\n", "1A", "A B", "Ä", "$(touch PWN)"])
def test_what_is_no_name_of_a_variable_is_refused_where_it_is_written(engine, name, export) -> None:
    for form in ENGINES[engine].formats:
        code, out, err = export(engine, form, env={name: "1"})
        assert code == 1
        assert not out
        assert "error[SF114]" in err
        assert "r.yaml:" in err


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize(
    "env", [[1], "x", 5, [["a", "b"]], {"A": [1]}, {"A": None}, {"A": float("inf")}, {1: "a"}]
)
def test_variables_are_texts_or_numbers_by_name(engine, env, export) -> None:
    code, out, err = export(engine, "json", env=env)
    assert code == 1
    assert not out
    assert "error[SF114]" in err
    assert "r.yaml:" in err


@pytest.mark.parametrize("engine", NAMES)
def test_any_value_of_a_variable_is_one_word_of_a_script(engine, export) -> None:
    value = "'; touch PWN; \"$(touch PWN)`touch PWN`\n#"
    code, out, _ = export(engine, "sh", env={"X": value, "Y": True, "Z": 2.5})
    assert code == 0
    script = out[: out.index("\nexec ")] + '\nprintf \'%s|\' "$X" "$Y" "$Z"'
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{value}|true|2.5|"
    assert not Path("PWN").exists()


def test_a_name_that_is_imported_is_one(back, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = json.dumps({"args": {"model_path": "m"}, "env": {"A;touch PWN": "1"}})
    written, err = back("sglang", line, "json")
    assert not written
    assert "error[SF114]" in err


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm"])
@pytest.mark.parametrize("end", BREAKS)
def test_no_value_leaves_its_comment_and_every_one_comes_back(engine, end, export, back) -> None:
    value = f"1{end}model-path: evil"
    _, out, _ = export(engine, "yaml", env={"X": value})
    assert "evil" not in str(yaml.safe_load(out))
    written, _ = back(engine, out, "yaml")
    assert written["engine"][engine]["env"] == {"X": value}


@pytest.mark.parametrize("end", ["", *BREAKS, " # '\" \\"])
def test_the_model_of_a_file_stands_in_its_comment_and_comes_back(end, export, back) -> None:
    model = f"some/model{end}dtype: evil" if end else "some/model"
    recipe = PLAIN | {"target": {"model": model}}
    for version in ENGINES["trtllm"].versions:
        _, out, _ = export(f"trtllm@{version}", "yaml", recipe=recipe)
        if not out and end:
            continue  # no model has such a name
        assert yaml.safe_load(out) == {}
        written, _ = back(f"trtllm@{version}", out, "yaml")
        assert written["target"] == {"model": model}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("items", [["--tp-size", "8"], ["a", "-b"]])
def test_an_item_that_begins_as_a_flag_is_refused(engine, items, export) -> None:
    code, out, err = export(engine, "args", allowed_media_domains=items)
    assert (code, out) == (1, "")
    assert "error[SF114]" in err
    assert "read as a flag" in err


@pytest.mark.parametrize("value", [[{"a": 1}, "--x"], [{"a": {"b": [1, "'"]}}], ["x", "-1"]])
def test_values_with_structure_come_back(value, export, back) -> None:
    code, out, err = export("sglang", "args", forward_hooks=value)
    assert code == 0, err
    written, _ = back("sglang", out, "sh")
    found = written["engine"]["sglang"]["forward_hooks"]
    assert found == [int(v) if v == "-1" else v for v in value]


def test_true_is_no_list(export, back) -> None:
    code, out, err = export("sglang", "args", lora_target_modules=True)
    assert (code, out) == (1, "")
    assert "takes values" in err
    code, out, _ = export("vllm", "args", hf_token=True)
    assert code == 0
    assert back("vllm", out, "sh")[0]["engine"]["vllm"]["hf_token"] is True


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("sglang", "mem_fraction_static"),
        ("vllm", "gpu_memory_utilization"),
        ("llamacpp", "rope_scale"),
        ("trtllm", "kv_cache_config"),
    ],
)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_number_is_finite(engine, flag, value, export) -> None:
    said = {"a": [value]} if engine == "trtllm" else value
    for form in ENGINES[engine].formats:
        code, out, err = export(engine, form, **{flag: said})
        assert (code, out) == (1, "")
        assert "is no finite number" in err


@pytest.mark.parametrize(
    "text",
    [
        '{"1":' * 3000,
        "[" * 900 + "]" * 900,
        '{"1":' * 900 + "1" + "}" * 900,
        '{"1": {"candidate_steps": [' + "9" * 4300 + "]}}",
        '{"1": {"candidate_steps": ' + "[" * 900 + "]" * 900 + "}}",
    ],
)
def test_a_file_of_slots_is_read_or_refused(text, tmp_path) -> None:
    file = tmp_path / "slots.json"
    file.write_text(text)
    args = {"model_path": "m", "speculative_algorithm": "EAGLE", "speculative_adaptive": True}
    found = of_sglang(args | {"speculative_adaptive_config": str(file)}, None)
    assert isinstance(found, Refused)
    assert found.rule == "V4"


def test_vllm_has_an_outcome_whatever_stands_beside_its_arguments() -> None:
    args = {"model": "m", "speculative_config": {"method": "ngram", "num_speculative_tokens": 1}}
    for strange in (5, [1], "x", object()):
        assert isinstance(of_vllm(args, None, env=strange, requests=strange), Effective)
    rates = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [10**400]}
    spec = {"method": "eagle3", "model": "d", "num_speculative_tokens": 1, **rates}
    found = of_vllm({"model": "m", "speculative_config": spec}, None)
    assert isinstance(found, Refused)
    assert found.rule == "V15"


def anything() -> st.SearchStrategy:
    """Values of files, and some that no file has."""
    flat = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 70),
        st.sampled_from([10**400, 10**4000, -(2**70), float("inf"), float("nan"), object(), b"x"]),
        st.builds(pow, st.just(10), st.just(5000)),  # one that Python does not print
        st.floats(),
        st.text(max_size=4),
    )
    deep = lambda inner: st.lists(inner, max_size=3) | st.dictionaries(flat, inner, max_size=3)  # noqa: E731
    return st.recursive(flat, deep, max_leaves=6)


def arguments(engine: str) -> st.SearchStrategy:
    """Flags of the newest version, those of drafting the most often, with any value."""
    flags = ENGINES[engine].flags(ENGINES[engine].versions[-1])
    drafting = [name for name in flags.all if "spec" in name]
    choices = sorted({choice for name in drafting for choice in flags[name].choices})
    names = st.sampled_from(drafting) | st.sampled_from(sorted(flags.all)) | st.text(max_size=5)
    values = anything()
    return st.dictionaries(names, values | st.sampled_from(choices) if choices else values)


@pytest.mark.parametrize("engine", ["trtllm", "llamacpp"])
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_arguments_have_an_outcome(engine, data) -> None:
    row = ENGINES[engine]
    recipe = resolve(loads(yaml.safe_dump(SMALL)))
    version = data.draw(st.sampled_from(row.versions))
    asked = Export(data.draw(arguments(engine)))
    found = row.effective(recipe, asked, version, row.platforms[0])
    assert isinstance(found, Effective | Refused)


@pytest.mark.parametrize("form", ["json", "python"])
@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm"])
def test_what_requests_ask_for_comes_back(engine, form, export, back) -> None:
    asked = {"temperature": 0.5, "top_k": 4, "seed": 7, "max_new_tokens": 9, "stop": ["x"]}
    _, out, _ = export(engine, form, recipe=SMALL | {"sampling": asked})
    written, _ = back(engine, out, {"json": "json", "python": "py"}[form])
    assert written["sampling"] == asked


def test_what_no_field_says_of_requests_is_told(back, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = {"args": {"model": "m"}, "requests": {"logit_bias": {"1": 2}, "max_tokens": 3}}
    written, err = back("vllm", json.dumps(said), "json")
    assert written["sampling"] == {"max_new_tokens": 3}
    assert "warning[SF113]: `logit_bias`" in err


@pytest.mark.parametrize("engine", NAMES)
def test_how_a_step_ends_is_told_to_no_engine(engine, export) -> None:
    recipe = SMALL | {"commit": {"draft_state": "extend"}}
    assert "warning[SF111]: `commit.draft_state`" in export(engine, "json", recipe=recipe)[2]


def test_a_device_and_a_number_of_steps_that_do_not_come_back_are_told(export, capsys) -> None:
    recipe = SMALL | {"run": {"device": "cuda"}}
    assert "note[SF112]: `run.device`" in export("trtllm", "json", recipe=recipe)[2]
    main(["export", "pico/eagle3_adaptive", "--engine", "vllm"])
    assert "note[SF112]: `draft.num_steps`" in capsys.readouterr().err


def test_a_version_may_have_its_v(export) -> None:
    code, out, err = export("sglang@v0.5.23", "args")
    assert (code, err) == (0, "")
    assert out == export("sglang@0.5.23", "args")[1]


def test_an_item_is_a_fault_of_its_own_flag() -> None:
    row = ENGINES["llamacpp"]
    recipe = loads(
        yaml.safe_dump(PLAIN | {"engine": {"llamacpp": {"control_vector_layer_range": ["--x"]}}})
    )
    with pytest.raises(Refusal) as refusal:
        row.export(resolve(recipe), row.versions[-1], row.platforms[0])
    assert [fault.words for fault in refusal.value.faults] == [("control_vector_layer_range",)]
