"""Models whose weights are made up: what a config alone says of them, and where one is found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from specflow import dummies, facts, published
from specflow.cli import main
from specflow.facts import ModelFacts, describe_draft, read, unread
from specflow.load import load, loads
from specflow.packs import find
from specflow.recipe import ResolvedRecipe, dump
from specflow.resolve import resolve
from tests import gguf_files
from tests.checkpoint_files import (
    CONFIG,
    DFLASH_CONFIG,
    DSPARK_CONFIG,
    LM,
    ONE,
    write,
    write_tokenizer,
)
from tests.conftest import ROOT

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def only(folder: Path, **config: object) -> Path:
    """A folder of a config.json alone."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def looked(model: object, *asked: str) -> ModelFacts:
    return dummies.reader(read, asked)(str(model))


def recipe(target: object, **draft: object) -> ResolvedRecipe:
    written = {
        "target": {"model": str(target)},
        "draft": draft or {"algorithm": "NGRAM"},
        "run": {"load_format": "dummy"},
    }
    return resolve(loads(yaml.safe_dump(written), "recipe.yaml"))


# -- where a config is -----------------------------------------------------------------------------


def test_a_config_alone_is_a_model(tmp_path: Path) -> None:
    found = looked(only(tmp_path / "a", **CONFIG))
    assert found.dummy
    assert found.problem is found.unmade is found.tokenizer_problem is None
    assert (found.hidden_size, found.vocab_size, found.layers) == (8, 20, 4)
    assert (found.tokenizer_size, found.has_words) == (0, False)
    assert read(str(tmp_path / "a")).problem is not None  # with `auto` it lacks weights


@pytest.mark.parametrize("broken", ["pickle", "torn", "ints"])
def test_what_weights_are_there_does_not_matter(broken: str, tmp_path: Path) -> None:
    folder = write_tokenizer(write(tmp_path / "a", LM, **CONFIG))
    weights = folder / "model.safetensors"
    if broken == "pickle":
        weights.rename(folder / "pytorch_model.bin")
    if broken == "torn":
        weights.write_bytes(weights.read_bytes()[:-9])
    if broken == "ints":
        write(folder, LM | {"model.norm.weight": ("I32", [1] * 8)}, **CONFIG)
    found = looked(folder)
    assert found.problem is found.unmade is found.no_float is None
    assert found.tokenizer_size == 20


def test_what_is_broken_beside_weights_is_told(tmp_path: Path) -> None:
    folder = only(tmp_path / "a", **CONFIG)
    (folder / "tokenizer.json").write_text("{")
    problem = looked(folder).tokenizer_problem
    assert problem is not None
    (folder / "config.json").write_text("{")
    problem = looked(folder).problem
    assert problem is not None
    assert "is not a JSON object" in problem.message


def test_a_config_of_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--org--name"
    only(kept / "snapshots" / "0123", **CONFIG)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0123")
    found = looked("org/name")
    assert found.dummy
    assert (found.problem, found.model, found.hidden_size) == (None, "org/name", 8)
    assert recipe("org/name").findings == ()
    problem = looked("org/other").problem
    assert problem is not None
    assert problem.kind == "missing"


def test_a_record_without_a_whole_config_may_be_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    name = "zai-org/GLM-4.5-Air"
    assert looked(name).unmade is not None
    kept = tmp_path / "models--zai-org--GLM-4.5-Air"
    only(kept / "snapshots" / "0123", **CONFIG)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0123")
    assert (looked(name).unmade, looked(name).hidden_size) == (None, 8)


WHOLE = [n for n in published.names() if published.config(published.record(n) or {})]


def test_the_records_of_which_whole_configs_are_made() -> None:
    wanted = {
        LLAMA, "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen3-8B",
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "z-lab/Qwen3-8B-DFlash-b16",
        "deepseek-ai/dspark_qwen3_8b_block7",
    }  # fmt: skip
    assert wanted <= set(WHOLE)


# Of each recorded draft that a whole config is made of: the target that it was made for.
TARGETS = {
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": LLAMA,
    **{
        org.format(size): f"Qwen/Qwen3-{size.upper()}"
        for size in ("4b", "8b")
        for org in ("deepseek-ai/dspark_qwen3_{}_block7", "deepseek-ai/dflash_qwen3_{}_block7")
    },
    "z-lab/Qwen3-8B-DFlash-b16": "Qwen/Qwen3-8B",
    "z-lab/Qwen3-4B-DFlash-b16": "Qwen/Qwen3-4B",
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_config_says_what_the_record_does(name: str, tmp_path: Path) -> None:
    """In a folder it is the same model, and the same draft beside the same target."""
    known = looked(name)
    assert known.recorded
    assert known.unmade is None
    folder = only(tmp_path / "a", **dict(known.config))
    again = looked(folder)
    for field in ("architecture", "vocab_size", "max_positions", "hidden_size", "layers"):
        assert getattr(known, field) == getattr(again, field)
    net = (published.record(name) or {}).get("net")
    if net is not None:
        target = looked(TARGETS[name])
        meant = describe_draft(target, looked(folder, net["format"]))
        assert describe_draft(target, known) == meant


# -- what is not made ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"compression_config": {"format": "int-quantized"}}, "compression_config"),
        ({"text_config": {**CONFIG, "quantization_config": {"bits": 4}}}, "quantization_config"),
    ],
)
def test_quantized_configs_are_refused(
    config: dict[str, object], says: str, tmp_path: Path
) -> None:
    made = recipe(only(tmp_path / "a", **CONFIG | config))
    (finding,) = (f for f in made.findings if f.code == "SF079")
    assert f"is quantized (`{says}`)" in finding.message
    assert finding.help


def test_a_file_that_says_it_is_quantized(tmp_path: Path) -> None:
    folder = only(tmp_path / "a", **CONFIG)
    (folder / "hf_quant_config.json").write_text("{}")
    unmade = looked(folder).unmade
    assert unmade is not None
    assert "hf_quant_config.json" in unmade.message


def test_a_gguf_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf_files.made())
    (finding,) = recipe(tmp_path / "m.gguf").findings
    assert (finding.code, "is a GGUF file" in finding.message) == ("SF079", True)
    (tmp_path / "r.yaml").write_text(
        f"target: {{model: {tmp_path}/m.gguf}}\ndraft: {{algorithm: NGRAM}}\n"
        "run: {load_format: dummy}\n"
    )
    assert main(["run", str(tmp_path / "r.yaml"), "--prompt", "a"]) == 1
    said = capsys.readouterr()
    assert (said.out + said.err).count("[SF079]") == 1
    assert "error[SF079]" in said.out
    assert "making up" not in said.err  # it is told before anything loads


@pytest.mark.parametrize("key", dummies.NEEDED)
def test_a_config_in_part_is_told(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {k: v for k, v in CONFIG.items() if k != key}
    for name, said in (("top", config), ("inside", {"text_config": config})):
        unmade = looked(only(tmp_path / name, **said)).unmade
        assert unmade is not None
        assert unmade.message.endswith(f"has a config.json that says no `{key}`")
    words = ["pico/plain", "run.load_format=dummy", f"target.model={tmp_path / 'top'}"]
    assert main(["validate", *words]) == 0
    assert f"warning[SF079]: `{tmp_path / 'top'}` has" in capsys.readouterr().out
    assert main(["run", *words, "--prompt", "a"]) == 1
    assert "error[SF079]" in capsys.readouterr().out


def test_what_to_put_into_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    problem = looked(tmp_path / "empty").problem
    assert problem is not None
    assert problem.help == dummies.ENOUGH
    bare_ = read(str(only(tmp_path / "a", **CONFIG))).problem
    assert bare_ is not None
    assert "`run.load_format: dummy`" in bare_.help


def test_a_recipe_that_can_be_judged_alone_ends_with_one_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["deepseek/v3_nextn", "run.load_format=dummy"]
    assert main(["run", *words, "--prompt", "a"]) == 1
    said = capsys.readouterr()
    assert said.out.count("[SF079]") == said.out.count("error[") == 1
    assert said.err == ""


def test_a_model_that_is_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pico/ngram", "run.load_format=dummy", "target.model=org/nowhere"]
    assert main(["validate", *words]) == 1
    assert "error[SF061]" in capsys.readouterr().out
    found = dummies.reader(unread(read))("org/nowhere")
    assert found.elsewhere  # of a recipe that runs on an engine it is a warning, as ever


# -- a recipe --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", sorted(p.stem for p in (ROOT / "recipes" / "pico").glob("*.yaml")))
def test_every_recipe_goes_by_configs_alone(pack: str, tmp_path: Path) -> None:
    """Its findings, its step and its values are those it has with the weights."""
    real = resolve(load(find(f"pico/{pack}"), []))
    words = ["run.load_format=dummy"]
    words += [
        f"{block}.model={bare(real[f'{block}.model'], tmp_path / block)}"
        for block in ("target", "draft")
        if f"{block}.model" in real and not lies_in_target(real, block)
    ]
    made = resolve(load(find(f"pico/{pack}"), words))
    assert made.findings == real.findings
    one, other = dump(made), dump(real)
    for values in (one, other):
        for block in ("target", "draft"):
            values[block].pop("model", None)
        del values["run"]["load_format"]
    assert one == other
    assert made.facts.net == real.facts.net


def lies_in_target(real: ResolvedRecipe, block: str) -> bool:
    """A draft that is named by its target's name lies in it."""
    return block == "draft" and real["draft.model"].startswith(real["target.model"])


def bare(model: str, to: Path) -> Path:
    name, _, part = model.removeprefix("builtin:").partition("/")
    source = facts.builtins()[name] / part
    for file in (source / "config.json", *source.glob("*/config.json")):
        place = to / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    return to


def test_a_step_is_the_same_whatever_its_weights_are() -> None:
    one, other = (
        resolve(load(find("pico/eagle3"), [f"run.load_format={how}"])) for how in ("auto", "dummy")
    )
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize(
    ("config", "algorithm", "form"),
    [
        (DFLASH_CONFIG, "DFLASH", "dflash"),
        (DSPARK_CONFIG, "DSPARK", "dspark"),
        (ONE, "EAGLE", "eagle"),
        (ONE, "EAGLE3", "eagle3"),
        (CONFIG, "STANDALONE", "causal_lm"),
    ],
)
def test_a_recipe_tells_what_a_config_leaves_open(
    config: dict[str, object], algorithm: str, form: str, tmp_path: Path
) -> None:
    target = only(tmp_path / "target", **CONFIG)
    made = recipe(target, algorithm=algorithm, model=str(only(tmp_path / "draft", **config)))
    assert made.facts.net.format == form


def test_a_target_without_layers_for_drafting_brings_none(tmp_path: Path) -> None:
    target = looked(only(tmp_path / "a", **CONFIG))
    assert describe_draft(target, None).format == ""
    more = CONFIG | {"num_nextn_predict_layers": 1}
    assert describe_draft(looked(only(tmp_path / "b", **more)), None).format == "mtp"


def test_no_torch_is_needed_to_judge_it() -> None:
    script = (
        "import sys; from specflow.cli import main; "
        "code = main(['validate', 'llama/llama3_1_eagle3_chain', 'run.load_format=dummy']); "
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub'} & set(sys.modules); "
        "sys.exit(code or (str(heavy) if heavy else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_says_what_is_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"target.model={bare('builtin:pico-llama', tmp_path / 'a')}"]
    words += [f"draft.model={bare('builtin:pico-llama-eagle3', tmp_path / 'b')}"]
    assert main(["validate", "pico/eagle3", "run.load_format=dummy", *words, "--deep"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"stored as +ok +made up +made up\n", said)
    assert re.search(r"map +ok .*`d2t` of 1216: made up\n", said)


def test_a_target_that_drafts_for_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bare("builtin:pico-llama", tmp_path / "a")
    words = [f"{block}.model={folder}" for block in ("target", "draft")]
    assert main(["validate", "pico/standalone", "run.load_format=dummy", *words]) == 0
    said = capsys.readouterr().out
    assert re.search(r"kind +ok .* a whole language model\n", said)
    assert {"embedding", "head", "context"} <= {
        line.partition(" ")[0] for line in said.splitlines()
    }


def test_random_chances_are_not_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "a"}\n')
    words = ["pico/dspark_planned", "run.load_format=dummy", "--prompts", str(tmp_path / "p.jsonl")]
    assert main(["calibrate", *words]) == 2
    assert "leave `run.load_format` out" in capsys.readouterr().err


# -- engines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm"])
def test_engines_have_the_same_word(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["qwen3/qwen3_8b_eagle3_chain", "run.load_format=dummy", "--engine", engine]
    assert main(["export", *words, "--format", "json"]) == 0
    said = capsys.readouterr().out
    assert '"load_format": "dummy"' in said or '"--load-format", "dummy"' in said
    (tmp_path / "args.json").write_text(said)
    assert main(["import", str(tmp_path / "args.json"), "--engine", engine]) == 0
    back = yaml.safe_load(capsys.readouterr().out)
    assert back["run"] == {"load_format": "dummy"}
    assert "load_format" not in back.get("engine", {}).get(engine, {})


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm"])
def test_other_formats_are_an_engines_own(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word = "sharded_state"
    (tmp_path / "args.json").write_text(json.dumps({
        "model" if engine != "sglang" else "model_path": LLAMA, "load_format": word,
    }))  # fmt: skip
    assert main(["import", str(tmp_path / "args.json"), "--engine", engine]) == 0
    back = yaml.safe_load(capsys.readouterr().out)
    assert back["engine"][engine]["load_format"] == word
    assert "run" not in back


def test_llamacpp_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pico/ngram_chain", "run.load_format=dummy", "--engine", "llamacpp"]
    main(["export", *words])
    assert "`run.load_format`: llama.cpp reads" in capsys.readouterr().err
