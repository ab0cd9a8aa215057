"""Scripts, programs and command lines of engines as people write them: read, or told in full."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from specflow.cli import main
from specflow.cli.engines import asked_engine
from specflow.cli.imported import translated
from specflow.engines import ENGINES
from specflow.engines.base import Beside, from_requests
from specflow.engines.command_line import line, read
from specflow.engines.configs import draft_config, target_config
from specflow.engines.outcome import Effective, Refusal
from specflow.engines.programs import program
from specflow.engines.sglang.exports import to_args
from specflow.engines.sglang.flags import FLAGS
from specflow.engines.sglang.imports import from_args
from specflow.engines.sglang.resolver import effective
from specflow.errors import RecipeError
from specflow.load import load, loads
from specflow.packs import find
from specflow.resolve import resolve
from tests.conftest import RECIPES

SERVER = "python3 -m sglang.launch_server"
FLAG = "--model-path m"
MODE = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}

# A script, and the variables that its server is started with.
SCRIPTS = {
    "set -eu\nexport A=b\nexec python -m sglang.launch_server --model-path m": {"A": "b"},
    f"A=b {SERVER} {FLAG}": {"A": "b"},
    f"env -u X A=b C='d e' {SERVER} {FLAG}": {"A": "b", "C": "d e"},
    f"A=b\n{SERVER} {FLAG}": {},  # a variable of the shell alone
    f"A=b\nexport A\n{SERVER} {FLAG}": {"A": "b"},
    f"set -a; A=b; {SERVER} {FLAG}": {"A": "b"},
    f"export A=b; unset A; {SERVER} {FLAG}": {},
    f"#!/bin/bash\n# --not-a-flag\nnohup {SERVER} {FLAG} > log 2>&1 &\n": {},
    f"{SERVER} {FLAG} 2>&1 | tee --append log": {},
    f"{SERVER} {FLAG} &> log; curl --silent http://x": {},
    f"{SERVER} \\\n  --model-path \\\n  m  # the model\n": {},
    f"pip install --upgrade sglang && {SERVER} {FLAG}": {},
    f"docker run --gpus all -p 1:1 -e A=b --env=C=d image:1 {SERVER} {FLAG}": {
        "A": "b",
        "C": "d",
    },
    f'docker run --rm image bash -c "A=b {SERVER} {FLAG}"': {"A": "b"},
    f"{SERVER}\n  --model-path m": {},  # flags go on, without a backslash too
    f"M=m\n{SERVER} --model-path $M": {},
    f'M=m\n{SERVER} --model-path "${{M}}"': {},
    f"{SERVER} --model-path ${{M:-m}}": {},
    f"ARGS=(--model-path m)\n{SERVER} ${{ARGS[@]}}": {},
    f'ARGS="--model-path m"\n{SERVER} $ARGS': {},
    f"cat > f.json <<'END'\n--port 3\nit's\nEND\n{SERVER} {FLAG}": {},
}


@pytest.mark.parametrize(("text", "env"), SCRIPTS.items(), ids=range(len(SCRIPTS)))
def test_a_script_starts_a_server_with_its_flags_and_variables(text, env) -> None:
    assert read(FLAGS, text) == ({"model_path": "m"}, env)


def test_files_that_a_script_writes_are_known() -> None:
    text = f"N=3\ncat <<E >a\n$N\nE\ntee b c <<'E' >/dev/null\n$N\nE\n{SERVER} {FLAG}"
    assert dict(line(FLAGS, text).files) == {
        "a": "3\n",
        "b": "$N\n",
        "c": "$N\n",
        "/dev/null": "$N\n",
    }


@pytest.mark.parametrize("text", [f"{SERVER} {FLAG} 'open", f'{SERVER} "open', f"{SERVER} \\"])
def test_text_that_does_not_end_is_refused(text) -> None:
    with pytest.raises(Refusal, match="does not end"):
        read(FLAGS, text)


@pytest.mark.parametrize("name", ENGINES.names())
@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_format_of_an_export_is_imported_alike(name, path, tmp_path, monkeypatch) -> None:
    """A script, a program and JSON say the same; a script alone has nothing of requests."""
    engine = ENGINES[name]
    recipe = resolve(load(path))
    monkeypatch.chdir(tmp_path)
    asked = asked_engine(name)
    try:
        export = engine.export(recipe, asked.version, engine.platforms[0])
    except Refusal:
        return
    if export.refused:
        return
    found = {}
    for form, suffix in {"sh": "sh", "json": "json", "python": "py"}.items():
        if form in engine.formats:
            file = Path(f"r.{suffix}")
            file.write_text(engine.formats[form](export, asked.version))
            found[form] = translated(asked, str(file), None).found
    assert len(found) > 1
    for form, each in found.items():
        assert each.written == _said(found["json"].written, export.requests, form), form
        assert each.lost == found["json"].lost


def _said(written, requests, form):
    """What a format says of JSON's: a script has no place for what requests ask for."""
    asked = from_requests(requests)[0] if form == "sh" else {}
    sampling = {k: v for k, v in written.get("sampling", {}).items() if k not in asked}
    rest = {block: values for block, values in written.items() if block != "sampling"}
    return rest | ({"sampling": sampling} if sampling else {})


def test_slots_of_an_adaptive_draft_come_back_out_of_a_script(tmp_path, monkeypatch) -> None:
    recipe = resolve(
        loads(
            "target: {model: builtin:pico-llama}\n"
            "draft: {algorithm: EAGLE3, model: builtin:pico-llama-eagle3, adaptive: true,\n"
            "        num_steps: 2, adaptive_slots: {1: [2, 4], 8: [0, 2]}}\n"
        )
    )
    monkeypatch.chdir(tmp_path)
    for form, suffix in {"sh": "sh", "json": "json", "python": "py"}.items():
        text = ENGINES["sglang"].formats[form](to_args(recipe), "0.5.23")
        Path(f"r.{suffix}").write_text(text)
        found = translated(asked_engine("sglang"), f"r.{suffix}", None).found
        assert found.written["draft"]["adaptive_slots"] == {1: [2, 4], 8: [0, 2]}, form
        assert not found.lost


# -- what an engine runs where nothing is said -----------------------------------------------------

SAID = {
    "EAGLE3": "builtin:pico-llama-eagle3",
    "EAGLE3 --speculative-adaptive": "builtin:pico-llama-eagle3",
    "STANDALONE": "builtin:pico-llama-s",
    "NGRAM": "",
    "DFLASH": "builtin:pico-llama-dflash",
    "DSPARK": "builtin:pico-llama-dspark",
}
PICO = [
    f"--model-path builtin:pico-llama --speculative-algorithm {name}"
    + (f" --speculative-draft-model-path {draft}" if draft else "")
    for name, draft in SAID.items()
]
LLAMA = (
    "--model-path meta-llama/Llama-3.1-8B-Instruct --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
)
OPEN = (*PICO, LLAMA, "--model-path deepseek-ai/DeepSeek-V3 --speculative-algorithm NEXTN")
RUNS = (
    *("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
    *("speculative_ngram_min_bfs_breadth", "speculative_ngram_max_bfs_breadth"),
    *("speculative_ngram_match_type", "speculative_ngram_max_trie_depth"),
    *("speculative_ngram_capacity", "speculative_adaptive"),
)


@pytest.mark.parametrize("text", OPEN)
def test_sglang_runs_the_same_before_and_after_a_round_trip(text) -> None:
    found = translated(asked_engine("sglang"), None, text)
    recipe = resolve(loads(found.text))
    configs = (target_config(recipe), draft_config(recipe))
    first = effective(read(FLAGS, text)[0], *configs)
    second = effective(to_args(recipe).args, *configs)
    assert isinstance(first, Effective)
    assert isinstance(second, Effective)
    assert {name: second[name] for name in RUNS} == {name: first[name] for name in RUNS}


def test_the_default_of_an_architecture_is_written_where_it_is_known() -> None:
    args = {"speculative_algorithm": "EAGLE3", "model_path": "m"}
    llama = from_args(args, {}, Beside(target={"architectures": ["LlamaForCausalLM"]}))
    assert llama.written["draft"] == {"algorithm": "EAGLE3", "num_steps": 5, "topk": 4}
    assert llama.written["verify"] == {"shape": "tree", "num_draft_tokens": 8}
    other = from_args(args, {}, Beside(target={"architectures": ["Qwen3ForCausalLM"]}))
    assert other.written["draft"] == {"algorithm": "EAGLE3", "num_steps": 3, "topk": 1}
    unknown = from_args(args, {})
    assert unknown.written["draft"] == {"algorithm": "EAGLE3"}
    assert [gap.at for gap in unknown.approximate] == ["--speculative-num-steps"]


@pytest.mark.parametrize(
    ("said", "row"),
    [
        ("--speculative-eagle-topk 8", "E1"),
        ("--speculative-num-draft-tokens 8", "E1"),
        ("--speculative-num-steps 3", "E2"),
        ("--speculative-num-steps 3 --speculative-eagle-topk 2", "E3"),
    ],
)
def test_numbers_that_sglang_crashes_on_are_a_finding(said, row, capsys) -> None:
    words = f"--model-path m --speculative-algorithm EAGLE3 {said}"
    assert main(["import", "--engine", "sglang", "--args", words]) == 1
    out = capsys.readouterr().out
    assert "error[SF118]" in out
    assert f"row {row} " in out


def test_adaptive_steps_beside_branches_are_told() -> None:
    args = {"speculative_algorithm": "EAGLE3", "speculative_adaptive": True}
    tree = {
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 6,
    }
    found = from_args(args | tree)
    assert [gap.at for gap in found.overruled] == ["--speculative-adaptive"]
    assert "adaptive" not in found.written["draft"]


def test_guesses_of_vllm_are_those_of_the_drafts_config() -> None:
    load_, version = ENGINES["vllm"].load, ENGINES["vllm"].versions[-1]
    args = {"model": "m", "speculative_config": {"method": "eagle3", "model": "d"}}
    told = load_(args, {}, version, Beside(draft={"n_predict": 4}))
    assert told.written["draft"]["num_steps"] == 4
    lacking = load_(args, {}, version, Beside(draft={"model_type": "llama"}))
    assert [gap.at for gap in lacking.refused] == ["--speculative-config.num_speculative_tokens"]
    unknown = load_(args, {}, version, Beside())
    assert "num_steps" not in unknown.written["draft"]
    assert [gap.at for gap in unknown.approximate] == [
        "--speculative-config.num_speculative_tokens"
    ]


def test_guesses_of_tensorrt_llm_are_the_layers_of_the_checkpoint() -> None:
    engine = ENGINES["trtllm"]
    args = {"model": "m", "speculative_config": {"decoding_type": "MTP"}}
    known = Beside(target={"num_nextn_predict_layers": 3})
    assert engine.load(args, {}, engine.versions[-1], known).written["draft"]["num_steps"] == 3
    assert engine.load(args, {}, engine.versions[-1], Beside()).lost


# -- beginnings of flags ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("--tp 8", "tp_size"),
        ("--tp=8", "tp_size"),
        ("--dp 8", "dp_size"),
        ("--ep 8", "ep_size"),
        ("--tensor-parallel 8", "tp_size"),
        ("--speculative-num-st 8", "speculative_num_steps"),
    ],
)
def test_the_beginning_of_one_flag_stands_for_it(said, name) -> None:
    assert read(FLAGS, said)[0] == {name: 8}


def test_the_beginning_of_several_flags_is_refused_with_their_names() -> None:
    with pytest.raises(Refusal) as caught:
        read(FLAGS, "--pp 8")
    for option in ("--pp-size", "--pp-async-batch-depth", "--pp-max-micro-batch-size"):
        assert option in str(caught.value)


def test_only_parsers_that_take_beginnings_have_them() -> None:
    vllm, llama = ENGINES["vllm"], ENGINES["llamacpp"]
    args, _ = vllm.read("vllm serve m --tensor-parallel 2 --speculative-conf '{}'", "0.33.0")
    assert args["tensor_parallel_size"] == 2
    with pytest.raises(Refusal):
        llama.read("-m x.gguf --ctx-siz 4", llama.versions[-1])
    with pytest.raises(Refusal):  # in a file a flag has its own name
        ENGINES["sglang"].typed({"tp": 8}, "0.5.23")


# -- programs --------------------------------------------------------------------------------------


def test_a_program_is_read_and_never_run(tmp_path) -> None:
    text = (
        "import os\nfrom pathlib import Path\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
        "os.environ['A'] = 'b'\nSIZE = 2\nmore = dict(dtype='auto')\n"
        "Path('f').write_text('text')\n"
        "engine = sgl.Engine(model_path='m', tp_size=SIZE, port=find_port(), **more)\n"
    )
    found = program(text, ("Engine",), lambda name, args: args)
    assert found is not None
    assert found.args == {"model_path": "m", "tp_size": 2, "dtype": "auto"}
    assert (found.env, found.files) == ({"A": "b"}, {"f": "text"})
    assert found.unread == {"port": "find_port()"}
    assert not (tmp_path / "ran").exists()


def test_a_name_that_is_bound_again_is_not_what_it_was() -> None:
    text = "n = 2\nn = count()\nLLM('m', tp=n)\n"
    found = program(text, ("LLM",), lambda name, args: args)
    assert found is not None
    assert found.args == {"model": "m"}
    assert found.unread == {"tp": "n"}


@pytest.mark.parametrize("text", ["print(1)\n", "from vllm import LLM\n", "if:\n", "\0"])
def test_a_program_without_an_engine_is_a_finding(text, tmp_path, capsys) -> None:
    file = tmp_path / "p.py"
    file.write_text(text)
    assert main(["import", str(file), "--engine", "vllm"]) == 1
    assert "error[SF114]" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ENGINES.names())
@pytest.mark.parametrize("text", ["", "hello world", "echo hi > x", "A=b"])
def test_text_without_an_argument_is_no_recipe(engine, text, capsys) -> None:
    assert main(["import", "--engine", engine, "--args", text]) == 1
    assert "error[SF114]" in capsys.readouterr().out


def test_standard_input_holds_any_format(monkeypatch, capsys) -> None:
    for text in (
        "vllm serve m --tensor-parallel-size 2",
        "llm = LLM(model='m', tensor_parallel_size=2)",
        '{"model": "m", "tensor_parallel_size": 2}',
    ):
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["import", "-", "--engine", "vllm"]) == 0
        assert "tensor_parallel_size: 2" in capsys.readouterr().out


# -- what is at fault ------------------------------------------------------------------------------


def test_every_argument_at_fault_is_told_where_it_stands(tmp_path, capsys) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"set -eu\n{SERVER} --bogus 1 \\\n  --tp two --port 1\n")
    assert main(["import", str(file), "--engine", "sglang"]) == 1
    out = capsys.readouterr().out
    assert out.count("error[SF114]") == 2
    assert f"{file}:2:{len(SERVER) + 2}" in out
    assert f"{file}:3:3" in out
    assert out.count("= help:") == 2


def test_every_key_of_a_file_at_fault_is_told_where_it_stands(tmp_path, capsys) -> None:
    file = tmp_path / "args.yaml"
    file.write_text("model-path: m\nbogus: 1\ntp-size: two\n")
    assert main(["import", str(file), "--engine", "sglang"]) == 1
    out = capsys.readouterr().out
    assert f"{file}:2:1" in out
    assert f"{file}:3:1" in out


def test_a_version_that_has_a_flag_is_named() -> None:
    with pytest.raises(RecipeError) as caught:
        translated(asked_engine("llamacpp@b5142"), None, "llama-server -m x.gguf -fa on")
    (found,) = caught.value.diagnostics
    assert found.help is not None
    assert "llamacpp@b9102" in found.help


def test_of_a_version_that_is_not_known_only_what_no_version_has_is_an_error() -> None:
    asked = asked_engine("llamacpp@b6900")
    newer = translated(asked, None, "llama-server -m x.gguf -fa on")
    assert newer.asked.version == "b9102"
    assert {d.severity.value for d in newer.findings} <= {"warning", "note"}
    # `--draft-max` went, `-fa on` came: no version that is known has both.
    both = translated(asked, None, "llama-server -m x.gguf -fa on -md d.gguf --cd 8 --draft-max 9")
    assert both.found.written["draft"]["num_steps"] == 9
    assert any("-fa on" in d.message and d.code == "SF115" for d in both.findings)
    with pytest.raises(RecipeError):
        translated(asked, None, "llama-server -m x.gguf --flash-attn perhaps-so --bogus")


def test_what_is_imported_from_words_is_plain_text() -> None:
    text = f"{SERVER} {FLAG} --served-model-name x --lora-paths a b"
    args, _ = read(FLAGS, text)
    assert {type(v) for v in args.values()} == {str, list}
    assert {type(each) for each in args["lora_paths"]} == {str}
    assert translated(asked_engine("sglang"), None, text).text


def test_a_shipped_script_comes_back_whole(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    export = to_args(resolve(load(find("kimi/k3_dspark"))))
    Path("k3.sh").write_text(ENGINES["sglang"].formats["sh"](export, "0.5.23"))
    found = translated(asked_engine("sglang"), "k3.sh", None)
    assert found.found.written["verify"]["shape"] == "ragged"
    again = to_args(resolve(loads(found.text)))
    assert (again.args, again.env) == (export.args, export.env)
    assert MODE.items() <= export.env.items()
